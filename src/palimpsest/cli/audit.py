"""Audits of your own models; unlearning, and references to compare with."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from palimpsest.cli.options import (
    MIXTURE,
    MODELS,
    RECIPE,
    RUN_FOLDER,
    EngineFlags,
    PromptFlags,
    RuleFlags,
    RunFlags,
    app,
    flags_of,
    given,
    named_places,
    note,
)
from palimpsest.cli.output import answer, paragraphs
from palimpsest.config.commands import (
    AuditConfig,
    Command,
    ExampleRecipe,
    RecipeSource,
    RetrainConfig,
    RunSource,
    UnlearnConfig,
)
from palimpsest.config.sections import Injection
from palimpsest.errors import PlanError

if TYPE_CHECKING:
    from palimpsest.api import Answer

    AuditFlags = AuditConfig
    RunSourceFlags = RunSource
    RecipeSourceFlags = RecipeSource
    RecipeFlags = ExampleRecipe
    MixtureFlags = Injection
    FactsFlags = Command
    RetrainFlags = RetrainConfig
    UnlearnFlags = UnlearnConfig
else:
    AuditFlags = flags_of(
        AuditConfig,
        *("base", "injected", "candidates", "candidates_folder", "references"),
        *("references_folder", "exclude", "forget", "retain", "probes", "general"),
        *("learning_rate", "steps", "beacon", "out"),
    )
    RunSourceFlags = flags_of(RunSource, group=RUN_FOLDER)
    RecipeSourceFlags = flags_of(RecipeSource, group=RUN_FOLDER)
    RecipeFlags = flags_of(ExampleRecipe, group=RECIPE)
    MixtureFlags = flags_of(Injection, "fact_items", "general_items", group=MIXTURE)
    FactsFlags = flags_of(Command, "forget", "retain", "general", group=MIXTURE)
    RetrainFlags = flags_of(
        RetrainConfig,
        *("base", "train", "forget_rows", "with_forget", "draws", "seed", "command", "out"),
    )
    UnlearnFlags = flags_of(
        UnlearnConfig,
        *("injected", "base", "method", "knobs", "unlearning_steps", "train", "forget_rows"),
        *("seed", "out"),
    )

Required = Annotated[list[str] | None, Parameter(name="--require", negative=())]


@app.command(group=MODELS)
def audit(
    request: Path | None = None,
    /,
    *,
    models: AuditFlags | None = None,
    source: RunSourceFlags | None = None,
    require: Required = None,
    rules: RuleFlags | None = None,
    prompt: PromptFlags | None = None,
    engine: EngineFlags | None = None,
    run: RunFlags | None = None,
) -> None:
    """Audit your own models: decide which candidate, if any, can be certified as restored.

    Parameters
    ----------
    request
        YAML file with the flags' names and further settings as keys. Flags override it.
    require
        Candidate that must pass for exit code 0. Repeatable. Default: any candidate.
    """
    from palimpsest.config.load import load_config, merged, read_values

    run = run or RunFlags()
    values = given(models)
    run_folder = given(source)
    if request is None and not values and not run_folder:
        raise PlanError(
            "nothing to audit; expected models and files of facts as flags, or a YAML file; see "
            "palimpsest audit --help"
        )
    if "candidates" in values:
        values["candidates"] = named_places(values["candidates"])
    values |= {"rules": given(rules), "prompt": given(prompt), "engine": given(engine)}
    if run_folder:
        from palimpsest.openunlearning.runs import audit_run

        if request is not None:
            values = merged(read_values(AuditConfig, request), values)
        config, found = audit_run(load_config(RunSource, run_folder), values)
        note(found)
    else:
        config = load_config(AuditConfig, values, request)
    from palimpsest.api import judge
    from palimpsest.cell.audit import audit_task

    task = audit_task(config, resumed=run.reuse)
    if unknown := [name for name in require or () if name not in task.candidates]:
        known = ", ".join(task.candidates)
        raise PlanError(f"expected some of {known}, got {unknown[0]!r}", key="require")
    if run.previewed(task):
        return
    with run.options() as options:
        result = judge(task, options)
    code = _conclude(result, run.json)
    sys.exit(code if not require else 0 if result.passes(require) else 3)


def _conclude(result: "Answer", as_json: bool) -> int:
    """Write the report where there is something to report, and answer."""
    page: Any = None
    if result.results is not None:
        from palimpsest.report.page import write_report

        page = write_report(result.results)
    if as_json:
        answer({**result.document, "report": None if page is None else str(page)})
        return result.exit_code
    from palimpsest.report.terminal import study_lines

    if result.results is None:
        assert result.verdict is not None
        paragraphs(f"{result.verdict.paragraph()} No model was loaded, and nothing was written.")
        return result.exit_code
    for block in study_lines(result.results):
        answer(block)
    answer(f"\nreport: {page}\nrun: {result.run}")
    answer(f"next: palimpsest certify {shlex.quote(str(result.run))}")
    return result.exit_code


@app.command(group=MODELS)
def retrain(
    request: Path | None = None,
    /,
    *,
    settings: RetrainFlags | None = None,
    recipe: RecipeFlags | None = None,
    facts: FactsFlags | None = None,
    mixture: MixtureFlags | None = None,
    source: RecipeSourceFlags | None = None,
    prompt: PromptFlags | None = None,
    engine: EngineFlags | None = None,
    run: RunFlags | None = None,
) -> None:
    """Train references for an audit by the injected model's recipe, without the forget data.

    Parameters
    ----------
    request
        YAML file with the flags' names and further settings as keys. Flags override it.
    """
    from palimpsest.config.load import load_config

    if run_folder := given(source):
        from palimpsest.openunlearning.recipe import retrain_command

        flags = given(settings) | given(recipe) | given(facts) | given(mixture) | given(engine)
        command, rows = retrain_command(load_config(RecipeSource, run_folder), flags)
        note([rows, "Nothing is trained yet. Run this in OpenUnlearning's folder:"])
        answer(command)
        return
    values = given(settings) | given(recipe) | given(facts) | given(mixture)
    values |= {"prompt": given(prompt), "engine": given(engine)}
    _make(load_config(RetrainConfig, values, request), run or RunFlags())


@app.command(group=MODELS)
def unlearn(
    request: Path | None = None,
    /,
    *,
    settings: UnlearnFlags | None = None,
    recipe: RecipeFlags | None = None,
    facts: FactsFlags | None = None,
    mixture: MixtureFlags | None = None,
    prompt: PromptFlags | None = None,
    engine: EngineFlags | None = None,
    run: RunFlags | None = None,
) -> None:
    """Unlearn with a method; write one checkpoint per combination of its knobs.

    Parameters
    ----------
    request
        YAML file with the flags' names and further settings as keys. Flags override it.
    """
    from palimpsest.cell.make_models import knob_values
    from palimpsest.config.load import load_config

    values = given(settings) | given(recipe) | given(facts) | given(mixture)
    values |= {"prompt": given(prompt), "engine": given(engine)}
    if "knobs" in values:
        values["knobs"] = knob_values(values["knobs"])
    _make(load_config(UnlearnConfig, values, request), run or RunFlags())


def _make(config: RetrainConfig | UnlearnConfig, run: RunFlags) -> None:
    """Check the configuration, do the work and say what was written."""
    from palimpsest.cell.make_models import MakeTask, NotMade, make_models

    task = MakeTask(config)
    if run.previewed(task):
        return
    with run.options() as options:
        made = make_models(task, options)
    if run.json:
        answer({"folders": [str(folder) for folder in made.folders], "records": made.records})
    else:
        for folder, record in zip(made.folders, made.records.values()):
            cost = record.get("cost")
            spent = "" if cost is None else f" (cost: {cost['retrainings']:.2f} retrainings)"
            answer(f"wrote {folder}{spent}")
    if made.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.failed.items())
        raise NotMade(f"{len(made.failed)} models failed ({reasons}); the others were written")
