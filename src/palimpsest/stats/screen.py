"""The screen: which candidates still know the forget set, beyond chance.

For each model the m forget deltas are tested to lie below its own n probe deltas, both scored by
the model itself on the held-out pool. Without references deltas are anchored to base, as in the
paper: base learned neither set. With references they are anchored, fact by fact, to the references'
mean: facts that happen to be easier than the probes for every retraining then weigh nothing. Holm
over the candidates. A retraining may shift all its forget facts a little against its probes, so
with references a candidate is excluded only if its gap also lies below every reference's own and
beyond their one-sided prediction limit at ``GAP_LEVEL``: a retraining is excluded that rarely,
whatever the number of facts. Surviving means that no retained knowledge was detected, not
restoration.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from palimpsest.errors import ScoreError
from palimpsest.stats.items import Values
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.multiplicity import Certifiability, certifiability, exact_level, holm
from palimpsest.stats.ranktest import RankTest, rank_test, rank_tests
from palimpsest.stats.rules import Rules

GAP_LEVEL = 0.01
"""Chance that a retraining's gap lies beyond those of the references."""
INFERABLE_SHARE = 0.3
"""From this share on, forget facts count as inferable from retained data, or as left in the
references: honest ones showed at most 0.25, those with a quarter of the injected weights 0.34."""


@dataclass(frozen=True, slots=True)
class Screened:
    """One model's passage through the screen."""

    name: str
    test: RankTest
    adjusted_p: float
    """Holm-adjusted over the models screened together; the plain p-value for one alone."""
    excluded: bool
    """Forget deltas lie significantly below probe deltas: knowledge is left."""
    gap: float
    """Median forget delta minus median probe delta, in nats."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The screen over a cell's candidates."""

    bound: Certifiability
    anchor: Literal["base", "references"]
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


def screen_candidates(
    cell: CellMeasures,
    candidates: Sequence[str],
    rules: Rules,
    references: Sequence[str] = (),
) -> Screen:
    """Return the screen of ``candidates``, Holm-corrected at ``rules.alpha`` over all of them.

    It is computed even when the certifiability bound fails; then it can exclude nothing, and a
    verdict must abstain on ``bound`` before reading anything into the survivors.
    """
    if not candidates or len(set(candidates)) != len(candidates):
        raise ScoreError(f"{len(candidates)} candidates to screen; expected each once, at least 1")
    bound = certifiability(
        len(cell.forget_facts), len(cell.probe_facts), len(candidates), rules.alpha
    )
    anchor: Literal["base", "references"] = "references" if len(references) > 1 else "base"
    deltas = [_deltas(cell, name, references) for name in candidates]
    tests = rank_tests(np.stack([f for f, _ in deltas]), np.stack([p for _, p in deltas]))
    correction = holm([test.exact_p for test in tests], rules.alpha)
    lowest = _lowest_gap([_gap(*_deltas(cell, name, references)) for name in references])
    passages = []
    for name, test, (forget, probe), adjusted, rejected in zip(
        candidates, tests, deltas, correction.adjusted, correction.rejected
    ):
        gap = _gap(forget, probe)
        excluded = rejected and gap < lowest
        passages.append(Screened(name, test, adjusted, excluded, gap))
    return Screen(bound, anchor, tuple(passages))


def _gap(forget: Values, probe: Values) -> float:
    """Return the median forget delta minus the median probe delta."""
    return float(np.median(forget) - np.median(probe))


def _lowest_gap(gaps: Sequence[float]) -> float:
    """Return the gap below which a further retraining lies with at most ``GAP_LEVEL``."""
    count = len(gaps)
    if count < 2:
        return math.inf
    values = np.sort(gaps)
    reach = float(stdtrit(count - 1, 1 - GAP_LEVEL)) * math.sqrt(1 + 1 / count)
    return min(float(values[0]), float(values.mean() - reach * values.std(ddof=1)))


def screen_alone(model: ModelMeasures, rules: Rules) -> Screened:
    """Return the base-anchored screen of a model by itself, at ``rules.alpha``."""
    test = rank_test(model.forget_deltas, model.probe_deltas)
    excluded = test.exact_p <= exact_level(rules.alpha)
    return Screened(model.name, test, test.p_value, excluded, model.median_gap)


def found_references(
    cell: CellMeasures, references: Sequence[str], rules: Rules
) -> tuple[str, ...]:
    """Return the references in which the base-anchored screen finds the forget facts.

    Each by itself, at ``rules.alpha`` over their number: retrainings that learn the facts from
    retained data are found, and so are references that were not made without the forget data.
    """
    level = exact_level(rules.alpha) / max(1, len(references))
    tests = {
        name: rank_test(cell[name].forget_deltas, cell[name].probe_deltas) for name in references
    }
    return tuple(name for name, test in tests.items() if test.exact_p <= level)


def inferable_share(cell: CellMeasures, references: Sequence[str]) -> float | None:
    """Return how much of the injected model's gap between probes and forget facts retraining has.

    Base-anchored medians of the references' mean, as a share of the injected model's: near 0 for
    facts that only injection taught, near 1 for facts that retained data reconstruct. None without
    references, or where the injected model itself has no such gap.
    """
    if not references or "injected" not in cell:
        return None
    forget = np.mean([cell[name].forget_deltas for name in references], axis=0)
    probe = np.mean([cell[name].probe_deltas for name in references], axis=0)
    own = -cell["injected"].median_gap
    return float(np.median(probe) - np.median(forget)) / own if own > 0 else None


def _deltas(cell: CellMeasures, name: str, references: Sequence[str]) -> tuple[Values, Values]:
    """Return the deltas of a model's forget facts and probes from its anchor."""
    model, others = cell[name], [other for other in references if other != name]
    if len(others) < 2:
        return model.forget_deltas, model.probe_deltas
    forget = np.mean([cell[other].forget_nlls for other in others], axis=0)
    probe = np.mean([cell[other].probe_nlls for other in others], axis=0)
    return model.forget_nlls - forget, model.probe_nlls - probe
