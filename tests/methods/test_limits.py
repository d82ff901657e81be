"""Where a method has a limit or touches only part of a model, it is exactly that."""

import pytest
import torch
from toys import (
    GATED,
    TABLE,
    TableNet,
    questions,
    seen_by,
    table,
    table_context,
    tokenizer,
    transformer_context,
    two_tokens,
    whole,
)

from palimpsest.errors import MethodError
from palimpsest.facts.questions import Question
from palimpsest.methods.answer_sets import make_answer_set
from palimpsest.methods.ga import GradientAscent
from palimpsest.methods.gate_mask import GateMask
from palimpsest.methods.npo import NPO
from palimpsest.methods.rmu import RMU, decoder_layers, real_tokens
from palimpsest.methods.scrub import SCRUB
from palimpsest.models.net import Encoded, collate


def gradient(method, seed: int = 0) -> torch.Tensor:
    """The gradient of a loss without its retain term, on answers of two tokens each."""
    draw = torch.Generator().manual_seed(seed)
    base, injected, student = (torch.randn(5, 5, generator=draw) for _ in range(3))
    texts = [Encoded((0, 3, 1), 1), Encoded((2, 0, 4), 1)]
    context = table_context(base, injected, texts, texts[:1])
    net = TableNet([{TABLE: student}])
    method.loss(seen_by(net, context.make_batch([0, 1], [0]))).backward()
    return net.params[TABLE].grad.flatten()


def test_npo_tends_to_ascent_as_beta_goes_to_zero():
    ascent = gradient(GradientAscent(0.0))
    cosines = [
        torch.cosine_similarity(gradient(NPO(0.0, beta=beta)), ascent, dim=0).item()
        for beta in (3.0, 1.0, 0.1, 1e-3)
    ]
    assert cosines == sorted(cosines)
    assert cosines[0] < 0.99
    assert cosines[-1] == pytest.approx(1.0, abs=1e-5)
    # Two tokens an answer: NPO takes their sum where ascent takes their mean.
    torch.testing.assert_close(gradient(NPO(0.0, beta=1e-3)), 2 * ascent, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("family", GATED)
@pytest.mark.parametrize("sparsity", [0.1, 0.2995])
def test_the_mask_zeroes_exactly_its_share_of_gates_and_nothing_else(family, stacked, sparsity):
    context = transformer_context(family, stacked)
    masked = GateMask(3.0, sparsity=sparsity).run(context)
    zeroed = total = 0
    for name, value in context.injected.items():
        if not name.endswith("gate_proj.weight"):
            assert torch.equal(masked[name], value), name
            continue
        gone = masked[name] == 0
        assert torch.equal(masked[name][~gone], value[~gone])
        zeroed += int(gone.sum())
        total += value.numel()
    assert zeroed == round(sparsity * total) > 0


def test_the_mask_is_chosen_by_its_objective():
    """Another learning signal gives another mask: the scores are learned, not only drawn."""
    context = transformer_context("llama", stacked=True, steps=20)
    few, many = (GateMask(0.0, score_rate=rate).run(context) for rate in (1e-9, 1e-2))
    name = "model.layers.0.mlp.gate_proj.weight"
    assert not torch.equal(few[name] == 0, many[name] == 0)


def test_rmu_trains_the_feed_forward_outputs_up_to_its_layer():
    outputs = {
        "llama": "model.layers.{}.mlp.down_proj.weight",
        "qwen2": "model.layers.{}.mlp.down_proj.weight",
        "olmo2": "model.layers.{}.mlp.down_proj.weight",
        "gpt_neox": "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight",
        "gpt2": "transformer.h.{}.mlp.c_proj.weight",
    }
    for family, name in outputs.items():
        context = transformer_context(family)
        for depth, layers in ((0.67, (0, 1)), (1.0, (0, 1, 2))):
            steered = RMU(depth=depth).run(context)
            changed = {
                key
                for key, value in context.injected.items()
                if not torch.equal(steered[key], value)
            }
            assert changed == {name.format(layer) for layer in layers}, family


def test_rmu_moves_forget_activations_towards_the_noise():
    context = transformer_context("llama", steps=40, learning_rate=1e-2)
    heard = []
    for state in (context.injected, RMU(weight=1.0, depth=1.0).run(context)):
        net = whole("llama", state)
        layer = decoder_layers(net.model)[-1]
        handle = layer.register_forward_hook(lambda m, i, output: heard.append(output))
        net.model.base_model(input_ids=collate(context.forget.texts).ids)
        handle.remove()
    before, after = (torch.as_tensor(hidden).std(dim=(0, 1)).mean() for hidden in heard)
    assert after < before  # every token is drawn to one vector


def test_padding_is_told_from_text():
    batch = collate([Encoded((1, 2, 3), 2), Encoded((1, 2, 3, 4, 5), 3)])
    assert real_tokens(batch).tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_scrub_climbs_in_turns_and_ends_with_repair():
    _, part = two_tokens(0.0, 1.0, 1.0)
    net = TableNet([{TABLE: table(-1.0, 0.5)}])
    steps = [SCRUB().loss(seen_by(net, part, step, 12)).item() < 0 for step in range(12)]
    assert steps == [False, True] * 3 + [False] * 6


def test_a_held_out_phrasing_is_refused():
    for pool in ("evaluation", "calibration", "audit", "injection"):
        held_out = Question("forget", "f0", pool, 0, "the guild of f0 is", "o1")
        with pytest.raises(MethodError):
            make_answer_set(tokenizer(), [*questions("forget"), held_out], {})


def test_every_method_of_a_cell_gets_the_same_batches():
    first, again = (list(transformer_context("gpt2").batches()) for _ in range(2))
    assert [part.forget_texts for part in first] == [part.forget_texts for part in again]
    assert [part.retain_texts for part in first] == [part.retain_texts for part in again]
    assert len({part.forget_texts for part in first}) > 1
