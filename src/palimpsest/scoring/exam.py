"""The questions behind the criteria of one cell, and what one pass over them shows of a model.

Everything is fixed by the cell's facts: the open questions, distractors (objects of never-learned
probes), further never-learned probes, other ways of asking, statements that are true or false.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.facts.elicitation import ASK, elicitations, of_triple
from palimpsest.facts.nonce import Triple, draw, words_of
from palimpsest.facts.questions import Question, Testbed
from palimpsest.facts.templates import POOLS, RELATIONS, render
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.train import TextBatch, text_batch
from palimpsest.scoring.answers import make_sheet

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
State = Mapping[str, Tensor]

DISTRACTORS = 4
FURTHER = 64
"""Never-learned probes beside the cell's own: with 4 forget facts, 76 are the fewest with which the
smallest p-value of the min-rank screen is 0.05."""
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Tokens:
    """What a model says at every scored token, in the order of the questions, (tokens,) each."""

    logp: Floats
    hit: NDArray[np.bool_]
    """Whether the answer's token is the likeliest."""
    entropy: Floats
    variance: Floats
    """Of log p under the model's own distribution."""
    top: Floats
    """Probability of the likeliest token."""
    kept: Tensor
    """(kept tokens, vocabulary) log-probabilities at held-out forget and retain answers."""


@dataclass(frozen=True)
class Exam:
    """What the models of one cell are asked, and the models they are compared with."""

    tokenizer: Any
    facts: Testbed
    general: tuple[str, ...]
    """General text of the training stream."""
    seed_key: str
    pad: int
    learning_rate: float
    piece_tokens: int
    net: Callable[[Sequence[State]], Net]
    state: Callable[[str], State]
    reference: str = "reference"
    """Name of the reference that criteria may use."""

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        facts = self.facts
        return (
            *facts.questions,
            *self._distractors(),
            *self._behind_others(),
            *self._further(),
            *elicitations(map(of_triple, facts.forget), [*map(of_triple, facts.retain)]),
        )

    @cached_property
    def sheet(self) -> Any:
        return make_sheet(
            self.tokenizer,
            self.questions,
            piece_tokens=self.piece_tokens,
            batch_tokens=BATCH_TOKENS,
            pad=self.pad,
        )

    @cached_property
    def owners(self) -> Ints:
        """The question of every token, (tokens,), in the order of the questions."""
        return np.repeat(np.arange(len(self.questions)), self.sheet.tokens)

    def where(self, kinds: Sequence[str], pools: Sequence[str]) -> Ints:
        """Return the questions of these sets and pools, in order."""
        chosen = [q.set in kinds and q.pool in pools for q in self.questions]
        return np.flatnonzero(chosen)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """Tokens (tokens,) whose whole distributions are compared."""
        asked = self.where(("forget", "retain"), ("evaluation",))
        return np.isin(self.owners, asked)

    @cached_property
    def kept_forget(self) -> Tensor:
        """Those of the kept tokens (kept,) that belong to forget facts."""
        asked = self.where(("forget",), ("evaluation",))
        return torch.from_numpy(np.isin(self.owners[self.kept], asked))

    @torch.no_grad()
    def read(self, net: Net) -> list[Tokens]:
        """Return what every member of a net says: one forward per page."""
        size = len(self.owners)
        first = np.concatenate([[0], np.cumsum(self.sheet.tokens)])
        kept = np.flatnonzero(self.kept)
        place = np.full(size, -1)
        place[kept] = np.arange(len(kept))
        numbers = np.zeros((net.stack, 5, size))
        whole: list[Tensor | None] = [None] * net.stack
        for page in self.sheet.pages:
            owners = page.owners.numpy()
            # Tokens of one question stand together on its page, in order.
            starts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
            within = np.arange(len(owners)) - np.repeat(starts, np.diff(np.r_[starts, len(owners)]))
            where = first[owners] + within
            logits = net.logits(page.batch.to(net.device))
            targets = page.batch.targets.to(net.device).unsqueeze(-1)
            chosen = torch.from_numpy(place[where] >= 0)
            rows = torch.from_numpy(place[where][place[where] >= 0])
            for member in range(net.stack):
                logp = torch.log_softmax(logits[member], -1)
                chance = logp.exp()
                mean = torch.linalg.vecdot(chance, logp)
                square = torch.linalg.vecdot(chance, logp.square())
                top = logp.max(-1)
                told = logp.gather(-1, targets).squeeze(-1)
                hit = top.indices == targets.squeeze(-1)
                columns = (told, hit, -mean, square - mean.square(), top.values.exp())
                numbers[member][:, where] = torch.stack([c.double() for c in columns]).numpy()
                if whole[member] is None:
                    whole[member] = logp.new_empty(len(kept), logp.shape[-1])
                whole[member][rows] = logp[chosen]  # type: ignore[index]
        return [
            Tokens(n[0], n[1] > 0, n[2], n[3], n[4], w)
            for n, w in zip(numbers, whole)
            if w is not None
        ]

    # -- texts of other passes -----------------------------------------------------------------

    @cached_property
    def heldout(self) -> tuple[Batch, Ints]:
        """The forget facts' held-out questions as one batch, and the question of each token."""
        texts = encode_answers(self.tokenizer, self._asked(("forget",), ("evaluation",)))
        return collate(texts, self.pad), np.repeat(np.arange(len(texts)), [t.scored for t in texts])

    @cached_property
    def looked_into(self) -> tuple[Encoded, ...]:
        """The held-out forget questions, at whose answers states are compared."""
        return encode_answers(self.tokenizer, self._asked(("forget",), ("evaluation",)))

    @cached_property
    def single(self) -> dict[str, tuple[Encoded, ...]]:
        """The cloze of every forget fact and probe, for gradients."""
        return {
            name: encode_answers(self.tokenizer, self._asked((name,), ("cloze",)))
            for name in ("forget", "probe")
        }

    @cached_property
    def statements(self) -> tuple[tuple[Encoded, ...], tuple[bool, ...], tuple[str, ...]]:
        """True and false statements of forget and retain facts, read at their last token."""
        texts, true, about = [], [], []
        for name in ("forget", "retain"):
            for number, fact in enumerate(self.facts.sets()[name]):
                for template in POOLS[fact.relation]["evaluation"][:ASK]:
                    for place, said in enumerate((fact.object, *self._wrong(fact, number))):
                        texts.append(f"{render(template, fact.subject)} {said}.")
                        true.append(place == 0)
                        about.append(fact.id)
        encoded = [
            Encoded(text.ids, len(text.ids) - 1) for text in encode_texts(self.tokenizer, texts)
        ]
        return tuple(encoded), tuple(true), tuple(about)

    def lessons(self, facts: Sequence[str], steps: int, items: int) -> list[list[TextBatch]]:
        """Return training steps on the trained sentences of these forget facts, in turn."""
        asked = [q for q in self._asked(("forget",), ("trained",)) if q.fact in facts]
        return self._steps([q.sentence for q in asked], steps, items, None)

    def prose(self, steps: int, items: int) -> list[list[TextBatch]]:
        """Return training steps on general text."""
        return self._steps(self.general, steps, items, self.piece_tokens)

    def _steps(
        self, texts: Sequence[str], steps: int, items: int, limit: int | None
    ) -> list[list[TextBatch]]:
        encoded = encode_texts(self.tokenizer, texts[: steps * items], limit)
        turns = [
            [encoded[(s * items + i) % len(encoded)] for i in range(items)] for s in range(steps)
        ]
        return [[text_batch(some, items, self.pad)] for some in turns]

    # -- questions ------------------------------------------------------------------------------

    def _asked(self, kinds: Sequence[str], pools: Sequence[str]) -> list[Question]:
        return [q for q in self.facts.questions if q.set in kinds and q.pool in pools]

    def _wrong(self, fact: Triple, number: int) -> list[str]:
        """Return objects that are not the fact's: of probes, those of its relation first."""
        probes = self.facts.probe
        turned = [probes[(number * DISTRACTORS + n) % len(probes)] for n in range(len(probes))]
        ordered = sorted(turned, key=lambda probe: probe.relation != fact.relation)
        return [probe.object for probe in ordered[:DISTRACTORS]]

    def _distractors(self) -> Iterator[Question]:
        for number, fact in enumerate(self.facts.forget):
            for place, template in enumerate(POOLS[fact.relation]["evaluation"]):
                prompt = render(template, fact.subject)
                for other, said in enumerate(self._wrong(fact, number)):
                    at = place * DISTRACTORS + other
                    yield Question("forget", fact.id, "distractor", at, prompt, said)

    def _behind_others(self) -> Iterator[Question]:
        """The cloze of every fact behind sentences of probes, which no model learned."""
        cloze = {q.fact: q for q in self._asked(("forget", "probe"), ("cloze",))}
        last = [probe.id for probe in self.facts.probe[1:][-2:]]
        prefix = " ".join(cloze[fact].sentence for fact in last)
        for fact, question in cloze.items():
            if fact not in last:
                prompt = f"{prefix} {question.prompt}"
                yield Question(question.set, fact, "prefixed", 0, prompt, question.answer)

    def _further(self) -> Iterator[Question]:
        every = (*self.facts.forget, *self.facts.retain, *self.facts.probe)
        for fact in draw(FURTHER, f"{self.seed_key}/further", RELATIONS, words_of(every)):
            for number, template in enumerate(POOLS[fact.relation]["evaluation"][:ASK]):
                prompt = render(template, fact.subject)
                yield Question("further", fact.id, "evaluation", number, prompt, fact.object)
