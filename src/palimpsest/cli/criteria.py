"""The trial of published criteria on models of known truth."""

from pathlib import Path
from typing import Annotated

from typer import Option

from palimpsest.cli.options import EngineFlags, FolderFlags, RunFlags, changed
from palimpsest.cli.output import answer


def criteria(
    folder: FolderFlags,
    engine: EngineFlags,
    run: RunFlags,
    show: Annotated[
        bool,
        Option("--list", help="Show every criterion: inputs, cost, formula, direction and source."),
    ] = False,
    plan: Annotated[
        str, Option(help="YAML file or preset with measures and a panel.")
    ] = "criteria",
) -> None:
    """Test which published criteria distinguish restored from suppressed models."""
    if show:
        _list(run.as_json)
        return
    from palimpsest.cli.studies import finish, named_plan
    from palimpsest.errors import PlanError

    chosen = changed(named_plan(plan), engine)
    if chosen.measures == "none" or not chosen.panel.enabled:
        raise PlanError(
            f"plan {plan}: measures is {chosen.measures} and panel.enabled is "
            f"{chosen.panel.enabled}; expected a plan with measures, such as all, and a panel"
        )
    made = finish(chosen, Path("runs") / chosen.name, folder, run)
    if made is not None:
        _conclude(made, run.as_json)


def _conclude(run: Path, as_json: bool) -> None:
    """Write the report and print what the trial came to."""
    from palimpsest.analysis.criteria import run_trial
    from palimpsest.analysis.results import read_run
    from palimpsest.report.criteria_page import sentences
    from palimpsest.report.html import write_report

    page = write_report(run, together=True).with_name("criteria.html")
    results = read_run(run)
    lines = sentences(run_trial(results), results.rules) if results.cells else []
    if as_json:
        answer({"run": str(run), "report": str(page), "found": lines})
        return
    answer("\n".join([*lines, "", f"report: {page}"]))


def _list(as_json: bool) -> None:
    from palimpsest.criteria.catalogue import CRITERIA, INPUTS

    if as_json:
        names = ("name", "number", "group", "inputs", "turn", "cost", "formula", "source")
        answer([{name: getattr(entry, name) for name in names} for entry in CRITERIA])
        return
    for entry in CRITERIA:
        number = entry.number or "–"
        answer(f"{number!s:>3} {entry.name:24} {entry.group:17} {entry.inputs:6} {entry.cost}")
        answer(f"    {entry.formula}; {entry.turn}; {entry.source}")
    letters = ", ".join(f"{letter} {words}" for letter, words in INPUTS.items())
    answer(
        "\nLarger scores mean less restored; after each formula: how the published value was turned"
        f" into such a score. Inputs: {letters}."
    )
