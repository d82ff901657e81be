"""The public functions: what the command line does, for Python callers.

Each runs (or resumes) the work in a folder and returns an object read from it once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.cell.launch import RunOptions, progress_listener
from palimpsest.config.commands import AuditConfig, RetrainConfig, TofuConfig, UnlearnConfig
from palimpsest.config.load import load_config
from palimpsest.config.plan import Plan
from palimpsest.errors import StudyFailed
from palimpsest.report.documents import FORMAT, run_document, verdict_document, write_documents
from palimpsest.report.results import RunResults, read_run
from palimpsest.stats.verdict import Verdict, early_verdict

if TYPE_CHECKING:
    from palimpsest.cell.audit import AuditInputs
    from palimpsest.cell.make_models import Made

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many steps are done out of how many."""


@dataclass(frozen=True)
class Answer:
    """What an audit or a TOFU study came to."""

    document: Mapping[str, Any]
    """The contents of ``summary.json``."""
    results: RunResults | None = None
    """None where nothing had to be run."""
    verdict: Verdict | None = None
    """Of an audit."""

    @property
    def run(self) -> Path | None:
        """The run folder."""
        return None if self.results is None else self.results.path

    @property
    def certified(self) -> bool:
        """Whether a candidate is certified; in a TOFU study, in every cell."""
        if self.verdict is not None:
            return self.verdict.certified
        return self.results is not None and self.results.certified == len(self.results.planned)

    def passes(self, names: Sequence[str]) -> bool:
        """Tell whether the audit certifies a candidate and each of these could be the one."""
        if not self.certified or self.verdict is None:
            return False
        findings, above = self.verdict.findings, self.verdict.rules.certify_above
        passing = {f.name for f in findings if f.clears and f.comparison and f.comparison.p > above}
        return set(names) <= passing

    @property
    def exit_code(self) -> int:
        """0 when a candidate is certified, 3 when none is."""
        return 0 if self.certified else 3


def audit(
    base: Any,
    injected: Any,
    candidates: Mapping[str, Any] | Sequence[str],
    forget: Any,
    retain: Any,
    probes: Any = None,
    general: Any = "pocket",
    references: Sequence[Any] = (),
    *,
    out: str | os.PathLike[str],
    tokenizer: Any = None,
    executor: str = "inline",
    workers: int = 1,
    reuse: str = "",
    progress: Progress | None = None,
    **settings: Any,
) -> Answer:
    """Return the verdict on the candidates; ``settings`` are the other keys of ``AuditConfig``.

    Models are paths, Hugging Face ids or, with their ``tokenizer``, ``transformers`` modules; facts
    are paths, or rows (dicts, ``Fact`` objects, a pandas frame). What is in memory is written
    beside the run folder, to ``OUT.given/``.
    executor: ``inline`` does everything in this process, ``local`` in worker processes, ``ray`` on
    a cluster. Running it again with the same arguments resumes it; with one more candidate, only
    that one is measured.
    """
    from palimpsest.cell.checkpoints import on_disk

    given = {"base": base, "injected": injected, "candidates": candidates, "forget": forget}
    given |= {"retain": retain, "probes": probes, "references": references}
    values = on_disk(given, os.fspath(out), tokenizer) | {"general": general, "out": out}
    config = load_config(AuditConfig, values | settings)
    options = RunOptions(executor, workers, progress_listener(progress), reuse)
    return audit_config(config, options)


def audit_config(
    config: AuditConfig, options: RunOptions, inputs: "AuditInputs | None" = None
) -> Answer:
    """Return the verdict of a configuration: what flags, YAML and Python all come to.

    inputs: the configuration checked on paper, where the caller has done that already.
    """
    from palimpsest.cell.audit import prepare_audit, run_audit

    inputs = inputs or prepare_audit(config, resumed=options.reuse)
    if not inputs.bound.certifiable:
        verdict = early_verdict(inputs.bound, inputs.rules)
        document = {"format": FORMAT, "kind": "audit"} | verdict_document(verdict)
        return Answer(document, None, verdict)
    results = _read(run_audit(inputs, options).path)
    if not results.judged:
        reasons = "; ".join(f"{name}: {why}" for name, why in results.cells[0].failed.items())
        raise StudyFailed(
            f"no candidate could be measured ({reasons}); give others with another --out"
        )
    (_, verdict) = results.judged[0]
    return Answer(run_document(results), results, verdict)


def study(
    plan: Plan | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    pool: str = "",
    executor: str = "inline",
    workers: int = 1,
    reuse: str = "",
    progress: Progress | None = None,
) -> RunResults:
    """Run (or resume) a study and return its results; ``plan`` is a Plan, a preset or a file."""
    from palimpsest.config.presets import PRESETS, preset

    if not isinstance(plan, Plan):
        name = os.fspath(plan)
        plan = preset(name) if name in PRESETS else load_config(Plan, {}, name)
    options = RunOptions(executor, workers, progress_listener(progress), reuse)
    return study_plan(plan, Path(out or Path("runs") / plan.name), options, pool)


def study_plan(plan: Plan, out: Path, options: RunOptions, pool: str = "") -> RunResults:
    """Run (or resume) the study of a plan and return its results."""
    from palimpsest.cell.study import run_study

    return _read(run_study(plan, out, pool=pool, options=options).path)


def tofu(config: TofuConfig, options: RunOptions | None = None) -> Answer:
    """Run (or resume) a TOFU study and return its results."""
    from palimpsest.cell.tofu import run_tofu

    results = _read(run_tofu(config, options or RunOptions()).path)
    return Answer(run_document(results), results)


def unlearn(options: RunOptions | None = None, **settings: Any) -> "Made":
    """Make candidates with your own model; ``settings`` are the keys of ``UnlearnConfig``."""
    from palimpsest.cell.make_models import OwnInputs, make_models

    config = load_config(UnlearnConfig, settings)
    return make_models(OwnInputs(config), options or RunOptions())


def retrain(options: RunOptions | None = None, **settings: Any) -> "Made":
    """Train references with your own model; ``settings`` are the keys of ``RetrainConfig``."""
    from palimpsest.cell.make_models import OwnInputs, make_models

    config = load_config(RetrainConfig, settings)
    return make_models(OwnInputs(config), options or RunOptions())


def _read(path: Path) -> RunResults:
    results = read_run(path)
    write_documents(results)
    return results
