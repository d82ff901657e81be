"""The questions behind the criteria of one cell, and what one pass over them shows of a model.

Everything is fixed by the cell's facts: the open questions, distractors (objects of never-learned
probes), further never-learned probes, other ways of asking, statements that are true or false.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.facts.nonce import POOLS, RELATIONS, Triple, invent_facts, render, words_of
from palimpsest.facts.questions import (
    ASK,
    FactSet,
    Pool,
    Question,
    elicitations,
    of_triple,
)
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Encoded, Net
from palimpsest.models.train import TextBatch, text_batch
from palimpsest.scoring.answers import Sheet, make_sheet
from palimpsest.scoring.measures import MeasuredCell

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DISTRACTORS = 4
FURTHER = 64
"""Never-learned probes beside the cell's own: with 4 forget facts, 76 are the fewest with which the
smallest p-value of the min-rank screen is 0.05."""
BATCH_TOKENS = 4096
KEPT = ("forget", "retain")
"""Sets at whose held-out answers whole distributions are compared."""


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
class Questionnaire:
    """What the models of one cell are asked, and the models they are compared with."""

    cell: MeasuredCell

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        facts = self.cell.facts
        return (
            *facts.questions,
            *self._distractors(),
            *self._behind_others(),
            *self._further(),
            *elicitations(map(of_triple, facts.forget), [*map(of_triple, facts.retain)]),
        )

    @cached_property
    def sheet(self) -> Sheet:
        how = {"piece_tokens": self.cell.piece_tokens, "batch_tokens": BATCH_TOKENS}
        return make_sheet(self.cell.tokenizer, self.questions, **how)

    @cached_property
    def owners(self) -> Ints:
        """The question of every token, (tokens,), in the order of the questions."""
        return np.repeat(np.arange(len(self.questions)), self.sheet.tokens)

    def where(self, *pools: str, of: Sequence[str] = ("forget",)) -> Ints:
        """Return the questions of these pools and sets, in order."""
        return np.flatnonzero([q.set in of and q.pool in pools for q in self.questions])

    @cached_property
    def kept_forget(self) -> Tensor:
        """Those of the kept tokens (kept,) that belong to forget facts."""
        kept = self.owners[np.isin(self.owners, self.where("evaluation", of=KEPT))]
        return torch.from_numpy(np.isin(kept, self.where("evaluation")))

    @torch.no_grad()
    def read(self, net: Net) -> list[Tokens]:
        """Return what every member of a net says: one forward per page."""
        kept = self.where("evaluation", of=KEPT)
        numbers: list[list[Tensor]] = [[] for _ in range(net.stack)]
        whole: list[list[Tensor]] = [[] for _ in range(net.stack)]
        for page in self.sheet.pages:
            logits = net.logits(page.batch.to(net.device))
            targets = page.batch.targets.to(net.device).unsqueeze(-1)
            chosen = torch.isin(page.owners, torch.from_numpy(kept))
            for member in range(net.stack):
                logp = torch.log_softmax(logits[member], -1)
                chance = logp.exp()
                mean = torch.linalg.vecdot(chance, logp)
                square = torch.linalg.vecdot(chance, logp.square())
                top = logp.max(-1)
                answer = logp.gather(-1, targets).squeeze(-1)
                hit = top.indices == targets.squeeze(-1)
                columns = (answer, hit, -mean, square - mean.square(), top.values.exp())
                numbers[member].append(torch.stack([column.double() for column in columns]))
                whole[member].append(logp[chosen])
        # Pages hold questions by length; tokens of one question stand together, in order.
        owners = np.concatenate([page.owners.numpy() for page in self.sheet.pages])
        order = np.argsort(owners, kind="stable")
        rows = np.argsort(owners[np.isin(owners, kept)], kind="stable")
        results = []
        for some, distributions in zip(numbers, whole):
            answer, hit, entropy, variance, top = torch.cat(some, 1).numpy()[:, order]
            results.append(
                Tokens(answer, hit > 0, entropy, variance, top, torch.cat(distributions)[rows])
            )
        return results

    # -- texts of other passes -----------------------------------------------------------------

    @cached_property
    def heldout(self) -> tuple[Encoded, ...]:
        """The forget facts' held-out questions, at whose answers states are compared."""
        return encode_answers(self.cell.tokenizer, self._asked("forget", "evaluation"))

    @cached_property
    def cloze(self) -> dict[str, tuple[Encoded, ...]]:
        """The cloze of every forget fact and probe, for gradients."""
        sets = ("forget", "probe")
        return {
            name: encode_answers(self.cell.tokenizer, self._asked(name, "cloze")) for name in sets
        }

    @cached_property
    def statements(self) -> tuple[tuple[Encoded, ...], tuple[bool, ...], tuple[str, ...]]:
        """True and false statements of forget and retain facts, read at their last token."""
        texts, true, about = [], [], []
        for facts in (self.cell.facts.forget, self.cell.facts.retain):
            for number, fact in enumerate(facts):
                for template in POOLS[fact.relation]["evaluation"][:ASK]:
                    for place, answer in enumerate((fact.object, *self._wrong(fact, number))):
                        texts.append(f"{render(template, fact.subject)} {answer}.")
                        true.append(place == 0)
                        about.append(fact.id)
        encoded = encode_texts(self.cell.tokenizer, texts)
        ends = tuple(Encoded(text.ids, len(text.ids) - 1) for text in encoded)
        return ends, tuple(true), tuple(about)

    def lessons(self, facts: Sequence[str], steps: int, items: int) -> list[list[TextBatch]]:
        """Return training steps on the trained sentences of these forget facts, in turn."""
        asked = [q for q in self._asked("forget", "trained") if q.fact in facts]
        return self._steps([q.sentence for q in asked], steps, items, None)

    def prose(self, steps: int, items: int) -> list[list[TextBatch]]:
        """Return training steps on general text."""
        return self._steps(self.cell.general, steps, items, self.cell.piece_tokens)

    def _steps(
        self, texts: Sequence[str], steps: int, items: int, limit: int | None
    ) -> list[list[TextBatch]]:
        encoded = encode_texts(self.cell.tokenizer, texts[: steps * items], limit)
        turns = [
            [encoded[(s * items + i) % len(encoded)] for i in range(items)] for s in range(steps)
        ]
        return [[text_batch(some, items)] for some in turns]

    # -- questions ------------------------------------------------------------------------------

    def _asked(self, name: str, pool: str) -> list[Question]:
        return [q for q in self.cell.facts.questions if (q.set, q.pool) == (name, pool)]

    def _wrong(self, fact: Triple, number: int) -> list[str]:
        """Return objects that are not the fact's: of probes, those of its relation first."""
        probes = self.cell.facts.probe
        turned = [probes[(number * DISTRACTORS + n) % len(probes)] for n in range(len(probes))]
        ordered = sorted(turned, key=lambda probe: probe.relation != fact.relation)
        return [probe.object for probe in ordered[:DISTRACTORS]]

    def _distractors(self) -> Iterator[Question]:
        for number, fact in enumerate(self.cell.facts.forget):
            for place, template in enumerate(POOLS[fact.relation]["evaluation"]):
                prompt = render(template, fact.subject)
                for other, answer in enumerate(self._wrong(fact, number)):
                    at = place * DISTRACTORS + other
                    yield Question(FactSet.FORGET, fact.id, Pool.DISTRACTOR, at, prompt, answer)

    def _behind_others(self) -> Iterator[Question]:
        """The cloze of every fact behind sentences of probes, which no model learned."""
        asked = [q for q in self.cell.facts.questions if q.pool == "cloze" and q.set != "retain"]
        last = [probe.id for probe in self.cell.facts.probe[1:][-2:]]
        prefix = " ".join(q.sentence for fact in last for q in asked if q.fact == fact)
        for q in asked:
            if q.fact not in last:
                yield Question(q.set, q.fact, Pool.PREFIXED, 0, f"{prefix} {q.prompt}", q.answer)

    def _further(self) -> Iterator[Question]:
        every = (*self.cell.facts.forget, *self.cell.facts.retain, *self.cell.facts.probe)
        for fact in invent_facts(
            FURTHER, f"{self.cell.seed_key}/further", RELATIONS, words_of(every)
        ):
            for number, template in enumerate(POOLS[fact.relation]["evaluation"][:ASK]):
                prompt = render(template, fact.subject)
                yield Question(
                    FactSet.FURTHER, fact.id, Pool.EVALUATION, number, prompt, fact.object
                )
