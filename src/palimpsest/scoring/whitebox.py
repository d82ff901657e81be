"""Criteria that look into a model: its states, its gradients and its weights.

States are those behind each layer, before the last norm, at the positions that predict the answer.
(Released code that patches or compares the framework's final hidden state uses an already
normalised one; code that compares position 0 compares states that know only the first token.)
Numbers are those of the catalogue.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from palimpsest.models.forward import Forward, Scored, watched
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.stacked import StackedNet
from palimpsest.models.tape import Tape, Var
from palimpsest.scoring.membership import auc

Floats = NDArray[np.float64]
LEAST = 0.05
"""Smallest gap between injected model and reference at which a layer counts, in nats."""
TOP = 0.001
"""Share of a layer's parameters that the masked Fisher criterion looks at."""
RIDGE = 1.0
NEWTON = 12


@torch.no_grad()
def states(net: Net, texts: Sequence[Encoded], pad: int) -> Tensor:
    """Return the states (stack, layers, scored, width) of a net at the scored positions.

    A model that is more than one checkpoint is asked text by text: what it delivers for a text are
    the states of the part that answers it.
    """
    if isinstance(net, StackedNet):
        return _states(net, collate(texts, pad))
    return torch.cat([_states(net, collate([text], pad)) for text in texts], dim=2)


def _states(net: Net, batch: Batch) -> Tensor:
    seen: dict[int, Tensor] = {}

    def look(at: int, value: Tensor, scored: Scored) -> Tensor:
        seen[at] = value if scored is None else value.index_select(1, scored)
        return value

    with watched(look):
        net.logits(batch)
    return torch.stack([seen[at] for at in sorted(seen)], dim=1)


def lens(forward: Forward, params: Mapping[str, Tensor], values: Tensor) -> Tensor:
    """Return log-probabilities (stack, layers, scored, vocabulary) of states (…, width) read
    through the last norm and head of ``params``."""
    flat = values.flatten(1, 2)
    logits = forward.read_out(Tape(params), Var(flat, False)).value
    return torch.log_softmax(logits, -1).unflatten(1, values.shape[1:3])


def closed_share(target: ArrayLike, mine: ArrayLike, least: float = LEAST) -> float:
    """Return [38, 39, 41, 43] the share of the injected model's distance from the reference that a
    model has closed.

    target: the reference's distance from the injected model in each layer, mine: the model's. Over
    layers with target > least: Σ target · clip(mine / target, 0, 1) / Σ target. arXiv:2605.24614.
    """
    whole, part = (np.asarray(x, np.float64) for x in (target, mine))
    counted = whole > least
    if not counted.any():
        return math.nan
    closed = whole[counted] * np.clip(part[counted] / whole[counted], 0, 1)
    return float(closed.sum() / whole[counted].sum())


def linear_cka(first: Tensor, second: Tensor) -> float:
    """Return [41] linear CKA of two sets of states (items, width). arXiv:1905.00414."""
    x, y = (value.double() - value.double().mean(0) for value in (first, second))
    norm = torch.linalg.matrix_norm
    scale = norm(x.mT @ x) * norm(y.mT @ y)
    return float(norm(y.mT @ x).square() / scale) if scale > 0 else math.nan


def first_component(values: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return [42] the mean (width,), first principal direction and sd of (items, width)."""
    centre = values.double().mean(0)
    _, scales, directions = torch.linalg.svd(values.double() - centre, full_matrices=False)
    return centre, directions[0], float(scales[0]) / math.sqrt(max(1, len(values) - 1))


def component_shift(mine: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return [42] |cos| of the two first components, and the distance of the centres along the
    reference's, in its standard deviations. arXiv:2505.16831."""
    if not bool(torch.isfinite(mine).all()):
        return math.nan, math.nan
    centre, direction, _ = first_component(mine)
    other, along, spread = first_component(reference)
    moved = float((centre - other) @ along) / spread if spread > 0 else math.nan
    return abs(float(direction @ along)), abs(moved)


def probe_auc(values: Tensor, true: ArrayLike, facts: Sequence[str], left: Sequence[str]) -> float:
    """Return [40] how well a logistic probe tells true statements of facts it has not seen.

    values: (statements, width); true: (statements,) whether the statement holds; facts: what each
    is about; left: the facts that are left out one at a time. The mean of their AUCs. Ridge-
    penalised logistic regression on standardised states. arXiv:2402.16835.
    """
    if not bool(torch.isfinite(values).all()):
        return math.nan
    spread = values.double().std(0)
    x = (values.double() - values.double().mean(0)) / torch.where(spread > 0, spread, 1.0)
    labels = torch.tensor(np.asarray(true, np.float64))
    results = []
    for fact in left:
        out = torch.tensor([name == fact for name in facts])
        scores = (x[out] @ logistic(x[~out], labels[~out])).numpy()
        right = labels[out].numpy() > 0
        results.append(auc(scores[right], scores[~right]))
    return float(np.mean(results))


def logistic(x: Tensor, labels: Tensor) -> Tensor:
    """Return the weights (width,) of a ridge-penalised logistic regression, by Newton steps.

    An intercept is fitted and dropped: it shifts all scores alike. Steps are taken in the span of
    the (items,) rows, so that they cost items³ whatever the width.
    """
    ones = torch.ones(len(x), 1, dtype=x.dtype)
    kernel = torch.cat([x, ones], dim=1)
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
    largest reference − injected, at least one. arXiv:2605.24614.
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


def stable_rank(change: Tensor) -> float:
    """Return [48] ‖D‖_F² / ‖D‖₂² of a matrix (rows, columns), 0 where nothing changed."""
    if not bool(torch.isfinite(change).all()):
        return math.nan
    largest = float(torch.linalg.matrix_norm(change, 2))
    return float(torch.linalg.matrix_norm(change)) ** 2 / largest**2 if largest > 0 else 0.0


def distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return [46] the Euclidean distance of two sets of weights."""
    parts = [float((first[name] - second[name]).double().square().sum()) for name in second]
    return math.sqrt(math.fsum(parts))
