"""An audit's answer for other programs: ``summary.json`` and ``scores.parquet``.

Both are computed from the stored cell alone. Their keys and columns are described in
``docs/outputs.md``; within a format number new ones may be added, none is renamed or removed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from palimpsest.analysis.results import CellResult
from palimpsest.criteria.axes import AXES
from palimpsest.criteria.bars import damage_bar
from palimpsest.criteria.multiplicity import Certifiability
from palimpsest.criteria.retraining import Comparison
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.verdict import Finding, Verdict

# A certificate's verdict is compared with a summary where there is no torch.
if TYPE_CHECKING:
    from palimpsest.audit.inputs import Inputs

FORMAT = "palimpsest-audit/2"


def summary(
    inputs: "Inputs",
    verdict: Verdict,
    paragraph: str,
    *,
    rules_hash: str,
    stored: Mapping[str, Any] | None = None,
    cell: CellResult | None = None,
) -> dict[str, Any]:
    """Return the document of ``summary.json``; ``cell`` is None when the audit stopped early."""
    stored = stored or {}
    roles: Mapping[str, Any] = stored.get("models", {})
    models = {
        model.name: {"role": model.role, "source": model.place}
        | {"digest": roles.get(model.name, {}).get("digest")}
        for model in inputs.models
    }
    return verdict_values(verdict) | {
        "format": FORMAT,
        "exit_code": 0 if verdict.certified else 3,
        "paragraph": paragraph,
        "stopped_early": cell is None,
        "design": design(inputs.bound),
        "headroom": stored.get("headroom"),
        "dose": dose_values(inputs, verdict, stored.get("dose")),
        "rules_hash": rules_hash,
        "round_trip": inputs.request.round_trip,
        "facts": {name: len(facts) for name, facts in inputs.sets.items()},
        "generated_probes": inputs.generated,
        "models": models,
        "failed": {
            name: role["failure"]["reason"]
            for name, role in roles.items()
            if role["role"] == "candidate" and "failure" in role
        },
        "notes": {name: json.loads(text) for name, text in inputs.request.notes},
        "remarks": [*inputs.remarks, *verdict.remarks],
    }


def verdict_values(verdict: Verdict) -> dict[str, Any]:
    """Return the keys of a verdict: of an audit, or of one cell of a study."""
    name = verdict.candidate or verdict.nearest
    comparison = next((f.comparison for f in verdict.findings if f.name == name), None)
    references = verdict.numbers.get("references", 0)
    return {
        "status": verdict.status,
        "grade": verdict.grade,
        "candidate": verdict.candidate,
        "nearest": verdict.nearest,
        "reason": verdict.reason,
        "because": verdict.because,
        **comparison_values(comparison),
        "references": references,
        "detection_limit": verdict.detection_limit,
        "controls": [
            {key: getattr(control, key) for key in ("name", "kind", "share", "expected")}
            | {"rejected": None if control.missing else control.rejected}
            | {"p": None if control.comparison is None else control.comparison.p}
            | {"missing": control.missing or None}
            for control in verdict.controls
        ],
        "recipe": None if verdict.recipe is None else dict(verdict.recipe.z),
        "numbers": dict(verdict.numbers),
        "candidates": {finding.name: finding_values(finding) for finding in verdict.findings},
    }


def dose_values(
    inputs: "Inputs", verdict: Verdict, chosen: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the dose of re-acquisition: what it was, who chose it, how far it came."""
    request = inputs.request
    rate = chosen["learning_rate"] if chosen is not None else inputs.plan.round_trip.learning_rate
    return {
        "steps": request.steps,
        "items": request.items,
        "learning_rate": rate,
        "chosen": chosen is not None,
        "tried": [] if chosen is None else chosen["tried"],
        "reached": None if verdict.dose is None else verdict.dose.fraction,
        "required": inputs.plan.rules.dose_fraction,
    }


def design(bound: Certifiability) -> dict[str, Any]:
    """Return the certifiability bound as plain values."""
    keys = ("forget", "probes", "candidates", "alpha", "arrangements", "min_p", "required")
    return {key: getattr(bound, key) for key in (*keys, "certifiable", "min_probes")}


def comparison_values(comparison: Comparison | None) -> dict[str, Any]:
    """Return the comparison with the references as plain values, null where there is none."""
    if comparison is None:
        return dict.fromkeys(("p", "test", "worst_axis", "restored"))
    worst = comparison.worst
    return {
        "p": comparison.p,
        "test": comparison.test,
        "worst_axis": {"name": worst.axis, "direction": worst.direction, "sd": worst.sd},
        "restored": comparison.restored,
    }


def finding_values(finding: Finding) -> dict[str, Any]:
    """Return what was found about a candidate as plain values, null where not measured."""
    comparison = finding.comparison
    gaps = {} if comparison is None else comparison.gaps
    return {
        "p_value": finding.p_value,
        "adjusted_p": finding.adjusted_p,
        "excluded": finding.excluded,
        "median_gap": finding.median_gap,
        "values": dict(finding.values),
        **comparison_values(comparison),
        "z": {} if comparison is None else dict(comparison.z),
        "gaps": {name: None if gap is None else asdict(gap) for name, gap in gaps.items()},
        "clears": finding.clears,
        "failures": list(finding.failures),
    }


def score_rows(cell: CellResult, rules: Rules) -> list[dict[str, Any]]:
    """Return one row per model of a cell: base, injected, references, controls, candidates."""
    order = ("base", "injected", "reference", "retraining", "control", "candidate")
    names = [name for name, role in cell.roles.items() if role["role"] in order]
    names.sort(key=lambda name: order.index(cell.roles[name]["role"]))
    return [_score_row(name, cell, rules) for name in names]


def _score_row(name: str, cell: CellResult, rules: Rules) -> dict[str, Any]:
    role = cell.roles[name]
    verdict = cell.verdict
    finding = next((f for f in verdict.findings if f.name == name), None) if verdict else None
    control = next((c for c in verdict.controls if c.name == name), None) if verdict else None
    compared = finding or control
    comparison = None if compared is None else compared.comparison
    measured = cell.evaluation.models.get(name)
    alone = screen_alone(measured, rules) if measured is not None and finding is None else None
    excluded = alone.excluded if alone is not None else finding is not None and finding.excluded

    def number(value: float | None) -> float:
        return math.nan if value is None else float(value)

    def of(source: Any, key: str) -> float:
        return math.nan if source is None else number(getattr(source, key))

    bar = None
    if measured is not None and cell.tolerances is not None and finding is not None:
        bar = damage_bar(cell.evaluation, name, not excluded, cell.tolerances, rules)
    row: dict[str, Any] = {
        "model": name,
        "role": role["role"],
        "forget_nll": of(measured, "forget_nll"),
        "forget_delta_median": of(measured, "median_forget_delta"),
        "probe_delta_median": of(measured, "median_probe_delta"),
        "median_gap": of(measured, "median_gap"),
        "p_value": of(None if alone is None else alone.test, "p_value")
        if alone is not None
        else of(finding, "p_value"),
        "adjusted_p": of(alone if alone is not None else finding, "adjusted_p"),
        "excluded": excluded,
        "retain_nll": of(measured, "retain_nll"),
        "general_nll": of(measured, "general_nll"),
        "oracle_kl": of(measured, "oracle_kl"),
        "residual": of(measured, "residual"),
        "residual_retain": of(measured, "residual_retain"),
        "residual_general": of(measured, "residual_general"),
        "first_fall": of(None if measured is None else measured.curve, "first_fall"),
        "forget_distance": of(bar, "forget_distance"),
        "retain_damage": of(bar, "retain_damage"),
        "residual_damage": of(bar, "residual_damage"),
        "p": of(comparison, "p"),
        "worst_axis": "" if comparison is None else comparison.worst.axis,
        "worst_sd": math.nan if comparison is None else number(comparison.worst.sd),
        "restored": of(comparison, "restored"),
        "clears": finding is not None and finding.clears,
        "certified": verdict is not None and verdict.candidate == name,
        "failures": "" if finding is None else "; ".join(finding.failures),
        "failed": role["failure"]["reason"] if "failure" in role else "",
    }
    for axis in AXES:
        row[axis.name] = math.nan if measured is None else number(axis.read(measured))
    for axis in AXES:
        z = {} if comparison is None else comparison.z
        row[f"z_{axis.name}"] = number(z.get(axis.name))
    return row
