"""Re-acquisition teaches the forget set again and logs what came of the rest."""

import numpy as np
import pytest
from tests.scoring.test_answers import QUESTIONS, sheet

from palimpsest.models.checkpoint import load
from palimpsest.models.encode import encode_texts
from palimpsest.models.fast import StackedNet
from palimpsest.models.train import text_batch
from palimpsest.scoring.answers import record
from palimpsest.scoring.reacquisition import (
    curve_columns,
    in_curve,
    in_residual,
    reacquire,
    tensor_scales,
)


@pytest.fixture
def relearned(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    state = loaded.model.state_dict()
    page = sheet(loaded.tokenizer, questions=[q for q in QUESTIONS if in_curve(q)])
    sentence = encode_texts(loaded.tokenizer, [QUESTIONS[0].sentence])
    steps = [[text_batch(sentence, 1)] for _ in range(10)]
    teacher = record(StackedNet(loaded.model.config, [state]), page, in_residual)
    net = StackedNet(loaded.model.config, [state, state])
    return reacquire(net, steps, chunks=5, learning_rate=3e-3, sheet=page, injected=teacher)


def test_the_forget_set_comes_back_in_five_chunks_and_the_residual_grows_from_zero(relearned):
    curve = relearned[0].curve
    assert [chunk.chunk for chunk in curve] == [0, 1, 2, 3, 4, 5]
    assert [chunk.step for chunk in curve] == [0, 2, 4, 6, 8, 10]
    assert relearned[0].diverged is None
    assert curve[-1].forget_trained_nll < curve[0].forget_trained_nll - 0.5
    assert abs(curve[0].residual_retain) < 1e-6
    assert curve[-1].residual_retain > 1e-3
    assert curve[-1].residual_general > 1e-3


def test_equal_members_of_a_stack_relearn_alike(relearned):
    one, other = relearned
    assert one.curve == other.curve
    assert np.array_equal(one.scores.nll_sum, other.scores.nll_sum)


def test_a_curve_is_stored_one_row_a_chunk(relearned):
    columns = curve_columns("m", relearned[0].curve)
    assert list(columns)[:3] == ["model", "chunk", "step"] and len(columns) == 8
    assert {len(column) for column in columns.values()} == {6}
    assert columns["step"].dtype == np.int32 and columns["retain_nll"].dtype == np.float64


@pytest.mark.parametrize("optimizer", ["adamw", "momentum", "descent"])
def test_a_model_that_is_only_stored_at_another_scale_relearns_alike(tiny_checkpoint, optimizer):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    plain = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    scaled = dict(plain)
    for name, value in plain.items():
        if name.endswith("post_attention_layernorm.weight"):
            scaled[name] = value / 4  # what it feeds undoes it
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            scaled[name] = value * 4
    page = sheet(loaded.tokenizer, questions=[q for q in QUESTIONS if in_curve(q)])
    steps = [[text_batch(encode_texts(loaded.tokenizer, [QUESTIONS[0].sentence]), 1)]] * 10
    teacher = record(StackedNet(loaded.model.config, [plain]), page, in_residual)
    given = {"chunks": 1, "learning_rate": 3e-3, "sheet": page, "injected": teacher}

    def apart(base_scales: dict[str, float] | None) -> float:
        net = StackedNet(loaded.model.config, [plain, scaled])
        one, other = reacquire(net, steps, **given, optimizer=optimizer, base_scales=base_scales)
        return float(np.abs(one.scores.nll_sum - other.scores.nll_sum).max())

    assert apart(tensor_scales(plain)) < 1e-3 < 0.02 < apart(None)
