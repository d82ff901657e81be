"""A made-up cell of retrainings, controls and candidates, with the spreads that pocket models had.

A model is made from the share of the injected weights left in it: 0 is a retraining, 1 the injected
model. Whatever else it did is planted on top.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from palimpsest.criteria.measures import CellMeasures, ModelMeasures, RelearningCurve

FORGET = tuple(f"f{n}" for n in range(4))
PROBES = tuple(f"p{n}" for n in range(16))
SHARES = (0.5, 0.25, 0.1, 0.05)


def model(
    name: str,
    generator: np.random.Generator | None = None,
    share: float = 0.0,
    forget: float = 0.0,
    early: float = 0.0,
    late: float = 0.0,
    **measures: Any,
) -> ModelMeasures:
    """A model with retraining noise (none without a generator) and what was planted."""
    noise = np.zeros(7) if generator is None else generator.standard_normal(7)
    backwards = 0.0 if generator is None else 0.05 * generator.spawn(1)[0].standard_normal()
    forget_deltas = -2.5 * share + forget + 0.05 * np.linspace(-1, 1, 4) + 0.08 * noise[0]
    probe_deltas = 0.05 + 0.3 * np.linspace(-1, 1, 16) + 0.04 * noise[1]
    heldout = np.array(
        [
            3.0 + forget_deltas.mean(),
            2.0 - 1.4 * share + early + 0.05 * noise[2],
            1.2 - 0.7 * share + late + 0.05 * noise[3],
        ]
    )
    return ModelMeasures(
        name=name,
        forget_facts=FORGET,
        probe_facts=PROBES,
        forget_nlls=3.0 + forget_deltas,
        probe_nlls=3.0 + probe_deltas,
        forget_deltas=forget_deltas,
        probe_deltas=probe_deltas,
        curve=RelearningCurve(np.array([0, 15, 75]), heldout, heldout, *([np.ones(3)] * 3)),
        **{
            "retain_nll": 1.2 + 0.03 * noise[4],
            "general_nll": 2.0 + 0.015 * noise[5],
            "residual": 0.9 - 0.5 * share + 0.05 * noise[6],
            "extra": {"reversed": -4.0 + 1.5 * share + backwards},
            **measures,
        },
    )


def cell(
    references: int,
    *candidates: ModelMeasures,
    seed: int = 0,
    more: Mapping[str, tuple[ModelMeasures, dict[str, Any]]] | None = None,
    shares: tuple[float, ...] = SHARES,
) -> CellMeasures:
    """A cell with so many references, its controls and these candidates.

    ``more`` adds or replaces models, by name, with their role.
    """
    generator = np.random.default_rng(seed)
    models: dict[str, tuple[ModelMeasures, dict[str, Any]]] = {
        "base": (
            model("base", retain_nll=6.0, general_nll=3.0, residual=2.5),
            {"role": "base"},
        ),
        "injected": (model("injected", generator, 1.0), {"role": "injected"}),
    }
    for draw in range(references):
        name = f"reference-{draw}" if draw else "reference"
        models[name] = (model(name, generator), {"role": "reference", "draw": draw})
    for share in shares if references else ():
        name = f"control-{100 * share:g}"
        role = {"role": "control", "share": share, "of": "reference"}
        models[name] = (model(name, generator, share), role)
    for candidate in candidates:
        models[candidate.name] = (candidate, {"role": "candidate", "method": "made"})
    models |= more or {}
    return CellMeasures(
        "evaluation",
        FORGET,
        PROBES,
        {name: one for name, (one, _) in models.items()},
        {name: role for name, (_, role) in models.items()},
    )


def retrained(name: str = "retrained", seed: int = 1000) -> ModelMeasures:
    """A fresh retraining under the name of a candidate."""
    return model(name, np.random.default_rng(seed))


def without_round_trip(one: ModelMeasures) -> ModelMeasures:
    return replace(one, residual=None, curve=None)


def with_probes(measures: CellMeasures, count: int) -> CellMeasures:
    """The same cell with its first probes only."""
    models = {
        name: replace(
            model,
            probe_facts=model.probe_facts[:count],
            probe_nlls=model.probe_nlls[:count],
            probe_deltas=model.probe_deltas[:count],
        )
        for name, model in measures.models.items()
    }
    return replace(measures, probe_facts=measures.probe_facts[:count], models=models)
