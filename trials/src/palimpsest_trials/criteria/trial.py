"""The trial of the field's criteria: which of them tell restored models from those that hide?

Every criterion scores the models of a cell whose truth is known, in two forms. *As published*: the
score itself, accepted up to a threshold over all cells that rejects 5 % of the references.
*Calibrated*: the certificate's own comparison with the references of the model's cell, on that one
score. Two references are not among these: the one that shares the injected model's draw, which
mixtures and adversaries are made of and which is counted as a restored model of its own kind, and
the one that criteria may use. Fresh retrainings never set a threshold: how many of them are
accepted is measured, not arranged.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from palimpsest.known import Truth
from palimpsest.report.results import CellResult, RunResults
from palimpsest.report.table import Estimate, Share
from palimpsest.stats.axes import AXES, chosen
from palimpsest.stats.comparison import bag_scores, normal_p_values, rank_counts, which_test
from palimpsest.stats.controls import axis_values
from palimpsest.stats.intervals import bootstrap_interval, bootstrap_weights
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Model, Role
from palimpsest.stats.multiplicity import exact_level
from palimpsest_trials.criteria import CRITERIA, Criterion, find_teacher
from palimpsest_trials.criteria.likelihood import Bools, Floats

Form = Literal["published", "calibrated"]
EASY = 0.5
"""Share of injected weights left from which a mixture is easy, as the injected model is."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model of known truth, the same in every cell."""

    label: str
    truth: str
    """``injected``, or a ``Truth``."""
    share: float = 0.0
    """Of the injected weights, where it is a mixture."""

    @property
    def wrong(self) -> bool:
        """Whether accepting it is an error."""
        return self.truth not in (Truth.GRADED, Truth.RESTORED)

    @property
    def easy(self) -> bool:
        return self.truth == "injected" or self.share >= EASY


REFERENCE = Kind("reference", Truth.RESTORED)
FRESH = Kind("fresh retraining", Truth.RESTORED)
SAME_DRAW = Kind("same-draw retraining", Truth.RESTORED)
"""A reference of the bag; a retraining outside it; one of the injected model's own draw."""
ORDER = ("injected", Truth.PARTIAL, Truth.SUPPRESSED, Truth.GRADED, Truth.RESTORED)


@dataclass(frozen=True, slots=True)
class Row:
    """How one criterion does in one form."""

    name: str
    form: Form
    criterion: Criterion | None
    """None for our certificate."""
    within: Estimate | None
    """AUC within cells, averaged over them."""
    pooled: Estimate | None
    hard_within: Estimate | None
    hard_pooled: Estimate | None
    """The same without the injected model and strong mixtures."""
    accepted: Mapping[str, Share]
    """Models accepted, of those measured, by the label of their kind."""

    def total(self, labels: Sequence[str]) -> Share:
        """Return how many models of these kinds are accepted."""
        shares = [self.accepted[label] for label in labels]
        return Share(sum(s.count for s in shares), sum(s.total for s in shares))


FURTHER = (
    *("symbols", "recased", "misspelt", "alias", "pronoun", "few_shot", "min_rank", "leak_at_k"),
    *("lens_best", "linear_probe", "relearn_others", "unrelated_tuning", "bits_8", "bits_4"),
)
"""Measures that are put to trial as further axes of our certificate."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The whole trial."""

    rows: tuple[Row, ...]
    kinds: tuple[Kind, ...]
    """Of the models that are neither references of the bag nor fresh retrainings."""
    cells: int
    models: int

    @property
    def wrong(self) -> list[str]:
        """The labels of the kinds that a criterion must not accept."""
        return [kind.label for kind in self.kinds if kind.wrong]


def run_trial(results: RunResults) -> Trial | None:
    """Return the trial of every criterion that the run measured; None without such measures."""
    usual = {axis.measure for axis in AXES}
    measured = [cell.evaluation.models.get("injected") for cell in results.cells]
    if not any(model is not None and set(model.extra) - usual for model in measured):
        return None
    matrix = ScoreMatrix(results)
    rows: list[Row] = []
    for criterion in CRITERIA:
        scores = matrix.scores(criterion)
        if np.isfinite(scores).any():
            rows.append(matrix.published(criterion, scores))
            rows.append(matrix.calibrated(criterion.name, criterion, scores[:, None]))
    rows += matrix.certificates()
    return Trial(tuple(rows), matrix.tried, len(results.cells), len(matrix.models))


def find_models(cell: CellResult) -> list[tuple[str, Kind]]:
    """Return the models of known truth of one cell, references of the bag first."""
    found: dict[str, tuple[str, Kind]] = {}
    teacher = find_teacher(cell.evaluation).name
    for name in cell.evaluation:
        if (kind := kind_of(cell.models[name])) is not None and name != teacher:
            # One mixture of each share, also where it is a control and a known-label model.
            several = kind in (REFERENCE, FRESH)
            found.setdefault(name if several else kind.label, (name, kind))
    return sorted(found.values(), key=lambda model: model[1] != REFERENCE)


def kind_of(model: Model) -> Kind | None:
    """Return the kind of a model from its record; None if its truth is unknown."""
    share = model.share or 0.0
    known = {
        Role.REFERENCE: SAME_DRAW if model.same_draw else REFERENCE,
        Role.RETRAINING: FRESH,
        Role.INJECTED: Kind("injected", "injected"),
        Role.CONTROL: Kind(f"{share:.0%} injected", Truth.PARTIAL, share),
        Role.KNOWN_LABEL: Kind(model.name.removeprefix("known-"), model.truth),
    }
    if model.truth == Truth.PARTIAL:
        known[Role.KNOWN_LABEL] = known[Role.CONTROL]
    return known.get(model.role) if model.failure is None else None


def threshold(scores: Floats) -> float:
    """Return the ⌈0.95 (n + 1)⌉-th smallest of n scores: a further exchangeable score exceeds it
    with probability at most 0.05; infinite where n is too small."""
    place = math.ceil(0.95 * (len(scores) + 1) - 1e-9)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else math.inf


class ScoreMatrix:
    """The models of all cells in one row, on which every criterion is tried in the same way."""

    def __init__(self, results: RunResults) -> None:
        self.rules = results.rules
        self.models: list[tuple[CellMeasures, ModelMeasures, Kind]] = []
        self.cells: list[slice] = []
        """Where the models of each cell stand."""
        for cell in results.cells:
            found = [(cell.evaluation[name], kind) for name, kind in find_models(cell)]
            self.cells.append(slice(len(self.models), len(self.models) + len(found)))
            self.models += [(cell.evaluation, model, kind) for model, kind in found]
        labels = {kind.label: kind for *_, kind in reversed(self.models)}
        tried = [kind for kind in labels.values() if kind not in (REFERENCE, FRESH)]
        self.tried = tuple(sorted(tried, key=lambda k: (ORDER.index(k.truth), -k.share, k.label)))

    def where(self, holds: Callable[[Kind], bool]) -> Bools:
        """Tell of every model (models,) whether it is of such a kind."""
        return np.array([holds(kind) for *_, kind in self.models])

    def scores(self, criterion: Criterion) -> Floats:
        """Return the score of every model (models,), NaN where it was not measured."""
        found = [criterion.read(model, cell) for cell, model, _ in self.models]
        return np.array([math.nan if value is None else value for value in found])

    def published(self, criterion: Criterion, scores: Floats) -> Row:
        """Return a criterion as published, from the scores (models,)."""
        known = np.isfinite(scores)
        limit = threshold(scores[known & self.where(lambda kind: kind == REFERENCE)])
        return self._row(criterion.name, "published", criterion, scores, scores <= limit, known)

    def calibrated(self, name: str, criterion: Criterion | None, values: Floats) -> Row:
        """Return a criterion, or our certificate, calibrated: from values (models, axes)."""
        p, scores = np.full((2, len(values)), np.nan)
        references = self.where(lambda kind: kind == REFERENCE)
        for cell in self.cells:
            bag = int(references[cell].sum())
            p[cell], scores[cell] = compare_models(values[cell], bag, self.rules.alpha)
        known = np.isfinite(p)
        # The certificate accepts no model that lacks an axis; a criterion says nothing of it.
        known |= np.isfinite(values).any(axis=1) & (criterion is None)
        accepted = p > float(exact_level(self.rules.alpha)) + 1e-12
        return self._row(name, "calibrated", criterion, scores, accepted, known)

    def certificates(self) -> Iterator[Row]:
        """Yield our certificate with the axes of the rules, and with each further one added.

        This is its comparison with retrainings alone: the screen could only reject more.
        """
        axes = chosen(self.rules)
        choices: dict[str, tuple[str, ...]] = {"certificate": ()}
        choices |= {"certificate + all optional": FURTHER}
        choices |= {f"certificate + {name.replace('_', ' ')}": (name,) for name in FURTHER}
        for name, added in choices.items():
            values = np.array(
                [
                    [*axis_values(model, axes), *(model.extra.get(key, np.nan) for key in added)]
                    for _, model, _ in self.models
                ]
            )
            if np.isfinite(values).all(axis=1).any():
                yield self.calibrated(name, None, values)

    def _row(
        self, name: str, form: Form, criterion: Criterion | None, scores: Floats, accepted: Bools,
        known: Bools,
    ) -> Row:  # fmt: skip
        def count(label: str) -> Share:
            return Share.of(accepted[known & self.where(lambda kind: kind.label == label)].tolist())

        def by_cell(holds: Callable[[Kind], bool]) -> list[Floats]:
            mine = np.isfinite(scores) & self.where(holds)
            return [scores[cell][mine[cell]] for cell in self.cells]

        good = by_cell(lambda kind: kind in (REFERENCE, FRESH))
        every = aucs(good, by_cell(lambda kind: kind.wrong))
        hard = aucs(good, by_cell(lambda kind: kind.wrong and not kind.easy))
        counts = {kind.label: count(kind.label) for kind in (*self.tried, FRESH)}
        return Row(name, form, criterion, *every, *hard, counts)


def compare_models(values: Floats, references: int, alpha: float) -> tuple[Floats, Floats]:
    """Return each model's p-value (models,) against the references, and its statistic.

    values: (models, axes); the first ``references`` rows are the bag, and each of these is compared
    with the others. NaN where a model, or the bag, has no finite value.
    """
    p, statistic = np.full((2, len(values)), np.nan)
    bag = values[:references]
    if references < 4 or not np.isfinite(bag).all():
        return p, statistic
    outside = np.flatnonzero(np.isfinite(values).all(axis=1))[references:]
    inner = np.broadcast_to(bag_scores(bag), (references, references))
    wider = np.broadcast_to(bag, (len(outside), *bag.shape))
    outer = bag_scores(np.concatenate([values[outside][:, None], wider], axis=1))
    each = np.arange(references)
    for group, scores, place in ((each, inner, each), (outside, outer, 0 * outside)):
        statistic[group] = scores[np.arange(len(group)), place]
        p[group] = rank_counts(scores, place) / scores.shape[1]
        if which_test(references, alpha) == "normal":
            p[group] = normal_p_values(statistic[group], scores.shape[1] - 1, values.shape[1])
    return p, statistic


def aucs(good: Sequence[Floats], bad: Sequence[Floats]) -> tuple[Estimate | None, Estimate | None]:
    """Return the mean AUC within cells and the pooled AUC, of bad scores above good ones.

    Limits resample cells; one cell has none. With wins[a, b] the won pairs of cell a's bad and cell
    b's good models, a resample with weights w has pooled AUC w·wins·w / (w·bad)(w·good), so that no
    score is ranked twice.
    """
    kept = [n for n in range(len(good)) if len(good[n]) and len(bad[n])]
    if not kept:
        return None, None
    wins = np.array([[_wins(bad[a], good[b]) for b in kept] for a in kept])
    sizes = np.array([[len(bad[n]), len(good[n])] for n in kept], np.float64)
    count = len(kept)
    weights = bootstrap_weights(count)
    means = weights @ (np.diag(wins) / sizes.prod(axis=1)) / count
    pooled = ((weights @ wins) * weights).sum(axis=1) / (weights @ sizes).prod(axis=1)

    if count < 2:
        return Estimate(float(means[0])), Estimate(float(pooled[0]))
    first, second = (Estimate.of(bootstrap_interval(values)) for values in (means, pooled))
    return first, second


def _wins(bad: Floats, good: Floats) -> float:
    """Return how many pairs have the bad score above the good one, ties counting one half."""
    ordered = np.sort(good)
    below, upto = (np.searchsorted(ordered, bad, side) for side in ("left", "right"))
    return float((below + upto).sum()) / 2
