"""What known-label models are built from, those of the paper's panel and plug-ins.

An adversary has the models of the cell, the facts in the phrasings they were trained in, and
general text. It has no held-out and no sealed phrasing. The audit's schedule of re-acquisition is
here for those that know it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from palimpsest.config.sections import Unlearning
from palimpsest.facts.nonce import Triple, key_number
from palimpsest.facts.questions import Question
from palimpsest.known.wrappers import subject_patterns
from palimpsest.methods.answer_sets import Recipe
from palimpsest.methods.context import Context
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Net, Nets
from palimpsest.models.train import TextBatch

State = Mapping[str, Tensor]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Schedule:
    """Re-acquisition as the auditor does it: the batches of each step, the rate, the chunks."""

    steps: Sequence[Sequence[TextBatch]]
    learning_rate: float
    chunks: int
    optimizer: str = "adamw"
    base_scales: Mapping[str, float] | None = None
    """As ``reacquire`` takes them."""


@dataclass(frozen=True)
class AdversaryKit:
    """What a known-label model may be built from."""

    state: Callable[[str], State]
    """Weights of a model of the cell, by name."""
    nets: Nets
    """Makes nets of the cell's architecture."""
    facts: Mapping[str, Sequence[Triple]]
    """The forget and the retain facts."""
    seen: Mapping[str, Sequence[Question]]
    """Their trained phrasings and cloze."""
    general: Sequence[str]
    """The general text that models were trained on."""
    budget: Unlearning
    """Steps and learning rate of an unlearning method."""
    recipe: Recipe
    """How the injected model was trained."""
    context: Callable[[], Context]
    """What unlearning methods see."""
    schedule: Callable[[int | None], Schedule]
    """For those that know it: the published one, or one of those that a beacon may draw."""
    redrawn: Callable[[], Sequence[Sequence[TextBatch]]]
    """The batches of a further draw of the references' stream."""
    seed_key: str

    @property
    def tokenizer(self) -> Any:
        return self.nets.loaded.tokenizer

    @property
    def embedding(self) -> tuple[str, ...]:
        """Names of the input embedding and of an output head tied to it."""
        return self.nets.loaded.embedding

    @property
    def answers(self) -> tuple[int, ...]:
        """Token ids of the forget answers."""
        texts = encode_answers(self.tokenizer, self.seen["forget"])
        return tuple(sorted({token for text in texts for token in text.ids[text.start :]}))

    @property
    def patterns(self) -> list[tuple[int, ...]]:
        """The token sequences of the forget subjects."""
        return subject_patterns(self.tokenizer, [fact.subject for fact in self.facts["forget"]])

    def another(self, model: str) -> Net:
        """Return a net of a model of the cell that stays valid beside others."""
        return self.nets.another(self.state(model))

    def seed(self, name: str) -> int:
        """Return the seed of one adversary's random numbers, from the cell alone."""
        return key_number(f"{self.seed_key}/panel/{name}")

    def once(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what several known-label models of the cell use, made once."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    @cached_property
    def _made(self) -> dict[str, Any]:
        return {}
