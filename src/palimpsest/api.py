"""The public functions: what the command line does, for Python callers.

Each runs (or resumes) the work in a folder and returns an object read from it once.
"""

import inspect
import io
import multiprocessing
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from palimpsest.cell.launch import RunOptions, launch, progress_listener
from palimpsest.config.commands import AuditConfig, ExampleRecipe, RetrainConfig, UnlearnConfig
from palimpsest.config.load import load_config, meanings, plain, read_plan
from palimpsest.config.plan import Plan
from palimpsest.config.sections import Engine, Injection, Knob, Prompt
from palimpsest.errors import PlanError, StudyFailed
from palimpsest.files import given_path
from palimpsest.report.documents import FORMAT, run_document, verdict_document, write_documents
from palimpsest.report.results import RunResults, read_run
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict, early_verdict
from palimpsest.stats.words import headline
from palimpsest.text import shown

if TYPE_CHECKING:
    from pandas import DataFrame

    from palimpsest.cell.audit import AuditTask
    from palimpsest.cell.launch import Task
    from palimpsest.cell.make_models import Made

PathLike = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many steps are done out of how many."""


F = TypeVar("F", bound=Callable[..., Any])


def _explained(*kinds: type) -> Callable[[F], F]:
    """Return a decorator that adds what the fields of these classes mean to a docstring."""
    known = {name: text for kind in kinds for name, text in meanings(kind).items()}

    def explain(function: F) -> F:
        names = [name for name in inspect.signature(function).parameters if name in known]
        form: Any = {"width": 96, "initial_indent": "    ", "subsequent_indent": "        "}
        lines = [textwrap.fill(f"{name}: {known[name]}", **form) for name in names]
        function.__doc__ = "\n".join([f"{function.__doc__}", "    Keys:", "", *lines])
        return function

    return explain


@dataclass(frozen=True)
class Answer:
    """What an audit came to."""

    document: Mapping[str, Any]
    """The contents of ``summary.json``."""
    results: RunResults | None = None
    """None where nothing had to be run."""
    verdict: Verdict | None = None

    def __repr__(self) -> str:
        told = "no verdict" if self.verdict is None else headline(self.verdict)
        return f"<Answer: {told} Run: {self.run}>"

    @property
    def run(self) -> Path | None:
        """The run folder."""
        return None if self.results is None else self.results.path

    @property
    def certified(self) -> bool:
        """Whether a candidate is certified."""
        return self.verdict is not None and self.verdict.certified

    def passes(self, names: Sequence[str]) -> bool:
        """Tell whether the audit certifies a candidate and each of these could be the one."""
        return (
            self.certified
            and self.verdict is not None
            and set(names) <= {finding.name for finding in self.verdict.passing}
        )

    @property
    def exit_code(self) -> int:
        """0 when a candidate is certified, 3 when none is."""
        return 0 if self.certified else 3


@_explained(AuditConfig)
def audit(
    base: Any,
    injected: Any,
    candidates: Mapping[str, Any] | None,
    forget: Any,
    retain: Any,
    probes: Any = None,
    general: PathLike = "pocket",
    references: Sequence[Any] = (),
    *,
    out: PathLike,
    candidates_folder: PathLike = "",
    references_folder: PathLike = "",
    exclude: Sequence[str] = (),
    adapter_base: str = "",
    learning_rate: float | None = None,
    steps: int = AuditConfig.steps,
    items: int = AuditConfig.items,
    chunks: int = AuditConfig.chunks,
    scored_pieces: int = AuditConfig.scored_pieces,
    piece_tokens: int = AuditConfig.piece_tokens,
    beacon: str = "",
    rules: Rules | Mapping[str, Any] | None = None,
    prompt: Prompt | Mapping[str, Any] | None = None,
    engine: Engine | Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    executor: str = "inline",
    workers: int = 1,
    reuse: PathLike = "",
    progress: Progress | None = None,
) -> Answer:
    """Return the verdict on the candidates.

    Models are paths, Hugging Face ids or, with their ``tokenizer``, ``transformers`` modules; facts
    are paths, or rows (dicts, ``Fact`` objects, a pandas frame); probes may also be the number of
    probes to generate. What is in memory is written beside the run folder, to ``OUT.given/``.
    executor: ``inline`` does everything in this process, ``local`` in worker processes, ``ray`` on
    a cluster. Running it again with the same arguments resumes it; with one more candidate, only
    that one is measured.

    ::

        answer = palimpsest.audit(
            "pocket/qwen2-s", "models/injected", {"npo": "npo/npo-w12"}, "forget.jsonl",
            "retain.jsonl", "probe.jsonl", "general.txt", references_folder="models",
            out="audit-run",
        )
        answer.certified, answer.verdict.reason
    """
    values = _settings(locals())
    from palimpsest.cell.audit import AuditTask
    from palimpsest.cell.checkpoints import check_out, on_disk

    folder = str(given_path("out", out))
    check_out(Path(f"{folder}.given"))
    config = load_config(AuditConfig, on_disk(values, folder, tokenizer))
    options = _options(executor, workers, reuse, progress)
    return judge(AuditTask(config, options.reuse, options.workers), options)


def judge(task: "AuditTask", options: RunOptions) -> Answer:
    """Return the verdict of an audit: what flags, YAML and Python all come to."""
    remarks = task.check()
    if not task.bound.certifiable:
        for remark in remarks:
            options.on_remark(remark)
        verdict = early_verdict(task.bound, task.rules)
        document = {"format": FORMAT, "kind": "audit"} | verdict_document(verdict)
        return Answer(document, None, verdict)
    results = run_task(task, options)
    if not results.judged:
        reasons = "; ".join(f"{name}: {why}" for name, why in results.cells[0].failed.items())
        raise StudyFailed(
            f"no candidate could be measured ({reasons}); give others with another --out"
        )
    (_, verdict) = results.judged[0]
    return Answer(run_document(results), results, verdict)


def study(
    plan: Plan | Mapping[str, Any] | PathLike,
    out: PathLike | None = None,
    *,
    pool: PathLike = "",
    executor: str = "inline",
    workers: int = 1,
    reuse: PathLike = "",
    progress: Progress | None = None,
) -> RunResults:
    """Run (or resume) a study and return its results.

    plan: a Plan, the name of a preset, a YAML file, or keys and values as in YAML.
    out: run folder; ``runs/NAME`` by default, after the plan's name.
    pool: file of a sealed pool of your own. The others are as for ``audit``.

    ::

        plan = palimpsest.Plan.preset(
            "demo", seeds=[0, 1], methods=["rollback", "npo"], replication={"draws": 5}
        )
        results = palimpsest.study(plan, "demo-run")
        [verdict.status for cell, verdict in results.judged]
    """
    from palimpsest.cell.study import StudyTask

    chosen = read_plan(plan, {})
    folder = Path("runs") / chosen.name if out is None else given_path("out", out)
    task = StudyTask(chosen, folder, str(given_path("pool", pool)) if pool else "")
    return run_task(task, _options(executor, workers, reuse, progress))


@_explained(Injection, ExampleRecipe, RetrainConfig)
def retrain(
    base: PathLike,
    out: PathLike,
    *,
    train: PathLike = "",
    forget_rows: PathLike = "",
    forget: PathLike = "",
    retain: PathLike = "",
    general: PathLike = "",
    with_forget: bool = False,
    command: str = "",
    draws: int = RetrainConfig.draws,
    seed: int = 0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    warmup: int | None = None,
    schedule: Literal["linear", "cosine", "constant"] | None = None,
    weight_decay: float | None = None,
    loss: Literal["all", "completion"] | None = None,
    fact_items: int | None = None,
    general_items: int | None = None,
    prompt: Prompt | Mapping[str, Any] | None = None,
    engine: Engine | Mapping[str, Any] | None = None,
    executor: str = "inline",
    workers: int = 1,
    progress: Progress | None = None,
) -> "Made":
    """Train references with your own model and return their folders.

    From ``epochs`` to ``general_items`` the arguments are the recipe; None takes the default.

    ::

        made = palimpsest.retrain(
            "pocket/qwen2-s", "models", train="train.jsonl", with_forget=True, draws=5
        )
        made.folders
    """
    return _make(RetrainConfig, _options(executor, workers, "", progress), _settings(locals()))


@_explained(Injection, ExampleRecipe, UnlearnConfig)
def unlearn(
    injected: PathLike,
    out: PathLike,
    *,
    base: PathLike,
    method: Any = UnlearnConfig.method,
    knobs: Mapping[str, Knob | Sequence[Knob]] | None = None,
    unlearning_steps: int = UnlearnConfig.unlearning_steps,
    train: PathLike = "",
    forget_rows: PathLike = "",
    forget: PathLike = "",
    retain: PathLike = "",
    general: PathLike = "",
    seed: int = 0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    warmup: int | None = None,
    schedule: Literal["linear", "cosine", "constant"] | None = None,
    weight_decay: float | None = None,
    loss: Literal["all", "completion"] | None = None,
    fact_items: int | None = None,
    general_items: int | None = None,
    prompt: Prompt | Mapping[str, Any] | None = None,
    engine: Engine | Mapping[str, Any] | None = None,
    executor: str = "inline",
    workers: int = 1,
    progress: Progress | None = None,
) -> "Made":
    """Make candidates with your own model, one per combination of the knobs' values.

    method: a name, a class, or an object with its knobs set. From ``epochs`` to ``general_items``
    the arguments are the recipe of the injected model, of which None takes what its palimpsest.json
    says, or the default.

    ::

        made = palimpsest.unlearn(
            "models/injected", "npo", base="pocket/qwen2-s", train="train.jsonl", method="npo",
            knobs={"weight": [3.0, 12.0]},
        )
        made.folders, made.failed
    """
    return _make(UnlearnConfig, _options(executor, workers, "", progress), _settings(locals()))


def _make(
    kind: type[RetrainConfig | UnlearnConfig], options: RunOptions, values: dict[str, Any]
) -> "Made":
    """Return what a command makes of the settings of the function of its name."""
    from palimpsest.cell.make_models import MakeTask, make_models

    method, knobs = plain(values.get("method")), values.get("knobs")
    if isinstance(method, dict):  # of an object with its knobs set
        values["method"], knobs = method.pop("name"), method | dict(knobs or {})
    if isinstance(knobs, Mapping):
        several = {name: plain(chosen) for name, chosen in knobs.items()}
        values["knobs"] = {n: v if isinstance(v, list) else [v] for n, v in several.items()}
    return make_models(MakeTask(load_config(kind, values)), options)


def compare(*runs: PathLike) -> "DataFrame":
    """Return one row per method over all cells of these runs, the nearest to retraining first.

    The columns are those of ``palimpsest compare --csv``; needs pandas.

    ::

        palimpsest.compare("demo-run")[["method", "most frequent label", "cost, retrainings"]]
    """
    from palimpsest.report.documents import import_pandas
    from palimpsest.report.leaderboard import compare_runs
    from palimpsest.report.table import as_csv

    if not runs:
        raise PlanError("none given; expected at least one run folder", key="runs")
    board = compare_runs([given_path("runs", run) for run in runs])[0]
    frame: DataFrame = import_pandas().read_csv(io.StringIO(as_csv(board)))
    return frame


def run_task(task: "Task", options: RunOptions) -> RunResults:
    """Run what is left of a task, write its documents and return its results."""
    results = read_run(launch(task, options).path)
    write_documents(results)
    return results


def _options(executor: str, workers: int, reuse: PathLike, progress: Progress | None) -> RunOptions:
    """Return the options of a run, checked; PlanError in a worker that imports the script again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise PlanError(
            "this script is imported again by every worker process, and starts its run again; "
            'expected its calls below `if __name__ == "__main__":`; move them there',
            key="executor",
        )
    if not (progress is None or callable(progress)):
        raise PlanError(f"expected a function, got {shown(progress)}", key="progress")
    taken = str(given_path("reuse", reuse)) if reuse else ""
    return RunOptions(executor, workers, progress_listener(progress), taken)


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function that are keys of its configuration."""
    others = ("executor", "workers", "reuse", "progress", "tokenizer")
    return {name: value for name, value in arguments.items() if name not in others}
