"""Unlearn facts with your own model, and retrain references to compare it with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from palimpsest.cli.options import EngineFlags, Flags, Real, RunFlags, Several, Text, Whole, flag
from palimpsest.cli.output import answer

Retain = Annotated[str, Option(help="File of facts to keep.")]
General = Annotated[
    str, Option(help="Plain-text file of general prose, or pocket (generated prose).")
]
NewFolder = Annotated[Path, Option("--out", help="Folder to write. Must not exist.")]


@dataclass(frozen=True)
class RecipeFlags(Flags):
    """The recipe by which the injected model was trained."""

    steps: Whole = flag(
        "Steps of the recipe. Default: as in the injected model's palimpsest.json; without one, "
        "150 for pocket models and 200 for others."
    )
    learning_rate: Real = flag(
        "Learning rate of the recipe. Default: as for the steps; without a file, 1.5e-4 for pocket "
        "models and 2e-5 for others."
    )
    fact_items: Whole = flag("Fact sentences per step of the recipe. Default: 4.")
    general_items: Whole = flag("General texts per step of the recipe. Default: 12.")
    seed: int = flag("Seed of the recipe. Give retrain and unlearn the same.", default=0)
    chat: bool = flag("Teach facts as turns of the chat template.", "--chat", default=False)


def unlearn(
    *,
    engine: EngineFlags,
    run: RunFlags,
    injected: Annotated[str, Option(help="Model trained on forget and retain data.")],
    forget: Annotated[str, Option(help="File of facts to forget.")],
    retain: Retain,
    general: General,
    out: NewFolder,
    method: Annotated[str, Option(help="Method, by name or package.module:Class.")] = "replay",
    base: Annotated[Text, Option(help="Model before it was trained on the forget data.")] = None,
    knob: Annotated[
        Several,
        Option(
            "--knob", help="NAME=VALUE, or NAME=VALUE,VALUE for several candidates. Repeatable."
        ),
    ] = None,
    choose: Annotated[
        bool, Option("--choose", help="Choose the knobs of replay without references.")
    ] = False,
    unlearning_steps: Annotated[int, Option(help="Steps of a gradient method.")] = 110,
    recipe: RecipeFlags,
) -> None:
    """Unlearn facts: write one checkpoint per combination of the method's knobs."""
    flags = dict(locals())
    from palimpsest.unlearn.request import Unlearn, knob_values

    flags["knobs"] = knob_values(flags.pop("knob") or ())
    _make(Unlearn, **flags)


def retrain(
    *,
    engine: EngineFlags,
    run: RunFlags,
    base: Annotated[str, Option(help="Model before it was trained on the forget data.")],
    retain: Retain,
    general: General,
    out: NewFolder,
    draws: Annotated[int, Option(help="Number of references. The exact test needs 19.")] = 19,
    with_forget: Annotated[
        Text, Option(help="File of facts to forget: also train the injected model.")
    ] = None,
    recipe: RecipeFlags,
) -> None:
    """Train references for an audit: the injected model's recipe without the forget data."""
    flags = dict(locals())
    from palimpsest.unlearn.request import Retrain

    _make(Retrain, forget=flags.pop("with_forget"), **flags)


def _make(
    kind: type[Any],
    engine: EngineFlags,
    run: RunFlags,
    recipe: RecipeFlags,
    out: Path,
    **flags: Any,
) -> None:
    """Check the flags, do the work and say what was written."""
    from palimpsest.unlearn.run import NotMade, make

    given = {name: value for name, value in flags.items() if value is not None}
    request = kind(out=str(out), **given, **recipe.given(), **engine.given())
    with run.shown() as options:
        made = make(request, workers=run.workers, preview=run.dry_run, **options)
    if run.as_json:
        answer({"folders": [str(folder) for folder in made.folders], "records": made.records})
    else:
        answer("\n".join(made.lines))
    if made.failed:
        number = f"{len(made.failed)} of {len(made.failed) + len(made.folders)}"
        raise NotMade(f"{number} settings failed: {', '.join(made.failed)}; the others are written")
