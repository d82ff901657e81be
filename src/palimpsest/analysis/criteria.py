"""The trial of the field's criteria: which of them tell restored models from those that hide?

Every criterion scores the models of a cell whose truth is known, in two forms. *As published*: the
score itself, accepted up to a threshold over all cells that rejects 5 % of the references (the
⌈0.95 (n + 1)⌉-th smallest of their n scores). *Calibrated*: the exact two-sided comparison with the
references of the model's own cell. The first two references are not among these: mixtures and
adversaries are made of the first, which shares the injected model's draw and is counted apart as a
restored model, and the second serves the criteria that need a reference.

Intervals of AUCs resample whole cells; intervals of counts are Clopper–Pearson. Fresh retrainings
never set a threshold: how many of them are accepted is measured, not arranged.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria import axes as table
from palimpsest.criteria.axes import Axis
from palimpsest.criteria.catalogue import CRITERIA, TEACHER, Criterion
from palimpsest.criteria.controls import axis_values
from palimpsest.criteria.intervals import Interval, bootstrap_interval, clopper_pearson
from palimpsest.criteria.multiplicity import exact_level
from palimpsest.criteria.retraining import TIE, exact_counts, student_p_values, which_test
from palimpsest.criteria.rules import Rules

Form = Literal["published", "calibrated"]
Floats = NDArray[np.float64]
EASY = 0.5
"""Share of injected weights left from which a mixture is easy, as the injected model is."""
REJECTED = 0.05
ONE_CELL = "one cell: no interval"
FARTHEST = 1e9
"""Distance in standard deviations that stands for any larger one."""
SAME_DRAW = "same-draw retraining"
"""The first reference: retrained on the injected model's own texts in their order."""
NOT_RESTORED = ("injected", "partial", "suppressed")
"""Truths that a criterion must not accept; others are counted apart."""


@dataclass(frozen=True, slots=True)
class Known:
    """A model of known truth in one cell."""

    cell: str
    name: str
    kind: Literal["reference", "fresh", "adversary", "other"]
    """A reference of the bag, a retraining outside it, a model that is not restored, or one whose
    truth is another: restored in another way, or graded between the two."""
    label: str
    """What it is, the same in every cell."""
    easy: bool = False


@dataclass(frozen=True, slots=True)
class Adversary:
    """A kind of known-label model over the cells."""

    label: str
    truth: str
    knows: str
    """What it knows of the audit."""
    easy: bool

    @property
    def wrong(self) -> bool:
        """Whether accepting it is an error."""
        return self.truth in NOT_RESTORED


@dataclass(frozen=True, slots=True)
class Row:
    """How one criterion does in one form."""

    name: str
    form: Form
    criterion: Criterion | None
    """None for our certificate."""
    within: Interval | None
    """AUC within cells, averaged over them."""
    pooled: Interval | None
    hard_within: Interval | None
    """The same without the injected model and strong mixtures."""
    hard_pooled: Interval | None
    fresh: tuple[int, int]
    """Fresh retrainings accepted, of how many."""
    accepted: Mapping[str, tuple[int, int]]
    """Models of each kind of adversary accepted, of how many were measured."""

    def total(self, labels: Sequence[str]) -> tuple[int, int]:
        """Return how many models of these kinds are accepted, of how many."""
        counts = [self.accepted[label] for label in labels]
        return sum(n for n, _ in counts), sum(n for _, n in counts)


@dataclass(frozen=True, slots=True)
class Trial:
    """The whole trial."""

    rows: tuple[Row, ...]
    adversaries: tuple[Adversary, ...]
    cells: int
    models: int


def has_trial(results: RunResults) -> bool:
    """Return whether the run measured criteria on models of known truth."""
    usual = {axis.measure for axis in table.AXES}
    return any(
        set(cell.evaluation["injected"].extra) - usual
        for cell in results.cells
        if "injected" in cell.evaluation
    )


def run_trial(results: RunResults) -> Trial:
    """Return the trial of every criterion that the run measured."""
    panels = [_Panel.of(cell) for cell in results.cells]
    adversaries = _adversaries(panels)
    bench = _Bench(panels, [adversary.label for adversary in adversaries], results.rules)
    rows: list[Row] = []
    for criterion in CRITERIA:
        scores = [panel.scores(criterion) for panel in panels]
        if any(np.isfinite(some).any() for some in scores):
            rows.append(bench.published(criterion, scores))
            columns = [some[:, None] for some in scores]
            rows.append(bench.calibrated(criterion.name, criterion, columns, ("two",)))
    rows += bench.certificates()
    return Trial(tuple(rows), adversaries, len(panels), sum(len(p.known) for p in panels))


# -- the models -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Panel:
    """The known models of one cell, references of the bag first."""

    cell: CellResult
    known: tuple[Known, ...]

    @classmethod
    def of(cls, cell: CellResult) -> "_Panel":
        return cls(cell, tuple(sorted(_known(cell), key=lambda model: model.kind != "reference")))

    def scores(self, criterion: Criterion) -> Floats:
        """Return the score of every model (models,), NaN where it was not measured."""
        cell = self.cell.evaluation
        found = [criterion.read(cell[model.name], cell) for model in self.known]
        return np.array([math.nan if value is None else value for value in found])

    def of_kind(self, *kinds: str, easy: bool = True) -> NDArray[np.bool_]:
        """Tell which models are of these kinds, without easy ones if told so."""
        return np.array([m.kind in kinds and (easy or not m.easy) for m in self.known])

    def labelled(self, label: str) -> NDArray[np.bool_]:
        return np.array([model.label == label for model in self.known])


def _known(cell: CellResult) -> Iterator[Known]:
    seen: set[str] = set()
    for name in cell.evaluation:
        role = cell.roles.get(name, {})
        kind, share = role.get("role"), float(role.get("share") or 0.0)
        if role.get("failure"):
            continue
        if kind == "reference" and role["draw"] > TEACHER:
            yield Known(cell.id, name, "reference", "reference")
        elif kind == "reference" and role["draw"] == 0:
            yield Known(cell.id, name, "other", SAME_DRAW)
        elif kind == "retraining":
            yield Known(cell.id, name, "fresh", "fresh retraining")
        elif kind in ("injected", "control", "challenge"):
            truth = role.get("truth", "partial")
            mixed = share > 0 and truth == "partial"
            label = f"{share:.0%} injected" if mixed else str(role.get("entry") or "injected")
            if label in seen:
                continue  # the same mixture as a control and on the panel
            seen.add(label)
            easy = kind == "injected" or (mixed and share >= EASY)
            wrong = truth in NOT_RESTORED
            yield Known(cell.id, name, "adversary" if wrong else "other", label, easy)


def _adversaries(panels: Sequence[_Panel]) -> tuple[Adversary, ...]:
    found: dict[str, Adversary] = {}
    for panel in panels:
        for model in panel.known:
            if model.kind in ("adversary", "other") and model.label not in found:
                role = panel.cell.roles[model.name]
                plain = {"injected": "injected", SAME_DRAW: "restored"}.get(model.label, "partial")
                truth, knows = str(role.get("truth") or plain), role.get("knows", "")
                listed = knows if isinstance(knows, str) else ", ".join(knows)
                found[model.label] = Adversary(model.label, truth, listed, model.easy)
    order = {"injected": 0, "partial": 1, "suppressed": 2, "graded": 3, "restored": 4}

    def place(adversary: Adversary) -> tuple[int, float]:
        mixed = adversary.label.partition("%")[0]
        return order.get(adversary.truth, 2), -float(mixed) if mixed.isdigit() else 0.0

    return tuple(sorted(found.values(), key=place))


# -- the forms ------------------------------------------------------------------------------------


def threshold(scores: Floats) -> float:
    """Return the ⌈0.95 (n + 1)⌉-th smallest of n scores: a further exchangeable score exceeds it
    with probability at most 0.05; infinite where n is too small."""
    place = math.ceil((1 - REJECTED) * (len(scores) + 1) - 1e-9)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else math.inf


@dataclass(frozen=True, slots=True)
class _Bench:
    """The panels of all cells, on which every criterion is tried in the same way."""

    panels: Sequence[_Panel]
    labels: Sequence[str]
    """Of the adversaries."""
    rules: Rules

    def published(self, criterion: Criterion, scores: Sequence[Floats]) -> Row:
        """Return a criterion as published, from each cell's scores (models,)."""
        bag = np.concatenate([s[p.of_kind("reference")] for p, s in zip(self.panels, scores)])
        limit = threshold(bag[np.isfinite(bag)])
        known = [np.isfinite(some) for some in scores]
        accepted = [there & (some <= limit) for there, some in zip(known, scores)]
        return self._row(criterion.name, "published", criterion, scores, accepted, known)

    def calibrated(
        self,
        name: str,
        criterion: Criterion | None,
        columns: Sequence[Floats],
        sides: Sequence[str],
    ) -> Row:
        """Return a criterion, or our certificate, calibrated: from each cell's (models, axes)."""
        distances, accepted, known = [], [], []
        alpha = self.rules.alpha
        for panel, values in zip(self.panels, columns):
            p, distance = compared(values, int(panel.of_kind("reference").sum()), sides, alpha)
            passes, judged = p > float(exact_level(alpha)) + 1e-12, np.isfinite(p)
            if criterion is None:
                # The certificate accepts no model that lacks an axis; a criterion says nothing.
                judged |= np.isfinite(values).any(axis=1) & judged.any()
            distances.append(distance)
            accepted.append(passes)
            known.append(judged)
        return self._row(name, "calibrated", criterion, distances, accepted, known)

    def certificates(self) -> Iterator[Row]:
        """Yield our certificate with the axes of the rules, and with each optional one added.

        This is its comparison with retrainings alone: the screen could only reject more.
        """
        default = table.chosen(self.rules)
        further = [axis for axis in (*table.AXES, *table.OPTIONAL) if axis not in default]
        choices: list[tuple[str, tuple[Axis, ...]]] = [("certificate", default)]
        choices += [(f"certificate + {axis.title}", (*default, axis)) for axis in further]
        choices += [("certificate + all optional", (*default, *further))]
        for name, chosen in choices:
            columns = [
                np.array([axis_values(panel.cell.evaluation[m.name], chosen) for m in panel.known])
                for panel in self.panels
            ]
            if any(np.isfinite(c).all(axis=1).any() for c in columns):
                yield self.calibrated(name, None, columns, [axis.sides for axis in chosen])

    def _row(
        self,
        name: str,
        form: Form,
        criterion: Criterion | None,
        scores: Sequence[Floats],
        accepted: Sequence[NDArray[np.bool_]],
        known: Sequence[NDArray[np.bool_]],
    ) -> Row:
        def count(which: Sequence[NDArray[np.bool_]]) -> tuple[int, int]:
            mine = [some & there for some, there in zip(which, known)]
            passed = sum(int((some & yes).sum()) for some, yes in zip(mine, accepted))
            return passed, sum(int(some.sum()) for some in mine)

        def finite(*kinds: str, easy: bool = True) -> list[Floats]:
            some = [s[p.of_kind(*kinds, easy=easy)] for p, s in zip(self.panels, scores)]
            return [values[np.isfinite(values)] for values in some]

        good = finite("reference", "fresh")
        every, hard = (aucs(good, finite("adversary", easy=e), self.rules) for e in (True, False))
        fresh = count([panel.of_kind("fresh") for panel in self.panels])
        counts = {n: count([panel.labelled(n) for panel in self.panels]) for n in self.labels}
        return Row(name, form, criterion, *every, *hard, fresh, counts)


def compared(
    values: Floats, references: int, sides: Sequence[str], alpha: float
) -> tuple[Floats, Floats]:
    """Return each model's p-value (models,) against the references, and its largest |z| over axes.

    values: (models, axes); the first ``references`` rows are the bag, and each of these is compared
    with the others. NaN where a model, or the bag, has no finite value.
    """
    count = len(values)
    p, distance = np.full(count, np.nan), np.full(count, np.nan)
    bag = values[:references]
    if references < 4 or not np.isfinite(bag).all():
        return p, distance
    finite = np.flatnonzero(np.isfinite(values).all(axis=1))
    for group in (finite[finite < references], finite[finite >= references]):
        if not len(group):
            continue
        if group[0] < references:
            kept = np.array([[n for n in range(references) if n != model] for model in group])
            others = bag[kept]
        else:
            others = np.broadcast_to(bag, (len(group), *bag.shape))
        mine = values[group]
        if which_test(others.shape[1], alpha) == "exact":
            whole = np.concatenate([mine[:, None], others], axis=1)
            p[group] = exact_counts(whole, sides)[:, 0] / whole.shape[1]
        else:
            smallest = student_p_values(mine, others, sides).min(axis=-1)
            p[group] = np.minimum(1.0, smallest * len(sides))
        ordered = np.sort(others, axis=1)
        spread, offset = ordered.std(axis=1, ddof=1), np.abs(mine - ordered.mean(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(spread > 0, offset / spread, np.where(offset > TIE, np.inf, 0.0))
        distance[group] = np.minimum(z.max(axis=1), FARTHEST)
    return p, distance


# -- what they come to ----------------------------------------------------------------------------


def aucs(
    good: Sequence[Floats], bad: Sequence[Floats], rules: Rules
) -> tuple[Interval | None, Interval | None]:
    """Return the mean AUC within cells and the pooled AUC, of bad scores above good ones.

    Intervals resample cells. With wins[a, b] the won pairs of cell a's bad and cell b's good
    models, a resample with weights w has pooled AUC w·wins·w / (w·bad)(w·good), so that no score
    is ranked twice.
    """
    kept = [n for n in range(len(good)) if len(good[n]) and len(bad[n])]
    if not kept:
        return None, None
    wins = np.array([[_wins(bad[a], good[b]) for b in kept] for a in kept])
    sizes = np.array([[len(bad[n]), len(good[n])] for n in kept], np.float64)
    within = np.diag(wins) / sizes.prod(axis=1)
    generator = np.random.default_rng(rules.bootstrap_seed)
    count = len(kept)
    weights = generator.multinomial(count, np.full(count, 1 / count), rules.bootstrap_resamples)
    weights = np.concatenate([np.ones((1, count)), weights])
    means = weights @ within / count
    pooled = ((weights @ wins) * weights).sum(axis=1) / (weights @ sizes).prod(axis=1)
    results = []
    for values in (means, pooled):
        first = float(values[0])
        if count < 2:
            results.append(Interval(first, first, first, rules.confidence, ONE_CELL))
        else:
            results.append(bootstrap_interval(first, values[1:], rules, "cluster bootstrap"))
    return results[0], results[1]


def _wins(bad: Floats, good: Floats) -> float:
    """Return how many pairs have the bad score above the good one, ties counting one half."""
    ordered = np.sort(good)
    below, upto = (np.searchsorted(ordered, bad, side) for side in ("left", "right"))
    return float((below + upto).sum()) / 2


def share_interval(count: int, total: int, rules: Rules) -> Interval | None:
    """Return the exact interval of a share; None of nothing."""
    return clopper_pearson(count, total, rules.confidence) if total else None
