"""Your own models: audit them, or check what an audit of them could show."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Argument, Option

from palimpsest.cli.options import (
    METHOD,
    ROUND_TRIP,
    EngineFlags,
    Flags,
    FolderFlags,
    Real,
    RuleFlags,
    RunFlags,
    Several,
    Text,
    Whole,
    flag,
)
from palimpsest.cli.output import answer, say
from palimpsest.errors import PlanError

if TYPE_CHECKING:
    from palimpsest.audit.run import Answer, AuditResult

BASE = "Model before it was trained on the forget data."
INJECTED = "Model trained on forget and retain data."


@dataclass(frozen=True)
class AuditFlags(Flags):
    """What is audited, and how; the names are the keys of a request."""

    base: Text = flag(BASE)
    injected: Text = flag(INJECTED)
    candidate: Several = flag("NAME=PATH of an unlearned model. Repeatable.")
    candidates_folder: Text = flag("Folder of candidates, one checkpoint per sub-folder.")
    forget: Text = flag("File of facts to forget.")
    retain: Text = flag("File of facts to keep.")
    probes: Text = flag("File of facts that no model was trained on.")
    generate_probes: Whole = flag("Generate N probes from the forget facts.")
    general: Text = flag("Plain-text file of general prose.")
    reference: Several = flag("Model retrained without the forget data. Repeatable.")
    references_folder: Text = flag("Folder of references, one checkpoint per sub-folder.")
    adapter_base: Text = flag("Base model of LoRA adapters.")
    round_trip: Text = flag(ROUND_TRIP)
    learning_rate: Real = flag("Learning rate of re-acquisition. Default: chosen on a reference.")
    steps: Whole = flag("Steps of re-acquisition.")
    items: Whole = flag("Sentences per step of re-acquisition.")
    chat: bool | None = flag("Ask facts through the base's chat template.", "--chat")
    beacon: Text = flag("Draw schedule, phrasings and probes from this newly published text.")


def audit(
    folder: FolderFlags,
    rules: RuleFlags,
    engine: EngineFlags,
    run: RunFlags,
    models: AuditFlags,
    request: Annotated[
        Path | None, Argument(help="YAML file with the flags as keys. Flags override it.")
    ] = None,
) -> None:
    """Audit your own models: decide which candidate, if any, can be certified as restored."""
    flags = models.given() | engine.given()
    flags |= {"candidates": flags.pop("candidate", None) or None, "out": folder.out}
    flags |= {"references": flags.pop("reference", None) or None, "rules": rules.given() or None}
    from palimpsest.audit import make_request, request_from_yaml, run_audit

    if request is None and not any(value is not None for value in flags.values()):
        raise PlanError(
            "nothing to audit was given; expected models and files of facts as flags, or a YAML "
            "file; see `palimpsest audit -h`, and the quick start in docs/audit-your-model.md"
        )
    asked = make_request(flags) if request is None else request_from_yaml(request, flags)
    with run.shown(folder.track) as options:
        result = run_audit(
            asked,
            workers=run.workers,
            dry_run=run.dry_run,
            fork=folder.fork,
            notify=lambda sentence: say(f"note: {sentence}"),
            **options,
        )
    _conclude(result, run.as_json, "" if run.as_json else _candidate_table(result))


@dataclass(frozen=True)
class TofuFlags(Flags):
    """The settings of a TOFU study."""

    data: Text = flag("Folder of TOFU's files. Default: download them.")
    split: Text = flag("forget01, forget05 or forget10.")
    base: Text = flag("Model before it was trained on TOFU.")
    full: Text = flag("Model trained on all authors.")
    retain: Several = flag("Model trained without the forget authors. Repeatable.")
    train: bool = flag("Train the full and retain models from the base.", "--train", default=False)
    seeds: Whole = flag("Number of cells, each with its own items.")
    forget_items: Whole = flag("Questions to forget.")
    retain_items: Whole = flag("Questions to keep.")
    probes: Whole = flag("Never-learned questions.")
    longest: Whole = flag("Longest item, in words. 0 is no limit.")
    evidence: Whole = flag("Retained questions put in context, to estimate headroom.")
    grid: Text = flag("Candidates: paper (the paper's grid) or one (one per method).")
    method: Several = flag(METHOD)
    draws: Whole = flag("References to train. Nothing is certified with fewer than 3.")
    steps: Whole = flag("Steps of fine-tuning.")
    items: Whole = flag("Questions per step of fine-tuning.")
    learning_rate: Real = flag("Learning rate of all training.")
    unlearning_steps: Whole = flag("Steps of each method.")
    unlearning_items: Whole = flag("Forget items per step of a method, and as many retain items.")
    round_trip: Text = flag(ROUND_TRIP)
    return_steps: Whole = flag("Steps of re-acquisition.")
    chunks: Whole = flag("Number of times re-acquisition is measured.")
    general: Text = flag("Plain-text file of general prose, or pocket (generated prose).")
    scored_pieces: Whole = flag("Pieces of general text to score.")


def tofu(
    folder: FolderFlags, rules: RuleFlags, engine: EngineFlags, run: RunFlags, settings: TofuFlags
) -> None:
    """Run the TOFU study: test whether retraining reaches the level of never-learned facts."""
    given = settings.given() | engine.given()
    from palimpsest import tofu as study
    from palimpsest.criteria.rules import Rules

    request = study.TofuRequest(
        out=str(folder.out or Path("runs/tofu")),
        retain=tuple(given.pop("retain", ())),
        methods=tuple(given.pop("method", ())),
        rules=Rules(**rules.given()),
        **given,
    )
    with run.shown(folder.track) as options:
        result = study.run_tofu(
            request, workers=run.workers, dry_run=run.dry_run, fork=folder.fork, **options
        )
    _conclude(result, run.as_json)


def headroom(
    engine: EngineFlags,
    run: RunFlags,
    base: Annotated[str, Option(help=BASE)],
    injected: Annotated[str, Option(help=INJECTED)],
    forget: Annotated[Path, Option(help="File of facts to forget, with evidence.")],
    reference: Annotated[
        Text, Option(help="Retrained model, to measure the true headroom.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Run folder to keep. Default: a temporary one.")
    ] = None,
) -> None:
    """Check whether the forget facts could be inferred from retained data."""
    from dataclasses import asdict

    from palimpsest.cost import workers_for
    from palimpsest.study.headroom import headroom_job, run_headroom

    job = headroom_job(base, injected, forget, reference, **engine.given())
    workers = run.workers or workers_for(job.memory, job.device, len(job.places))
    if run.dry_run:
        answer("\n".join(job.preview_lines(workers)))
        return
    with run.shown() as options:
        result = run_headroom(
            base,
            injected,
            forget,
            reference=reference,
            out=out,
            options={"workers": workers, **options},
            **engine.given(),
        )
    if run.as_json:
        answer(asdict(result))
        return
    estimate = result.estimate
    answer(
        f"{result.regime}: the estimated headroom of {result.facts} facts is "
        f"{estimate.estimate:.2f} nats ({estimate.low:.2f} to {estimate.high:.2f}), of "
        f"{result.taught:.2f} that injection taught. {result.reason}"
    )


def _candidate_table(result: "AuditResult") -> str:
    if result.run is None or result.verdict is None or not result.verdict.findings:
        return ""
    from palimpsest.analysis.results import read_run
    from palimpsest.report.terminal import candidate_lines, refusal_lines

    table = candidate_lines(read_run(result.run).cells[0])
    return "\n".join([table, *refusal_lines(result.verdict)])


def _conclude(result: "Answer", as_json: bool, candidates: str = "") -> NoReturn:
    """Write the report where there is something to report, answer, and exit."""
    page = None
    if result.run is not None:
        from palimpsest.report.html import write_report

        page = write_report(result.run, together=True)
    if as_json:
        answer({**result.summary, "report": None if page is None else str(page)})
    else:
        answer(result.paragraph)
        if candidates:
            answer(f"\n{candidates}")
        if page is not None:
            answer(f"\nreport: {page}\nrun: {result.run}\nnext: palimpsest certify {result.run}")
    raise typer.Exit(result.exit_code)
