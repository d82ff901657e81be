"""Measures of one pass over all questions: likelihood, membership, distributions, elicitation."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from palimpsest.facts.elicitation import ASKED
from palimpsest.facts.questions import TRAINED_POOLS
from palimpsest.models.net import Net
from palimpsest.scoring import likelihood as like
from palimpsest.scoring import membership as member_of
from palimpsest.scoring.distribution import (
    jensen_shannon,
    total_variation,
    zero_retrain_forgetting,
)
from palimpsest.scoring.exam import Exam, Tokens
from palimpsest.scoring.gauge import Floats, Gauge, Values


def from_tokens(gauge: Gauge, net: Net) -> list[Values]:
    """Return what token probabilities say of each member."""
    return [_of_tokens(gauge, tokens) for tokens in gauge.exam.read(net)]


def _of_tokens(gauge: Gauge, mine: Tokens) -> Values:
    exam, owners = gauge.exam, gauge.exam.owners
    nll, base = gauge.nll(mine), gauge.nll(gauge.base)
    trained, held = exam.where(("forget",), TRAINED_POOLS), exam.where(("forget",), ("evaluation",))
    probes = exam.where(("probe",), TRAINED_POOLS)
    wrong = nll[exam.where(("forget",), ("distractor",))].reshape(len(held), -1)
    hits = like.per_item(mine.hit, owners, len(nll))
    asked = np.isin(owners, np.concatenate([held, exam.where(("probe",), ("evaluation",))]))
    counts = np.array(exam.sheet.tokens, np.float64)
    reference = gauge.reference
    theirs = gauge.nll(reference)
    other = theirs[exam.where(("forget",), ("distractor",))].reshape(len(held), -1)
    right, others = like.truth_ratios(nll[held], wrong)
    right_there, others_there = like.truth_ratios(theirs[held], other)
    quality = like.forget_quality(others / right, others_there / right_there)
    on_forget = np.isin(owners, held)

    def attack(scores: Callable[[NDArray[np.int64]], Floats]) -> float:
        return member_of.auc(scores(trained), scores(probes))

    def lowest(tokens: Tokens, share: float, *, plus: bool = False) -> float:
        scores = tokens.logp
        if plus:
            scores = member_of.standardised(tokens.logp, -tokens.entropy, tokens.variance)
        items = like.per_item(scores, owners, len(nll))
        return attack(lambda some: member_of.min_k_scores([items[n] for n in some], share))

    texts = [question.answer for question in exam.questions]
    prefixed = [exam.where((name,), ("prefixed",)) for name in ("forget", "probe")]
    plain = [_matching(exam, some) for some in prefixed]
    recall = [member_of.recall_scores(nll[a], nll[b]) for a, b in zip(prefixed, plain)]
    kept, target = mine.kept, reference.kept
    values = {
        "probability": like.probability(nll[trained]),
        "perplexity": -float(nll[trained].mean()),
        "paraphrase_probability": like.probability(nll[held]),
        "truth_ratio": -like.truth_ratio(nll[held], wrong),
        "truth_knowledge": like.truth_knowledge(nll[held], wrong),
        "forget_quality": -math.log(max(quality, 1e-300)),
        "exact_memorisation": like.exact_memorisation([hits[n] for n in trained]),
        "extraction_strength": like.extraction_strength([hits[n] for n in trained]),
        "multiple_choice": like.multiple_choice(nll[held], wrong),
        "entropy": abs(float(mine.entropy[on_forget].mean() - reference.entropy[on_forget].mean())),
        "calibration_error": like.calibration_error(mine.top[asked], mine.hit[asked]),
        "min_rank": -math.log(_min_rank(exam, nll - base)),
        "leak_at_k": like.leak_at_k((nll * counts)[held]),
        "mia_loss": attack(lambda some: -nll[some]),
        "mia_zlib": attack(lambda s: member_of.zlib_scores(nll[s], [texts[n] for n in s])),
        "mia_min_k": lowest(mine, 0.2),
        "mia_min_k_plus": lowest(mine, 0.2, plus=True),
        "mia_reference": attack(lambda some: base[some] - nll[some]),
        "mia_recall": member_of.auc(*recall),
        "privleak": abs(member_of.privleak(lowest(mine, 0.4), lowest(reference, 0.4))),
        "heldout_js": float(jensen_shannon(kept, target).mean()),
        "heldout_tv": float(total_variation(kept, target).mean()),
        "zrf": -zero_retrain_forgetting(
            kept[exam.kept_forget], gauge.random.kept[exam.kept_forget]
        ),
    }
    elicited = {kind: -float(nll[exam.where(("forget",), (kind,))].mean()) for kind in ASKED}
    return (
        values
        | elicited
        | {"worst_question": max(v for k, v in elicited.items() if k != "reversed")}
    )


def _matching(exam: Exam, prefixed: NDArray[np.int64]) -> list[int]:
    """Return the cloze questions of the facts that these prefixed questions ask for."""
    cloze = {exam.questions[n].fact: int(n) for n in exam.where(("forget", "probe"), ("cloze",))}
    return [cloze[exam.questions[n].fact] for n in prefixed]


def _min_rank(exam: Exam, deltas: Floats) -> float:
    """Return the p-value of the min-rank screen on the phrasings that further probes have too."""

    def by_fact(kind: str) -> Floats:
        of: dict[str, list[float]] = {}
        for n in exam.where((kind,), ("evaluation",)):
            if exam.questions[n].template < 2:
                of.setdefault(exam.questions[n].fact, []).append(float(deltas[n]))
        return np.array([np.mean(some) for some in of.values()])

    probes = np.concatenate([by_fact("probe"), by_fact("further")])
    return like.min_rank_p(by_fact("forget"), probes)
