"""A cell as steps see it: its models, given or trained here, and what is done with them.

Every task plans its cells in this one structure; ``steps.py`` turns it into steps, ``work.py`` does
them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from palimpsest.cell.planned import PlannedCell
from palimpsest.cell.texts import FIRST_DRAW, CellTexts
from palimpsest.config.sections import Unlearning
from palimpsest.models.checkpoint import Digests
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import Rules


@dataclass(frozen=True, slots=True)
class Given:
    """A checkpoint that was made elsewhere; ``adapter_base`` is what an adapter goes on."""

    place: str
    digests: Digests
    adapter_base: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """Training from base on part of one draw of the injection stream."""

    sets: tuple[str, ...]
    """The sets of facts it is taught; all see the general text."""
    draw: str = FIRST_DRAW


@dataclass(frozen=True, slots=True)
class Mixed:
    """A share of the injected weights mixed into a reference."""

    reference: str
    share: float


@dataclass(frozen=True, slots=True)
class Commanded:
    """Training from base by a user's own command."""

    command: str
    data: bytes
    """The file of training examples that it gets."""
    seed: int


Source = Given | Trained | Mixed | Commanded


@dataclass(frozen=True)
class SourcedModel:
    """A model of a cell with where it comes from."""

    model: Model
    source: Source

    @property
    def name(self) -> str:
        return self.model.name


@dataclass(frozen=True, kw_only=True)
class CellPlan:
    """Everything that is fixed about a cell before its first step."""

    id: str
    title: str
    """The base's name in tables."""
    seed: int
    base: Given
    texts: CellTexts
    rules: Rules
    models: tuple[SourcedModel, ...]
    """Those with a source, in the order of the tables: not the base, the candidates of methods or
    the known-label models."""
    methods: tuple[Any, ...] = ()
    """Unlearning methods with their knobs set; each makes a candidate."""
    plugins: tuple[tuple[str, str], ...] = ()
    """Digest of the source of each plug-in: of a method by its name, of a known-label model as the
    plan names it."""
    unlearning: Unlearning = field(default_factory=Unlearning)
    known_label: tuple[str, ...] = ()
    sealed_pool: Any = None
    """The opened pool and its commitment, where known-label models are scored on one."""
    oracle: str = ""
    """Name of the reference that the trained-probe criterion compares with."""
    measures: tuple[str, ...] = ()
    """Built-in measures to take of every model, beside the usual scores."""
    measure_plugins: tuple[tuple[str, str], ...] = ()
    """Digest of the source of each plug-in that takes further ones, by its name."""
    choose_rate_on: str = ""
    """Name of the reference on which the learning rate of re-acquisition is chosen."""
    measured: bool = True
    """Whether models are scored; otherwise their weights are the product."""

    def of(self, *roles: Role) -> tuple[SourcedModel, ...]:
        """Return the models of these roles."""
        return tuple(entry for entry in self.models if entry.model.role in roles)

    def find(self, name: str) -> SourcedModel | None:
        """Return the model of that name, None if the cell has none (or it is the base)."""
        return next((entry for entry in self.models if entry.name == name), None)


def sourced(planned: PlannedCell, source: Callable[[Model], Source], **more: Any) -> CellPlan:
    """Return the plan of a cell from the list of its models and where each comes from.

    The base is given, and steps make the candidates of methods and the known-label models: the
    others have a source. more: the further fields of ``CellPlan``.
    """
    made = (Role.BASE, Role.KNOWN_LABEL)
    models = [m for m in planned.models if m.role not in made and not m.method]
    return CellPlan(
        id=planned.id,
        title=planned.title,
        seed=planned.seed,
        rules=planned.rules,
        measures=planned.measures,
        models=tuple(SourcedModel(model, source(model)) for model in models),
        **more,
    )


def trained_source(model: Model) -> Source:
    """Return how a model is made where the injected model's stream is known: mixed of others, or
    trained from base."""
    if model.role is Role.CONTROL:
        return Mixed(model.of, model.share or 0.0)
    if model.role is Role.RETRAINING:
        return Trained(("retain",), f"retraining{model.seed_no}")
    if model.role is Role.REFERENCE:
        return Trained(("retain",), FIRST_DRAW if model.same_draw else f"draw{model.seed_no}")
    return Trained(_SETS[model.role])


_SETS: dict[Role, tuple[str, ...]] = {
    Role.INJECTED: ("forget", "retain"),
    Role.FORGET_ONLY: ("forget",),
    Role.GENERAL_ONLY: (),
}
