"""The TOFU study: is the never-learned level within a retrained model's reach at all?

Base, full and retain models (given, or made here from the base), the candidates of the methods,
the oracle-KL diagnostic, the screen against never-learned questions in TOFU's form, the headroom,
and a verdict for each seed. TOFU is the paper's boundary case: its answers can be inferred from the
style of the authors that stay, so that no forgetting may reach the never-learned level, and then
the verdict is *uncertified: not_identifiable*.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.analysis.results import CellResult, RunResults, read_run
from palimpsest.audit.run import Answer, begun, is_new, write_answer
from palimpsest.audit.summary import design, score_rows, verdict_values
from palimpsest.cost import workers_for
from palimpsest.criteria.measures import ModelMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.errors import InputError, StoreError, StudyFailed
from palimpsest.models.device import check_device, check_room
from palimpsest.preview import preview
from palimpsest.run.executor import carry_out
from palimpsest.run.store import Run
from palimpsest.tofu.request import Prepared, TofuRequest, prepare
from palimpsest.verdict import Verdict

FORMAT = "palimpsest-tofu/2"


class TofuResult(Answer):
    """What a study came to."""


def run_tofu(
    request: TofuRequest,
    *,
    workers: int | None = 1,
    dry_run: bool = False,
    fork: bool = False,
    **options: Any,
) -> TofuResult:
    """Return the verdicts of a study; running it again with the same request resumes it.

    workers: None takes as many as there are cores and memory for. options: of ``carry_out``.
    """
    from palimpsest.tofu.job import TofuJob

    if options.get("executor") != "ray":  # its nodes have other devices
        check_device(request.device)
    out = Path(request.out)
    command, new = "palimpsest tofu", is_new(out)
    prepared = prepare(request)
    costs = preview(prepared.plan)
    workers = workers or workers_for(costs.memory, request.device)
    if dry_run:
        lines = (*preview_lines(prepared), *costs.lines(workers))
        return TofuResult("\n".join(lines), None, {})
    check_room(costs.memory, request.device, "a cell of this study")
    run = prepared.run(out, fork=fork)
    with begun(run, command, new):
        outcome = carry_out(TofuJob(prepared), run, command, workers=workers, **options)
        for cell, failure in outcome.failed.items():
            kind = InputError if failure.kind == "model_error" else StudyFailed
            raise kind(f"{cell}, {failure.step}: {failure.reason}")
        return _answer(run, prepared)


def _answer(run: Run, prepared: Prepared) -> TofuResult:
    """Return the verdicts from the stored cells, and write what other programs read."""
    results = read_run(run.path)
    if results.missing or any(cell.verdict is None for cell in results.cells):
        raise StoreError(f"{run.path}: not every seed has candidates to judge; run it again")
    document = summary(run, prepared, results)
    rows = [
        {"cell": cell.id} | row for cell in results.cells for row in score_rows(cell, results.rules)
    ]
    probes = {
        f"probes-seed{cell.setting.cell.seed}.jsonl": cell.sets["probe"] for cell in prepared.cells
    }
    write_answer(run, document, rows, probes)
    return TofuResult(str(document["paragraph"]), run.path, document)


def summary(run: Run, prepared: Prepared, results: RunResults) -> dict[str, Any]:
    """Return the document of ``summary.json``: the keys of an audit's, and the cells."""
    verdicts = [verdict for _, verdict in results.judged]
    certified = all(verdict.certified for verdict in verdicts)
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason is not None)
    reason = None if certified else reasons.most_common(1)[0][0]
    chosen = {verdict.candidate for verdict in verdicts}
    given = prepared.request.given()
    paragraph = _paragraph(results, certified, reasons)
    return {
        "format": FORMAT,
        "status": "certified" if certified else "uncertified",
        "candidate": verdicts[0].candidate if certified and len(chosen) == 1 else None,
        "reason": reason,
        "exit_code": 0 if certified else 3,
        "paragraph": paragraph,
        "design": design(prepared.bound),
        "rules_hash": results.rules_hash,
        "round_trip": prepared.request.round_trip,
        "facts": {
            "forget": prepared.request.forget_items,
            "retain": prepared.request.retain_items,
            "probe": prepared.request.probes,
        },
        "generated_probes": True,
        "models": {
            "base": {"role": "base", "source": prepared.request.name},
            "injected": {"role": "injected", "source": given.get("injected", "trained here")},
            "reference": {"role": "reference", "source": given.get("reference", "trained here")},
        },
        "cells": {
            cell.id: _cell(cell, verdict, results.rules, run.cell(cell.id).summary()["headroom"])
            for cell, verdict in results.judged
        },
    }


def _cell(
    cell: CellResult, verdict: Verdict, rules: Rules, headroom: Mapping[str, Any] | None
) -> dict[str, Any]:
    shown = ("base", "injected", *cell.evaluation.references)
    return verdict_values(verdict) | {
        "paragraph": verdict.paragraph(),
        "headroom": headroom,
        "levels": {name: _level(cell.evaluation[name], rules) for name in shown},
        "oracle_kl": {
            name: cell.evaluation[name].oracle_kl for name in ("injected", *cell.candidates)
        },
        "failed": dict(cell.failed),
    }


def _level(model: ModelMeasures, rules: Rules) -> dict[str, Any]:
    """Return a model's levels on forget items and on never-learned ones, in nats per token."""
    alone = screen_alone(model, rules)
    return {
        "forget_nll": model.forget_nll,
        "probe_nll": float(model.probe_nlls.mean()),
        "retain_nll": model.retain_nll,
        "median_gap": model.median_gap,
        "p_value": alone.test.p_value,
        "method": alone.test.method,
        "excluded": alone.excluded,
    }


def _paragraph(results: RunResults, certified: bool, reasons: Counter[Any]) -> str:
    words = {cell.id: verdict.paragraph() for cell, verdict in results.judged}
    if len(words) == 1:
        return next(iter(words.values()))
    head = "Certified in every seed." if certified else "Uncertified."
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    lines = [f"{head} {len(words)} seeds" + (f": {counts}." if counts else ".")]
    return "\n".join([*lines, *(f"{cell}: {text}" for cell, text in words.items())])


def preview_lines(prepared: Prepared) -> tuple[str, ...]:
    """Return what would be done, as lines; loads no weights."""
    request = prepared.request
    first = prepared.cells[0]
    made = "trained here" if request.train else "given"
    names = list(first.setting.sheet.questions)
    return (
        f"run folder: {request.out}",
        f"rules: {prepared.plan.rules_hash()}",
        f"base: {request.name}, {prepared.outline.parameters:,} parameters; full and retain models "
        f"{made}",
        f"seeds: {len(prepared.cells)}, each with {request.forget_items} forget and "
        f"{request.retain_items} retain items of {request.split} and {request.probes} probes; "
        f"{len(names)} questions and {request.scored_pieces} pieces of general text per model",
        f"candidates: {prepared.bound.candidates} per seed, {request.unlearning_steps} steps of "
        f"{2 * request.unlearning_items} items for those that train",
        f"fine-tuning: {request.steps} steps of {request.items} items at "
        f"{request.learning_rate:g}; {request.references} references per seed",
        f"round trip: {request.return_steps} steps, {request.round_trip}",
        "headroom: "
        + (
            "no evidence fits the model's context, so it is not measured"
            if first.with_evidence is None
            else f"{len(first.with_evidence.questions)} questions after retained ones"
        ),
    )
