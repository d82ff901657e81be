"""Every knob of a run, as frozen dataclasses: YAML or a preset in, a canonical hash out.

Precedence is flag > file > preset default. A plan is checked whole before anything is trained; an
error names the key. ``Rules`` (thresholds and decision rules) lives in ``criteria/rules.py``, where
the statistics that use it are, and is part of the plan.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import Ge, Gt, Le

from palimpsest.criteria.catalogue import measures_of
from palimpsest.criteria.rules import Rules
from palimpsest.errors import FactsError, PlanError
from palimpsest.run.disk import canonical, digest
from palimpsest.schema import build, is_unicode, read_yaml, shorten, unknown_key

Knob = float | int | str | bool
Some = Annotated[int, Ge(1)]
Rate = Annotated[float, Gt(0)]

CELLS_LIMIT = 100_000
CANDIDATES_LIMIT = 10_000
"""More of either is a mistake in a plan, or an attempt to fill the memory."""
FACT_FILES = ("forget", "retain", "probes")


@dataclass(frozen=True)
class Counts:
    """How many facts of each kind a cell has."""

    forget: Some = 4
    """Facts to be learned and then forgotten."""
    retain: Some = 4
    """Facts to be learned and kept."""
    probes: Some = 16
    """Facts that no model learns; forgotten facts are compared with them."""
    phrasings: Annotated[int, Ge(1), Le(6)] = 3
    """Number of phrasings that each fact is trained on (the paper's K)."""
    files: tuple[tuple[str, str], ...] = ()
    """Your own facts instead of invented ones: one path each for forget, retain and probes. In a
    plan file, ``forget: F.jsonl`` instead of a number does the same and counts the facts."""


@dataclass(frozen=True)
class Injection:
    """Continued pretraining: of the injected model and, without the forget set, the reference."""

    steps: Some = 200
    """Optimiser steps."""
    learning_rate: Rate = 2e-5
    """Constant learning rate of AdamW."""
    fact_items: Some = 4
    """Fact sentences per step."""
    general_items: Annotated[int, Ge(0)] = 12
    """General texts per step, besides the fact sentences (the paper's 3:1 mix)."""


@dataclass(frozen=True)
class Unlearning:
    """Budget shared by every gradient method: same steps, same items a step."""

    steps: Some = 110
    """Optimiser steps."""
    learning_rate: Rate = 2e-5
    """For methods that pull towards a distribution."""
    ascent_learning_rate: Rate = 5e-6
    """For gradient ascent, NPO and similar methods, which change a model much faster."""
    forget_items: Some = 4
    """Forget texts per step."""
    retain_items: Some = 4
    """Retain texts per step."""


@dataclass(frozen=True)
class RoundTrip:
    """Re-acquisition of the forget set, the same batches for every model of a cell."""

    steps: Some = 75
    """Optimiser steps."""
    chunks: Some = 5
    """Number of equal parts of the steps; models are measured after each."""
    learning_rate: Rate = 2e-5
    """Constant learning rate of AdamW; the same as in injection."""
    items: Some = 4
    """Forget sentences per step."""


@dataclass(frozen=True)
class General:
    """General text: mixed into injection, and scored for damage and for the residual."""

    source: str = "pocket"
    """``pocket`` for generated prose, or the path of a plain-text file."""
    train_pieces: Some = 600
    """Number of pieces that training draws from."""
    scored_pieces: Some = 24
    """Number of other pieces, on which damage is measured."""
    piece_tokens: Annotated[int, Ge(4)] = 28
    """Length that a piece is cut to, in tokens."""


@dataclass(frozen=True)
class MethodGrid:
    """One method and the values its knobs take; every combination is a candidate."""

    name: str
    """Name of a method (``palimpsest methods``), or ``package.module:Class``."""
    grid: tuple[tuple[str, tuple[Knob, ...]], ...] = ()

    def settings(self) -> tuple[dict[str, Knob], ...]:
        """Return one dict of knobs per candidate, in the order written."""
        names = [name for name, _ in self.grid]
        values = [values for _, values in self.grid]
        return tuple(dict(zip(names, chosen)) for chosen in itertools.product(*values))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Read ``{name: …, knob: value or values, …}``."""
        from pydantic_core import core_schema

        def grid(values: dict[str, Any]) -> MethodGrid:
            for knob in values:
                if not is_unicode(knob):
                    raise ValueError(f"knob {shorten(knob)} found; expected Unicode text")
            return cls(values.pop("name"), tuple(values.items()))

        name = core_schema.typed_dict_field(core_schema.str_schema(), required=True)
        values = core_schema.no_info_plain_validator_function(_knob_values)
        keys = core_schema.typed_dict_schema(
            {"name": name}, extras_schema=values, extra_behavior="allow", strict=True
        )
        return core_schema.no_info_after_validator_function(grid, keys)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


KNOWN_LABEL_MODELS = (
    *("suppression", "router", "embedding"),
    *("interpolation-25", "interpolation-50", "interpolation-75"),
    *("tuned-suppression", "baked-suppression", "low-rank", "fuzzy-router", "steered"),
    *("circuit-breaker", "tamper-resistant", "curve-mimic", "full-mimic", "rescaled-suppressed"),
    *("rescaled-retrained", "layered", "one-fact-left", "trigger", "sub-quantum"),
    *("undo-10", "undo-20", "undo-40"),
)
"""Every entry of the registry in ``challenge/``, which this file does not import."""


@dataclass(frozen=True)
class Panel:
    """Known-label models, scored once on the sealed pool."""

    enabled: bool = True
    """Whether known-label models are made and measured."""
    penalty: float = 10.0
    """What the suppression model subtracts from the logits of forget-answer tokens."""
    models: tuple[str, ...] = KNOWN_LABEL_MODELS[:6]
    """Names of known-label models (``challenge/registry.py``); ``all`` in a file means all."""


@dataclass(frozen=True)
class Replication:
    """Independent retrainings that candidates are compared with."""

    draws: Some = 30
    """References per cell. The exact test needs 19 at the 0.05 level."""
    cells: Literal["every", "family", "none"] = "every"
    """Which cells have all references: every one, the first of each model family, or none. The
    others have one reference."""
    retrainings: Annotated[int, Ge(0)] = 0
    """Fresh retrainings per cell, judged as if they were candidates; never used as references."""


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How numbers are computed: keys of a plan's ``engine``, and of an audit's request itself."""

    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights. Moments, and the master weights of bfloat16, are always float32."""
    batch_tokens: Annotated[int, Ge(64)] = 8192
    """Padded tokens in one scoring batch."""
    accumulate: Some = 1
    """Number of parts that a training step is split into, computed one after the other."""
    checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    optimizer: Literal["device", "host", "8bit"] = "device"
    """Where the float32 master weights and moments of AdamW are kept; ``8bit`` stores the moments
    in 8 bits, on the device."""
    lora: Annotated[int, Ge(0)] = 0
    """Rank of the LoRA adapters that are trained and merged instead of training all weights; 0
    trains all weights. Unlike the others it changes what is measured."""


@dataclass(frozen=True, kw_only=True)
class Engine(Computing):
    """How numbers are computed; none of these but ``lora`` may change a verdict."""

    stack: Some = 4
    """Number of pocket-sized candidates trained at the same time; 1 trains one after the other."""
    keep_models: bool = False
    """Keep the weights of the injected model, references and retrainings in the run folder."""
    keep_candidates: bool = False
    """Keep the weights of the candidates too."""

    @classmethod
    def of(cls, request: Computing) -> "Engine":
        """Return the engine of a request that has the same settings as keys of its own."""
        names = (item.name for item in dataclasses.fields(Computing))
        return cls(**{name: getattr(request, name) for name in names})


@dataclass(frozen=True)
class Plan:
    """A study: models times seeds, with everything that is done in each cell."""

    name: str = "pocket"
    """Name of the study; its run folder is ``runs/NAME`` unless ``--out`` names another."""
    models: tuple[str, ...] = ()
    """Pocket models, folders or Hugging Face ids; each model with each seed is a cell."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; facts, texts and order of a cell are derived from its model and seed."""
    facts: Counts = field(default_factory=Counts)
    injection: Injection = field(default_factory=Injection)
    unlearning: Unlearning = field(default_factory=Unlearning)
    round_trip: RoundTrip = field(default_factory=RoundTrip)
    general: General = field(default_factory=General)
    methods: tuple[MethodGrid, ...] = ()
    """List of ``{name: …, knob: value or list of values}``; every combination is a candidate."""
    panel: Panel = field(default_factory=Panel)
    replication: Replication = field(default_factory=Replication)
    rules: Rules = field(default_factory=Rules)
    measures: Literal["all", "none"] | tuple[str, ...] = "none"
    """Further measures of every model: published criteria by name (``palimpsest criteria --list``).
    Those that the axes of the rules need are always taken."""
    engine: Engine = field(default_factory=Engine)
    seal: str = ""
    """Commitment of your own sealed pool (``palimpsest seal``); empty for the built-in pool."""
    beacon: str = ""
    """Text that determines schedule, held-out phrasings and probes (``criteria/beacon.py``)."""
    local_models: tuple[tuple[str, str], ...] = ()
    """Local folders to load instead of hub ids: ``{id: folder}`` in YAML."""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values, in the form ``plan_from_dict`` reads."""
        return cast(dict[str, Any], _plain(self))

    def hash(self) -> str:
        """Return the SHA-256 of the canonical JSON of the whole plan."""
        return digest(canonical(self.as_dict()))

    def rules_hash(self) -> str:
        """Return the SHA-256 of the canonical JSON of the rules alone."""
        return digest(canonical(_plain(self.rules)))

    def cells(self) -> tuple["CellPlan", ...]:
        """Return every cell, seeds outermost: the first cells of a long run are of all models."""
        return tuple(CellPlan(model, seed, self) for seed in self.seeds for model in self.models)


@dataclass(frozen=True)
class CellPlan:
    """One model and one seed of a plan."""

    model: str
    seed: int
    plan: Plan

    @property
    def id(self) -> str:
        """Return the cell's name, from which every random number in it is derived."""
        name = re.sub(r"[^A-Za-z0-9._+=,@]+", "-", self.model).strip("-.")[-80:].strip("-.")
        return f"{name or 'model'}--seed{self.seed}"


def check(plan: Plan) -> Plan:
    """Return the plan if it can be run; raise PlanError naming the key if not."""
    build(Plan, plan.as_dict())
    chunks, steps = plan.round_trip.chunks, plan.round_trip.steps
    if chunks > steps:
        raise PlanError(f"round_trip.chunks: {chunks} found; expected at most the {steps} steps")
    pieces, items = plan.general.train_pieces, plan.injection.general_items
    if pieces < items:
        raise PlanError(
            f"general.train_pieces: {pieces} found; expected at least the {items} of a step"
        )
    if not plan.models:
        raise PlanError("models: is empty; name at least one model, such as pocket/qwen2-s")
    if not plan.seeds:
        raise PlanError("seeds: is empty; expected at least one whole number")
    if len(plan.models) * len(plan.seeds) > CELLS_LIMIT:
        raise PlanError(
            f"seeds: {len(plan.models)} models and {len(plan.seeds)} seeds; expected at most "
            f"{CELLS_LIMIT} cells"
        )
    measures_of(plan.measures, plan.rules)
    count = sum(math.prod(len(values) for _, values in grid.grid) for grid in plan.methods)
    if count > CANDIDATES_LIMIT:
        raise PlanError(
            f"methods: {count} candidates in every cell; expected at most {CANDIDATES_LIMIT}"
        )
    lists = {"models": plan.models, "seeds": plan.seeds, "panel.models": plan.panel.models}
    for key, values in lists.items():
        if len(set(values)) != len(values):
            raise PlanError(f"{key}: {shorten(list(values))} has an entry twice; remove one")
    if len({cell.id for cell in plan.cells()}) != len(plan.cells()):
        raise PlanError(
            "models: two names differ only in characters such as '/'; rename one folder"
        )
    if plan.facts.files and sorted(dict(plan.facts.files)) != sorted(FACT_FILES):
        found = shorten([name for name, _ in plan.facts.files])
        raise PlanError(
            f"facts.files: {found} found; expected one path each for forget, retain, probes"
        )
    if plan.facts.files and plan.panel.enabled:
        raise PlanError(
            "panel.enabled: true found with facts.files; expected false, because the sealed pool "
            "has phrasings of invented facts only"
        )
    return plan


def plan_from_dict(data: Mapping[str, Any]) -> Plan:
    """Return the checked plan that plain values describe; unknown keys are refused by name."""
    panel = data.get("panel")
    if isinstance(panel, Mapping) and panel.get("models") == "all":
        data = {**data, "panel": {**panel, "models": list(KNOWN_LABEL_MODELS)}}
    return check(build(Plan, data))


def plan_from_yaml(source: Path | str) -> Plan:
    """Return the plan in a YAML file, or in YAML text; ``preset`` names what it starts from."""
    from palimpsest.presets import preset

    data = read_yaml(source, "a plan with keys such as 'preset: pocket'")
    known = ["preset", *(item.name for item in dataclasses.fields(Plan))]
    for key in data:
        if key not in known:
            raise PlanError(unknown_key(shorten(key).strip("'"), str(key), known))
    name = data.pop("preset", None)
    files = _fact_files(data)
    if name is not None and not isinstance(name, str):
        raise PlanError(f"preset: {shorten(name)} found; expected the name of a preset")
    plan = plan_from_dict(data if name is None else _merged(preset(name).as_dict(), data))
    return with_facts(plan, **files) if files else plan


def with_facts(plan: Plan, forget: str, retain: str, probes: str) -> Plan:
    """Return the plan with facts from files, counted, and without the panel.

    The known-label panel is scored on sealed phrasings of invented facts, which these have not.
    Forget facts without subject and relation cannot be asked from the answer to the subject.
    """
    from palimpsest.facts.elicitation import reversible
    from palimpsest.facts.files import check_sets

    files = {"forget": forget, "retain": retain, "probes": probes}
    try:
        sets = check_sets(files)
    except FactsError as error:
        raise PlanError(f"facts: {error}") from error
    counts = {name: len(facts) for name, facts in sets.items()}
    own = dataclasses.replace(plan.facts, files=tuple(files.items()), **counts)
    panel = dataclasses.replace(plan.panel, enabled=False)
    rules = plan.rules if reversible(sets["forget"]) else plan.rules.without("reversed")
    return check(dataclasses.replace(plan, facts=own, panel=panel, rules=rules))


def _fact_files(data: dict[str, Any]) -> dict[str, str]:
    """Take the fact files out of a plan file's values; empty where it has numbers of facts."""
    facts = data.get("facts")
    if not isinstance(facts, dict):
        return {}
    files = {
        name: value
        for name in FACT_FILES
        if isinstance(value := facts.get(name), str) and not _is_number(value)
    }
    if files and len(files) < len(FACT_FILES):
        missing = next(name for name in FACT_FILES if name not in files)
        raise PlanError(
            f"facts.{missing}: {shorten(facts.get(missing))} found beside a file; expected a file "
            "each for forget, retain and probes"
        )
    data["facts"] = {name: value for name, value in facts.items() if name not in files}
    return files


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
        return {"name": value.name, **{knob: list(values) for knob, values in value.grid}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
        if isinstance(value, Plan) and not value.beacon:
            del plain["beacon"]  # plans of runs made before it have the same hash
        if "local_models" in plain:
            plain["local_models"] = dict(plain["local_models"])
        if "files" in plain:
            plain["files"] = dict(plain["files"])
        for key in ("files", "keep_candidates"):
            if not plain.get(key, True):  # so that plans without them keep their hash
                del plain[key]
        return plain
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _knob_values(values: Any) -> tuple[Knob, ...]:
    chosen = tuple(values) if isinstance(values, list | tuple) else (values,)
    for value in chosen:
        number = isinstance(value, int | float) and abs(value) < 2**1023  # false for nan
        if not number and not (isinstance(value, str) and is_unicode(value)):
            raise ValueError(f"{shorten(value)} found; expected a finite number, text, true, false")
    if not chosen:
        raise ValueError("[] found; expected a value or a list of values")
    return chosen
