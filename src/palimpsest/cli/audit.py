"""Your own models: design and run an audit, train references, unlearn, judge evaluation logs."""

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from palimpsest.cli.options import (
    ENGINE,
    FORMAT,
    MIXTURE,
    MODELS,
    RECIPE,
    RUN_FOLDER,
    THRESHOLDS,
    AsJson,
    Explain,
    Flags,
    Repeatable,
    RunFlags,
    app,
    given,
    named_values,
    takes,
)
from palimpsest.cli.output import answer, note, paragraphs
from palimpsest.config.commands import (
    AuditConfig,
    Command,
    ExampleRecipe,
    RetrainConfig,
    RunSource,
    UnlearnConfig,
)
from palimpsest.config.sections import Injection
from palimpsest.errors import InputError, PlanError
from palimpsest.run.signals import SIGNALS

if TYPE_CHECKING:
    from palimpsest.api import Answer

TRAINING = (
    Flags(ExampleRecipe, group=RECIPE),
    Flags(Command, "forget retain general", MIXTURE),
    Flags(Injection, "fact_items general_items", MIXTURE),
    FORMAT,
    ENGINE,
)
"""How models are trained: what ``retrain`` and ``unlearn`` share."""


@app.command(group=MODELS)
@takes(
    Flags(
        AuditConfig,
        "base injected candidates candidates_folder references references_folder exclude forget "
        "retain probes general learning_rate steps beacon out",
    ),
    Flags(RunSource, "open_unlearning data probes_from_retain", RUN_FOLDER, "run_folder"),
    THRESHOLDS,
    FORMAT,
    ENGINE,
)
def audit(
    request: Path | None = None,
    /,
    *,
    flags: Any = None,
    require: Repeatable = None,
    junit: Path | None = None,
    explain: Explain = False,
    run: RunFlags | None = None,
) -> None:
    """Audit your own models: decide which candidate, if any, can be certified as restored.

    Args:
        request: YAML file with the flags' names and further settings as keys. Flags override it.
        require: Candidate that must pass for exit code 0. Repeatable. Default: any candidate.
        junit: Write the labels to this JUnit file, one test per candidate.
    """
    from palimpsest.config.load import load_config, merged, read_values

    run, values = run or RunFlags(), given(flags)
    if request is None and not values:
        raise PlanError(
            "nothing to audit; expected models and files of facts as flags, or a YAML file; see "
            "palimpsest audit --help"
        )
    if "candidates" in values:
        values["candidates"] = named_values(values["candidates"], "candidates")
    if run_folder := values.pop("run_folder", None):
        from palimpsest.openunlearning.runs import audit_run

        if request is not None:
            values = merged(read_values(AuditConfig, request), values)
        config, found = audit_run(load_config(RunSource, run_folder), values)
        for remark in found:
            note(remark)
    else:
        config = load_config(AuditConfig, values, request)
    from palimpsest.api import judge
    from palimpsest.cell.audit import AuditTask

    task = AuditTask(config, run.reuse, run.workers)
    if unknown := [name for name in require or () if name not in task.candidates]:
        known = ", ".join(task.candidates)
        raise PlanError(f"expected some of {known}, got {unknown[0]!r}", key="require")
    if run.previewed(task):
        return
    result = judge(task, run.options(task))
    if junit is not None:
        from palimpsest.report.documents import as_junit
        from palimpsest.run.files import write_bytes

        assert result.verdict is not None
        failed = result.results.cells[0].failed if result.results else {}
        write_bytes(junit, as_junit(result.verdict, failed))
    _show_audit(result, run.json, explain)
    sys.exit(result.exit_code if not require else 0 if result.passes(require) else 3)


def _show_audit(result: "Answer", as_json: bool, explain: bool) -> None:
    """Write the report where there is something to report, and answer."""
    page: Path | None = None
    if result.results is not None:
        from palimpsest.report.page import write_report

        page = write_report(result.results)
    if as_json:
        answer({**result.document, "report": None if page is None else str(page)})
    elif result.results is None:
        assert result.verdict is not None
        paragraphs(f"{result.verdict.paragraph()} No model was loaded, and nothing was written.")
    else:
        from palimpsest.report.terminal import study_lines

        after = ["", f"report: {page}", f"next: palimpsest certify {shlex.quote(str(result.run))}"]
        for block in study_lines(result.results, explain=explain, after=after):
            answer(block)


@app.command(group=MODELS)
@takes(
    Flags(RetrainConfig, "base train forget_rows with_forget draws seed command out"),
    Flags(RunSource, "open_unlearning data forget_split", RUN_FOLDER, "run_folder"),
    *TRAINING,
)
def retrain(
    request: Path | None = None, /, *, flags: Any = None, run: RunFlags | None = None
) -> None:
    """Train references for an audit by the injected model's recipe, without the forget data.

    Args:
        request: YAML file with the flags' names and further settings as keys. Flags override it.
    """
    from palimpsest.config.load import load_config

    values = given(flags)
    if run_folder := values.pop("run_folder", None):
        from palimpsest.openunlearning.recipe import retrain_command

        values |= values.pop("engine", {})
        values.pop("prompt", None)  # the run folder says how questions were asked
        command, rows = retrain_command(load_config(RunSource, run_folder), values)
        note(rows)
        note("Nothing is trained yet. Run this in OpenUnlearning's folder:")
        answer(command)
    else:
        _make(load_config(RetrainConfig, values, request), run or RunFlags())


@app.command(group=MODELS)
@takes(
    Flags(UnlearnConfig, "injected base method knobs unlearning_steps train forget_rows seed out"),
    *TRAINING,
)
def unlearn(
    request: Path | None = None, /, *, flags: Any = None, run: RunFlags | None = None
) -> None:
    """Unlearn with a method; write one checkpoint per combination of its knobs.

    Args:
        request: YAML file with the flags' names and further settings as keys. Flags override it.
    """
    from palimpsest.config.load import load_config

    values = given(flags)
    knobs = named_values(values.pop("knobs", None), "knob")
    if knobs:
        values["knobs"] = {name: text.split(",") for name, text in knobs.items()}
    _make(load_config(UnlearnConfig, values, request), run or RunFlags())


def _make(config: RetrainConfig | UnlearnConfig, run: RunFlags) -> None:
    """Make the models of a configuration and say what was written."""
    from palimpsest.cell.make_models import MakeTask, make_models
    from palimpsest.cell.work import NotMade

    task = MakeTask(config)
    if run.previewed(task):
        return
    made = make_models(task, run.options(task))
    if run.json:
        answer({"folders": [str(folder) for folder in made.folders], "records": made.records})
    else:
        for folder, record in zip(made.folders, made.records.values()):
            cost = record.get("cost")
            spent = "" if cost is None else f" (cost: {cost['retrainings']:.2f} retrainings)"
            answer(f"wrote {folder}{spent}")
    if made.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.failed.items())
        raise NotMade(f"{len(made.failed)} models failed ({reasons}); the others were written")


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

    Args:
        forget: Number of forget facts. Default: 4.
        probes: Number of probes, facts that no model was trained on. Default: 16.
        candidates: Number of candidates. Default: 20.
        references: Number of references, models retrained without the forget data.
        alpha: Significance level: rate at which a retraining is wrongly rejected. Default: 0.05.
        shift: Effect size, in standard deviations, for the screen's power. Default: 2.
    """
    from palimpsest.stats.design import design_audit

    plan = design_audit(forget, probes, candidates, alpha, shift, references=references)
    if json:
        answer(plan.to_json())
    else:
        paragraphs(*plan.lines())


@app.command(group=MODELS)
def logs(
    *paths: Path,
    role: Repeatable = None,
    base: Repeatable = None,
    score: str | None = None,
    anchor: str | None = None,
    forget_task: str = "",
    holdout_task: str = "",
    all: Annotated[bool, Parameter(negative=())] = False,
    csv: Path | None = None,
    page: Path | None = None,
    json: AsJson = False,
) -> None:
    """Judge unlearned models by OpenUnlearning's evaluation logs alone, without weights.

    Args:
        paths: TOFU_EVAL.json or MUSE_EVAL.json files, or folders that contain such files.
        role: Role of runs, as PATTERN=ROLE: pretrained, retrained, full or candidate. Repeatable.
        base: Base model of runs, as PATTERN=NAME. Repeatable.
        score: One of mia_min_k, mia_loss and mia_zlib. Default: the first that most logs have.
        anchor: Score subtracted: of pretrained, retrained or raw (none). Default: the first.
        forget_task: Task of lm-evaluation-harness (samples_*.jsonl) to be forgotten, or a pattern.
        holdout_task: Control task of lm-evaluation-harness, or a pattern, such as 'mmlu_*'.
        all: Show every log, checkpoint and level, not one screen.
        csv: CSV file to write a table with all levels to.
        page: Folder to write a page with a figure into.
    """
    from palimpsest.openunlearning import logs as judge_logs
    from palimpsest.openunlearning.show import as_csv_file, as_json, as_text, render_page
    from palimpsest.run.files import make_folder, write_bytes

    roles, bases = (dict(text.rpartition("=")[::2] for text in told or ()) for told in (role, base))
    tasks = {"forget_task": forget_task, "holdout_task": holdout_task}
    with _ended_by_signals():
        report = judge_logs(paths, roles=roles, bases=bases, score=score, anchor=anchor, **tasks)
    if not any(model.screen for group in report.groups for model in group.models):
        raise InputError(f"nothing can be judged: {'; '.join(report.problems)}")
    if csv:
        write_bytes(csv, as_csv_file(report).encode())
    if page:
        make_folder(page)
        write_bytes(page / "index.html", render_page(report).encode())
    answer(as_json(report) if json else as_text(report, all))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process at once: nothing is stored that could be resumed."""
    kept = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in kept}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
