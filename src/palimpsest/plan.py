"""Every knob of a run, as frozen dataclasses: YAML or a preset in, a canonical hash out.

Precedence is flag > file > preset default. A plan is checked whole before anything is trained; an
error names the key. ``Rules`` (thresholds and decision rules) lives in ``criteria/rules.py``, where
the statistics that use it are, and is part of the plan.
"""

import dataclasses
import itertools
import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palimpsest.criteria.rules import Rules
from palimpsest.errors import PlanError
from palimpsest.run.disk import canonical, digest

Knob = float | int | str | bool

CELLS_LIMIT = 100_000
CANDIDATES_LIMIT = 10_000
"""More of either is a mistake in a plan, or an attempt to fill the memory."""

# A few lines of YAML with aliases can stand for a value that fills the memory when written out.
_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxtuple, _short.maxdict = 3, 6, 6, 6
_short.maxstring = _short.maxother = _short.maxlong = 80


@dataclass(frozen=True)
class Counts:
    """How many facts of each kind a cell has."""

    forget: int = 4
    retain: int = 4
    probes: int = 16
    phrasings: int = 3
    """Injection phrasings each fact is trained on (the paper's K)."""


@dataclass(frozen=True)
class Injection:
    """Continued pretraining: of the injected model and, without the forget set, the reference."""

    steps: int = 200
    learning_rate: float = 2e-5
    fact_items: int = 4
    general_items: int = 12
    """General texts beside the fact sentences of each step (the paper's 3:1 mix)."""


@dataclass(frozen=True)
class Unlearning:
    """Budget shared by every gradient method: same steps, same items a step."""

    steps: int = 110
    learning_rate: float = 2e-5
    ascent_learning_rate: float = 5e-6
    """For gradient ascent, NPO and their kin, which move much faster than reversion."""
    forget_items: int = 4
    retain_items: int = 4


@dataclass(frozen=True)
class RoundTrip:
    """Re-acquisition of the forget set, the same batches for every model of a cell."""

    steps: int = 75
    chunks: int = 5
    learning_rate: float = 2e-5
    items: int = 4


@dataclass(frozen=True)
class General:
    """General text: mixed into injection, and scored for damage and for the residual."""

    source: str = "pocket"
    """``pocket`` for generated prose, or the path of a plain-text file."""
    train_pieces: int = 600
    scored_pieces: int = 24
    piece_tokens: int = 28


@dataclass(frozen=True)
class MethodGrid:
    """One method and the values its knobs take; every combination is a candidate."""

    name: str
    grid: tuple[tuple[str, tuple[Knob, ...]], ...] = ()

    def settings(self) -> tuple[dict[str, Knob], ...]:
        """Give one dict of knobs per candidate, in the order written."""
        names = [name for name, _ in self.grid]
        values = [values for _, values in self.grid]
        return tuple(dict(zip(names, chosen)) for chosen in itertools.product(*values))


@dataclass(frozen=True)
class Panel:
    """Known-label challenge models, scored once on the sealed audit pool."""

    enabled: bool = True
    penalty: float = 10.0
    """Subtracted from the forget-answer token logits by the suppression model."""
    interpolations: tuple[float, ...] = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Replication:
    """Independent draws of the reference that measure retraining noise."""

    draws: int = 3
    cells: str = "family"
    """``family``: in the first cell of each family; ``every``: in every cell."""


@dataclass(frozen=True)
class Engine:
    """How numbers are computed; none of these may change a verdict."""

    device: str = "cpu"
    dtype: str = "float32"
    stack: int = 4
    """Pocket-sized candidates trained side by side; 1 trains them one after the other."""
    batch_tokens: int = 8192
    """Padded tokens in one scoring batch."""
    accumulate: int = 1
    checkpointing: bool = False
    keep_models: bool = False


@dataclass(frozen=True)
class Plan:
    """A study: models times seeds, with everything that is done in each cell."""

    name: str = "pocket"
    models: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    facts: Counts = field(default_factory=Counts)
    injection: Injection = field(default_factory=Injection)
    unlearning: Unlearning = field(default_factory=Unlearning)
    round_trip: RoundTrip = field(default_factory=RoundTrip)
    general: General = field(default_factory=General)
    methods: tuple[MethodGrid, ...] = ()
    panel: Panel = field(default_factory=Panel)
    replication: Replication = field(default_factory=Replication)
    rules: Rules = field(default_factory=Rules)
    engine: Engine = field(default_factory=Engine)
    seal: str = ""
    """Commitment of a user's own audit pool (``palimpsest seal``); empty for the built-in pool."""
    local_models: tuple[tuple[str, str], ...] = ()
    """Local folders to load instead of hub ids: ``{id: folder}`` in YAML."""

    def as_dict(self) -> dict[str, Any]:
        """Give the plan as plain JSON values, in the form ``plan_from_dict`` reads."""
        return typing.cast(dict[str, Any], _plain(self))

    def hash(self) -> str:
        """Give the SHA-256 of the canonical JSON of the whole plan."""
        return digest(canonical(self.as_dict()))

    def rules_hash(self) -> str:
        """Give the SHA-256 of the canonical JSON of the rules alone."""
        return digest(canonical(_plain(self.rules)))

    def cells(self) -> tuple["CellPlan", ...]:
        """Give every cell, models outermost."""
        return tuple(CellPlan(model, seed, self) for model in self.models for seed in self.seeds)


@dataclass(frozen=True)
class CellPlan:
    """One model and one seed of a plan."""

    model: str
    seed: int
    plan: Plan

    @property
    def id(self) -> str:
        """Give the cell's name, from which every random number in it is derived."""
        name = re.sub(r"[^A-Za-z0-9._+=,@]+", "-", self.model).strip("-.")[-80:].strip("-.")
        return f"{name or 'model'}--seed{self.seed}"


def check(plan: Plan) -> Plan:
    """Give the plan back if it can be run; raise PlanError naming the key if not."""
    _whole("facts.forget", plan.facts.forget, 1)
    _whole("facts.retain", plan.facts.retain, 1)
    _whole("facts.probes", plan.facts.probes, 1)
    _whole("facts.phrasings", plan.facts.phrasings, 1, 6)
    for name, budget in (
        ("injection", plan.injection),
        ("unlearning", plan.unlearning),
        ("round_trip", plan.round_trip),
    ):
        _whole(f"{name}.steps", budget.steps, 1)
        _positive(f"{name}.learning_rate", budget.learning_rate)
    _positive("unlearning.ascent_learning_rate", plan.unlearning.ascent_learning_rate)
    _whole("injection.fact_items", plan.injection.fact_items, 1)
    _whole("injection.general_items", plan.injection.general_items, 0)
    _whole("unlearning.forget_items", plan.unlearning.forget_items, 1)
    _whole("unlearning.retain_items", plan.unlearning.retain_items, 1)
    _whole("round_trip.items", plan.round_trip.items, 1)
    _whole("round_trip.chunks", plan.round_trip.chunks, 1, plan.round_trip.steps)
    _whole("general.train_pieces", plan.general.train_pieces, max(1, plan.injection.general_items))
    _whole("general.scored_pieces", plan.general.scored_pieces, 1)
    _whole("general.piece_tokens", plan.general.piece_tokens, 4)
    _whole("replication.draws", plan.replication.draws, 1)
    _whole("engine.stack", plan.engine.stack, 1)
    _whole("engine.batch_tokens", plan.engine.batch_tokens, 64)
    _whole("engine.accumulate", plan.engine.accumulate, 1)
    _one_of("engine.dtype", plan.engine.dtype, ("float32", "bfloat16", "float16"))
    _one_of("replication.cells", plan.replication.cells, ("family", "every", "none"))
    if not plan.models:
        raise PlanError("models: is empty; name at least one model, such as pocket/qwen2-s")
    if not plan.seeds:
        raise PlanError("seeds: is empty; give at least one whole number")
    if len(plan.models) * len(plan.seeds) > CELLS_LIMIT:
        raise PlanError(
            f"seeds: {len(plan.models)} models and {len(plan.seeds)} seeds; expected at most "
            f"{CELLS_LIMIT} cells"
        )
    made = sum(math.prod(len(values) for _, values in grid.grid) for grid in plan.methods)
    if made > CANDIDATES_LIMIT:
        raise PlanError(f"methods: {made} candidates a cell; expected at most {CANDIDATES_LIMIT}")
    for key, values in (("models", plan.models), ("seeds", plan.seeds)):
        if len(set(values)) != len(values):
            shown = _short.repr(list(values))
            raise PlanError(f"{key}: {shown} names one twice; every cell must be different")
    if len({cell.id for cell in plan.cells()}) != len(plan.cells()):
        raise PlanError("models: two names differ only in signs such as '/'; rename one folder")
    for share in plan.panel.interpolations:
        if not 0.0 < share < 1.0:
            raise PlanError(f"panel.interpolations: {share} found; expected shares between 0 and 1")
    return plan


def plan_from_dict(data: Mapping[str, Any]) -> Plan:
    """Give the checked plan that these plain values describe; unknown keys are refused by name."""
    return check(typing.cast(Plan, _build(Plan, data, "")))


def plan_from_yaml(path: Path) -> Plan:
    """Give the plan in a YAML file; a ``preset`` key says which preset it starts from."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read ({error}); expected a YAML plan") from error
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlanError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise PlanError(
            f"{path}: holds {type(data).__name__}; expected keys such as 'preset: pocket'"
        )
    rest = dict(data)
    start = rest.pop("preset", None)
    if start is None:
        return plan_from_dict(rest)
    from palimpsest.presets import preset

    if not isinstance(start, str):
        raise PlanError(f"preset: {_short.repr(start)} found; expected the name of a preset")
    return plan_from_dict(_merged(preset(start).as_dict(), rest))


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping) and key != "local_models":
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, MethodGrid):
        return {"name": value.name, **{knob: list(chosen) for knob, chosen in value.grid}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
        if "local_models" in plain:
            plain["local_models"] = dict(plain["local_models"])
        return plain
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _build(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise PlanError(f"{where or 'plan'}: {_short.repr(data)} found; expected keys and values")
    if kind is MethodGrid:
        return _method_grid(data, where)
    hints = typing.get_type_hints(kind)
    known = {item.name: hints[item.name] for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise PlanError(f"{here}: unknown key; known here are {', '.join(known)}")
        values[key] = _value(known[key], value, here)
    try:
        return kind(**values)
    except PlanError:
        raise
    except (TypeError, ValueError) as error:
        raise PlanError(f"{where or 'plan'}: {error}") from error


def _value(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build(typing.cast(type, kind), value, where)
    if origin is tuple and where.endswith("local_models"):
        if not isinstance(value, Mapping):
            raise PlanError(f"{where}: {_short.repr(value)} found; expected {{id: folder}}")
        for key, folder in value.items():
            if not isinstance(key, str) or not isinstance(folder, str):
                shown = _short.repr({key: folder})
                raise PlanError(f"{where}: {shown} found; expected {{id: folder}}, both text")
            _storable(key + folder, where)
        return tuple(value.items())
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise PlanError(f"{where}: {_short.repr(value)} found; expected a list")
        inner = typing.get_args(kind)[0]
        return tuple(_value(inner, item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(kind)
        if value is None and type(None) in members:
            return None
        return _value(next(m for m in members if m is not type(None)), value, where)
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, str):
        # YAML reads 2e-5 as text: its floats need a dot.
        try:
            value = float(value)
        except ValueError:
            raise PlanError(f"{where}: {_short.repr(value)} found; expected a number") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1023 else math.inf
    if type(value) is not kind:
        expected = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
        raise PlanError(
            f"{where}: {_short.repr(value)} found; expected {expected.get(kind, kind.__name__)}"
        )
    return _storable(value, where)


def _storable(value: Any, where: str) -> Any:
    """Give the value back unless it could not be written into a run's plan.json."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PlanError(f"{where}: {_short.repr(value)} found; expected a finite number")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise PlanError(f"{where}: {value[:80]!a} found; expected Unicode text") from None
    return value


def _method_grid(data: Mapping[str, Any], where: str) -> MethodGrid:
    if not isinstance(data.get("name"), str):
        raise PlanError(f"{where}.name: missing; expected the name of a method")
    grid: list[tuple[str, tuple[Knob, ...]]] = []
    for knob, values in data.items():
        if knob == "name":
            continue
        chosen = values if isinstance(values, list | tuple) else [values]
        if not chosen or not all(isinstance(item, int | float | str | bool) for item in chosen):
            raise PlanError(
                f"{where}.{knob}: {_short.repr(values)} found; expected a value or a list of values"
            )
        for item in (knob, *chosen):
            _storable(item, f"{where}.{knob!a}")
        grid.append((str(knob), tuple(chosen)))
    return MethodGrid(_storable(data["name"], f"{where}.name"), tuple(grid))


def _whole(key: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise PlanError(f"{key}: {value} found; expected {bound}")


def _positive(key: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise PlanError(f"{key}: {value} found; expected a number above 0")


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(f"{key}: {_short.repr(value)} found; expected one of {', '.join(allowed)}")
