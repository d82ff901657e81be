"""Before anything is trained: check the design, show plans, list the methods, seal a pool."""

import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer
from palimpsest.errors import InputError


def design(
    forget: Annotated[int, Option(help="Number of forget facts.")] = 4,
    probes: Annotated[int, Option(help="Number of never-learned probes.")] = 16,
    candidates: Annotated[int, Option(help="Number of candidates.")] = 20,
    references: Annotated[
        int | None, Option(help="Number of references: retrainings to compare with.")
    ] = None,
    alpha: Annotated[float, Option(help="Error rate of screen and comparison.")] = 0.05,
    shift: Annotated[
        float, Option(help="Effect size that the power is computed for, in sd.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Check whether a design has enough probes and references to decide anything."""
    from palimpsest.criteria.design import design_screen

    plan = design_screen(forget, probes, candidates, alpha, shift, references=references)
    answer(plan.to_json() if as_json else "\n".join(plan.lines()))


def plan(
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON schema of a plan file.")
    ] = False,
    show: Annotated[
        str | None, Option(help="Print a preset, or a plan file with its preset filled in.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the keys of a plan file (--schema), or a complete plan as YAML (--show PRESET)."""
    if schema == (show is not None):
        raise InputError("plan: expected one of --schema and --show PRESET; see docs/plan.md")
    if show is None:
        from palimpsest.plan_keys import plan_schema

        answer(plan_schema())
        return
    import yaml

    from palimpsest.cli.studies import named_plan

    values = named_plan(show).as_dict()
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None)
    answer(values if as_json else text.rstrip())


def methods(as_json: AsJson = False) -> None:
    """List the unlearning methods with their requirements, knobs and sources."""
    from palimpsest.methods import describe

    rows = describe()
    if as_json:
        answer(rows)
        return
    for row in rows:
        _print_method(row)


def _print_method(row: dict[str, Any]) -> None:
    """Print one paragraph, as wide as the terminal, with nothing cut off."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    knobs = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in row["knobs"].items()
    )
    parts = {"needs": ", ".join(row["needs"]), "knobs": knobs, "source": row["citation"]}
    lines = [row["name"]]
    for part in (row["summary"], *(f"{name}: {text}" for name, text in parts.items() if text)):
        lines += textwrap.wrap(
            part,
            width,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    answer("\n".join(lines))


def seal(
    pool: Annotated[Path, Argument(help="Your file of sealed phrasings.")],
    as_json: AsJson = False,
) -> None:
    """Print the commitment (hash) of your own sealed pool. Put it in the plan; keep the file."""
    from palimpsest.facts.sealed import commit_file

    commitment = str(commit_file(pool))
    answer({"commitment": commitment} if as_json else commitment)
