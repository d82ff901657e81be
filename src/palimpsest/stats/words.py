"""A verdict in words: the answer first, then the reasons, then what the audit detects."""

import math

from palimpsest.stats.axes import Sign, axis
from palimpsest.stats.comparison import CROWD_DISTANCE, Gap
from palimpsest.stats.controls import Control, ControlKind, Reacquired
from palimpsest.stats.rules import MINIMUM_REFERENCES
from palimpsest.stats.screen import INFERABLE_SHARE
from palimpsest.stats.share import BORROWED_SPREAD, Left, Scale
from palimpsest.stats.verdict import Because, Finding, Reason, References, Verdict

CLOSING = (
    "This is an empirical test of models as they were produced, not a guarantee against a model "
    "built to defeat it."
)
UNPROVED = (
    "Scores cannot prove that the references are retrainings without the forget data; you must "
    "take that on trust from their author."
)


SHORT = {
    Reason.UNDERPOWERED: "this audit has too little power",
    Reason.NOT_IDENTIFIABLE: "these facts cannot show whether anything was forgotten",
    Reason.ALL_EXCLUDED: "{every} still knows the forget facts",
    Reason.NO_REFERENCE: "there is no retraining to compare with",
    Reason.REFERENCES: "the references do not represent retrainings of the injected model",
    Reason.FEW_REFERENCES: "what is left was bounded, nothing else was tested",
    Reason.DISTINGUISHABLE: "no candidate passes as one more retraining",
    Reason.UNDECIDED: "the best candidate passes too narrowly",
}
"""Why nothing is certified, in a few words."""
PROBES_FAIL = "the probes cannot show what was forgotten; candidates were compared nevertheless"


def sentences(verdict: Verdict) -> list[str]:
    """Return the sentences of the verdict's paragraph."""
    parts = [*conditions(verdict), *reasons(verdict), *remarks(verdict)]
    return [headline(verdict), *parts, CLOSING]


def headline(verdict: Verdict) -> str:
    """Return the answer in one sentence."""
    custom = " under custom rules" if verdict.rules.differences() else ""
    references = verdict.references
    excluded = 0 if references is None else len(references.excluded)
    left_out = f" with {count(excluded, 'reference', 'references')} left out" if excluded else ""
    if verdict.partial:
        return _partial_headline(verdict, f"{custom}{left_out}")
    if verdict.candidate is None:
        assert verdict.reason is not None
        short = PROBES_FAIL if probes_fail(verdict) else SHORT[verdict.reason]
        return f"Uncertified ({verdict.reason}): {short.format(every=_every(verdict))}."
    pick = verdict.finding(verdict.candidate)
    assert pick.comparison is not None and pick.left is not None and references is not None
    told = (
        f"is equivalent within {percent(verdict.rules.margin)} to"
        if verdict.rules.margin
        else "could not be told from"
    )
    return (
        f"Certified{custom}{left_out}: {priced(pick)} {told} {verdict.reference_count} retrainings "
        f"(joint test over {len(references.axes)} axes, p = {pick.comparison.p:.2g}; largest "
        f"deviation: {distance(pick.comparison.worst)}); {_at_most(pick.left)} (95 %), unless "
        "hidden."
    )


def _every(verdict: Verdict) -> str:
    """Return whom a sentence about all candidates speaks of."""
    return "every candidate that was measured" if verdict.unmeasured else "every candidate"


def _partial_headline(verdict: Verdict, how: str) -> str:
    given = count(verdict.reference_count, "retraining", "retrainings")
    open_ones = [f for f in verdict.findings if f.left and f.label in ("partial", "not bounded")]
    if not open_ones:
        labels = ", ".join(f"{f.name} is {f.label}" for f in verdict.findings[:3])
        return f"Partial{how} ({given}): {labels}."
    best = min(open_ones, key=lambda f: f.left.bound if f.left else math.inf)
    assert best.left is not None
    limit = "" if best.label == "partial" else f"; the limit is {percent(verdict.rules.most_left)}"
    told = f"{_at_most(best.left)} in {priced(best)} (95 %), unless hidden"
    return f"Partial{how} ({given}): {told}{limit}."


def priced(finding: Finding) -> str:
    """Return a candidate's name with what making it cost, where that is recorded."""
    cost = "" if finding.cost is None else f" (cost: {finding.cost:.2f} retrainings)"
    return f"{finding.name}{cost}"


def _at_most(left: Left) -> str:
    return f"at most {percent(rounded(left.bound))} of the injected weights are left"


def rounded(share: float) -> float:
    """Return a bound as it is shown: rounded up to a tenth of a percent, then to two digits."""
    return math.ceil(round(1000 * share, 6)) / 1000


def scale_words(scale: Scale) -> str:
    """Return how far a model lies from retrainings: ``as far as a 23 % mixture (22 to 24)``."""
    if math.isinf(scale.share):
        return "further from retrainings than the injected model"
    return f"as far from retrainings as a {short_share(scale.share)} mixture ({scale_range(scale)})"


def scale_range(scale: Scale) -> str:
    """Return the interval of a scale in percent, without the sign."""
    if scale.low >= 1.0:
        return "over 100"
    high = "over 100" if math.isinf(scale.high) else f"{100 * scale.high:.0f}"
    return f"{100 * min(scale.low, 1.0):.0f} to {high}"


def short_share(share: float) -> str:
    """Return a share for a table: whole percents, ``> 100 %`` beyond the injected model."""
    return "> 100 %" if math.isinf(share) else f"{100 * share:.0f} %"


def conditions(verdict: Verdict) -> list[str]:
    """Return what differs from an audit by the default rules and settings; it comes first."""
    notes = []
    changed = verdict.rules.differences()
    if changed:
        listed = ", ".join(
            f"{k} {_shown(own)} (default {_shown(d)})" for k, (d, own) in changed.items()
        )
        notes.append(f"Rules that differ from the default: {listed}.")
    if verdict.references is not None and verdict.references.excluded:
        names = ", ".join(verdict.references.excluded)
        notes.append(f"References left out with --exclude: {names}.")
    return [*notes, *verdict.conditions]


def probes_fail(verdict: Verdict) -> bool:
    """Tell whether only the probes fail: the comparison does tell the injected model apart."""
    probes = verdict.because in (Because.INJECTED, Because.INFERABLE)
    return probes and verdict.detection_limit is not None


def reasons(verdict: Verdict) -> list[str]:
    """Return why the verdict is what it is, and what the audit could have detected."""
    if verdict.candidate is not None:
        others = len(verdict.passing) - 1
        more = [f"{count(others, 'more candidate passes', 'more candidates pass')}."]
        told = [hidden_sentence(verdict), _scale_sentence(verdict), *_hinges(verdict)]
        return [
            *filter(None, told),
            power_sentence(verdict),
            *more * bool(others),
            *_tries(verdict),
        ]
    lines = [_why(verdict)]
    if verdict.partial:
        return [*lines, *(bound_sentence(finding) for finding in verdict.findings)]
    if verdict.reason in (Reason.DISTINGUISHABLE, Reason.ALL_EXCLUDED) or probes_fail(verdict):
        lines += [refusal(finding) for finding in verdict.findings if not finding.clears][:3]
    elif verdict.findings and verdict.references and verdict.references.names:
        far = [f for f in verdict.findings if f.comparison is not None and f.comparison.rejected]
        if far and len(far) == len(verdict.findings):
            subject = far[0].name if len(far) == 1 else _every(verdict)
            lines.append(f"Even so, {subject} can be distinguished from retrainings.")
    return lines + ([power_sentence(verdict)] if verdict.controls else [])


def hidden_sentence(verdict: Verdict) -> str:
    """Return which hidden knowledge this audit has been shown to detect."""
    several = [c for c in verdict.controls if c.kind is ControlKind.KNOWN_LABEL and c.rejected]
    kinds = ", ".join(c.name.removeprefix("known-") for c in several)
    if not kinds:
        return (
            "The bound does not speak of hidden knowledge, which the joint test must find; no "
            "model that hides the facts was tried in this audit."
        )
    return f"Hidden knowledge of these kinds would have been detected: {kinds}."


def _scale_sentence(verdict: Verdict) -> str:
    scale = verdict.finding(verdict.candidate or "").scale
    return "" if scale is None else f"{verdict.candidate} lies {scale_words(scale)}."


def _hinges(verdict: Verdict) -> list[str]:
    return [
        f"This answer hangs on {name}: without it, {verdict.candidate} would be rejected."
        for name in verdict.hinges
    ]


def bound_sentence(finding: Finding) -> str:
    """Return what is known of a candidate from one to four references."""
    label = "" if finding.label in ("partial", "not bounded") else f" is {finding.label}"
    return f"{finding.name}{label}: {bound_words(finding)}."


def bound_words(finding: Finding) -> str:
    """Return what is left in a candidate that was not compared."""
    left = finding.left
    if left is None:
        return "it was not measured on every axis, so nothing is bounded"
    if finding.excluded:
        found = f"the screen finds the forget facts in it (p = {finding.screened.adjusted_p:.2g})"
        return f"{found}; {_at_most(left)}"
    if left.overshoots:
        return "it knows less of the forget facts than a retraining"
    if left.least > 0:
        return f"at least {percent(round(left.least, 3))} and {_at_most(left)}"
    return _at_most(left)


def refusal(finding: Finding, most: int = 99) -> str:
    """Return why a candidate was not accepted; ``most`` as in ``why``."""
    if finding.comparison is None and finding.left is not None:
        return bound_sentence(finding)
    told = f"is {finding.label}" if finding.failing or finding.excluded else "was not accepted"
    return f"{finding.name} {told}: it {why(finding, most)}."


def describe(finding: Finding, most: int = 99) -> str:
    """Return what was found about a candidate in one sentence: why it was not accepted, or that it
    passes."""
    if not finding.clears:
        return refusal(finding, most)
    restored = "is restored: it " if finding.label == "restored" else ""
    return f"{finding.name} {restored}{why(finding)}."


def why(finding: Finding, most: int = 99) -> str:
    """Return what was found about a candidate, to follow its name: every axis that gives it away,
    what its label says first; ``most`` of them in words, the others by name."""
    comparison = finding.comparison
    if finding.clears and comparison is not None:
        same = "is equivalent to" if comparison.equivalent else "could not be told from"
        numbers = f"p = {comparison.p:.2g}; largest deviation: {distance(comparison.worst)}"
        text = f"{same} {comparison.references} retrainings ({numbers})"
        if finding.label == "restored":
            return text
        if finding.left is None:
            return f"{text}, but this audit could not have certified it"
        bound = percent(rounded(finding.left.bound))
        return f"{text}; up to {bound} of the injected weights may be left"
    if comparison is None and finding.left is not None:
        return bound_words(finding)
    gaps = sorted(finding.failing, key=_order)
    if comparison is not None and not comparison.rejected:
        gaps = []
    parts = []
    if finding.excluded:
        level = [distance(gap) for gap in gaps if gap.axis == "forget" and gap.offset < 0]
        gaps = [gap for gap in gaps if not level or gap.axis != "forget"]
        where = "; ".join([f"screen, p = {finding.screened.adjusted_p:.2g}", *level])
        parts.append(f"still knows the forget facts ({where})")
    kept = gaps if len(gaps) == most + 1 else gaps[:most]
    parts += [f"{_did(gap)} ({distance(gap)})" for gap in kept]
    if rest := gaps[len(kept) :]:
        named = ", ".join(distance(gap, " ").removesuffix(" sd") for gap in rest)
        parts.append(f"also {named} sd")
    if comparison is not None and comparison.missing:
        titles = ", ".join(axis(name).title for name in comparison.missing)
        parts.append(f"has no finite value on {titles}")
    elif comparison is not None and not comparison.rejected and not comparison.accepted:
        parts.append("was not shown to be equivalent to retrainings within the margin")
    return "; ".join(parts) or "was not compared with retrainings"


def _order(gap: Gap) -> int:
    return list(Sign).index(axis(gap.axis).side(gap.offset).sign)


def distance(gap: Gap, joint: str = ", ") -> str:
    """Return an axis with the distance of a model there: ``relearn mid, +2.3 sd``."""
    far = f"{gap.sd:+.1f} sd" if gap.sd is not None else "where retrainings do not vary"
    return f"{axis(gap.axis).title}{joint}{far}"


def power_sentence(verdict: Verdict) -> str:
    """Return what this audit detects, from its mixtures and known-label models."""
    parts = [
        f"{percent(power.share)}{'' if index else ' of the injected weights'} in {power.noticed} "
        f"of {power.tried}{'' if index else ' mixtures'} (power at least {100 * power.at_least:.0f}"
        " %)"
        for index, power in enumerate(verdict.powers)
    ]
    text = f"With these references, this audit detects {', '.join(parts)}."
    if not any(power.noticed for power in verdict.powers):
        text = "This audit detects no mixture of a retraining with the injected weights."
    known = _counted(verdict.controls, ControlKind.KNOWN_LABEL)
    if known is not None:
        text += f" It rejects {known[0]} of {known[1]} known-label models that keep the facts."
    fresh = _counted(verdict.controls, ControlKind.RETRAINING)
    if fresh is not None:
        text += f" It accepts {fresh[1] - fresh[0]} of {fresh[1]} fresh retrainings."
    return text


def _counted(controls: tuple[Control, ...], kind: ControlKind) -> tuple[int, int] | None:
    """Return how many controls of a kind were rejected, of how many; None without any."""
    several = [c for c in controls if c.kind is kind and c.comparison is not None]
    return (sum(c.rejected for c in several), len(several)) if several else None


def remarks(verdict: Verdict) -> list[str]:
    """Return what a reader of any verdict on this cell should know."""
    notes = []
    if verdict.unmeasured:
        names, more = ", ".join(verdict.unmeasured[:5]), len(verdict.unmeasured) - 5
        others = f" and {count(more, 'other', 'others')}" if more > 0 else ""
        notes.append(f"Not measured, and so not judged: {names}{others}.")
    if verdict.rules.unmeasured_axes:
        titles = ", ".join(axis(name).title for name in verdict.rules.unmeasured_axes)
        notes.append(f"Axes not measured, because these facts do not allow it: {titles}.")
    references = verdict.references
    if references is None or not references.names:
        return notes
    if references.fault is not None and verdict.because is not references.fault:
        notes.append(_references(references))
    recipe = references.recipe
    if recipe is not None and not recipe.compared and not recipe.made_here:
        seen = recipe.retain_share
        notes.append(
            "Whether the references have the injected model's recipe could not be checked: nothing "
            "is recorded beside the models, and the base already knows the retain facts."
            if seen is None
            else f"No recipe is recorded beside the models. On the retain facts the injected model "
            f"lies {percent(round(seen, 3))} of base's distance away from the references; a "
            "different learning rate or batch size may leave no trace there."
        )
    if references.found:
        notes.append(
            f"The screen finds the forget facts in {len(references.found)} of "
            f"{len(references.names)} references (relative to the base): they can be inferred from "
            "retained data, or these references were not made without the forget data."
        )
    if verdict.inferable_share is not None and verdict.inferable_share >= INFERABLE_SHARE / 2:
        notes.append(
            f"Retraining alone gives {percent(round(verdict.inferable_share, 2))} of the injected "
            "model's gap between probes and forget facts."
        )
    if references.test == "normal" and not verdict.partial:
        notes.append(
            f"With {len(references.names)} references the comparison assumes normally distributed "
            "retrainings; with 20 or more it assumes nothing about the distribution."
        )
    passed = [c.name for c in verdict.controls if c.as_expected is False]
    wrong = [n for n in passed if _of(verdict, n).kind is ControlKind.KNOWN_LABEL]
    if wrong:
        notes.append(
            f"Known-label models that keep the facts and passed nevertheless: {', '.join(wrong)}. "
            "This audit cannot rule out suppression of that kind."
        )
    return [*notes, UNPROVED]


def _of(verdict: Verdict, name: str) -> Control:
    return next(control for control in verdict.controls if control.name == name)


def _tries(verdict: Verdict) -> list[str]:
    if len(verdict.findings) < 2:
        return []
    return [
        f"This audit judges {len(verdict.findings)} candidates of the injected model; it cannot "
        "know whether others were tried in other runs."
    ]


def _why(verdict: Verdict) -> str:
    if verdict.because is Because.SCREEN:
        return _too_few_probes(verdict)
    if verdict.reason is Reason.NOT_IDENTIFIABLE:
        return _not_identifiable(verdict)
    if verdict.reason is Reason.ALL_EXCLUDED:
        return f"The screen finds the forget facts in {_every(verdict)}."
    if verdict.reason is Reason.NO_REFERENCE:
        nearest = (
            f" {verdict.nearest} has the smallest residual after re-acquisition; this is only a "
            "ranking."
            if verdict.nearest
            else ""
        )
        return (
            "No reference was given, but candidates are judged by comparison with retrainings. One "
            f"bounds what is left, {MINIMUM_REFERENCES} allow a certificate, and with 20 the "
            f"comparison assumes nothing about their distribution.{nearest}"
        )
    if verdict.reason is Reason.FEW_REFERENCES:
        return _few_references(verdict)
    if verdict.reason is Reason.REFERENCES:
        assert verdict.references is not None
        return _references(verdict.references)
    if verdict.reason is Reason.UNDERPOWERED:
        return _underpowered(verdict)
    if verdict.reason is Reason.UNDECIDED and verdict.because is Because.BOUND:
        ruler, best = verdict.ruler, verdict.finding(verdict.nearest or "")
        assert ruler is not None and best.left is not None
        return (
            f"{best.name} passes the joint test, but up to {percent(rounded(best.left.bound))} of "
            f"the injected weights may be left in it (95 %); the limit is "
            f"{percent(verdict.rules.most_left)}. A retraining of this audit would have a bound of "
            f"about {percent(rounded(ruler.width))}; more references narrow it."
        )
    if verdict.reason is Reason.UNDECIDED:
        return (
            f"{verdict.nearest} passes at alpha = {verdict.rules.alpha:g}, but these rules certify "
            f"only p-values above {verdict.rules.certify_above:g}."
        )
    return f"No candidate passes the comparison with {verdict.reference_count} retrainings."


def _few_references(verdict: Verdict) -> str:
    ruler = verdict.ruler
    assert ruler is not None
    given = count(verdict.reference_count, "reference was", "references were")
    missing = MINIMUM_REFERENCES - verdict.reference_count
    spread = (
        "This holds if retrainings of this model vary no more than in nine of ten cells measured "
        f"so far (standard deviation of the share at most {percent(BORROWED_SPREAD)})."
        if ruler.spread <= BORROWED_SPREAD
        else f"The references given vary more than in nine of ten cells measured so far (standard "
        f"deviation of the share {percent(round(ruler.spread, 3))}), and the bounds allow for it."
    )
    return (
        f"{given} given, which bounds what is left of the injected weights and no more. {spread} "
        "Not tested: knowledge that is hidden, and damage to anything else. "
        f"{count(missing, 'more retraining', 'more retrainings')} would allow the joint test and a "
        "certificate, and give the spread of this model's own retrainings."
    )


def _references(references: References) -> str:
    copy = references.copy if references.fault is Because.COPY else None
    if copy is not None and 2 * copy.crowded >= len(references.names) > 2:
        return (
            f"{copy.crowded} of {len(references.names)} references have another one within "
            f"{CROWD_DISTANCE:g} standard deviations on every axis, nearer than independent "
            f"retrainings do (the nearest: {copy.reference} and {copy.other}). They seem to be "
            "copies with noise. Use models that were each trained from the base."
        )
    if copy is not None:
        return (
            f"{copy.reference} is not an independent draw: it lies within {copy.distance:.2g} "
            f"standard deviations of {copy.other} on every axis, nearer than independent "
            "retrainings do. Leave one of them out, or replace it."
        )
    odd = references.homogeneity
    if odd is not None and odd.odd:
        did = axis(odd.axis).side(odd.t)
        known = ", as if it had seen the forget facts" if did.sign is Sign.KNOWS else ""
        return (
            f"The references are not alike: {odd.reference} lies {odd.t:+.1f} leave-one-out "
            f"standard errors from the others on {axis(odd.axis).title} (p = {odd.p:.2g}){known}. "
            "Replace it, or leave it out with --exclude in a new run."
        )
    recipe = references.recipe
    assert recipe is not None
    if recipe.recorded:
        parts = [f"{key} {own!r} and {other!r}" for key, (own, other) in recipe.recorded.items()]
        return (
            "The records beside the models give different recipes for the injected model and for "
            f"references: {', '.join(parts)}. Retrain the references by the injected model's "
            "recipe."
        )
    return (
        "The references seem to come from a different recipe than the injected model: on the "
        f"retain facts it lies {percent(recipe.retain_share or 0.0)} of base's distance away from "
        "them, where one recipe leaves a few percent. Retrain them by its recipe."
    )


def _underpowered(verdict: Verdict) -> str:
    references = verdict.references
    assert references is not None
    if verdict.because is Because.AXES:
        missing = {name for names in references.unmeasured.values() for name in names}
        titles = ", ".join(axis(name).title for name in references.unmeasured)
        return f"{', '.join(sorted(missing))}: no finite value on {titles}. Check the reference."
    if verdict.because is Because.CONSTANT:
        titles = ", ".join(axis(name).title for name in references.constant)
        return (
            f"The references do not vary on {titles}, but independent retrainings would. Check "
            "that they are different models, trained with different seeds."
        )
    if verdict.because is Because.DOSE:
        return _dose(verdict.dose)
    if verdict.because is Because.RULER:
        return (
            "What is left of the injected weights cannot be read: mixtures with 10 % of them do "
            "not move away from the references on any axis that shows knowledge of the facts. "
            "More forget facts or more phrasings per fact would help."
        )
    if verdict.because is Because.SATURATED:
        return (
            "Re-acquisition is too strong: the references relearn so fast that even the injected "
            "model cannot be distinguished by its speed of relearning, so hidden knowledge would "
            "not show. Lower the learning rate, omit it so that it is chosen on a reference, or "
            "take fewer steps."
        )
    needed = f"{percent(verdict.rules.detection_limit)} of the injected weights"
    found = (
        "does not reject even the injected model"
        if verdict.detection_limit is None
        else f"detects only {percent(verdict.detection_limit)} of the injected weights or more"
    )
    return (
        f"This audit {found}, but it must detect {needed} with power "
        f"{percent(verdict.rules.detection_power)}, so passing it shows nothing. More references, "
        "more forget facts or more phrasings per fact would raise its power."
    )


def _dose(dose: Reacquired | None) -> str:
    if dose is None:
        return "Re-acquisition was not measured for every reference."
    advice = (
        f"try about {dose.suggested_steps} steps, or a higher learning rate"
        if dose.suggested_steps is not None
        else "raise the learning rate tenfold, or train for many more steps"
    )
    return (
        f"Re-acquisition is too weak: in {dose.steps} steps it brought the references "
        f"{percent(dose.fraction)} of the way from their own held-out forget NLL "
        f"({dose.before:.2f} nats) to the injected model's ({dose.injected:.2f} nats), but at "
        f"least {percent(dose.required)} is needed; {advice}."
    )


def _not_identifiable(verdict: Verdict) -> str:
    if verdict.because is Because.HEADROOM and verdict.headroom is not None:
        estimate = verdict.headroom.estimate
        return (
            "The facts can be inferred: with evidence in context the base is only "
            f"{estimate.estimate:.2f} nats ({estimate.low:.2f} to {estimate.high:.2f}) worse than "
            f"the injected model, out of the {verdict.headroom.taught:.2f} nats that injection "
            "taught."
        )
    if verdict.because is Because.INJECTED:
        return (
            f"The screen does not find the forget facts even in the injected model (p = "
            f"{verdict.injected_p:.3g}), so surviving it shows nothing. "
            + (
                "The comparison with retrainings does reject the injected model, so the probes "
                "are at fault: use probes of the same kind as the forget facts."
                if probes_fail(verdict)
                else "Check that the injected model was trained on the facts in the forget file, "
                "and that base and injected are not swapped."
            )
        )
    return (
        f"Retraining alone gives {percent(round(verdict.inferable_share or 0.0, 2))} of the "
        "injected model's gap between probes and forget facts: the facts can be inferred from "
        "retained data, the probes are harder than the forget facts, or the references were not "
        "made without the forget data. Use probes of the same kind, other forget facts, or other "
        "references."
    )


def _too_few_probes(verdict: Verdict) -> str:
    bound = verdict.bound
    return (
        f"{bound.forget} forget facts and {bound.probes} probes can be arranged in "
        f"{bound.arrangements:,} ways, fewer than the {bound.required:,} that Holm's correction "
        f"over {count(bound.candidates, 'candidate', 'candidates')} needs, so the screen cannot "
        f"exclude any candidate. Use at least {bound.min_probes} probes."
    )


def _did(gap: Gap) -> str:
    return axis(gap.axis).side(gap.offset).words


def count(number: int | str, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number} {one if number == 1 else many}"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.3g} %"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def certified_cells(count: int, cells: int) -> str:
    """Return in how many cells a candidate was certified."""
    return f"A candidate was certified in {count} of {cells} {'cell' if cells == 1 else 'cells'}."
