"""Re-acquisition teaches the forget set again and logs what came of the rest."""

import numpy as np
import pytest
from tests.scoring.test_answers import QUESTIONS, sheet

from palimpsest.models.encode import encode_texts
from palimpsest.models.load import load
from palimpsest.models.stacked import StackedNet
from palimpsest.models.train import text_batch
from palimpsest.scoring.divergence import record
from palimpsest.scoring.roundtrip import in_residual, on_the_way, reacquire


@pytest.fixture
def returned(tiny_checkpoint):  # type: ignore[no-untyped-def]
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    state = loaded.model.state_dict()
    page = sheet(loaded.tokenizer, questions=[q for q in QUESTIONS if on_the_way(q)])
    sentence = encode_texts(loaded.tokenizer, [QUESTIONS[0].sentence])
    steps = [[text_batch(sentence, 1)] for _ in range(10)]
    teacher = record(StackedNet(loaded.model.config, [state]), page, in_residual)
    net = StackedNet(loaded.model.config, [state, state])
    return reacquire(net, steps, chunks=5, learning_rate=3e-3, sheet=page, injected=teacher)


def test_five_chunks_are_logged_after_the_start(returned) -> None:  # type: ignore[no-untyped-def]
    for back in returned:
        assert [row["chunk"] for row in back.curve] == [0, 1, 2, 3, 4, 5]
        assert [row["step"] for row in back.curve] == [0, 2, 4, 6, 8, 10]
        assert back.diverged is None


def test_the_forget_set_comes_back_and_the_residual_grows_from_zero(returned) -> None:  # type: ignore[no-untyped-def]
    curve = returned[0].curve
    assert curve[-1]["forget_trained_nll"] < curve[0]["forget_trained_nll"] - 0.5
    assert abs(curve[0]["residual_retain"]) < 1e-6
    assert curve[-1]["residual_retain"] > 1e-3
    assert curve[-1]["residual_general"] > 1e-3


def test_equal_members_of_a_stack_return_alike(returned) -> None:  # type: ignore[no-untyped-def]
    one, other = returned
    assert one.curve == other.curve
    assert np.array_equal(one.scores.nll_sum, other.scores.nll_sum)
