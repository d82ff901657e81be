"""The command line: arguments in, answers out, no logic of its own.

stdout carries the answer (one JSON document with ``--json``), everything else goes to stderr. Exit
codes: 0 done, 2 bad input, 3 audit done but uncertified, 1 anything else. Heavy modules are
imported inside the commands, so ``palimpsest --help`` answers at once.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from palimpsest.errors import PalimpsestError
from palimpsest.run.stop import Raised


class Stopped(Exception):
    """A KeyboardInterrupt on its way past Typer, which would end the program without a word."""


class _Commands(typer.core.TyperGroup):
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise Stopped from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped from error


app = typer.Typer(
    name="palimpsest",
    cls=_Commands,
    help="Was a model that unlearned something restored, or only suppressed?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
facts_app = typer.Typer(help="Check and convert files of facts.", no_args_is_help=True)
app.add_typer(facts_app, name="facts")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder; resumed if it exists.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Worker processes.")]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="One more method, as name or package.module:Class; repeatable."),
]
Track = Annotated[
    str | None, typer.Option("--track", help="tensorboard, wandb, mlflow or trackio; else none.")
]
Fork = Annotated[bool, typer.Option("--fork", help="Start a new run where terms differ.")]


def main() -> None:
    """Run a command; a deliberate error becomes one readable paragraph and its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    asked = Raised(_stopped)
    asked.listen(signal.SIGINT, signal.SIGTERM)
    try:
        app()
    except PalimpsestError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt) as error:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        from palimpsest.run.lease import let_go

        let_go()
        why = error.__cause__ or error
        say(str(why) or str(_stopped(signal.SIGINT)))
        sys.exit(getattr(why, "exit_code", 128 + (asked.signum or signal.SIGINT)))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _stopped(signum: int) -> KeyboardInterrupt:
    name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
    return KeyboardInterrupt(
        f"stopped by {name}; what is finished is kept, run the same command again to go on"
    )


@app.command()
def demo(
    out: Out = None,
    model: Annotated[str, typer.Option(help="A pocket model.")] = "pocket/qwen2-s",
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
    _answer(where, as_json)


@app.command()
def design(
    forget: Annotated[int, typer.Option(help="Forget facts, m.")] = 4,
    probes: Annotated[int, typer.Option(help="Never-learned probes, n.")] = 16,
    candidates: Annotated[int, typer.Option(help="Candidates, K.")] = 20,
    alpha: Annotated[float, typer.Option(help="Level of the screen.")] = 0.05,
    shift: Annotated[float, typer.Option(help="Shift the power refers to, in sd.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Can the screen exclude anybody? Proposition 1 as a calculator."""
    from palimpsest.criteria.design import design_screen

    found = design_screen(forget, probes, candidates, alpha, shift)
    answer(found.to_json() if as_json else "\n".join(found.lines()))


@app.command()
def study(
    plan: Annotated[str, typer.Argument(help="A YAML file or a preset, such as pocket-small.")],
    out: Out = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Workers = 1,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    pool: Annotated[Path | None, typer.Option(help="Your sealed audit pool.")] = None,
    method: Methods = None,
    general: Annotated[
        str | None, typer.Option(help="General text: a plain-text file such as WikiText.")
    ] = None,
    fork: Fork = False,
    track: Track = None,
    preview: Annotated[bool, typer.Option(help="Say what would be done, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """A matrix of cells; running it again resumes it."""
    from dataclasses import replace

    chosen = _with_methods(_plan(plan), method)
    if general is not None:
        chosen = replace(chosen, general=replace(chosen.general, source=general))
    if preview:
        from palimpsest.study.preview import preview as look_ahead

        answer("\n".join(look_ahead(chosen).lines(workers)))
        return
    where = out or Path("runs") / chosen.name
    options = {"executor": executor, "workers": workers, "pool": pool, "address": address}
    _study(chosen, where, track, fork=fork, **options)
    _answer(where, as_json)


@app.command()
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


@app.command()
def methods(as_json: AsJson = False) -> None:
    """What can be audited here: every unlearning method, its needs, knobs and source."""
    from palimpsest.methods import describe

    rows = describe()
    if as_json:
        answer(rows)
        return
    _print_methods(rows)


@app.command()
def seal(pool: Path, as_json: AsJson = False) -> None:
    """Print the commitment to an audit pool of your own; put it in the plan, keep the file."""
    from palimpsest.facts.sealed import commit_file

    found = str(commit_file(pool))
    answer({"commitment": found} if as_json else found)


@app.command()
def report(run: Path, as_json: AsJson = False) -> None:
    """Regenerate every table, figure and the HTML from stored artifacts, training nothing."""
    page = _report(run)
    answer({"report": str(page)} if as_json else str(page))


@app.command()
def audit(
    request: Annotated[
        Path | None, typer.Argument(help="One YAML file; flags win over it.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Before it learned what it should forget.")
    ] = None,
    injected: Annotated[str | None, typer.Option(help="The model that knows too much.")] = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", help="NAME=PATH; repeatable.")
    ] = None,
    candidates_folder: Annotated[
        str | None, typer.Option(help="A folder of unlearning runs, each a checkpoint folder.")
    ] = None,
    forget: Annotated[str | None, typer.Option(help="Facts that should be gone.")] = None,
    retain: Annotated[str | None, typer.Option(help="Facts that should stay.")] = None,
    probes: Annotated[str | None, typer.Option(help="Facts no model ever learned.")] = None,
    generate_probes: Annotated[
        int | None, typer.Option(help="Make so many probes out of the forget facts.")
    ] = None,
    general: Annotated[str | None, typer.Option(help="A plain-text file.")] = None,
    reference: Annotated[
        list[str] | None, typer.Option("--reference", help="A retrained model; repeatable.")
    ] = None,
    adapter_base: Annotated[
        str | None, typer.Option(help="The model under LoRA candidates.")
    ] = None,
    round_trip: Annotated[str | None, typer.Option(help="survivors or all.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of re-acquisition.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of re-acquisition.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    fork: Fork = False,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Your own models: which candidate, if any, may be called restored?"""
    from palimpsest.study.audit import make_request, request_from_yaml, run_audit

    flags = {
        "base": base,
        "injected": injected,
        "candidates": candidate or None,
        "candidates_folder": candidates_folder,
        "forget": forget,
        "retain": retain,
        "probes": probes,
        "generate_probes": generate_probes,
        "general": general,
        "references": reference or None,
        "adapter_base": adapter_base,
        "round_trip": round_trip,
        "learning_rate": learning_rate,
        "steps": steps,
        "device": device,
        "dtype": dtype,
        "out": None if out is None else str(out),
    }
    given = {name: value for name, value in flags.items() if value is not None}
    asked = make_request(given) if request is None else request_from_yaml(request, given)
    with _tracked(track) as tracking:

        def progress(label: str, done: int, total: int) -> None:
            say(f"{label} ({done}/{total})")
            if tracking is not None:
                tracking.begin(asked.out).progress(label, done, total)

        result = run_audit(asked, dry_run=dry_run, fork=fork, progress=progress)
        if tracking is not None and result.run is not None:
            tracking.begin(result.run)
    page = None if result.run is None else _report(result.run)
    if as_json:
        answer({**result.summary, "report": None if page is None else str(page)})
    else:
        answer(result.paragraph)
        if page is not None:
            answer(f"\nreport: {page}\nrun: {result.run}")
    raise typer.Exit(result.exit_code)


@app.command()
def tofu(
    data: Annotated[
        str | None, typer.Option(help="Folder of TOFU's files; without it, the hub.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="forget01, forget05 or forget10.")] = None,
    base: Annotated[str | None, typer.Option(help="Before it met TOFU.")] = None,
    full: Annotated[str | None, typer.Option(help="Taught every author.")] = None,
    retain: Annotated[
        list[str] | None,
        typer.Option("--retain", help="Taught without the forget authors; repeatable."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Make both from the base here.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Cells, each with items of its own.")] = None,
    forget_items: Annotated[int | None, typer.Option(help="Questions to forget.")] = None,
    retain_items: Annotated[int | None, typer.Option(help="Questions to keep.")] = None,
    probes: Annotated[int | None, typer.Option(help="Never-learned questions.")] = None,
    longest: Annotated[int | None, typer.Option(help="Most words of an item; 0 for all.")] = None,
    evidence: Annotated[int | None, typer.Option(help="Retained questions in context.")] = None,
    grid: Annotated[str | None, typer.Option(help="paper, or one of each method.")] = None,
    method: Methods = None,
    draws: Annotated[int | None, typer.Option(help="References that are trained.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of fine-tuning.")] = None,
    items: Annotated[int | None, typer.Option(help="Questions a step of fine-tuning.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of everything that trains.")] = None,
    unlearning_steps: Annotated[int | None, typer.Option(help="Of each method.")] = None,
    unlearning_items: Annotated[int | None, typer.Option(help="Of each set a step.")] = None,
    round_trip: Annotated[str | None, typer.Option(help="survivors or all.")] = None,
    return_steps: Annotated[int | None, typer.Option(help="Of re-acquisition.")] = None,
    chunks: Annotated[int | None, typer.Option(help="Of re-acquisition.")] = None,
    general: Annotated[str | None, typer.Option(help="A plain-text file, or pocket.")] = None,
    scored_pieces: Annotated[int | None, typer.Option(help="Pieces of general text.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Of a scoring batch.")] = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    fork: Fork = False,
    as_json: AsJson = False,
) -> None:
    """TOFU: can a model that never met the forget authors reach the never-learned level?"""
    given = {name: value for name, value in locals().items() if value is not None}
    for own in ("out", "dry_run", "fork", "as_json", "method", "retain"):
        given.pop(own, None)
    from palimpsest.study.tofu import TofuRequest, run_tofu

    result = run_tofu(
        TofuRequest(
            out=str(out or Path("runs/tofu")),
            retain=tuple(retain or ()),
            methods=tuple(method or ()),
            **given,
        ),
        dry_run=dry_run,
        fork=fork,
        progress=lambda label, done, total: say(f"{label} ({done}/{total})"),
    )
    page = None if result.run is None else _report(result.run)
    if as_json:
        answer({**result.summary, "report": None if page is None else str(page)})
    else:
        answer(result.paragraph)
        if page is not None:
            answer(f"\nreport: {page}\nrun: {result.run}")
    raise typer.Exit(result.exit_code)


@app.command()
def headroom(
    base: Annotated[str, typer.Option(help="Before it learned what it should forget.")],
    injected: Annotated[str, typer.Option(help="The model that knows too much.")],
    forget: Annotated[Path, typer.Option(help="Forget facts with evidence.")],
    reference: Annotated[
        str | None, typer.Option(help="A retrained model, for the true G.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Are your facts counterfactual, or could a retrained model infer them?"""
    from dataclasses import asdict

    from palimpsest.study.headroom import run_headroom

    found = run_headroom(base, injected, forget, reference=reference, dtype=dtype, device=device)
    if as_json:
        answer(asdict(found))
        return
    estimate = found.estimate
    answer(
        f"{found.regime}: the estimated headroom of {found.facts} facts is {estimate.estimate:.2f} "
        f"nats ({estimate.low:.2f} to {estimate.high:.2f}), of {found.taught:.2f} that injection "
        f"taught. {found.reason}"
    )


@app.command()
def certify(
    run: Path,
    out: Annotated[Path | None, typer.Option("--out", help="The archive to write.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="Ed25519 private key (PEM) to sign with.")
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="Your sealed audit pool, to reveal.")] = None,
    as_json: AsJson = False,
) -> None:
    """One archive with plan, rules, seal, scores and verdicts, for others to check."""
    from palimpsest.certificate import certify as write_bundle

    bundle = write_bundle(run, out, key, pool)
    answer({"bundle": str(bundle)} if as_json else str(bundle))


@app.command()
def verify(
    bundle: Path,
    key: Annotated[Path | None, typer.Option(help="Public key (PEM) it must be signed by.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the verdicts of a bundle and check hashes, rules, seal and signature."""
    from palimpsest.certificate import verify as check_bundle

    found = check_bundle(bundle, key)
    answer(found.to_json() if as_json else "\n".join(found.lines()))
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def keygen(
    out: Annotated[Path, typer.Argument(help="Private key file; .pub goes beside it.")],
) -> None:
    """Make an Ed25519 key pair for signing certificates."""
    from palimpsest.certificate import keygen as make_key

    answer("\n".join(str(path) for path in make_key(out)))


@app.command()
def inferability(
    out: Out = None,
    model: Annotated[str, typer.Option(help="A pocket model.")] = "pocket/olmo2-s",
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


@app.command("second-suite")
def second_suite(run: Path, out: Out = None) -> None:
    """Freeze each selector's pick, then score the picks on a pool no choice has used."""
    from palimpsest.study.second import run_second

    made = run_second(run, out or run.with_name(f"{run.name}-second"), tell=say)
    answer(str(made.path))


@facts_app.command("check")
def facts_check(
    files: Annotated[list[str], typer.Argument(help="FILE, or SET=FILE (forget, retain, probe).")],
    as_json: AsJson = False,
) -> None:
    """Explain every problem of facts files, with file and line."""
    from dataclasses import asdict

    from palimpsest.facts.files import problems, set_problems

    sets = dict(item.split("=", 1) for item in files if "=" in item)
    found = set_problems(sets) if sets else []
    for path in (item for item in files if "=" not in item):
        found = [*found, *problems(path)]
    if as_json:
        answer([asdict(problem) for problem in found])
    else:
        answer("\n".join(map(str, found)) or "no problems found")
    if any(problem.fatal for problem in found):
        raise typer.Exit(2)


@facts_app.command("from-tofu")
def facts_from_tofu(
    questions: Path,
    out: Annotated[Path, typer.Option("--out", help="Where the facts go (.jsonl).")],
    perturbed: Annotated[Path | None, typer.Option(help="File with paraphrases.")] = None,
    prefix: Annotated[str, typer.Option(help="Goes before every id.")] = "tofu-",
    without_paraphrase: Annotated[str, typer.Option(help="refuse, skip or keep.")] = "refuse",
) -> None:
    """TOFU question files to facts: questions as trained, paraphrases as held-out prompts."""
    from palimpsest.facts.convert import from_tofu, read_rows

    others = read_rows(perturbed) if perturbed else ()
    _write_facts(
        from_tofu(
            read_rows(questions),
            others,
            prefix=prefix,
            without_paraphrase=without_paraphrase,
        ),
        out,
    )


@facts_app.command("from-csv")
def facts_from_csv(
    table: Path,
    out: Annotated[Path, typer.Option("--out", help="Where the facts go (.jsonl).")],
    prefix: Annotated[str, typer.Option(help="Goes before every id.")] = "row-",
) -> None:
    """A CSV with answer, trained, heldout columns to facts."""
    from palimpsest.facts.convert import from_csv, read_rows

    _write_facts(from_csv(read_rows(table), prefix=prefix), out)


@facts_app.command("from-counterfact")
def facts_from_counterfact(
    table: Path,
    out: Annotated[Path, typer.Option("--out", help="Where the facts go (.jsonl).")],
    target: Annotated[str, typer.Option(help="target_new or target_true.")] = "target_new",
) -> None:
    """CounterFact records to facts."""
    from palimpsest.facts.convert import from_counterfact, read_rows

    _write_facts(from_counterfact(read_rows(table), target=target), out)


# -- what the commands share ---------------------------------------------------------------------


def answer(value: Any) -> None:
    """Print the answer on stdout: text as it is, anything else as one JSON document."""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, allow_nan=False, default=str)
    sys.stdout.write(value + "\n")


def say(text: str) -> None:
    """Print what is not the answer on stderr; nothing in it can act on a terminal."""
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    sys.stderr.write(shown + "\n")
    sys.stderr.flush()


def _plan(name: str) -> Any:
    from palimpsest.plan import plan_from_yaml
    from palimpsest.presets import PRESETS, preset

    if name in PRESETS or not name.endswith((".yaml", ".yml")):
        return preset(name)
    return plan_from_yaml(Path(name))


def _with_methods(plan: Any, names: list[str] | None) -> Any:
    """Give the plan with these methods, at their default knobs, after its own."""
    from dataclasses import replace

    from palimpsest.plan import MethodGrid

    return replace(plan, methods=(*plan.methods, *(MethodGrid(name) for name in names or ())))


def _study(plan: Any, out: Path, track: str | None, **options: Any) -> None:
    from palimpsest.study.progress import follow

    with _tracked(track) as tracking:
        follow(plan, out, on_run=None if tracking is None else tracking.begin, **options)


@contextlib.contextmanager
def _tracked(name: str | None) -> Iterator[Any]:
    """Give the tracker of that name, or None; a missing package is said before anything is run."""
    if name is None:
        yield None
        return
    from palimpsest.report.tracking import Tracking

    tracking = Tracking(name, say)
    try:
        yield tracking
    finally:
        tracking.end()


def _report(run: Path) -> Path:
    from palimpsest.report.html import write_report

    return write_report(run)


def _answer(run: Path, as_json: bool) -> None:
    """Write the report and say what came out."""
    from palimpsest.report.terminal import summary_json, summary_lines

    page = _report(run)
    if as_json:
        answer(summary_json(run) | {"report": str(page), "run": str(run)})
        return
    for line in summary_lines(run):
        answer(line)
    answer(f"\nreport: {page}")


def _print_methods(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what it does", "needs", "knobs", "source", show_lines=False)
    for row in rows:
        knobs = ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in row["knobs"].items()
        )
        needs = ", ".join(row["needs"])
        table.add_row(row["name"], row["summary"], needs, knobs, row["citation"])
    Console(markup=False, highlight=False).print(table)


def _write_facts(facts: Any, out: Path) -> None:
    from palimpsest.errors import FactsError
    from palimpsest.facts.files import as_jsonl
    from palimpsest.run.store import write_bytes

    if not facts:
        raise FactsError("the input holds no facts; expected at least one row")
    write_bytes(out, as_jsonl(facts))
    say(f"{len(facts)} facts written to {out}")


if __name__ == "__main__":
    main()
