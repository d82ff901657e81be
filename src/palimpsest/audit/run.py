"""The audit as one call: check everything, run what is left, read the verdict from what is stored.

Order, each of which may end it: everything is checked on paper; the certifiability bound; the
headroom, when forget facts carry evidence; scores and round trips; the verdict. The run folder is
a normal run with one cell, ``audit``.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.audit.memory import on_disk
from palimpsest.audit.request import AuditRequest, make_request
from palimpsest.criteria.rules import Rules
from palimpsest.errors import InputError, ModelError, PalimpsestError, PlanError, StoreError
from palimpsest.facts.files import Fact, as_jsonl
from palimpsest.facts.names import shown_path
from palimpsest.models.device import check_device
from palimpsest.models.inspect_folder import read_json
from palimpsest.run import disk
from palimpsest.run.executor import Event, OnEvent, OnRun, carry_out, silent
from palimpsest.run.graph import Failure
from palimpsest.run.store import Run, table_bytes, write_bytes, write_json
from palimpsest.verdict import Number, Verdict

if TYPE_CHECKING:
    from palimpsest.audit.inputs import Inputs

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many of how many steps are done."""
Notify = Callable[[str], None]
Place = str | os.PathLike[str]
Model = Any
"""A path, a Hugging Face id, or a ``transformers`` module."""
Facts = Any
"""A path, or rows of facts."""
_OWN = ("tokenizer", "executor", "workers", "dry_run", "fork", "progress", "settings")
"""Arguments of ``audit`` that are not part of the request."""


class AuditFailed(PalimpsestError):
    """A model that the audit cannot do without could not be measured; the rest is kept."""


@dataclass(frozen=True)
class Answer:
    """What an audit or a TOFU study came to."""

    paragraph: str
    """The verdict for a person; after a dry run, what would be done."""
    run: Path | None
    """The run folder; None where nothing had to be run."""
    summary: Mapping[str, Any]
    """The document of ``summary.json``; empty after a dry run."""

    @property
    def exit_code(self) -> int:
        """0 when a candidate is certified (or nothing was to be decided), 3 when none is."""
        return int(self.summary.get("exit_code", 0))


@dataclass(frozen=True)
class AuditResult(Answer):
    """What an audit came to."""

    verdict: Verdict | None = None
    """None after a dry run."""


def _other_roles(request: AuditRequest) -> Iterator[str]:
    """Yield each model given as something else than the tool's own record beside it says."""
    given = [("base", request.base), ("injected", request.injected)]
    given += [("reference", place) for place in request.references]
    for role, place in given:
        folder = Path(place)
        record = read_json(folder, "palimpsest.json") if os.path.isdir(folder) else None
        said = role if record is None else record.get("role", role)
        if said != role:
            yield (
                f"{shown_path(place)} was given as {role}, but its palimpsest.json says that it "
                f"was made as {said}; check that models are not swapped"
            )


def audit(
    base: Model,
    injected: Model,
    candidates: Mapping[str, Model] | Sequence[str],
    forget: Facts,
    retain: Facts,
    probes: Facts | None = None,
    general: Place = "pocket",
    references: Sequence[Model] = (),
    *,
    out: Place,
    tokenizer: Any = None,
    round_trip: str = "survivors",
    rules: Rules | Mapping[str, Any] | None = None,
    executor: str = "inline",
    workers: int = 1,
    dry_run: bool = False,
    fork: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> AuditResult:
    """Return the verdict on the candidates; see ``AuditRequest`` for the ``settings``.

    Models are paths, Hugging Face ids or, with their ``tokenizer``, ``transformers`` modules; facts
    are paths, or rows (dicts, ``Fact`` objects, a pandas frame). What is in memory is written
    beside the run folder, to ``OUT.given/``.
    executor: ``inline`` does everything in this process, ``local`` in worker processes, ``ray`` on
    a cluster. Running it again with the same arguments resumes it.
    """
    asked = on_disk({key: value for key, value in locals().items() if key not in _OWN}, tokenizer)

    def on_event(event: Event) -> None:
        if progress is not None and event.kind == "step":
            progress(event.words, event.done, event.total)

    return run_audit(
        make_request(asked | settings),
        executor=executor,
        workers=workers,
        dry_run=dry_run,
        fork=fork,
        on_event=on_event,
    )


def run_audit(
    request: AuditRequest,
    *,
    workers: int | None = 1,
    dry_run: bool = False,
    fork: bool = False,
    on_run: OnRun | None = None,
    notify: Notify = lambda sentence: None,
    **options: Any,
) -> AuditResult:
    """Return the verdict of a request: what ``audit``, the command line and a YAML file all call.

    workers: None takes as many as there are cores, models, and memory for.
    notify: called with what the user may not have meant, before anything is run.
    options: of ``carry_out``.
    """
    from palimpsest.audit.inputs import CELL, prepare
    from palimpsest.audit.job import AuditJob
    from palimpsest.audit.preview import check_memory, preview_lines, suitable_workers

    if options.get("executor") != "ray":  # its nodes have other devices
        check_device(request.device)
    for place, what in request.left_out:
        notify(f"{shown_path(place)} was given as {what} and is not used a second time")
    for line in _other_roles(request):
        notify(line)
    inputs = prepare(request)
    workers = workers or suitable_workers(inputs)
    if dry_run:
        lines = preview_lines(inputs, inputs.digests(), workers)
        return AuditResult("\n".join(lines), None, {})
    check_memory(inputs)
    for sentence in inputs.repeated:
        notify(sentence)
    out = Path(request.out)
    check_out(out)
    if not inputs.bound.certifiable:
        return _underpowered(inputs)
    command, new = "palimpsest audit", is_new(out)
    run = inputs.run(out, fork=fork)
    cell = run.cell(CELL)

    def listen(path: Path) -> OnEvent:
        tracker = silent if on_run is None else on_run(path)

        def tell(event: Event) -> None:
            tracker(event)
            if event.kind == "failed" and (failure := cell.failure()) is not None:
                raise failed(failure)

        return tell

    with begun(run, command, new):
        job = AuditJob(inputs)
        carry_out(job, run, command, workers=workers, on_run=listen, **options)
        headroom = cell.halt_values()
        return _judged(run, inputs) if headroom is None else _stopped(run, inputs, headroom)


@contextmanager
def begun(run: Run, command: str, new: bool) -> Iterator[None]:
    """Hold a run; bad input that its steps find removes a new one.

    The corrected command has other inputs and could use nothing of it.
    """
    try:
        with run.lock(command):
            yield
    except InputError:
        if new:
            disk.remove(run.path)
        raise


def is_new(out: Path) -> bool:
    """Return whether a run folder would be made here; refuse a place where none can be."""
    check_out(out)
    return not out.exists() or not any(out.iterdir())


def check_out(out: Path) -> None:
    """Refuse a place where no run folder can be."""
    nearest = next((place for place in (out, *out.absolute().parents) if place.exists()), out)
    if not nearest.is_dir():
        raise PlanError(f"out: {nearest} is a file; expected a folder for the run; choose another")
    if not os.access(nearest, os.W_OK):
        raise PlanError(f"out: {nearest} cannot be written to; choose another folder for the run")


def failed(failure: Failure) -> PalimpsestError:
    """Return the error that a failed step stands for."""
    kinds = {ModelError.kind: ModelError, InputError.kind: InputError}
    return kinds.get(failure.kind, AuditFailed)(failure.reason)


def _judged(run: Run, inputs: "Inputs") -> AuditResult:
    """Return the verdict from the stored cell, and write what other programs read."""
    from palimpsest.analysis.results import read_run
    from palimpsest.audit.inputs import CELL
    from palimpsest.audit.summary import score_rows, summary

    results = read_run(run.path)
    cell = results.cell(CELL)
    if cell.verdict is None:
        raise StoreError(f"{run.path}: the audit has no candidate to judge; run it again")
    stored = run.cell(CELL).summary()
    paragraph = " ".join([cell.verdict.paragraph(), *_chosen_dose(inputs, stored["dose"])])
    document = summary(
        inputs, cell.verdict, paragraph, rules_hash=run.rules_hash, stored=stored, cell=cell
    )
    _write(run, inputs, document, score_rows(cell, results.rules))
    return AuditResult(paragraph, run.path, document, cell.verdict)


def _chosen_dose(inputs: "Inputs", dose: Mapping[str, Any] | None) -> list[str]:
    if dose is None:
        return []
    words = inputs.request.dose(dose["learning_rate"])
    return [
        f"Re-acquisition took {words}, which was chosen on the first reference alone; if the "
        "injected model learned with another dose, give that dose with --steps, --items and "
        "--learning-rate."
    ]


def _underpowered(inputs: "Inputs") -> AuditResult:
    """Return the verdict that needs no model: nothing could be excluded, so nothing is run."""
    from palimpsest.audit.summary import summary

    numbers = _numbers(inputs)
    verdict = Verdict("uncertified", None, None, "underpowered", "screen", numbers)
    paragraph = f"{verdict.paragraph()} No model was loaded and nothing was written."
    document = summary(inputs, verdict, paragraph, rules_hash=inputs.plan.rules_hash())
    return AuditResult(paragraph, None, document, verdict)


def _stopped(run: Run, inputs: "Inputs", headroom: Mapping[str, Any]) -> AuditResult:
    """Return the verdict on inferable facts, for which no candidate had to be loaded."""
    from palimpsest.audit.summary import summary

    numbers = _numbers(inputs) | {
        "headroom": headroom["estimate"],
        "headroom_low": headroom["low"],
        "headroom_high": headroom["high"],
        "headroom_taught": headroom["taught"],
        "regime": headroom["regime"],
    }
    verdict = Verdict("uncertified", None, None, "not_identifiable", "headroom", numbers)
    paragraph = (
        f"Uncertified (not_identifiable). The facts are inferable: with evidence in context the "
        f"base model is only {headroom['estimate']:.2f} nats ({headroom['low']:.2f} to "
        f"{headroom['high']:.2f}) short of the injected one, of {headroom['taught']:.2f} that "
        "injection taught, so never-learned probes do not show what level forgetting should "
        "reach. No candidate was loaded."
    )
    document = summary(
        inputs, verdict, paragraph, rules_hash=run.rules_hash, stored={"headroom": headroom}
    )
    _write(run, inputs, document, [])
    return AuditResult(paragraph, run.path, document, verdict)


def _write(
    run: Run, inputs: "Inputs", document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    probes = {"probes.jsonl": inputs.sets["probe"]} if inputs.generated else {}
    write_answer(run, document, rows, probes)


def write_answer(
    run: Run,
    document: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    probes: Mapping[str, Sequence[Fact]],
) -> None:
    """Write what other programs read: the summary, the scores, the probes that were generated."""
    write_json(run.path / "summary.json", document)
    if rows:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write_bytes(run.path / "scores.parquet", table_bytes(columns))
    for name, facts in probes.items():
        write_bytes(run.path / name, as_jsonl(facts))


def _numbers(inputs: "Inputs") -> dict[str, Number]:
    from palimpsest.audit.summary import design

    return {
        **{key: value for key, value in design(inputs.bound).items() if key != "certifiable"},
        "pool": inputs.plan.rules.screen_pool,
        "references": len(inputs.request.references),
    }
