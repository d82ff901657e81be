"""What models say: greedy answers to a few questions, beside the truth's rank and probability."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Encoded, Net, collate

ASKED = {FactSet.FORGET: 4, FactSet.RETAIN: 2, FactSet.PROBE: 2}
"""How many facts of each set are asked."""
SPARE = 4
LONGEST = 32
"""Tokens that an answer may have beyond the truth's, and at most."""


@dataclass(frozen=True)
class Answerer:
    """Asks models the first held-out question of a few facts."""

    tokenizer: Any
    questions: tuple[Question, ...]
    net: Callable[[Sequence[Mapping[str, Tensor]]], Net]
    """Makes a net of one model."""
    pad: int = 0

    @cached_property
    def texts(self) -> tuple[Encoded, ...]:
        """The questions with their true answers."""
        return encode_answers(self.tokenizer, self.questions)

    def ask(self, names: Sequence[str], net: Net) -> list[dict[str, Any]]:
        """Return the rows of ``answers.parquet`` of each member of a net, as columns."""
        rows = []
        for member, name in enumerate(names):
            alone = net if net.stack == 1 else self.net([net.state(member)])
            rows.append(self._columns(name, alone))
        return rows

    @torch.no_grad()
    def _columns(self, name: str, net: Net) -> dict[str, Any]:
        batch = collate(self.texts, self.pad).to(net.device)
        logp = torch.log_softmax(net.logits(batch), dim=-1)[0]
        truth = logp.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        counts = [text.scored for text in self.texts]
        firsts = np.cumsum([0, *counts[:-1]])
        ranks = [(logp[at] > truth[at]).sum().item() + 1 for at in firsts]
        chances = [part.sum().exp().item() for part in truth.split(counts)]
        prompts = [text.ids[: text.start] for text in self.texts]
        longest = min(LONGEST, max(counts) + SPARE)
        size = len(self.questions)
        return {
            "model": [name] * size,
            "set": [str(question.set) for question in self.questions],
            "fact": [question.fact for question in self.questions],
            "prompt": [question.prompt for question in self.questions],
            "truth": [question.answer for question in self.questions],
            "answer": self._greedy(net, prompts, longest),
            "rank": np.array(ranks, dtype=np.int32),
            "probability": np.array(chances, dtype=np.float64),
        }

    def _greedy(self, net: Net, prompts: Sequence[tuple[int, ...]], longest: int) -> list[str]:
        """Return the likeliest continuation of each prompt, token by token."""
        end, rows = self.tokenizer.eos_token_id, [list(prompt) for prompt in prompts]
        for _ in range(longest):
            asked = [Encoded((*row, self.pad), len(row)) for row in rows]
            logits = net.logits(collate(asked, self.pad).to(net.device))[0]
            for row, token in zip(rows, logits.argmax(dim=-1).tolist()):
                row.append(token)
        answers = []
        for row, prompt in zip(rows, prompts):
            said = row[len(prompt) :]
            said = said[: said.index(end)] if end in said else said
            text = self.tokenizer.decode(said).strip()
            # The first sentence: what follows is about something else.
            answers.append(re.split(r"(?<=[.!?])\s|\n", text)[0])
        return answers


def few_questions(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Return the first held-out question of a few facts of each set, retain facts as trained."""
    chosen: list[Question] = []
    for name, count in ASKED.items():
        pools = (Pool.CLOZE, Pool.TRAINED) if name is FactSet.RETAIN else (Pool.EVALUATION,)
        facts: dict[str, Question] = {}
        for question in questions:
            if question.set == name and question.pool in pools:
                facts.setdefault(question.fact, question)
        chosen += list(facts.values())[:count]
    return tuple(chosen)
