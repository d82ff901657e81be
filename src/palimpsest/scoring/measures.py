"""Which measures there are, and which are taken together: the table that a cell uses."""

from collections.abc import Callable, Collection

from palimpsest.facts.elicitation import ASKED
from palimpsest.models.net import Net
from palimpsest.scoring.exam import Exam
from palimpsest.scoring.from_changes import from_barrier, from_folds, from_prose, from_rounding
from palimpsest.scoring.from_inside import (
    from_ablation,
    from_gradients,
    from_probe,
    from_states,
    from_weights,
)
from palimpsest.scoring.from_outputs import from_tokens
from palimpsest.scoring.gauge import Gauge, Values


class Group:
    """Measures that are taken together."""

    def __init__(self, take: Callable[[Gauge, Net], list[Values]], *names: str) -> None:
        self.take, self.names = take, names


GROUPS = (
    Group(
        from_tokens,
        *("probability", "perplexity", "paraphrase_probability", "truth_ratio", "truth_knowledge"),
        *("forget_quality", "exact_memorisation", "extraction_strength", "multiple_choice"),
        *("entropy", "calibration_error", "min_rank", "leak_at_k"),
        *("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus", "mia_reference", "mia_recall"),
        *("privleak", "heldout_js", "heldout_tv", "zrf", *ASKED, "worst_question"),
    ),
    Group(
        from_states,
        *("lens_accuracy", "lens_best", "lens_depth", "uds", "cka", "pca_similarity", "pca_shift"),
    ),
    Group(from_probe, "linear_probe"),
    Group(from_ablation, "direction_ablation"),
    Group(from_gradients, "mia_gradnorm", "masked_fisher"),
    Group(from_weights, "distance_injected", "distance_reference", "update_rank"),
    Group(from_barrier, "barrier"),
    Group(from_rounding, "bits_8", "bits_4"),
    Group(from_folds, "relearn_others"),
    Group(from_prose, "unrelated_tuning"),
)
MEASURES = tuple(name for group in GROUPS for name in group.names)
"""Every measure, in the order in which they are taken."""


class Measurer:
    """Takes the chosen measures of models of one cell."""

    def __init__(self, exam: Exam, wanted: Collection[str]) -> None:
        self.gauge, self.wanted = Gauge(exam), frozenset(wanted)

    def __call__(self, net: Net) -> list[Values]:
        """Return the measures of every member of a net, whose weights are as before at the end."""
        values: list[Values] = [{} for _ in range(net.stack)]
        for group in GROUPS:
            if self.wanted & set(group.names):
                for mine, more in zip(values, group.take(self.gauge, net)):
                    mine.update({n: v for n, v in more.items() if n in self.wanted})
        return values
