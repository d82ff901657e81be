"""Studies of the testbed, and the run folders they leave."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest.cli.options import AsJson, DryRun, Fork, Methods, Out, Track
from palimpsest.cli.output import answer, say, tracked

if TYPE_CHECKING:
    from palimpsest.plan import Plan

PocketModel = Annotated[str, typer.Option(help="A pocket model.")]


def demo(
    out: Out = None,
    model: PocketModel = "pocket/qwen2-s",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    method: Methods = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """One pocket cell end to end: inject, reference, candidates, screen, round trip, verdict."""
    from dataclasses import replace

    from palimpsest.presets import preset

    plan = _with_methods(replace(preset("demo"), models=(model,), seeds=(seed,)), method)
    where = out or Path("demo-run")
    _study(plan, where, track)
    _conclude(where, as_json)


def study(
    plan: Annotated[str, typer.Argument(help="A YAML file or a preset, such as pocket-small.")],
    out: Out = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Worker processes.")] = 1,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    pool: Annotated[Path | None, typer.Option(help="Your sealed audit pool.")] = None,
    method: Methods = None,
    general: Annotated[
        str | None, typer.Option(help="General text: a plain-text file such as WikiText.")
    ] = None,
    fork: Fork = False,
    track: Track = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """A matrix of cells; running it again resumes it."""
    from dataclasses import replace

    chosen = _with_methods(_plan(plan), method)
    if general is not None:
        chosen = replace(chosen, general=replace(chosen.general, source=general))
    if dry_run:
        from palimpsest.study.preview import preview

        answer("\n".join(preview(chosen).lines(workers)))
        return
    where = out or Path("runs") / chosen.name
    options = {"executor": executor, "workers": workers, "pool": pool, "address": address}
    _study(chosen, where, track, fork=fork, **options)
    _conclude(where, as_json)


def status(
    run: Path,
    watch: Annotated[
        bool | None,
        typer.Option(help="Refresh until the work ends; the default on a terminal."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cells done, running and failed, what runs now, and the time left."""
    from dataclasses import asdict

    from palimpsest.report.live import status_lines
    from palimpsest.report.live import watch as follow
    from palimpsest.run.status import status as read_status

    found = read_status(run)
    if as_json:
        answer(asdict(found))
    elif watch or (watch is None and found.working and sys.stdout.isatty()):
        follow(run, terminal=sys.stdout.isatty(), say=answer)
    else:
        answer("\n".join(status_lines(found)))


def report(run: Path, as_json: AsJson = False) -> None:
    """Regenerate every table, figure and the HTML from stored artifacts, training nothing."""
    from palimpsest.report.html import write_report
    from palimpsest.report.live import status_lines
    from palimpsest.run.status import status as read_status

    page = write_report(run)
    found = read_status(run)
    if len(found.done) < len(found.planned):
        say("not finished yet:" if found.done else "nothing is finished yet, the report is empty:")
        say("\n".join(status_lines(found)))
    finished = {"finished": len(found.done), "planned": len(found.planned)}
    answer({"report": str(page)} | finished if as_json else str(page))


def inferability(
    out: Out = None,
    model: PocketModel = "pocket/olmo2-s",
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    as_json: AsJson = False,
) -> None:
    """Does the oracle-free headroom follow the true one as facts become inferable?"""
    from palimpsest.study.inferability import (
        inferability_plan,
        read_inferability,
        run_inferability,
    )

    where = out or Path("runs/inferability")
    run_inferability(inferability_plan(model, range(seeds)), where, tell=say)
    graded, agreements = read_inferability(where)
    if as_json:
        answer(
            {
                "levels": {one.level.id: [one.true, one.estimated] for one in graded},
                "agreement": {
                    one.mechanism: {
                        "spearman": one.rank_correlation.estimate,
                        "spearman_interval": [one.rank_correlation.low, one.rank_correlation.high],
                        "mean_absolute_error": one.absolute_error.estimate,
                        "error_interval": [one.absolute_error.low, one.absolute_error.high],
                    }
                    for one in agreements
                },
            }
        )
        return
    for level in graded:
        answer(
            f"{level.level.id}: G = {level.true:.2f}, estimate = {level.estimated:.2f}, "
            f"{level.headroom.regime}"
        )
    for found in agreements:
        rank, error = found.rank_correlation, found.absolute_error
        answer(
            f"{found.mechanism}: Spearman {rank.estimate:.2f} ({rank.low:.2f} to {rank.high:.2f}), "
            f"mean absolute error {error.estimate:.2f} nats ({error.low:.2f} to {error.high:.2f})"
        )


def second_suite(run: Path, out: Out = None, as_json: AsJson = False) -> None:
    """Freeze each selector's pick, then score the picks on a pool no choice has used."""
    from dataclasses import asdict

    from palimpsest.report.terminal import second_lines
    from palimpsest.study.second import run_second
    from palimpsest.study.second_suite import compared

    made = run_second(run, out or run.with_name(f"{run.name}-second"), tell=say)
    found = compared(run, made.path)
    if as_json:
        answer({"run": str(made.path), "selectors": {one.selector: asdict(one) for one in found}})
        return
    answer(f"{second_lines(found)}\n\nrun: {made.path}")


def _plan(name: str) -> "Plan":
    from palimpsest.plan import plan_from_yaml
    from palimpsest.presets import PRESETS, preset

    if name in PRESETS or not name.endswith((".yaml", ".yml")):
        return preset(name)
    return plan_from_yaml(Path(name))


def _with_methods(plan: "Plan", names: list[str] | None) -> "Plan":
    """Give the plan with these methods, at their default knobs, after its own."""
    from dataclasses import replace

    from palimpsest.plan import MethodGrid

    return replace(plan, methods=(*plan.methods, *(MethodGrid(name) for name in names or ())))


def _study(plan: "Plan", out: Path, track: str | None, **options: Any) -> None:
    from palimpsest.study.progress import follow

    with tracked(track) as tracking:
        follow(plan, out, on_run=None if tracking is None else tracking.begin, **options)


def _conclude(run: Path, as_json: bool) -> None:
    """Answer by the name in the package, which whoever runs `main` inside a program may replace."""
    from palimpsest import cli

    cli._answer(run, as_json)


def _answer(run: Path, as_json: bool) -> None:
    """Write the report and say what came out."""
    from palimpsest.report.html import write_report
    from palimpsest.report.terminal import summary_json, summary_lines

    page = write_report(run)
    if as_json:
        answer(summary_json(run) | {"report": str(page), "run": str(run)})
        return
    for line in summary_lines(run):
        answer(line)
    answer(f"\nreport: {page}")
