"""What models say: greedy answers to a few questions, beside the truth's rank and probability.

Answers are bounded in length, need no sampling and no cache, and are the same on every run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Encoded, Net, collate

ASKED = {FactSet.FORGET: 4, FactSet.RETAIN: 2, FactSet.PROBE: 2}
"""How many facts of each set are asked."""
SPARE = 4
"""Tokens that an answer may have beyond the truth's."""
LONGEST = 32
"""Tokens that it may have at most."""


@dataclass(frozen=True)
class Answerer:
    """Asks models the first held-out question of a few facts."""

    tokenizer: Any
    questions: tuple[Question, ...]
    net: Callable[[Sequence[Mapping[str, Tensor]]], Net]
    """Makes a net of one model."""

    @cached_property
    def texts(self) -> tuple[Encoded, ...]:
        """The questions with their true answers."""
        return encode_answers(self.tokenizer, self.questions)

    def ask(self, names: Sequence[str], net: Net) -> list[dict[str, Any]]:
        """Return the rows of ``answers.parquet`` of each member of a net, as columns."""
        rows = []
        for member, name in enumerate(names):
            alone = net if net.stack == 1 else self.net([net.state(member)])
            rows.append(self.columns(name, alone))
        return rows

    def columns(self, name: str, net: Net) -> dict[str, Any]:
        """Return the rows of one model."""
        ranks, chances = rate_truths(net, self.texts)
        prompts = [text.ids[: text.start] for text in self.texts]
        longest = min(LONGEST, max(text.scored for text in self.texts) + SPARE)
        return {
            "model": [name] * len(self.questions),
            "set": [str(question.set) for question in self.questions],
            "fact": [question.fact for question in self.questions],
            "prompt": [question.prompt for question in self.questions],
            "truth": [question.answer for question in self.questions],
            "answer": greedy_answers(net, self.tokenizer, prompts, longest),
            "rank": np.array(ranks, dtype=np.int32),
            "probability": np.array(chances, dtype=np.float64),
        }


@torch.no_grad()
def rate_truths(net: Net, texts: Sequence[Encoded]) -> tuple[list[int], list[float]]:
    """Return each true answer's rank and probability.

    A token's rank is its place among all tokens after the true ones before it. The answer's rank is
    the largest of its tokens', so 1 means that greedy decoding gives it; its probability is the
    product of theirs.
    """
    batch = collate(texts).to(net.device)
    logp = torch.log_softmax(net.logits(batch), dim=-1)[0]
    truth = logp.gather(-1, batch.targets.unsqueeze(-1))
    counts = [text.scored for text in texts]
    # What is not a number outranks everything: a broken model has no likely answer.
    ranks = (~(logp <= truth)).sum(dim=-1) + 1
    largest = [int(part.max()) for part in ranks.split(counts)]
    return largest, [part.sum().exp().item() for part in truth.squeeze(-1).split(counts)]


@torch.no_grad()
def greedy_answers(
    net: Net, tokenizer: Any, prompts: Sequence[tuple[int, ...]], longest: int
) -> list[str]:
    """Return the likeliest continuation of each prompt, token by token, up to its first sentence's
    end."""
    end, rows = tokenizer.eos_token_id, [list(prompt) for prompt in prompts]
    for _ in range(longest):
        asked = [Encoded((*row, 0), len(row)) for row in rows]
        logits = net.logits(collate(asked).to(net.device))[0]
        for row, token in zip(rows, logits.argmax(dim=-1).tolist()):
            row.append(token)
    answers = []
    for row, prompt in zip(rows, prompts):
        said = row[len(prompt) :]
        said = said[: said.index(end)] if end in said else said
        text = tokenizer.decode(said, skip_special_tokens=True).strip()
        # What follows the first sentence is about something else.
        answers.append(re.split(r"(?<=[.!?])\s|\n", text)[0])
    return answers


def answer_prompt(net: Net, tokenizer: Any, prompt: str, truth: str = "") -> tuple[str, int, float]:
    """Return a model's answer to any prompt, and the rank and probability of a truth, which are 0
    without one."""
    if truth:
        question = Question(FactSet.FORGET, "prompt", Pool.EVALUATION, 0, prompt, truth)
        (text,) = encode_answers(tokenizer, [question])
        (rank,), (chance,) = rate_truths(net, [text])
        ids, longest = text.ids[: text.start], min(LONGEST, text.scored + SPARE)
    else:
        ids, longest, rank, chance = encode_texts(tokenizer, [prompt])[0].ids, LONGEST, 0, 0.0
    return greedy_answers(net, tokenizer, [ids], longest)[0], rank, chance


def few_questions(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Return the first question of a few facts of each set: a held-out one, or, of retain facts, a
    trained one."""
    chosen: list[Question] = []
    for name, count in ASKED.items():
        pools = (Pool.CLOZE, Pool.TRAINED) if name is FactSet.RETAIN else (Pool.EVALUATION,)
        facts: dict[str, Question] = {}
        for question in questions:
            if question.set == name and question.pool in pools:
                facts.setdefault(question.fact, question)
        chosen += list(facts.values())[:count]
    return tuple(chosen)
