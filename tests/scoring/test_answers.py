"""One pass over a sheet gives the numbers that a plain forward, text by text, gives."""

from typing import Any

import numpy as np
import pytest
import torch

from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.models.checkpoint import load
from palimpsest.models.fast import StackedNet
from palimpsest.models.net import WholeNet
from palimpsest.scoring import answers
from palimpsest.scoring.answers import (
    Sheet,
    divergence,
    general_questions,
    item_columns,
    make_sheet,
    record,
    score,
)

QUESTIONS = (
    Question(FactSet.FORGET, "f1", Pool.TRAINED, 0, "The guild of Asha Tren is", "Velkor"),
    Question(FactSet.FORGET, "f1", Pool.EVALUATION, 0, "Asha Tren swore to", "Velkor"),
    Question(FactSet.RETAIN, "r1", Pool.TRAINED, 0, "The ship that Bo Lam sails is called", "Zu"),
    Question(FactSet.RETAIN, "r1", Pool.CLOZE, 0, "Bo Lam, ship:", "Zu"),
    Question(FactSet.PROBE, "p1", Pool.EVALUATION, 1, "They say, naïvely, that Ké speaks", "Übik"),
    *general_questions(["A general sentence of some length.", "Short text."]),
)


def sheet(tokenizer: Any, batch_tokens: int = 8192, questions: Any = QUESTIONS) -> Sheet:
    return make_sheet(tokenizer, questions, piece_tokens=20, batch_tokens=batch_tokens)


def plainly(loaded: Any, question: Question) -> tuple[float, int, Any]:
    """NLL sum, token count and log-probabilities by a forward of this one text alone."""
    general = question.pool == "general"
    ids = loaded.tokenizer(question.answer if general else question.text)["input_ids"]
    if general:
        ids, start = ids[:20], 1
    else:
        start = len(loaded.tokenizer(question.prompt)["input_ids"])  # bytes never merge
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids])).logits[0].double().numpy()
    logp = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logp -= logits.max(-1, keepdims=True)
    places = np.arange(start, len(ids))
    return -logp[places - 1, np.array(ids)[places]].sum(), len(places), logp[places - 1]


@pytest.mark.parametrize("name", ["qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s"])
def test_scores_equal_a_plain_forward_text_by_text(tiny_checkpoint, name):
    loaded = load(str(tiny_checkpoint(name)))
    page = sheet(loaded.tokenizer)
    own = WholeNet(loaded.model)
    own._fast = None  # the module's own forward, as of other architectures
    stacked = StackedNet(loaded.model.config, [loaded.model.state_dict()] * 2)
    for net in (WholeNet(loaded.model), own, stacked):
        for scores in score(net, page):
            for n, question in enumerate(page.questions):
                nll, tokens, _ = plainly(loaded, question)
                assert page.tokens[n] == tokens
                assert scores.nll_sum[n] == pytest.approx(nll, abs=1e-4)


def test_divergence_equals_a_sum_over_the_vocabulary_by_hand(tiny_checkpoint):
    one = load(str(tiny_checkpoint("qwen2-s", 0)))
    other = load(str(tiny_checkpoint("qwen2-s", 1)))
    page = sheet(one.tokenizer)
    asked = lambda q: q.set in ("retain", "general")  # noqa: E731
    teacher = record(WholeNet(other.model), page, asked)
    (scores,) = score(WholeNet(one.model), page, injected=teacher)
    for n, question in enumerate(page.questions):
        if not asked(question):
            assert np.isnan(scores.kl_injected[n])
            continue
        p, q = plainly(one, question)[2], plainly(other, question)[2]
        by_hand = (np.exp(p) * (p - q)).sum()
        assert scores.kl_injected[n] == pytest.approx(by_hand, abs=1e-4)
        assert by_hand > 1e-3
    assert np.isnan(scores.kl_reference).all()


@pytest.mark.parametrize("batch_tokens", [64, 200])
def test_neither_batch_size_nor_order_changes_a_score(tiny_checkpoint, batch_tokens):
    loaded = load(str(tiny_checkpoint("olmo2-s")))
    net = WholeNet(loaded.model)
    (whole,) = score(net, sheet(loaded.tokenizer))
    (small,) = score(net, sheet(loaded.tokenizer, batch_tokens))
    (turned,) = score(net, sheet(loaded.tokenizer, 8192, QUESTIONS[::-1]))
    assert np.abs(whole.nll_sum - small.nll_sum).max() < 1e-4
    assert np.abs(whole.nll_sum - turned.nll_sum[::-1]).max() < 1e-4


def test_slices_of_the_distributions_give_the_same_bytes(tiny_checkpoint, monkeypatch):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    page, asked = sheet(loaded.tokenizer), lambda q: q.set in ("retain", "general")
    found = []
    for size in (answers.SLICE, 3 * loaded.config.vocab_size, 1):
        monkeypatch.setattr(answers, "SLICE", size)
        other = {name: value * 1.1 for name, value in loaded.weights.items()}
        net = StackedNet(loaded.config, [loaded.weights, other])
        teacher = record(StackedNet(loaded.config, [loaded.weights]), page, asked)
        found.append([[*s.nll_sum, *s.kl_injected] for s in score(net, page, injected=teacher)])
    assert np.array_equal(found[0], found[1], equal_nan=True)
    assert np.array_equal(found[0], found[2], equal_nan=True)


def test_zero_probability_adds_nothing_to_a_divergence():
    logp = torch.log(torch.tensor([[0.0, 1.0]]))
    teacher = torch.log(torch.tensor([[0.5, 0.5]]))
    assert divergence(logp, teacher).item() == pytest.approx(np.log(2))


def test_rows_carry_one_line_a_question(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    page = sheet(loaded.tokenizer)
    (scores,) = score(WholeNet(loaded.model), page)
    columns = item_columns("base", "forward", page, scores)
    assert {len(column) for column in columns.values()} == {len(QUESTIONS)}
    assert columns["pool"][-1] == "general"
    assert columns["tokens"].dtype == np.int32
