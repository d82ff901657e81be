"""From a cell's numbers and the frozen rules to one verdict: certified, or why not.

Order of questions, each of which may end it:

1. can the screen exclude a candidate at all?                 else ``underpowered``
2. is the forget threshold identifiable: facts that cannot be
   inferred, an injected model in which the screen finds them? else ``not_identifiable``
3. does any candidate survive the screen?                     else ``all_excluded``
4. is there a reference to compare with?                      else ``no_reference``
5. could they be retrainings by the injected model's recipe,
   none odd, none a copy?                                     else ``references``
6. would the comparison have noticed: axes measured and
   varying, re-acquisition neither too weak nor too strong to
   show anything, power high enough?                          else ``underpowered``
7. are there references enough for a joint test?              else ``few_references``
8. is any survivor not told apart from the retrainings and,
   with a margin, equivalent to them?                         else ``distinguishable``
9. is the bound on what is left in it below ``most_left``, and
   its p-value above ``certify_above``?                       else ``undecided``

With one to four references the verdict is *partial*: what is left of the injected weights is
bounded, and the joint test, which finds hidden knowledge and damage, is missing.

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
from palimpsest.stats.comparison import (
    COPY_DISTANCE,
    Comparison,
    Copy,
    Gap,
    Homogeneity,
    Test,
    find_copy,
)
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
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Role
from palimpsest.stats.multiplicity import Certifiability
from palimpsest.stats.rules import Rules
from palimpsest.stats.screen import (
    INFERABLE_SHARE,
    Screen,
    Screened,
    found_references,
    inferable_share,
    screen_alone,
    screen_candidates,
)
from palimpsest.stats.share import (
    DistanceScale,
    Left,
    Ruler,
    Scale,
    distance_scale,
    make_ruler,
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
    FEW_REFERENCES = "few_references"
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
    RULER = "ruler"
    BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one candidate."""

    name: str
    screened: Screened = field(repr=False)
    values: Mapping[str, float | None] = field(repr=False)
    """By axis; None where it was not measured."""
    comparison: Comparison | None = field(repr=False)
    """With the references; None where there are too few, or nothing to compare."""
    label: str
    """restored, suppressed, over-forgotten, damaged or two of them; else why there is none."""
    left: Left | None = field(default=None, repr=False)
    """What is left of the injected weights, unless it is hidden; None where nothing can be read."""
    scale: Scale | None = field(default=None, repr=False)
    """As far from retrainings as a mixture of this share; None where the audit could certify
    nothing."""
    cost: float | None = None
    """Of making it, in retrainings; None where that is not recorded."""

    @property
    def excluded(self) -> bool:
        """By the screen: forget facts are still known beyond chance."""
        return self.screened.excluded

    @property
    def clears(self) -> bool:
        """It survives the screen and the comparison accepts it."""
        return not self.excluded and self.comparison is not None and self.comparison.accepted

    def bounded(self, rules: Rules) -> bool:
        """Tell whether less than ``most_left`` of the injected weights is left, unless hidden."""
        return self.left is not None and self.left.bound < rules.most_left

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
    copy: Copy | None
    recipe: RecipeCheck | None
    found: tuple[str, ...]
    """Those in which the base-anchored screen finds the forget facts."""
    unmeasured: Mapping[str, tuple[str, ...]]
    constant: tuple[str, ...]

    @property
    def fault(self) -> Because | None:
        """What keeps the references from carrying a certificate; None if nothing does."""
        odd = self.homogeneity is not None and self.homogeneity.odd
        # One far away stretches the spread, in which others then seem near each other; a copy
        # narrows it, so that another one may seem odd.
        if self.copy is not None and (not odd or self.copy.distance <= COPY_DISTANCE / 10):
            return Because.COPY
        if odd:
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
    ruler: Ruler | None = field(default=None, compare=False)
    """What shares were read on."""
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """Of every control, as of the findings."""
    hinges: tuple[str, ...] = ()
    """References without any of which the certified candidate would be rejected."""
    unmeasured: tuple[str, ...] = ()
    """Candidates that could not be made or measured, of which nothing is said."""
    conditions: tuple[str, ...] = ()
    """What else about the measurement differs from the default, one sentence each."""

    def __post_init__(self) -> None:
        if (self.candidate is None) == (self.reason is None):
            raise ScoreError(
                f"a verdict with candidate {self.candidate} and reason {self.reason} contradicts "
                "itself"
            )

    def __repr__(self) -> str:
        from palimpsest.stats.words import headline

        return f"<Verdict: {headline(self)}>"

    @property
    def certified(self) -> bool:
        return self.candidate is not None

    @property
    def partial(self) -> bool:
        """Whether what is left was bounded, without enough references for the joint test."""
        return self.reason is Reason.FEW_REFERENCES

    @property
    def status(self) -> str:
        return "certified" if self.certified else "partial" if self.partial else "uncertified"

    @property
    def passing(self) -> tuple[Finding, ...]:
        """The candidates of which each could be the certified one."""
        above = self.rules.certify_above
        return tuple(
            f for f in self.findings
            if self.certified and f.clears and f.bounded(self.rules)
            and f.comparison is not None and f.comparison.p > above
        )  # fmt: skip

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
    ruler: Ruler | None
    scale: DistanceScale | None


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


def there_is_a_reference(evidence: Evidence) -> Cause | None:
    return None if evidence.bag.names else (Reason.NO_REFERENCE, None)


def references_are_retrainings(evidence: Evidence) -> Cause | None:
    fault = evidence.references.fault
    return None if fault is None else (Reason.REFERENCES, fault)


def audit_has_power(evidence: Evidence) -> Cause | None:
    dose, limit = evidence.dose, evidence.detection_limit
    missing = {
        Because.AXES: bool(evidence.bag.unmeasured),
        Because.CONSTANT: bool(evidence.bag.constant),
        Because.DOSE: dose is None or not dose.enough,
        Because.RULER: evidence.ruler is None,
    }
    if evidence.bag.comparable:
        # Where every model relearns at once, relearning tells nothing of what was left in it.
        saturated = all(evidence.sensitivity.get(name) is None for name in RELEARNED)
        weak = limit is None or limit > evidence.rules.detection_limit
        missing |= {Because.SATURATED: saturated, Because.POWER: weak}
    return next(((Reason.UNDERPOWERED, cause) for cause, holds in missing.items() if holds), None)


def references_are_enough(evidence: Evidence) -> Cause | None:
    return None if evidence.bag.comparable else (Reason.FEW_REFERENCES, None)


CHECKS = (
    *(screen_has_power, threshold_is_identifiable, someone_survives, there_is_a_reference),
    *(references_are_retrainings, audit_has_power, references_are_enough),
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

    ::

        cell = palimpsest.load_run("demo-run").results.cells[0]
        palimpsest.decide(cell.evaluation, palimpsest.Rules(alpha=0.01))
    """
    candidates = measures.of_role(Role.CANDIDATE)
    if not candidates:
        return None
    evidence = gather(measures, candidates, rules, headroom)
    cause = next((found for check in CHECKS if (found := check(evidence)) is not None), None)
    blocked = cause is not None and cause[0] is not Reason.ALL_EXCLUDED
    partial = cause is not None and cause[0] is Reason.FEW_REFERENCES
    findings = tuple(
        _finding(measures, s, evidence, blocked, partial) for s in evidence.screen.screened
    )
    survivors = [finding for finding in findings if not finding.excluded]
    clearing = [finding for finding in survivors if finding.clears]
    bounded = [finding for finding in clearing if finding.bounded(rules)]
    certain = [f for f in bounded if f.comparison and f.comparison.p > rules.certify_above]
    candidate = None
    if cause is None and certain:
        candidate = min(certain, key=_preference).name
    elif cause is None and clearing:
        cause = Reason.UNDECIDED, None if bounded else Because.BOUND
    elif cause is None:
        cause = Reason.DISTINGUISHABLE, None
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
        ruler=evidence.ruler,
        scales={} if blocked else _scales(measures, evidence),
        hinges=() if candidate is None else evidence.bag.hinges(measures[candidate]),
        unmeasured=tuple(
            name
            for name, model in measures.records.items()
            if model.role is Role.CANDIDATE and name not in measures
        ),
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
        ruler=make_ruler(measures, bag.names),
        scale=distance_scale(measures, bag.names, bag.values, bag.axes),
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
        found=found_references(measures, bag.names, bag.rules),
        unmeasured=bag.unmeasured,
        constant=bag.constant,
    )


def _finding(
    measures: CellMeasures, screened: Screened, evidence: Evidence, blocked: bool, partial: bool
) -> Finding:
    model, bag, rules = measures[screened.name], evidence.bag, evidence.rules
    read = {entry.name: entry.read(model) for entry in chosen(bag.rules)}
    values = {n: x if x is not None and math.isfinite(x) else None for n, x in read.items()}
    comparison = bag.compare(model) if bag.comparable else None
    left = None if evidence.ruler is None else evidence.ruler.left(model)
    bounded = left is not None and left.bound < rules.most_left
    if partial:
        label = partial_label(left, screened.excluded, bounded)
    else:
        label = label_of(comparison, screened.excluded, blocked or not bounded)
    scale = None if blocked or evidence.scale is None else _placed(model, evidence)
    record = measures.records.get(screened.name)
    cost = None if record is None or record.cost is None else record.cost.retrainings
    return Finding(screened.name, screened, values, comparison, label, left, scale, cost)


def _placed(model: ModelMeasures, evidence: Evidence) -> Scale | None:
    if evidence.scale is None:
        return None
    return evidence.scale.place(axis_values(model, evidence.bag.axes))


def _scales(measures: CellMeasures, evidence: Evidence) -> dict[str, Scale]:
    """Return where controls lie on the scale, by name."""
    names = [control.name for control in evidence.controls if control.name in measures]
    placed = {name: _placed(measures[name], evidence) for name in names}
    return {name: scale for name, scale in placed.items() if scale is not None}


def partial_label(left: Left | None, excluded: bool, bounded: bool) -> str:
    """Return the label of a model in an audit with one to four references.

    partial: the bound on what is left is low enough for a certificate; nothing else was tested.
    """
    if excluded or (left is not None and left.least > 0):
        return str(Sign.KNOWS)
    if left is None:
        return "not compared"
    if left.overshoots:
        return str(Sign.FORGETS)
    return "partial" if bounded else "not bounded"


def label_of(comparison: Comparison | None, excluded: bool = False, blocked: bool = False) -> str:
    """Return the plain label of a model, by one rule for all of them.

    suppressed: it knows more than a retraining on any axis that shows knowledge, or the screen
    finds the facts in it (``excluded``); over-forgotten: it knows less and never more; damaged:
    something else changed, alone or besides. A model that passes is restored, unless the audit
    could not have certified it (``blocked``).
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
    worst axis; without a comparison, what is left in them. Candidates that are equal in all of it
    keep the order they were listed in."""
    comparison = finding.comparison
    if comparison is None:
        return (True, True, 0.0, math.inf if finding.left is None else abs(finding.left.share))
    accepted = not comparison.accepted
    return (accepted, bool(comparison.missing), -comparison.p, abs(comparison.worst.t))


def _nearest(measures: CellMeasures, survivors: Sequence[Finding]) -> str | None:
    """Return the survivor nearest to retraining; without any reference, of smallest residual."""
    if any(finding.comparison is not None or finding.left is not None for finding in survivors):
        return min(survivors, key=_preference).name
    ranked = [(r, f.name) for f in survivors if (r := measures[f.name].residual) is not None]
    return min(ranked)[1] if ranked else None


def early_verdict(bound: Certifiability, rules: Rules) -> Verdict:
    """Return the verdict that needs no model: no candidate could be excluded by the screen."""
    return Verdict(None, Reason.UNDERPOWERED, Because.SCREEN, rules, bound)
