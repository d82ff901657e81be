"""An audit's answer for other programs: ``summary.json`` and ``scores.parquet``.

Both are computed from the stored cell alone. Their keys and columns are stable and described in
``docs/outputs.md``; new ones may be added, none is renamed or removed within a format number.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from palimpsest.criteria.multiplicity import Certifiability
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.study.audit_inputs import Inputs
from palimpsest.study.results import CellResult
from palimpsest.verdict import Finding, Verdict

FORMAT = "palimpsest-audit/1"
NOT_MEASURED = float("nan")


def summary(
    inputs: Inputs,
    verdict: Verdict,
    paragraph: str,
    *,
    rules_hash: str,
    digests: Mapping[str, str],
    headroom: Mapping[str, Any] | None = None,
    cell: CellResult | None = None,
) -> dict[str, Any]:
    """Give the document of ``summary.json``; ``cell`` is None when the audit stopped early."""
    failed = {} if cell is None else dict(cell.failed)
    return {
        "format": FORMAT,
        "status": verdict.status,
        "candidate": verdict.candidate,
        "reason": verdict.reason,
        "mode": verdict.mode,
        "exit_code": 0 if verdict.certified else 3,
        "paragraph": paragraph,
        "stopped_early": cell is None,
        "numbers": dict(verdict.numbers),
        "design": design(inputs.bound),
        "headroom": None if headroom is None else dict(headroom),
        "rules_hash": rules_hash,
        "round_trip": inputs.request.round_trip,
        "facts": {name: len(facts) for name, facts in inputs.sets.items()},
        "generated_probes": inputs.generated,
        "models": {
            model.name: {
                "role": model.role,
                "source": model.place,
                "digest": digests.get(model.name),
            }
            for model in inputs.models
        },
        "candidates": {one.name: finding_values(one) for one in verdict.findings},
        "failed": failed,
        "notes": {name: json.loads(text) for name, text in inputs.request.notes},
        "remarks": list(inputs.remarks),
    }


def design(bound: Certifiability) -> dict[str, Any]:
    """Give the certifiability bound as plain values."""
    keys = ("forget", "probes", "candidates", "alpha", "arrangements", "min_p", "required")
    return {key: getattr(bound, key) for key in (*keys, "certifiable", "min_probes")}


def scores(inputs: Inputs, cell: CellResult, rules: Rules) -> dict[str, Any]:
    """Give the columns of ``scores.parquet``: one row a model, NaN where nothing was measured."""
    findings = {} if cell.verdict is None else {one.name: one for one in cell.verdict.findings}
    rows = [
        score_row(model.name, model.role, cell, rules, findings.get(model.name))
        for model in inputs.models
    ]
    columns: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        columns[name] = values if isinstance(first, str) else np.array(values)
    return columns


def score_row(
    name: str, role: str, cell: CellResult, rules: Rules, finding: Finding | None
) -> dict[str, Any]:
    """Give one model's row of ``scores.parquet``."""
    measured = cell.evaluation.models.get(name)
    alone = screen_alone(measured, rules) if measured is not None and finding is None else None

    def taken(value: float | None) -> float:
        return NOT_MEASURED if value is None else float(value)

    def of(measure: str) -> float:
        return NOT_MEASURED if measured is None else taken(getattr(measured, measure))

    def found(measure: str) -> float:
        return NOT_MEASURED if finding is None else taken(getattr(finding, measure))

    curve = None if measured is None else measured.curve
    return {
        "model": name,
        "role": role,
        "forget_nll": of("forget_nll"),
        "forget_delta_median": of("median_forget_delta"),
        "probe_delta_median": (
            NOT_MEASURED if measured is None else float(np.median(measured.probe_deltas))
        ),
        "median_gap": of("median_gap"),
        "p_value": taken(alone.test.p_value) if alone is not None else found("p_value"),
        "adjusted_p": taken(alone.adjusted_p) if alone is not None else found("adjusted_p"),
        "excluded": (
            alone.excluded if alone is not None else finding is not None and finding.excluded
        ),
        "retain_nll": of("retain_nll"),
        "general_nll": of("general_nll"),
        "oracle_kl": of("oracle_kl"),
        "residual": of("residual"),
        "residual_retain": of("residual_retain"),
        "residual_general": of("residual_general"),
        "first_fall": NOT_MEASURED if curve is None else curve.first_fall,
        "forget_distance": found("forget_distance"),
        "retain_damage": found("retain_damage"),
        "residual_damage": found("residual_damage"),
        "worst_axis": found("worst_axis"),
        "clears": finding is not None and finding.clears,
        "certified": cell.verdict is not None and cell.verdict.candidate == name,
        "failures": "" if finding is None else "; ".join(finding.failures),
        "failed": cell.failed.get(name, ""),
    }


def finding_values(finding: Finding) -> dict[str, Any]:
    """Give what was found about a candidate as plain values, null where not measured."""
    keys = ("p_value", "adjusted_p", "excluded", "median_gap", "retain_nll", "residual")
    more = ("forget_distance", "retain_damage", "residual_damage", "worst_axis", "fall", "clears")
    values = {key: getattr(finding, key) for key in (*keys, *more)}
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            values[key] = None
    return values | {"failures": list(finding.failures)}
