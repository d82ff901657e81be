"""A run's answer for other programs: ``summary.json``, ``scores.parquet``, ``--json``, and pandas
frames from ``palimpsest.load_run(RUN)``.

Everything is computed from results that were read once. Keys and columns are described in
``docs/files.md``; within a format number new ones may be added, none is renamed or removed.
"""

import json
import math
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from palimpsest.errors import InputError
from palimpsest.files import given_path
from palimpsest.report.results import CellResult, RunResults, read_run
from palimpsest.run.files import write_bytes, write_json
from palimpsest.run.tables import table_bytes
from palimpsest.stats.axes import AXES
from palimpsest.stats.comparison import Comparison, Gap
from palimpsest.stats.controls import Control
from palimpsest.stats.models import Model, Role
from palimpsest.stats.screen import screen_alone
from palimpsest.stats.share import Left, Scale
from palimpsest.stats.verdict import Finding, Verdict, label_of
from palimpsest.stats.words import describe, headline
from palimpsest.text import printable

if TYPE_CHECKING:
    from pandas import DataFrame

FORMAT = "palimpsest/4"
DIGITS = 6
"""Decimals of shares: the last bits of a sum differ between machines."""
SCORED = (
    *(Role.BASE, Role.INJECTED, Role.REFERENCE, Role.RETRAINING),
    *(Role.CONTROL, Role.KNOWN_LABEL, Role.CANDIDATE),
)


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values."""
    name = verdict.candidate or verdict.nearest
    finding = next((f for f in verdict.findings if f.name == name), None)
    references, dose = verdict.references, verdict.dose
    return {
        "status": verdict.status,
        "grade": verdict.grade,
        "candidate": verdict.candidate,
        "cost": finding and finding.cost,
        "nearest": verdict.nearest,
        "reason": verdict.reason,
        "because": verdict.because,
        **comparison_document(None if finding is None else finding.comparison),
        "references": verdict.reference_count,
        "reference_names": [] if references is None else list(references.names),
        "custom_rules": {k: list(pair) for k, pair in verdict.rules.differences().items()},
        "unmeasured_axes": list(verdict.rules.unmeasured_axes),
        "excluded_references": [] if references is None else list(references.excluded),
        "conditions": list(verdict.conditions),
        "detection_limit": verdict.detection_limit,
        "power": [_picked(p, "share", "noticed", "tried", "at_least") for p in verdict.powers],
        "sensitivity": dict(verdict.sensitivity),
        "homogeneity": _picked(
            references and references.homogeneity, "p", "reference", "axis", "odd"
        ),
        "copy": _picked(
            references and references.copy, "reference", "other", "distance", "crowded"
        ),
        "recipe": _picked(
            references and references.recipe, "recorded", "compared", "retain_share", "failing"
        ),
        "references_found": [] if references is None else list(references.found),
        "inferable_share": verdict.inferable_share,
        "hinges": list(verdict.hinges),
        "most_left": verdict.rules.most_left,
        **share_document(None if finding is None else finding.left),
        "spread": verdict.ruler and verdict.ruler.spread,
        "dose": dose and {"reached": dose.fraction, "required": dose.required},
        "controls": [
            {"name": control.name, "kind": control.kind, "share": control.share}
            | {"expected": control.kind.expected, "label": label_of(control.comparison)}
            | {"rejected": None if control.missing else control.rejected}
            | {"p": control.comparison and control.comparison.p}
            | scale_document(verdict.scales.get(control.name))
            | {"missing": control.missing or None}
            for control in verdict.controls
        ],
        "candidates": {f.name: finding_document(f) for f in verdict.findings},
        "paragraph": verdict.paragraph(),
    }


def comparison_document(comparison: Comparison | None) -> dict[str, Any]:
    """Return the comparison with the references as plain values, null where there is none."""
    if comparison is None:
        return {"p": None, "test": None, "worst_axis": None}
    worst = comparison.worst
    return {"p": comparison.p, "test": comparison.test, "worst_axis": gap_document(worst)}


def share_document(left: Left | None) -> dict[str, Any]:
    """Return what is left of the injected weights as plain values, null where it was not read."""
    if left is None:
        return {"share": None, "at_most": None, "share_by_axis": {}}
    by_axis = {name: round(share, DIGITS) for name, share in left.by_axis.items()}
    whole = {"share": round(left.share, DIGITS), "at_most": round(left.bound, DIGITS)}
    return whole | {"share_by_axis": by_axis}


def scale_document(scale: Scale | None) -> dict[str, Any]:
    """Return how far from retrainings a model lies; infinity, which JSON lacks, is null in a list
    of three numbers."""
    if scale is None:
        return {"as_far_as_mixture": None}
    numbers = (scale.share, scale.low, scale.high)
    shown = [round(n, DIGITS) if math.isfinite(n) else None for n in numbers]
    return {"as_far_as_mixture": shown}


def gap_document(gap: Gap) -> dict[str, Any]:
    """Return the distance on one axis as plain values."""
    return {
        "name": gap.axis,
        "direction": "high" if gap.offset >= 0 else "low",
        "sd": gap.sd,
        "nats": gap.offset,
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return what was found about a candidate as plain values, null where not measured."""
    gaps = {} if finding.comparison is None else finding.comparison.gaps
    return {
        "label": finding.label,
        "sentence": describe(finding),
        "screen_p": finding.screened.test.p_value,
        "adjusted_p": finding.screened.adjusted_p,
        "excluded": finding.excluded,
        "median_gap": finding.screened.gap,
        "values": dict(finding.values),
        "cost": finding.cost,
        **comparison_document(finding.comparison),
        **share_document(finding.left),
        **scale_document(finding.scale),
        "sd": {name: gap.sd for name, gap in gaps.items()},
        "clears": finding.clears,
        "failing": [gap_document(gap) for gap in finding.failing],
    }


def _picked(thing: object | None, *names: str) -> dict[str, Any] | None:
    """Return some fields of an object by name; None of none."""
    return None if thing is None else {name: getattr(thing, name) for name in names}


def run_document(results: RunResults) -> dict[str, Any]:
    """Return the outcome of a run as one document; an audit's one verdict stands at the top."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "kind": results.kind,
        "name": results.name,
        "rules_hash": results.terms.rules_hash,
        "rosters": len(results.lists),
        "replaced": list(results.replaced),
        "planned": len(results.planned),
        "certified": results.certified,
        "missing": {cell.id: cell.state for cell in results.missing},
        "remarks": results.terms.config.get("remarks", []),
    }
    cells = {cell.id: _cell_document(cell, verdict) for cell, verdict in results.judged}
    if results.kind == "audit" and cells:
        return document | next(iter(cells.values()))
    return document | {"cells": cells}


def _cell_document(cell: CellResult, verdict: Verdict) -> dict[str, Any]:
    headroom = cell.headroom
    return verdict_document(verdict) | {
        "base": cell.base,
        "family": cell.family,
        "seed": cell.seed,
        "models": {
            name: {"role": model.role, "digest": model.digest}
            for name, model in cell.models.items()
        },
        "facts": {name: len(facts) for name, facts in cell.summary["facts"].items()},
        "failed": dict(cell.failed),
        "learning_rate": (cell.summary.get("dose") or {}).get("learning_rate"),
        "work": cell.work and {"trained": cell.work[0], "other": round(cell.work[1], DIGITS)},
        "headroom": headroom
        and {
            **(_picked(headroom, "facts", "taught", "regime", "reason") or {}),
            **(_picked(headroom.estimate, "estimate", "low", "high") or {}),
            "true": headroom.true and headroom.true.estimate,
        },
    }


def score_rows(results: RunResults) -> list[dict[str, Any]]:
    """Return one row per cell and model: its measures, its distances, what became of it."""
    rows = []
    for cell in results.cells:
        models = [model for model in cell.models.values() if model.role in SCORED]
        verdict = cell.verdict
        findings = {finding.name: finding for finding in verdict.findings} if verdict else {}
        controls = {control.name: control for control in verdict.controls} if verdict else {}
        for model in sorted(models, key=lambda model: SCORED.index(model.role)):
            judged = findings.get(model.name), controls.get(model.name)
            rows.append(_score_row(model, cell, *judged, verdict, results))
    return rows


def _score_row(
    model: Model,
    cell: CellResult,
    finding: Finding | None,
    control: Control | None,
    verdict: Verdict | None,
    results: RunResults,
) -> dict[str, Any]:
    compared = finding or control
    comparison = None if compared is None else compared.comparison
    measured = cell.evaluation.models.get(model.name)
    screened = finding.screened if finding is not None else None
    if screened is None and measured is not None:
        screened = screen_alone(measured, results.rules)
    far = None if comparison is None else _distance(comparison.worst.sd)
    scale, left = (finding.scale, finding.left) if finding else (None, None)
    if control is not None and verdict is not None:
        scale = verdict.scales.get(control.name)
    placed = (scale.share, scale.low, scale.high) if scale else (None, None, None)
    remains = (left.share, left.bound) if left else (None, None)
    row: dict[str, Any] = {"cell": cell.id, "base": cell.base, "family": cell.family}
    row |= {"seed": cell.seed, "model": model.name, "role": str(model.role), "method": model.method}
    row |= {"aim": model.aim, "knobs": json.dumps(dict(model.knobs)) if model.method else ""}
    row |= {
        "truth": model.truth,
        "label": finding.label if finding else label_of(comparison) if control else "",
        "p": _number(None if comparison is None else comparison.p),
        "rejected": comparison is not None and not comparison.accepted,
        "worst_axis": "" if comparison is None else comparison.worst.axis,
        "worst_sd": _number(far),
        "screen_p": _number(None if screened is None else screened.test.p_value),
        "excluded": screened is not None and screened.excluded,
        "clears": finding is not None and finding.clears,
        "certified": cell.verdict is not None and cell.verdict.candidate == model.name,
        "retrainings": _number(None if model.cost is None else model.cost.retrainings),
        "failed": "" if model.failure is None else model.failure.reason,
    }
    for key, value in zip(("as_far_as_mixture", "as_far_low", "as_far_high"), placed):
        row[key] = _number(value)
    for key, value in zip(("share", "at_most"), remains):
        row[key] = _number(value)
    for key in ("forget_nll", "retain_nll", "general_nll", "oracle_kl", "residual"):
        row[key] = _number(None if measured is None else getattr(measured, key))
    gaps: Mapping[str, Gap] = {} if comparison is None else comparison.gaps
    for axis in AXES:
        row[axis.name] = _number(None if measured is None else axis.read(measured))
        row[f"sd_{axis.name}"] = _number(gaps[axis.name].sd if axis.name in gaps else None)
    return row


def _distance(sd: float | None) -> float | None:
    return None if sd is None else abs(sd)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def write_documents(results: RunResults) -> None:
    """Write ``summary.json`` and ``scores.parquet`` into the run folder."""
    write_json(results.path / "summary.json", run_document(results))
    rows = score_rows(results)
    if rows:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write_bytes(results.path / "scores.parquet", table_bytes(columns))


def as_junit(verdict: Verdict, failed: Mapping[str, str]) -> bytes:
    """Return a verdict as a JUnit report: one test per candidate, which passes if it could be the
    certified one; failed: why others could not be measured."""
    cases = [(f.name, "failure", f.label, describe(f)) for f in verdict.findings]
    cases += [(name, "error", "not measured", why) for name, why in failed.items()]
    if not cases:
        cases = [("audit", "failure", verdict.status, verdict.paragraph())]
    suite = ElementTree.Element("testsuite", name="palimpsest audit", tests=str(len(cases)))
    passing = [finding.name for finding in verdict.passing]
    for name, kind, label, why in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="audit", name=printable(name))
        if name not in passing:
            problem = ElementTree.SubElement(case, kind, message=printable(label))
            problem.text = printable(f"{headline(verdict)} {why}")
    for kind, of in (("failures", "failure"), ("errors", "error")):
        suite.set(kind, str(len(suite.findall(f"*/{of}"))))
    return bytes(ElementTree.tostring(suite, "utf-8", xml_declaration=True))


# -- pandas frames ---------------------------------------------------------------------------------


class LoadedRun:
    """A run; ``scores``, ``verdicts``, ``items``, ``curves`` and ``answers`` are pandas frames."""

    def __init__(self, results: RunResults) -> None:
        self.results = results
        self.path = results.path

    def __repr__(self) -> str:
        frames = "verdicts, scores, items, curves, answers"
        return f"<LoadedRun of {self.results!r}; frames: {frames}>"

    def summary(self) -> dict[str, Any]:
        """Return the outcome as one document: the contents of ``summary.json``."""
        return run_document(self.results)

    @cached_property
    def scores(self) -> "DataFrame":
        """One row per cell and model: its measures, its distances from the references, its fate."""
        frame: DataFrame = import_pandas().DataFrame(score_rows(self.results))
        return frame

    @cached_property
    def verdicts(self) -> "DataFrame":
        """One row per cell: the verdict, its reason, and the axis it rests on."""
        rows = []
        for cell, verdict in self.results.judged:
            document = verdict_document(verdict)
            worst = document.pop("worst_axis") or {}
            named = {"cell": cell.id, "base": cell.base, "family": cell.family, "seed": cell.seed}
            named |= {k: v for k, v in document.items() if not isinstance(v, dict | list)}
            far = _distance(worst.get("sd"))
            rows.append(named | {"worst_axis": worst.get("name"), "worst_sd": far})
        frame: DataFrame = import_pandas().DataFrame(rows)
        return frame

    @property
    def items(self) -> "DataFrame":
        """One row per cell, model, stage, fact, pool and template: ``nll_sum``, ``tokens``, KL."""
        return self._stored("items")

    @property
    def curves(self) -> "DataFrame":
        """One row per cell, model and chunk of re-acquisition."""
        return self._stored("curves")

    @property
    def answers(self) -> "DataFrame":
        """One row per cell, model and question: what it answers, and where the truth ranks."""
        return self._stored("answers")

    def _stored(self, name: str) -> "DataFrame":
        pandas = import_pandas()
        frames = []
        for cell in self.results.cells:
            if name in cell.tables:
                frame = pandas.DataFrame(dict(cell.tables[name]))
                frame.insert(0, "cell", cell.id)
                frames.append(frame)
        if not frames:
            raise InputError(f"{self.path}: no finished cell has a table {name}")
        whole: DataFrame = pandas.concat(frames, ignore_index=True)
        return whole


def load_run(path: Path | str) -> LoadedRun:
    """Return the run at ``path`` as data; its frames need pandas.

    ::

        run = palimpsest.load_run("demo-run")
        run.scores.query("role == 'candidate'")[["model", "label", "p"]]
    """
    results = read_run(given_path("path", path))
    if results.missing:
        states = ", ".join(f"{cell.id} ({cell.state})" for cell in results.missing[:5])
        warnings.warn(
            f"{path}: {len(results.missing)} of {len(results.planned)} cells have no rows, because "
            f"they are not finished: {states}; run the same command again to finish them",
            stacklevel=2,
        )
    return LoadedRun(results)


def import_pandas() -> Any:
    """Return pandas; InputError where it is not installed."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise InputError(
            "frames need pandas, which is not installed; pip install 'palimpsest-audit[pandas]', "
            "or read summary() and scores.parquet"
        ) from error
    return pandas
