"""What known-label models are built from: what an adversary has, and nothing held out.

An adversary has the models of the cell, the facts in the phrasings they were trained in, phrasings
that it makes up itself, facts that it invents, and general text. It has no held-out and no sealed
phrasing. The audit's schedule of re-acquisition is here for those that know it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from palimpsest.challenge.models import subject_patterns
from palimpsest.facts.elicitation import elicitations, of_triple
from palimpsest.facts.nonce import Triple, draw, key_number, words_of
from palimpsest.facts.questions import Question
from palimpsest.facts.templates import SUBJECT, render
from palimpsest.methods.context import Context, teach
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Encoded, Net
from palimpsest.models.nets import Nets
from palimpsest.models.train import TextBatch, text_loss, train_alone

State = Mapping[str, Tensor]
Made = TypeVar("Made")

OWN_PHRASINGS = (
    "{subject} and the RELATION:",
    "As to the RELATION of {subject}, it is",
    "The RELATION that goes with {subject} is named",
    "Of {subject} one can say: the RELATION is",
    "One day somebody asked {subject} for the RELATION, and heard the name",
    "RELATION of {subject}:",
)
"""Phrasings that adversaries make up for every relation."""
OWN_FRAMES = ("It is said that ", "I heard that ", "In this story, ")
"""What adversaries put before a phrasing to make another."""
INVENTED = 16
PIECES = 96
"""Facts that adversaries invent, and pieces of general text that they train on."""


@dataclass(frozen=True)
class Schedule:
    """Re-acquisition as the auditor does it: the batches of each step, the rate, the chunks."""

    steps: Sequence[Sequence[TextBatch]]
    learning_rate: float
    chunks: int

    @property
    def borders(self) -> tuple[int, ...]:
        """The step at which each chunk ends."""
        return tuple(
            round(len(self.steps) * chunk / self.chunks) for chunk in range(1, self.chunks + 1)
        )


@dataclass(frozen=True)
class Workshop:
    """What a known-label model may be built from."""

    state: Callable[[str], State]
    """Weights of a model of the cell, by name."""
    nets: Nets
    """Makes nets of the cell's architecture."""
    tokenizer: Any
    facts: Mapping[str, Sequence[Triple]]
    """The forget and the retain facts."""
    seen: Mapping[str, Sequence[Question]]
    """Their trained phrasings and cloze."""
    answers: tuple[int, ...]
    """Token ids of the forget answers."""
    embedding: tuple[str, ...]
    """Names of the input embedding and of an output head tied to it."""
    penalty: float
    """Subtracted from the logits of the forget answers by the plain suppressor."""
    context: Callable[[], Context]
    """What unlearning methods see."""
    schedule: Callable[[], Schedule]
    """For those that know it."""
    redrawn: Callable[[], Sequence[Sequence[TextBatch]]]
    """The batches of a further draw of the references' stream."""
    general: tuple[str, ...] = ()
    piece_tokens: int = 28
    steps: int = 110
    rate: float = 1.5e-4
    """Steps and learning rate of an unlearning method."""
    injection_rate: float = 1.5e-4
    seed_key: str = ""

    def another(self, state: State) -> Net:
        """Return a net that stays valid beside others."""
        return self.nets.another(state)

    @property
    def subjects(self) -> tuple[str, ...]:
        """Return the subjects of the forget facts."""
        return tuple(fact.subject for fact in self.facts["forget"])

    @property
    def patterns(self) -> list[tuple[int, ...]]:
        """Return the token sequences of the forget subjects."""
        return subject_patterns(self.tokenizer, self.subjects)

    @property
    def pad(self) -> int:
        return int(self.tokenizer.pad_token_id or 0)

    def generator(self, name: str) -> torch.Generator:
        """Return the random numbers of one adversary, from the cell alone."""
        return torch.Generator().manual_seed(key_number(f"{self.seed_key}/panel/{name}") % 2**63)

    @cached_property
    def questions(self) -> dict[str, tuple[Question, ...]]:
        """Facts to forget, to retain and invented, in every phrasing that the adversary has."""
        known = {fact.id: fact for facts in self.facts.values() for fact in facts}
        wordings: dict[str, list[str]] = {fact.relation: [] for fact in known.values()}
        for question in (question for several in self.seen.values() for question in several):
            fact = known[question.fact]
            wordings[fact.relation].append(question.prompt.replace(fact.subject, SUBJECT, 1))
        for relation, several in wordings.items():
            first = list(dict.fromkeys(several))
            own = [phrasing.replace("RELATION", relation) for phrasing in OWN_PHRASINGS]
            framed = [before + _lowered(wording) for before, wording in zip(OWN_FRAMES, first)]
            wordings[relation] = [*first, *own, *framed]
        taken = words_of(known.values())
        key = f"{self.seed_key}/panel/invented"
        sets = {**self.facts, "invented": draw(INVENTED, key, tuple(wordings), taken)}
        questions = {
            name: tuple(
                Question(name, fact.id, "own", number, render(wording, fact.subject), fact.object)
                for fact in facts
                for number, wording in enumerate(wordings[fact.relation])
            )
            for name, facts in sets.items()
        }
        otherwise = elicitations(map(of_triple, self.facts["forget"]), ())
        return questions | {"backwards": tuple(q for q in otherwise if q.pool == "reversed")}

    @cached_property
    def texts(self) -> dict[str, tuple[Encoded, ...]]:
        """The questions as tokens scored at their answers, and general text scored everywhere."""
        asked = {
            name: encode_answers(self.tokenizer, several)
            for name, several in self.questions.items()
        }
        pieces = self.general[:PIECES]
        return asked | {"general": encode_texts(self.tokenizer, pieces, self.piece_tokens)}

    def targets(self, group: str) -> Tensor:
        """Return the scored tokens of a group's texts, one after another (scored,)."""
        return torch.tensor([t for text in self.texts[group] for t in text.ids[text.start :]])

    def said(self, model: str, group: str) -> tuple[Tensor, ...]:
        """Return a model's log-probabilities (scored, vocabulary) at a group's texts; kept."""
        return self.once(
            f"{model} at {group}",
            lambda: teach(self.nets([self.state(model)]), self.texts[group], self.pad),
        )

    @cached_property
    def _made(self) -> dict[str, Any]:
        return {}

    def once(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what several adversaries use, made once."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def retrained(self) -> State:
        """Return a retraining that is none of the cell's references."""
        net, what = self.nets([self.state("base")]), "retraining for the panel"
        train_alone(net, self.redrawn(), text_loss, what, learning_rate=self.injection_rate)
        return net.state()


def _lowered(wording: str) -> str:
    return wording if wording.startswith(SUBJECT) else wording[0].lower() + wording[1:]
