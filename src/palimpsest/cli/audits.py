"""Your own models: audit them, or check what an audit of them could show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Argument, Option

from palimpsest.cli.options import (
    EngineFlags,
    FolderFlags,
    Methods,
    Real,
    RoundTrip,
    RuleFlags,
    RunFlags,
    Several,
    Text,
    Whole,
)
from palimpsest.cli.output import answer, say
from palimpsest.errors import PlanError

if TYPE_CHECKING:
    from palimpsest.audit.run import Answer, AuditResult

Base = Annotated[Text, Option(help="Model before it was trained on the forget data.")]
Injected = Annotated[Text, Option(help="Model trained on forget and retain data.")]


APART = ("folder", "rules", "engine", "run", "request", "candidate", "reference", "method")
"""Parameters that are no keys of a request, or have another name there."""


def audit(
    folder: FolderFlags,
    rules: RuleFlags,
    engine: EngineFlags,
    run: RunFlags,
    request: Annotated[
        Path | None, Argument(help="YAML file with the flags as keys. Flags override it.")
    ] = None,
    base: Base = None,
    injected: Injected = None,
    candidate: Annotated[
        Several, Option("--candidate", help="NAME=PATH of an unlearned model. Repeatable.")
    ] = None,
    candidates_folder: Annotated[
        Text, Option(help="Folder of candidates, one checkpoint per sub-folder.")
    ] = None,
    forget: Annotated[Text, Option(help="File of facts to forget.")] = None,
    retain: Annotated[Text, Option(help="File of facts to keep.")] = None,
    probes: Annotated[Text, Option(help="File of facts that no model was trained on.")] = None,
    generate_probes: Annotated[
        Whole, Option(help="Generate N probes from the forget facts.")
    ] = None,
    general: Annotated[Text, Option(help="Plain-text file of general prose.")] = None,
    reference: Annotated[
        Several,
        Option("--reference", help="Model retrained without the forget data. Repeatable."),
    ] = None,
    references_folder: Annotated[
        Text, Option(help="Folder of references, one checkpoint per sub-folder.")
    ] = None,
    adapter_base: Annotated[Text, Option(help="Base model of LoRA adapters.")] = None,
    round_trip: RoundTrip = None,
    learning_rate: Annotated[
        Real, Option(help="Learning rate of re-acquisition. Default: chosen on a reference.")
    ] = None,
    steps: Annotated[Whole, Option(help="Steps of re-acquisition.")] = None,
    items: Annotated[Whole, Option(help="Sentences per step of re-acquisition.")] = None,
    chat: Annotated[
        bool | None, Option("--chat", help="Ask facts through the base's chat template.")
    ] = None,
    beacon: Annotated[
        Text, Option(help="Draw schedule, phrasings and probes from this newly published text.")
    ] = None,
) -> None:
    """Audit your own models: decide which candidate, if any, can be certified as restored."""
    flags = {name: value for name, value in locals().items() if name not in APART}
    flags |= {"candidates": candidate or None, "references": reference or None, "out": folder.out}
    flags |= {"rules": rules.given() or None, **engine.given()}
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


def tofu(
    folder: FolderFlags,
    rules: RuleFlags,
    engine: EngineFlags,
    run: RunFlags,
    data: Annotated[Text, Option(help="Folder of TOFU's files. Default: download them.")] = None,
    split: Annotated[Text, Option(help="forget01, forget05 or forget10.")] = None,
    base: Annotated[Text, Option(help="Model before it was trained on TOFU.")] = None,
    full: Annotated[Text, Option(help="Model trained on all authors.")] = None,
    retain: Annotated[
        Several,
        Option("--retain", help="Model trained without the forget authors. Repeatable."),
    ] = None,
    train: Annotated[
        bool, Option("--train", help="Train these two models from the base instead.")
    ] = False,
    seeds: Annotated[Whole, Option(help="Number of cells, each with its own items.")] = None,
    forget_items: Annotated[Whole, Option(help="Questions to forget.")] = None,
    retain_items: Annotated[Whole, Option(help="Questions to keep.")] = None,
    probes: Annotated[Whole, Option(help="Never-learned questions.")] = None,
    longest: Annotated[Whole, Option(help="Longest item, in words. 0 is no limit.")] = None,
    evidence: Annotated[
        Whole, Option(help="Retained questions put in context, to estimate headroom.")
    ] = None,
    grid: Annotated[
        Text, Option(help="Candidates: paper (the paper's grid) or one (one per method).")
    ] = None,
    method: Methods = None,
    draws: Annotated[Whole, Option(help="References to train.")] = None,
    steps: Annotated[Whole, Option(help="Steps of fine-tuning.")] = None,
    items: Annotated[Whole, Option(help="Questions per step of fine-tuning.")] = None,
    learning_rate: Annotated[Real, Option(help="Learning rate of all training.")] = None,
    unlearning_steps: Annotated[Whole, Option(help="Steps of each method.")] = None,
    unlearning_items: Annotated[
        Whole, Option(help="Forget items per step of a method, and as many retain items.")
    ] = None,
    round_trip: RoundTrip = None,
    return_steps: Annotated[Whole, Option(help="Steps of re-acquisition.")] = None,
    chunks: Annotated[Whole, Option(help="Number of times re-acquisition is measured.")] = None,
    general: Annotated[
        Text, Option(help="Plain-text file of general prose, or pocket (generated prose).")
    ] = None,
    scored_pieces: Annotated[Whole, Option(help="Pieces of general text to score.")] = None,
) -> None:
    """Run the TOFU study: test whether retraining reaches the level of never-learned facts."""
    given = {n: value for n, value in locals().items() if value is not None and n not in APART}
    given.pop("retain", None)
    from palimpsest import tofu as study
    from palimpsest.criteria.rules import Rules

    request = study.TofuRequest(
        out=str(folder.out or Path("runs/tofu")),
        retain=tuple(retain or ()),
        methods=tuple(method or ()),
        rules=Rules(**rules.given()),
        **given,
        **engine.given(),
    )
    with run.shown(folder.track) as options:
        result = study.run_tofu(
            request, workers=run.workers, dry_run=run.dry_run, fork=folder.fork, **options
        )
    _conclude(result, run.as_json)


def headroom(
    engine: EngineFlags,
    run: RunFlags,
    base: Annotated[str, Option(help="Model before it was trained on the forget data.")],
    injected: Annotated[str, Option(help="Model trained on forget and retain data.")],
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
    from palimpsest.report.terminal import candidate_lines

    return candidate_lines(read_run(result.run).cells[0])


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
            answer(f"\nreport: {page}\nrun: {result.run}")
    raise typer.Exit(result.exit_code)
