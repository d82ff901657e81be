"""Which measures are taken together: the table that a cell uses."""

from collections.abc import Callable, Collection

from palimpsest.criteria.catalogue import MEASURES
from palimpsest.criteria.changes import from_barrier, from_folds, from_prose, from_rounding
from palimpsest.criteria.exam import Exam
from palimpsest.criteria.gauge import Gauge, Values
from palimpsest.criteria.inside import (
    from_ablation,
    from_gradients,
    from_probe,
    from_states,
    from_weights,
)
from palimpsest.criteria.outputs import from_tokens
from palimpsest.models.net import Net

Take = Callable[[Gauge, Net], list[Values]]
STATES = ("lens_accuracy", "lens_best", "lens_depth", "uds", "cka", "pca_similarity", "pca_shift")
OTHERS: tuple[tuple[Take, tuple[str, ...]], ...] = (
    (from_states, STATES),
    (from_probe, ("linear_probe",)),
    (from_ablation, ("direction_ablation",)),
    (from_gradients, ("mia_gradnorm", "masked_fisher")),
    (from_weights, ("distance_injected", "distance_reference", "update_rank")),
    (from_barrier, ("barrier",)),
    (from_rounding, ("bits_8", "bits_4")),
    (from_folds, ("relearn_others",)),
    (from_prose, ("unrelated_tuning",)),
)
FROM_TOKENS = tuple(name for name in MEASURES if not any(name in some for _, some in OTHERS))
PASSES = ((from_tokens, FROM_TOKENS), *OTHERS)
"""Every pass over a model with the measures that it takes, in their order."""


class Measurer:
    """Takes the chosen measures of models of one cell."""

    def __init__(self, exam: Exam, wanted: Collection[str]) -> None:
        self.gauge, self.wanted = Gauge(exam), frozenset(wanted)

    def __call__(self, net: Net) -> list[Values]:
        """Return the measures of every member of a net, whose weights are as before at the end."""
        values: list[Values] = [{} for _ in range(net.stack)]
        for take, names in PASSES:
            if self.wanted & set(names):
                for mine, more in zip(values, take(self.gauge, net)):
                    mine.update({name: v for name, v in more.items() if name in self.wanted})
        return values
