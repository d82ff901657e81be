"""A verdict in words: the answer first, then the reasons, then what the audit detects."""

from palimpsest.stats.axes import Sign, axis
from palimpsest.stats.comparison import COPY_DISTANCE, Gap
from palimpsest.stats.controls import RECIPE_SHARE, Control, ControlKind, Reacquired
from palimpsest.stats.rules import MINIMUM_REFERENCES
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
    Reason.ALL_EXCLUDED: "every candidate still knows the forget facts",
    Reason.NO_REFERENCE: "there are too few retrainings to compare with",
    Reason.REFERENCES: "the references do not represent retrainings of the injected model",
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
    if verdict.candidate is None:
        assert verdict.reason is not None
        short = PROBES_FAIL if probes_fail(verdict) else SHORT[verdict.reason]
        return f"Uncertified ({verdict.reason}): {short}."
    pick = verdict.finding(verdict.candidate)
    assert pick.comparison is not None and verdict.references is not None
    excluded = len(verdict.references.excluded)
    left_out = f" with {count(excluded, 'reference', 'references')} left out" if excluded else ""
    grade = (
        f"equivalent within {percent(verdict.rules.margin)} to"
        if verdict.rules.margin
        else "indistinguishable from"
    )
    return (
        f"Certified{custom}{left_out}: {pick.name} is {grade} {verdict.reference_count} "
        f"retrainings on {len(verdict.references.axes)} axes (p = {pick.comparison.p:.2g}; "
        f"furthest on {distance(pick.comparison.worst)})."
    )


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
        others = sum(finding.clears for finding in verdict.findings) - 1
        more = [f"{count(others, 'more candidate passes', 'more candidates pass')}."]
        return [power_sentence(verdict), *more * bool(others), *_tries(verdict)]
    lines = [_why(verdict)]
    if verdict.reason in (Reason.DISTINGUISHABLE, Reason.ALL_EXCLUDED) or probes_fail(verdict):
        lines += [refusal(finding) for finding in verdict.findings if not finding.clears][:3]
    elif verdict.findings and verdict.references and verdict.references.names:
        told = [f for f in verdict.findings if f.comparison is not None and f.comparison.rejected]
        if told and len(told) == len(verdict.findings):
            subject = told[0].name if len(told) == 1 else "every candidate"
            lines.append(f"Even so, {subject} can be distinguished from retrainings.")
    return lines + ([power_sentence(verdict)] if verdict.controls else [])


def refusal(finding: Finding, most: int = 99) -> str:
    """Return why a candidate was not accepted; ``most`` as in ``why``."""
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
        same = "equivalent to" if comparison.equivalent else "indistinguishable from"
        numbers = f"p = {comparison.p:.2g}; furthest on {distance(comparison.worst)}"
        text = f"is {same} {comparison.references} retrainings ({numbers})"
        blocked = ", but this audit could not have certified it"
        return text if finding.label == "restored" else text + blocked
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
    text = f"This audit detects {', '.join(parts)}."
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
    if verdict.rules.unmeasured_axes:
        titles = ", ".join(axis(name).title for name in verdict.rules.unmeasured_axes)
        notes.append(f"Axes not measured, because these facts do not allow it: {titles}.")
    references = verdict.references
    if references is None or not references.names:
        return notes
    if references.fault is not None and verdict.because is not references.fault:
        notes.append(_references(references))
    if references.test == "normal":
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
        return "The screen finds the forget facts in every candidate."
    if verdict.reason is Reason.NO_REFERENCE:
        given = count(verdict.reference_count or "No", "reference was", "references were")
        nearest = (
            f" {verdict.nearest} has the smallest residual after re-acquisition; this is only a "
            "ranking."
            if verdict.nearest
            else ""
        )
        return (
            f"{given} given, but candidates are certified by comparison with retrainings. Give at "
            f"least {MINIMUM_REFERENCES}; with 20 the comparison assumes nothing "
            f"about their distribution.{nearest}"
        )
    if verdict.reason is Reason.REFERENCES:
        assert verdict.references is not None
        return _references(verdict.references)
    if verdict.reason is Reason.UNDERPOWERED:
        return _underpowered(verdict)
    if verdict.reason is Reason.UNDECIDED:
        return (
            f"{verdict.nearest} passes at alpha = {verdict.rules.alpha:g}, but these rules certify "
            f"only p-values above {verdict.rules.certify_above:g}."
        )
    return f"No candidate passes the comparison with {verdict.reference_count} retrainings."


def _references(references: References) -> str:
    if references.copy is not None:
        return (
            f"{references.copy[0]} is not an independent draw: it lies within {COPY_DISTANCE:g} "
            f"standard deviations of {references.copy[1]} on every axis, nearer than independent "
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
    parts = [
        f"{recipe.sd[name]:+.1f} sd on {axis(name).title}"
        for name in recipe.failing
        if abs(recipe.sd.get(name, 0.0)) > recipe.limit
    ]
    if recipe.retain_share is not None and recipe.retain_share > RECIPE_SHARE:
        parts.append(f"{percent(recipe.retain_share)} of base's distance on the retain facts")
    return (
        f"The references seem to come from a different recipe than the injected model, which lies "
        f"{' and '.join(parts)} away from them. Retrain them by its recipe."
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
        f"Retraining alone gives {percent(verdict.inferable_share or 0.0)} of the injected model's "
        "gap between probes and forget facts: either the facts can be inferred from retained data, "
        "or the probes are harder than the forget facts. Use probes of the same kind, or other "
        "forget facts."
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
