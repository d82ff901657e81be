"""Unlearn facts with your own model, and retrain references to compare it with."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from palimpsest.cli.options import (
    Accumulate,
    Address,
    AsJson,
    BatchTokens,
    Checkpointing,
    Device,
    DryRun,
    Dtype,
    Executor,
    Lora,
    Optimizer,
    Real,
    Several,
    Text,
    Whole,
    Workers,
    fitting_workers,
    flags_named,
    runner,
)
from palimpsest.cli.output import answer

Retain = Annotated[str, Option(help="Facts the model should keep.")]
General = Annotated[str, Option(help="Plain-text file of general prose, or pocket.")]
NewFolder = Annotated[Path, Option("--out", help="Folder to write. Must not exist.")]
Steps = Annotated[Whole, Option(help="Steps of the recipe. Default: 150 pocket, else 200.")]
Rate = Annotated[Real, Option(help="Learning rate of the recipe.")]
FactItems = Annotated[Whole, Option(help="Fact sentences per step of the recipe.")]
GeneralItems = Annotated[Whole, Option(help="General texts per step of the recipe.")]
Chat = Annotated[bool, Option("--chat", help="Teach facts as turns of the chat template.")]
Seed = Annotated[int, Option(help="Seed of the recipe. The same in retrain and unlearn.")]


def unlearn(
    injected: Annotated[str, Option(help="Model trained on forget and retain data.")],
    forget: Annotated[str, Option(help="Facts the model should forget.")],
    retain: Retain,
    general: General,
    out: NewFolder,
    method: Annotated[str, Option(help="Method, by name or package.module:Class.")] = "replay",
    base: Annotated[Text, Option(help="Model before it was trained on the forget data.")] = None,
    knob: Annotated[
        Several,
        Option("--knob", help="NAME=VALUE, or NAME=VALUE,VALUE for several models. Repeatable."),
    ] = None,
    choose: Annotated[
        bool, Option("--choose", help="Choose the knobs of replay without references.")
    ] = False,
    unlearning_steps: Annotated[int, Option(help="Steps of a gradient method.")] = 110,
    steps: Steps = None,
    learning_rate: Rate = None,
    fact_items: FactItems = None,
    general_items: GeneralItems = None,
    seed: Seed = 0,
    chat: Chat = False,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    checkpointing: Checkpointing = None,
    accumulate: Accumulate = None,
    optimizer: Optimizer = None,
    lora: Lora = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Unlearn facts: write one checkpoint per combination of the method's knobs."""
    flags = dict(locals())
    from palimpsest.unlearn.request import Unlearn, knob_values

    _make(Unlearn, flags | {"knobs": knob_values(knob or ())}, ("knob",))


def retrain(
    base: Annotated[str, Option(help="Model before it was trained on the forget data.")],
    retain: Retain,
    general: General,
    out: NewFolder,
    draws: Annotated[int, Option(help="References to train. 19 allow the exact test.")] = 19,
    with_forget: Annotated[Text, Option(help="Forget facts: train the injected model too.")] = None,
    steps: Steps = None,
    learning_rate: Rate = None,
    fact_items: FactItems = None,
    general_items: GeneralItems = None,
    seed: Seed = 0,
    chat: Chat = False,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    checkpointing: Checkpointing = None,
    accumulate: Accumulate = None,
    optimizer: Optimizer = None,
    lora: Lora = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Retrain references for an audit: the recipe without the forget data, drawn anew each time."""
    flags = dict(locals())
    from palimpsest.unlearn.request import Retrain

    _make(Retrain, flags | {"forget": with_forget}, ("with_forget",))


def _make(kind: type[Any], flags: dict[str, Any], own: tuple[str, ...]) -> None:
    """Check the flags, do the work and say what was written."""
    from palimpsest.study.progress import Watch
    from palimpsest.unlearn.run import NotMade, make, memory

    for name in own:
        del flags[name]
    how = {name: flags.pop(name) for name in ("executor", "workers", "address", "dry_run")}
    as_json = flags.pop("as_json")
    flags["out"] = str(flags["out"])
    with flags_named(flags):
        request = kind(**{name: value for name, value in flags.items() if value is not None})
        known = request.check()
        needed = sum(memory(request, known))
        cores = 1 if request.device != "cpu" else fitting_workers(needed)
        with Watch(1, 0) as watch:
            made = make(
                request,
                workers=how["workers"] or cores,
                preview=how["dry_run"],
                on_event=watch,
                **runner(how["executor"], how["address"]),
            )
    if as_json:
        folders = [str(folder) for folder in made.folders]
        answer({"folders": folders, "records": made.records, "failed": dict(made.failed)})
    else:
        answer("\n".join(made.lines))
    if made.failed:
        number = f"{len(made.failed)} of {len(made.failed) + len(made.folders)}"
        raise NotMade(f"{number} settings failed: {', '.join(made.failed)}; the others are written")
