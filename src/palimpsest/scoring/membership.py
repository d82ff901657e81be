"""Membership inference: attack scores of texts (higher: more like a member) and their AUC.

Members are the forget questions, non-members the same phrasings of never-learned probes; a restored
model gives an AUC near 0.5. All scores use every answer token: released code that drops the last
one as an end mark would drop a third of a nonce answer. Numbers are those of the catalogue.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
FLOOR = 1e-6
"""Smallest variance by which Min-K++ standardises."""


def auc(members: ArrayLike, others: ArrayLike) -> float:
    """Return the chance that a member's score is above another's, ties counting one half."""
    first, second = (np.asarray(x, np.float64) for x in (members, others))
    from scipy.stats import rankdata  # slow to import, and seldom asked for

    ranks = rankdata(np.concatenate([first, second]))[: len(first)]
    count = len(first)
    return float((ranks.sum() - count * (count + 1) / 2) / (count * len(second)))


def zlib_scores(nll: ArrayLike, texts: Sequence[str]) -> Floats:
    """Return [19] −L divided by the bytes of the text compressed by zlib. arXiv:2012.07805."""
    sizes = np.array([len(zlib.compress(text.encode())) for text in texts], np.float64)
    return -np.asarray(nll, np.float64) / sizes


def min_k_scores(tokens: Sequence[Floats], share: float = 0.2) -> Floats:
    """Return [20, 21] the mean of the lowest ⌊kT⌋, at least one, of each text's token scores.

    Of log-probabilities it is Min-K (arXiv:2310.16789), of standardised ones Min-K++.
    """
    return np.array([np.sort(t)[: max(1, int(share * len(t)))].mean() for t in tokens])


def standardised(logp: Floats, mean: Floats, variance: Floats) -> Floats:
    """Return [21] each token's log-probability standardised under the model's own next-token law.

    mean = Σ p log p and variance of log p, both over the vocabulary. arXiv:2404.02936.
    """
    return np.asarray((logp - mean) / np.sqrt(np.maximum(variance, FLOOR)))


def recall_scores(conditional: ArrayLike, plain: ArrayLike) -> Floats:
    """Return [24] LL(x given a non-member prefix) / LL(x). arXiv:2406.15968."""
    return np.asarray(conditional, np.float64) / np.asarray(plain, np.float64)


def privleak(mine: float, reference: float) -> float:
    """Return [25] 100 · (AUC − AUC_R) / AUC_R.

    AUC is the chance that a non-member's score is below a member's. MUSE, arXiv:2407.06460.
    """
    return 100 * (mine - reference) / reference
