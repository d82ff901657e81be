"""Criteria that read token probabilities, as functions of arrays: likelihood and membership.

Numbers in brackets are those of the catalogue, which names the sources. A score whose ideal is
small is returned as it is; ``measures.py`` turns it so that larger means less restored. All scores
use every answer token: released code that drops the last one as an end mark would drop a third of a
nonce answer.
"""

import math
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def probability(nll: ArrayLike) -> float:
    """Return [1, 3] the arithmetic mean of exp(−L), L the mean token NLL of an answer (items,)."""
    return float(np.exp(-np.asarray(nll, np.float64)).mean())


def truth_ratios(true: ArrayLike, wrong: ArrayLike) -> tuple[Floats, Floats]:
    """Return p_c and p_w (items,): exp(−L) of the answer, and its geometric mean over distractors.

    true: (items,) NLL of the answer; wrong: (items, distractors).
    """
    right, others = np.asarray(true, np.float64), np.asarray(wrong, np.float64)
    return np.exp(-right), np.exp(-others.mean(axis=1))


def truth_ratio(true: ArrayLike, wrong: ArrayLike) -> float:
    """Return [4] TOFU's forget aggregate, the mean of min(r, 1/r) with r = p_w / p_c."""
    right, others = truth_ratios(true, wrong)
    ratio = others / right
    return float(np.minimum(ratio, 1 / ratio).mean())


def truth_knowledge(true: ArrayLike, wrong: ArrayLike) -> float:
    """Return [4] the knowledge aggregate, the mean of p_c / (p_c + p_w)."""
    right, others = truth_ratios(true, wrong)
    return float((right / (right + others)).mean())


def forget_quality(mine: ArrayLike, reference: ArrayLike) -> float:
    """Return [5] the p-value of the two-sample Kolmogorov–Smirnov test of two sets of ratios."""
    from scipy.stats import ks_2samp  # slow to import, and seldom asked for

    return float(ks_2samp(np.asarray(mine), np.asarray(reference), method="exact").pvalue)


def exact_memorization(hits: Sequence[Bools]) -> float:
    """Return [6] the mean over answers of the share of tokens that greedy decoding gets right."""
    return float(np.mean([hit.mean() for hit in hits]))


def extraction_strength(hits: Sequence[Bools]) -> float:
    """Return [7] the mean of 1 − k/T, k the fewest given tokens after which the rest is greedy.

    An answer whose last token is wrong has k = T and strength 0; released code that never tries
    k = T gives every answer of one token strength 1.
    """
    given = [np.flatnonzero(np.r_[True, ~hit])[-1] / len(hit) for hit in hits]
    return float(np.mean([1 - share for share in given]))


def multiple_choice(true: ArrayLike, wrong: ArrayLike) -> float:
    """Return [8] the share of items whose answer has the smallest NLL; a tie is a miss."""
    right, others = np.asarray(true, np.float64), np.asarray(wrong, np.float64)
    return float((right < others.min(axis=1)).mean())


def calibration_error(confidence: ArrayLike, hit: ArrayLike, bins: int = 10) -> float:
    """Return [9] Σ_b n_b / n · |accuracy − confidence| over equal bins of confidence."""
    sure, right = np.asarray(confidence, np.float64), np.asarray(hit, np.float64)
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, weights=right - sure, minlength=bins)
    return float(np.abs(gaps).sum() / len(sure))


def leak_at_k(nll_sum: ArrayLike, draws: int = 128) -> float:
    """Return [16] the mean chance that at least one of k samples is the answer: 1 − (1 − q)^k.

    q = exp(−NLL of the whole answer): exact, with no sampling and no judge.
    """
    missed = np.log1p(-np.minimum(np.exp(-np.asarray(nll_sum, np.float64)), 1 - 1e-15))
    return float(-np.expm1(draws * missed).mean())


def min_rank_p(forget_deltas: ArrayLike, probe_deltas: ArrayLike) -> float:
    """Return [11] the chance that the smallest of m forget deltas has so few probe deltas below it.

    k of the n probe deltas lie below it (a tie counts as below). Under exchangeability
    P(at most k) = 1 − C(n + m − k − 1, m) / C(n + m, m).
    """
    forget, probe = (np.asarray(x, np.float64) for x in (forget_deltas, probe_deltas))
    m, n = len(forget), len(probe)
    below = int((probe <= forget.min()).sum())
    return 1 - math.comb(n + m - below - 1, m) / math.comb(n + m, m)


# -- membership: scores of texts, higher for members, and their AUC ------------------------------


def auc(members: ArrayLike, others: ArrayLike) -> float:
    """Return the chance that a member's score is above another's, ties counting one half."""
    from scipy.stats import mannwhitneyu  # slow to import, and seldom asked for

    first, second = (np.asarray(x, np.float64) for x in (members, others))
    won = mannwhitneyu(first, second, method="asymptotic").statistic
    return float(won / (len(first) * len(second)))


def zlib_scores(nll: ArrayLike, texts: Sequence[str]) -> Floats:
    """Return [19] −L divided by the bytes of the text compressed by zlib."""
    sizes = np.array([len(zlib.compress(text.encode())) for text in texts], np.float64)
    return -np.asarray(nll, np.float64) / sizes


def min_k_scores(tokens: Sequence[Floats], share: float = 0.2) -> Floats:
    """Return [20, 21] the mean of the lowest ⌊kT⌋, at least one, of each text's token scores.

    Of log-probabilities it is Min-K, of standardized ones Min-K++.
    """
    return np.array([np.sort(t)[: max(1, int(share * len(t)))].mean() for t in tokens])


def standardize(logp: Floats, mean: Floats, variance: Floats) -> Floats:
    """Return [21] log-probabilities standardized under the model's own next-token law.

    mean = Σ p log p and variance of log p, both over the vocabulary.
    """
    return np.asarray((logp - mean) / np.sqrt(np.maximum(variance, 1e-6)))


def recall_scores(conditional: ArrayLike, plain: ArrayLike) -> Floats:
    """Return [24] LL(x given a non-member prefix) / LL(x)."""
    return np.asarray(conditional, np.float64) / np.asarray(plain, np.float64)


def privleak(mine: float, reference: float) -> float:
    """Return [25] 100 · (AUC − AUC_R) / AUC_R."""
    return 100 * (mine - reference) / reference
