"""What a cell should hold, from the terms of its run and one list of its models: no path, no torch.

A task adds to this list where each model comes from (``plan.py``), and ``verify`` compares with it
what a certificate holds. Both call ``planned_cell``, so that nothing is derived twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from palimpsest.cell.beacon import Beacon
from palimpsest.config.plan import cell_id, model_title
from palimpsest.errors import InputError
from palimpsest.known import KnownLabel
from palimpsest.methods import title, used
from palimpsest.run.store import Roster, Terms
from palimpsest.schema import build
from palimpsest.stats.axes import chosen
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import CONTROL_MIXTURES, Rules

AUDIT = "audit"
"""The one cell of an audit's run; every random choice is derived from this name."""
KINDS = ("study", "audit", "unlearn", "retrain")


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of a run's list: a given candidate or reference, or a method with its knobs set."""

    model: Model
    uses: tuple[str, ...] = ()
    """Models of the cell that the method needs."""
    plugin: str = ""
    """Digest of the source of a method that is not built in."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a run stores it."""
        also = {"uses": list(self.uses), "plugin": self.plugin}
        return self.model.to_json() | (also if self.model.method else {})

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Listed":
        """Return the entry that a run has stored."""
        values = dict(entry)
        uses, plugin = tuple(values.pop("uses", ())), values.pop("plugin", "")
        return cls(Model.from_json(values), uses, plugin)


def listed_methods(methods: Sequence[Any], plugins: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the entries of a run's list for methods; plugins: source digests by name."""
    entries = [
        Listed(candidate_model(method), used(method), plugins.get(method.name, ""))
        for method in methods
    ]
    return [entry.to_json() for entry in entries]


def candidate_model(method: Any) -> Model:
    """Return the candidate that a method with its knobs set makes."""
    knobs = {item.name: getattr(method, item.name) for item in fields(method)}
    aim = getattr(method, "kind", "other")  # a plug-in may declare none
    return Model(title(method), Role.CANDIDATE, method=method.name, knobs=knobs, aim=aim)


def known_label_model(entry: KnownLabel) -> Model:
    """Return the model of a cell that a known-label entry builds."""
    knows, truth = tuple(map(str, entry.knows)), str(entry.truth)
    return Model(entry.model, Role.KNOWN_LABEL, truth=truth, knows=knows, share=entry.share)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """What a cell should hold, as the terms of its run and one list of its models say."""

    id: str
    title: str
    """The base's name in tables."""
    seed: int
    rules: Rules
    models: tuple[Model, ...]
    """In the order of the tables: base, injected, references and what is mixed of them, candidates,
    known-label models. Without what only their files or their making show: digests of weights that
    no list names, recipes, costs."""
    beacon: Mapping[str, Any] | None
    """Record of what was drawn from a beacon."""
    measures: tuple[str, ...]
    """Measures that the axes need beside the usual scores."""
    facts: Mapping[str, int]
    """How many facts each set has."""

    def of(self, *roles: Role) -> tuple[Model, ...]:
        """Return the models of these roles."""
        return tuple(model for model in self.models if model.role in roles)


def planned_cells(terms: Terms) -> dict[str, tuple[str, int]]:
    """Return the place of the base and the seed of every cell, by its id.

    InputError where the terms list other cells than their configuration gives.
    """
    config = terms.config
    bases, seeds = config.get("models", ["own"]), config.get("seeds", [config.get("seed", 0)])
    # Counted before they are listed: models times seeds may be more than memory holds.
    if terms.kind in KINDS and len(bases) * len(seeds) == len(terms.cells):
        cells = {cell_id(base, seed): (base, seed) for seed in seeds for base in bases}
        if terms.kind == "audit":
            cells = {AUDIT: ("audit", 0)}
        if tuple(cells) == tuple(terms.cells):
            return cells
    raise InputError(
        f"the terms of kind {terms.kind!r} list {len(terms.cells)} cells; expected those that "
        "their configuration gives"
    )


def planned_cell(terms: Terms, roster: Roster, cell: str) -> PlannedCell:
    """Return what a cell of a run should hold, from its terms and a list of its models alone."""
    place, seed = planned_cells(terms)[cell]
    config, listed = terms.config, [Listed.from_json(entry) for entry in roster]
    rules = build(Rules, terms.rules, "rules")
    base = Model("base", Role.BASE, source=terms.inputs[place if terms.kind == "study" else "base"])
    models = [base, *_MODELS[terms.kind](terms, listed)]
    if terms.kind in ("study", "audit"):
        models += mixtures(models, rules)
    models += [entry.model for entry in listed if entry.model.role is Role.CANDIDATE]
    models += [Model.from_json(record) for record in config.get("known_label_models", ())]
    beacon = config.get("drawn")
    if terms.kind == "study" and config["beacon"]:
        beacon = Beacon(config["beacon"], {"cell": cell}).record()
    return PlannedCell(
        id=cell,
        title=model_title(place),
        seed=seed,
        rules=rules,
        models=tuple(models),
        beacon=beacon,
        measures=tuple(axis.measure for axis in chosen(rules) if axis.measure is not None),
        facts=config.get("fact_counts", {}),
    )


def _study_models(terms: Terms, listed: Sequence[Listed]) -> Iterator[Model]:
    """Yield the models that a study trains from base.

    The first reference shares the injected model's draw; the further ones are independent.
    """
    replication = terms.config["replication"]
    yield Model("injected", Role.INJECTED)
    yield Model("reference", Role.REFERENCE, seed_no=0, same_draw=True)
    yield Model("forget_only", Role.FORGET_ONLY)
    if "general_only" in _used(listed):
        yield Model("general_only", Role.GENERAL_ONLY)
    for n in range(1, replication["draws"] + 1):
        yield Model(f"reference-{n}", Role.REFERENCE, seed_no=n)
    for n in range(1, replication["retrainings"] + 1):
        yield Model(f"retraining-{n}", Role.RETRAINING, seed_no=n)


def _audit_models(terms: Terms, listed: Sequence[Listed]) -> Iterator[Model]:
    yield Model("injected", Role.INJECTED, source=terms.inputs["injected"])
    references = (entry.model for entry in listed if entry.model.role is Role.REFERENCE)
    for n, model in enumerate(references):
        yield replace(model, seed_no=n, excluded=model.name in terms.config["exclude"])


def _unlearn_models(terms: Terms, listed: Sequence[Listed]) -> Iterator[Model]:
    yield Model("injected", Role.INJECTED, source=terms.inputs["injected"])
    used = _used(listed)
    if used & {"forget_only", "general_only"}:
        yield Model("forget_only", Role.FORGET_ONLY)
    if "general_only" in used:
        yield Model("general_only", Role.GENERAL_ONLY)


def _retrain_models(terms: Terms, listed: Sequence[Listed]) -> Iterator[Model]:
    if terms.config["with_forget"]:
        yield Model("injected", Role.INJECTED)
    for n in range(terms.config["draws"]):
        yield Model(f"reference-{n:02d}", Role.REFERENCE, seed_no=n)


_MODELS = {
    "study": _study_models,
    "audit": _audit_models,
    "unlearn": _unlearn_models,
    "retrain": _retrain_models,
}


def _used(listed: Sequence[Listed]) -> set[str]:
    return {need for entry in listed for need in entry.uses}


def mixtures(models: Sequence[Model], rules: Rules) -> Iterator[Model]:
    """Yield the controls: known shares of the injected weights mixed into several references."""
    references = [m.name for m in models if m.role is Role.REFERENCE and not m.excluded]
    for share in rules.control_shares:
        for name in references[:CONTROL_MIXTURES]:
            yield Model(f"control-{100 * share:g}-{name}", Role.CONTROL, share=share, of=name)
