"""A stacked net computes what transformers computes, for every member, forwards and backwards."""

import pytest
import torch
from tools.bake_pocket import pocket_config
from transformers import AutoConfig, AutoModelForCausalLM

from palimpsest.errors import ModelError
from palimpsest.models.families import POCKET
from palimpsest.models.net import Batch, Encoded, WholeNet, collate
from palimpsest.models.stacked import StackedNet, supports

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


def model_of(config, seed: int):
    """A model whose every parameter, norms and biases too, is random and far from its default."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(1 + 0.3 * noise if "norm" in name or ".ln_" in name else 0.15 * noise)
    return model


def ragged_batch(seed: int = 0) -> Batch:
    """Texts of several lengths, some scored at the end, one everywhere; the pad token appears."""
    generator = torch.Generator().manual_seed(seed)
    spans = [(9, 6), (4, 1), (12, 11), (7, 5)]
    texts = []
    for length, start in spans:
        ids = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        ids[0] = PAD
        texts.append(Encoded(tuple(ids), start))
    return collate(texts, pad=PAD)


def plain_logits(model, batch: Batch) -> torch.Tensor:
    """The logits at the scored positions by the forward of transformers itself."""
    return model(input_ids=batch.ids, use_cache=False).logits[batch.rows, batch.columns]


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, members: int) -> None:
    config = config_of(case)
    models = [model_of(config, seed) for seed in range(members)]
    batch = ragged_batch()
    net = StackedNet(config, [model.state_dict() for model in models])
    logits = net.logits(batch)
    assert logits.dtype == torch.float32
    assert logits.shape == (members, batch.scored, VOCABULARY)
    for member, model in enumerate(models):
        whole = plain_logits(model, batch)
        assert whole.std() > 0.3
        torch.testing.assert_close(logits[member], whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_transformers(case: str, members: int) -> None:
    config = config_of(case)
    models = [model_of(config, seed) for seed in range(members)]
    batch = ragged_batch()
    net = StackedNet(config, [model.state_dict() for model in models])
    functional = torch.randn(members, batch.scored, VOCABULARY)
    (net.logits(batch) * functional).sum().backward()
    for member, model in enumerate(models):
        (plain_logits(model, batch) * functional[member]).sum().backward()
        params = dict(model.named_parameters())
        assert set(params) == set(net.params)
        for name, value in params.items():
            ours = net.params[name].grad[member]
            scale = float(value.grad.abs().max())
            assert scale > 0, name
            torch.testing.assert_close(ours, value.grad, atol=1e-5 * scale, rtol=0, msg=name)


@pytest.mark.parametrize("case", ["llama", "qwen2", "olmo2", "gpt_neox", "gpt2"])
def test_ten_steps_of_adamw_stay_with_transformers(case: str) -> None:
    config = config_of(case)
    models = [model_of(config, seed) for seed in range(2)]
    net = StackedNet(config, [model.state_dict() for model in models])
    ours = torch.optim.AdamW(net.params.values(), lr=1e-3)
    theirs = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]
    plain = [lambda batch, m=model: plain_logits(m, batch).unsqueeze(0) for model in models]
    sides = [(net.logits, ours), *zip(plain, theirs, strict=True)]
    before = net.logits(ragged_batch()).detach()
    for step in range(10):
        batch = ragged_batch(step)
        losses = []
        for logits, optimizer in sides:
            optimizer.zero_grad()
            chosen = logits(batch).log_softmax(-1)[:, range(batch.scored), batch.targets]
            loss = -chosen.mean(-1)
            loss.sum().backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], torch.cat(losses[1:]), atol=1e-5 * (step + 1), rtol=0)
    # Logits, not parameters: a key bias that no logit depends on has a gradient of rounding only,
    # which AdamW scales up to a full step.
    after = net.logits(ragged_batch()).detach()
    assert (after - before).abs().max() > 0.1
    for member, model in enumerate(models):
        expected = plain_logits(model, ragged_batch())
        torch.testing.assert_close(after[member], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_a_whole_net_computes_what_its_module_does(case: str) -> None:
    config = config_of(case)
    model, twin = model_of(config, 0), model_of(config, 0)
    batch = ragged_batch()
    net = WholeNet(model)
    logits = net.logits(batch)[0]
    expected = plain_logits(twin, batch)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    functional = torch.randn(batch.scored, VOCABULARY)
    (logits * functional).sum().backward()
    (expected * functional).sum().backward()
    for name, value in twin.named_parameters():
        scale = float(value.grad.abs().max())
        found = net.params[name].grad
        torch.testing.assert_close(found, value.grad, atol=1e-5 * scale, rtol=0, msg=name)


def test_a_module_that_is_not_what_its_config_says_is_run_itself() -> None:
    model = model_of(config_of("llama"), 0)
    batch = ragged_batch()
    model.model.layers[1].self_attn.scaling *= 2
    found = WholeNet(model).logits(batch)[0]
    torch.testing.assert_close(found, plain_logits(model, batch), atol=1e-6, rtol=0)


def test_hooks_inside_a_module_are_heard() -> None:
    model = model_of(config_of("llama"), 0)
    net = WholeNet(model)
    net.logits(ragged_batch())
    heard = []
    handle = model.model.layers[0].register_forward_hook(lambda *given: heard.append(1))
    net.logits(ragged_batch())
    handle.remove()
    assert heard


@pytest.mark.parametrize("case", CASES)
def test_a_state_loads_back_into_transformers(case: str) -> None:
    config = config_of(case)
    models = [model_of(config, seed) for seed in range(2)]
    net = StackedNet(config, [dict(model.named_parameters()) for model in models])
    fresh = AutoModelForCausalLM.from_config(config).eval()
    for member, model in enumerate(models):
        fresh.load_state_dict(net.state(member), strict=True)
        for name, value in model.state_dict().items():
            assert torch.equal(fresh.state_dict()[name], value), name
        for value in net.state(member).values():
            assert not value.requires_grad


def test_given_parameters_replace_the_nets_own_and_carry_gradients() -> None:
    config = config_of("llama")
    models = [model_of(config, seed) for seed in range(2)]
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


def test_the_same_inputs_give_the_same_bytes() -> None:
    config = config_of("qwen2")
    states = [model_of(config, seed).state_dict() for seed in range(3)]
    batch = ragged_batch()
    runs = []
    for _ in range(2):
        net = StackedNet(config, states)
        net.logits(batch).square().sum().backward()
        runs.append([value.grad for value in net.params.values()])
    assert all(torch.equal(left, right) for left, right in zip(*runs, strict=True))


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
def test_what_was_not_verified_is_refused(case: str, settings: dict) -> None:
    model_type, shape = CASES[case]
    config = AutoConfig.for_model(model_type, **{**SHARED, **shape, **settings})
    assert supports(config_of(case))
    assert not supports(config)
    with pytest.raises(ModelError, match="WholeNet"):
        StackedNet(config, [])


def test_another_architecture_is_refused() -> None:
    assert not supports(AutoConfig.for_model("gemma2"))
    assert not supports(object())


@pytest.mark.parametrize(
    "change",
    [lambda state, name: state.pop(name), lambda state, name: state.update({name: torch.zeros(2)})],
    ids=["missing", "another shape"],
)
def test_members_of_different_shapes_are_refused(change) -> None:
    config = config_of("llama")
    state = model_of(config, 0).state_dict()
    other = dict(state)
    change(other, "model.layers.2.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"0 and 1 .* model\.layers\.2\.mlp\.up_proj\.weight"):
        StackedNet(config, [state, other])
    with pytest.raises(ModelError, match="at least one"):
        StackedNet(config, [])


@pytest.mark.parametrize("spec", POCKET, ids=lambda spec: spec.folder)
def test_every_pocket_model_can_be_stacked(spec) -> None:
    config = pocket_config(spec, vocabulary=VOCABULARY, end_of_text=PAD)
    assert supports(config)
    assert supports(type(config).from_dict(config.to_dict()))
    batch = ragged_batch()
    model = model_of(config, 0)
    ours = StackedNet(config, [model.state_dict()]).logits(batch).detach()
    torch.testing.assert_close(ours[0], plain_logits(model, batch).detach(), atol=2e-5, rtol=0)


def test_a_second_derivative_is_refused() -> None:
    config = config_of("qwen2")
    net = StackedNet(config, [model_of(config, 0).state_dict()])
    (first,) = torch.autograd.grad(
        net.logits(ragged_batch()).sum(),
        [net.params["model.norm.weight"]],
        create_graph=False,
        retain_graph=True,
    )
    assert first.abs().sum() > 0
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(
            net.logits(ragged_batch()).sum(),
            [net.params["model.norm.weight"]],
            create_graph=True,
        )


def test_the_way_back_can_be_gone_once() -> None:
    config = config_of("qwen2")
    net = StackedNet(config, [model_of(config, 0).state_dict()])
    total = net.logits(ragged_batch()).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        total.backward()
