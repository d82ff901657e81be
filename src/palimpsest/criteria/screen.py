"""The base-anchored screen: which candidates still know the forget set, beyond chance.

For each candidate the m forget deltas are tested to lie below its own n probe deltas, both scored
by the candidate on the held-out pool and anchored to base, which learned neither. Holm over the
cell's candidates. Not being excluded means "not demonstrably retaining", never "restored".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palimpsest.criteria.measures import CellMeasures, ModelMeasures
from palimpsest.criteria.multiplicity import Certifiability, certifiability, exact_level, holm
from palimpsest.criteria.ranktest import RankTest, rank_test, rank_tests
from palimpsest.criteria.rules import Rules
from palimpsest.errors import ScoreError


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
        return tuple(passage.name for passage in self.screened if not passage.excluded)

    def __getitem__(self, name: str) -> Screened:
        for passage in self.screened:
            if passage.name == name:
                return passage
        raise ScoreError(
            f"model {name} was not screened; screened were {len(self.screened)} models"
        )


def screen_candidates(cell: CellMeasures, candidates: Sequence[str], rules: Rules) -> Screen:
    """Return the screen of ``candidates``, Holm-corrected at ``rules.alpha`` over all of them.

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
    """Return the screen of a model by itself (reference, injected, panel), at ``rules.alpha``."""
    test = rank_test(model.forget_deltas, model.probe_deltas)
    return Screened(model.name, test, test.p_value, test.exact_p <= exact_level(rules.alpha))
