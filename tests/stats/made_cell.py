"""A made-up cell of retrainings, mixtures and candidates, with the spreads that pocket models had.

A model is made from the share of the injected weights left in it: 0 is a retraining, 1 the injected
model. Whatever else it did is planted on top.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from palimpsest.stats.measures import CellMeasures, ModelMeasures, RelearningCurve
from palimpsest.stats.models import Model, Role

FORGET = tuple(f"f{n}" for n in range(4))
PROBES = tuple(f"p{n}" for n in range(16))
SHARES = (0.5, 0.25, 0.1, 0.05)
MIXTURES = 5


def model(
    name: str,
    generator: np.random.Generator | None = None,
    share: float = 0.0,
    forget: float = 0.0,
    early: float = 0.0,
    probes: float = 0.0,
    **measures: Any,
) -> ModelMeasures:
    """A model with retraining noise (none without a generator) and what was planted."""
    noise = np.zeros(9) if generator is None else generator.standard_normal(9)
    forget_deltas = -2.5 * share + forget + 0.05 * np.linspace(-1, 1, 4) + 0.08 * noise[0]
    if generator is not None:
        forget_deltas = forget_deltas + 0.03 * generator.standard_normal(4)
    probe_deltas = 0.05 + probes + 0.3 * np.linspace(-1, 1, 16) + 0.04 * noise[1]
    if generator is not None:
        probe_deltas = probe_deltas + 0.08 * generator.standard_normal(16)
    fall = np.array([0.0, 1.0, 1.8, 2.0, 2.1, 2.15])
    heldout = 3.0 + forget_deltas.mean() - fall * (1 - 0.3 * share)
    heldout[1:] += early - 0.6 * share + 0.05 * noise[2]
    steps = np.arange(6) * 15
    rest = (0.9 + 0.03 * noise[7]) * np.ones(6), 1.2 + 0.03 * noise[8] + 0.01 * steps / 15
    return ModelMeasures(
        name=name,
        forget_facts=FORGET,
        probe_facts=PROBES,
        forget_nlls=3.0 + forget_deltas,
        probe_nlls=3.0 + probe_deltas,
        forget_deltas=forget_deltas,
        probe_deltas=probe_deltas,
        curve=RelearningCurve(
            steps, heldout - rest[0], heldout, rest[1], np.full(6, 0.4), np.full(6, 0.5)
        ),
        **{
            "retain_nll": 1.2 + 0.03 * noise[3],
            "general_nll": 2.0 + 0.015 * noise[4],
            "residual": 0.9 - 0.5 * share + 0.05 * noise[5],
            "extra": {"reversed": -4.0 + 1.5 * share + 0.05 * noise[6]},
            **measures,
        },
    )


def cell(
    references: int,
    *candidates: ModelMeasures,
    seed: int = 0,
    more: Mapping[str, tuple[ModelMeasures, Model]] | None = None,
    mixtures: int = MIXTURES,
) -> CellMeasures:
    """A cell with this many references, mixtures of the first of them, and these candidates.

    ``more`` adds or replaces models, by name.
    """
    generator = np.random.default_rng(seed)
    models = {
        "base": (
            model("base", retain_nll=6.0, general_nll=2.3, residual=2.5),
            Model("base", Role.BASE),
        ),
        "injected": (model("injected", generator, 1.0), Model("injected", Role.INJECTED)),
    }
    for draw in range(1, references + 1):
        name = f"reference-{draw}"
        models[name] = (model(name, generator), Model(name, Role.REFERENCE, seed_no=draw))
    for share in SHARES:
        for draw in range(1, min(mixtures, references) + 1):
            name, of = f"control-{100 * share:g}-{draw}", f"reference-{draw}"
            record = Model(name, Role.CONTROL, share=share, of=of)
            models[name] = (model(name, generator, share), record)
    for candidate in candidates:
        models[candidate.name] = (candidate, Model(candidate.name, Role.CANDIDATE, method="made"))
    models |= more or {}
    return CellMeasures(
        "evaluation",
        FORGET,
        PROBES,
        {name: measured for name, (measured, _) in models.items()},
        {name: record for name, (_, record) in models.items()},
    )


def retrained(name: str = "retrained", seed: int = 1000) -> ModelMeasures:
    """A fresh retraining under the name of a candidate."""
    return model(name, np.random.default_rng(seed))


def known_label(name: str, truth: str = "suppressed", **planted: Any) -> dict[str, Any]:
    """A known-label model, for ``more``."""
    measured = model(name, np.random.default_rng(5), **planted)
    return {name: (measured, Model(name, Role.KNOWN_LABEL, truth=truth))}


def without_reacquisition(measured: ModelMeasures) -> ModelMeasures:
    return replace(measured, residual=None, curve=None)


def with_probes(measures: CellMeasures, count: int) -> CellMeasures:
    """The same cell with its first probes only."""
    models = {
        name: replace(
            measured,
            probe_facts=measured.probe_facts[:count],
            probe_nlls=measured.probe_nlls[:count],
            probe_deltas=measured.probe_deltas[:count],
        )
        for name, measured in measures.models.items()
    }
    return replace(measures, probe_facts=measures.probe_facts[:count], models=models)
