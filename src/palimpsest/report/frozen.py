"""What was frozen when: plan, rules and seal of a run, and the order its chains prove."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.report.formats import Table, Value
from palimpsest.run.store import Run, read_chain, seal_problems
from palimpsest.run.terms import CREATION
from palimpsest.study.results import RunResults


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of a chain, as a reader needs it."""

    what: str
    digest: str


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a run fixed before its first training step, and the order of what followed."""

    rules_hash: str
    commitment: str
    """Of the sealed audit pool."""
    links: tuple[Link, ...]
    """The run's creation, then the one cell's chain where there is one, then what followed."""
    rules: Table
    environment: Table
    cells: Table
    problems: tuple[str, ...]
    """What the chains say against the seal; empty when nothing."""


def read_frozen(path: Path, results: RunResults) -> Frozen:
    """What the run at ``path`` had fixed, from its stored files."""
    run = Run.open(path)
    links = [Link(_told(one.event, one.data), one.digest) for one in _run_chain(path)]
    later = links[len(CREATION) :]
    del links[len(CREATION) :]
    rows: list[tuple[Value, ...]] = []
    problems: list[str] = []
    for cell in results.cells:
        chain = run.cell(cell.id).chain()
        problems += seal_problems(chain, run.seal["commitment"])
        opened = chain.find("seal opened")
        steps = [one for one in chain.entries if one.event == "step"]
        before = None if opened is None else sum(one.n < opened.n for one in steps)
        rows.append((cell.id, len(steps), before, chain.head))
        if len(results.planned) == 1:
            links += [Link(_told(one.event, one.data), one.digest) for one in chain.entries]
    links += later
    return Frozen(
        run.rules_hash,
        str(run.seal["commitment"]),
        tuple(links),
        Table(
            "rules",
            "Frozen rules",
            "",
            ("rule", "value"),
            tuple((name, _plain(value)) for name, value in sorted(run.rules.items())),
        ),
        Table("environment", "Environment", "", ("what", "value"), _flat(run.environment)),
        Table(
            "chains",
            "Chains of the cells",
            "",
            ("cell", "steps", "steps before the seal was opened", "head of its chain"),
            tuple(rows),
        ),
        tuple(problems),
    )


def _run_chain(path: Path) -> Any:
    return read_chain(path / "chain.jsonl").entries


def _told(event: str, data: dict[str, Any]) -> str:
    told = {
        "plan": "plan fixed",
        "rules": "rules fixed",
        "seal": "audit pool sealed",
        "environment": "environment recorded",
        "started": f"cell {data.get('cell')} started",
        "step": f"{data.get('step')} stored",
        "seal opened": "seal opened, once",
        "finished": "cell finished",
        "summary": "summary written",
    }
    if event == "cells":
        count = len(data.get("cells", ()))
        return f"{count} {'cell' if count == 1 else 'cells'} planned"
    return told.get(event, event)


def _flat(values: Any, name: str = "") -> tuple[tuple[str, str], ...]:
    if not isinstance(values, dict):
        return ((name, _plain(values)),)
    rows: list[tuple[str, str]] = []
    for key, value in sorted(values.items()):
        rows += _flat(value, f"{name} {key}".strip())
    return tuple(rows)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
