"""What evaluation logs show: the base-anchored screen on both sides, and the damage beside it.

A *run* is one training; its last log is judged, its other checkpoints are shown as a path and are
no reference for anything. Models are compared within one split of one base model (``screening`` has
the test). P-values are Holm-adjusted over both sides of the last logs of all candidates of a group,
those of a path over the path, those of a full or retrained model over its own two sides.

The *anchor*, whose scores are subtracted, is the log of the pretrained model, else the mean of the
retrained models'. A retrained model is no reference if it *still knows*, or if its log equals that
of another model.

A candidate is *damaged* if, on questions that unlearning should leave alone (holdout, retain, real
authors, world facts), its median difference from the retrained models exceeds a limit that the
logs at hand give: twice that of the full model, which differs from them in the forget data alone,
and of each retrained model from the others, and at least ``DAMAGE``. Differences are in spreads,
1.4826 MAD of the retrained models' scores over the questions. Without a full or a second retrained
model there are levels and no word. A test against one retraining would not do: with hundreds of
questions it rejects a second retraining too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from palimpsest.errors import InputError, PlanError, ScoreError
from palimpsest.openunlearning.models import Group, LogReport, Model, Outcome, Role, Values, median
from palimpsest.openunlearning.naming import Identity, parse_name
from palimpsest.openunlearning.reading import (
    NO_BASE,
    NO_ROLE,
    SCORES,
    Given,
    find_logs,
    read_log,
)
from palimpsest.openunlearning.samples import CHOICE, read_samples
from palimpsest.openunlearning.screening import FEWEST, screen
from palimpsest.stats.comparison import p_value, which_test
from palimpsest.stats.multiplicity import holm
from palimpsest.stats.rules import MINIMUM_REFERENCES, Rules
from palimpsest.text import shown

ALPHA, MINIMUM = Rules.alpha, MINIMUM_REFERENCES
ANCHORS = ("pretrained", "retrained", "raw")
DAMAGE = 0.15
"""Smallest limit of damage: published full and retrained models of 1B and 3B differ by 0.10."""
WORDS = {
    Outcome.STILL_KNOWS: "forget questions are better known than never-taught ones",
    Outcome.OVER_FORGOTTEN: "forget questions are less known than never-taught ones",
    Outcome.NOT_TOLD_APART: "no significant difference of forget and never-taught questions",
}
DAMAGED = {
    Outcome.STILL_KNOWS: Outcome.STILL_KNOWS_DAMAGED,
    Outcome.OVER_FORGOTTEN: Outcome.OVER_FORGOTTEN_DAMAGED,
    Outcome.NOT_TOLD_APART: Outcome.DAMAGED,
}


def logs(
    paths: Path | str | Iterable[Path | str],
    *,
    roles: Mapping[str, str] | None = None,
    bases: Mapping[str, str] | None = None,
    score: str | None = None,
    anchor: str | None = None,
    forget_task: str = "",
    holdout_task: str = "",
) -> LogReport:
    """Return what the evaluation logs in these folders and files show; weights are not needed.

    roles: pretrained, retrained, full or candidate by name of the run folder, or a pattern of names
        (``official_*``), instead of what names and configurations say.
    bases: base models, likewise.
    score: mia_min_k, mia_loss or mia_zlib; by default the first that most logs of a group have.
    anchor: pretrained, retrained or raw; by default the first of them that a group has.
    forget_task, holdout_task: tasks (or patterns) of lm-evaluation-harness; its samples are read
        instead of OpenUnlearning's logs.

    ::

        report = palimpsest.logs("saves", roles={"retain*": "retrained"})
        [(model.name, model.outcome) for group in report.groups for model in group.models]
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    if not isinstance(paths, Iterable):
        raise PlanError(f"expected folders or files, got {shown(paths)}", key="paths")
    if score not in (None, *SCORES):
        raise PlanError(f"{score!r} found; expected one of {', '.join(SCORES)}", key="score")
    if anchor not in (None, *ANCHORS):
        raise PlanError(f"{anchor!r} found; expected one of {', '.join(ANCHORS)}", key="anchor")
    given = Given(roles or {}, bases or {})
    if unknown := set(given.roles.values()) - set(Role):
        raise PlanError(f"{unknown} found; expected some of {', '.join(Role)}", key="role")
    broken = list[str]()
    if forget_task or holdout_task:
        models, remarks = read_samples(paths, forget_task, holdout_task, given)
    else:
        models, configs = list[Model](), dict[Path, Identity]()
        files, remarks = find_logs(paths)
        for path in files:
            try:
                models.append(read_log(path, given, configs))
            except InputError as error:
                broken.append(str(error))
    if not models:
        raise InputError("no log could be read: " + "; ".join(broken + remarks))
    given.check({model.name for model in models})
    models.sort(key=lambda model: (model.group, model.position, model.path))
    groups = [
        judge_group(part, logs, score, anchor)
        for title, members in groupby(models, lambda model: model.group)
        for part, logs in _split_collections(title, list(members))
    ]
    if anchor == "pretrained" and not any(m.screen for group in groups for m in group.models):
        raise PlanError("no log of a pretrained model found; omit it, or give one", key="anchor")
    return LogReport(tuple(groups), (*broken, *find_limits(groups), *remarks))


def _split_collections(title: str, models: list[Model]) -> Iterator[tuple[str, list[Model]]]:
    """Yield models that may be compared: if two ``saves`` have a log of one model, each alone."""
    folders: dict[Path, list[Model]] = {}
    for model in models:
        saves = [folder for folder in model.path.parents if folder.name == "saves"]
        folders.setdefault(saves[0] if saves else Path(), []).append(model)
    if len(folders) == 1 or len({model.position for model in models}) == len(models):
        yield title, models
    else:
        for folder, members in folders.items():
            yield f"{title}, {folder.parent.name}/{folder.name}", members


def judge_group(
    title: str, models: list[Model], score: str | None = None, anchor: str | None = None
) -> Group:
    """Return the models of one split of one base model with their outcomes."""
    sound = [model for model in models if not model.reason]
    score = score or max((*SCORES, CHOICE), key=lambda name: sum(name in m.scores for m in sound))
    faults = _find_faults(sound, score)
    models = [replace(m, score=score, reason=m.reason or faults.get(m, "")) for m in models]
    copies = _find_copies([model for model in models if not model.reason])
    models = [replace(m, reason=copies.get(m, m.reason)) for m in models]
    ends = dict[tuple[Role | None, str], Model]()
    for model in models:  # in the order of their checkpoints; a second log is not a later one
        end = ends.setdefault((model.role, model.name), model)
        if model.position != end.position:
            ends[model.role, model.name] = model
    models = [replace(m, last=m is ends[m.role, m.name]) for m in models]
    judged = _judge_usable([model for model in models if not model.reason], anchor)
    judged += [model for model in models if model.reason]
    return Group(title, tuple(sorted(judged, key=lambda model: (model.position, model.path))))


# -- which logs can be compared --------------------------------------------------------------------


def _find_faults(sound: Sequence[Model], score: str) -> dict[Model, str]:
    """Return why a log must not be compared with the others of its group, by model."""
    faults: dict[Model, str] = {}
    told = [model for model in sound if model.template]
    references = [model for model in told if model.role in (Role.PRETRAINED, Role.RETRAINED)]
    # Without a reference's configuration, nothing says which of two prompts the references had.
    unlike = (model for model in told if model.template != told[0].template)
    standards = references[:1] or [*told[:1], *islice(unlike, 1)]
    first = next((model for model in sound if score in model.scores), None)
    before: dict[tuple[int, str, float], Model] = {}
    for model in sound:
        fault = next((text for other in standards if (text := _other_prompt(model, other))), "")
        if not fault and score not in model.scores:
            fault = f"no {score} of forget and holdout questions, which most logs of its split have"
        elif not fault and first is not None:
            sizes = [[len(v) for v in each.scores[score].values()] for each in (model, first)]
            other = before.setdefault(model.position, model)
            if sizes[0] != sizes[1]:
                fault = f"{sizes[0]} forget and holdout questions, {sizes[1]} in {first.label}"
            elif not all(np.isfinite(v).any() for v in model.scores[score].values()):
                fault = f"no {score} is a finite number: the model has collapsed"
            elif other is not model:
                fault = f"a second log of one model; used is {other.path}"
        if fault:
            faults[model] = fault
    return faults


def _other_prompt(model: Model, other: Model) -> str:
    """Return where two prompts differ; empty if they agree, or one of them is unknown."""
    for key in {**model.template, **other.template} if model.template else ():
        mine, theirs = model.template.get(key), other.template.get(key)
        if mine != theirs:
            return f"another prompt: {key} is {mine!r}, {theirs!r} in {other.label}"
    return ""


def _find_copies(sound: Sequence[Model]) -> dict[Model, str]:
    """Return which logs have the scores of a model in an earlier role, or of an earlier run."""
    copies: dict[Model, str] = {}
    first: dict[bytes, Model] = {}
    for model in sound:
        content = b"".join(values.tobytes() for values in model.sets.values())
        other = first.setdefault(content, model)
        if (other.role, other.name) == (model.role, model.name):
            continue  # the end of a run beside its last checkpoint
        if model.checkpoint != 0 or other.role is not model.role:  # runs begin with one model
            copies[model] = (
                f"a copy of {_whole_name(other)} ({other.role}): all scores are the same"
            )
    return copies


# -- judgement -------------------------------------------------------------------------------------


class Mean:
    """The mean over models, question by question, of every set that all of them have."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.paths = {model.path: model.role for model in models}
        sets = [model.sets for model in models]
        shared = [k for k in sets[0] if len({len(s.get(k, ())) for s in sets}) == 1] if sets else []
        self.sums = {key: np.sum([entry[key] for entry in sets], axis=0) for key in shared}

    def logs(self, model: Model) -> tuple[Path, ...]:
        """Return the logs that a model is compared with: all but its own."""
        every = tuple(self.paths)
        return tuple(p for p in every if p != model.path) if model.path in self.paths else every

    def beside(self, model: Model) -> dict[str, Values]:
        """Return the mean without the model itself; empty if nothing is left."""
        own = model.path in self.paths
        count, sets = len(self.paths) - own, model.sets if own else {}
        return {k: (v - sets.get(k, 0.0)) / count for k, v in self.sums.items()} if count else {}


def _judge_usable(usable: list[Model], anchor: str | None) -> list[Model]:
    """Return models that can be compared with their outcomes."""
    # A log made on purpose before the evaluation at the start of a run.
    ends = sorted((m for m in usable if m.last), key=lambda m: m.checkpoint is not None)
    pretrained = [model for model in ends if model.role is Role.PRETRAINED][:1]
    retrained = [model for model in ends if model.role is Role.RETRAINED]
    anchors = {"pretrained": pretrained, "retrained": retrained, "raw": []}
    if anchor in ("pretrained", "retrained") and not anchors[anchor]:
        return [replace(model, reason=f"no log of a {anchor} model") for model in usable]
    base = Mean(anchors[anchor] if anchor else pretrained or retrained)
    families: dict[tuple[str, ...], list[Model]] = {}
    for model in (_screen(model, base) for model in usable):
        alone = ("last" if model.last else "path", model.role or "", model.name)
        together = model.last and model.role is Role.CANDIDATE
        families.setdefault(("candidates",) if together else alone, []).append(model)
    tested = [model for family in families.values() for model in _adjust(family)]
    sound = [m for m in tested if m.outcome not in (Outcome.STILL_KNOWS, Outcome.NOT_JUDGED)]
    references = Mean([model for model in sound if model.last and model.role is Role.RETRAINED])
    shifted = [
        replace(m, shifts=_measure_shifts(m, references), reference_logs=references.logs(m))
        for m in tested
    ]
    full = [model.path for model in ends if model.role is Role.FULL][:1]
    limits = dict[str, float]()
    for model in shifted:
        if model.path in {*full, *references.paths}:
            for key, shift in model.shifts.items():
                limits[key] = max(DAMAGE, 2 * abs(shift), limits.get(key, 0.0))
    judged = [_conclude(model, limits) for model in shifted]
    return _compare_with_retrainings(judged, [m for m in judged if m.path in references.paths])


def _screen(model: Model, base: Mean) -> Model:
    """Return a model with its screen against an anchor."""
    role = next(iter(base.paths.values()), None)
    model = replace(model, anchor=role, anchor_logs=base.logs(model))
    average = base.beside(model)
    if role and not average:
        return replace(model, outcome=Outcome.ANCHOR, reason="the others are anchored to it")
    own = model.scores[model.score]
    try:
        found = screen(own["forget"], own["holdout"], average.get("forget"), average.get("holdout"))
    except ScoreError:  # no question has a finite score in both logs
        found = None
    if found is None or min(found.forget, found.holdout) < FEWEST:
        return replace(model, reason=f"fewer than {FEWEST} forget or holdout scores are finite")
    return replace(model, screen=found)


def _adjust(family: list[Model]) -> list[Model]:
    """Return the models of a family with adjusted p-values and what the screen says."""
    sides = [p for m in family for p in (m.p_below, m.p_above) if p is not None]
    adjusted = iter(holm(sides, ALPHA).adjusted if sides else ())
    judged = []
    for model in family:
        if model.screen is not None:
            below = next(adjusted)
            above = None if model.p_above is None else next(adjusted)
            outcome = Outcome.STILL_KNOWS if below <= ALPHA else Outcome.NOT_TOLD_APART
            outcome = Outcome.OVER_FORGOTTEN if above is not None and above <= ALPHA else outcome
            model = replace(model, outcome=outcome, adjusted_below=below, adjusted_above=above)
        judged.append(replace(model, family=len(sides)))
    return judged


def _measure_shifts(model: Model, references: Mean) -> dict[str, float]:
    shifts = {}
    for key, theirs in references.beside(model).items():
        spread = _spread(theirs)
        if spread > 0 and len(model.sets.get(key, ())) == len(theirs):
            shifts[key] = median(model.sets[key] - theirs) / spread
    return {key: shift for key, shift in shifts.items() if np.isfinite(shift)}


def _spread(values: Values) -> float:
    return 1.4826 * median(np.abs(values - median(values)))


def _conclude(model: Model, limits: Mapping[str, float]) -> Model:
    """Return a screened model with damage joined to its outcome, and the reason in a sentence."""
    if model.screen is None:
        return model
    sides = [("below", model.p_below, model.adjusted_below)]
    sides += [("above", model.p_above, model.adjusted_above)]
    tests = [
        f"p {side} {p:.2g}, adjusted {adjusted:.2g}" for side, p, adjusted in sides if p is not None
    ]
    of = f"over {model.family} tests" + ("" if model.last else " of this run's checkpoints")
    reason = f"{WORDS[model.outcome]} (AUC {model.screen.auc:.2f}, {', '.join(tests)} {of})"
    limits = limits if model.role is Role.CANDIDATE else {}
    moved = [(abs(shift), key) for key, shift in model.shifts.items() if key != "forget"]
    beyond = [(size, key) for size, key in moved if size > limits.get(key, np.inf)]
    if moved:
        size, key = max(beyond or moved)
        side = "worse" if model.shifts[key] > 0 else "better"
        limit = f" (limit {limits[key]:.2g})" if key in limits else ""
        reason += f"; {key} questions {size:.2g} spreads {side} than the retrained model's{limit}"
    return replace(
        model, outcome=DAMAGED[model.outcome] if beyond else model.outcome, reason=reason
    )


def _compare_with_retrainings(models: list[Model], retrained: list[Model]) -> list[Model]:
    """Return the models with p-values against their retrainings, where there are five or more.

    Axes are the medians, not anchored, of every set that a model shares with the retrainings.
    """
    if len(retrained) < MINIMUM:
        return models
    shared = Mean(retrained).sums
    bag = [{key: median(m.sets[key]) for key in shared} for m in retrained]
    compared = []
    for model in models:
        if model.screen and model.last and model.role is not Role.RETRAINED:
            own = {key: median(values) for key, values in model.sets.items() if key in bag[0]}
            others = np.array([[values[key] for key in own] for values in bag])
            test = which_test(len(bag), ALPHA)
            p = float(p_value(np.array(list(own.values())), others, test)[1])
            reason = f"{model.reason}; p = {p:.2g} against {len(bag)} retrainings"
            model = replace(model, retraining_p=p, reason=reason)
        compared.append(model)
    return compared


# -- what limits the answer ------------------------------------------------------------------------


def find_limits(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what was left out, and what limits the answers, once for all groups."""
    models = [model for group in groups for model in group.models]
    refused: dict[str, list[str]] = {}
    for model in models:
        if model.outcome is Outcome.NOT_JUDGED:
            refused.setdefault(model.reason, []).append(_whole_name(model))
    if unnamed := [model.name for model in models if model.base == NO_BASE]:
        hint = "say it with --base 'PATTERN=NAME'"
        yield f"base model unknown, compared as if of one; {hint}: {_listed(unnamed)}"
    for reason in sorted(refused, key=lambda r: (not r.startswith(NO_ROLE), len(refused[r]))):
        hint = "; say it with --role 'PATTERN=candidate'" if reason.startswith(NO_ROLE) else ""
        yield f"{len(refused[reason])} not judged, {reason}{hint}: {_listed(refused[reason])}"
    for model in models:
        if model.last and model.role is Role.RETRAINED and model.outcome is Outcome.STILL_KNOWS:
            yield f"{model.name}, although retrained, is no reference: {model.reason}"
    judged = [group for group in groups if any(model.screen for model in group.models)]
    for words, has in (
        ("no retrained model, so no word on damage", lambda m: m.reference_logs),
        ("no full model, so no word on damage", _is_scale),
        ("raw scores: difficulty may differ, over-forgetting is not seen", lambda m: m.anchor),
        ("anchored to retrained models", lambda m: m.anchor is not Role.RETRAINED),
    ):
        if titles := [group.title for group in judged if not any(map(has, group.models))]:
            yield f"{words}: {_listed(titles)}"
    for group in judged:
        retrained = [m.name for m in group.models if m.last and m.role is Role.RETRAINED]
        if len(recipes := {parse_name(name).recipe for name in retrained}) > 1:
            spread = "their spread is that of the recipe, which hides more"
            yield f"{group.title}: retrainings of {len(recipes)} recipes; {spread}"
    if left_out := sum(model.screen.left_out for model in models if model.screen):
        yield f"{left_out} scores of questions are not finite and were left out pairwise"
    if unchecked := sum(not model.template for model in models):
        share = f"{unchecked} of {len(models)} logs"
        yield f"no .hydra/config.yaml beside {share}: their prompts may differ unseen"


def _is_scale(model: Model) -> bool:
    """Return whether a model's distance from the retrained ones limits that of candidates."""
    retrained = model.role is Role.RETRAINED and model.shifts
    return model.last and bool(retrained or (model.role is Role.FULL and model.screen))


def _whole_name(model: Model) -> str:
    return model.name if model.checkpoint is None else f"{model.name}-{model.checkpoint}"


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
