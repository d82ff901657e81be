"""Before anything is trained: is the design sound, what can be audited, which pool is sealed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer


def design(
    forget: Annotated[int, typer.Option(help="Forget facts, m.")] = 4,
    probes: Annotated[int, typer.Option(help="Never-learned probes, n.")] = 16,
    candidates: Annotated[int, typer.Option(help="Candidates, K.")] = 20,
    alpha: Annotated[float, typer.Option(help="Level of the screen.")] = 0.05,
    shift: Annotated[float, typer.Option(help="Shift the power refers to, in sd.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Can the screen exclude anybody? Proposition 1 as a calculator."""
    from palimpsest.criteria.design import design_screen

    found = design_screen(forget, probes, candidates, alpha, shift)
    answer(found.to_json() if as_json else "\n".join(found.lines()))


def methods(as_json: AsJson = False) -> None:
    """What can be audited here: every unlearning method, its needs, knobs and source."""
    from palimpsest.methods import describe

    rows = describe()
    if as_json:
        answer(rows)
        return
    _print_methods(rows)


def _print_methods(rows: list[dict[str, Any]]) -> None:
    """Print a paragraph a method, as wide as the terminal: no knob and no number is cut off."""
    import shutil
    import textwrap

    wide = max(40, shutil.get_terminal_size((100, 24)).columns)
    for row in rows:
        knobs = ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in row["knobs"].items()
        )
        told = {"needs": ", ".join(row["needs"]), "knobs": knobs, "source": row["citation"]}
        parts = [row["summary"], *(f"{name}: {text}" for name, text in told.items() if text)]
        lines = [row["name"]]
        for part in parts:
            lines += textwrap.wrap(
                part,
                wide,
                initial_indent="  ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        answer("\n".join(lines))


def seal(pool: Path, as_json: AsJson = False) -> None:
    """Print the commitment to an audit pool of your own; put it in the plan, keep the file."""
    from palimpsest.facts.sealed import commit_file

    found = str(commit_file(pool))
    answer({"commitment": found} if as_json else found)
