"""From a cell's numbers and the frozen rules to one verdict: certified, or why not.

Order of questions, each of which may end it:

1. can the screen exclude a candidate at all?                 else ``underpowered``
2. is the forget threshold identifiable: facts that cannot be
   inferred, an injected model in which the screen finds
   them, references in which it does not?                     else ``not_identifiable``
3. does any candidate survive the screen?                     else ``all_excluded``
4. are there references enough to compare with?               else ``no_reference``
5. would the comparison have noticed: axes measured and
   varying, re-acquisition strong enough, detection limit
   low enough?                                                else ``underpowered``
6. is any survivor indistinguishable from the retrainings,
   or equivalent to them within the margin?                   else ``distinguishable``

A verdict depends on the cell and its references alone: not on the order of the references, and not
on other cells. Without references nothing is certified; the survivor with the smallest residual is
named as nearest. The bars of the paper's edition never enter.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, get_args

from palimpsest.criteria.axes import axis, chosen
from palimpsest.criteria.controls import (
    Bag,
    Control,
    Dose,
    Recipe,
    check_recipe,
    detection_limit,
    measure_dose,
    reference_bag,
    run_controls,
)
from palimpsest.criteria.headroom import Headroom
from palimpsest.criteria.measures import CellMeasures, Roles
from palimpsest.criteria.multiplicity import holm
from palimpsest.criteria.retraining import Comparison, required_references, which_test
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import Screen, screen_alone, screen_candidates
from palimpsest.errors import ScoreError

Status = Literal["certified", "uncertified"]
Grade = Literal["indistinguishable", "equivalent"]
Reason = Literal[
    "underpowered", "not_identifiable", "all_excluded", "no_reference", "distinguishable"
]
Because = Literal[
    "screen", "headroom", "injected", "reference", "axes", "constant", "dose", "detection_limit"
]
Number = float | int | str | bool | None

REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one candidate."""

    name: str
    p_value: float
    """Of the screen."""
    adjusted_p: float
    """The same, Holm-adjusted over the candidates."""
    method: str
    """How the screen's p-value was computed."""
    excluded: bool
    """By the screen: forget facts are still known beyond chance."""
    median_gap: float
    """Median forget delta minus median probe delta."""
    values: Mapping[str, float | None]
    """By axis; None where it was not measured."""
    comparison: Comparison | None
    """With the references; None where there are too few, or nothing to compare."""
    failure: str | None
    """The axes on which it could not be compared, as a sentence; None when it could on all."""

    @property
    def clears(self) -> bool:
        """It survives the screen and the comparison accepts it."""
        return not self.excluded and self.comparison is not None and self.comparison.accepted

    @property
    def failures(self) -> tuple[str, ...]:
        """What keeps it from a certificate, in order: ``screen``, then an axis by name, or
        ``references`` where there was no comparison; empty when it clears."""
        failed = ("screen",) if self.excluded else ()
        if self.comparison is None:
            return (*failed, "references")
        if self.comparison.missing:
            return (*failed, *self.comparison.missing)
        return failed if self.comparison.accepted else (*failed, self.comparison.worst.axis)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Certified: which candidate. Uncertified: why. With the numbers behind it."""

    status: Status
    grade: Grade | None
    """How far a certificate goes; None when uncertified."""
    candidate: str | None
    reason: Reason | None
    because: Because | None = None
    """Which of several causes of a reason it was."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    controls: tuple[Control, ...] = ()
    detection_limit: float | None = None
    """Smallest share of injected weights that this audit notices; None if not even all of them."""
    dose: Dose | None = None
    recipe: Recipe | None = None
    remarks: tuple[str, ...] = ()
    """Sentences that a reader of any verdict should see."""

    def __post_init__(self) -> None:
        certified = self.status == "certified"
        if {certified} != {self.candidate is not None, self.grade is not None, self.reason is None}:
            raise ScoreError(
                f"a verdict {self.status} with candidate {self.candidate}, grade {self.grade} and "
                f"reason {self.reason} contradicts itself"
            )

    @property
    def certified(self) -> bool:
        return self.status == "certified"

    @property
    def nearest(self) -> str | None:
        """The candidate named as nearest where none is certified."""
        name = self.numbers.get("nearest")
        return None if name is None else str(name)

    def finding(self, name: str) -> Finding:
        """Return what was found about one candidate."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise ScoreError(f"the verdict has no candidate {name}")

    def paragraph(self) -> str:
        """Return the verdict as one paragraph for a person."""
        from palimpsest.verdict_words import sentences

        return " ".join(sentences(self))

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces, no NaN."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)


def decide(
    measures: CellMeasures,
    roles: Roles | None,
    rules: Rules,
    headroom: Headroom | None = None,
    *,
    candidates: Sequence[str] | None = None,
) -> Verdict:
    """Return the verdict on a cell's candidates.

    ``roles`` says what each model is (by default what ``measures`` carries); ``candidates`` are by
    default the models of that role that were measured.
    """
    if roles is not None:
        measures = replace(measures, roles=roles)
    if candidates is None:
        candidates = measures.of_role("candidate")
    screened = screen_candidates(measures, candidates, rules)
    bag = reference_bag(measures, measures.roles, rules)
    compared = len(bag.names) >= rules.minimum_references
    findings = tuple(_finding(measures, name, screened, bag, compared) for name in candidates)
    controls = run_controls(measures, bag) if compared else ()
    dose = measure_dose(measures, bag.names, rules)
    recipe = check_recipe(measures, bag.names, rules)
    limit = detection_limit(controls)
    excluded = excluded_references(measures, bag.names, rules)
    numbers = _numbers(measures, screened, bag, headroom) | {
        "references_excluded": len(excluded),
        "excluded_reference": excluded[0] if excluded else None,
    }

    def verdict(reason: Reason | None, because: Because | None = None, **more: Number) -> Verdict:
        from palimpsest.verdict_words import remarks

        chosen_name = more.pop("candidate", None)
        grade: Grade = "equivalent" if rules.margin > 0 else "indistinguishable"
        return Verdict(
            status="uncertified" if reason else "certified",
            grade=None if reason else grade,
            candidate=None if chosen_name is None else str(chosen_name),
            reason=reason,
            because=because,
            numbers={**numbers, **more},
            findings=findings,
            controls=controls,
            detection_limit=limit,
            dose=dose,
            recipe=recipe,
            remarks=remarks(recipe, controls, bag),
        )

    if not screened.bound.certifiable:
        return verdict("underpowered", "screen")
    if headroom is not None and headroom.regime == "inferable":
        return verdict("not_identifiable", "headroom")
    if "injected" in measures:
        # A model that never knew the facts has nothing to forget: everything would survive.
        injected = screen_alone(measures["injected"], rules)
        numbers["injected_p"] = injected.test.p_value
        if not injected.excluded:
            return verdict("not_identifiable", "injected")
    if excluded:
        return verdict("not_identifiable", "reference")
    if not screened.survivors:
        return verdict("all_excluded")
    if not compared:
        return verdict("no_reference", nearest=_smallest_residual(measures, screened.survivors))
    survivors = [finding for finding in findings if not finding.excluded]
    nearest = min(survivors, key=_preference)
    because = _underpowered(bag, dose, limit, rules)
    if because is not None:
        return verdict("underpowered", because, nearest=nearest.name)
    if not any(finding.clears for finding in survivors):
        return verdict("distinguishable", nearest=nearest.name)
    pick = min((finding for finding in survivors if finding.clears), key=_preference)
    return verdict(None, candidate=pick.name)


def excluded_references(
    measures: CellMeasures, references: Sequence[str], rules: Rules
) -> tuple[str, ...]:
    """Return the references that the screen excludes, Holm-corrected over them."""
    if not references:
        return ()
    tests = [screen_alone(measures[name], rules).test for name in references]
    rejected = holm([test.exact_p for test in tests], rules.alpha).rejected
    return tuple(name for name, out in zip(references, rejected) if out)


def _underpowered(bag: Bag, dose: Dose | None, limit: float | None, rules: Rules) -> Because | None:
    """Return what keeps the comparison from showing anything; None when nothing does."""
    if bag.unmeasured:
        return "axes"
    if bag.constant:
        return "constant"
    relearns = any(entry.needs == "round trip" for entry in chosen(rules))
    if relearns and (dose is None or not dose.enough):
        return "dose"
    return "detection_limit" if limit is None or limit > rules.detection_limit else None


def _preference(finding: Finding) -> tuple[bool, bool, float, float]:
    """Return the order of candidates: certifiable ones first, then the largest p, then the smaller
    worst axis. Candidates that are equal in all of it keep the order they were listed in."""
    comparison = finding.comparison
    if comparison is None:
        return (True, True, 0.0, math.inf)
    distance = comparison.worst.sd
    return (
        not comparison.accepted,
        bool(comparison.missing),
        -comparison.p,
        math.inf if distance is None else abs(distance),
    )


def _smallest_residual(measures: CellMeasures, survivors: Sequence[str]) -> str | None:
    ranked = [(r, n) for n in survivors if (r := measures[n].residual) is not None]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _finding(
    measures: CellMeasures, name: str, screened: Screen, bag: Bag, compared: bool
) -> Finding:
    model, passage = measures[name], screened[name]
    read = {entry.name: entry.read(model) for entry in chosen(bag.rules)}
    values = {n: x if x is not None and math.isfinite(x) else None for n, x in read.items()}
    broken = _titles(n for n, x in read.items() if x is not None and values[n] is None)
    absent = _titles(n for n, x in read.items() if x is None)
    parts = [f"not a finite number on {broken}"] if broken else []
    parts += [f"not measured on {absent}"] if absent else []
    return Finding(
        name=name,
        p_value=passage.test.p_value,
        adjusted_p=passage.adjusted_p,
        method=passage.test.method,
        excluded=passage.excluded,
        median_gap=model.median_gap,
        values=values,
        comparison=bag.compare(model) if compared else None,
        failure=" and ".join(parts) or None,
    )


def _numbers(
    measures: CellMeasures, screened: Screen, bag: Bag, headroom: Headroom | None
) -> dict[str, Number]:
    rules, survivors = bag.rules, len(screened.survivors)
    names = dict.fromkeys(name for names in bag.unmeasured.values() for name in names)
    numbers: dict[str, Number] = asdict(screened.bound) | {
        "pool": measures.pool,
        "survivors": survivors,
        "excluded": len(screened.screened) - survivors,
        "smallest_p": min(passage.test.p_value for passage in screened.screened),
        "references": len(bag.names),
        "minimum_references": rules.minimum_references,
        "required_references": required_references(rules.alpha),
        "test": which_test(len(bag.names), rules.alpha) if len(bag.names) >= 2 else None,
        "axes": len(bag.axes),
        "margin": rules.margin,
        "largest_detection_limit": rules.detection_limit,
        "unmeasured_axes": _titles(bag.unmeasured),
        "unmeasured_references": ", ".join(names) or None,
        "constant_axes": _titles(bag.constant),
    }
    if headroom is not None:
        numbers["headroom"] = headroom.estimate.estimate
        numbers["headroom_low"] = headroom.estimate.low
        numbers["headroom_high"] = headroom.estimate.high
        numbers["headroom_taught"] = headroom.taught
        numbers["regime"] = headroom.regime
    return numbers


def _titles(names: Iterable[str]) -> str | None:
    return ", ".join(axis(name).title for name in names) or None
