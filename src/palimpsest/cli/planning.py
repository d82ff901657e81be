"""Before anything is trained: check the design, list the methods and the criteria."""

import shutil
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from palimpsest.cli.options import BENCHMARKS, MODELS, AsJson, EngineFlags, RunFlags, app
from palimpsest.cli.output import answer, paragraphs
from palimpsest.errors import PlanError

if TYPE_CHECKING:
    from palimpsest.methods import Description


@app.command(group=MODELS)
def design(
    *,
    forget: int = 4,
    probes: int = 16,
    candidates: int = 20,
    references: int | None = None,
    alpha: float = 0.05,
    shift: float = 2.0,
    json: AsJson = False,
) -> None:
    """Check whether there are enough probes and references for an audit to decide.

    Parameters
    ----------
    forget
        Number of forget facts.
    probes
        Number of never-learned probes.
    candidates
        Number of candidates.
    references
        Number of references, the retrainings that candidates are compared with.
    alpha
        Significance level: rate at which a true retraining is wrongly rejected. Default: 0.05.
    shift
        Effect size for which the screen's power is computed, in standard deviations.
    """
    from palimpsest.stats.design import design_audit

    plan = design_audit(forget, probes, candidates, alpha, shift, references=references)
    if json:
        answer(plan.to_json())
    else:
        for line in plan.lines():
            paragraphs(line) if line and "  " not in line else answer(line)


@app.command(group=BENCHMARKS)
def methods(*, json: AsJson = False) -> None:
    """List the unlearning methods with their requirements, knobs and sources."""
    from palimpsest.methods import describe

    rows = describe()
    if json:
        answer([asdict(row) for row in rows])
        return
    for row in rows:
        _print_method(row)


def _print_method(row: "Description") -> None:
    """Print one paragraph, as wide as the terminal, with nothing cut off."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    knobs = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in row.knobs.items()
    )
    parts = {"needs": ", ".join(row.needs), "knobs": knobs, "source": row.citation}
    lines = [row.name]
    for part in (row.summary, *(f"{name}: {text}" for name, text in parts.items() if text)):
        lines += textwrap.wrap(
            part,
            width,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    answer("\n".join(lines))


@app.command(group=BENCHMARKS)
def criteria(
    *,
    plan: str = "criteria",
    out: Path | None = None,
    list: Annotated[bool, Parameter(name="--list", negative=())] = False,
    engine: EngineFlags | None = None,
    run: RunFlags | None = None,
) -> None:
    """Test which published criteria distinguish restored from suppressed models.

    Parameters
    ----------
    plan
        YAML file or preset that names measures and known-label models. Default: criteria.
    out
        Run folder. An existing one is resumed.
    list
        List the criteria with inputs, cost, formula, direction and source, and exit.
    """
    run = run or RunFlags()
    if list:
        _list_criteria(run.json)
        return
    from palimpsest.cli.study import study
    from palimpsest.config.load import load_config
    from palimpsest.config.plan import Plan
    from palimpsest.config.presets import preset

    file = plan.endswith((".yaml", ".yml"))
    chosen = load_config(Plan, {}, plan) if file else preset(plan)
    if chosen.measures == "none" or not chosen.known_label.models:
        raise PlanError(
            f"{plan} has no measures or no known-label models; expected both", key="plan"
        )
    study(plan, out=out, engine=engine, run=run)


def _list_criteria(as_json: bool) -> None:
    from palimpsest.criteria import CRITERIA, INPUTS

    if as_json:
        names = ("name", "number", "group", "inputs", "turn", "cost", "formula", "source")
        answer([{name: getattr(entry, name) for name in names} for entry in CRITERIA])
        return
    for entry in CRITERIA:
        number = entry.number or "–"
        answer(f"{number!s:>3} {entry.name:24} {entry.group:17} {entry.inputs:6} {entry.cost}")
        answer(f"    {entry.formula}; {entry.turn}; {entry.source}")
    letters = ", ".join(f"{letter} {words}" for letter, words in INPUTS.items())
    paragraphs(
        "A larger score means less restored. After each formula: how the published value was "
        f"turned into such a score. Inputs: {letters}."
    )
