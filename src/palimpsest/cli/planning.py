"""Before anything is trained: check the design, list the methods."""

import shutil
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from palimpsest.cli.options import BENCHMARKS, MODELS, AsJson, app
from palimpsest.cli.output import answer, paragraphs

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
        Number of forget facts. Default: 4.
    probes
        Number of probes, facts that no model was trained on. Default: 16.
    candidates
        Number of candidates. Default: 20.
    references
        Number of references, models retrained without the forget data.
    alpha
        Significance level: rate at which a retraining is wrongly rejected. Default: 0.05.
    shift
        Effect size in standard deviations for which the screen's power is computed. Default: 2.
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
