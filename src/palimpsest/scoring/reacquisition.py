"""Re-acquisition: teach the forget set again and measure what does not come back.

After re-acquiring F, a restored model is close to the injected model again; collateral damage of
suppression persists. The residual is KL(reacquire_F(C) ‖ injected): its mean over retain answer
positions plus its mean over general-text positions. Re-acquisition is logged in chunks, so every
model has a relearning curve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.facts.questions import TRAINED_POOLS, FactSet, Pool, Question
from palimpsest.models.net import Net
from palimpsest.models.train import OPTIMIZERS, TextBatch, text_loss, train
from palimpsest.scoring.answers import Floats, Scores, Sheet, Teacher, score


@dataclass(frozen=True)
class Chunk:
    """A model after some steps of re-acquisition: NLL and parts of the residual, in nats."""

    chunk: int
    step: int
    forget_trained_nll: float
    forget_heldout_nll: float
    retain_nll: float
    residual_retain: float
    residual_general: float


@dataclass(frozen=True)
class Reacquisition:
    """One model's relearning curve, its scores at the end, and the step where it diverged."""

    curve: tuple[Chunk, ...]
    scores: Scores
    diverged: int | None


def in_curve(question: Question) -> bool:
    """Return whether a question is scored after each chunk of re-acquisition."""
    forget = question.set == FactSet.FORGET and question.pool in (*TRAINED_POOLS, Pool.EVALUATION)
    return forget or in_residual(question)


def in_residual(question: Question) -> bool:
    """Return whether a question's positions enter the residual."""
    retain = question.set == FactSet.RETAIN and question.pool in TRAINED_POOLS
    return retain or question.set == FactSet.GENERAL


def reacquire(
    net: Net,
    steps: Sequence[Sequence[TextBatch]],
    *,
    chunks: int,
    learning_rate: float,
    sheet: Sheet,
    injected: Teacher | None = None,
    before: Sequence[Scores] = (),
    optimizer: str = "adamw",
    base_scales: Mapping[str, float] | None = None,
) -> list[Reacquisition]:
    """Train the net on the forget set and return what each member re-acquires.

    sheet: the questions that ``in_curve`` keeps; injected: its teacher where ``in_residual``.
    before: the members' scores on this sheet; empty: score them first.
    base_scales: root mean square of each tensor of the base. Steps are then taken on weights in
        units of base's: a model whose norm gains are halved and whose next matrices are doubled
        answers alike, and relearns alike.
    """
    borders = {round(len(steps) * chunk / chunks): chunk for chunk in range(chunks + 1)}
    curves: list[list[Chunk]] = [[] for _ in range(net.stack)]
    final: list[Scores] = []

    def log(step: int) -> None:
        if step in borders:
            final[:] = (step == 0 and before) or score(net, sheet, injected=injected)
            for curve, scores in zip(curves, final):
                curve.append(summarize(sheet, scores, borders[step], step))

    log(0)
    rule = OPTIMIZERS[optimizer]
    diverged = train(
        net,
        steps,
        text_loss,
        learning_rate=learning_rate,
        after_step=log,
        optimizer=rule,
        scales=None if base_scales is None else relative_scales(net, base_scales),
    )
    return [
        Reacquisition(tuple(curve), scores, diverged.get(member))
        for member, (curve, scores) in enumerate(zip(curves, final))
    ]


def relative_scales(net: Net, base_scales: Mapping[str, float]) -> dict[str, Tensor]:
    """Return the root mean square of each leaf of a net, member by member, in units of base's.

    An optimizer's step has a length that does not depend on the weights. So a model whose weights
    are stored larger, and which computes the same because another tensor is smaller, would relearn
    more slowly, and would look as if less had come back. On weights divided by these scales both
    start at base's size and take the same steps.
    """
    scales = {}
    for name, leaf in net.params.items():
        own = root_mean_square(leaf.detach(), net.stack)
        base = _base_scale(name, base_scales)
        # A tensor of zeros has no scale of its own; nor has one that base lacks.
        relative = torch.where((own > 0) & (base > 0), own / (base or 1.0), 1.0)
        shape = (net.stack, *[1] * (leaf.dim() - 1)) if leaf.dim() and net.stack > 1 else ()
        scales[name] = relative.reshape(shape)
    return scales


def _base_scale(name: str, base_scales: Mapping[str, float]) -> float:
    """Return the base's scale of a tensor; a net of two models puts a part's name before it."""
    while name and name not in base_scales:
        name = name.partition(".")[2]
    return base_scales.get(name, 0.0)


def tensor_scales(state: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the root mean square of each tensor."""
    return {name: float(root_mean_square(value)) for name, value in state.items()}


def root_mean_square(value: Tensor, stack: int = 1) -> Tensor:
    """Return the root mean square of each member of a tensor (stack,).

    Row by row: one sum of millions of squares would lose a part in three hundred in float32.
    """
    rows = value.reshape(stack, -1, value.shape[-1] if value.dim() > 1 else 1)
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32)
    size = max(1, value.numel() // stack)
    return torch.linalg.vector_norm(norms, dim=-1) / size**0.5


def summarize(sheet: Sheet, scores: Scores, chunk: int = 0, step: int = 0) -> Chunk:
    """Return one point of the curve: means over facts of NLL, over positions of divergence."""
    tokens = np.array(sheet.tokens, dtype=np.float64)
    nll = scores.nll_sum / tokens

    def where(name: FactSet, *pools: Pool) -> Any:
        return np.array([q.set == name and q.pool in pools for q in sheet.questions])

    def position_mean(mask: Any) -> float:
        return float(scores.kl_injected[mask].sum() / tokens[mask].sum())

    cloze = where(FactSet.RETAIN, Pool.CLOZE)
    return Chunk(
        chunk,
        step,
        _fact_mean(sheet, nll, where(FactSet.FORGET, Pool.TRAINED)),
        _fact_mean(sheet, nll, where(FactSet.FORGET, Pool.EVALUATION)),
        _fact_mean(sheet, nll, cloze if cloze.any() else where(FactSet.RETAIN, Pool.TRAINED)),
        position_mean(where(FactSet.RETAIN, *TRAINED_POOLS)),
        position_mean(where(FactSet.GENERAL, Pool.GENERAL)),
    )


def curve_columns(model: str, curve: Sequence[Chunk]) -> dict[str, Any]:
    """Return the rows of ``curves.parquet`` for one model, as columns."""
    rows = [asdict(chunk) for chunk in curve]
    columns: dict[str, Any] = {"model": [model] * len(rows)}
    for key, value in rows[0].items():
        kind = np.int32 if isinstance(value, int) else np.float64
        columns[key] = np.array([row[key] for row in rows], dtype=kind)
    return columns


def _fact_mean(sheet: Sheet, nll: Floats, mask: Any) -> float:
    """Return the mean over facts of the mean over a fact's templates."""
    facts: dict[str, list[float]] = {}
    for question, value, kept in zip(sheet.questions, nll, mask):
        if kept:
            facts.setdefault(question.fact, []).append(float(value))
    return float(np.mean([np.mean(values) for values in facts.values()])) if facts else float("nan")
