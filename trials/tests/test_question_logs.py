"""Logs of a study's models hold the loss of every question, and how well the two kinds part."""

import json
from pathlib import Path

import numpy as np

from palimpsest.openunlearning.reading import model_of, parse_metrics
from palimpsest_trials.question_logs import log


def row(name, fact, pool, template, nll, tokens=2):
    asked = {"set": name, "fact": fact, "pool": pool, "template": template}
    return asked | {"nll_sum": nll * tokens, "tokens": tokens}


def test_a_log_is_read_as_one_of_openunlearning():
    rows = [row("forget", "b", "trained", 0, 3.0), row("forget", "a", "trained", 1, 1.0)]
    rows += [row("forget", "a", "evaluation", 0, 5.0), row("retain", "r", "trained", 0, 0.5)]
    rows += [row("retain", "r", "evaluation", 0, 0.7), row("probe", "p", "trained", 0, 4.0)]
    rows += [row("probe", "p", "evaluation", 0, 6.0), row("forget", "a", "reversed", 0, 9.0)]
    written = log(rows)
    read = model_of(parse_metrics(json.dumps(written)), path=Path("x"), name="x", role=None)
    scores = read.scores["mia_loss"]
    np.testing.assert_allclose(scores["forget"], [5.0, 1.0, 3.0])
    np.testing.assert_allclose(scores["holdout"], [6.0, 4.0])
    pairs = [h > f for f in scores["forget"] for h in scores["holdout"]]
    assert written["mia_loss"]["auc"] == np.mean(pairs)
    assert read.medians["forget"] == 2.0 and read.medians["paraphrases"] == 5.0
