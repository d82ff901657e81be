"""Studies on the testbed, their run folders, and what these show of methods."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from palimpsest.cli.options import (
    AsJson,
    EngineFlags,
    FolderFlags,
    Methods,
    Out,
    RuleFlags,
    RunFlags,
    Track,
    changed,
    workers_for,
)
from palimpsest.cli.output import answer, say
from palimpsest.errors import InputError

if TYPE_CHECKING:
    from palimpsest.plan import Plan

PocketModel = Annotated[str, Option(help="Pocket model, for example pocket/qwen2-s.")]
SLOW = ("transformers.models.auto.modeling_auto", "transformers.tokenization_utils_tokenizers")
"""What a worker needs of ``transformers`` to read a pocket model's config and tokenizer."""
RunFolder = Annotated[Path, Argument(help="Run folder.")]


def demo(
    folder: FolderFlags,
    run: RunFlags,
    engine: EngineFlags,
    model: PocketModel = "pocket/qwen2-s",
    seed: Annotated[int, Option(min=0, help="Seed of the cell.")] = 0,
    method: Methods = None,
) -> None:
    """Run one cell with a pocket model: train, unlearn, screen, re-acquire, verdict."""
    from dataclasses import replace

    from palimpsest.presets import preset

    plan = _with_methods(replace(preset("demo"), models=(model,), seeds=(seed,)), method)
    _answer(finish(changed(plan, engine), Path("demo-run"), folder, run), run.as_json)


def study(
    plan: Annotated[str, Argument(help="YAML file or preset, for example pocket-small.")],
    folder: FolderFlags,
    rules: RuleFlags,
    engine: EngineFlags,
    run: RunFlags,
    pool: Annotated[Path | None, Option(help="File of your own sealed pool.")] = None,
    method: Methods = None,
    general: Annotated[
        str | None, Option(help="Plain-text file of general prose, for example WikiText.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        Option(help="Keep weights in the run folder: models, candidates. Repeatable."),
    ] = None,
    add_method: Annotated[
        list[str] | None,
        Option(help="Add a method to the finished run, in a new run beside it. Repeatable."),
    ] = None,
) -> None:
    """Run a study: one cell per model and seed. Run it again to resume."""
    from dataclasses import replace

    chosen = _with_methods(named_plan(plan), method)
    if unknown := set(keep or ()) - {"models", "candidates"}:
        raise InputError(f"--keep: {sorted(unknown)[0]} found; expected models or candidates")
    kept: dict[str, Any] = {f"keep_{what}": True for what in keep or ()}
    chosen = replace(chosen, engine=replace(chosen.engine, **kept))
    if general is not None:
        chosen = replace(chosen, general=replace(chosen.general, source=general))
    chosen = changed(chosen, engine, rules)
    where = Path("runs") / chosen.name
    _answer(finish(chosen, where, folder, run, pool, add_method or ()), run.as_json)


def status(
    run: RunFolder,
    watch: Annotated[
        bool | None,
        Option(help="Refresh until the run ends. On by default in a terminal."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which cells are done, running or failed, the current steps, and the time left."""
    from dataclasses import asdict

    from palimpsest.report.live import status_lines
    from palimpsest.report.live import watch as follow
    from palimpsest.run.status import status as read_status

    now = read_status(run)
    if as_json:
        answer(asdict(now))
    elif watch or (watch is None and now.working and sys.stdout.isatty()):
        follow(run, terminal=sys.stdout.isatty(), say=answer)
    else:
        answer("\n".join(status_lines(now)))


def report(run: RunFolder, as_json: AsJson = False) -> None:
    """Write the report again from stored results: tables, figures and the page."""
    from palimpsest.report.html import write_report
    from palimpsest.report.live import status_lines
    from palimpsest.run.status import status as read_status

    page = write_report(run, together=True)
    now = read_status(run)
    if len(now.done) < len(now.planned):
        say("not finished:" if now.done else "no cell is finished yet, so the report is empty:")
        say("\n".join(status_lines(now)))
    finished = {"finished": len(now.done), "planned": len(now.planned)}
    answer({"report": str(page)} | finished if as_json else str(page))


def compare(
    runs: Annotated[list[Path], Argument(help="Run folders to compare.")],
    csv: Annotated[Path | None, Option("--csv", help="Write the leaderboard as CSV.")] = None,
    page: Annotated[Path | None, Option("--page", help="Write a page with all tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rank methods by how close to retraining they come, over all cells of the runs."""
    from palimpsest.report.compare import board_lines, compared, comparison_page
    from palimpsest.report.formats import as_csv
    from palimpsest.run.store import write_bytes

    tables = compared(runs)
    board = tables[0]
    if csv is not None:
        write_bytes(csv, as_csv(board).encode())
        say(f"table: {csv}")
    if page is not None:
        write_bytes(page, comparison_page(tables).encode())
        say(f"page: {page}")
    if as_json:
        answer({table.name: table.plain() for table in tables})
        return
    answer(board_lines(board))


def inferability(
    folder: FolderFlags,
    engine: EngineFlags,
    run: RunFlags,
    model: PocketModel = "pocket/olmo2-s",
    seeds: Annotated[int, Option(min=2, help="Number of seeds.")] = 5,
    first: Annotated[int, Option("--first-seed", min=0, help="The first of the seeds.")] = 0,
) -> None:
    """Test whether the estimated headroom follows the true one as facts become inferable."""
    from palimpsest.models.device import check_device
    from palimpsest.study import inferability as graded

    where = folder.out or Path("runs/inferability")
    plan = changed(graded.inferability_plan(model, range(first, first + seeds)), engine)
    workers = workers_for(plan, run.workers)
    if run.dry_run:
        answer("\n".join(graded.preview_lines(plan, workers)))
        return
    if run.executor != "ray":
        check_device(plan.engine.device)
    with run.shown(folder.track) as options:
        graded.run_inferability(plan, where, workers=workers, fork=folder.fork, **options)
    levels, agreements = graded.read_inferability(where)
    if run.as_json:
        answer(
            {
                "levels": {level.level.id: [level.true, level.estimated] for level in levels},
                "agreement": {
                    agreement.mechanism: {
                        "spearman": (rank := agreement.rank_correlation).estimate,
                        "spearman_interval": [rank.low, rank.high],
                        "mean_absolute_error": (error := agreement.absolute_error).estimate,
                        "error_interval": [error.low, error.high],
                    }
                    for agreement in agreements
                },
            }
        )
        return
    for level in levels:
        answer(
            f"{level.level.id}: headroom {level.true:.2f}, estimated {level.estimated:.2f}, "
            f"{level.headroom.regime}"
        )
    for agreement in agreements:
        rank, error = agreement.rank_correlation, agreement.absolute_error
        answer(
            f"{agreement.mechanism}: Spearman {rank.estimate:.2f} ({rank.low:.2f} to "
            f"{rank.high:.2f}), mean absolute error {error.estimate:.2f} nats ({error.low:.2f} to "
            f"{error.high:.2f})"
        )


def second_suite(
    run: RunFolder,
    flags: RunFlags,
    out: Out = None,
    track: Track = None,
) -> None:
    """Score the candidate that each selection rule picks on phrasings not used before."""
    from palimpsest.analysis.second_suite import compared
    from palimpsest.plan import plan_from_dict
    from palimpsest.report.terminal import second_lines
    from palimpsest.run.store import Run
    from palimpsest.study.second import run_second

    first = Run.open(run)
    workers = workers_for(plan_from_dict(first.plan), flags.workers)
    where = out or run.with_name(f"{run.name}-second")
    if flags.dry_run:
        answer(f"{len(first.cells)} cells of {run}: make the picks again and score them in {where}")
        return
    with flags.shown(track) as options:
        second = run_second(run, where, workers=workers, **options)
    selectors = compared(run, second.path)
    if flags.as_json:
        rows = {str(values["selector"]): values for values in selectors.plain()}
        answer({"run": str(second.path), "selectors": rows})
        return
    answer(f"{second_lines(selectors)}\n\nrun: {second.path}")


def named_plan(name: str) -> "Plan":
    """Return the plan of a preset or of a YAML file."""
    from palimpsest.plan import plan_from_yaml
    from palimpsest.presets import PRESETS, preset

    if name in PRESETS or not name.endswith((".yaml", ".yml")):
        return preset(name)
    return plan_from_yaml(Path(name))


def _with_methods(plan: "Plan", names: list[str] | None) -> "Plan":
    """Return the plan with these methods, at their default settings, after its own."""
    from dataclasses import replace

    from palimpsest.plan import MethodGrid

    return replace(plan, methods=(*plan.methods, *(MethodGrid(name) for name in names or ())))


def finish(
    plan: "Plan",
    default: Path,
    folder: FolderFlags,
    run: RunFlags,
    pool: Path | None = None,
    added: Sequence[str] = (),
) -> Path | None:
    """Do what is left of a study and return its folder; or print a preview and return None."""
    if run.executor == "local" and not run.dry_run and plan.engine.device == "cpu":
        from palimpsest.run.local import prepare

        prepare("palimpsest.study.matrix", *SLOW)  # while this process imports what it needs
    from dataclasses import replace

    from palimpsest.models.device import check_device, check_lora, check_room
    from palimpsest.plan import MethodGrid
    from palimpsest.preview import preview
    from palimpsest.study.added import run_added
    from palimpsest.study.matrix import run_study

    workers = workers_for(plan, run.workers)
    if run.dry_run:
        check_device(plan.engine.device, here=False)
        done = replace(plan, methods=tuple(MethodGrid(name) for name in added)) if added else plan
        answer("\n".join(preview(done).lines(workers)))
        return None
    if run.executor != "ray":  # its nodes have other devices
        check_device(plan.engine.device)
        check_lora(plan.engine.lora)
        check_room(preview(plan).memory, plan.engine.device, "a cell of this study")
    where = folder.out or default
    with run.shown(folder.track) as options:
        made = run_study(plan, where, pool=pool, fork=folder.fork, workers=workers, **options)
        if added:
            made = run_added(made, added, workers=workers, **options)
    return made.path


def _answer(run: Path | None, as_json: bool) -> None:
    """Write the report and print the outcome, where there is a run."""
    if run is None:
        return
    from palimpsest.report.html import write_report
    from palimpsest.report.terminal import summary_json, summary_lines
    from palimpsest.results import write_results

    write_results(run)
    page = write_report(run, together=True)
    if as_json:
        answer(summary_json(run) | {"report": str(page), "run": str(run)})
        return
    for line in summary_lines(run):
        answer(line)
    answer(f"\nreport: {page}\nnext: palimpsest compare {run}")
