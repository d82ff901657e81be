"""Unlearn facts with your own model, and retrain references to compare it with."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from palimpsest.cli.options import EngineFlags, Real, RunFlags, Several, Text, Whole
from palimpsest.cli.output import answer

Retain = Annotated[str, Option(help="Facts the model should keep.")]
General = Annotated[str, Option(help="Plain-text file of general prose, or pocket.")]
NewFolder = Annotated[Path, Option("--out", help="Folder to write. Must not exist.")]
Steps = Annotated[Whole, Option(help="Steps of the recipe. Default: 150 pocket, else 200.")]
Rate = Annotated[Real, Option(help="Learning rate of the recipe.")]
FactItems = Annotated[Whole, Option(help="Fact sentences per step of the recipe.")]
GeneralItems = Annotated[Whole, Option(help="General texts per step of the recipe.")]
Seed = Annotated[int, Option(help="Seed of the recipe. The same in retrain and unlearn.")]


def unlearn(
    engine: EngineFlags,
    run: RunFlags,
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
) -> None:
    """Unlearn facts: write one checkpoint per combination of the method's knobs."""
    flags = dict(locals())
    from palimpsest.unlearn.request import Unlearn, knob_values

    flags["knobs"] = knob_values(flags.pop("knob") or ())
    _make(Unlearn, **flags)


def retrain(
    engine: EngineFlags,
    run: RunFlags,
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
) -> None:
    """Train references for an audit: the recipe without the forget data, drawn anew each time."""
    flags = dict(locals())
    from palimpsest.unlearn.request import Retrain

    _make(Retrain, forget=flags.pop("with_forget"), **flags)


def _make(kind: type[Any], engine: EngineFlags, run: RunFlags, out: Path, **flags: Any) -> None:
    """Check the flags, do the work and say what was written."""
    from palimpsest.unlearn.run import make

    given = {name: value for name, value in flags.items() if value is not None}
    request = kind(out=str(out), **given, **engine.given())
    with run.shown() as options:
        made = make(request, workers=run.workers, preview=run.dry_run, **options)
    if run.as_json:
        answer({"folders": [str(folder) for folder in made.folders], "records": made.records})
    else:
        answer("\n".join(made.lines))
