"""Your own models: audit them, or check what an audit of them could show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
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
    Real,
    RoundTrip,
    Several,
    Text,
    Track,
    Whole,
    Workers,
    fitting_workers,
    flags_named,
    rule_flags,
    runner,
)
from palimpsest.cli.output import answer, tracked
from palimpsest.errors import PlanError

if TYPE_CHECKING:
    from palimpsest.audit import AuditResult
    from palimpsest.tofu import TofuResult

Base = Annotated[Text, Option(help="Model before it was trained on the forget data.")]
Injected = Annotated[Text, Option(help="Model trained on forget and retain data.")]


def audit(
    request: Annotated[
        Path | None, Argument(help="YAML file with the same keys. Flags win over it.")
    ] = None,
    base: Base = None,
    injected: Injected = None,
    candidate: Annotated[
        Several, Option("--candidate", help="NAME=PATH of an unlearned model. Repeatable.")
    ] = None,
    candidates_folder: Annotated[
        Text, Option(help="Folder of candidates, one checkpoint per sub-folder.")
    ] = None,
    forget: Annotated[Text, Option(help="Facts the model should forget.")] = None,
    retain: Annotated[Text, Option(help="Facts the model should keep.")] = None,
    probes: Annotated[Text, Option(help="Facts that no model was trained on.")] = None,
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
    chat: Annotated[
        bool | None, Option("--chat", help="Ask facts through the base's chat template.")
    ] = None,
    out: Out = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    fork: Fork = False,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Audit your own models: decide which candidate, if any, can be certified as restored."""
    flags = dict(locals())
    for own in (
        *("request", "candidate", "reference", "alpha", "detection_limit", "margin", "executor"),
        *("workers", "address", "dry_run", "fork", "track", "as_json"),
    ):
        del flags[own]
    flags |= {"candidates": candidate or None, "references": reference or None}
    flags |= {"rules": rule_flags(alpha, detection_limit, margin) or None}
    from palimpsest.audit import make_request, request_from_yaml, run_audit
    from palimpsest.study.progress import Watch

    given = {key: value for key, value in flags.items() if value is not None}
    if request is None and not given:
        raise PlanError(
            "nothing to audit was given; expected models and files of facts as flags, or one YAML "
            "file; see `palimpsest audit -h`, and the quick start in docs/audit-your-model.md"
        )
    with flags_named(flags if request is None else given), tracked(track) as tracking:
        asked = make_request(flags) if request is None else request_from_yaml(request, flags)
        with Watch(1, 0) as watch:
            result = run_audit(
                asked,
                workers=workers,
                dry_run=dry_run,
                fork=fork,
                on_event=watch,
                on_run=None if tracking is None else tracking.begin,
                notify=lambda sentence: watch.say(f"note: {sentence}"),
                **runner(executor, address),
            )
    _conclude(result, as_json, "" if as_json else _candidate_table(result))


def tofu(
    data: Annotated[Text, Option(help="Folder of TOFU's files. Default: download them.")] = None,
    split: Annotated[Text, Option(help="forget01, forget05 or forget10.")] = None,
    base: Annotated[Text, Option(help="Model before it was trained on TOFU.")] = None,
    full: Annotated[Text, Option(help="Model trained on all authors.")] = None,
    retain: Annotated[
        Several,
        Option("--retain", help="Model trained without the forget authors. Repeatable."),
    ] = None,
    train: Annotated[bool, Option("--train", help="Train both from the base instead.")] = False,
    seeds: Annotated[Whole, Option(help="Number of cells, each with its own items.")] = None,
    forget_items: Annotated[Whole, Option(help="Questions to forget.")] = None,
    retain_items: Annotated[Whole, Option(help="Questions to keep.")] = None,
    probes: Annotated[Whole, Option(help="Never-learned questions.")] = None,
    longest: Annotated[Whole, Option(help="Longest item in words. 0 is no limit.")] = None,
    evidence: Annotated[Whole, Option(help="Retained questions in context, for headroom.")] = None,
    grid: Annotated[Text, Option(help="Candidates: paper, or one per method.")] = None,
    method: Methods = None,
    draws: Annotated[Whole, Option(help="References to train.")] = None,
    steps: Annotated[Whole, Option(help="Steps of fine-tuning.")] = None,
    items: Annotated[Whole, Option(help="Questions per step of fine-tuning.")] = None,
    learning_rate: Annotated[Real, Option(help="Learning rate of all training.")] = None,
    unlearning_steps: Annotated[Whole, Option(help="Steps of each method.")] = None,
    unlearning_items: Annotated[
        Whole, Option(help="Forget items, and retain items, per step of a method.")
    ] = None,
    round_trip: RoundTrip = None,
    return_steps: Annotated[Whole, Option(help="Steps of re-acquisition.")] = None,
    chunks: Annotated[Whole, Option(help="How often re-acquisition is measured.")] = None,
    general: Annotated[Text, Option(help="Plain-text file of general prose, or pocket.")] = None,
    scored_pieces: Annotated[Whole, Option(help="Pieces of general text to score.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    checkpointing: Checkpointing = None,
    accumulate: Accumulate = None,
    optimizer: Optimizer = None,
    lora: Lora = None,
    out: Out = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    fork: Fork = False,
    as_json: AsJson = False,
) -> None:
    """Run the TOFU study: test whether the level of never-learned facts can be reached at all."""
    given = {name: value for name, value in locals().items() if value is not None}
    for own in ("out", "dry_run", "fork", "as_json", "method", "retain", "executor", "workers"):
        given.pop(own, None)
    given.pop("address", None)
    from palimpsest import tofu as study
    from palimpsest.study.progress import Watch

    request = study.TofuRequest(
        out=str(out or Path("runs/tofu")),
        retain=tuple(retain or ()),
        methods=tuple(method or ()),
        **given,
    )
    with Watch(request.seeds, 0) as watch:
        result = study.run_tofu(
            request,
            # A cell holds several models, which may be large: one worker unless asked for more.
            workers=workers or (fitting_workers(1e9) if request.base[:7] == "pocket/" else 1),
            dry_run=dry_run,
            fork=fork,
            on_event=watch,
            **runner(executor, address),
        )
    _conclude(result, as_json)


def headroom(
    base: Annotated[str, Option(help="Model before it was trained on the forget data.")],
    injected: Annotated[str, Option(help="Model trained on forget and retain data.")],
    forget: Annotated[Path, Option(help="Forget facts with evidence.")],
    reference: Annotated[Text, Option(help="Retrained model, for the true headroom.")] = None,
    dtype: Annotated[str, Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Check whether the forget facts could be inferred from retained data."""
    from dataclasses import asdict

    from palimpsest.study.headroom import run_headroom

    result = run_headroom(base, injected, forget, reference=reference, dtype=dtype, device=device)
    if as_json:
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


def _conclude(result: "AuditResult | TofuResult", as_json: bool, candidates: str = "") -> NoReturn:
    """Write the report where there is something to report, answer, and exit."""
    page = None
    if result.run is not None:
        from palimpsest.report.html import write_report

        page = write_report(result.run)
    if as_json:
        answer({**result.summary, "report": None if page is None else str(page)})
    else:
        answer(result.paragraph)
        if candidates:
            answer(f"\n{candidates}")
        if page is not None:
            answer(f"\nreport: {page}\nrun: {result.run}")
    raise typer.Exit(result.exit_code)
