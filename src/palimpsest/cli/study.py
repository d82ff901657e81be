"""Studies on the testbed, their run folders, and what these show of methods."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from palimpsest.cli.options import (
    BENCHMARKS,
    ENGINE,
    EXECUTION,
    START,
    THRESHOLDS,
    AsJson,
    Explain,
    Flags,
    RunFlags,
    app,
    given,
    named_values,
    takes,
)
from palimpsest.cli.output import answer, say, status_lines
from palimpsest.config.sections import Engine
from palimpsest.errors import PlanError, StudyFailed

if TYPE_CHECKING:
    from palimpsest.cell.study import StudyTask
    from palimpsest.config.plan import Plan
    from palimpsest.report.results import RunResults

Methods = Annotated[list[str] | None, Parameter(name="--method", negative=())]
Knobs = Annotated[list[str] | None, Parameter(name="--knob", negative=())]
SLOW = ("transformers.models.auto.modeling_auto", "transformers.tokenization_utils_tokenizers")
"""What a worker needs of ``transformers`` to read a pocket model's config and tokenizer."""


@app.command(group=START)
@takes(ENGINE)
def demo(
    *,
    out: Path = Path("demo-run"),
    model: str = "pocket/qwen2-s",
    seed: int = 0,
    method: Methods = None,
    knob: Knobs = None,
    explain: Explain = False,
    flags: Any = None,
    run: RunFlags | None = None,
) -> None:
    """Run one cell with a pocket model, from training to a verdict and a report.

    Args:
        out: Run folder. An existing one is resumed. Default: demo-run.
        model: Pocket model. Default: pocket/qwen2-s.
        seed: Seed of the cell. Default: 0.
        method: Add a method, by name or package.module:Class. Repeatable.
        knob: Setting of that method, as NAME=VALUE, or NAME=VALUE,VALUE for several. Repeatable.
    """
    from palimpsest.config.presets import preset

    values = given(flags) | {"models": [model], "seeds": [seed]}
    plan = _changed(preset("demo"), values, method, knob)
    _run(plan, out, run or RunFlags(), method, explain=explain)


@app.command(group=BENCHMARKS)
@takes(Flags(Engine, "keep", EXECUTION, "engine"), THRESHOLDS, ENGINE)
def study(
    plan: str = "",
    /,
    *,
    out: Path | None = None,
    method: Methods = None,
    knob: Knobs = None,
    explain: Explain = False,
    general: str | None = None,
    pool: str = "",
    show: Annotated[bool, Parameter(negative=())] = False,
    schema: Annotated[bool, Parameter(negative=())] = False,
    flags: Any = None,
    run: RunFlags | None = None,
) -> None:
    """Run a study: one cell per model and seed. Run it again to resume it or to add a method.

    Args:
        plan: YAML file or name of a preset, such as pocket-small.
        out: Run folder. An existing one is resumed; only new or edited methods are measured.
        method: Add a method, by name or package.module:Class. Repeatable.
        knob: Setting of that method, as NAME=VALUE, or NAME=VALUE,VALUE for several. Repeatable.
        general: Plain-text file of general prose, such as WikiText, in place of the plan's.
        pool: File of your own sealed pool, whose commitment the plan holds.
        show: Print the complete plan as YAML and exit.
        schema: Print the JSON schema of a plan file and exit.
    """
    from palimpsest.config.load import as_dict, config_schema, load_config
    from palimpsest.config.plan import Plan
    from palimpsest.config.presets import PRESETS, preset

    if schema:
        answer(config_schema(Plan))
        return
    if not plan:
        raise PlanError(f"missing; expected a YAML file or one of {', '.join(PRESETS)}", key="plan")
    file, run = plan.endswith((".yaml", ".yml")), run or RunFlags()
    values = given(flags) | ({} if general is None else {"general": {"source": general}})
    chosen = _changed(load_config(Plan, {}, plan) if file else preset(plan), values, method, knob)
    if not show:
        _run(chosen, out or Path("runs") / chosen.name, run, method, pool, explain=explain)
    elif run.json:
        answer(as_dict(chosen))
    else:
        import yaml

        form: Any = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None}
        answer(yaml.safe_dump(as_dict(chosen), **form).rstrip())


def _changed(
    plan: "Plan", values: dict[str, Any], methods: list[str] | None, knobs: list[str] | None
) -> "Plan":
    """Return a plan with other values and further methods; ``knobs`` are those of the one method
    that is added."""
    from palimpsest.config.load import as_dict, changed

    if knobs and len(methods or ()) != 1:
        raise PlanError(
            f"belongs to the method that --method adds, of which there are {len(methods or ())}; "
            "expected one; write a plan to give several methods their knobs",
            key="--knob",
        )
    several = {name: text.split(",") for name, text in named_values(knobs, "--knob").items()}
    added = [{"name": name} | several for name in methods or ()]
    return changed(plan, values | {"methods": [*as_dict(plan)["methods"], *added]})


def _run(
    plan: "Plan",
    out: Path,
    run: RunFlags,
    added: list[str] | None,
    pool: str = "",
    *,
    explain: bool,
) -> None:
    """Run a study, write its report and answer; methods that were added come first."""
    if run.executor == "local" and not run.dry_run and plan.engine.device == "cpu":
        from palimpsest.run.local import prepare

        # Workers are forked from a process that imports meanwhile what they need.
        prepare("palimpsest.cell.work", "palimpsest.cell.study", *SLOW)
    from palimpsest.api import run_task
    from palimpsest.cell.study import StudyTask

    task = StudyTask(plan, out, pool)
    if run.previewed(task):
        return
    results = run_task(task, run.options(task))
    from palimpsest.paper.tables import paper_section
    from palimpsest.report.documents import run_document
    from palimpsest.report.page import write_report
    from palimpsest.report.terminal import study_lines

    page = write_report(results, paper_section(results))
    if run.json:
        answer(run_document(results) | {"report": str(page), "run": str(out)})
    else:
        own = [name.rpartition(":")[2] for name in added or ()]
        after = ["", f"report: {page}", f"next: palimpsest compare {shlex.quote(str(out))}"]
        for block in study_lines(results, explain=explain, own=own, after=after):
            answer(block)
    _raise_failed_plugins(results, task)


def _raise_failed_plugins(results: "RunResults", task: "StudyTask") -> None:
    """Raise if methods of the user's gave no candidate somewhere; everything else is kept."""
    failed: dict[tuple[str, str], str] = {}  # each reason once
    for cell in results.cells:
        for name, reason in cell.failed.items():
            failed.setdefault((cell.method(name), reason), f"{name} in {cell.id}")
    lines = [
        f"method {m}: {where}: {why}" for (m, why), where in failed.items() if m in task.plugins
    ]
    if lines:
        raise StudyFailed("\n".join(lines))


@app.command(group=BENCHMARKS)
def status(run: Path, /, *, json: AsJson = False) -> None:
    """Show which cells are done, running or failed, the current steps and the time left.

    Args:
        run: Run folder.
    """
    from dataclasses import asdict

    from palimpsest.run.status import status as read_status

    now = read_status(run)
    answer(asdict(now) if json else "\n".join(status_lines(now)))


@app.command(group=BENCHMARKS)
def report(run: Path, /, *, json: AsJson = False) -> None:
    """Write the report again from stored results: tables, figures and the page.

    Args:
        run: Run folder.
    """
    from palimpsest.paper.tables import paper_section
    from palimpsest.report.documents import write_documents
    from palimpsest.report.page import write_report
    from palimpsest.report.results import read_run, refuse_damage

    results = read_run(run)
    write_documents(results)
    page = write_report(results, paper_section(results))
    if results.missing:
        say(f"not finished: {', '.join(f'{cell.id} ({cell.state})' for cell in results.missing)}")
    counts = {"finished": len(results.cells), "planned": len(results.planned)}
    answer({"report": str(page)} | counts if json else str(page))
    refuse_damage(results)


@app.command(group=BENCHMARKS)
def compare(
    *runs: Path,
    csv: Path | None = None,
    latex: Path | None = None,
    page: Path | None = None,
    json: AsJson = False,
) -> None:
    """Rank methods by how close they come to retraining, over all cells of the runs.

    Args:
        runs: Run folders to compare.
        csv: Write the leaderboard with all columns to this CSV file.
        latex: Write the table, with intervals, to this LaTeX file (uses the package booktabs).
        page: Write a page with all tables to this HTML file.
    """
    from palimpsest.report.leaderboard import compare_runs, comparison_page, short_board
    from palimpsest.report.table import as_csv, as_latex, table_lines
    from palimpsest.run.files import write_bytes

    if not runs:
        raise PlanError("none given; expected at least one run folder", key="runs")
    tables = compare_runs(runs)
    board, paper = short_board(tables[0]), short_board(tables[0], paper=True)
    for path, text in ((csv, as_csv(tables[0])), (latex, as_latex(paper))):
        if path is not None:
            write_bytes(path, text.encode())
            say(f"wrote {path}")
    if page is not None:
        write_bytes(page, comparison_page(tables).encode())
        say(f"wrote {page}")
    answer({table.name: table.plain() for table in tables} if json else table_lines(board))


@app.command(group=BENCHMARKS)
def methods(*, json: AsJson = False) -> None:
    """List the unlearning methods with their requirements, knobs and sources."""
    from dataclasses import asdict

    from palimpsest.methods import describe
    from palimpsest.report.table import wrapped

    rows = describe()
    if json:
        answer([asdict(row) for row in rows])
        return
    for row in rows:
        knobs = (f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}" for n, v in row.knobs.items())
        parts = {"needs": ", ".join(row.needs), "knobs": ", ".join(knobs), "source": row.citation}
        several = [row.summary, *(f"{name}: {text}" for name, text in parts.items() if text)]
        answer("\n".join([row.name, *(wrapped(f"  {part}") for part in several)]))
