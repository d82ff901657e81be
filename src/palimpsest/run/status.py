"""Where a run stands, read without checking digests or disturbing the processes that work on it."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from palimpsest.run.store import Run


@dataclass(frozen=True, slots=True)
class Step:
    """What a running cell is at: the step it began last, and how many of how many are behind it."""

    name: str
    done: int
    total: int
    seconds: float
    """Since it began."""
    left: float | None
    """Seconds to the end of the cell at its pace so far, or None where it has no pace yet."""


@dataclass(frozen=True, slots=True)
class Status:
    """Cell ids by state, and a guess at the time left."""

    planned: tuple[str, ...]
    done: tuple[str, ...]
    running: tuple[str, ...]
    failed: dict[str, str]  # cell id to reason
    waiting: tuple[str, ...]  # not begun, or interrupted
    steps: dict[str, tuple[str, ...]]  # steps done so far in unfinished cells
    totals: dict[str, int]  # how many steps these have in all; cells never begun are absent
    now: dict[str, Step]  # by running cell; cells begun outside a command are absent
    working: bool  # whether a command is at work on the run
    seconds_per_cell: float | None
    seconds_left: float | None


def status(run: Run | Path | str, now: float | None = None) -> Status:
    """Where the run stands; `now` is the clock's seconds since 1970."""
    run = run if isinstance(run, Run) else Run.open(run)
    now = datetime.now(UTC).timestamp() if now is None else now
    done, running, waiting = [], [], []
    failed: dict[str, str] = {}
    steps: dict[str, tuple[str, ...]] = {}
    for cell_id in run.cells:
        cell = run.cell(cell_id)
        if cell.ended():
            done.append(cell_id)
            continue
        steps[cell_id] = cell.steps()
        reason = cell.failure()
        if cell.running():
            running.append(cell_id)
        elif reason is not None:
            failed[cell_id] = reason
        else:
            waiting.append(cell_id)
    log = list(_lines(run.path / "log.jsonl"))
    spent = _seconds(log, set(done))
    at = _at(log, running, now)
    each = sum(spent) / len(spent) if spent else None
    return Status(
        run.cells,
        tuple(done),
        tuple(running),
        failed,
        tuple(waiting),
        steps,
        _totals(log, steps),
        at,
        run.held() or bool(running),
        each,
        _left(at, each, len(run.cells) - len(done), len(running)),
    )


def _left(at: Mapping[str, Step], each: float | None, left: int, workers: int) -> float | None:
    """The seconds left: by whole cells where one has finished, else by the steps of the others."""
    paces = [one.left for one in at.values() if one.left is not None]
    if each is not None:
        begun = sum(one.done / max(1, one.total) for one in at.values())
        return each * max(0.0, left - begun) / max(1, workers)
    if not paces:
        return None
    whole = [
        one.left * one.total / max(1, one.total - one.done)
        for one in at.values()
        if one.left is not None
    ]
    others = (left - len(at)) * sum(whole) / len(whole) / max(1, workers)
    return max(paces) + others


def _at(log: list[dict[str, Any]], running: list[str], now: float) -> dict[str, Step]:
    """What each running cell began last, and its pace since it was last started."""
    found: dict[str, Step] = {}
    first: dict[str, tuple[float, int]] = {}
    for entry in log:
        cell = entry.get("cell")
        if cell not in running:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            when = _time(entry)
            if entry["event"] == "started":
                first.pop(cell, None)
                found.pop(cell, None)
            elif entry["event"] == "begun":
                done, total = int(entry["done"]), int(entry["total"])
                since, before = first.setdefault(cell, (when, done))
                pace = (when - since) / (done - before) if done > before else None
                left = None if pace is None else max(0.0, pace * (total - done) - (now - when))
                found[cell] = Step(str(entry["step"]), done, total, max(0.0, now - when), left)
    return found


def _totals(log: list[dict[str, Any]], cells: Mapping[str, object]) -> dict[str, int]:
    """How many steps each of these cells has, as it was told when one of them last began."""
    found: dict[str, int] = {}
    for entry in log:
        if entry.get("event") == "begun" and entry.get("cell") in cells:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found[entry["cell"]] = int(entry["total"])
    return found


def _seconds(log: list[dict[str, Any]], done: set[str]) -> list[float]:
    """How long each finished cell took, from the log's last `started` and `finished` lines."""
    began: dict[str, float] = {}
    spent: dict[str, float] = {}
    for entry in log:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if entry["cell"] not in done:
                continue
            if entry["event"] == "started":
                began[entry["cell"]] = _time(entry)
            elif entry["event"] == "finished" and entry["cell"] in began:
                spent[entry["cell"]] = _time(entry) - began[entry["cell"]]
    return list(spent.values())


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """The log's legible lines; its last may be half written."""
    for line in log.read_bytes().split(b"\n") if log.exists() else []:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


def _time(entry: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(entry["time"]).timestamp()
