"""The TOFU study: is the never-learned level within a retrained model's reach at all?

Base, full and retain models (given, or made here from the base), the candidates of the methods,
the oracle-KL diagnostic, the screen against never-learned questions in TOFU's form, the headroom,
and a verdict for each seed. TOFU is the paper's boundary case: its answers can be inferred from the
style of the authors that stay, so that no forgetting may reach the never-learned level, and then
the verdict is *uncertified: not_identifiable*.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.criteria.measures import ModelMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.errors import InputError, StoreError
from palimpsest.facts.files import as_jsonl
from palimpsest.run import disk
from palimpsest.run.store import Run, environment, table_bytes, write_bytes, write_json
from palimpsest.study.audit import check_out
from palimpsest.study.audit_summary import design, finding_values, score_row
from palimpsest.study.results import CellResult, RunResults, read_run
from palimpsest.study.tofu_request import Prepared, TofuRequest, prepare

__all__ = ["TofuRequest", "TofuResult", "run_tofu"]

FORMAT = "palimpsest-tofu/1"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TofuResult:
    """What a study came to."""

    run: Path | None
    """None after a dry run."""
    paragraph: str
    summary: Mapping[str, Any]
    """The document of ``summary.json``."""

    @property
    def exit_code(self) -> int:
        return int(self.summary.get("exit_code", 0))


def run_tofu(
    request: TofuRequest,
    *,
    dry_run: bool = False,
    fork: bool = False,
    progress: Progress = lambda label, done, total: None,
) -> TofuResult:
    """Give the verdicts of a study; running it again with the same request resumes it."""
    out = Path(request.out)
    check_out(out)
    prepared = prepare(request)
    if dry_run:
        return TofuResult(None, "\n".join(preview_lines(prepared)), {})
    new = not out.exists() or not any(out.iterdir())
    run = Run.create_or_resume(
        out,
        prepared.terms(),
        prepared.plan.as_dict()["rules"],
        environment(prepared.digests()),
        {"commitment": prepared.commitment(), "pool": "held-out questions"},
        cells=[cell.cell.id for cell in prepared.cells],
        fork=fork,
    )
    try:
        with run.lease("palimpsest tofu"):
            _work(run, prepared, progress)
            return _answer(run, prepared)
    except InputError:
        # Nothing was measured, so nothing is kept: the corrected command finds an empty place.
        if new and not any(run.cell(cell_id).steps() for cell_id in run.cells):
            disk.remove(run.path)
        raise


def _work(run: Run, prepared: Prepared, progress: Progress) -> None:
    """Run what is left of every cell."""
    from palimpsest.models.train import repeatable
    from palimpsest.study.tofu_cell import TofuCell

    repeatable(prepared.request.device)
    for inputs in prepared.cells:
        cell_id = inputs.cell.id

        def told(label: str, done: int, total: int, cell_id: str = cell_id) -> None:
            progress(f"{cell_id}: {label}", done, total)

        with run.cell(cell_id).claim("palimpsest tofu") as store:
            if store.finished():
                continue
            try:
                TofuCell(prepared, inputs, store, told).run()
            except Exception as error:
                store.fail(f"{type(error).__name__}: {error}")
                raise


def _answer(run: Run, prepared: Prepared) -> TofuResult:
    """Give the verdicts from the stored cells, and write what other programs read."""
    results = read_run(run.path)
    if results.missing or any(cell.verdict is None for cell in results.cells):
        raise StoreError(f"{run.path}: not every seed has candidates to judge; run it again")
    document = summary(prepared, results)
    rows = [row for cell in results.cells for row in _score_rows(cell, results.rules)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    written = {
        "summary.json": write_json(run.path / "summary.json", document),
        "scores.parquet": write_bytes(run.path / "scores.parquet", table_bytes(columns)),
    }
    for inputs in prepared.cells:
        name = f"probes-seed{inputs.cell.seed}.jsonl"
        written[name] = write_bytes(run.path / name, as_jsonl(inputs.probes))
    last = run.chain().find("summary")
    if last is None or last.data != written:
        run.record("summary", written)
    return TofuResult(run.path, str(document["paragraph"]), document)


def summary(prepared: Prepared, results: RunResults) -> dict[str, Any]:
    """Give the document of ``summary.json``: the keys of an audit's, and the cells."""
    verdicts = [cell.verdict for cell in results.cells if cell.verdict is not None]
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
        "mode": verdicts[0].mode,
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
        "cells": {cell.id: _cell(cell, results.rules) for cell in results.cells},
    }


def _cell(cell: CellResult, rules: Rules) -> dict[str, Any]:
    verdict, room = cell.verdict, cell.headroom
    assert verdict is not None
    shown = ("base", "injected", *cell.evaluation.references)
    return {
        "status": verdict.status,
        "candidate": verdict.candidate,
        "reason": verdict.reason,
        "mode": verdict.mode,
        "paragraph": verdict.paragraph(),
        "numbers": dict(verdict.numbers),
        "headroom": None
        if room is None
        else {
            "facts": room.facts,
            "estimate": room.estimate.estimate,
            "low": room.estimate.low,
            "high": room.estimate.high,
            "true": None if room.true is None else room.true.estimate,
            "taught": room.taught,
            "regime": room.regime,
            "reason": room.reason,
        },
        "levels": {name: _level(cell.evaluation[name], rules) for name in shown},
        "oracle_kl": {
            name: cell.evaluation[name].oracle_kl for name in ("injected", *cell.candidates)
        },
        "candidates": {one.name: finding_values(one) for one in verdict.findings},
        "failed": dict(cell.failed),
    }


def _level(model: ModelMeasures, rules: Rules) -> dict[str, Any]:
    """Where a model stands on forget items and on never-learned ones, in nats per token."""
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
    cells = results.cells
    if len(cells) == 1:
        assert cells[0].verdict is not None
        return cells[0].verdict.paragraph()
    head = "Certified in every seed." if certified else "Uncertified."
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    lines = [f"{head} {len(cells)} seeds" + (f": {counts}." if counts else ".")]
    for cell in cells:
        assert cell.verdict is not None
        lines.append(f"{cell.id}: {cell.verdict.paragraph()}")
    return "\n".join(lines)


def _score_rows(cell: CellResult, rules: Rules) -> list[dict[str, Any]]:
    assert cell.verdict is not None
    findings = {one.name: one for one in cell.verdict.findings}
    roles = {"base": "base", "injected": "injected"}
    roles |= dict.fromkeys(cell.evaluation.references, "reference")
    roles |= dict.fromkeys(cell.candidates, "candidate")
    return [
        {"cell": cell.id} | score_row(name, role, cell, rules, findings.get(name))
        for name, role in roles.items()
    ]


def preview_lines(prepared: Prepared) -> tuple[str, ...]:
    """Give what would be done, as lines; loads no weights."""
    request, plan = prepared.request, prepared.plan
    first = prepared.cells[0]
    made = "trained here" if request.train else "given"
    names = list(first.setting.sheet.questions)
    return (
        f"run folder: {request.out}",
        f"rules: {plan.rules_hash()}",
        f"base: {request.name}, {prepared.outline.parameters:,} parameters; full and retain models "
        f"{made}",
        f"seeds: {len(prepared.cells)}, each with {request.forget_items} forget and "
        f"{request.retain_items} retain items of {request.split} and {request.probes} probes; "
        f"{len(names)} questions and {request.scored_pieces} pieces of general text a model",
        f"candidates: {prepared.bound.candidates} a seed, {request.unlearning_steps} steps of "
        f"{2 * request.unlearning_items} items for those that train",
        f"fine-tuning: {request.steps} steps of {request.items} items at "
        f"{request.learning_rate:g}, {request.draws if request.train else 0} references",
        f"round trip: {request.return_steps} steps, {request.round_trip}",
        "headroom: "
        + (
            "no evidence fits the model's context, so it is not measured"
            if first.told is None
            else f"{len(first.told.questions)} questions after retained ones"
        ),
    )
