"""What is done with your own models: audit, retrain and unlearn.

The same from flags, a YAML file or Python, where paths in a file start at the file's own folder;
nothing here opens a model or a file of facts.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge

from palimpsest.config.plan import chunk_problems, unmeasured_problems
from palimpsest.config.sections import (
    Count,
    Engine,
    FilePath,
    Injection,
    Knob,
    ModelPlace,
    Number,
    Prompt,
    Rate,
    Relearning,
    ScoredText,
    Unlearning,
)
from palimpsest.errors import PlanError
from palimpsest.schema import build
from palimpsest.stats.rules import Rules
from palimpsest.text import name_problem

LADDER = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
"""Learning rates of re-acquisition that are tried on a reference where none is given."""
_TAKEN = re.compile(r"(control|retraining|reference)(-.*)?|base|injected|forget_only|general_only")


@dataclass(frozen=True, kw_only=True)
class Command:
    """What every command on your own models is told."""

    base: ModelPlace = ""
    """Base: the model before it was trained on the forget data."""
    forget: FilePath = ""
    """File of facts to forget."""
    retain: FilePath = ""
    """File of facts to keep."""
    general: FilePath = ""
    """Plain-text file of general prose with at least 600 words, or pocket (generated prose)."""
    out: FilePath = ""
    """Folder to write. Run an interrupted command again to resume it."""
    prompt: Prompt = field(default_factory=Prompt)
    engine: Engine = field(default_factory=Engine)


@dataclass(frozen=True, kw_only=True)
class AuditConfig(Relearning, ScoredText, Command):
    """One audit of your own models."""

    injected: ModelPlace
    """Injected model, trained on forget and retain data."""
    candidates: tuple[tuple[str, ModelPlace], ...] = ()
    """Candidate, an unlearned model, as NAME=PATH. Repeatable."""
    candidates_folder: FilePath = ""
    """Folder of candidates, one checkpoint per subfolder."""
    references: tuple[ModelPlace, ...] = ()
    """Reference, a model retrained without the forget data. Repeatable."""
    references_folder: FilePath = ""
    """Folder of references, one checkpoint per subfolder."""
    exclude: tuple[str, ...] = ()
    """Name of a reference to leave out of the comparison; every verdict says so. Repeatable."""
    probes: Annotated[str | int, "path"] = ""
    """File of probes, facts that no model was trained on, or the number of probes to generate."""
    adapter_base: ModelPlace = ""
    """Model to merge LoRA adapters into. Default: the one that the adapter's configuration
    names."""
    learning_rate: Rate | None = None
    """Learning rate of re-acquisition. Default: chosen on a reference."""
    beacon: str = ""
    """Text published after the candidates were made, from which schedule, phrasings and probes are
    drawn. Default: they are drawn from the digests of candidates and references alone, so that
    whoever makes the candidates can try out many draws."""
    rules: Rules = field(default_factory=Rules)

    @property
    def chooses_rate(self) -> bool:
        """Whether the learning rate of re-acquisition is chosen on a reference."""
        return self.learning_rate is None and bool(self.references or self.references_folder)

    @property
    def generated_probes(self) -> int:
        """Number of probes to generate; 0 if they are in a file."""
        return int(self.probes) if str(self.probes).isdecimal() else 0


@dataclass(frozen=True, kw_only=True)
class RunSource:
    """A run folder of OpenUnlearning, whose configuration names models, prompts and splits."""

    open_unlearning: FilePath
    """Run folder of OpenUnlearning: saves/unlearn/X to audit it, saves/finetune/X to print the
    retrain command that repeats it without the forget data."""
    data: FilePath = ""
    """Folder of TOFU's files (locuslab/TOFU), with holdoutNN.json if you have it."""
    probes_from_retain: str = ""
    """FIRST:LAST, rows of the retain file (counted from 0) that no model was trained on, to use as
    probes."""
    forget_split: Literal["", "forget01", "forget05", "forget10"] = ""
    """Authors to forget. Default: those that the run's configuration names."""


def audit_problems(config: AuditConfig) -> Iterator[PlanError]:
    """Yield what is missing or does not fit together in an audit."""
    yield from _missing(config, "base", "forget", "retain", "general", "out")
    if not config.candidates and not config.candidates_folder:
        yield PlanError(
            "none given; expected the path of each by its name (--candidate NAME=PATH), or a "
            "folder of them (--candidates-folder)",
            key="candidates",
        )
    for name, _ in config.candidates:
        yield from candidate_problems(name)
    yield from chunk_problems(config)
    yield from unmeasured_problems(config.rules)
    if isinstance(config.probes, int) and config.probes < 1:
        yield PlanError(
            f"expected a file or a number of at least 1, got {config.probes}", key="probes"
        )


def _missing(config: Command, *keys: str) -> Iterator[PlanError]:
    for key in keys:
        if not getattr(config, key):
            yield PlanError("missing; expected a value", key=key)


def candidate_problems(name: str) -> Iterator[PlanError]:
    """Yield why a name cannot stand in a table, or that another model of every run has it."""
    problem = name_problem(name)
    if problem is None and _TAKEN.fullmatch(name.lower()):
        problem = f"{name!r} is a reserved name; rename the candidate"
    if problem is not None:
        yield PlanError(problem, key="candidates")


@dataclass(frozen=True)
class ExampleRecipe:
    """Training on a file of examples; the defaults are those of Hugging Face's Trainer.

    AdamW with betas 0.9 and 0.999, gradient norm clipped at 1.0.
    """

    epochs: Count = 3
    """Passes over all examples, each in a new order."""
    steps: Number = 0
    """Optimizer steps. Default: whole epochs; without --train, 150 for pocket models and 200 for
    others."""
    batch_size: Count = 8
    """Examples per step; the last step of an epoch may have fewer."""
    learning_rate: Rate = 5e-5
    """Peak learning rate. Default: 5e-5; without --train, 1.5e-4 for pocket models and 2e-5 for
    others."""
    warmup: Number = 0
    """Warm-up steps, in which the learning rate rises from 0."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls after the warm-up."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Weight decay of matrices; norms and biases have none."""
    loss: Literal["all", "completion"] = "all"
    """Train on all tokens, or only on completions and the last assistant turn."""


OF_EXAMPLES = tuple(item.name for item in fields(ExampleRecipe))
"""Settings of a recipe of training examples."""
OF_FACTS = tuple(item.name for item in fields(Injection))
"""Settings of a recipe of facts and general text."""


@dataclass(frozen=True, kw_only=True)
class RecipeConfig(Command):
    """The recipe by which the injected model was trained: examples, or facts and general text."""

    train: FilePath = ""
    """File of training examples (.jsonl, .json or .parquet): rows with text, with prompt and
    completion, or with messages. Mark rows to forget with "set": "forget"."""
    forget_rows: FilePath = ""
    """File with copies of the rows of --train to forget, if --train does not mark them."""
    recipe: tuple[tuple[str, Any], ...] = ()
    """Settings of ``ExampleRecipe`` or, without --train, of ``Injection`` that are not those of the
    injected model's palimpsest.json or, without that file, the default."""
    seed: Number = 0
    """Seed of the recipe. Give retrain and unlearn the same seed."""


def gather_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat values with the settings of the recipe under the key ``recipe``."""
    known = {*OF_EXAMPLES, *OF_FACTS}
    rest = {key: value for key, value in values.items() if key not in known}
    given = {key: value for key, value in values.items() if key in known}
    return rest | {"recipe": dict(values.get("recipe", {})) | given}


@dataclass(frozen=True, kw_only=True)
class RetrainConfig(RecipeConfig):
    """K models trained from base by the recipe without the forget set, and the injected one."""

    with_forget: bool = False
    """Also train the injected model, which sees the forget data too."""
    command: str = ""
    """Your own trainer: 'python train.py --data {data} --seed {seed} --out {out}'. {data} is the
    file of --train without the forget rows; {base} is available too."""
    draws: Count = 20
    """Number of references to train."""


@dataclass(frozen=True, kw_only=True)
class UnlearnConfig(RecipeConfig):
    """Candidates of one method, one per combination of its knobs' values."""

    injected: ModelPlace
    """Injected model, trained on forget and retain data."""
    method: str = "replay"
    """Method, by name or package.module:Class."""
    knobs: tuple[tuple[str, tuple[Knob, ...]], ...] = ()
    """Settings of the method, as NAME=VALUE, or NAME=VALUE,VALUE for several candidates.
    Repeatable."""
    unlearning_steps: Count = Unlearning.steps
    """Steps of a gradient method."""


def recipe_problems(config: RecipeConfig) -> Iterator[PlanError]:
    """Yield what is missing or does not fit together in both retrain and unlearn."""
    yield from _missing(config, "out", "base")
    settings, other = (OF_EXAMPLES, "without") if config.train else (OF_FACTS, "with")
    files = ("retain", "general", "forget") if config.train else ("forget_rows",)
    unfit = [key for key, _ in config.recipe if key not in settings]
    for key in [*unfit, *(name for name in files if getattr(config, name))]:
        yield PlanError(f"applies only {other} --train; omit one of them", key=key)
    given = {key: value for key, value in config.recipe if key in settings}
    try:
        build(ExampleRecipe if config.train else Injection, given)
    except PlanError as error:
        yield error
    if given.get("epochs") and given.get("steps"):
        yield PlanError("given together with steps; expected one of them; omit one", key="epochs")
    for key in () if config.train else ("retain", "general"):
        if not getattr(config, key):
            yield PlanError(
                "missing; expected what the injected model was trained on: give --train FILE, or "
                "facts with --retain and --general",
                key=key,
            )


def retrain_problems(config: RetrainConfig) -> Iterator[PlanError]:
    """Yield what is missing or does not fit together in retrain."""
    yield from recipe_problems(config)
    if config.with_forget and not config.train and not config.forget:
        yield PlanError("missing; --with-forget needs the facts to forget", key="forget")
    if config.command and not config.train:
        yield PlanError("missing; --command needs rows to train on", key="train")
    for part in ("{data}", "{seed}", "{out}") if config.command else ():
        if part not in config.command:
            yield PlanError(f"lacks {part}, which differs from run to run; add it", key="command")
    try:
        shlex.split(config.command)
    except ValueError as error:
        yield PlanError(f"cannot be parsed ({error}); close its quotes", key="command")


def unlearn_problems(config: UnlearnConfig) -> Iterator[PlanError]:
    """Yield what is missing or does not fit together in unlearn."""
    yield from recipe_problems(config)
    if not config.train and not config.forget:
        yield PlanError("missing; give the facts to forget", key="forget")
