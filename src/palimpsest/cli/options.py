"""The flags that several commands share, in groups, and errors that name the flag.

A command takes a whole group as one parameter (``engine: EngineFlags``); ``with_flags`` puts the
group's flags in its place. So every command has the same flags with the same meaning.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import Field, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from typer import Option

from palimpsest.cli.output import Watch, say, tracked
from palimpsest.errors import InputError, PlanError

if TYPE_CHECKING:
    from palimpsest.plan import Plan
    from palimpsest.run.executor import Event, OnEvent

Text = str | None
Whole = int | None
Real = float | None
Several = list[str] | None

RUN_FOLDER = "Run folder. An existing one is resumed."
TRACKER = "Report to tensorboard, wandb, mlflow or trackio."
Out = Annotated[Path | None, Option("--out", help=RUN_FOLDER)]
Track = Annotated[Text, Option("--track", help=TRACKER)]
AsJson = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
METHOD = "Add a method, by name or package.module:Class. Repeatable."
Methods = Annotated[Several, Option("--method", help=METHOD)]
ROUND_TRIP = "Candidates to re-acquire: survivors (of the screen) or all."


def flag(about: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Return a flag of a group: its help, its names where they are not the field's."""
    return field(default=default, metadata={"option": Option(*names, help=about, **more)})


class Flags:
    """A group of flags; ``panel`` is its title in ``--help``, None among the command's own."""

    panel: ClassVar[str | None] = None

    def given(self) -> dict[str, Any]:
        """Return the values of the flags that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class EngineFlags(Flags):
    """How numbers are computed."""

    panel = "Computation"
    device: Text = flag("cpu, cuda or cuda:N; for headroom also auto.")
    dtype: Text = flag("Type of the weights: float32 or bfloat16.")
    batch_tokens: Whole = flag("Tokens per scoring batch.")
    checkpointing: bool | None = flag(
        "Compute activations twice to save memory.", "--checkpointing"
    )
    accumulate: Whole = flag("Parts that a training step is split into, to save memory.")
    optimizer: Text = flag(
        "State of AdamW: device, host (off the GPU) or 8bit (moments in 8 bits)."
    )
    lora: Whole = flag("Train and merge LoRA adapters of this rank instead of all weights.")


@dataclass(frozen=True)
class RuleFlags(Flags):
    """Rules that are fixed before anything is trained or scored."""

    panel = "Rules, fixed before anything is trained"
    alpha: Real = flag("Error rate of the screen and the comparison.")
    detection_limit: Real = flag(
        "Share of the injected weights that an audit must notice to certify anything."
    )
    margin: Real = flag(
        "Certify equivalence: no gap's bound above this share of what was at stake. 0 is off."
    )


@dataclass(frozen=True)
class FolderFlags(Flags):
    """The run folder."""

    panel = "Run folder"
    out: Path | None = flag(RUN_FOLDER)
    fork: bool = flag(
        "Start a new run beside an existing one with other settings.", "--fork", default=False
    )
    track: Text = flag(TRACKER)


@dataclass(frozen=True)
class RunFlags(Flags):
    """Where the steps run, and what is printed."""

    panel = "Execution and output"
    executor: str = flag("Where steps run: local (processes) or ray.", default="local")
    workers: Whole = flag("Worker processes. Default: as many as cores and memory allow.", min=1)
    address: Text = flag("Ray: address of a running cluster.")
    gpus_per_step: Real = flag("Ray: GPUs that each worker reserves.", min=0)
    memory_per_step: Real = flag("Ray: memory that each worker reserves, in GB.", min=0)
    cpus_per_step: Real = flag("Ray: cores that each worker reserves.", min=0)
    dry_run: bool = flag(
        "Show what would be done and exit.", "--dry-run", "--preview", default=False
    )
    as_json: bool = flag("Print one JSON document on stdout.", "--json", default=False)

    def runner(self) -> dict[str, Any]:
        """Return the executor and its options, as ``carry_out`` takes them."""
        memory = None if self.memory_per_step is None else int(self.memory_per_step * 1e9)
        options = {"address": self.address, "num_gpus": self.gpus_per_step, "memory": memory}
        options["num_cpus"] = self.cpus_per_step
        given = {name: value for name, value in options.items() if value is not None}
        if given and self.executor != "ray":
            raise PlanError(
                "--address and the resources per step are for Ray; add --executor ray, or omit them"
            )
        return {"executor": self.executor, **given}

    @contextmanager
    def shown(self, track: Text = None) -> Iterator[dict[str, Any]]:
        """Provide the options of ``carry_out``, with what shows and tracks the events."""
        options = self.runner()
        with tracked(track) as tracking, Watch() as watch:

            def begin(run: Path) -> "OnEvent":
                listeners = [watch.begin(run)]
                if tracking is not None:
                    listeners.append(tracking.begin(run))

                def tell(event: "Event") -> None:
                    for listen in listeners:
                        listen(event)

                return tell

            yield {**options, "on_run": begin}


def changed(plan: "Plan", engine: EngineFlags, rules: RuleFlags | None = None) -> "Plan":
    """Return the plan with the settings that were given as flags."""
    from dataclasses import replace

    from palimpsest.plan import check

    plan = replace(plan, engine=replace(plan.engine, **engine.given()))
    if rules is not None:
        plan = replace(plan, rules=replace(plan.rules, **rules.given()))
    return check(plan)


def workers_for(plan: "Plan", workers: Whole) -> int:
    """Return the number of workers: as given, or as many as cores, memory or GPUs allow."""
    from palimpsest import cost
    from palimpsest.preview import preview
    from palimpsest.run.local import gpus

    device = plan.engine.device
    if workers is None:
        return cost.workers_for(preview(plan).memory if device == "cpu" else 0.0, device)
    if device == "cuda" and workers > len(gpus()) > 0:
        say(f"note: {workers} workers share {len(gpus())} GPUs and their memory")
    return workers


# -- groups of flags as parameters of a command ----------------------------------------------------

Command = Callable[..., None]
_FILES = ("plan", "request")
"""Parameters that name a file with the same keys as the flags."""
_SINGLE = {"candidates": "candidate", "references": "reference", "methods": "method"}
"""Flags that are given once per model or method, by their keys in a file."""


def with_flags(command: Command) -> Command:
    """Return the command with the flags of each group in the group's place."""
    groups: dict[str, type[Flags]] = {}
    own: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Flags):
            groups[name] = kind
            listed = own if kind.panel is None else shared
            listed += [_in_panel(one, kind.panel) for one in fields(cast(Any, kind))]
        else:
            own.append(_parameter(name, kind, parameter.default))
    flags = [*own, *shared]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        named = set(values)
        if any(values.get(file) is not None for file in _FILES):
            named = {name for name, value in values.items() if value is not None}
        for name, group in groups.items():
            names = [flag.name for flag in fields(cast(Any, group))]
            values[name] = group(**{flag: values.pop(flag) for flag in names})
        with _flags_named(named):
            command(**values)

    wrapped.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return wrapped


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _in_panel(one: "Field[Any]", panel: str | None) -> inspect.Parameter:
    """Return a flag of a group, which ``--help`` lists under the group's title."""
    option = copy(one.metadata["option"])
    option.rich_help_panel = panel
    return _parameter(one.name, Annotated[one.type, option], one.default)


@contextmanager
def _flags_named(flags: set[str]) -> Iterator[None]:
    """Let errors name what came from these flags by the flag, and not by the key of a file."""
    try:
        yield
    except InputError as error:
        message = str(error)
        key = r"(?:rules\.|engine\.)?(\w+)"
        found = re.match(rf"{key}(?:\[\d+\])?(?: and (\w+))?(?=:| is )", message)
        names = [_SINGLE.get(name, name) for name in found.groups() if name] if found else []
        if found is None or not flags.issuperset(names):
            raise
        named = " and ".join(f"--{name.replace('_', '-')}" for name in names)
        raise type(error)(named + message[found.end() :]) from error
