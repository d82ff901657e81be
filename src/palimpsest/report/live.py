"""The status of a run for people: lines for a pipe, and a view that refreshes on a terminal."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from palimpsest.report.table import printable
from palimpsest.run.status import Status, StepAtWork, duration, status
from palimpsest.run.store import Run

__all__ = ["duration", "follow", "status_lines", "view"]


def status_lines(now: Status) -> list[str]:
    """Return where a run stands: one line for the whole, one per step at work and per cell that
    was interrupted or failed."""
    lines = [_counts(now)]
    if now.working and now.seconds_left is not None:
        lines.append(f"about {duration(now.seconds_left)} left")
    if not now.working and len(now.done) < len(now.planned):
        lines.append("No active process. Run the same command again to resume.")
    lines += [f"running  {_step(now, step)}, for {duration(step.seconds)}" for step in now.now]
    lines += [f"waiting  {cell}: {_done(now, cell)}" for cell in now.waiting if now.steps.get(cell)]
    lines += [f"failed   {cell}: {printable(why.reason)}" for cell, why in now.failed.items()]
    return lines


def follow(
    run: Path | str, *, terminal: bool, say: Callable[[str], None], refresh: float = 1.0
) -> None:
    """Follow a run until no process works on it: in place on a terminal, else one line per change.

    Ctrl-C ends the watching and nothing else.
    """
    opened, before = Run.open(run), ""
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        live = stack.enter_context(_live()) if terminal else None
        for now in _looks(opened, refresh):
            # The clock alone is no news.
            text = "; ".join([_counts(now), *(_step(now, step) for step in now.now)])
            if live is not None:
                live.update(view(opened.path.name, now), refresh=True)
            elif text != before:
                say(text)
            before = text


def view(name: str, now: Status) -> Any:
    """Return the view of one instant: a bar for the run and for each running cell, then the steps
    at work and what failed."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    shares = {c: len(now.steps.get(c, ())) / max(1, now.totals.get(c, 1)) for c in now.running}
    whole = (len(now.done) + sum(shares.values())) / len(now.planned)
    table = Table.grid(padding=(0, 2))
    for label, share in {printable(name): whole, **shares}.items():
        bar = ProgressBar(total=1.0, completed=share, width=16)
        text = _done(now, label) if label in shares else _counts(now)
        table.add_row(Text(label, overflow="ellipsis", no_wrap=True), bar, Text(text))
    return Group(table, *(Text(line) for line in status_lines(now)[1:]))


def _live() -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(markup=False, highlight=False), auto_refresh=False)


def _looks(run: Run, refresh: float) -> Iterator[Status]:
    """Yield the status until the work has ended, and once more then."""
    while True:
        now = status(run)
        yield now
        if not now.working:
            return
        time.sleep(refresh)


def _counts(now: Status) -> str:
    return (
        f"{len(now.done)} of {len(now.planned)} cells done, {len(now.running)} running, "
        f"{len(now.failed)} failed, {len(now.waiting)} waiting"
    )


def _step(now: Status, step: StepAtWork) -> str:
    return f"{step.cell}: {printable(step.words)} ({_done(now, step.cell)})"


def _done(now: Status, cell: str) -> str:
    """Return how much of a cell is stored."""
    done, total = len(now.steps.get(cell, ())), now.totals.get(cell)
    return f"{done} steps done" if total is None else f"{done} of {total} steps done"
