"""The measures of a model: from its outputs, its states, gradients and weights, and after changes.

Every change of the weights is undone exactly, so that what is measured afterwards does not depend
on which criteria were asked for. ``PASSES`` lists which measures are taken together.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from palimpsest.facts.questions import ASKED, TRAINED_POOLS
from palimpsest.models.fast import Forward, Scored, StackedNet, watched
from palimpsest.models.net import Batch, Net
from palimpsest.models.train import TextBatch, text_loss, train
from palimpsest.scoring.measures import MeasuredCell
from palimpsest_trials.criteria import MEASURES
from palimpsest_trials.criteria import likelihood as like
from palimpsest_trials.criteria import whitebox as white
from palimpsest_trials.criteria.cache import CriteriaCache, Values
from palimpsest_trials.criteria.questionnaire import Floats, Ints, Questionnaire, Tokens

ALPHAS = (0.25, 0.5, 0.75)
"""Points between a model and the injected one at which the barrier is looked for."""
RELEARN_STEPS, UNRELATED_STEPS, ITEMS = 10, 8, 4


# -- from one pass over all questions --------------------------------------------------------------


def from_tokens(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return what token probabilities say of each member."""
    return [_of_tokens(cache, tokens) for tokens in cache.questionnaire.read(net)]


def _of_tokens(cache: CriteriaCache, mine: Tokens) -> Values:
    questionnaire, owners, reference = (
        cache.questionnaire,
        cache.questionnaire.owners,
        cache.reference,
    )
    nll, base, theirs = (cache.nll(tokens) for tokens in (mine, cache.base, reference))
    trained, held = questionnaire.where(*TRAINED_POOLS), questionnaire.where("evaluation")
    probes = questionnaire.where(*TRAINED_POOLS, of=("probe",))
    wrong, other = (
        some[questionnaire.where("distractor")].reshape(len(held), -1) for some in (nll, theirs)
    )
    right, others = like.truth_ratios(nll[held], wrong)
    right_there, others_there = like.truth_ratios(theirs[held], other)
    quality = like.forget_quality(others / right, others_there / right_there)
    counts = np.array(questionnaire.sheet.tokens, np.float64)
    # Tokens stand in the order of their questions.
    hits = np.split(mine.hit, np.cumsum(questionnaire.sheet.tokens)[:-1])
    asked = np.isin(owners, questionnaire.where("evaluation", of=("forget", "probe")))
    on_forget = np.isin(owners, held)

    def attack(scores: Callable[[Ints], Floats]) -> float:
        return like.auc(scores(trained), scores(probes))

    def lowest(scores: Floats, share: float) -> float:
        items = np.split(scores, np.cumsum(questionnaire.sheet.tokens)[:-1])
        return attack(lambda some: like.min_k_scores([items[n] for n in some], share))

    texts = [question.answer for question in questionnaire.questions]
    prefixed = [questionnaire.where("prefixed", of=(name,)) for name in ("forget", "probe")]
    plain = [_cloze_of(questionnaire, some) for some in prefixed]
    recall = [like.recall_scores(nll[a], nll[b]) for a, b in zip(prefixed, plain)]
    standard = like.standardize(mine.logp, -mine.entropy, mine.variance)
    forget = questionnaire.kept_forget
    values = {
        "probability": like.probability(nll[trained]),
        "perplexity": -float(nll[trained].mean()),
        "paraphrase_probability": like.probability(nll[held]),
        "truth_ratio": -like.truth_ratio(nll[held], wrong),
        "truth_knowledge": like.truth_knowledge(nll[held], wrong),
        "forget_quality": -math.log(max(quality, 1e-300)),
        "exact_memorisation": like.exact_memorization([hits[n] for n in trained]),
        "extraction_strength": like.extraction_strength([hits[n] for n in trained]),
        "multiple_choice": like.multiple_choice(nll[held], wrong),
        "entropy": abs(float(mine.entropy[on_forget].mean() - reference.entropy[on_forget].mean())),
        "calibration_error": like.calibration_error(mine.top[asked], mine.hit[asked]),
        "min_rank": -math.log(_min_rank(questionnaire, nll - base)),
        "leak_at_k": like.leak_at_k((nll * counts)[held]),
        "mia_loss": attack(lambda some: -nll[some]),
        "mia_zlib": attack(lambda some: like.zlib_scores(nll[some], [texts[n] for n in some])),
        "mia_min_k": lowest(mine.logp, 0.2),
        "mia_min_k_plus": lowest(standard, 0.2),
        "mia_reference": attack(lambda some: base[some] - nll[some]),
        "mia_recall": like.auc(*recall),
        "privleak": abs(like.privleak(lowest(mine.logp, 0.4), lowest(reference.logp, 0.4))),
        "heldout_js": float(white.jensen_shannon(mine.kept, reference.kept).mean()),
        "heldout_tv": float(white.total_variation(mine.kept, reference.kept).mean()),
        "zrf": -white.zero_retrain_forgetting(mine.kept[forget], cache.random.kept[forget]),
    }
    # A cell measures the reversed question itself: it is an axis of the certificate.
    kinds = [kind for kind in ASKED if kind != "reversed"]
    elicited = {kind: -float(nll[questionnaire.where(kind)].mean()) for kind in kinds}
    return values | elicited | {"worst_question": max(elicited.values())}


def _cloze_of(questionnaire: Questionnaire, prefixed: Ints) -> list[int]:
    """Return the cloze questions of the facts that these prefixed questions ask for."""
    asked = questionnaire.where("cloze", of=("forget", "probe"))
    cloze = {questionnaire.questions[n].fact: int(n) for n in asked}
    return [cloze[questionnaire.questions[n].fact] for n in prefixed]


def _min_rank(questionnaire: Questionnaire, deltas: Floats) -> float:
    """Return the p-value of the min-rank screen on the phrasings that further probes have too."""

    def by_fact(*sets: str) -> Floats:
        of: dict[str, list[float]] = {}
        for n in questionnaire.where("evaluation", of=sets):
            if questionnaire.questions[n].template < 2:
                of.setdefault(questionnaire.questions[n].fact, []).append(float(deltas[n]))
        return np.array([np.mean(some) for some in of.values()])

    return like.min_rank_p(by_fact("forget"), by_fact("probe", "further"))


# -- from states, gradients and weights ------------------------------------------------------------


def read_lens(forward: Forward, params: Mapping[str, Tensor], values: Tensor) -> Tensor:
    """Return [37, 38] log-probabilities (stack, layers, scored, vocabulary) of states (…, width)
    read through the last norm and head of ``params``."""
    flat = values.flatten(1, 2)
    logits = forward.read_out(params, flat)
    return torch.log_softmax(logits, -1).unflatten(1, values.shape[1:3])


@torch.no_grad()
def patch_layer(net: Net, batch: Batch, layer: int, states: Tensor) -> Tensor:
    """Return [39] the logits when the states (stack, scored, width) of one layer are overwritten at
    the scored positions."""

    def overwrite(at: int, value: Tensor, scored: Scored) -> Tensor:
        if at != layer:
            return value
        return states if scored is None else value.index_copy(1, scored, states)

    with watched(overwrite):
        return net.logits(batch)


@torch.no_grad()
def ablate_direction(net: Net, batch: Batch, directions: Tensor) -> Tensor:
    """Return [57] the logits when a direction is projected out behind every layer.

    directions: (stack, layers, width), of length one or zero.
    """

    def project(at: int, value: Tensor, scored: Scored) -> Tensor:
        direction = directions[:, at].unsqueeze(-1)
        return value - (value @ direction) @ direction.mT

    with watched(project):
        return net.logits(batch)


@torch.no_grad()
def from_states(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return what the states behind each layer say of each member."""
    injected, batch = cache.injected, cache.heldout
    found = cache.inner_states(net, cache.questionnaire.heldout)
    own = cache.weights(net)
    forward = Forward(net.config) if isinstance(net, StackedNet) else cache.forward
    through_own = read_lens(forward, own, found) if own else None
    near, far = (cache.frozen_states[name] for name in ("injected", "reference"))
    # Every layer's state read through the injected model's norm and head.
    shared = {name: value.expand(1, *value.shape[1:]) for name, value in injected.params.items()}

    def read(values: Tensor) -> Floats:
        flat = values.flatten(0, 1).unsqueeze(0)
        means = cache.answer_means(read_lens(cache.forward, shared, flat)[0])
        return means.reshape(values.shape[:2])

    at_injected, at_reference = read(torch.stack([near, far]))
    mine = read(found)
    whole = cache.answer_means(torch.log_softmax(injected.logits(batch), -1))[0]

    def patch(states: Tensor) -> Floats:
        """Return the fall of the injected model's answers, (layers,), when patched with these."""
        falls = []
        for layer, values in enumerate(states):
            logits = patch_layer(injected, batch, layer, values.unsqueeze(0))
            falls.append(whole - cache.answer_means(torch.log_softmax(logits, -1))[0])
        return np.array(falls)

    fall_reference = patch(far)
    gap = [1 - white.linear_cka(a, b) for a, b in zip(near, far)]
    values = []
    for member, states in enumerate(found):
        closed = [white.linear_cka(a, b) - (1 - g) for a, b, g in zip(states, far, gap)]
        shifts = [white.component_shift(a, b) for a, b in zip(states, far)]
        lens = white.closed_share(at_injected - at_reference, at_injected - mine[member])
        some: Values = {
            "lens_depth": 1 - lens,
            "uds": 1 - white.closed_share(fall_reference, patch(states)),
            "cka": 1 - white.closed_share(gap, closed, 0.0),
            "pca_similarity": 1 - float(np.mean([similar for similar, _ in shifts])),
            "pca_shift": float(np.mean([moved for _, moved in shifts])),
        }
        if through_own is not None:
            logp = through_own[member]
            right = (logp.argmax(-1) == batch.targets).double().mean(-1)
            some["lens_accuracy"] = float(right.max())
            some["lens_best"] = float(cache.answer_means(logp).max())
        values.append(some)
    return values


def from_probe(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return how much better than in the reference a probe finds what is true."""
    return [{"linear_probe": value - cache.reference_probe} for value in cache.probe(net)]


def from_ablation(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return how far the forget answers come back without the direction away from injected."""
    found = cache.inner_states(net, cache.questionnaire.heldout)
    away = cache.frozen_states["injected"].mean(1) - found.mean(2)
    length = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    unit = torch.where(length > 1e-6, away / length.clamp(min=1e-6), 0.0)
    after = cache.heldout_nll(net, ablate_direction(net, cache.heldout, unit))
    falls = (cache.heldout_nll(net) - after).mean(1)
    return [{"direction_ablation": float(fall)} for fall in falls]


def from_gradients(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return what gradients of single answers say of each member."""
    norms, squares = cache.gradients(net)
    fisher = cache.frozen_fisher
    values: list[Values] = [
        {"mia_gradnorm": like.auc(-mine, -others)}
        for mine, others in zip(norms["forget"], norms["probe"])
    ]
    for some, own in zip(values, squares):
        closed = white.masked_fisher(own, fisher["reference"], fisher["injected"])
        some["masked_fisher"] = 1 - closed
    return values


def from_weights(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return where the weights lie between those of the injected model and the reference."""
    weights = cache.weights(net)
    if not weights:
        return [{} for _ in range(net.stack)]
    injected, reference = (
        {name: cache.state(model)[name] for name in weights} for model in ("injected", "reference")
    )
    unit = white.weight_distance(reference, injected)
    values = []
    for member in range(net.stack):
        mine = {name: value[member] for name, value in weights.items()}
        moved = [mine[name] - injected[name] for name in injected if injected[name].dim() == 2]
        values.append(
            {
                "distance_injected": -white.weight_distance(mine, injected) / unit,
                "distance_reference": white.weight_distance(mine, reference) / unit,
                "update_rank": -float(np.mean([white.stable_rank(change) for change in moved])),
            }
        )
    return values


# -- after the weights were mixed, rounded or trained ----------------------------------------------


@contextmanager
def restoring(net: Net) -> Iterator[Mapping[str, Tensor]]:
    """Yield the parameters of a net as they are now, and write them back in the end."""
    kept = {name: value.detach().clone() for name, value in net.params.items()}
    try:
        yield kept
    finally:
        write_weights(net, kept)


@torch.no_grad()
def write_weights(net: Net, weights: Mapping[str, Tensor]) -> None:
    """Write weights, under the names of ``net.params``, into a net."""
    for name, value in weights.items():
        net.params[name].copy_(value)


def from_barrier(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return [47] how little the forget loss rises on the way to the injected model."""
    own = cache.plain_names(net)
    if not own:
        return [{} for _ in range(net.stack)]
    start = cache.heldout_nll(net).mean(1)
    end = float(cache.heldout_nll(cache.injected).mean())
    ends = {inner: cache.injected.params[name].detach() for name, inner in own.items()}
    rises = []
    with restoring(net) as mine:
        for alpha in ALPHAS:
            mixed = {
                name: torch.lerp(mine[name], value.expand_as(mine[name]), alpha)
                for name, value in ends.items()
            }
            write_weights(net, mixed)
            rises.append(cache.heldout_nll(net).mean(1) - (1 - alpha) * start - alpha * end)
    return [{"barrier": -float(rise)} for rise in np.max(rises, axis=0)]


def from_rounding(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return [55] how far the forget answers come back in 8 and 4 bits; vectors are not rounded."""
    before = cache.heldout_nll(net).mean(1)
    falls: dict[str, Floats] = {}
    for bits in (8, 4):
        with restoring(net) as mine:
            matrices = {name: value for name, value in mine.items() if value.dim() > 2}
            write_weights(
                net, {name: white.quantize(value, bits) for name, value in matrices.items()}
            )
            falls[f"bits_{bits}"] = before - cache.heldout_nll(net).mean(1)
    return [{name: float(fall[n]) for name, fall in falls.items()} for n in range(net.stack)]


def from_folds(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return [51] how well each half of the forget facts is known after training on the other."""
    questionnaire = cache.questionnaire
    facts = [fact.id for fact in cache.cell.facts.forget]
    if len(facts) < 2:
        return [{} for _ in range(net.stack)]
    asked = [questionnaire.questions[n].fact for n in questionnaire.where("evaluation")]
    known = np.zeros((2, net.stack))
    for fold in range(2):
        taught = facts[fold::2]
        others = np.array([fact not in taught for fact in asked])
        nll = _after_training(cache, net, questionnaire.lessons(taught, RELEARN_STEPS, ITEMS))
        known[fold] = -nll[:, others].mean(1)
    return [{"relearn_others": float(value)} for value in known.mean(0)]


def from_prose(cache: CriteriaCache, net: Net) -> list[Values]:
    """Return [53] how far the forget answers come back when training on general text."""
    before = cache.heldout_nll(net).mean(1)
    nll = _after_training(cache, net, cache.questionnaire.prose(UNRELATED_STEPS, ITEMS))
    return [{"unrelated_tuning": float(fall)} for fall in before - nll.mean(1)]


def _after_training(cache: CriteriaCache, net: Net, steps: list[list[TextBatch]]) -> Floats:
    """Return the held-out NLL (stack, questions) after training; NaN where a member diverged."""
    with restoring(net):
        diverged = train(net, steps, text_loss, learning_rate=cache.cell.learning_rate)
        nll = cache.heldout_nll(net)
    nll[list(diverged)] = math.nan
    return nll


# -- which measures are taken together -------------------------------------------------------------


Take = Callable[[CriteriaCache, Net], list[Values]]
STATES = ("lens_accuracy", "lens_best", "lens_depth", "uds", "cka", "pca_similarity", "pca_shift")
OTHERS: tuple[tuple[Take, tuple[str, ...]], ...] = (
    (from_states, STATES),
    (from_probe, ("linear_probe",)),
    (from_ablation, ("direction_ablation",)),
    (from_gradients, ("mia_gradnorm", "masked_fisher")),
    (from_weights, ("distance_injected", "distance_reference", "update_rank")),
    (from_barrier, ("barrier",)),
    (from_rounding, ("bits_8", "bits_4")),
    (from_folds, ("relearn_others",)),
    (from_prose, ("unrelated_tuning",)),
)
FROM_TOKENS = tuple(name for name in MEASURES if not any(name in some for _, some in OTHERS))
PASSES = ((from_tokens, FROM_TOKENS), *OTHERS)
"""Every pass over a model with the measures that it takes, in their order."""


class Criteria:
    """Takes every measure that a published criterion needs, of pocket-sized models."""

    passes: Sequence[tuple[Take, tuple[str, ...]]] = PASSES

    def __init__(self, cell: MeasuredCell) -> None:
        self.cache = CriteriaCache(Questionnaire(cell))

    def __call__(self, net: Net) -> list[Values]:
        """Return the measures of every member of a net, whose weights are as before at the end."""
        values: list[Values] = [{} for _ in range(net.stack)]
        for take, _ in self.passes:
            for mine, more in zip(values, take(self.cache, net)):
                mine |= more
        return values


class CheapCriteria(Criteria):
    """Takes those that token probabilities suffice for, of models of any size."""

    passes = PASSES[:1]
