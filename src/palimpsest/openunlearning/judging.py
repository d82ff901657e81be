"""What evaluation logs show: the base-anchored screen on both sides, and the damage beside it.

Per question, delta = score of the model - score of its anchor. Null hypothesis of the screen: the
deltas of forget questions and of never-taught holdout questions have one distribution. Each side is
a one-sided Mann–Whitney test, Holm-corrected at ``ALPHA`` over both sides of all candidates of a
group; a full or retrained model is tested alone, over its own two sides. P-values are the normal
approximation for every split, so that splits of 40 and of 400 questions can be compared; it is
close from ``FEWEST`` questions on, and in the far tail larger than the exact value.

A model that passes both sides is *damaged* if, on questions that unlearning should leave alone
(holdout, retain, real authors, world facts), its median difference from the retrained model exceeds
``DAMAGE`` spreads, a spread being 1.4826 MAD of the retrained model's scores over the questions. A
test against one retraining would not do: with hundreds of questions it rejects a second retraining
too. In published logs (Llama-3.2 1B and 3B on TOFU, Llama-2 7B on MUSE News) full and retrained
models, which differ in the forget data alone, lie at most 0.10 spreads from each other on these
questions (but 1.8 on MUSE Books); the candidates that pass both sides lie at 0.19 and more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.errors import InputError, PlanError
from palimpsest.openunlearning.models import Group, LogReport, Model, Outcome, Role, Values, median
from palimpsest.openunlearning.reading import SCORES, find_logs, read_log
from palimpsest.stats.comparison import p_value, which_test
from palimpsest.stats.multiplicity import holm
from palimpsest.stats.ranktest import rank_test
from palimpsest.stats.rules import MINIMUM_REFERENCES, Rules

ALPHA, MINIMUM = Rules.alpha, MINIMUM_REFERENCES
PRETRAINED = Role.PRETRAINED
ANCHORS = ("pretrained", "retrained", "raw")
DAMAGE = 0.15
FEWEST = 20
"""Finite scores of either set below which a model is not judged."""
IS_ANCHOR = "the others are anchored to it"


def logs(
    paths: Iterable[Path | str],
    *,
    roles: Mapping[str, str] | None = None,
    score: str | None = None,
    anchor: str | None = None,
) -> LogReport:
    """Return what the evaluation logs in these folders and files show; weights are not needed.

    roles: by name of the run folder, instead of what names and configurations say.
    score: mia_min_k, mia_loss or mia_zlib; by default the first that most logs of a group have.
    anchor: pretrained, retrained or raw; by default the first of them that a group has.
    """
    if score not in (None, *SCORES):
        raise PlanError(f"{score!r} found; expected one of {', '.join(SCORES)}", key="score")
    if anchor not in (None, *ANCHORS):
        raise PlanError(f"{anchor!r} found; expected one of {', '.join(ANCHORS)}", key="anchor")
    if unknown := set((roles or {}).values()) - set(Role):
        raise PlanError(f"{unknown} found; expected some of {', '.join(Role)}", key="role")
    given = {name: Role(role) for name, role in (roles or {}).items()}
    models: list[Model] = []
    problems: list[str] = []
    for path in find_logs(paths):
        try:
            models.append(read_log(path, given))
        except InputError as error:
            problems.append(str(error))
    if not models:
        raise InputError("no log could be read: " + "; ".join(problems))
    names = sorted({model.name for model in models})
    if unknown := given.keys() - names:
        raise PlanError(f"{unknown} found; the logs are of {', '.join(names)}", key="role")
    models.sort(key=lambda model: (model.benchmark, model.base, model.split, model.position))
    titled = groupby(models, lambda model: f"{model.benchmark} {model.base} {model.split}")
    groups = [
        judge_group(part, logs, score, anchor)
        for title, members in titled
        for part, logs in _split_collections(title, list(members))
    ]
    problems += [f"{group.title}: {text}" for group in groups for text in find_limits(group)]
    if unchecked := sum(not model.template for model in models):
        share = f"{unchecked} of {len(models)} logs"
        problems.append(f"no .hydra/config.yaml beside {share}: their prompts may differ unseen")
    return LogReport(tuple(groups), tuple(problems))


def _split_collections(title: str, models: list[Model]) -> Iterator[tuple[str, list[Model]]]:
    """Yield models that may be compared: if two ``saves`` have a log of one model, each alone."""
    folders: dict[Path, list[Model]] = {}
    for model in models:
        saves = [folder for folder in model.path.parents if folder.name == "saves"]
        folders.setdefault(saves[0] if saves else Path(), []).append(model)
    if len({model.position for model in models}) == len(models):
        yield title, models
    else:
        alone = len(folders) == 1
        for folder, members in folders.items():
            yield title if alone else f"{title}, {folder.parent.name}/{folder.name}", members


def judge_group(
    title: str, models: list[Model], score: str | None = None, anchor: str | None = None
) -> Group:
    """Return the models of one benchmark, base model and split with their outcomes."""
    sound = [model for model in models if not model.reason]
    score = score or max(SCORES, key=lambda name: sum(name in model.scores for model in sound))
    faults = _find_faults(sound, score)
    models = [replace(m, score=score, reason=m.reason or faults.get(m, "")) for m in models]
    usable = [model for model in models if not model.reason]
    judged = [model for model in models if model.reason]
    families = [[model for model in usable if model.role is Role.CANDIDATE]]
    families += [[model] for model in usable if model.role is not Role.CANDIDATE]
    for family in families:
        screened = [_screen(model, usable, anchor) for model in family]
        sides = [p for model in screened for p in (model.p_below, model.p_above)]
        rejected = iter(holm([1.0 if p is None else p for p in sides], ALPHA).rejected)
        judged += [_decide(m, next(rejected), next(rejected), len(sides)) for m in screened]
    judged = _compare_with_retrainings(sorted(judged, key=lambda model: model.position))
    return Group(title, tuple(judged))


def _find_faults(sound: Sequence[Model], score: str) -> dict[Model, str]:
    """Return why a log must not be compared with the others of its group, by model."""
    faults: dict[Model, str] = {}
    logs: dict[Any, list[Model]] = {}
    for model in sound:
        logs.setdefault(model.role if model.role is PRETRAINED else model.position, []).append(
            model
        )
    for several in (models for models in logs.values() if len(models) > 1):
        # Two logs of a reference: two evaluations are mixed, and no model is safe from the other.
        spoiled = several if several[0].role is Role.CANDIDATE else sound
        found = f"two logs of one model, {several[0].path} and {several[1].path}; give one of them"
        faults = dict.fromkeys(spoiled, found) | faults
    told = [model for model in sound if model.template]
    references = [model for model in told if model.role in (PRETRAINED, Role.RETRAINED)]
    # Without a reference's configuration, nothing says which of two prompts the references had.
    unlike = (model for model in told if model.template != told[0].template)
    standards = references[:1] or [*told[:1], *islice(unlike, 1)]
    first = next((model for model in sound if score in model.scores), None)
    for model in sound:
        fault = next((text for other in standards if (text := _other_prompt(model, other))), "")
        if not fault and score not in model.scores:
            fault = f"no {score} of both forget and holdout questions; evaluate with holdout_split"
        elif not fault and first is not None:
            sizes = [[len(v) for v in each.scores[score].values()] for each in (model, first)]
            if sizes[0] != sizes[1]:
                fault = f"{sizes[0]} forget and holdout questions, {sizes[1]} in {first.label}"
        if fault:
            faults.setdefault(model, fault)
    return faults


def _other_prompt(model: Model, other: Model) -> str:
    """Return where two prompts differ; empty if they agree, or one of them is unknown."""
    for key in {**model.template, **other.template} if model.template else ():
        mine, theirs = model.template.get(key), other.template.get(key)
        if mine != theirs:
            return f"another prompt template: {key} is {mine!r}, {theirs!r} in {other.label}"
    return ""


def find_limits(group: Group) -> Iterator[str]:
    """Yield what was left out of a group, and what limits its answer."""
    refused: dict[str, list[str]] = {}
    for model in group.models:
        if model.outcome is Outcome.NOT_JUDGED and model.reason != IS_ANCHOR:
            refused.setdefault(model.reason, []).append(model.label)
    yield from (f"{', '.join(who)}: not judged: {reason}" for reason, who in refused.items())
    usable = [m for m in group.models if m.p_below is not None or m.reason == IS_ANCHOR]
    if usable and not any(model.role is Role.RETRAINED for model in usable):
        yield "no log of a retrained model: damage cannot be judged"
    if any(not model.anchor for model in usable):
        yield "raw scores, anchored to no log: difficulty may differ, over-forgetting is not seen"
    if left_out := sum(model.left_out for model in group.models):
        yield f"{left_out} scores of questions are not finite and were left out pairwise"


def _screen(model: Model, usable: Sequence[Model], anchor: str | None) -> Model:
    """Return a model with its tests and its distances from the retrained model."""
    retrained = [other for other in usable if other.role is Role.RETRAINED]
    kinds = {"pretrained": [other for other in usable if other.role is PRETRAINED]}
    kinds |= {"retrained": retrained, "raw": []}
    anchors = kinds[anchor] if anchor else kinds["pretrained"] or retrained
    shifts = _measure_shifts(model, _average([other for other in retrained if other is not model]))
    role = anchors[0].role if anchors else None
    model = replace(model, anchor=role, shifts=shifts, reason=IS_ANCHOR)
    others = [other for other in anchors if other.path != model.path]
    if anchors and not others:
        return model
    average = _average(others)
    deltas = [model.sets[key] - average.get(key, 0.0) for key in ("forget", "holdout")]
    forget, holdout = (delta[np.isfinite(delta)] for delta in deltas)
    left_out = sum(map(len, deltas)) - len(forget) - len(holdout)
    if min(len(forget), len(holdout)) < FEWEST:
        reason = f"fewer than {FEWEST} forget or holdout scores are finite"
        return replace(model, reason=reason, left_out=left_out)
    below, above = (rank_test(*pair, 0) for pair in ((forget, holdout), (holdout, forget)))
    return replace(
        model,
        p_below=below.p_value,
        p_above=above.p_value if anchors else None,
        median_forget=median(forget),
        median_holdout=median(holdout),
        left_out=left_out,
    )


def _average(models: Sequence[Model]) -> dict[str, Values]:
    """Return the mean over models, question by question, of every set that all of them have."""
    sets = [model.sets for model in models]
    shared = [k for k in (sets[0] if sets else ()) if len({len(s.get(k, ())) for s in sets}) == 1]
    return {key: np.mean([entry[key] for entry in sets], axis=0) for key in shared}


def _measure_shifts(model: Model, reference: Mapping[str, Values]) -> dict[str, float]:
    shifts = {}
    for key, theirs in reference.items():
        spread = 1.4826 * median(np.abs(theirs - median(theirs)))
        if spread > 0 and len(model.sets.get(key, ())) == len(theirs):
            shifts[key] = median(model.sets[key] - theirs) / spread
    return {key: shift for key, shift in shifts.items() if np.isfinite(shift)}


def _decide(model: Model, too_low: bool, too_high: bool, tests: int) -> Model:
    """Return a screened model with its outcome and the reason in a sentence; ``tests`` were
    corrected for."""
    if model.p_below is None:
        return model
    moved = [(abs(shift), key) for key, shift in model.shifts.items() if key != "forget"]
    largest, key = max(moved, default=(0.0, ""))
    below = f"unadjusted p = {model.p_below:.2g}"
    above = "" if model.p_above is None else f"unadjusted p = {model.p_above:.2g}"
    if too_low:
        outcome = Outcome.STILL_KNOWS
        reason = f"forget questions are better known than never-taught ones ({below})"
    elif too_high:
        outcome = Outcome.OVER_FORGOTTEN
        reason = f"forget questions are less known than never-taught ones ({above})"
    else:
        outcome = Outcome.DAMAGED if largest > DAMAGE else Outcome.NOT_TOLD_APART
        sides = f"{below} below" + (f", {model.p_above:.2g} above" if above else "")
        reason = (
            "forget and never-taught questions do not differ significantly after Holm correction "
            f"over {tests} tests ({sides})"
        )
    if key:
        reason += f"; {key} questions lie {largest:.2g} spreads from the retrained model"
    return replace(model, outcome=outcome, reason=reason)


def _compare_with_retrainings(models: list[Model]) -> list[Model]:
    """Return the models with p-values against their retrainings, where there are five or more.

    Axes are the medians, not anchored, of every set that a model shares with the retrainings.
    """
    retrained = [m for m in models if m.role is Role.RETRAINED and m.p_below is not None]
    if len(retrained) < MINIMUM:
        return models
    compared = []
    for model in models:
        if model.p_below is not None and model.role is not Role.RETRAINED:
            bag = [model, *retrained]
            keys = _average(bag)
            rows = np.array([[median(entry.sets[key]) for key in keys] for entry in bag])
            p = p_value(rows[0], rows[1:], which_test(len(retrained), ALPHA))[1]
            reason = f"{model.reason}; p = {float(p):.2g} against {len(retrained)} retrainings"
            model = replace(model, retraining_p=float(p), reason=reason)
        compared.append(model)
    return compared
