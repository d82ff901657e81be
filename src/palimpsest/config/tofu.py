"""A TOFU study: which data, which models, and every setting that can change a number."""

from dataclasses import dataclass, field
from typing import Literal

from palimpsest.config.sections import Count, Engine, FilePath, ModelPlace, Number, Rate
from palimpsest.errors import PlanError
from palimpsest.stats.rules import Rules, refuse_unmeasured

SPLITS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
"""The authors to forget, and the authors that stay."""


@dataclass(frozen=True, kw_only=True)
class TofuConfig:
    """One TOFU study; its cells are its seeds."""

    data: FilePath = ""
    """Folder of TOFU's files. Default: download them."""
    split: Literal["forget01", "forget05", "forget10"] = "forget10"
    """Authors to forget: forget01, forget05 or forget10."""
    base: ModelPlace = "microsoft/phi-1_5"
    """Model before it was trained on TOFU."""
    full: ModelPlace = ""
    """Model trained on all authors."""
    retain: tuple[ModelPlace, ...] = ()
    """Model trained without the forget authors. Repeatable."""
    train: bool = False
    """Train the full and retain models from the base."""
    candidates: tuple[tuple[str, ModelPlace], ...] = ()
    """NAME=PATH of an unlearned model. Repeatable."""
    methods: tuple[str, ...] = ()
    """Methods to make candidates with, at their default knobs; none takes the paper's grid."""
    seeds: Count = 3
    """Number of cells, each with its own items."""
    forget_items: Count = 40
    """Questions to forget."""
    retain_items: Count = 100
    """Questions to keep."""
    probes: Count = 40
    """Never-learned questions."""
    longest: Number = 0
    """Longest item, in words. 0 is no limit."""
    draws: Count = 5
    """References to train, beside the one that shares the full model's draw."""
    steps: Count = 90
    """Steps of fine-tuning."""
    items: Count = 8
    """Questions per step of fine-tuning."""
    learning_rate: Rate = 2e-5
    """Learning rate of all training."""
    unlearning_steps: Count = 110
    """Steps of each method."""
    general: FilePath = "pocket"
    """Plain-text file of general prose, or pocket (generated prose)."""
    out: FilePath = "runs/tofu"
    """Run folder. An existing one is resumed."""
    rules: Rules = field(default_factory=Rules)
    engine: Engine = field(default_factory=Engine)


def check_tofu(config: TofuConfig) -> TofuConfig:
    """Return the configuration if its values fit together; PlanError names the key if not."""
    refuse_unmeasured(config.rules)
    if config.train and (config.full or config.retain):
        raise PlanError(
            "given together with checkpoints of the full or retain model; expected one or the "
            "other",
            key="train",
        )
    if not config.train and bool(config.full) != bool(config.retain):
        missing = "retain" if config.full else "full"
        raise PlanError("missing; expected both checkpoints, or --train", key=missing)
    if config.candidates and config.train:
        raise PlanError(
            "given together with --train; candidates come from a full model: give it with --full",
            key="candidates",
        )
    return config
