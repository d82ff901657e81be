"""How much of the time of injection, unlearning and scoring is spent in matrix products.

Every matrix product of a phase is noted with its shapes, then the same products alone are done on
random numbers, in turn with the phase itself. The fraction is the time of the bare products over
the time of the phase: 1 would be an engine that does nothing but multiply, as fast as torch can at
these shapes. There is no bar; the fraction is reported.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import measuring
import pocket
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from palimpsest.methods import candidates
from palimpsest.methods.answer_sets import make_answer_set
from palimpsest.methods.context import Context, descend
from palimpsest.models.checkpoint import load
from palimpsest.models.net import Nets
from palimpsest.models.train import text_loss, train
from palimpsest.scoring.answers import record, score
from palimpsest.scoring.reacquisition import in_residual

STACK = 4


class Products(TorchDispatchMode):
    """Notes the operands' sizes and strides of every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The operator's name without overload: aten.bmm.default, aten.bmm.out ...
        name = func.overloadpacket.__name__
        first = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "baddbmm_": 1, "addmm_": 1}.get(name)
        if first is not None:
            one, other = args[first], args[first + 1]
            self.found.append((one.shape, one.stride(), other.shape, other.stride()))
        return func(*args, **(kwargs or {}))


def replay(found: list[tuple[Any, ...]]) -> Callable[[], None]:
    """Give a call that does these products and nothing else, laid out in memory as they were."""
    store: dict[tuple[Any, ...], Any] = {}

    def operand(shape: Any, stride: Any) -> Any:
        key = (tuple(shape), tuple(stride))
        if key not in store:
            size = 1 + sum((length - 1) * step for length, step in zip(*key))
            store[key] = torch.randn(size).as_strided(*key)
        return store[key]

    pairs = [(operand(a, b), operand(c, d)) for a, b, c, d in found]

    def run() -> None:
        with torch.no_grad():
            for one, other in pairs:
                torch.matmul(one, other)

    return run


def flops(found: list[tuple[Any, ...]]) -> float:
    """Give the floating-point operations of these products."""
    return float(sum(2 * one.numel() * other[-1] for one, _, other, _ in found))


def phases(steps: int) -> dict[str, Callable[[], Any]]:
    """Give the three phases of a cell as calls, prepared as a cell prepares them."""
    cell = pocket.cell_plan()
    loaded = load(cell.model)
    setting = cell.setting(loaded.tokenizer)
    nets = Nets(loaded, stack=STACK)
    base = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
    frozen = {"base": nets([base]), "injected": nets([base])}
    context = Context(
        base=base,
        injected=base,
        forget_only=base,
        forget=make_answer_set(loaded.tokenizer, setting.seen("forget"), frozen),
        retain=make_answer_set(loaded.tokenizer, setting.seen("retain"), frozen),
        budget=replace(cell.plan.unlearning, steps=steps),
        seed_key=cell.id,
        gated=loaded.gated,
        net=nets,
        whole=nets.whole,
    )
    group = [method for method in candidates(cell.plan.methods) if method.name == "kl_reversion"]
    alone, stacked = nets([base]), nets([base] * STACK)
    injection = setting.injection_steps(setting.stream())[:steps]
    teacher = record(nets([base]), setting.sheet, in_residual)
    return {
        "injection": lambda: train(alone, injection, text_loss, learning_rate=1e-5),
        "unlearning": lambda: descend(context, group),
        "scoring": lambda: score(stacked, setting.sheet, injected=teacher),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--tiny", action="store_true", help="check only that products are found")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, phase in phases(2 if options.tiny else 20).items():
        with Products() as products:
            phase()
        if not products.found:
            raise measuring.Disagreement(f"{name}: no matrix product was seen")
        work = flops(products.found)
        print(f"{name}: {len(products.found)} products, {work / 1e9:.2f} GFLOP")
        if options.tiny:
            continue
        sides = {"phase": phase, "products": replay(products.found)}
        turns = measuring.interleaved(sides, options.repeats)
        fraction = turns.ratio("products", "phase")
        measuring.say(f"{name}, share of time that bare products take", fraction, "")
        results[name] = {
            "products": len(products.found),
            "gflop": work / 1e9,
            "seconds": turns.spreads(),
            "gflop_per_second": {
                side: work / 1e9 / measuring.spread(turns.processor[side])["median"]
                for side in sides
            },
            "fraction": fraction,
        }
    if not options.tiny:
        measuring.write("roofline", {"stack": STACK, **results})


if __name__ == "__main__":
    main()
