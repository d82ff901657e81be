"""Criteria that look into a model: its distributions, states, gradients and weights.

States are those behind each layer, before the last norm, at the positions that predict the answer.
(Released code that patches or compares the framework's final hidden state uses an already
normalized one; code that compares position 0 compares states that know only the first token.)
Numbers in brackets are those of the catalogue, which names the sources.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from palimpsest.scoring.answers import divergence
from palimpsest_trials.criteria.likelihood import auc

LEAST = 0.05
"""Smallest gap between injected model and reference at which a layer counts, in nats."""
TOP = 0.001
"""Share of a layer's parameters that the masked Fisher criterion looks at."""
RIDGE = 1.0
NEWTON = 12
GROUP = 32
"""Weights that share one scale when quantized."""


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Return [30] JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), in nats at each position.

    first, second: (..., vocabulary) log-probabilities.
    """
    middle = torch.logaddexp(first, second) - torch.log(torch.tensor(2.0))
    return 0.5 * (divergence(first, middle) + divergence(second, middle))


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return [30] ½ Σ |p − q| at each position."""
    return 0.5 * (first.exp() - second.exp()).abs().sum(-1)


def zero_retrain_forgetting(mine: Tensor, random: Tensor) -> float:
    """Return [31] ZRF = 1 − mean JS in bits between the model and a randomly initialized one.

    Base-2 logarithms keep it within 0 and 1.
    """
    return 1 - float(jensen_shannon(mine, random).mean() / torch.log(torch.tensor(2.0)))


def closed_share(target: ArrayLike, mine: ArrayLike, least: float = LEAST) -> float:
    """Return [38, 39, 41, 43] the share of the injected model's distance from the reference that a
    model has closed.

    target: the reference's distance from the injected model in each layer, mine: the model's. Over
    layers with target > least: Σ target · clip(mine / target, 0, 1) / Σ target.
    """
    whole, part = (np.asarray(x, np.float64) for x in (target, mine))
    counted = whole > least
    if not counted.any():
        return math.nan
    closed = whole[counted] * np.clip(part[counted] / whole[counted], 0, 1)
    return float(closed.sum() / whole[counted].sum())


def linear_cka(first: Tensor, second: Tensor) -> float:
    """Return [41] linear CKA (arXiv:1905.00414) of two sets of states (items, width)."""
    x, y = (value.double() - value.double().mean(0) for value in (first, second))
    norm = torch.linalg.matrix_norm
    scale = norm(x.mT @ x) * norm(y.mT @ y)
    return float(norm(y.mT @ x).square() / scale) if scale > 0 else math.nan


def component_shift(mine: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return [42] |cos| of the first components of two sets of states (items, width), and the
    distance of the centers along the reference's, in its standard deviations."""
    if not bool(torch.isfinite(mine).all()):
        return math.nan, math.nan
    center, direction, _ = _first_component(mine)
    other, along, spread = _first_component(reference)
    moved = float((center - other) @ along) / spread if spread > 0 else math.nan
    return abs(float(direction @ along)), abs(moved)


def _first_component(values: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the mean (width,), first principal direction and standard deviation along it."""
    center = values.double().mean(0)
    _, scales, directions = torch.linalg.svd(values.double() - center, full_matrices=False)
    return center, directions[0], float(scales[0]) / math.sqrt(max(1, len(values) - 1))


def probe_auc(values: Tensor, true: ArrayLike, facts: Sequence[str], left: Sequence[str]) -> float:
    """Return [40] how well a logistic probe tells true statements of facts it has not seen.

    values: (statements, width); true: (statements,) whether the statement holds; facts: what each
    is about; left: the facts that are left out one at a time. The mean of their AUCs.
    """
    if not bool(torch.isfinite(values).all()):
        return math.nan
    spread = values.double().std(0)
    x = (values.double() - values.double().mean(0)) / torch.where(spread > 0, spread, 1.0)
    labels = torch.tensor(np.asarray(true, np.float64))
    results = []
    for fact in left:
        out = torch.tensor([name == fact for name in facts])
        scores = (x[out] @ fit_logistic(x[~out], labels[~out])).numpy()
        right = labels[out].numpy() > 0
        results.append(auc(scores[right], scores[~right]))
    return float(np.mean(results))


def fit_logistic(x: Tensor, labels: Tensor) -> Tensor:
    """Return the weights (width,) of a ridge-penalized logistic regression, by Newton steps.

    An intercept is fitted and dropped: it shifts all scores alike. Steps are taken in the span of
    the (items,) rows, so that they cost items³ whatever the width.
    """
    kernel = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    kernel = kernel @ kernel.mT
    dual = torch.zeros(len(x), dtype=x.dtype)
    for _ in range(NEWTON):
        score = kernel @ dual
        chance = torch.sigmoid(score)
        weight = (chance * (1 - chance)).clamp(min=1e-6)
        target = score + (labels - chance) / weight
        dual = torch.linalg.solve(kernel + RIDGE * torch.diag(1 / weight), target)
    return x.mT @ dual


def masked_fisher(
    mine: Mapping[str, Tensor], reference: Mapping[str, Tensor], injected: Mapping[str, Tensor]
) -> float:
    """Return [43] the share of the Fisher gap that a model closed where the gap is largest.

    Squared gradients of the forget answers' NLL by parameter; in each layer the 0.1 % with the
    largest reference − injected, at least one.
    """
    layers: dict[str, list[str]] = {}
    for name in injected:
        head, _, rest = name.partition(".layers." if ".layers." in name else ".h.")
        layers.setdefault(rest.split(".")[0] if rest else head, []).append(name)
    target, gained = [], []
    for names in layers.values():
        far, near, own = (
            torch.cat([of[name].flatten() for name in names]).double()
            for of in (reference, injected, mine)
        )
        gap = far - near
        top = gap.topk(max(1, round(TOP * len(gap)))).indices
        target.append(float(gap[top].sum()))
        gained.append(float((own - near)[top].sum()))
    return closed_share(target, gained, 0.0)


def weight_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return [46] the Euclidean distance of two sets of weights."""
    parts = [float((first[name] - second[name]).double().square().sum()) for name in second]
    return math.sqrt(math.fsum(parts))


def stable_rank(change: Tensor) -> float:
    """Return [48] ‖D‖_F² / ‖D‖₂² of a matrix (rows, columns), 0 where nothing changed."""
    if not bool(torch.isfinite(change).all()):
        return math.nan
    largest = float(torch.linalg.matrix_norm(change, 2))
    return float(torch.linalg.matrix_norm(change)) ** 2 / largest**2 if largest > 0 else 0.0


def quantize(weights: Tensor, bits: int, group: int = GROUP) -> Tensor:
    """Return [55] weights (…, columns) rounded to ``bits``, per group by absmax / (2^(b−1) − 1)."""
    columns = weights.shape[-1]
    padded = torch.nn.functional.pad(weights, (0, -columns % group))
    blocks = padded.unflatten(-1, (-1, group))
    top = 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(-1, keepdim=True) / top
    rounded = torch.round(blocks / torch.where(scale > 0, scale, 1.0)).clamp(-top, top) * scale
    return rounded.flatten(-2)[..., :columns]
