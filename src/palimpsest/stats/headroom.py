"""Counterfactual headroom: how much injecting the forget set taught that retained data would not.

    G     = mean NLL_reference(F) - mean NLL_injected(F)
    G-hat = mean NLL_base(F | evidence in context) - mean NLL_injected(F)

G is large for counterfactual facts and near zero when retained data reconstruct them; G-hat
estimates it without the reference. It detects the regime and is not claimed to do more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from palimpsest.errors import ScoreError
from palimpsest.stats.intervals import Interval, cluster_bootstrap
from palimpsest.stats.items import Columns

EXPLAINED = 0.5
"""Fraction of what injection taught that evidence in context must leave unexplained."""
FEWEST = 4
"""Fewest facts from which inferability is decided."""


class Regime(StrEnum):
    """Whether retained data could give the facts away."""

    COUNTERFACTUAL = "counterfactual"
    INFERABLE = "inferable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Headroom:
    """Headroom of a set of facts, with the regime it puts them in."""

    facts: int
    estimate: Interval
    """G-hat, resampling facts."""
    contrast: Interval
    """G-hat minus ``EXPLAINED`` of what injection taught; its sign decides the regime."""
    taught: float
    """Mean base NLL minus mean injected NLL."""
    true: Interval | None
    """G, when a reference was scored."""
    regime: Regime
    reason: str


def measure_headroom(
    facts: Sequence[str],
    base_nlls: ArrayLike,
    evidence_nlls: ArrayLike,
    injected_nlls: ArrayLike,
    reference_nlls: ArrayLike | None = None,
) -> Headroom:
    """Return G-hat (and G) over ``facts`` and the regime decision; every array is (facts,).

    With few facts the bootstrap interval is too narrow; fewer than
    ``FEWEST`` leave the regime undecided.
    """
    if len(facts) < 2:
        raise ScoreError(f"headroom was asked for {len(facts)} facts; an interval needs 2 or more")
    base = _scores("base", facts, base_nlls)
    evidence = _scores("base with evidence", facts, evidence_nlls)
    injected = _scores("injected", facts, injected_nlls)
    unexplained = evidence - injected
    estimate = cluster_bootstrap(unexplained, facts)
    contrast = cluster_bootstrap(unexplained - EXPLAINED * (base - injected), facts)
    taught = float((base - injected).mean())
    true = None
    if reference_nlls is not None:
        reference = _scores("reference", facts, reference_nlls)
        true = cluster_bootstrap(reference - injected, facts)
    regime, reason = _decide(len(facts), taught, contrast)
    return Headroom(len(facts), estimate, contrast, taught, true, regime, reason)


def read_headroom(scores: Columns) -> Headroom | None:
    """Return the headroom from the item columns of ``base``, ``evidence`` (base with evidence in
    context), ``injected`` and, if it was asked, ``reference``; None for a lone fact."""
    facts = list(dict.fromkeys(scores["fact"]))
    if len(facts) < 2:
        return None
    rate = np.asarray(scores["nll_sum"], np.float64) / np.asarray(scores["tokens"], np.float64)
    nlls = {
        model: [
            float(rate[(scores["model"] == model) & (scores["fact"] == fact)].mean())
            for fact in facts
        ]
        for model in dict.fromkeys(scores["model"])
    }
    return measure_headroom(
        facts, nlls["base"], nlls["evidence"], nlls["injected"], nlls.get("reference")
    )


def _decide(count: int, taught: float, contrast: Interval) -> tuple[Regime, str]:
    share = f"{EXPLAINED:.0%} of the {taught:.2f} nats injection taught"
    if count < FEWEST:
        return Regime.UNDECIDED, f"{count} facts are fewer than {FEWEST}"
    if taught <= 0:
        return Regime.UNDECIDED, f"injection taught nothing ({taught:.2f} nats on average)"
    if contrast.low > 0:
        return Regime.COUNTERFACTUAL, f"evidence in context leaves more than {share} unexplained"
    if contrast.high < 0:
        return Regime.INFERABLE, f"evidence in context leaves less than {share} unexplained"
    return Regime.UNDECIDED, f"the interval of what evidence leaves unexplained contains {share}"


def _scores(model: str, facts: Sequence[str], nlls: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(nlls, dtype=np.float64)
    if values.shape != (len(facts),):
        raise ScoreError(
            f"model {model}: scores of shape {values.shape} for {len(facts)} facts; expected one "
            "per fact"
        )
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ScoreError(f"model {model}, fact {facts[wrong[0]]}: the NLL is {values[wrong[0]]}")
    return values
