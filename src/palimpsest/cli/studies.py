"""Studies on the testbed, and their run folders."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from palimpsest.cli.options import (
    Accumulate,
    Address,
    Alpha,
    AsJson,
    BatchTokens,
    Checkpointing,
    DetectionLimit,
    Device,
    DryRun,
    Dtype,
    Executor,
    Fork,
    Lora,
    Margin,
    Methods,
    Optimizer,
    Out,
    Track,
    Workers,
    flags_named,
    rule_flags,
    runner,
    with_engine,
    workers_for,
)
from palimpsest.cli.output import answer, say, tracked

if TYPE_CHECKING:
    from palimpsest.plan import Plan

PocketModel = Annotated[str, Option(help="Pocket model, for example pocket/qwen2-s.")]
RunFolder = Annotated[Path, Argument(help="Run folder.")]


def demo(
    out: Out = None,
    model: PocketModel = "pocket/qwen2-s",
    seed: Annotated[int, Option(min=0, help="Seed of the cell.")] = 0,
    method: Methods = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run one pocket cell end to end: train, unlearn, screen, round trip, verdict."""
    from dataclasses import replace

    from palimpsest.presets import preset

    plan = _with_methods(replace(preset("demo"), models=(model,), seeds=(seed,)), method)
    where = out or Path("demo-run")
    _study(plan, where, track, workers, **runner(executor, address))
    _conclude(where, as_json)


def study(
    plan: Annotated[str, Argument(help="YAML file or preset, for example pocket-small.")],
    out: Out = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    pool: Annotated[Path | None, Option(help="Your sealed pool.")] = None,
    method: Methods = None,
    general: Annotated[
        str | None, Option(help="Plain-text file of general prose, for example WikiText.")
    ] = None,
    alpha: Alpha = None,
    detection_limit: DetectionLimit = None,
    margin: Margin = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    checkpointing: Checkpointing = None,
    accumulate: Accumulate = None,
    optimizer: Optimizer = None,
    lora: Lora = None,
    fork: Fork = False,
    track: Track = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run a study: models and seeds as cells. Run it again to resume."""
    from dataclasses import replace

    chosen = _with_methods(_plan(plan), method)
    if general is not None:
        chosen = replace(chosen, general=replace(chosen.general, source=general))
    rules = rule_flags(alpha, detection_limit, margin)
    with flags_named({"rules": rules}):
        chosen = replace(chosen, rules=replace(chosen.rules, **rules))
    engine = {"device": device, "dtype": dtype, "batch_tokens": batch_tokens}
    engine |= {"checkpointing": checkpointing, "accumulate": accumulate, "optimizer": optimizer}
    engine["lora"] = lora
    with flags_named(engine):
        chosen = with_engine(chosen, **engine)
    if dry_run:
        from palimpsest.study.preview import preview

        answer("\n".join(preview(chosen).lines(workers_for(chosen, workers))))
        return
    where = out or Path("runs") / chosen.name
    _study(chosen, where, track, workers, pool=pool, fork=fork, **runner(executor, address))
    _conclude(where, as_json)


def status(
    run: RunFolder,
    watch: Annotated[
        bool | None,
        Option(help="Refresh until the run ends. Default on a terminal."),
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

    page = write_report(run)
    now = read_status(run)
    if len(now.done) < len(now.planned):
        say("not finished:" if now.done else "no cell is finished yet, so the report is empty:")
        say("\n".join(status_lines(now)))
    finished = {"finished": len(now.done), "planned": len(now.planned)}
    answer({"report": str(page)} | finished if as_json else str(page))


def inferability(
    out: Out = None,
    model: PocketModel = "pocket/olmo2-s",
    seeds: Annotated[int, Option(min=2, help="Number of seeds.")] = 5,
    device: Device = None,
    dtype: Dtype = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Test whether the estimated headroom follows the true one as facts become inferable."""
    from palimpsest.study.inferability import (
        inferability_plan,
        read_inferability,
        run_inferability,
    )

    where = out or Path("runs/inferability")
    plan = with_engine(inferability_plan(model, range(seeds)), device=device, dtype=dtype)
    count = workers_for(plan, workers)
    run_inferability(plan, where, workers=count, **runner(executor, address))
    levels, agreements = read_inferability(where)
    if as_json:
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
            f"{level.level.id}: G = {level.true:.2f}, estimate = {level.estimated:.2f}, "
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
    out: Out = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Fix the candidate each selector picks, then score the picks on an unused pool."""
    from dataclasses import asdict

    from palimpsest.analysis.second_suite import compared
    from palimpsest.plan import plan_from_dict
    from palimpsest.report.terminal import second_lines
    from palimpsest.run.store import Run
    from palimpsest.study.second import run_second

    count = workers_for(plan_from_dict(Run.open(run).plan), workers)
    where = out or run.with_name(f"{run.name}-second")
    second = run_second(run, where, workers=count, **runner(executor, address))
    selectors = compared(run, second.path)
    if as_json:
        rows = {selector.selector: asdict(selector) for selector in selectors}
        answer({"run": str(second.path), "selectors": rows})
        return
    answer(f"{second_lines(selectors)}\n\nrun: {second.path}")


def _plan(name: str) -> "Plan":
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


def _study(plan: "Plan", out: Path, track: str | None, workers: int | None, **options: Any) -> None:
    from palimpsest.models.device import check_device, check_lora, check_room
    from palimpsest.study.preview import preview
    from palimpsest.study.progress import follow

    if options.get("executor") != "ray":  # the machine at hand need not have a GPU there
        check_device(plan.engine.device)
        check_lora(plan.engine.lora)
        check_room(preview(plan).memory, plan.engine.device, "a cell of this study")
    with tracked(track) as tracking:
        on_run = None if tracking is None else tracking.begin
        follow(plan, out, workers=workers_for(plan, workers), on_run=on_run, **options)


def _conclude(run: Path, as_json: bool) -> None:
    """Answer by the name in the package, which a program that runs `main` may replace."""
    from palimpsest import cli

    cli._answer(run, as_json)


def _answer(run: Path, as_json: bool) -> None:
    """Write the report and print the outcome."""
    from palimpsest.report.html import write_report
    from palimpsest.report.terminal import summary_json, summary_lines

    page = write_report(run)
    if as_json:
        answer(summary_json(run) | {"report": str(page), "run": str(run)})
        return
    for line in summary_lines(run):
        answer(line)
    answer(f"\nreport: {page}")
