"""The application, flags made from configuration classes, and flags that several commands share.

A command is one function in one file of this package, registered with ``app``.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from cyclopts import App, Group, Parameter

from palimpsest.cli.output import Watch, note, paragraphs
from palimpsest.config.load import config_keys
from palimpsest.config.sections import Engine, Prompt
from palimpsest.errors import TRACEBACK, PlanError
from palimpsest.stats.rules import Rules
from palimpsest.text import shown

if TYPE_CHECKING:
    from palimpsest.cell.launch import RunOptions, Task

F = TypeVar("F", bound=Callable[..., Any])
START = Group.create_ordered("Start here")
MODELS = Group.create_ordered("Your models")
BENCHMARKS = Group.create_ordered("Benchmarks and methods")
EVIDENCE = Group.create_ordered("Evidence")

app = App(
    name="palimpsest",
    help="Test whether a model that unlearned something was restored or merely suppressed.",
    version_flags=["--version"],
    help_flags=["--help", "-h"],
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),  # the texts say what matters
    suppress_keyboard_interrupt=False,  # it would end SIGTERM as Ctrl-C, without a word
)

SETTINGS = Group.create_ordered("Models, facts and recipe")
RECIPE = Group.create_ordered("Recipe; the injected model's palimpsest.json has its own defaults")
MIXTURE = Group.create_ordered("Recipe without --train")
RUN_FOLDER = Group.create_ordered("An OpenUnlearning run")
PROMPT = Group.create_ordered("Prompt format, exactly as in training")
COMPUTATION = Group.create_ordered("Computation")
RULES = Group.create_ordered("Rules, fixed before anything is trained")
EXECUTION = Group.create_ordered("Execution and output")
SINGULAR = {"candidates": "candidate", "references": "reference", "methods": "method"}
SINGULAR |= {"knobs": "knob"}
"""Flags that are given once per model, method or knob, by their keys in a file."""
GIVEN: set[str] = set()
"""Keys that the command line gave, so that an error can name the flag."""

AsJson = Annotated[
    bool, Parameter(name="--json", negative=(), help="Print one JSON document on stdout.")
]
Explain = Annotated[
    bool,
    Parameter(
        negative=(),
        group=EXECUTION,
        help="Also print the reasons, every candidate and every axis.",
    ),
]
Repeatable = Annotated[list[str] | None, Parameter(negative=())]


class Flags(NamedTuple):
    """Fields of a configuration class that are flags of a command."""

    kind: type
    names: str = ""
    """In this order, with spaces between; all fields if empty."""
    group: Group = SETTINGS
    """Their heading in ``--help``."""
    section: str = ""
    """The section of a file that holds these keys."""


ENGINE = Flags(Engine, "device dtype lora checkpointing", COMPUTATION, "engine")
FORMAT = Flags(Prompt, "chat prompt_file", PROMPT, "prompt")
THRESHOLDS = Flags(Rules, "alpha most_left detection_limit control_shares", RULES, "rules")


def takes(*parts: Flags) -> Callable[[F], F]:
    """Return a decorator for a command whose parameter ``flags`` holds these; see ``given``."""
    fields: list[tuple[str, Any, Any]] = []
    for kind, names, group, section in parts:
        hints = typing.get_type_hints(kind)
        known = {key.name: key for key in config_keys(kind)}
        for name in names.split() or hints:
            flag = SINGULAR.get(name, name).replace("_", "-")
            about = known[name].meaning.replace("`", "")
            if "Default:" not in about and known[name].default not in ("–", "false"):
                about += f" Default: {known[name].default}."
            parameter = Parameter(name=f"--{flag}", help=about, group=group, negative=())
            hint: Any = _flag_type(hints[name]) | None
            annotated: Any = Annotated.__class_getitem__((hint, parameter))  # type: ignore[attr-defined]
            default = dataclasses.field(default=None, metadata={"section": section})
            fields.append((name, annotated, default))
    made = dataclasses.make_dataclass("CommandFlags", fields, frozen=True, kw_only=True)
    made.__module__ = __name__  # Python 3.11 calls it a built-in type

    def decorate(command: F) -> F:
        command.__annotations__["flags"] = Parameter(name="*")(made) | None
        return command

    return decorate


def _flag_type(hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return list[str]
    if origin in (typing.Union, UnionType):
        return next(arg for arg in args if arg is not NoneType)
    return hint


def given(flags: Any) -> dict[str, Any]:
    """Return the values of the flags that were given, by their keys and sections in a file."""
    values: dict[str, Any] = {}
    for item in dataclasses.fields(flags) if flags is not None else ():
        value, section = getattr(flags, item.name), item.metadata["section"]
        if value not in (None, []):
            GIVEN.add(item.name)
            (values.setdefault(section, {}) if section else values)[item.name] = value
    return values


def named_values(texts: list[str] | None, key: str) -> dict[str, str]:
    """Return the values of ``NAME=VALUE`` texts by their names."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not (name and value) or name in pairs:
            raise PlanError(f"expected NAME=VALUE, each name once, got {text[:200]!r}", key=key)
        pairs[name] = value
    return pairs


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Where the steps run, and what is printed."""

    executor: Annotated[str, Parameter(group=EXECUTION)] = "local"
    """Where steps run: local (worker processes) or ray (a Ray cluster). Default: local."""
    workers: Annotated[int, Parameter(group=EXECUTION)] = 0
    """Number of workers. Default: as many as cores and memory allow."""
    reuse: Annotated[str, Parameter(group=EXECUTION)] = ""
    """Another run folder, whose stored results are taken wherever they apply here."""
    per_step: Annotated[str, Parameter(group=EXECUTION)] = ""
    """Resources that each Ray worker reserves: cpus=N,gpus=N,memory=GB or some of them."""
    dry_run: Annotated[bool, Parameter(group=EXECUTION, negative=())] = False
    """Show what would be done and the time, memory and disk it takes, and exit."""
    json: Annotated[bool, Parameter(group=EXECUTION, negative=())] = False
    """Print one JSON document on stdout."""
    quiet: Annotated[bool, Parameter(group=EXECUTION, negative=())] = False
    """Print only the answer and errors: no progress, no notes."""
    traceback: Annotated[bool, Parameter(group=EXECUTION, negative=())] = False
    """Where something fails, show the lines of code, your own among them, that led there."""

    def __post_init__(self) -> None:
        if self.traceback:
            os.environ[TRACEBACK] = "1"  # workers inherit it

    def resources(self) -> dict[str, Any]:
        """Return the options of the Ray executor."""
        if self.per_step and self.executor != "ray":
            raise PlanError("applies only to Ray; add --executor ray, or omit it", key="--per-step")
        found = re.findall(r"(cpus|gpus|memory)=(\d*\.?\d+)(?:,|$)", self.per_step)
        if ",".join(map("=".join, found)) != self.per_step:
            raise PlanError(
                f"expected some of cpus=N,gpus=N,memory=GB, got {shown(self.per_step)}",
                key="--per-step",
            )
        options: dict[str, Any] = {f"num_{name}": float(value) for name, value in found}
        if "num_memory" in options:
            options["memory"] = int(options.pop("num_memory") * 1e9)
        return options

    def options(self, task: "Task") -> "RunOptions":
        """Return the options of a task's run, with what shows its progress."""
        from palimpsest.cell.launch import RunOptions
        from palimpsest.run.executor import silent

        return RunOptions(
            self.executor,
            self.workers,
            on_event=silent if self.quiet else Watch(task.folder).show,
            reuse=self.reuse,
            resources=self.resources(),
            on_remark=(lambda remark: None) if self.quiet else note,
        )

    def previewed(self, task: "Task") -> bool:
        """Print what a task would do, if that is all that is asked for."""
        if self.dry_run:
            from palimpsest.cell.launch import preview

            paragraphs(*preview(task, self.options(task)))
        return self.dry_run
