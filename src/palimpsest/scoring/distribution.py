"""Distances between next-token distributions at the same positions, from log-probabilities."""

import torch
from torch import Tensor

from palimpsest.scoring.divergence import divergence


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Return JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), in nats at each position.

    first, second: (..., vocabulary) log-probabilities.
    """
    middle = torch.logaddexp(first, second) - torch.log(torch.tensor(2.0))
    return 0.5 * (divergence(first, middle) + divergence(second, middle))


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return ½ Σ |p − q| at each position."""
    return 0.5 * (first.exp() - second.exp()).abs().sum(-1)


def zero_retrain_forgetting(mine: Tensor, random: Tensor) -> float:
    """Return [31] ZRF = 1 − mean JS in bits between the model and a randomly initialised one.

    Base-2 logarithms keep it within 0 and 1. Chundawat et al., arXiv:2205.08096.
    """
    return 1 - float(jensen_shannon(mine, random).mean() / torch.log(torch.tensor(2.0)))
