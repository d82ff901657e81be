"""A verdict in words: the sentences of its paragraph, and the remarks beside it."""

from collections.abc import Sequence

from palimpsest.criteria.axes import axis
from palimpsest.criteria.controls import Bag, Control, Dose, Recipe
from palimpsest.criteria.retraining import Comparison, Worst
from palimpsest.verdict import Finding, Number, Verdict

CLOSING = (
    "This is an empirical test of models as they were produced, not a guarantee against a model "
    "built to defeat it."
)


def sentences(verdict: Verdict) -> list[str]:
    """Return the sentences of the verdict's paragraph."""
    if verdict.candidate is not None:
        body = _certified(verdict, verdict.finding(verdict.candidate))
    else:
        body = [f"Uncertified ({verdict.reason}).", _screened(verdict), *_uncertified(verdict)]
    return [*body, *verdict.remarks, CLOSING]


def distance(worst: Worst) -> str:
    """Return the worst axis with its distance: ``relearn late, +2.3 sd``."""
    title = axis(worst.axis).title
    if worst.sd is None:
        return f"{title}, on which the references do not vary"
    return f"{title}, {worst.sd:+.1f} sd"


def how_far(comparison: Comparison) -> str | None:
    """Return how far the model is restored, and the axis with the largest gap."""
    shares = {name: gap.share for name, gap in comparison.gaps.items() if gap is not None}
    if comparison.restored is None or not shares:
        return None
    furthest = max(shares, key=lambda name: shares[name])
    return f"{_percent(comparison.restored)} restored (largest gap: {axis(furthest).title})"


def refusals(verdict: Verdict) -> list[str]:
    """Return why candidates were not accepted: those that the screen excluded together, then one
    sentence each."""
    excluded = [finding for finding in verdict.findings if finding.excluded]
    knowing = [finding.name for finding in excluded if not _by_damage(finding)]
    lines = []
    if knowing:
        verb = "still knows" if len(knowing) == 1 else "still know"
        lines.append(f"{', '.join(knowing)} {verb} the forget facts beyond chance (screen).")
    for finding in excluded:
        if _by_damage(finding):
            assert finding.comparison is not None
            z = finding.comparison.z
            lines.append(
                f"{finding.name} knows the forget facts better than the never-learned probes "
                f"(screen), chiefly because it lost the probes (drift, {z['drift']:+.1f} sd; "
                f"forget, {z['forget']:+.1f} sd): mend the damage before you forget harder."
            )
    for finding in verdict.findings:
        if finding.excluded or finding.clears or finding.comparison is None:
            continue
        if finding.comparison.missing:
            lines.append(f"{finding.name} could not be compared: it is {finding.failure}.")
        else:
            lines.append(f"{finding.name} {_gives_away(finding.comparison)}.")
    return lines


def _by_damage(finding: Finding) -> bool:
    """Tell whether probes rose further, in retraining standard deviations, than forget facts lie
    below: then the screen's gap is damage more than knowledge."""
    z = {} if finding.comparison is None else finding.comparison.z
    forget, drift = z.get("forget"), z.get("drift")
    return forget is not None and drift is not None and drift > max(0.0, -forget)


def controls_sentence(verdict: Verdict) -> str:
    """Return what this audit would have noticed, and what its controls came to."""
    limit, by_kind = verdict.detection_limit, dict[str, list[Control]]()
    for control in verdict.controls:
        if control.comparison is not None:
            by_kind.setdefault(control.kind, []).append(control)
    if limit is None:
        noticed = "This audit does not even reject the injected model"
    elif limit < 1:
        noticed = f"This audit would have noticed {_percent(limit)} of the injected weights left"
    else:
        noticed = "This audit notices the injected model, and no smaller share of its weights"
    rejected = [] if limit is None else ["the injected model"]
    suppressors = by_kind.get("suppressor", [])
    if suppressors:
        part, whole = sum(control.rejected for control in suppressors), len(suppressors)
        counted = f"all {whole}" if part == whole else f"{part} of {whole}"
        single = part == whole == 1
        known = "the known-label model" if single else f"{counted} known-label models"
        rejected.append(f"{known} that {'keeps' if single else 'keep'} the facts")
    accepted = [
        f"{sum(not c.rejected for c in by_kind[kind])} of {len(by_kind[kind])} {words}"
        for kind, words in (("reference", "retrainings"), ("retraining", "fresh retrainings"))
        if kind in by_kind
    ]
    did = [f"rejected {' and '.join(rejected)}"] if rejected else []
    did += [f"accepted {' and '.join(accepted)}"] if accepted else []
    return f"{noticed}; it {', and '.join(did)}." if did else f"{noticed}."


def remarks(recipe: Recipe | None, controls: Sequence[Control], bag: Bag) -> tuple[str, ...]:
    """Return what a reader of any verdict on this cell should know, as sentences."""
    notes = []
    if recipe is not None and recipe.far and recipe.axis is not None:
        notes.append(
            f"The injected model lies {abs(recipe.z[recipe.axis]):.0f} sd from the references on "
            f"{axis(recipe.axis).title}, although both should come from the same recipe: the "
            "references may come from another recipe, and then a rejection may show only that."
        )
    absent = [f"{c.name}, {c.missing}" for c in controls if c.missing and c.expected == "reject"]
    if absent:
        notes.append(f"Controls that could not be compared: {'; '.join(absent)}.")
    passed = [c.name for c in controls if c.kind == "suppressor" and c.as_expected is False]
    if passed:
        notes.append(
            f"Known-label models that keep the facts and passed the comparison: "
            f"{', '.join(passed)}. This audit cannot rule out suppression of that kind."
        )
    idle = [axis(name).title for name, stake in bag.stakes.items() if stake is None]
    if bag.rules.margin > 0 and idle and controls:
        notes.append(
            f"Nothing was at stake on {', '.join(idle)}, so equivalence within a margin cannot be "
            "shown there; leave the axis out of the rules, or set the margin to 0."
        )
    return tuple(notes)


def _certified(verdict: Verdict, pick: Finding) -> list[str]:
    n, comparison = verdict.numbers, pick.comparison
    assert comparison is not None
    grade = (
        f"Equivalent within {_percent(n['margin'])} to"
        if verdict.grade == "equivalent"
        else "Indistinguishable from"
    )
    others = sum(finding.clears for finding in verdict.findings) - 1
    return [
        f"Certified: {pick.name}.",
        f"{grade} {n['references']} retrainings on {_count(n['axes'], 'axis', 'axes')} "
        f"(p = {comparison.p:.2g}, worst axis: {distance(comparison.worst)}).",
        controls_sentence(verdict),
        *_qualified(verdict, comparison),
        *([f"{_count(others, 'more candidate passes', 'more candidates pass')}."] * bool(others)),
        _screened(verdict),
    ]


def _uncertified(verdict: Verdict) -> list[str]:
    n = verdict.numbers
    if verdict.reason == "not_identifiable":
        return [_not_identifiable(verdict)]
    if verdict.reason == "all_excluded":
        passing = " The references themselves survive it." if n["references"] else ""
        return [f"Every candidate was excluded by the screen, so none is left to compare.{passing}"]
    if verdict.reason == "no_reference":
        given = _count(n["references"] or "No", "reference was", "references were")
        ranked = f" {verdict.nearest} has the smallest round-trip residual, which is a ranking"
        return [
            f"{given} given, and a certificate compares a candidate with retrainings: give at "
            f"least {n['minimum_references']}; 5 are better, and with {n['required_references']} "
            "the test makes no assumption about the distribution. Surviving the screen means only "
            "that no retained knowledge was detected."
            f"{f'{ranked}, not a certificate.' if verdict.nearest else ''}"
        ]
    if verdict.reason == "underpowered" and verdict.because != "screen":
        return [_underpowered(verdict), *_although(verdict)]
    if verdict.reason == "distinguishable":
        return [*_distinguishable(verdict), controls_sentence(verdict)]
    return []


def _underpowered(verdict: Verdict) -> str:
    n, limit = verdict.numbers, verdict.detection_limit
    if verdict.because == "axes":
        return (
            f"The axes {n['unmeasured_axes']} have no finite value for {n['unmeasured_references']}"
            ": measure every reference on every axis, or leave these axes out of the rules."
        )
    if verdict.because == "constant":
        return (
            f"The references do not vary at all on {n['constant_axes']}, as independent "
            "retrainings would: check that they are different models, trained on different draws."
        )
    if verdict.because == "dose":
        return _dose(verdict.dose)
    if limit is None:
        noticed = "does not reject even the injected model"
    elif limit == 1:
        noticed = "rejects the injected model, but none of the smaller shares of its weights"
    else:
        noticed = f"notices no share of the injected weights below {_percent(limit)}"
    return (
        f"This audit {noticed}, but it must notice {_percent(n['largest_detection_limit'])}: "
        f"passing it shows nothing. More references ({n['references']} were "
        "given), more forget facts or more phrasings per fact would lower the detection limit."
    )


def _dose(dose: Dose | None) -> str:
    if dose is None:
        return (
            "Re-acquisition was not measured for every reference, so nothing shows that it was "
            "strong enough to bring latent knowledge back: measure the round trip."
        )
    advice = (
        f"try about {dose.suggested_steps} steps, or a higher learning rate"
        if dose.suggested_steps is not None
        else "raise the learning rate tenfold, or train for many more steps"
    )
    return (
        f"Re-acquisition is too weak: in {dose.steps} steps it brought the references "
        f"{_percent(dose.fraction)} of the way from their own held-out forget level "
        f"({dose.before:.2f} nats) to the injected model's ({dose.injected:.2f}), but relearning "
        f"shows something only from {_percent(dose.required)} on; {advice}."
    )


def _although(verdict: Verdict) -> list[str]:
    """Say of an underpowered audit what it still shows: a rejection needs no power."""
    compared = [f for f in verdict.findings if not f.excluded and f.comparison is not None]
    if not compared or any(f.clears for f in compared):
        return []
    subject = compared[0].name if len(compared) == 1 else "every surviving candidate"
    return [f"Even so, {subject} is distinguishable from retraining."]


def _distinguishable(verdict: Verdict) -> list[str]:
    n = verdict.numbers
    nearest = verdict.finding(str(verdict.nearest))
    comparison = nearest.comparison
    if comparison is None or comparison.missing:
        return [f"{nearest.name} could not be compared: it is {nearest.failure}."]
    within = f"equivalent within {_percent(n['margin'])} to"
    aim = within if n["margin"] else "indistinguishable from"
    none, name = f"The survivor is not {aim}", nearest.name
    if n["survivors"] != 1:
        none, name = f"None of the survivors is {aim}", f"The nearest, {name},"
    return [
        f"{none} {n['references']} retrainings.",
        f"{name} {_gives_away(comparison)}.",
        *_qualified(verdict, comparison),
    ]


def _gives_away(comparison: Comparison) -> str:
    """Return what a model did on its worst axis, to follow its name in a sentence."""
    worst, entry = comparison.worst, axis(comparison.worst.axis)
    did = entry.high if worst.direction == "high" else entry.low
    return f"{did} ({distance(worst)}; p = {comparison.p:.2g})"


def _not_identifiable(verdict: Verdict) -> str:
    n = verdict.numbers
    if verdict.because == "headroom":
        return (
            "The facts are inferable: with evidence in context the base model is only "
            f"{n['headroom']:.2f} nats ({n['headroom_low']:.2f} to {n['headroom_high']:.2f}) worse "
            f"than the injected one, of the {n['headroom_taught']:.2f} that injection taught, so "
            "never-learned probes do not show what level forgetting should reach."
        )
    if verdict.because == "injected":
        return (
            f"The injected model itself is not excluded (p = {n['injected_p']:.3g}): the screen "
            "finds no knowledge of the forget facts in the model that should hold them, so "
            "surviving it means nothing. Check that the forget file holds what was injected, and "
            "that base and injected are not swapped."
        )
    return (
        f"{n['references_excluded']} of {n['references']} references are excluded by the screen "
        f"({n['excluded_reference']} among them), although a reference should never have seen the "
        "forget facts. Either the facts can be inferred from retained data, and the screen does "
        "not measure what a candidate remembers, or a reference was trained on them. Check what "
        "the references were trained on: replace any that saw the forget facts; otherwise choose "
        "forget facts that cannot be inferred from retained data."
    )


def _qualified(verdict: Verdict, comparison: Comparison) -> list[str]:
    qualified = []
    if (restored := how_far(comparison)) is not None:
        shares = sorted(
            control.comparison.restored
            for control in verdict.controls
            if control.kind == "reference"
            and control.comparison is not None
            and control.comparison.restored is not None
        )
        beside = ""
        if shares:
            lowest, highest = _percent(shares[0]), _percent(shares[-1])
            beside = f"; by the same measure the retrainings are {lowest} to {highest} restored"
        qualified.append(f"It is {restored}{beside}.")
    if comparison.test == "student-t":
        qualified.append(
            f"With {comparison.references} references the comparison is a Student-t region, which "
            "assumes normally distributed draws."
        )
    return qualified


def _screened(verdict: Verdict) -> str:
    n = verdict.numbers
    text = (
        f"{_count(n['candidates'], 'candidate was', 'candidates were')} screened with "
        f"{_count(n['forget'], 'forget fact', 'forget facts')} against {n['probes']} never-learned "
        f"probes on the {n['pool']} pool at alpha = {n['alpha']:g}"
    )
    if verdict.because == "screen":
        return (
            f"{text}, but {n['arrangements']:,} arrangements are fewer than the {n['required']:,} "
            f"that Holm's correction needs: the smallest attainable p-value is {n['min_p']:.3g}, "
            "so no candidate could be excluded at any effect size, and surviving would mean "
            f"nothing. Use at least {n['min_probes']} probes."
        )
    return (
        f"{text}: {n['excluded']} still knew the forget facts beyond chance and "
        f"{n['survivors']} survived (smallest p = {n['smallest_p']:.3g})."
    )


def _count(number: Number, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _percent(share: Number) -> str:
    return f"{100 * float(share or 0.0):.3g} %"
