"""The round trip: re-acquire the forget set and measure what does not come back.

After re-acquiring F, a restored model is close to the injected model again; collateral damage of
suppression persists. The residual is KL(reacquire_F(C) ‖ injected): its mean over retain answer
positions plus its mean over general-text positions. Re-acquisition is logged in chunks, so every
model has a relearning curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palimpsest.facts.questions import TRAINED_POOLS, Question
from palimpsest.models.net import Net
from palimpsest.models.optimisers import OPTIMISERS
from palimpsest.models.train import TextBatch, text_loss, train
from palimpsest.scoring.answers import Floats, Scores, Sheet, score
from palimpsest.scoring.divergence import Teacher


@dataclass(frozen=True)
class Return:
    """One model's way back: the log of its chunks, its scores at the end, where it diverged."""

    curve: tuple[dict[str, float], ...]
    scores: Scores
    diverged: int | None


def on_the_way(question: Question) -> bool:
    """Tell whether a question is scored after each chunk of re-acquisition."""
    if question.set == "forget":
        return question.pool in (*TRAINED_POOLS, "evaluation")
    return question.set == "general" or (
        question.set == "retain" and question.pool in TRAINED_POOLS
    )


def in_residual(question: Question) -> bool:
    """Tell whether a question's positions enter the residual."""
    return question.set == "general" or (
        question.set == "retain" and question.pool in TRAINED_POOLS
    )


def reacquire(
    net: Net,
    steps: Sequence[Sequence[TextBatch]],
    *,
    chunks: int,
    learning_rate: float,
    sheet: Sheet,
    injected: Teacher,
    optimiser: str = "adamw",
) -> list[Return]:
    """Train the net on the forget set and return each member's way back.

    sheet: the questions that ``on_the_way`` keeps; injected: its teacher where ``in_residual``.
    """
    borders = {round(len(steps) * chunk / chunks): chunk for chunk in range(1, chunks + 1)}
    log: list[list[dict[str, float]]] = [[] for _ in range(net.stack)]
    final: list[Scores] = []

    def note(step: int) -> None:
        nonlocal final
        chunk = borders.get(step, 0)
        if step and not chunk:
            return
        final = score(net, sheet, injected=injected)
        for member, scores in enumerate(final):
            log[member].append({"chunk": chunk, "step": step, **summary(sheet, scores)})

    note(0)
    diverged = train(
        net,
        steps,
        text_loss,
        learning_rate=learning_rate,
        after_step=note,
        optimiser=OPTIMISERS[optimiser],
    )
    return [
        Return(tuple(log[member]), final[member], diverged.get(member))
        for member in range(net.stack)
    ]


def summary(sheet: Sheet, scores: Scores) -> dict[str, float]:
    """Return the numbers of one chunk, all in nats."""
    tokens = np.array(sheet.tokens, dtype=np.float64)
    nll = scores.nll_sum / tokens
    masks = _masks(sheet)

    def position_mean(mask: Any) -> float:
        return float(scores.kl_injected[mask].sum() / tokens[mask].sum())

    return {
        "forget_trained_nll": _fact_mean(sheet, nll, masks["forget_trained"]),
        "forget_heldout_nll": _fact_mean(sheet, nll, masks["forget_heldout"]),
        "retain_nll": _fact_mean(sheet, nll, masks["retain_axis"]),
        "residual_retain": position_mean(masks["retain"]),
        "residual_general": position_mean(masks["general"]),
    }


def curve_columns(model: str, curve: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the rows of ``curves.parquet`` for one model, as columns."""
    numbers = ("chunk", "step")
    columns: dict[str, Any] = {"model": [model] * len(curve)}
    for key in curve[0]:
        kind = np.int32 if key in numbers else np.float64
        columns[key] = np.array([row[key] for row in curve], dtype=kind)
    return columns


def _masks(sheet: Sheet) -> dict[str, Any]:
    def mask(kind: str, *pools: str) -> Any:
        return np.array([q.set == kind and q.pool in pools for q in sheet.questions])

    cloze = mask("retain", "cloze")
    return {
        "forget_trained": mask("forget", "trained"),
        "forget_heldout": mask("forget", "evaluation"),
        "retain_axis": cloze if cloze.any() else mask("retain", "trained"),
        "retain": mask("retain", *TRAINED_POOLS),
        "general": mask("general", "general"),
    }


def _fact_mean(sheet: Sheet, nll: Floats, mask: Any) -> float:
    """Return the mean over facts of the mean over a fact's templates."""
    facts: dict[str, list[float]] = {}
    for question, value, kept in zip(sheet.questions, nll, mask):
        if kept:
            facts.setdefault(question.fact, []).append(float(value))
    return float(np.mean([np.mean(values) for values in facts.values()])) if facts else float("nan")
