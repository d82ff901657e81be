"""The status of a run for people: lines for a pipe, and a view that refreshes on a terminal."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from palimpsest.report.terminal import printable
from palimpsest.run.status import Status, status
from palimpsest.run.store import Run

REFRESH = 1.0
"""Seconds between two looks at a run."""


def status_lines(found: Status) -> list[str]:
    """Give where a run stands, a line each for the whole and for cells at work, cut off or failed.

    A run nobody works on says so, and how to go on.
    """
    lines = [_counts(found)]
    if found.working and found.seconds_left is not None:
        lines.append(f"about {duration(found.seconds_left)} left")
    if not found.working and len(found.done) < len(found.planned):
        lines.append("nobody is working on it; run the same command again to go on")
    for cell in found.running:
        lines.append(f"running  {cell}: {', '.join(_at(found, cell))}")
    for cell in found.waiting:
        if found.steps.get(cell):
            lines.append(f"waiting  {cell}: {_kept(found, cell)}")
    lines += [f"failed   {cell}: {printable(why)}" for cell, why in found.failed.items()]
    return lines


def watch(
    run: Path | str, *, terminal: bool, say: Callable[[str], None], refresh: float = REFRESH
) -> None:
    """Follow a run until nobody works on it; on a terminal in place, else a line each change.

    Ctrl-C ends the watching and nothing else.
    """
    opened = Run.open(run)
    try:
        if terminal:
            _live(opened, refresh)
            return
        before = ""
        for found in _looks(opened, refresh):
            # The clock alone is no news.
            now = "\n".join([_counts(found), *(f"{c}: {_step(found, c)}" for c in found.running)])
            if now != before:
                say("; ".join(now.split("\n")))
            before = now
    except KeyboardInterrupt:
        pass


def duration(seconds: float) -> str:
    """Give seconds as a person says them: 40 s, 3 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _looks(run: Run, refresh: float) -> Iterator[Status]:
    """Give the status again and again, and once more when the work has ended."""
    while True:
        found = status(run)
        yield found
        if not found.working:
            return
        time.sleep(refresh)


def _live(run: Run, refresh: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for found in _looks(run, refresh):
            live.update(_view(run.path.name, found), refresh=True)


def _view(name: str, found: Status) -> Any:
    """Give the view of one instant: a bar for the run, a row a running cell, then what failed."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    whole = len(found.done) + sum(_share(found, cell) for cell in found.running)
    told = [_counts(found)]
    if found.working and found.seconds_left is not None:
        told.append(f"about {duration(found.seconds_left)} left")
    table = Table.grid(padding=(0, 2))
    rows = [(printable(name), whole / max(1, len(found.planned)), told)]
    rows += [(cell, _share(found, cell), _at(found, cell)) for cell in found.running]
    for label, share, texts in rows:
        bar = ProgressBar(total=1.0, completed=share, width=16)
        table.add_row(Text(label, overflow="ellipsis", no_wrap=True), bar, Text(", ".join(texts)))
    failed = (Text(f"failed   {cell}: {printable(why)}") for cell, why in found.failed.items())
    return Group(table, *failed)


def _counts(found: Status) -> str:
    return (
        f"{len(found.done)} of {len(found.planned)} cells done, {len(found.running)} running, "
        f"{len(found.failed)} failed, {len(found.waiting)} waiting"
    )


def _at(found: Status, cell: str) -> list[str]:
    """Give what a running cell is doing, for how long, and how long it may take."""
    told = [_step(found, cell)]
    now = found.now.get(cell)
    if now is not None:
        told.append(f"for {duration(now.seconds)}")
        if now.left is not None:
            told.append(f"about {duration(now.left)} left")
    return told


def _step(found: Status, cell: str) -> str:
    now = found.now.get(cell)
    if now is None:
        return f"{len(found.steps.get(cell, ()))} steps done"
    return f"{printable(now.name)} (step {min(now.done + 1, now.total)} of {now.total})"


def _kept(found: Status, cell: str) -> str:
    """Give how much of an interrupted cell need not be done again."""
    kept, total = len(found.steps[cell]), found.totals.get(cell)
    return f"{kept} steps kept" if total is None else f"{kept} of {total} steps kept"


def _share(found: Status, cell: str) -> float:
    now = found.now.get(cell)
    return 0.0 if now is None else now.done / max(1, now.total)
