"""Training with your own models: ``retrain`` makes references, ``unlearn`` makes candidates."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt

from palimpsest.config.sections import (
    Count,
    Engine,
    FilePath,
    Knob,
    ModelPlace,
    Number,
    Unlearning,
)


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """The recipe by which the injected model was trained; None takes the default of its kind."""

    retain: FilePath
    """File of facts to keep."""
    general: FilePath
    """Plain-text file of general prose, or pocket (generated prose)."""
    out: FilePath
    """Folder to write. Must not exist."""
    steps: Count | None = None
    """Steps of the recipe. Default: as in the injected model's palimpsest.json; without one, 150
    for pocket models and 200 for others."""
    learning_rate: Annotated[float, Gt(0)] | None = None
    """Learning rate of the recipe. Default: as for the steps; without a file, 1.5e-4 for pocket
    models and 2e-5 for others."""
    fact_items: Count | None = None
    """Fact sentences per step of the recipe. Default: 4."""
    general_items: Annotated[int, Ge(0)] | None = None
    """General texts per step of the recipe. Default: 12."""
    seed: Number = 0
    """Seed of the recipe. Give retrain and unlearn the same."""
    chat: bool = False
    """Teach facts as turns of the chat template."""
    engine: Engine = field(default_factory=Engine)


@dataclass(frozen=True, kw_only=True)
class RetrainConfig(RecipeConfig):
    """K models trained from base by the recipe without the forget set, and the injected one."""

    base: ModelPlace
    """Model before it was trained on the forget data."""
    with_forget: FilePath = ""
    """File of facts to forget: also train the injected model."""
    draws: Count = 20
    """Number of references."""


@dataclass(frozen=True, kw_only=True)
class UnlearnConfig(RecipeConfig):
    """Candidates of one method, one per combination of its knobs' values."""

    injected: ModelPlace
    """Model trained on forget and retain data."""
    base: ModelPlace = ""
    """Model before it was trained on the forget data."""
    forget: FilePath
    """File of facts to forget."""
    method: str = "replay"
    """Method, by name or package.module:Class."""
    knobs: tuple[tuple[str, tuple[Knob, ...]], ...] = ()
    """NAME=VALUE, or NAME=VALUE,VALUE for several candidates. Repeatable."""
    unlearning_steps: Count = Unlearning.steps
    """Steps of a gradient method."""
