"""A study: models times seeds, with everything that is done in each cell."""

import re
from dataclasses import dataclass, field

from palimpsest.config.sections import (
    Engine,
    Facts,
    General,
    Injection,
    MethodGrid,
    ModelPlace,
    Prompt,
    Reacquisition,
    Replication,
    Unlearning,
)
from palimpsest.errors import PlanError
from palimpsest.stats.rules import Rules, refuse_unmeasured


@dataclass(frozen=True)
class Plan:
    """A study: models times seeds, with everything that is done in each cell."""

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


def check_plan(plan: Plan) -> Plan:
    """Return the plan if its values fit together; PlanError names the key if not."""
    check_chunks(plan.reacquisition.chunks, plan.reacquisition.steps)
    pieces, items = plan.general.train_pieces, plan.injection.general_items
    if pieces < items:
        raise PlanError(
            f"expected at least the {items} general texts of a step, got {pieces}",
            key="general.train_pieces",
        )
    for key, values in (("models", plan.models), ("seeds", plan.seeds)):
        if not values:
            raise PlanError("expected at least one, such as pocket/qwen2-s or 0", key=key)
    for key, several in (("models", plan.models), ("seeds", plan.seeds)):
        if len(set(several)) < len(several):
            raise PlanError("expected each value once", key=key)
    if len(plan.cell_ids()) < len(plan.models) * len(plan.seeds):
        raise PlanError("two models have the same name in cell ids; rename a folder", key="models")
    refuse_unmeasured(plan.rules)
    _check_files(plan)
    return plan


def _check_files(plan: Plan) -> None:
    names = [name for name, _ in plan.facts.files]
    if names and sorted(names) != ["forget", "probes", "retain"]:
        raise PlanError(
            f"expected one path each for forget, retain and probes, got {', '.join(names)}",
            key="facts.files",
        )
    if plan.prompt != Prompt() and (not names or len(plan.models) > 1):
        raise PlanError(
            "applies to facts.files and one model; expected both, or no settings here", key="prompt"
        )
    if names and plan.known_label:
        raise PlanError(
            "expected an empty list with facts.files, because known-label models are scored on "
            "sealed phrasings, which facts from files lack",
            key="known_label",
        )


def check_chunks(chunks: int, steps: int, key: str = "steps") -> None:
    """Refuse more chunks of re-acquisition than it has steps, which the setting ``key`` gives."""
    if chunks > steps:
        raise PlanError(
            f"expected at least {chunks}, because re-acquisition is measured after each of "
            f"{chunks} chunks, got {steps}",
            key=key,
        )
