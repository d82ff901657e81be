"""A user's own audit: base, injected, candidates and files of facts in, a verdict out.

Order of what is done, each of which may end it: everything is checked on paper; the certifiability
bound; the headroom, when forget facts carry evidence; scores of every model; the screen; the round
trip of its survivors; the verdict. The run folder is a normal run with one cell, ``audit``.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.criteria.headroom import Headroom
from palimpsest.criteria.rules import Rules
from palimpsest.errors import InputError, PlanError, StoreError
from palimpsest.facts.files import as_jsonl
from palimpsest.facts.names import shown_path
from palimpsest.run import disk
from palimpsest.run.store import Run, environment, table_bytes, write_bytes, write_json
from palimpsest.study.audit_request import AuditRequest, make_request, request_from_yaml
from palimpsest.verdict import Number, Verdict

__all__ = ["AuditRequest", "AuditResult", "audit", "make_request", "request_from_yaml", "run_audit"]

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many steps are done; the steps grow by the round
trips of the survivors, once the screen has said who they are."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit came to."""

    verdict: Verdict | None
    """None after a dry run."""
    paragraph: str
    """The verdict for a person; after a dry run, what would be done."""
    run: Path | None
    """The run folder; None where nothing had to be run."""
    summary: Mapping[str, Any]
    """The document of ``summary.json``."""

    @property
    def exit_code(self) -> int:
        """0 when a candidate is certified (or nothing was to be decided), 3 when none is."""
        return 0 if self.verdict is None or self.verdict.certified else 3


def audit(
    base: str | os.PathLike[str],
    injected: str | os.PathLike[str],
    candidates: Mapping[str, str | os.PathLike[str]] | Sequence[str],
    forget: str | os.PathLike[str],
    retain: str | os.PathLike[str],
    probes: str | os.PathLike[str] | None = None,
    general: str | os.PathLike[str] = "pocket",
    references: Sequence[str | os.PathLike[str]] = (),
    *,
    out: str | os.PathLike[str],
    round_trip: str = "survivors",
    rules: Rules | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    fork: bool = False,
    progress: Progress | None = None,
    **knobs: Any,
) -> AuditResult:
    """Give the verdict on the candidates; see ``AuditRequest`` for the ``knobs``.

    Running it again with the same arguments resumes it.
    """
    request = make_request(
        {
            "base": base,
            "injected": injected,
            "candidates": candidates,
            "forget": forget,
            "retain": retain,
            "probes": probes,
            "general": general,
            "references": list(references) if isinstance(references, tuple) else references,
            "out": out,
            "round_trip": round_trip,
            "rules": rules,
            **knobs,
        }
    )
    return run_audit(request, dry_run=dry_run, fork=fork, progress=progress)


def run_audit(
    request: AuditRequest,
    *,
    dry_run: bool = False,
    fork: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> AuditResult:
    """Give the verdict of a request: what ``audit``, the command line and a YAML file all call.

    ``tell`` is told what the user may not have meant, before anything is run.
    """
    from palimpsest.study.audit_inputs import CELL, prepare

    tell = tell or _unheard
    for place, what in request.left_out:
        tell(f"{shown_path(place)} was given as {what} and is not taken as a candidate too")
    inputs = prepare(request)
    out = Path(request.out)
    if dry_run:
        from palimpsest.study.audit_preview import preview_lines

        return AuditResult(None, "\n".join(preview_lines(inputs, inputs.digests())), None, {})
    for sentence in inputs.repeated:
        tell(sentence)
    check_out(out)
    if not inputs.bound.certifiable:
        return _underpowered(inputs)
    new = not out.exists() or not any(out.iterdir())
    run = Run.create_or_resume(
        out,
        inputs.terms(),
        inputs.plan.as_dict()["rules"],
        environment(inputs.digests()),
        {"commitment": inputs.commitment(), "pool": "held-out prompts"},
        cells=[CELL],
        fork=fork,
    )
    try:
        with run.lease("palimpsest audit"):
            headroom, stopped = _work(run, inputs, progress)
            return _stopped(run, inputs, headroom) if stopped else _judged(run, inputs, headroom)
    except InputError:
        # Nothing was measured, so nothing is kept: the corrected command finds an empty place.
        if new and not run.cell(CELL).steps():
            disk.remove(run.path)
        raise


def check_out(out: Path) -> None:
    """Refuse a place where no run folder can be."""
    nearest = next((one for one in (out, *out.absolute().parents) if one.exists()), out)
    if not nearest.is_dir():
        raise PlanError(f"out: {nearest} is a file; expected a folder for the run; choose another")
    if not os.access(nearest, os.W_OK):
        raise PlanError(f"out: {nearest} cannot be written to; choose another folder for the run")


def _work(run: Run, inputs: Any, progress: Progress | None) -> tuple[Headroom | None, bool]:
    """Run what is left of the cell; give the headroom, and whether it ended the audit."""
    from palimpsest.criteria.headroom import read_headroom
    from palimpsest.models.train import repeatable
    from palimpsest.study.audit_cell import AuditCell
    from palimpsest.study.audit_inputs import CELL

    repeatable(inputs.request.device)
    with run.cell(CELL).claim("palimpsest audit") as store:
        if store.finished():
            asked = store.summary()["headroom"] is not None
            table = store.table("headroom") if asked else None
            return (None if table is None else read_headroom(table, inputs.plan.rules)), False
        try:

            def tell(label: str, done: int, total: int) -> None:
                run.note("begun", cell=CELL, step=label, done=done, total=total)
                (progress or _silent)(label, done, total)

            headroom = AuditCell(inputs, store, tell).run()
        except Exception as error:
            store.fail(f"{type(error).__name__}: {error}")
            raise
        if headroom is not None and headroom.regime == "inferable":
            store.fail(f"stopped before any candidate: not_identifiable, {headroom.reason}")
            return headroom, True
        return headroom, False


def _judged(run: Run, inputs: Any, headroom: Headroom | None) -> AuditResult:
    """Give the verdict from the stored cell, and write what other programs read."""
    from palimpsest.study.audit_cell import headroom_values
    from palimpsest.study.audit_inputs import CELL
    from palimpsest.study.audit_summary import scores, summary
    from palimpsest.study.results import read_run

    results = read_run(run.path)
    cell = results.cell(CELL)
    if cell.verdict is None:
        raise StoreError(f"{run.path}: the audit has no candidate to judge; run it again")
    paragraph = cell.verdict.paragraph()
    document = summary(
        inputs,
        cell.verdict,
        paragraph,
        rules_hash=run.rules_hash,
        digests=run.cell(CELL).summary()["digests"],
        headroom=None if headroom is None else headroom_values(headroom),
        cell=cell,
    )
    _write(run, inputs, document, table_bytes(scores(inputs, cell, results.rules)))
    return AuditResult(cell.verdict, paragraph, run.path, document)


def _underpowered(inputs: Any) -> AuditResult:
    """Give the verdict that needs no model: nobody could be excluded, so nothing is run."""
    from palimpsest.study.audit_summary import summary

    verdict = Verdict("uncertified", _mode(inputs), None, "underpowered", _numbers(inputs), ())
    bound = inputs.bound
    paragraph = (
        f"Uncertified (underpowered). {bound.forget} forget facts against {bound.probes} probes "
        f"can be arranged in {bound.arrangements:,} ways, fewer than the {bound.required:,} that "
        f"Holm's correction over {bound.candidates} candidates needs at alpha = {bound.alpha:g}: "
        f"the smallest attainable p-value is {bound.min_p:.3g}, so no candidate could be excluded "
        f"at any effect size, and surviving would mean nothing. Use at least {bound.min_probes} "
        "probes. No model was loaded and nothing was written."
    )
    hashed = inputs.plan.rules_hash()
    document = summary(inputs, verdict, paragraph, rules_hash=hashed, digests={})
    return AuditResult(verdict, paragraph, None, document)


def _stopped(run: Run, inputs: Any, headroom: Headroom | None) -> AuditResult:
    """Give the verdict on inferable facts, for which no candidate had to be loaded."""
    from palimpsest.study.audit_cell import headroom_values
    from palimpsest.study.audit_summary import summary

    assert headroom is not None
    numbers = _numbers(inputs) | {
        "because": "headroom",
        "headroom": headroom.estimate.estimate,
        "headroom_low": headroom.estimate.low,
        "headroom_high": headroom.estimate.high,
        "headroom_taught": headroom.taught,
        "regime": headroom.regime,
    }
    verdict = Verdict("uncertified", _mode(inputs), None, "not_identifiable", numbers, ())
    paragraph = (
        f"Uncertified (not_identifiable). The facts are inferable: with evidence in context the "
        f"base model is only {headroom.estimate.estimate:.2f} nats ({headroom.estimate.low:.2f} to "
        f"{headroom.estimate.high:.2f}) short of the injected one, of {headroom.taught:.2f} that "
        "injection taught, so never-learned probes do not show where forgetting should end. No "
        "candidate was loaded."
    )
    document = summary(
        inputs,
        verdict,
        paragraph,
        rules_hash=run.rules_hash,
        digests={},
        headroom=headroom_values(headroom),
    )
    _write(run, inputs, document, None)
    return AuditResult(verdict, paragraph, run.path, document)


def _write(run: Run, inputs: Any, document: Mapping[str, Any], scores: bytes | None) -> None:
    written = {"summary.json": write_json(run.path / "summary.json", document)}
    if scores is not None:
        written["scores.parquet"] = write_bytes(run.path / "scores.parquet", scores)
    if inputs.generated:
        made = as_jsonl(inputs.sets["probe"])
        written["probes.jsonl"] = write_bytes(run.path / "probes.jsonl", made)
    last = run.chain().find("summary")
    if last is None or last.data != written:
        run.record("summary", written)


def _mode(inputs: Any) -> Any:
    draws = len(inputs.request.references)
    return "reference-relative" if draws >= inputs.plan.rules.minimum_draws else "oracle-free"


def _numbers(inputs: Any) -> dict[str, Number]:
    from palimpsest.study.audit_summary import design

    return {
        **{key: value for key, value in design(inputs.bound).items() if key != "certifiable"},
        "pool": inputs.plan.rules.screen_pool,
        "references": len(inputs.request.references),
    }


def _unheard(sentence: str) -> None:
    """Tell nobody."""


def _silent(label: str, done: int, total: int) -> None:
    """Tell nobody."""
