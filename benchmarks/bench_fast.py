"""The CPU engine of small models (``models/fast``) against a plain batched torch forward.

The plain net has the same stacked weights and one batched product per layer, but padded texts
instead of a tree, and torch's own automatic differentiation. Both are timed in turn on an injection
step, a re-acquisition step and the scoring of a cell's sheet; ``--cell`` times whole cells, each in
a process of its own. There is no bar; the ratio is reported (docs/architecture.md).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import torch
from torch import Tensor
from torch.nn import functional as F

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.config.presets import PAPER_POOL, preset
from palimpsest.models import net as nets
from palimpsest.models.checkpoint import Loaded, load
from palimpsest.models.device import repeatable
from palimpsest.models.fast import StackedNet
from palimpsest.models.net import Batch
from palimpsest.models.train import TextBatch, text_loss, train
from palimpsest.scoring.answers import score

MODELS = ("pocket/qwen2-s", "pocket/gpt2-s")
STEPS, STACKS = 40, (1, 4)


class PlainNet(StackedNet):
    """The same weights, evaluated plainly."""

    def logits(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        p = self.params if params is None else {**self.params, **params}
        family, (texts, width) = self.forward.family, batch.ids.shape
        hidden = p[family.embedding][:, batch.ids.reshape(-1)]
        if self.config.model_type == "gpt2":
            places = torch.arange(width).repeat(texts)
            hidden = hidden + p["transformer.wpe.weight"][:, places]
        scored, last = batch.rows * width + batch.columns, self.config.num_hidden_layers - 1
        layer = self._gpt2 if self.config.model_type == "gpt2" else self._llama
        for at in range(last + 1):
            kept = scored if at == last else slice(None)
            hidden = layer(p, f"{family.layers}.{at}.", hidden, width, kept)
        return torch.bmm(self._norm(p, family.last_norm, hidden), p[family.embedding].mT)

    def _llama(self, p: Any, at: str, hidden: Tensor, width: int, kept: Any) -> Tensor:
        x = self._norm(p, at + "input_layernorm", hidden)
        q, k, v = (_linear(p, f"{at}self_attn.{name}_proj", x) for name in "qkv")
        mixed, hidden = self._attention(q, k, v, width)[:, kept], hidden[:, kept]
        hidden = hidden + _linear(p, at + "self_attn.o_proj", mixed)
        x = self._norm(p, at + "post_attention_layernorm", hidden)
        gate, up = (_linear(p, f"{at}mlp.{name}_proj", x) for name in ("gate", "up"))
        return hidden + _linear(p, at + "mlp.down_proj", F.silu(gate) * up)

    def _gpt2(self, p: Any, at: str, hidden: Tensor, width: int, kept: Any) -> Tensor:
        x = self._norm(p, at + "ln_1", hidden)
        q, k, v = _linear(p, at + "attn.c_attn", x, across=True).chunk(3, -1)
        mixed, hidden = self._attention(q, k, v, width)[:, kept], hidden[:, kept]
        hidden = hidden + _linear(p, at + "attn.c_proj", mixed, across=True)
        x = _linear(p, at + "mlp.c_fc", self._norm(p, at + "ln_2", hidden), across=True)
        return hidden + _linear(p, at + "mlp.c_proj", F.gelu(x, approximate="tanh"), across=True)

    def _norm(self, p: Any, name: str, x: Tensor) -> Tensor:
        weight, bias, size = p[f"{name}.weight"], p.get(f"{name}.bias"), x.shape[-1:]
        if bias is None:
            return F.rms_norm(x, size, None, self.forward.eps) * weight.unsqueeze(1)
        x = F.layer_norm(x, size, None, None, self.forward.eps)
        return torch.addcmul(bias.unsqueeze(1), x, weight.unsqueeze(1))

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
        heads = self.config.num_attention_heads
        size = q.shape[-1] // heads
        parts = [x.reshape(-1, width, heads, size).transpose(1, 2) for x in (q, k, v)]
        if self.config.model_type != "gpt2":
            power = torch.arange(0, size, 2).float() / size
            theta = self.config.rope_parameters["rope_theta"]
            angle = torch.arange(width).float()[:, None] * (1.0 / theta**power)
            cos, sin = (f(torch.cat((angle, angle), -1)) for f in (torch.cos, torch.sin))
            for n, x in enumerate(parts[:2]):
                first, second = x.chunk(2, -1)
                parts[n] = x * cos + torch.cat((-second, first), -1) * sin
        causal = torch.full((width, width), float("-inf")).triu(1)
        chances = ((parts[0] @ parts[1].mT) * size**-0.5 + causal).softmax(-1)
        return (chances @ parts[2]).transpose(1, 2).reshape(q.shape)


def _linear(p: Any, name: str, x: Tensor, across: bool = False) -> Tensor:
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    weight = weight if across else weight.mT
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


SIDES: dict[str, type[StackedNet]] = {"fast": StackedNet, "plain": PlainNet}


def plan_of(model: str, tiny: bool = False) -> Plan:
    """Return a study of one cell: the demo's, with the paper's methods and no known-label models.

    tiny: few steps, to warm up a process.
    """
    plan = preset("demo")
    steps = {"steps": 4} if tiny else {}
    return replace(
        plan,
        models=(model,),
        seeds=(0,),
        methods=PAPER_POOL[:1] if tiny else PAPER_POOL,
        known_label=(),
        injection=replace(plan.injection, **steps),
        unlearning=replace(plan.unlearning, **steps),
        reacquisition=replace(plan.reacquisition, **steps),
    )


def phases(loaded: Loaded, steps: int) -> dict[str, Callable[[Any], Any]]:
    """Give what is timed, each a call with a net; a new batch has its tree still to be made."""
    plan = plan_of(loaded.name)
    setting = replace(
        StudyTask(plan).texts(next(iter(plan.cell_ids()))), tokenizer=loaded.tokenizer
    )

    def fresh(parts: list[TextBatch]) -> list[TextBatch]:
        return [replace(part, batch=replace(part.batch)) for part in parts]

    injection = setting.injection_steps(setting.stream())[:steps]
    again = setting.reacquisition_steps[:steps]
    rate = {"learning_rate": 1e-5}
    return {
        "injection": lambda net: train(net, map(fresh, injection), text_loss, **rate),
        "re-acquisition": lambda net: train(net, again, text_loss, **rate),
        "scoring": lambda net: score(net, setting.sheet),
    }


def check(loaded: Loaded) -> float:
    """Give how far the scores of both sides are apart; raise if that is too far."""
    score_of = phases(loaded, 1)["scoring"]
    ours, theirs = (
        score_of(side(loaded.config, [loaded.weights]))[0].nll_sum for side in SIDES.values()
    )
    return measuring.agree(f"scores of {loaded.name}", ours, theirs, 1e-3)


def time_cell(model: str, side: str) -> None:
    """Do a cell with one side's nets in this process, and print its seconds of the processor."""
    nets.StackedNet = SIDES[side]  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        launch(StudyTask(plan_of(model, tiny=True), Path(folder) / "tiny"), RunOptions())
        start = time.process_time()
        launch(StudyTask(plan_of(model), Path(folder) / "whole"), RunOptions())
    print(json.dumps(time.process_time() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cell", action="store_true", help="time whole cells too")
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeatable("cpu")
    if options.one:
        time_cell(*options.one)
        return
    results: dict[str, Any] = {}
    for model in MODELS:
        loaded = load(model)
        print(f"{model}: scores are {check(loaded):.2g} apart")
        if options.tiny:
            continue
        for stack in STACKS:
            states = [loaded.weights] * stack
            made = {name: side(loaded.config, states) for name, side in SIDES.items()}
            for phase, do in phases(loaded, STEPS).items():
                sides = {name: lambda do=do, net=net: do(net) for name, net in made.items()}
                turns = measuring.interleaved(sides, options.repeats)
                key = f"{model}, {stack} at once, {phase}"
                results[key] = {"seconds": turns.spreads(), "ratio": turns.ratio("plain", "fast")}
                measuring.say(key, results[key]["ratio"]["processor"])
        if options.cell:
            seconds: dict[str, list[float]] = {side: [] for side in SIDES}
            for turn in range(options.repeats):
                for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                    command = [sys.executable, __file__, "--one", model, side]
                    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    seconds[side].append(json.loads(child.stdout.splitlines()[-1]))
            key = f"{model}, whole cell"
            ratio = measuring.ratios(seconds["plain"], seconds["fast"])
            results[key] = {"seconds": seconds, "ratio": ratio}
            measuring.say(key, ratio)
    if not options.tiny:
        measuring.write("fast", results)


if __name__ == "__main__":
    main()
