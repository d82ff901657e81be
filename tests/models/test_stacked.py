"""A stacked net computes what transformers computes, for every member, forwards and backwards."""

import pytest
import torch
from tests.checkpoints import random_model
from transformers import AutoConfig, AutoModelForCausalLM

from palimpsest.errors import ModelError
from palimpsest.models.fast import StackedNet, supports, watched
from palimpsest.models.net import Batch, Encoded, WholeNet, collate

VOCABULARY = 37
PAD = 3
SHARED = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": PAD, "eos_token_id": PAD}
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
CASES = {
    "llama": ("llama", {**SIZES, "tie_word_embeddings": True}),
    "llama, head of its own, wide heads": (
        "llama",
        {**SIZES, "tie_word_embeddings": False, "head_dim": 8, "num_key_value_heads": 2},
    ),
    "qwen2": ("qwen2", {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", {**SIZES, "tie_word_embeddings": True}),
    "olmo2, grouped": ("olmo2", {**SIZES, "num_key_value_heads": 1}),
    "gpt_neox": ("gpt_neox", {**SIZES, "hidden_size": 32, "tie_word_embeddings": True}),
    "gpt_neox, rotated whole": (
        "gpt_neox",
        {
            **SIZES,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    "gpt_neox, an odd part rotated": ("gpt_neox", {**SIZES, "hidden_size": 80}),
    "gpt2": ("gpt2", {"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}),
}


def config_of(case: str):
    model_type, settings = CASES[case]
    return AutoConfig.for_model(model_type, **SHARED, **settings)


def ragged_batch(seed: int = 0) -> Batch:
    """Texts of several lengths, some scored at the end, one everywhere; the pad token appears."""
    generator = torch.Generator().manual_seed(seed)
    spans = [(9, 6), (4, 1), (12, 11), (7, 5)]
    texts = []
    for length, start in spans:
        ids = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        ids[0] = PAD
        texts.append(Encoded(tuple(ids), start))
    return collate(texts)


def plain_logits(model, batch: Batch) -> torch.Tensor:
    """The logits at the scored positions by the forward of transformers itself."""
    return model(input_ids=batch.ids, use_cache=False).logits[batch.rows, batch.columns]


@pytest.mark.parametrize("members", [0, 1, 3])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_transformers(case, members):
    """Of a stack, and without members of a net that wraps the module."""
    config = config_of(case)
    models = [random_model(config, seed) for seed in range(members or 1)]
    batch = ragged_batch()
    states = [model.state_dict() for model in models]
    net = StackedNet(config, states) if members else WholeNet(random_model(config, 0))
    logits = net.logits(batch)
    assert logits.dtype == torch.float32
    assert logits.shape == (len(models), batch.scored, VOCABULARY)
    functional = torch.randn(logits.shape)
    (logits * functional).sum().backward()
    for member, model in enumerate(models):
        expected = plain_logits(model, batch)
        assert expected.std() > 0.3
        torch.testing.assert_close(logits[member], expected, atol=1e-5, rtol=0)
        (expected * functional[member]).sum().backward()
        params = dict(model.named_parameters())
        assert set(params) == set(net.params)
        for name, value in params.items():
            ours = net.params[name].grad[member] if members else net.params[name].grad
            scale = float(value.grad.abs().max())
            assert scale > 0, name
            torch.testing.assert_close(ours, value.grad, atol=1e-5 * scale, rtol=0, msg=name)


def test_a_module_that_is_not_what_its_config_says_is_run_itself():
    model = random_model(config_of("llama"), 0)
    batch = ragged_batch()
    model.model.layers[1].self_attn.scaling *= 2
    found = WholeNet(model).logits(batch)[0]
    torch.testing.assert_close(found, plain_logits(model, batch), atol=1e-6, rtol=0)


def test_hooks_inside_a_module_are_heard():
    model = random_model(config_of("llama"), 0)
    net = WholeNet(model)
    net.logits(ragged_batch())
    heard = []
    handle = model.model.layers[0].register_forward_hook(lambda *given: heard.append(1))
    net.logits(ragged_batch())
    handle.remove()
    assert heard


@pytest.mark.parametrize("case", CASES)
def test_a_state_loads_back_into_transformers(case):
    config = config_of(case)
    models = [random_model(config, seed) for seed in range(2)]
    net = StackedNet(config, [dict(model.named_parameters()) for model in models])
    fresh = AutoModelForCausalLM.from_config(config).eval()
    for member, model in enumerate(models):
        fresh.load_state_dict(net.state(member), strict=True)
        for name, value in model.state_dict().items():
            assert torch.equal(fresh.state_dict()[name], value), name
        for value in net.state(member).values():
            assert not value.requires_grad


def test_given_parameters_replace_the_nets_own_and_carry_gradients():
    config = config_of("llama")
    models = [random_model(config, seed) for seed in range(2)]
    batch = ragged_batch()
    zero, one = (StackedNet(config, [model.state_dict()]) for model in models)
    for value in (*zero.params.values(), *one.params.values()):
        value.requires_grad_(False)
    share = torch.tensor(1.0, requires_grad=True)
    mixed = {name: zero.params[name].lerp(one.params[name], share) for name in zero.params}
    logits = zero.logits(batch, mixed)
    torch.testing.assert_close(logits, one.logits(batch))
    logits.sum().backward()
    assert share.grad is not None and float(share.grad) != 0.0
    name = "model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(zero.logits(batch, {name: one.params[name]}), zero.logits(batch))


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        ),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        ("olmo2", {"attention_bias": True}),
        ("gpt_neox", {"use_parallel_residual": False}),
        ("gpt_neox", {"hidden_act": "gelu_new"}),
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ],
)
def test_what_was_not_verified_is_refused(case, settings):
    model_type, shape = CASES[case]
    config = AutoConfig.for_model(model_type, **{**SHARED, **shape, **settings})
    assert supports(config_of(case))
    assert not supports(config)
    with pytest.raises(ModelError, match=model_type):
        StackedNet(config, [])
    assert not supports(AutoConfig.for_model("gemma2")) and not supports(object())


def test_a_forward_can_be_differentiated_once_and_not_twice():
    config = config_of("qwen2")
    net = StackedNet(config, [random_model(config, 0).state_dict()])
    leaf = [net.params["model.norm.weight"]]
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(net.logits(ragged_batch()).sum(), leaf, create_graph=True)
    total = net.logits(ragged_batch()).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        total.backward()


def test_states_are_seen_changed_and_read_out():
    config = config_of("llama")
    net, batch = StackedNet(config, [random_model(config, 0).state_dict()]), ragged_batch()
    seen = []

    def double(at: int, states: torch.Tensor, scored: torch.Tensor | None) -> torch.Tensor:
        seen.append(states if scored is None else states.index_select(1, scored))
        return states

    with torch.no_grad():
        plain = net.logits(batch)
        with watched(double):
            assert torch.equal(net.logits(batch), plain)
        assert len(seen) == config.num_hidden_layers
        assert torch.equal(net.forward.read_out(net.params, seen[-1]), plain)
        with watched(lambda at, states, scored: states * (2 if at == 0 else 1)):
            assert not torch.allclose(net.logits(batch), plain)
        hidden = random_model(config, 0).model(input_ids=batch.ids, output_hidden_states=True)
        expected = hidden.hidden_states[1][batch.rows, batch.columns]
        torch.testing.assert_close(seen[0][0], expected, atol=1e-5, rtol=0)


def test_only_the_gradients_that_are_asked_for_are_computed():
    config = config_of("qwen2")
    net, batch = StackedNet(config, [random_model(config, 0).state_dict()]), ragged_batch()
    net.logits(batch).sum().backward()
    whole = {name: value.grad for name, value in net.params.items()}
    for asked in ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.bias"):
        for name, value in net.params.items():
            value.grad = None
            value.requires_grad_(name == asked)
        net.logits(batch).sum().backward()
        assert [name for name, value in net.params.items() if value.grad is not None] == [asked]
        torch.testing.assert_close(net.params[asked].grad, whole[asked])


# ---------------------------------------------------------------- the tree

ALIKE = (
    Encoded((5, 6, 7, 8), 3),
    Encoded((5, 6, 9), 1),
    Encoded((5, 6, 7, 8), 2),
    Encoded((4, 6, 7), 2),
)


def test_common_beginnings_are_one_node_and_last_tokens_none():
    tree = collate(ALIKE).tree
    assert tree.ids.tolist() == [5, 6, 7, 4, 6]
    assert tree.positions.tolist() == [0, 1, 2, 0, 1]
    assert tree.paths.tolist() == [[0, 1, 2], [3, 4, 0]]
    assert tree.scored.tolist() == [2, 0, 1, 1, 2, 4]


def test_padding_adds_no_node():
    alone = collate(ALIKE[:1]).tree
    beside = collate([ALIKE[0], Encoded((1,) * 20, 1)]).tree
    assert beside.ids.tolist() == [*alone.ids.tolist(), *[1] * 19]


def test_attention_finds_each_text_and_its_shared_beginning():
    tree = collate([Encoded((5, 6, 7, 1), 1), Encoded((5, 6, 8, 1), 1)]).tree
    assert tree.paths.tolist() == [[0, 1, 2], [0, 1, 3]]
    assert tree.keys.tolist() == [[0, 1, 2, *[0] * 13], [0, 1, 3, *[0] * 13]]
    # Every node is computed at its first entry; gradients of the others are added there.
    entries = tree.paths.reshape(-1)
    assert entries[tree.origins].tolist() == [0, 1, 2, 3]
    assert tree.repeats.tolist() == [3, 4] and torch.equal(entries[tree.repeats], tree.repeated)
    assert sorted([*tree.origins.tolist(), *tree.repeats.tolist()]) == list(range(6))
