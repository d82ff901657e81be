"""Precision and memory: master weights, checkpointing, copies of weights, faults of the machine."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

import palimpsest
from palimpsest.cell.launch import RunOptions, launch, preview
from palimpsest.cell.study import StudyTask
from palimpsest.config.sections import Engine
from palimpsest.errors import MachineError, ModelError, PlanError
from palimpsest.models import device as device_module
from palimpsest.models.checkpoint import load, outline
from palimpsest.models.device import check_device
from palimpsest.models.encode import encode_texts
from palimpsest.models.net import WholeNet, head_finish
from palimpsest.models.train import AdamW, text_batch, text_loss, train
from palimpsest.run.local import gpu_of
from palimpsest.stats.models import models_from_json
from tests.device.pretend import Gauge
from tests.device.small import audit_files, device_plan

FACTS = ("The guild of Asha Tren is called Velkor.", "Bo Lam plays the zither.")


def taught(dtype: str, rate: float, steps: int, **options: Any) -> tuple[float, float]:
    """Return the loss after a training on the CPU, and the share of weights that moved."""
    loaded = load("pocket/qwen2-s", dtype=dtype)
    net = WholeNet(loaded.model, **options)
    before = {name: value.detach().clone() for name, value in net.params.items()}
    batch = text_batch(encode_texts(loaded.tokenizer, FACTS), len(FACTS))
    assert not train(net, [[batch]] * steps, text_loss, learning_rate=rate)
    moved = sum(int((before[name] != value).sum()) for name, value in net.params.items())
    with torch.no_grad():
        loss = float(text_loss(net, batch))
    return loss, moved / sum(value.numel() for value in before.values())


def test_bfloat16_learns_what_float32_learns():
    exact, _ = taught("float32", 1.5e-4, 60)
    rounded_loss, moved = taught("bfloat16", 1.5e-4, 60)
    assert abs(exact - rounded_loss) < 0.1
    assert moved > 0.5


@pytest.mark.parametrize("family", ["qwen2-s", "pythia-s", "gpt2-s"])
def test_lora_trains_adapters_and_leaves_an_ordinary_model(tiny_checkpoint, family):
    states, losses = [], []
    for key in ("one", "one", "other"):
        loaded = load(str(tiny_checkpoint(family)))
        net = WholeNet(loaded.model, lora=2)
        before = {name: value.clone() for name, value in net.state().items()}
        names = [name for name, _ in loaded.model.named_modules()]
        batch = text_batch(encode_texts(loaded.tokenizer, FACTS), len(FACTS))
        seen: list[int] = []

        def count(_: int, net: WholeNet = net, seen: list[int] = seen) -> None:
            seen.append(sum(p.numel() for p in net.model.parameters() if p.requires_grad))

        first = float(text_loss(net, batch).detach())
        assert not train(
            net, [[batch]] * 8, text_loss, learning_rate=1e-3, after_step=count, key=key
        )
        losses.append(first - float(text_loss(net, batch).detach()))
        assert max(seen) < 0.5 * loaded.parameters
        assert [name for name, _ in loaded.model.named_modules()] == names
        assert all(parameter.requires_grad for parameter in loaded.model.parameters())
        changed = {
            name for name, value in net.state().items() if not torch.equal(value, before[name])
        }
        assert changed and not [name for name in changed if "norm" in name or "embed" in name]
        assert all(before[name].dim() == 2 for name in changed)
        states.append(net.state())
    assert min(losses) > 0.05
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_small_steps_add_up_in_the_masters_and_are_lost_without():
    leaf = torch.ones(4, dtype=torch.bfloat16).requires_grad_()
    optimizer = AdamW([leaf], 1e-4)
    for _ in range(40):
        leaf.grad = torch.ones_like(leaf)
        optimizer.step()
    assert optimizer.first[0].dtype == torch.float32
    assert leaf.tolist() == pytest.approx([1 - 40e-4] * 4, abs=0.004)
    assert torch.equal(leaf.detach() - 1e-4, leaf.detach())  # one step alone is rounded away


def test_bfloat16_without_instructions_for_it_is_remarked_and_not_replaced(
    tiny_checkpoint, tmp_path, monkeypatch
):
    told = []
    plan = device_plan(tiny_checkpoint("qwen2-s"), Engine(dtype="bfloat16", stack=1), ("npo",))
    options = RunOptions(on_remark=told.append)
    for known, remarks in (({"avx2"}, 1), ({"avx2", "avx512_bf16"}, 0), (set(), 0)):
        told.clear()
        monkeypatch.setattr(device_module, "processor_flags", lambda known=known: known)
        preview(StudyTask(plan, tmp_path / "run"), options)
        assert len([remark for remark in told if "bfloat16" in remark]) == remarks
    assert device_module.precision_remark("cpu", "float32") == ""


def test_a_step_without_texts_stays_on_the_device(far):
    loaded = load("pocket/gpt2-s", device=far)
    assert train(WholeNet(loaded.model), [[]], text_loss, learning_rate=1e-3) == {}


def kept(net: WholeNet, batch: Any, params: Any = None) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the bytes saved for the backward pass, and the gradients."""
    saved = 0

    def count(value: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += value.numel() * value.element_size()
        return value

    leaves = net.params if params is None else params
    with torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        loss = net.logits(batch.batch, params).logsumexp(-1).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return saved, {n: g for n, g in zip(leaves, grads) if g is not None}


@pytest.mark.parametrize("family", ["qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s"])
def test_checkpointing_saves_activations_and_changes_no_gradient(tiny_checkpoint, family):
    loaded = load(str(tiny_checkpoint(family)))
    batch = text_batch(encode_texts(loaded.tokenizer, FACTS), len(FACTS))
    plain = WholeNet(copy.deepcopy(loaded.model))
    plain._fast = None  # the module's own forward, as on a GPU
    frugal = WholeNet(copy.deepcopy(loaded.model), checkpointing=True)
    more, expected = kept(plain, batch)
    less, found = kept(frugal, batch)
    assert less < 0.6 * more
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


def test_the_head_of_a_bfloat16_model_is_float32_at_scored_positions():
    loaded = load("pocket/qwen2-s", dtype="bfloat16")
    batch = text_batch(encode_texts(loaded.tokenizer, FACTS), len(FACTS)).batch
    with torch.no_grad():
        found = WholeNet(loaded.model).logits(batch)[0]
        hidden = loaded.model.base_model(input_ids=batch.ids, use_cache=False)[0]
        hidden = hidden[batch.rows, batch.columns].double()
        exact = hidden @ loaded.model.get_output_embeddings().weight.double().T
        own = loaded.model(input_ids=batch.ids).logits[batch.rows, batch.columns]
    error, before = (float((x.double() - exact).abs().max()) for x in (found, own))
    assert error < 1e-4 < before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gemma2", "cohere", "granite"])
def test_logits_that_are_capped_or_scaled_are_so_at_scored_positions(kind, dtype):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "head_dim": 8}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    more = {"final_logit_softcapping": 0.2, "logit_scale": 0.25, "logits_scaling": 8.0}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = CONFIG_MAPPING[kind](**sizes, **more, **tokens)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    ids = torch.arange(3, 9)[None]
    finish = head_finish(model)
    with torch.no_grad():
        whole = model(input_ids=ids).logits.float()
        parts = finish(model.get_output_embeddings()(model.base_model(input_ids=ids)[0]).float())
    assert finish is not None and not torch.equal(finish(torch.ones(1)), torch.ones(1))
    torch.testing.assert_close(
        parts, whole, atol=1e-4 if dtype == torch.float32 else 1e-2, rtol=0.02
    )


@pytest.mark.parametrize(("known", "most"), [((), 4), (("router",), 8)])
def test_a_study_has_one_student_on_the_device(tiny_checkpoint, far, tmp_path, known, most):
    """Weights, gradients and two moments; a router is two models in training."""
    folder, gauge, each = counted(tiny_checkpoint, tmp_path / "model")
    plan = device_plan(folder, Engine(device=far, stack=1), ("npo",), known_label=known)
    with gauge:
        launch(StudyTask(plan, tmp_path / "run"), RunOptions())
    copies = gauge.peak / each
    assert most - 1 < copies <= most + 0.25  # a tensor or two more are on their way


def counted(tiny_checkpoint: Any, folder: Path) -> tuple[Path, Gauge, int]:
    """Return a checkpoint, a gauge of its matrices and how many of their shape it has."""
    config = AutoConfig.from_pretrained(tiny_checkpoint("smollm2-s"))
    config.intermediate_size = 331  # a prime, so that no batch has the shape of a weight
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    outline(str(tiny_checkpoint("smollm2-s"))).tokenizer.save_pretrained(folder)
    gauge = Gauge((config.intermediate_size, config.hidden_size))
    return folder, gauge, 2 * config.num_hidden_layers  # gate and up have this shape


def test_an_audit_has_one_student_on_the_device(tiny_checkpoint, far, tmp_path):
    folder, gauge, each = counted(tiny_checkpoint, tmp_path / "model")
    values = audit_files(folder, tmp_path)
    with gauge:
        palimpsest.audit(**values, out=tmp_path / "run", engine={"device": far})
    assert 3 < gauge.peak / each <= 4.25


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        MemoryError(),
    ],
)
def test_a_fault_of_the_machine_is_stored_nowhere(tiny_checkpoint, tmp_path, monkeypatch, error):
    from palimpsest.methods.npo import NPO

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(NPO, "loss", fail)
    plan = device_plan(tiny_checkpoint("qwen2-s"), Engine(), ("npo",))
    with pytest.raises(MachineError):
        launch(StudyTask(plan, tmp_path / "run"), RunOptions())
    assert not list((tmp_path / "run").rglob("failed.json"))
    assert not list((tmp_path / "run").rglob("unlearn-*/manifest.json"))
    monkeypatch.undo()
    run = launch(StudyTask(plan, tmp_path / "run"), RunOptions())
    models = models_from_json(run.cell(run.cells[0]).summary()["models"])
    assert not [name for name, model in models.items() if model.failure]


def test_a_device_that_is_not_there_is_said_at_once():
    for device in ("cuda", "cuda:3", "gpu", "auto"):
        with pytest.raises(PlanError, match=r"^device: "):
            check_device(device)


def test_every_local_worker_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5")
    seen = [gpu_of(f"worker-{n}", "cuda")["CUDA_VISIBLE_DEVICES"] for n in range(4)]
    assert seen == ["2", "3", "5", "2"]
    assert gpu_of("worker-0", "cuda:1") == gpu_of("worker-0", "cpu") == {}


def test_what_cannot_fit_is_refused(monkeypatch):
    monkeypatch.setattr(device_module, "device_memory", lambda _: 1000)
    device_module.check_room(1199, "cpu", "a study")
    with pytest.raises(PlanError, match=r"^device: "):
        device_module.check_room(1201, "cpu", "a study")


def test_integer_weights_are_refused(tiny_checkpoint):
    from palimpsest.models.skeleton import check_loaded

    loaded = load(str(tiny_checkpoint("gpt2-s")))
    model = copy.deepcopy(loaded.model)
    packed = torch.nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
    model.base_model.register_parameter("packed", packed)
    with pytest.raises(ModelError, match="packed"):
        check_loaded("packed", model, loaded.tokenizer)
