"""What the pocket dose does: base, injected and reference side by side, before any verdict.

``python benchmarks/pocket_dose.py`` prints the table of ``docs/pocket.md`` for the nine pocket
models and three seeds. The dose is frozen in ``presets.py`` so that the injected model's median
retain NLL is near 1 nat.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pocket import PocketCell

from palimpsest.config.presets import preset
from palimpsest.models.checkpoint import load
from palimpsest.models.net import Nets
from palimpsest.models.train import text_loss, train
from palimpsest.scoring.answers import score
from palimpsest.scoring.reacquisition import summarize

MODELS = ("base", "injected", "reference")
FALL = 0.7
"""Least fall of held-out forget NLL from base to injected, in nats."""
DRIFT = 0.5
"""Most that the reference's held-out forget NLL may lie from base's, in nats."""


@dataclass(frozen=True)
class Dosed:
    """Mean NLL in nats of one cell's models, by base, injected and reference."""

    cell: PocketCell
    forget: dict[str, float]
    """On held-out forget questions."""
    retain: dict[str, float]
    probe: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether the injected model learned the forget set and the reference did not."""
        learned = self.forget["base"] - self.forget["injected"] >= FALL
        return learned and abs(self.forget["reference"] - self.forget["base"]) <= DRIFT


def measure(cell: PocketCell) -> Dosed:
    """Return what the plan's dose does in one cell."""
    loaded = load(cell.model)
    nets, setting = Nets(loaded), cell.setting(loaded.tokenizer)
    base = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
    result = Dosed(cell, {}, {}, {})
    whole = setting.stream()
    trained = {"injected": whole, "reference": whole.without("forget")}
    for name in MODELS:
        net = nets([base])
        if name in trained:
            rate = cell.plan.injection.learning_rate
            train(net, setting.injection_steps(trained[name]), text_loss, learning_rate=rate)
        scores = score(net, setting.sheet)[0]
        plain = replace(scores, kl_injected=np.zeros_like(scores.nll_sum))
        numbers = summarize(setting.sheet, plain)
        asked = [q.set == "probe" and q.pool == "evaluation" for q in setting.sheet.questions]
        result.forget[name] = numbers.forget_heldout_nll
        result.retain[name] = numbers.retain_nll
        result.probe[name] = float((scores.nll_sum / np.array(setting.sheet.tokens))[asked].mean())
    return result


def markdown(rows: Sequence[Dosed]) -> str:
    """Return the table, one line per cell, and what it shows."""
    lines = [
        "| model | seed | forget: base | injected | reference | retain: base | injected "
        "| reference | probe drift | holds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        numbers = [values[name] for values in (row.forget, row.retain) for name in MODELS]
        shown = " | ".join(f"{number:.2f}" for number in numbers)
        drift = row.probe["injected"] - row.probe["base"]
        holds = "yes" if row.holds else "no"
        lines.append(
            f"| {row.cell.model} | {row.cell.plan.seeds[0]} | {shown} | {drift:+.2f} | {holds} |"
        )
    median = float(np.median([row.retain["injected"] for row in rows]))
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
    dose = replace(plan.injection, steps=chosen.steps, learning_rate=chosen.learning_rate)
    cells = [
        PocketCell(replace(plan, injection=dose, models=(model,), seeds=(seed,)))
        for seed in range(chosen.seeds)
        for model in chosen.models
    ]
    print(markdown([measure(cell) for cell in cells]))


if __name__ == "__main__":
    main()
