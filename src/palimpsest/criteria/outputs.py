"""Measures of one pass over all questions: likelihood, membership, distributions, elicitation."""

import math
from collections.abc import Callable

import numpy as np

from palimpsest.criteria import likelihood as like
from palimpsest.criteria.exam import Exam, Floats, Ints, Tokens
from palimpsest.criteria.gauge import Gauge, Values
from palimpsest.criteria.whitebox import jensen_shannon, total_variation, zero_retrain_forgetting
from palimpsest.facts.elicitation import ASKED
from palimpsest.facts.questions import TRAINED_POOLS
from palimpsest.models.net import Net


def from_tokens(gauge: Gauge, net: Net) -> list[Values]:
    """Return what token probabilities say of each member."""
    return [_of_tokens(gauge, tokens) for tokens in gauge.exam.read(net)]


def _of_tokens(gauge: Gauge, mine: Tokens) -> Values:
    exam, owners, reference = gauge.exam, gauge.exam.owners, gauge.reference
    nll, base, theirs = (gauge.nll(tokens) for tokens in (mine, gauge.base, reference))
    trained, held = exam.where(*TRAINED_POOLS), exam.where("evaluation")
    probes = exam.where(*TRAINED_POOLS, of=("probe",))
    wrong, other = (some[exam.where("distractor")].reshape(len(held), -1) for some in (nll, theirs))
    right, others = like.truth_ratios(nll[held], wrong)
    right_there, others_there = like.truth_ratios(theirs[held], other)
    quality = like.forget_quality(others / right, others_there / right_there)
    counts = np.array(exam.sheet.tokens, np.float64)
    # Tokens stand in the order of their questions.
    hits = np.split(mine.hit, np.cumsum(exam.sheet.tokens)[:-1])
    asked = np.isin(owners, exam.where("evaluation", of=("forget", "probe")))
    on_forget = np.isin(owners, held)

    def attack(scores: Callable[[Ints], Floats]) -> float:
        return like.auc(scores(trained), scores(probes))

    def lowest(scores: Floats, share: float) -> float:
        items = np.split(scores, np.cumsum(exam.sheet.tokens)[:-1])
        return attack(lambda some: like.min_k_scores([items[n] for n in some], share))

    texts = [question.answer for question in exam.questions]
    prefixed = [exam.where("prefixed", of=(name,)) for name in ("forget", "probe")]
    plain = [_cloze_of(exam, some) for some in prefixed]
    recall = [like.recall_scores(nll[a], nll[b]) for a, b in zip(prefixed, plain)]
    standard = like.standardize(mine.logp, -mine.entropy, mine.variance)
    forget = exam.kept_forget
    values = {
        "probability": like.probability(nll[trained]),
        "perplexity": -float(nll[trained].mean()),
        "paraphrase_probability": like.probability(nll[held]),
        "truth_ratio": -like.truth_ratio(nll[held], wrong),
        "truth_knowledge": like.truth_knowledge(nll[held], wrong),
        "forget_quality": -math.log(max(quality, 1e-300)),
        "exact_memorisation": like.exact_memorization([hits[n] for n in trained]),
        "extraction_strength": like.extraction_strength([hits[n] for n in trained]),
        "multiple_choice": like.multiple_choice(nll[held], wrong),
        "entropy": abs(float(mine.entropy[on_forget].mean() - reference.entropy[on_forget].mean())),
        "calibration_error": like.calibration_error(mine.top[asked], mine.hit[asked]),
        "min_rank": -math.log(_min_rank(exam, nll - base)),
        "leak_at_k": like.leak_at_k((nll * counts)[held]),
        "mia_loss": attack(lambda some: -nll[some]),
        "mia_zlib": attack(lambda some: like.zlib_scores(nll[some], [texts[n] for n in some])),
        "mia_min_k": lowest(mine.logp, 0.2),
        "mia_min_k_plus": lowest(standard, 0.2),
        "mia_reference": attack(lambda some: base[some] - nll[some]),
        "mia_recall": like.auc(*recall),
        "privleak": abs(like.privleak(lowest(mine.logp, 0.4), lowest(reference.logp, 0.4))),
        "heldout_js": float(jensen_shannon(mine.kept, reference.kept).mean()),
        "heldout_tv": float(total_variation(mine.kept, reference.kept).mean()),
        "zrf": -zero_retrain_forgetting(mine.kept[forget], gauge.random.kept[forget]),
    }
    elicited = {kind: -float(nll[exam.where(kind)].mean()) for kind in ASKED}
    worst = max(value for kind, value in elicited.items() if kind != "reversed")
    return values | elicited | {"worst_question": worst}


def _cloze_of(exam: Exam, prefixed: Ints) -> list[int]:
    """Return the cloze questions of the facts that these prefixed questions ask for."""
    asked = exam.where("cloze", of=("forget", "probe"))
    cloze = {exam.questions[n].fact: int(n) for n in asked}
    return [cloze[exam.questions[n].fact] for n in prefixed]


def _min_rank(exam: Exam, deltas: Floats) -> float:
    """Return the p-value of the min-rank screen on the phrasings that further probes have too."""

    def by_fact(*sets: str) -> Floats:
        of: dict[str, list[float]] = {}
        for n in exam.where("evaluation", of=sets):
            if exam.questions[n].template < 2:
                of.setdefault(exam.questions[n].fact, []).append(float(deltas[n]))
        return np.array([np.mean(some) for some in of.values()])

    return like.min_rank_p(by_fact("forget"), by_fact("probe", "further"))
