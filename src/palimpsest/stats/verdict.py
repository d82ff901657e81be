"""From a cell's numbers and the frozen rules to one verdict: certified, or why not.

Order of questions, each of which may end it:

1. can the screen exclude a candidate at all?                 else ``underpowered``
2. is the forget threshold identifiable: facts that cannot be
   inferred, an injected model in which the screen finds them? else ``not_identifiable``
3. does any candidate survive the screen?                     else ``all_excluded``
4. are there references enough to compare with?               else ``no_reference``
5. could they be retrainings by the injected model's recipe,
   none odd, none a copy, none taught the forget facts?       else ``references``
6. would the comparison have noticed: axes measured and
   varying, re-acquisition neither too weak nor too strong to
   show anything, power high enough?                          else ``underpowered``
7. is any survivor indistinguishable from the retrainings and,
   with a margin, equivalent to them?                         else ``distinguishable``
8. is its p-value above ``certify_above``?                    else ``undecided``

Candidates are compared whatever the answer is. A verdict depends on the cell and its references
alone: not on the order of the references, and not on other cells. The bars of the paper's edition
never enter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from palimpsest.errors import ScoreError
from palimpsest.stats.axes import AXES, Sign, axis, chosen
from palimpsest.stats.comparison import Comparison, Gap, Homogeneity, Test, find_copy
from palimpsest.stats.controls import (
    Bag,
    Control,
    Power,
    Reacquired,
    RecipeCheck,
    axis_sensitivity,
    axis_values,
    check_recipe,
    detection_limit,
    measure_dose,
    mixture_powers,
    reference_bag,
    run_controls,
)
from palimpsest.stats.headroom import Headroom, Regime
from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.models import Role
from palimpsest.stats.multiplicity import Certifiability
from palimpsest.stats.rules import Rules
from palimpsest.stats.screen import (
    INFERABLE_SHARE,
    Screen,
    Screened,
    inferable_share,
    screen_alone,
    screen_candidates,
)

RELEARNED = tuple(a.name for a in AXES if a.reacquired and a.high.sign is Sign.FORGETS)
"""The axes that show how fast forget facts come back."""


class Reason(StrEnum):
    """Why nothing is certified."""

    UNDERPOWERED = "underpowered"
    NOT_IDENTIFIABLE = "not_identifiable"
    ALL_EXCLUDED = "all_excluded"
    NO_REFERENCE = "no_reference"
    REFERENCES = "references"
    DISTINGUISHABLE = "distinguishable"
    UNDECIDED = "undecided"


class Because(StrEnum):
    """Which of several causes of a reason it was."""

    SCREEN = "screen"
    HEADROOM = "headroom"
    INJECTED = "injected"
    INFERABLE = "inferable"
    ODD = "odd"
    COPY = "copy"
    RECIPE = "recipe"
    AXES = "axes"
    CONSTANT = "constant"
    DOSE = "dose"
    SATURATED = "saturated"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one candidate."""

    name: str
    screened: Screened
    values: Mapping[str, float | None]
    """By axis; None where it was not measured."""
    comparison: Comparison | None
    """With the references; None where there are too few, or nothing to compare."""
    label: str
    """restored, suppressed, over-forgotten, damaged or two of them; else why there is none."""

    @property
    def excluded(self) -> bool:
        """By the screen: forget facts are still known beyond chance."""
        return self.screened.excluded

    @property
    def clears(self) -> bool:
        """It survives the screen and the comparison accepts it."""
        return not self.excluded and self.comparison is not None and self.comparison.accepted

    @property
    def failing(self) -> tuple[Gap, ...]:
        """The axes that give it away, the worst first."""
        return () if self.comparison is None else self.comparison.failing


@dataclass(frozen=True, slots=True)
class References:
    """What is known of the references themselves."""

    names: tuple[str, ...]
    test: Test
    axes: tuple[str, ...]
    """Compared on these."""
    homogeneity: Homogeneity | None
    excluded: tuple[str, ...]
    """Those that the terms of the run leave out."""
    copy: tuple[str, str] | None
    """A reference and the other one, or the candidate, that it is a copy of."""
    recipe: RecipeCheck | None
    unmeasured: Mapping[str, tuple[str, ...]]
    constant: tuple[str, ...]

    @property
    def fault(self) -> Because | None:
        """What keeps the references from carrying a certificate; None if nothing does."""
        if self.copy is not None:
            return Because.COPY
        if self.homogeneity is not None and self.homogeneity.odd:
            return Because.ODD
        return Because.RECIPE if self.recipe is not None and self.recipe.failing else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Certified: which candidate. Uncertified: why. With the numbers behind it."""

    candidate: str | None
    reason: Reason | None
    because: Because | None
    rules: Rules
    bound: Certifiability
    nearest: str | None = None
    """The candidate named as nearest where none is certified."""
    pool: str = ""
    screen: Screen | None = None
    findings: tuple[Finding, ...] = ()
    references: References | None = None
    controls: tuple[Control, ...] = ()
    powers: tuple[Power, ...] = ()
    detection_limit: float | None = None
    """Smallest share of injected weights that this audit notices; None if not even all of them."""
    sensitivity: Mapping[str, float | None] = field(default_factory=dict)
    """By axis, the share of the way to the injected model at which a move there is noticed."""
    dose: Reacquired | None = None
    headroom: Headroom | None = None
    injected_p: float | None = None
    """Of the screen on the injected model, which must find the forget facts there."""
    inferable_share: float | None = None
    conditions: tuple[str, ...] = ()
    """What else about the measurement differs from the default, one sentence each."""

    def __post_init__(self) -> None:
        if (self.candidate is None) == (self.reason is None):
            raise ScoreError(
                f"a verdict with candidate {self.candidate} and reason {self.reason} contradicts "
                "itself"
            )

    @property
    def certified(self) -> bool:
        return self.candidate is not None

    @property
    def status(self) -> str:
        return "certified" if self.certified else "uncertified"

    @property
    def grade(self) -> str | None:
        """How far a certificate goes; None when uncertified."""
        if not self.certified:
            return None
        return "equivalent" if self.rules.margin > 0 else "indistinguishable"

    @property
    def reference_count(self) -> int:
        return 0 if self.references is None else len(self.references.names)

    def finding(self, name: str) -> Finding:
        """Return what was found about one candidate."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise ScoreError(f"the verdict has no candidate {name}")

    def paragraph(self) -> str:
        """Return the verdict as one paragraph for a person."""
        from palimpsest.stats.words import sentences

        return " ".join(sentences(self))


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What the numbers of a cell show of the audit itself, whatever its candidates are."""

    rules: Rules
    screen: Screen
    bag: Bag
    references: References
    headroom: Headroom | None
    injected: Screened | None
    """The screen of the injected model by itself."""
    inferable_share: float | None
    dose: Reacquired | None
    controls: tuple[Control, ...]
    powers: tuple[Power, ...]
    detection_limit: float | None
    sensitivity: Mapping[str, float | None]


Cause = tuple[Reason, Because | None]


def screen_has_power(evidence: Evidence) -> Cause | None:
    certifiable = evidence.screen.bound.certifiable
    return None if certifiable else (Reason.UNDERPOWERED, Because.SCREEN)


def threshold_is_identifiable(evidence: Evidence) -> Cause | None:
    headroom, share = evidence.headroom, evidence.inferable_share
    if headroom is not None and headroom.regime is Regime.INFERABLE:
        return Reason.NOT_IDENTIFIABLE, Because.HEADROOM
    if evidence.injected is not None and not evidence.injected.excluded:
        # A model that never knew the facts has nothing to forget: everything would survive.
        return Reason.NOT_IDENTIFIABLE, Because.INJECTED
    inferable = share is not None and share >= INFERABLE_SHARE
    return (Reason.NOT_IDENTIFIABLE, Because.INFERABLE) if inferable else None


def someone_survives(evidence: Evidence) -> Cause | None:
    return None if evidence.screen.survivors else (Reason.ALL_EXCLUDED, None)


def references_are_enough(evidence: Evidence) -> Cause | None:
    return None if evidence.bag.comparable else (Reason.NO_REFERENCE, None)


def references_are_retrainings(evidence: Evidence) -> Cause | None:
    fault = evidence.references.fault
    return None if fault is None else (Reason.REFERENCES, fault)


def audit_has_power(evidence: Evidence) -> Cause | None:
    dose, limit = evidence.dose, evidence.detection_limit
    missing = {
        Because.AXES: bool(evidence.bag.unmeasured),
        Because.CONSTANT: bool(evidence.bag.constant),
        Because.DOSE: dose is None or not dose.enough,
        # Where every model relearns at once, relearning tells nothing of what was left in it.
        Because.SATURATED: all(evidence.sensitivity.get(name) is None for name in RELEARNED),
        Because.POWER: limit is None or limit > evidence.rules.detection_limit,
    }
    return next(((Reason.UNDERPOWERED, cause) for cause, holds in missing.items() if holds), None)


CHECKS = (
    *(screen_has_power, threshold_is_identifiable, someone_survives),
    *(references_are_enough, references_are_retrainings, audit_has_power),
)
"""In this order; each returns why nothing can be certified, or None."""


def decide(
    measures: CellMeasures,
    rules: Rules,
    headroom: Headroom | None = None,
    conditions: Sequence[str] = (),
) -> Verdict | None:
    """Return the verdict on a cell's candidates; None where it has none.

    conditions: what else a reader must know of how the cell was measured.
    """
    candidates = measures.of_role(Role.CANDIDATE)
    if not candidates:
        return None
    evidence = gather(measures, candidates, rules, headroom)
    cause = next((found for check in CHECKS if (found := check(evidence)) is not None), None)
    blocked = cause is not None and cause[0] is not Reason.ALL_EXCLUDED
    findings = tuple(_finding(measures, s, evidence, blocked) for s in evidence.screen.screened)
    survivors = [finding for finding in findings if not finding.excluded]
    clearing = [finding for finding in survivors if finding.clears]
    certain = [f for f in clearing if f.comparison and f.comparison.p > rules.certify_above]
    candidate = None
    if cause is None and certain:
        candidate = min(certain, key=_preference).name
    elif cause is None:
        cause = (Reason.UNDECIDED if clearing else Reason.DISTINGUISHABLE), None
    reason, because = cause or (None, None)
    injected = evidence.injected
    return Verdict(
        candidate=candidate,
        reason=reason,
        because=because,
        rules=rules,
        bound=evidence.screen.bound,
        nearest=None if candidate is not None else _nearest(measures, survivors),
        pool=measures.pool,
        screen=evidence.screen,
        findings=findings,
        references=evidence.references,
        controls=evidence.controls,
        powers=evidence.powers,
        detection_limit=evidence.detection_limit,
        sensitivity=evidence.sensitivity,
        dose=evidence.dose,
        headroom=headroom,
        injected_p=None if injected is None else injected.test.p_value,
        inferable_share=evidence.inferable_share,
        conditions=tuple(conditions),
    )


def gather(
    measures: CellMeasures, candidates: Sequence[str], rules: Rules, headroom: Headroom | None
) -> Evidence:
    """Return what the cell shows of the audit itself."""
    bag = reference_bag(measures, rules)
    controls = run_controls(measures, bag) if bag.comparable else ()
    powers = mixture_powers(controls, rules)
    return Evidence(
        rules=rules,
        screen=screen_candidates(measures, candidates, rules, bag.names),
        bag=bag,
        references=_references(measures, bag, candidates),
        headroom=headroom,
        injected=screen_alone(measures["injected"], rules) if "injected" in measures else None,
        inferable_share=inferable_share(measures, bag.names),
        dose=measure_dose(measures, bag.names),
        controls=controls,
        powers=powers,
        detection_limit=detection_limit(controls, powers, rules),
        sensitivity=axis_sensitivity(measures, bag) if bag.comparable else {},
    )


def _references(measures: CellMeasures, bag: Bag, candidates: Sequence[str]) -> References:
    others = {name: axis_values(measures[name], bag.axes) for name in candidates}
    return References(
        names=bag.names,
        test=bag.test,
        axes=tuple(entry.name for entry in bag.axes),
        homogeneity=bag.homogeneity,
        excluded=tuple(n for n, model in measures.records.items() if model.excluded),
        copy=find_copy(bag.names, bag.values, others),
        recipe=check_recipe(measures, bag.names),
        unmeasured=bag.unmeasured,
        constant=bag.constant,
    )


def _finding(
    measures: CellMeasures, screened: Screened, evidence: Evidence, blocked: bool
) -> Finding:
    model, bag = measures[screened.name], evidence.bag
    read = {entry.name: entry.read(model) for entry in chosen(bag.rules)}
    values = {n: x if x is not None and math.isfinite(x) else None for n, x in read.items()}
    comparison = bag.compare(model) if bag.comparable else None
    label = label_of(comparison, screened.excluded, blocked)
    return Finding(screened.name, screened, values, comparison, label)


def label_of(comparison: Comparison | None, excluded: bool = False, blocked: bool = False) -> str:
    """Return the plain label of a model, by one rule for all of them.

    suppressed: it knows more than a retraining on any axis that shows knowledge, or the screen
    finds the facts in it (``excluded``); over-forgotten: it knows less and never more; damaged:
    something else changed, alone or besides. A model that passes is restored, unless the audit
    could not have certified anything (``blocked``).
    """
    rejected = comparison is not None and comparison.rejected
    signs = {_sign(gap) for gap in comparison.failing} if comparison and rejected else set()
    if excluded:
        signs.add(Sign.KNOWS)
    if not signs:
        if comparison is None or comparison.missing:
            return "not compared"
        return "restored" if comparison.accepted and not blocked else "not told apart"
    parts = [Sign.KNOWS] if Sign.KNOWS in signs else [s for s in (Sign.FORGETS,) if s in signs]
    parts += [Sign.DAMAGES] if Sign.DAMAGES in signs else []
    return " and ".join(parts)


def _sign(gap: Gap) -> Sign:
    return axis(gap.axis).side(gap.offset).sign


def _preference(finding: Finding) -> tuple[bool, bool, float, float]:
    """Return the order of candidates: accepted ones first, then the largest p, then the smaller
    worst axis. Candidates that are equal in all of it keep the order they were listed in."""
    comparison = finding.comparison
    if comparison is None:
        return (True, True, 0.0, math.inf)
    accepted = not comparison.accepted
    return (accepted, bool(comparison.missing), -comparison.p, abs(comparison.worst.t))


def _nearest(measures: CellMeasures, survivors: Sequence[Finding]) -> str | None:
    """Return the survivor nearest to retraining; without references, of smallest residual."""
    if any(finding.comparison is not None for finding in survivors):
        return min(survivors, key=_preference).name
    ranked = [(r, f.name) for f in survivors if (r := measures[f.name].residual) is not None]
    return min(ranked)[1] if ranked else None


def early_verdict(bound: Certifiability, rules: Rules) -> Verdict:
    """Return the verdict that needs no model: no candidate could be excluded by the screen."""
    return Verdict(None, Reason.UNDERPOWERED, Because.SCREEN, rules, bound)
