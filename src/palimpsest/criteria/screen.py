"""The base-anchored screen: which candidates still know the forget set, beyond chance.

For each candidate the m forget deltas are tested to lie below its own n probe deltas, both scored
by the candidate on the held-out pool and anchored to base, which learned neither. Holm over the
cell's candidates. Not being excluded means "not demonstrably retaining", never "restored".

Two designs that look alike and are wrong are kept for teaching and regression: ``DESIGNS``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palimpsest.criteria.measures import CellMeasures, ModelMeasures
from palimpsest.criteria.multiplicity import Certifiability, certifiability, exact_level, holm
from palimpsest.criteria.ranktest import RankTest, rank_test, rank_tests
from palimpsest.criteria.rules import Rules
from palimpsest.errors import ScoreError

Design = Literal["base-anchored", "probes-by-injected", "injected-anchored"]
DESIGNS: tuple[Design, ...] = ("base-anchored", "probes-by-injected", "injected-anchored")


@dataclass(frozen=True, slots=True)
class Screened:
    """One model's passage through the screen."""

    name: str
    test: RankTest
    adjusted_p: float
    """Holm-adjusted over the candidates; the plain p-value for a model screened alone."""
    excluded: bool
    """Forget deltas lie significantly below probe deltas: knowledge is left."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The screen over a cell's candidates."""

    bound: Certifiability
    screened: tuple[Screened, ...]

    @property
    def survivors(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.screened if not one.excluded)

    def __getitem__(self, name: str) -> Screened:
        for one in self.screened:
            if one.name == name:
                return one
        raise ScoreError(
            f"model {name} was not screened; screened were {len(self.screened)} models"
        )


def screen_candidates(cell: CellMeasures, candidates: Sequence[str], rules: Rules) -> Screen:
    """The screen of ``candidates``, Holm-corrected at ``rules.alpha`` over all of them.

    It is computed even when the certifiability bound fails; then it can exclude nobody, and a
    verdict must abstain on ``bound`` before reading anything into the survivors.
    """
    if not candidates:
        raise ScoreError("there are no candidates to screen; give at least one")
    if len(set(candidates)) != len(candidates):
        raise ScoreError("a candidate is listed twice; each counts once in Holm's correction")
    models = [cell[name] for name in candidates]
    bound = certifiability(
        len(cell.forget_facts), len(cell.probe_facts), len(candidates), rules.alpha
    )
    tests = rank_tests(
        np.stack([model.forget_deltas for model in models]),
        np.stack([model.probe_deltas for model in models]),
    )
    correction = holm([test.exact_p for test in tests], rules.alpha)
    return Screen(
        bound,
        tuple(
            Screened(name, test, adjusted, excluded)
            for name, test, adjusted, excluded in zip(
                candidates, tests, correction.adjusted, correction.rejected
            )
        ),
    )


def screen_alone(model: ModelMeasures, rules: Rules) -> Screened:
    """The screen of a model by itself (reference, injected, panel), at ``rules.alpha``."""
    test = rank_test(model.forget_deltas, model.probe_deltas)
    return Screened(model.name, test, test.p_value, test.exact_p <= exact_level(rules.alpha))


def screen_by_design(
    cell: CellMeasures, name: str, rules: Rules, design: Design = "base-anchored"
) -> Screened:
    """One model screened by a chosen design, two of which are wrong.

    "probes-by-injected" compares the candidate's forget NLLs with the *injected* model's probe
    NLLs: damage anywhere raises the first and not the second, and passes for forgetting.
    "injected-anchored" takes deltas from the injected model, whose gap between learned forget and
    never-seen probe facts is the very label under test: the injected model itself passes.
    """
    forget, probe = _compared(cell, cell[name], design)
    test = rank_test(forget, probe)
    return Screened(name, test, test.p_value, test.exact_p <= exact_level(rules.alpha))


def _compared(
    cell: CellMeasures, model: ModelMeasures, design: Design
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if design == "base-anchored":
        return model.forget_deltas, model.probe_deltas
    injected = cell.injected
    if design == "probes-by-injected":
        return model.forget_nlls, injected.probe_nlls
    if design == "injected-anchored":
        return model.forget_nlls - injected.forget_nlls, model.probe_nlls - injected.probe_nlls
    raise ScoreError(f"the screen design is {design!r}; expected one of {', '.join(DESIGNS)}")
