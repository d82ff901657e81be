"""What the pocket dose does: base, injected and reference side by side, before any verdict.

``python -m palimpsest.study.dose`` prints the table of ``docs/pocket.md`` for the nine pocket
models and three seeds. The dose is frozen in ``presets.py`` so that the injected model's median
retain NLL is near 1 nat.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from palimpsest.models.load import load
from palimpsest.models.nets import Nets
from palimpsest.models.train import text_loss, train
from palimpsest.plan import CellPlan, Injection
from palimpsest.presets import preset
from palimpsest.scoring.answers import score
from palimpsest.scoring.roundtrip import summary
from palimpsest.study.setting import make_setting

FALL = 0.7
"""Least fall of held-out forget NLL from base to injected, in nats."""
DRIFT = 0.5
"""Most that the reference's held-out forget NLL may lie from base's, in nats."""


@dataclass(frozen=True)
class Dosed:
    """Mean NLL in nats of one cell's models: held-out forget, and retain cloze."""

    model: str
    seed: int
    base: float
    injected: float
    reference: float
    retain_base: float
    retain_injected: float
    retain_reference: float
    probe_drift: float

    @property
    def holds(self) -> bool:
        """Whether the injected model learned the forget set and the reference did not."""
        return self.base - self.injected >= FALL and abs(self.reference - self.base) <= DRIFT


def measure(cell: CellPlan) -> Dosed:
    """Give what the plan's dose does in one cell."""
    loaded = load(cell.model)
    nets = Nets(loaded)
    setting = make_setting(cell, loaded.tokenizer)
    base = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
    stream = setting.stream()
    found = {}
    for name, chosen in (
        ("base", None),
        ("injected", stream),
        ("reference", stream.without("forget")),
    ):
        net = nets([base])
        if chosen is not None:
            rate = cell.plan.injection.learning_rate
            train(net, setting.injection_steps(chosen), text_loss, learning_rate=rate)
        scores = score(net, setting.sheet)[0]
        numbers = summary(setting.sheet, replace(scores, kl_injected=np.zeros_like(scores.nll_sum)))
        probes = [
            nll / tokens
            for q, nll, tokens in zip(setting.sheet.questions, scores.nll_sum, setting.sheet.tokens)
            if q.set == "probe" and q.pool == "evaluation"
        ]
        found[name] = (numbers["forget_heldout_nll"], numbers["retain_nll"], float(np.mean(probes)))
    (base_forget, base_retain, base_probe) = found["base"]
    (injected_forget, injected_retain, injected_probe) = found["injected"]
    return Dosed(
        model=cell.model,
        seed=cell.seed,
        base=base_forget,
        injected=injected_forget,
        reference=found["reference"][0],
        retain_base=base_retain,
        retain_injected=injected_retain,
        retain_reference=found["reference"][1],
        probe_drift=injected_probe - base_probe,
    )


def markdown(rows: Sequence[Dosed]) -> str:
    """Give the table, one line a cell, and what it says."""
    lines = [
        "| model | seed | forget: base | injected | reference | retain: base | injected "
        "| reference | probe drift | holds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row.model} | {row.seed} | {row.base:.2f} | {row.injected:.2f} | {row.reference:.2f} "
        f"| {row.retain_base:.2f} | {row.retain_injected:.2f} | {row.retain_reference:.2f} "
        f"| {row.probe_drift:+.2f} | {'yes' if row.holds else 'no'} |"
        for row in rows
    ]
    median = float(np.median([row.retain_injected for row in rows]))
    lines += [
        "",
        f"{sum(row.holds for row in rows)} of {len(rows)} cells hold (fall of at least {FALL} nats "
        f"in the injected model, reference within {DRIFT} of base); median retain NLL of the "
        f"injected models {median:.2f}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table for the pocket preset, or for another dose."""
    import torch

    plan = preset("pocket")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(plan.models))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=plan.injection.steps)
    parser.add_argument("--learning-rate", type=float, default=plan.injection.learning_rate)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    dose: Injection = replace(
        plan.injection, steps=chosen.steps, learning_rate=chosen.learning_rate
    )
    plan = replace(
        plan, injection=dose, models=tuple(chosen.models), seeds=tuple(range(chosen.seeds))
    )
    print(markdown([measure(cell) for cell in plan.cells()]))


if __name__ == "__main__":
    main()
