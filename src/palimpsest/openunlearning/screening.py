"""The base-anchored screen on arrays of scores: are forget questions known like never-taught ones?

Per question, delta = score of the model - score of its anchor; a score is lower for what a model
knows better. Null hypothesis: the deltas of forget questions and of never-taught holdout questions
have one distribution. Each side is a one-sided Mann–Whitney test.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from palimpsest.errors import ScoreError
from palimpsest.stats.ranktest import EXACT_PAIRS, Method, rank_test

FEWEST = 20
"""Questions on each side from which the normal approximation is used: p-values of splits of 40 and
of 400 questions can then be compared; in the far tail they are larger than exact ones."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Both sides of the screen; p-values are not adjusted for further tests."""

    p_below: float
    """Small if forget questions are better known than holdout questions: *still knows*."""
    p_above: float
    """Small if they are less known: *over-forgotten*."""
    auc: float
    """Chance that a holdout delta lies above a forget delta, ties counting one half: 1 if forget
    questions are all better known, as in OpenUnlearning's ``mia_*``."""
    median_forget: float
    """Median delta."""
    median_holdout: float
    forget: int
    """Questions that entered; those without a finite score in the log or its anchor did not."""
    holdout: int
    left_out: int
    anchored: bool
    """False with raw scores: then differences of difficulty show as forgetting, or hide it."""
    method: Method
    """"exact", "exact-ties" or "normal"."""


def screen(
    forget: ArrayLike,
    holdout: ArrayLike,
    anchor_forget: ArrayLike | None = None,
    anchor_holdout: ArrayLike | None = None,
) -> Screen:
    """Return the base-anchored screen of a model's scores on forget and never-taught questions.

    forget, holdout: (m,) and (n,) scores, lower for what the model knows better, such as the loss
        of the answer or OpenUnlearning's ``mia_min_k``; both of questions of one kind.
    anchor_forget, anchor_holdout: the scores of the same questions, in the same order, by a model
        that was taught neither: the pretrained model. Without them raw scores are compared.

    ::

        found = palimpsest.screen([2.1, 0.4, 0.9], [2.8, 3.0, 3.3], [3.0, 2.9, 3.1], [2.9, 3.2, 3])
        found.p_below, found.auc   # 0.05 and 1.0: the model still knows the forget questions
    """
    anchored = anchor_forget is not None
    if anchored is not (anchor_holdout is not None):
        raise ScoreError("one anchor found; expected anchor_forget and anchor_holdout, or neither")
    deltas = [_deltas(forget, anchor_forget), _deltas(holdout, anchor_holdout)]
    mine, theirs = (delta[np.isfinite(delta)] for delta in deltas)
    if not (len(mine) and len(theirs)):
        raise ScoreError(f"{len(mine)} forget and {len(theirs)} holdout scores are finite")
    pairs = 0 if min(len(mine), len(theirs)) >= FEWEST else EXACT_PAIRS
    below, above = rank_test(mine, theirs, pairs), rank_test(theirs, mine, pairs)
    return Screen(
        p_below=below.p_value,
        p_above=above.p_value,
        auc=above.statistic / (len(mine) * len(theirs)),
        median_forget=float(np.median(mine)),
        median_holdout=float(np.median(theirs)),
        forget=len(mine),
        holdout=len(theirs),
        left_out=sum(map(len, deltas)) - len(mine) - len(theirs),
        anchored=anchored,
        method=below.method,
    )


def _deltas(
    scores: ArrayLike, anchor: ArrayLike | None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        mine = np.asarray(scores, np.float64)
        theirs = np.zeros_like(mine) if anchor is None else np.asarray(anchor, np.float64)
    except (TypeError, ValueError) as error:
        raise ScoreError(f"scores are not numbers ({error}); expected one per question") from error
    if mine.ndim != 1 or mine.shape != theirs.shape:
        raise ScoreError(
            f"scores of shape {mine.shape}, anchor's {theirs.shape}; expected one score per "
            "question, the anchor's of the same questions in the same order"
        )
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return mine - theirs
