"""A study: models times seeds, with everything that is done in each cell."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar

from palimpsest.config.sections import (
    Engine,
    Facts,
    General,
    Injection,
    MethodGrid,
    ModelPlace,
    Prompt,
    Reacquisition,
    Relearning,
    Replication,
    Unlearning,
)
from palimpsest.errors import PlanError
from palimpsest.stats.rules import Rules


@dataclass(frozen=True)
class Plan:
    """A study: models times seeds, with everything that is done in each cell."""

    # Keys of a file that are no fields: the preset whose values the others replace.
    starts: ClassVar[tuple[str, ...]] = ("preset",)

    name: str = "pocket"
    """Name of the study; the run folder is ``runs/NAME`` unless ``--out`` is given."""
    models: tuple[ModelPlace, ...] = ()
    """Pocket models, checkpoint folders or Hugging Face ids; each model with each seed is a
    cell."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; the facts, texts and order of a cell are derived from its model and seed."""
    facts: Facts = field(default_factory=Facts)
    prompt: Prompt = field(default_factory=Prompt)
    injection: Injection = field(default_factory=Injection)
    unlearning: Unlearning = field(default_factory=Unlearning)
    reacquisition: Reacquisition = field(default_factory=Reacquisition)
    general: General = field(default_factory=General)
    methods: tuple[MethodGrid, ...] = ()
    """List of ``{name: …, knob: value or list of values}``; every combination is a candidate."""
    known_label: tuple[str, ...] = (
        *("suppression", "router", "embedding"),
        *("interpolation-25", "interpolation-50", "interpolation-75"),
    )
    """Models of known truth, built in every cell and scored once on the sealed pool: names of the
    paper's panel, or ``package.module:name`` for one of your own; an empty list for none."""
    replication: Replication = field(default_factory=Replication)
    rules: Rules = field(default_factory=Rules)
    measures: tuple[str, ...] = ()
    """Plug-ins that take further measures of every model, each ``package.module:Class``. They are
    reported and never compared."""
    engine: Engine = field(default_factory=Engine)
    seal: str = ""
    """Commitment of your own sealed pool (``palimpsest facts seal``); empty for the built-in
    pool."""
    beacon: str = ""
    """Text from which the schedule, held-out phrasings and probes are drawn
    (``cell/beacon.py``)."""

    @classmethod
    def read(cls, source: "Mapping[str, Any] | PathLike[str] | str", /, **changes: Any) -> "Plan":
        """Return the plan in a YAML file, or of keys and values as in YAML, some of them replaced.

        ::

            plan = palimpsest.Plan.read("plan.yaml", seeds=[3])
        """
        from palimpsest.config.load import read_plan

        return read_plan(source, changes)

    @classmethod
    def preset(cls, preset: str, /, **changes: Any) -> "Plan":
        """Return a named plan, with some of its keys replaced.

        A method is a name, a class, an object with its knobs set, or ``{"name": …, "knob": …}``
        with a value or a list of values for every knob.

        ::

            plan = palimpsest.Plan.preset("demo", seeds=[3], methods=["rollback", "npo"])
        """
        from palimpsest.config.load import load_config

        return load_config(Plan, {"preset": preset, **changes})

    def cell_ids(self) -> dict[str, tuple[str, int]]:
        """Return model and seed of every cell by its id, seeds outermost.

        Every random number in a cell is derived from its id.
        """
        return {cell_id(m, seed): (m, seed) for seed in self.seeds for m in self.models}


def model_title(model: str) -> str:
    """Return the name of a model in tables and cells: a folder's own, wherever it lies.

    Pocket models and Hugging Face ids have at most one slash.
    """
    parts = [part for part in re.split(r"[/\\]+", model) if part]
    path = model[:1] in ("/", ".", "~", "\\") or len(parts) > 2
    return parts[-1] if path and parts else model


def cell_id(model: str, seed: int) -> str:
    """Return the name of the cell of a model and a seed."""
    name = re.sub(r"[^A-Za-z0-9._+=,@]+", "-", model_title(model)).strip("-.")[-80:].strip("-.")
    return f"{name or 'model'}--seed{seed}"


def plan_problems(plan: Plan) -> Iterator[PlanError]:
    """Yield what does not fit together in a plan."""
    yield from chunk_problems(plan.reacquisition)
    pieces, items = plan.general.train_pieces, plan.injection.general_items
    if pieces < items:
        yield PlanError(
            f"expected at least the {items} general texts of a step, got {pieces}",
            key="general.train_pieces",
        )
    for key, several in (("models", plan.models), ("seeds", plan.seeds)):
        if not several:
            yield PlanError("expected at least one, such as pocket/qwen2-s or 0", key=key)
        if len(set(several)) < len(several):
            yield PlanError("expected each value once", key=key)
    if len(plan.cell_ids()) < len(set(plan.models)) * len(set(plan.seeds)):
        yield PlanError("two models have the same name in cell ids; rename a folder", key="models")
    yield from unmeasured_problems(plan.rules)
    yield from _file_problems(plan)


def _file_problems(plan: Plan) -> Iterator[PlanError]:
    names = [name for name, _ in plan.facts.files]
    if names and sorted(names) != ["forget", "probes", "retain"]:
        yield PlanError(
            f"expected one path each for forget, retain and probes, got {', '.join(names)}",
            key="facts.files",
        )
    if plan.prompt != Prompt() and (not names or len(plan.models) > 1):
        yield PlanError(
            "applies to facts.files and one model; expected both, or no settings here", key="prompt"
        )
    if names and plan.known_label:
        yield PlanError(
            "expected an empty list with facts.files, because known-label models are scored on "
            "sealed phrasings, which facts from files lack",
            key="known_label",
        )


def chunk_problems(again: Relearning) -> Iterator[PlanError]:
    """Yield an error where re-acquisition has more chunks than steps."""
    if again.chunks > again.steps:
        yield PlanError(
            f"expected at least {again.chunks}, because re-acquisition is measured after each of "
            f"{again.chunks} chunks, got {again.steps}",
            key="steps",
        )


def unmeasured_problems(rules: Rules) -> Iterator[PlanError]:
    """Yield an error where a configuration leaves out standard axes by itself."""
    if rules.unmeasured_axes:
        yield PlanError(
            f"{', '.join(rules.unmeasured_axes)} found; expected none: a certificate leaves out no "
            "axis that could be measured",
            key="rules.unmeasured_axes",
        )
