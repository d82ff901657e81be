"""The status of a run for people: lines for a pipe, and a view that refreshes on a terminal."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from palimpsest.analysis.table import printable
from palimpsest.run.status import Status, StepAtWork, status
from palimpsest.run.store import Run

REFRESH = 1.0
"""Seconds between two looks at a run."""


def status_lines(now: Status) -> list[str]:
    """Return where a run stands: one line for the whole, one per step at work and per cell that
    was interrupted, failed or ended early."""
    lines = [_counts(now)]
    if now.working and now.seconds_left is not None:
        lines.append(f"about {duration(now.seconds_left)} left")
    if not now.working and len(now.done) + len(now.halted) < len(now.planned):
        lines.append("No active process. Run the same command again to resume.")
    lines += [f"running  {_step(now, step)}, for {duration(step.seconds)}" for step in now.now]
    for cell in now.waiting:
        if now.steps.get(cell):
            lines.append(f"waiting  {cell}: {_done(now, cell)}")
    lines += [f"failed   {cell}: {printable(why.reason)}" for cell, why in now.failed.items()]
    lines += [f"ended    {cell}: {printable(why)}" for cell, why in now.halted.items()]
    return lines


def watch(
    run: Path | str, *, terminal: bool, say: Callable[[str], None], refresh: float = REFRESH
) -> None:
    """Follow a run until no process works on it: in place on a terminal, else one line per change.

    Ctrl-C ends the watching and nothing else.
    """
    opened = Run.open(run)
    try:
        if terminal:
            _live(opened, refresh)
            return
        before = ""
        for now in _looks(opened, refresh):
            # The clock alone is no news.
            text = "; ".join([_counts(now), *(_step(now, step) for step in now.now)])
            if text != before:
                say(text)
            before = text
    except KeyboardInterrupt:
        pass


def duration(seconds: float) -> str:
    """Return seconds as a person says them: 40 s, 3 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _looks(run: Run, refresh: float) -> Iterator[Status]:
    """Yield the status again and again, and once more when the work has ended."""
    while True:
        now = status(run)
        yield now
        if not now.working:
            return
        time.sleep(refresh)


def _live(run: Run, refresh: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for now in _looks(run, refresh):
            live.update(view(run.path.name, now), refresh=True)


def view(name: str, now: Status) -> Any:
    """Return the view of one instant: a bar for the run and for each running cell, then the steps
    at work and what failed."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    shares = {c: len(now.steps.get(c, ())) / max(1, now.totals.get(c, 1)) for c in now.running}
    whole = (len(now.done) + sum(shares.values())) / len(now.planned)
    rows = [(printable(name), whole, _counts(now))]
    rows += [(cell, share, _done(now, cell)) for cell, share in shares.items()]
    table = Table.grid(padding=(0, 2))
    for label, share, text in rows:
        bar = ProgressBar(total=1.0, completed=share, width=16)
        table.add_row(Text(label, overflow="ellipsis", no_wrap=True), bar, Text(text))
    return Group(table, *(Text(line) for line in status_lines(now)[1:]))


def _counts(now: Status) -> str:
    text = (
        f"{len(now.done)} of {len(now.planned)} cells done, {len(now.running)} running, "
        f"{len(now.failed)} failed, {len(now.waiting)} waiting"
    )
    return f"{text}, {len(now.halted)} ended early" if now.halted else text


def _step(now: Status, step: StepAtWork) -> str:
    return f"{step.cell}: {printable(step.words)} ({_done(now, step.cell)})"


def _done(now: Status, cell: str) -> str:
    """Return how much of a cell is stored."""
    done, total = len(now.steps.get(cell, ())), now.totals.get(cell)
    return f"{done} steps done" if total is None else f"{done} of {total} steps done"
