"""A held vector whose coefficient is found on the candidate itself, without a reference.

    gap(c) = [loss(forget | θ_c) − loss(forget | base)] − [loss(new | θ_c) − loss(new | base)]

θ_c is the held vector with coefficient c, *new* are facts invented here that no model was taught.
A retraining has never seen either kind, so its gap is 0 but for noise. The loss is that of the
trained phrasings as they are (``match: level``), or its mean over a short training on them, which
is how fast they are learned (``match: speed``). The coefficient is where the gap crosses 0;
differences to base cancel what makes some facts harder than others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.optimize import brentq

from palimpsest.facts.nonce import RELATIONS, invent_facts
from palimpsest.facts.questions import TRAINED_POOLS, FactSet, fact_questions
from palimpsest.methods.answer_sets import Spent, count_tokens, read_logp, target_logp
from palimpsest.methods.context import Context, State
from palimpsest.methods.held_vector import HeldVector
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Encoded, collate
from palimpsest.models.train import text_batch, text_loss, train_alone

SMALLEST, LARGEST, CLOSE = 0.3, 2.5, 0.02
"""Between which coefficients the gap's zero is sought, and how closely."""
NEW_FACTS = 24
PHRASINGS = 3
SPEED_GROUPS = 2
"""Groups of new facts, each as large as the forget set, that are learned to measure speed."""
SPEED_STEPS = 6
SPEED_ITEMS = 4
SPEED_RATE = 0.5
"""Learning rate of that training, in units of the injection's."""


@dataclass(frozen=True)
class MatchedVector(HeldVector):
    match: Literal["level", "speed"] = "level"
    """What is made equal for forget facts and new ones: their level, or how fast they are learned
    again."""

    name = "matched_vector"
    reads_answers = True
    summary = "a held vector with the coefficient at which forget facts look like new ones"

    @property
    def label(self) -> str:
        return f"{self.match}-k{self.texts}-speed{self.speed}-b{self.blend:g}"

    def run(self, context: Context) -> State:
        noise = context.shared.once(f"held/noise/{self.sample}", partial(self._noise, context))
        key = f"held/{self.texts}/{self.speed}/{self.sample}"
        more, less = context.shared.once(key, partial(self._pair, context, noise))
        new = self._new_facts(context)
        base = self._gap(context, context.base, new)

        def without(coefficient: float) -> State:
            vector = replace(self, coefficient=coefficient)
            return {
                name: vector._restored(value, more[name].float(), less[name].float())
                if value.is_floating_point()
                else value
                for name, value in context.injected.items()
            }

        def gap(coefficient: float) -> float:
            return self._gap(context, without(coefficient), new) - base

        low, high = gap(SMALLEST), gap(LARGEST)
        if low * high < 0:
            chosen = brentq(gap, SMALLEST, LARGEST, xtol=CLOSE)
        else:  # the vector takes away too much, or too little, at every coefficient
            chosen = SMALLEST if low > 0 else LARGEST
        return without(chosen)

    def _new_facts(self, context: Context) -> list[list[Encoded]]:
        """Return texts of facts that nothing was taught, in groups as large as the forget set."""
        words = " ".join((*context.forget.prompts, *context.retain.prompts)).split()
        key = f"{context.seed_key}/matched"
        questions = [
            question
            for fact in invent_facts(NEW_FACTS, key, RELATIONS, frozenset(words))
            for question in fact_questions(FactSet.FORGET, fact, PHRASINGS)
            if question.pool in TRAINED_POOLS
        ]
        texts = encode_answers(context.tokenizer, questions)
        size = len(context.forget.texts)
        return [list(texts[n : n + size]) for n in range(0, len(texts) - size + 1, size)]

    def _gap(self, context: Context, state: State, new: Sequence[Sequence[Encoded]]) -> float:
        """Return the loss of forget texts minus that of new ones, on a model."""
        measure = self._level if self.match == "level" else self._speed
        groups = new if self.match == "level" else new[:SPEED_GROUPS]
        others = [measure(context, state, group) for group in groups]
        return measure(context, state, context.forget.texts) - float(np.mean(others))

    def _level(self, context: Context, state: State, texts: Sequence[Encoded]) -> float:
        context.shared.spend(Spent(scored=count_tokens(texts)))
        return _nll(context, state, texts)

    def _speed(self, context: Context, state: State, texts: Sequence[Encoded]) -> float:
        """Return the mean NLL before, in the middle of and after a short training on the texts."""
        recipe = context.known_recipe
        order = [texts[n % len(texts)] for n in range(SPEED_STEPS * SPEED_ITEMS)]
        values = [self._level(context, state, texts)]
        half = SPEED_STEPS // 2 * SPEED_ITEMS
        for part in (order[:half], order[half:]):
            net = context.net([state])
            steps = [
                [text_batch(part[n : n + SPEED_ITEMS], SPEED_ITEMS)]
                for n in range(0, len(part), SPEED_ITEMS)
            ]
            context.shared.spend(Spent(len(steps), count_tokens(part)))
            train_alone(
                net,
                steps,
                text_loss,
                "learning facts again",
                learning_rate=SPEED_RATE * recipe.learning_rate,
                key=context.seed_key,
            )
            state = {name: value.detach().clone() for name, value in net.state().items()}
            values.append(self._level(context, state, texts))
        return float(np.mean(values))


def _nll(context: Context, state: State, texts: Sequence[Encoded]) -> float:
    """Return the mean over texts of the mean NLL of their answer tokens."""
    net = context.net([state])
    batch = collate(texts)
    with torch.no_grad():
        logp = target_logp(read_logp(net, batch), batch.to(net.device).targets)
    parts = logp.cpu().split([text.scored for text in texts])
    return float(np.mean([-float(part.mean()) for part in parts]))
