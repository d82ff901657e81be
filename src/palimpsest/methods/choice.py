"""Choosing coefficient and share of replay without any reference.

Two things can be known without a retrained model:

- facts that were never learned: at the right coefficient the forget facts have moved as far from
  base as invented facts in the same phrasings have (the deltas meet);
- the injected model's own level on the retain facts, which a retraining would have too: replay has
  gone on long enough when the retain NLL is back there.

Only trained phrasings are used; the held-out ones are left to the audit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from palimpsest.methods.context import Context, Lesson, picked, teach
from palimpsest.methods.facts_vector import FactsVector, pair
from palimpsest.methods.recipe import Cost, known_recipe, recipe_batches, stream_cost
from palimpsest.methods.replay import Replay
from palimpsest.methods.task_vector import negated
from palimpsest.models.net import Encoded, Net
from palimpsest.models.train import TextBatch, text_loss, train

Floats = npt.NDArray[np.float64]
COEFFICIENTS = (0.8, 0.9, 1.0, 1.1)
MARKS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Shares at which replay is measured."""
LEAST = 0.1
"""Smallest share: in trials the trained phrasings of retain facts are back too early to tell."""


@dataclass(frozen=True)
class Choice:
    """The chosen knobs and what they were chosen by.

    deltas: (coefficient, median forget delta − median delta of invented facts), in nats.
    retain: (share, mean retain NLL); target: the injected model's.
    """

    method: Replay
    deltas: tuple[tuple[float, float], ...]
    retain: tuple[tuple[float, float], ...]
    target: float


def choose(context: Context, invented: Lesson) -> Choice:
    """Return replay from the facts vector with coefficient and share chosen for this model."""
    more, less = pair(context, 1.0)
    both = (*context.forget.texts, *invented.texts)
    border = len(context.forget.texts)
    base = nlls(context, context.net([context.base]), both)
    deltas = []
    for coefficient in COEFFICIENTS:
        state = negated(context.injected, coefficient, more, less)
        moved = nlls(context, context.net([state]), both) - base
        gap = float(np.median(moved[:border]) - np.median(moved[border:]))
        deltas.append((coefficient, gap))
    coefficient = round(crossing(deltas), 3)
    target = float(nlls(context, context.net([context.injected]), context.retain.texts).mean())
    retain = _replayed(context, FactsVector(coefficient), target)
    share = max(LEAST, round(crossing([(mark, target - nll) for mark, nll in retain]), 3))
    method = Replay("facts_vector", coefficient, share)
    return Choice(method, tuple(deltas), tuple(retain), target)


def crossing(points: Sequence[tuple[float, float]]) -> float:
    """Return where a rising line through the points first reaches zero, between the ends."""
    for (left, low), (right, high) in pairwise(points):
        if low >= 0:
            return left
        if high >= 0:
            return left + (right - left) * -low / (high - low)
    return points[-1][0]


def nlls(context: Context, net: Net, texts: Sequence[Encoded]) -> Floats:
    """Return the mean NLL of each text's answer tokens (texts,)."""
    context.shared.meter.add(Cost(scored=sum(len(text.ids) for text in texts)))
    answers = teach(net, texts, context.pad)
    return np.array(
        [
            -float(picked(logp, logp.new_tensor(text.ids[text.start :]).long()).mean())
            for text, logp in zip(texts, answers)
        ]
    )


def _replayed(context: Context, start: FactsVector, target: float) -> list[tuple[float, float]]:
    """Return the retain NLL along the replay, up to the first mark where it is the target's."""
    recipe = known_recipe(context)
    total = len(recipe.stream.steps)
    marks = {round(mark * total): mark for mark in reversed(MARKS)}
    part = replace(recipe.replay, steps=recipe.replay.steps[: max(marks)])
    batches = recipe_batches(context, part)
    net = context.net([start.run(context)])
    levels: list[tuple[float, float]] = []

    def measure(step: int) -> None:
        if step in marks:
            levels.append((marks[step], float(nlls(context, net, context.retain.texts).mean())))

    def until_there() -> Iterator[list[TextBatch]]:
        for batch in batches:
            if levels[-1][1] <= target:
                return
            yield batch

    measure(0)
    train(net, until_there(), text_loss, learning_rate=recipe.learning_rate, after_step=measure)
    taken = replace(part, steps=part.steps[: round(levels[-1][0] * total)])
    context.shared.meter.add(stream_cost(context.tokenizer, taken, recipe.piece_tokens))
    return levels
