"""The public functions: what the command line does, for Python callers.

Each runs (or resumes) the work in a folder and returns an object read from it once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palimpsest.cell.launch import RunOptions, launch, progress_listener
from palimpsest.config.commands import AuditConfig, RetrainConfig, UnlearnConfig
from palimpsest.config.load import load_config
from palimpsest.config.plan import Plan
from palimpsest.config.sections import Engine, Knob, Prompt
from palimpsest.errors import StudyFailed
from palimpsest.report.documents import FORMAT, run_document, verdict_document, write_documents
from palimpsest.report.results import RunResults, read_run
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict, early_verdict

if TYPE_CHECKING:
    from palimpsest.cell.audit import AuditTask
    from palimpsest.cell.launch import Task
    from palimpsest.cell.make_models import Made

PathLike = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many steps are done out of how many."""


@dataclass(frozen=True)
class Answer:
    """What an audit came to."""

    document: Mapping[str, Any]
    """The contents of ``summary.json``."""
    results: RunResults | None = None
    """None where nothing had to be run."""
    verdict: Verdict | None = None

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
    that one is measured. The other arguments are the keys of ``AuditConfig``.

    ::

        answer = palimpsest.audit(
            "base", "injected", {"npo": "unlearned"}, "forget.jsonl", "retain.jsonl",
            "probes.jsonl", "general.txt", ["retrained-0", "retrained-1"], out="run",
        )
        answer.certified, answer.verdict.reason
    """
    values = _settings(locals())
    from palimpsest.cell.audit import AuditTask
    from palimpsest.cell.checkpoints import on_disk

    config = load_config(AuditConfig, on_disk(values, os.fspath(out), tokenizer))
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
    plan: Plan | PathLike,
    out: PathLike | None = None,
    *,
    pool: PathLike = "",
    executor: str = "inline",
    workers: int = 1,
    reuse: PathLike = "",
    progress: Progress | None = None,
) -> RunResults:
    """Run (or resume) a study and return its results; ``plan`` is a Plan, a preset or a file.

    pool: file of a sealed pool of your own. The others are as for ``audit``.

    ::

        results = palimpsest.study("demo", "run", executor="local", workers=2)
        [verdict.status for _, verdict in results.judged]
    """
    from palimpsest.cell.study import StudyTask
    from palimpsest.config.presets import PRESETS, preset

    if not isinstance(plan, Plan):
        name = os.fspath(plan)
        plan = preset(name) if name in PRESETS else load_config(Plan, {}, name)
    task = StudyTask(plan, Path(out or Path("runs") / plan.name), os.fspath(pool))
    return run_task(task, _options(executor, workers, reuse, progress))


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

    The arguments are the keys of ``RetrainConfig``; from ``epochs`` to ``general_items`` they are
    the recipe, of which None takes the default.

    ::

        made = palimpsest.retrain("base", "references", train="train.jsonl", epochs=20, draws=20)
        made.folders
    """
    return _make(RetrainConfig, _options(executor, workers, "", progress), _settings(locals()))


def unlearn(
    injected: PathLike,
    out: PathLike,
    *,
    base: PathLike,
    method: str = UnlearnConfig.method,
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

    The arguments are the keys of ``UnlearnConfig``; from ``epochs`` to ``general_items`` they are
    the recipe of the injected model, of which None takes what its palimpsest.json says, or the
    default.

    ::

        made = palimpsest.unlearn(
            "injected", "npo", base="base", train="train.jsonl", method="npo",
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

    if values.get("knobs"):
        values["knobs"] = {
            name: list(several) if isinstance(several, list | tuple) else [several]
            for name, several in values["knobs"].items()
        }
    return make_models(MakeTask(load_config(kind, values)), options)


def run_task(task: "Task", options: RunOptions) -> RunResults:
    """Run what is left of a task, write its documents and return its results."""
    results = read_run(launch(task, options).path)
    write_documents(results)
    return results


def _options(executor: str, workers: int, reuse: PathLike, progress: Progress | None) -> RunOptions:
    return RunOptions(executor, workers, progress_listener(progress), os.fspath(reuse))


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function that are keys of its configuration."""
    others = ("executor", "workers", "reuse", "progress", "tokenizer")
    return {name: value for name, value in arguments.items() if name not in others}
