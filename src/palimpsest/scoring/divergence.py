"""Full-vocabulary KL divergence against frozen models, whose log-probabilities are kept.

A teacher never changes within a cell, so its log-probabilities at the asked positions are computed
once and shared by every candidate, chunk and metric.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from palimpsest.facts.questions import Question
from palimpsest.models.net import Net

if TYPE_CHECKING:
    from palimpsest.scoring.answers import Sheet


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


@torch.no_grad()
def record(net: Net, sheet: "Sheet", asked: Callable[[Question], bool]) -> Teacher:
    """Return a net's log-probabilities (a stack of one) at the answers of the asked questions."""
    wanted = [asked(question) for question in sheet.questions]
    chosen = torch.tensor(wanted)
    pages: list[TeacherPage | None] = []
    for page in sheet.pages:
        positions = chosen[page.owners].nonzero().squeeze(-1)
        if len(positions) == 0:
            pages.append(None)
            continue
        logp = torch.log_softmax(net.logits(page.batch.to(net.device)), dim=-1)[0]
        pages.append(TeacherPage(positions, logp[positions].cpu()))
    return Teacher(tuple(pages), frozenset(n for n, want in enumerate(wanted) if want))
