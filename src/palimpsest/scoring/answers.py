"""Answer-span NLL, and in the same forward pass every divergence that is asked for.

A ``Sheet`` holds all questions of a cell, tokenized once and laid out in batches of similar length.
One pass of a net over a sheet gives every stored number: the sum of the answer tokens' NLL in nats
and, where a frozen teacher was recorded, the sum of the full-vocabulary KL divergence to it.
Log-softmax is float32 whatever the model's dtype.

A teacher never changes within a cell, so its log-probabilities at the asked positions are computed
once and shared by every candidate, chunk and measure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Batch, Encoded, Net, collate

Floats = np.ndarray[Any, np.dtype[np.float64]]


Stage = StrEnum("Stage", "FORWARD REACQUIRED")
"""When a model was scored, stored as the column ``stage``."""


@dataclass(frozen=True)
class Page:
    """One batch of a sheet; ``owners`` (scored,) says which question each scored token is of."""

    batch: Batch
    owners: Tensor


@dataclass(frozen=True)
class Sheet:
    """Questions ready to be scored."""

    questions: tuple[Question, ...]
    tokens: tuple[int, ...]
    pages: tuple[Page, ...]

    def followed_by(self, other: "Sheet") -> "Sheet":
        """Return both sheets as one, the questions and pages of this one first."""
        shift = len(self.questions)
        later = tuple(Page(page.batch, page.owners + shift) for page in other.pages)
        return Sheet(
            self.questions + other.questions, self.tokens + other.tokens, self.pages + later
        )


@dataclass(frozen=True)
class Scores:
    """One model's numbers, in the sheet's order of questions; NaN where no teacher was asked.

    nll_sum, kl_reference, kl_injected: (questions,) sums over the scored tokens, in nats.
    """

    nll_sum: Floats
    kl_reference: Floats
    kl_injected: Floats

    def first(self, count: int) -> "Scores":
        """Return the numbers of the first questions."""
        return Scores(*(row[:count] for row in (self.nll_sum, self.kl_reference, self.kl_injected)))


def general_questions(texts: Sequence[str]) -> tuple[Question, ...]:
    """Return pieces of general text as pseudo-questions, scored from their second token on."""
    return tuple(
        Question(FactSet.GENERAL, f"g{number}", Pool.GENERAL, 0, "", text)
        for number, text in enumerate(texts)
    )


def make_sheet(
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    piece_tokens: int,
    batch_tokens: int,
) -> Sheet:
    """Tokenize the questions once and lay them out in pages of at most ``batch_tokens``."""
    asked = [question for question in questions if question.pool != Pool.GENERAL]
    pieces = [question.answer for question in questions if question.pool == Pool.GENERAL]
    answers = iter(encode_answers(tokenizer, asked))
    general = iter(encode_texts(tokenizer, pieces, piece_tokens))
    texts = [next(general if q.pool == Pool.GENERAL else answers) for q in questions]
    return Sheet(
        tuple(questions),
        tuple(text.scored for text in texts),
        tuple(_page(texts, rows) for rows in _bucketed(texts, batch_tokens)),
    )


@dataclass(frozen=True)
class TeacherPage:
    """A teacher's log-probabilities (asked, vocabulary) at some scored positions of a page."""

    positions: Tensor
    logp: Tensor


@dataclass(frozen=True)
class Teacher:
    """A frozen model's log-probabilities on a sheet; ``asked`` are the questions it answers."""

    pages: tuple[TeacherPage | None, ...]
    asked: frozenset[int]


def divergence(logp: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(model ‖ teacher) = Σ_v p(v) (log p(v) − log q(v)) at each position, in nats.

    logp: (..., positions, vocabulary); teacher: (positions, vocabulary).
    """
    values = torch.linalg.vecdot(logp.exp(), logp - teacher)
    if not bool(values.isnan().any()):
        return values
    # p = 0 with log p = -inf gives 0 · inf; its term is 0 by continuity.
    terms = logp.exp() * (logp - teacher)
    return torch.where(logp == -torch.inf, 0.0, terms).sum(-1)


SLICE = 2**20
"""Numbers of whole distributions that are computed at a time: 4 MB, which a cache holds."""


def slices(positions: int, vocabulary: int) -> list[slice]:
    """Return the positions in pieces of a few distributions, so that copies of them stay small."""
    rows = max(1, SLICE // vocabulary)
    return [slice(start, start + rows) for start in range(0, positions, rows)]


@torch.no_grad()
def record(net: Net, sheet: Sheet, asked: Callable[[Question], bool]) -> Teacher:
    """Return a net's log-probabilities (a stack of one) at the answers of the asked questions."""
    wanted = [asked(question) for question in sheet.questions]
    chosen = torch.tensor(wanted)
    pages: list[TeacherPage | None] = []
    for page in sheet.pages:
        positions = chosen[page.owners].nonzero().squeeze(-1)
        if len(positions) == 0:
            pages.append(None)
            continue
        logits = net.logits(page.batch.to(net.device))[0]
        logp = torch.empty((len(positions), logits.shape[-1]))
        for rows in slices(len(positions), logits.shape[-1]):
            logp[rows] = torch.log_softmax(logits[positions[rows]], dim=-1).cpu()
        pages.append(TeacherPage(positions, logp))
    return Teacher(tuple(pages), frozenset(n for n, want in enumerate(wanted) if want))


@torch.no_grad()
def score(
    net: Net,
    sheet: Sheet,
    *,
    reference: Teacher | None = None,
    injected: Teacher | None = None,
) -> list[Scores]:
    """Return the scores of each member of the net: one forward per page feeds them all."""
    shape = (net.stack, len(sheet.questions))
    nll = np.zeros(shape)
    divergences = []
    for teacher in (reference, injected):
        divergences.append(np.full(shape, np.nan))
        divergences[-1][:, sorted(teacher.asked if teacher else ())] = 0.0
    for number, page in enumerate(sheet.pages):
        logits = net.logits(page.batch.to(net.device))
        targets = page.batch.targets.to(net.device).unsqueeze(-1)
        for member, rows in product(range(net.stack), slices(*logits.shape[1:])):
            logp = torch.log_softmax(logits[member, rows], dim=-1)
            _add(nll[member], page.owners[rows], -logp.gather(-1, targets[rows]).squeeze(-1))
            for teacher, sums in zip((reference, injected), divergences):
                part = teacher.pages[number] if teacher else None
                if part is not None:
                    ends = torch.tensor((rows.start, rows.stop))
                    asked = slice(*torch.searchsorted(part.positions, ends).tolist())
                    at = part.positions[asked]
                    values = divergence(logp[at - rows.start], part.logp[asked].to(net.device))
                    _add(sums[member], page.owners[at], values)
    return [Scores(*rows) for rows in zip(nll, *divergences)]


@dataclass(frozen=True)
class Elicitation:
    """Takes the measures of other ways of asking that a sheet has questions of."""

    sheet: Sheet

    def __call__(self, net: Net) -> list[dict[str, float]]:
        """Return each member's mean log-probability of the answers, by kind of question."""
        pools = np.array([question.pool for question in self.sheet.questions])
        counts = np.array(self.sheet.tokens, np.float64)
        return [
            {
                kind: -float((scores.nll_sum / counts)[pools == kind].mean())
                for kind in dict.fromkeys(pools.tolist())
            }
            for scores in score(net, self.sheet)
        ]


def item_columns(model: str, stage: str, sheet: Sheet, scores: Scores) -> dict[str, Any]:
    """Return the rows of ``items.parquet`` for one model, as columns."""
    questions = sheet.questions
    return {
        "model": [model] * len(questions),
        "stage": [Stage(stage)] * len(questions),
        "set": [question.set for question in questions],
        "fact": [question.fact for question in questions],
        "pool": [question.pool for question in questions],
        "template": np.array([question.template for question in questions], dtype=np.int32),
        "nll_sum": scores.nll_sum,
        "tokens": np.array(sheet.tokens, dtype=np.int32),
        "kl_reference": scores.kl_reference,
        "kl_injected": scores.kl_injected,
    }


def _add(sums: Floats, owners: Tensor, values: Tensor) -> None:
    """Add each token's value (scored,) to its question's sum (questions,).

    In float64, so that the order of a batch cannot show in a stored digit.
    """
    np.add.at(sums, owners.cpu().numpy(), values.double().cpu().numpy())


def _bucketed(texts: Sequence[Encoded], batch_tokens: int) -> list[list[int]]:
    """Return rows of each page: texts of similar length together, padded size within the limit."""
    pages: list[list[int]] = []
    for row in sorted(range(len(texts)), key=lambda row: (len(texts[row].ids), row)):
        width = len(texts[row].ids)
        if pages and width * (len(pages[-1]) + 1) <= batch_tokens:
            pages[-1].append(row)
        else:
            pages.append([row])
    return pages


def _page(texts: Sequence[Encoded], rows: Sequence[int]) -> Page:
    owners = [row for row in rows for _ in range(texts[row].scored)]
    return Page(collate([texts[row] for row in rows]), torch.tensor(owners, dtype=torch.int64))
