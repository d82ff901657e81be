"""From a cell's numbers and the frozen rules to one verdict: certified, or why not.

Order of questions, each of which may end it:

1. can the screen exclude anybody?                          else ``underpowered``
2. is the forget threshold identifiable from never-learned
   facts (headroom, a reference that itself passes, and an
   injected model in which the screen finds the facts)?     else ``not_identifiable``
3. does any candidate survive the screen?                   else ``all_excluded``
4. does any survivor clear the bar?                         else ``no_candidate_clears_bar``

With tolerances (given, or measured on two or more reference draws) the bar is the recalibrated,
reference-relative one; without, it is the absolute bar, and the verdict says which. There is no
fallback to ranking by residual alone: without a certified candidate, none is named as such.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from palimpsest.criteria.bars import (
    DamageBar,
    Tolerances,
    absolute_bar,
    damage_bar,
    measure_tolerances,
)
from palimpsest.criteria.headroom import Headroom
from palimpsest.criteria.measures import CellMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import Screen, screen_alone, screen_candidates
from palimpsest.criteria.selector import smallest_residual, smallest_worst_axis
from palimpsest.errors import BundleError, ScoreError

Status = Literal["certified", "uncertified"]
Reason = Literal["underpowered", "not_identifiable", "all_excluded", "no_candidate_clears_bar"]
Mode = Literal["reference-relative", "oracle-free"]
Number = float | int | str | bool | None

REASONS: tuple[Reason, ...] = (
    "underpowered",
    "not_identifiable",
    "all_excluded",
    "no_candidate_clears_bar",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one candidate; an axis the mode does not use is None."""

    name: str
    p_value: float
    adjusted_p: float
    method: str
    excluded: bool
    median_gap: float
    """Median forget delta minus median probe delta."""
    retain_nll: float | None
    residual: float | None
    forget_distance: float | None
    retain_damage: float | None
    residual_damage: float | None
    worst_axis: float | None
    fall: float | None
    """First-chunk fall of held-out forget NLL when re-acquired."""
    failures: tuple[str, ...]
    """What keeps it from the bar; empty when it clears."""

    @property
    def clears(self) -> bool:
        return not self.failures


@dataclass(frozen=True, slots=True)
class Verdict:
    """Certified: which candidate. Uncertified: why. With the numbers behind it."""

    status: Status
    mode: Mode
    candidate: str | None
    reason: Reason | None
    numbers: Mapping[str, Number]
    findings: tuple[Finding, ...]

    def __post_init__(self) -> None:
        if (self.status == "certified") != (self.candidate is not None):
            raise ScoreError(f"a verdict {self.status} with candidate {self.candidate} is none")
        if (self.status == "uncertified") != (self.reason is not None):
            raise ScoreError(f"a verdict {self.status} with reason {self.reason} is none")

    @property
    def certified(self) -> bool:
        return self.status == "certified"

    def finding(self, name: str) -> Finding:
        """What was found about one candidate."""
        for one in self.findings:
            if one.name == name:
                return one
        raise ScoreError(f"the verdict has no candidate {name}")

    def paragraph(self) -> str:
        """The verdict as one paragraph for a person."""
        return " ".join(_sentences(self))

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, no NaN."""
        document = asdict(self)
        document["numbers"] = dict(self.numbers)
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Verdict":
        """The verdict that ``to_json`` wrote."""
        try:
            document: dict[str, Any] = json.loads(text)
            findings = tuple(
                Finding(**{**one, "failures": tuple(one["failures"])})
                for one in document.pop("findings")
            )
            return cls(findings=findings, **document)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise BundleError(f"this is not a verdict written by Palimpsest: {error}") from error


def decide(
    measures: CellMeasures,
    rules: Rules,
    candidates: Sequence[str],
    tolerances: Tolerances | None = None,
    references: Sequence[str] | None = None,
    headroom: Headroom | None = None,
    reference_must_pass: bool = False,
) -> Verdict:
    """The verdict on ``candidates``.

    ``references`` are the reference draws to use, draw 0 first (by default those in ``measures``;
    an empty sequence forces the oracle-free mode). ``tolerances`` default to those of the draws
    when there are at least ``rules.minimum_draws``; one lone draw without tolerances only checks
    whether the never-learned level can be reached at all, and the verdict says so.
    ``reference_must_pass`` asks that also where candidates survive, which they may by forgetting
    more than retraining does.
    """
    draws = measures.references if references is None else tuple(references)
    if tolerances is None and len(draws) >= rules.minimum_draws:
        tolerances = measure_tolerances(measures, rules, draws)
    relative = bool(draws) and tolerances is not None
    mode: Mode = "reference-relative" if relative else "oracle-free"

    screened = screen_candidates(measures, candidates, rules)
    bars: dict[str, DamageBar] = {}
    if relative and tolerances is not None:
        for one in screened.screened:
            bars[one.name] = damage_bar(
                measures, one.name, not one.excluded, tolerances, rules, draws
            )
    findings = tuple(_finding(measures, one, screened, bars, rules) for one in candidates)
    numbers = _numbers(measures, screened, tolerances if relative else None, draws, headroom, rules)

    def verdict(reason: Reason, **more: Number) -> Verdict:
        return Verdict("uncertified", mode, None, reason, {**numbers, **more}, findings)

    if not screened.bound.certifiable:
        return verdict("underpowered")
    if headroom is not None and headroom.regime == "inferable":
        return verdict("not_identifiable", because="headroom")
    if reference_must_pass and numbers.get("reference_excluded"):
        return verdict("not_identifiable", because="reference")
    if not screened.survivors:
        if numbers.get("reference_excluded"):
            return verdict("not_identifiable", because="reference")
        return verdict("all_excluded")
    if "injected" in measures:
        # Whoever knew nothing has nothing to forget: everybody would survive, and it would mean
        # nothing. The usual causes are a wrong forget file, or base and injected exchanged.
        injected = screen_alone(measures["injected"], rules)
        if not injected.excluded:
            p_value = injected.test.p_value
            return verdict("not_identifiable", because="injected", injected_p=p_value)

    clearing = [one.name for one in findings if one.clears]
    numbers["clearing"] = len(clearing)
    if relative:
        pick = smallest_worst_axis(bars, clearing)
        nearest = smallest_worst_axis(bars, screened.survivors)
    else:
        pick = smallest_residual(measures, clearing)
        nearest = smallest_residual(measures, screened.survivors)
    if pick is None:
        if relative and tolerances is not None:
            numbers["references_clearing"] = _clearing(measures, rules, tolerances, draws)
        return verdict("no_candidate_clears_bar", nearest=nearest)
    return Verdict("certified", mode, pick, None, numbers, findings)


def _clearing(
    measures: CellMeasures, rules: Rules, tolerances: Tolerances, draws: Sequence[str]
) -> int | None:
    """How many of the references clear the bar themselves; None where one was not measured."""
    if any(measures[draw].residual is None for draw in draws):
        return None
    passes = {draw: not screen_alone(measures[draw], rules).excluded for draw in draws}
    bars = (damage_bar(measures, d, passes[d], tolerances, rules, draws) for d in draws)
    return sum(not bar.failures for bar in bars)


def _finding(
    measures: CellMeasures,
    name: str,
    screened: Screen,
    bars: Mapping[str, DamageBar],
    rules: Rules,
) -> Finding:
    model, passage = measures[name], screened[name]
    bar = bars.get(name)
    if bar is None:
        absolute = absolute_bar(model, not passage.excluded, rules)
        failed = {
            "screen": not absolute.screen,
            "retain limit": not absolute.retain,
            "residual limit": not absolute.residual,
        }
        failures = tuple(axis for axis, fails in failed.items() if fails)
    else:
        failures = bar.failures
    return Finding(
        name=name,
        p_value=passage.test.p_value,
        adjusted_p=passage.adjusted_p,
        method=passage.test.method,
        excluded=passage.excluded,
        median_gap=model.median_gap,
        retain_nll=model.retain_nll,
        residual=model.residual,
        forget_distance=None if bar is None else bar.forget_distance,
        retain_damage=None if bar is None else bar.retain_damage,
        residual_damage=None if bar is None else bar.residual_damage,
        worst_axis=None if bar is None else bar.worst_axis,
        fall=None if bar is None or bar.relearn is None else bar.relearn.fall,
        failures=failures,
    )


def _numbers(
    measures: CellMeasures,
    screened: Screen,
    tolerances: Tolerances | None,
    draws: Sequence[str],
    headroom: Headroom | None,
    rules: Rules,
) -> dict[str, Number]:
    bound = screened.bound
    numbers: dict[str, Number] = {
        "alpha": rules.alpha,
        "pool": measures.pool,
        "forget": bound.forget,
        "probes": bound.probes,
        "candidates": bound.candidates,
        "arrangements": bound.arrangements,
        "min_p": bound.min_p,
        "required": bound.required,
        "min_probes": bound.min_probes,
        "survivors": len(screened.survivors),
        "excluded": bound.candidates - len(screened.survivors),
        "smallest_p": min(one.test.p_value for one in screened.screened),
        "references": len(draws),
        "floor": measures["injected"].residual if "injected" in measures else None,
        "injected_retain_nll": measures["injected"].retain_nll if "injected" in measures else None,
    }
    if draws:
        reference = screen_alone(measures[draws[0]], rules)
        numbers["reference_p"] = reference.test.p_value
        numbers["reference_excluded"] = reference.excluded
    if tolerances is None:
        numbers["retain_limit"] = rules.retain_limit
        numbers["residual_limit"] = rules.residual_limit
    else:
        numbers["delta_f"] = tolerances.delta_f
        numbers["epsilon_retain"] = tolerances.epsilon_retain
        numbers["epsilon_residual"] = tolerances.epsilon_residual
        numbers["relearn_veto"] = rules.relearn_veto
    if headroom is not None:
        numbers["headroom"] = headroom.estimate.estimate
        numbers["headroom_low"] = headroom.estimate.low
        numbers["headroom_high"] = headroom.estimate.high
        numbers["headroom_taught"] = headroom.taught
        numbers["regime"] = headroom.regime
    return numbers


def _sentences(verdict: Verdict) -> list[str]:
    n = verdict.numbers
    title = (
        f"Certified: {verdict.candidate}."
        if verdict.certified
        else (f"Uncertified ({verdict.reason}).")
    )
    counted = (
        f"{n['candidates']} candidate{' was' if n['candidates'] == 1 else 's were'} screened with "
        f"{n['forget']} forget facts against {n['probes']} never-learned probes on the "
        f"{n['pool']} pool at alpha = {n['alpha']:g}"
    )
    if verdict.reason == "underpowered":
        return [
            title,
            f"{counted}, but {n['arrangements']:,} arrangements are fewer than the "
            f"{n['required']:,} that Holm's correction needs: the smallest attainable p-value is "
            f"{n['min_p']:.3g}, so no candidate could be excluded at any effect size, and "
            f"surviving would mean nothing. Use at least {n['min_probes']} probes.",
        ]
    sentences = [
        title,
        f"{counted}; {n['excluded']} still knew the forget set beyond chance and "
        f"{n['survivors']} survived (smallest p = {n['smallest_p']:.3g}).",
    ]
    if verdict.reason == "not_identifiable":
        sentences.append(_why_not_identifiable(n))
    elif verdict.reason == "all_excluded":
        sentences.append(
            "Every candidate was excluded, so there is nothing to choose from"
            + (
                f", while the reference itself passes (p = {n['reference_p']:.3g}): the "
                "never-learned level can be reached, and these candidates do not reach it."
                if n.get("reference_p") is not None
                else "."
            )
        )
    else:
        sentences += _bar_sentences(verdict)
    sentences.append(
        "This is an empirical test of methods as produced, not a guarantee against a model built "
        "to defeat it."
    )
    return sentences


def _why_not_identifiable(n: Mapping[str, Number]) -> str:
    if n.get("because") == "headroom":
        return (
            f"The facts are inferable: with evidence in context the base model is only "
            f"{n['headroom']:.2f} nats ({n['headroom_low']:.2f} to {n['headroom_high']:.2f}) "
            f"short of the injected one, of {n['headroom_taught']:.2f} that injection taught, so "
            "never-learned probes do not show where forgetting should end, and no oracle-free "
            "choice is sound."
        )
    if n.get("because") == "injected":
        return (
            f"The injected model itself is not excluded (p = {n['injected_p']:.3g}): the screen "
            "finds no memory of the forget facts in the model that is said to hold them, so "
            "surviving it means nothing. Check that the forget file holds what was injected, and "
            "that base and injected are not exchanged."
        )
    return (
        f"The retraining reference, which never saw the forget set, is excluded as well "
        f"(p = {n['reference_p']:.3g}): the never-learned level cannot be reached by retraining, "
        "so the screen measures what the facts give away and not what a candidate remembers."
    )


def _bar_sentences(verdict: Verdict) -> list[str]:
    n = verdict.numbers
    if verdict.mode == "reference-relative":
        bar = (
            f"The bar is relative to the matched retraining reference, at its replication noise "
            f"(delta_f = {n['delta_f']:.2f}, epsilon_f = {n['epsilon_retain']:.2f} for retain NLL "
            f"and {n['epsilon_residual']:.2f} for the residual; relearn veto "
            f"{'on' if n['relearn_veto'] else 'off'})."
        )
    else:
        bar = (
            f"Without replicated references the bar is the absolute one (retain NLL at most "
            f"{n['retain_limit']:g}, residual at most {n['residual_limit']:g}), which says nothing "
            "about equivalence to retraining."
        )
        if n["references"]:
            bar += " The one reference given served only to check that the screen can be passed."
    if verdict.candidate is not None:
        return [bar, _pick_sentence(verdict, verdict.finding(verdict.candidate))]
    failed = Counter(
        failure for one in verdict.findings if not one.excluded for failure in one.failures
    )
    causes = ", ".join(f"{axis} {count}" for axis, count in failed.most_common())
    nearest = verdict.finding(str(n["nearest"]))
    sentences = [
        bar,
        f"No survivor clears it (failures: {causes}); the nearest, {nearest.name}, "
        f"fails {' and '.join(nearest.failures)} and is not certified.",
    ]
    return sentences + _strictness(n)


def _strictness(n: Mapping[str, Number]) -> list[str]:
    """What a reader must know of a bar that models beyond reproach do not clear."""
    if n.get("references_clearing") is not None:
        told = (
            f"{n['references_clearing']} of {n['references']} references held to the same bar pass"
        )
        if n["references_clearing"]:
            return [told + "."]
        return [
            told + ": here the bar is stricter than retraining, and failing it does not show that "
            "a candidate is worse than a retrained model."
        ]
    known, limit = n.get("injected_retain_nll"), n.get("retain_limit")
    if isinstance(known, float) and isinstance(limit, float) and known > limit:
        return [
            f"The injected model's own retain NLL is {known:.2f}, above that limit already: give "
            "two or more retrained references for a bar that fits these models."
        ]
    return []


def _pick_sentence(verdict: Verdict, pick: Finding) -> str:
    n = verdict.numbers
    cleared = f"{n['clearing']} candidate{' clears' if n['clearing'] == 1 else 's clear'} it"
    if verdict.mode == "oracle-free":
        return (
            f"{cleared}, and {pick.name} has the smallest residual of them ({pick.residual:.2f}; "
            f"retain NLL {pick.retain_nll:.2f}, p = {pick.p_value:.3g})."
        )
    return (
        f"{cleared}, and {pick.name} has the smallest worst axis ({pick.worst_axis:.2f} of "
        f"delta_f): its held-out forget position is {pick.forget_distance:.2f} nats from the "
        f"reference's, retain damage {pick.retain_damage:.2f}, round-trip damage "
        f"{pick.residual_damage:.2f}, p = {pick.p_value:.3g}."
    )
