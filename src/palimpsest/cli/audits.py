"""Your own models: audit them, or check what an audit of them could show."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from palimpsest.cli.options import (
    Address,
    Alpha,
    AsJson,
    DetectionLimit,
    Device,
    DryRun,
    Dtype,
    Executor,
    Fork,
    Margin,
    Methods,
    Out,
    RoundTrip,
    Track,
    Workers,
    cores,
    rule_flags,
    runner,
)
from palimpsest.cli.output import answer, tracked
from palimpsest.errors import InputError, PlanError

if TYPE_CHECKING:
    from palimpsest.audit import AuditResult
    from palimpsest.tofu import TofuResult

_SINGLE = {"candidates": "candidate", "references": "reference"}
"""Flags that are given once per model, by their keys in a file."""


def audit(
    request: Annotated[
        Path | None, typer.Argument(help="YAML file with the same keys. Flags win over it.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Model before it was trained on the forget data.")
    ] = None,
    injected: Annotated[
        str | None, typer.Option(help="Model trained on forget and retain data.")
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="NAME=PATH of an unlearned model. Repeatable."),
    ] = None,
    candidates_folder: Annotated[
        str | None, typer.Option(help="Folder of candidates, one checkpoint per sub-folder.")
    ] = None,
    forget: Annotated[str | None, typer.Option(help="Facts the model should forget.")] = None,
    retain: Annotated[str | None, typer.Option(help="Facts the model should keep.")] = None,
    probes: Annotated[str | None, typer.Option(help="Facts that no model was trained on.")] = None,
    generate_probes: Annotated[
        int | None, typer.Option(help="Generate N probes from the forget facts.")
    ] = None,
    general: Annotated[str | None, typer.Option(help="Plain-text file of general prose.")] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option("--reference", help="Model retrained without the forget data. Repeatable."),
    ] = None,
    references_folder: Annotated[
        str | None, typer.Option(help="Folder of references, one checkpoint per sub-folder.")
    ] = None,
    adapter_base: Annotated[str | None, typer.Option(help="Base model of LoRA adapters.")] = None,
    round_trip: RoundTrip = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate of re-acquisition. Default: chosen on a reference."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of re-acquisition.")] = None,
    items: Annotated[int | None, typer.Option(help="Sentences per step of re-acquisition.")] = None,
    alpha: Alpha = None,
    detection_limit: DetectionLimit = None,
    margin: Margin = None,
    device: Device = None,
    dtype: Dtype = None,
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
    from palimpsest.audit import make_request, request_from_yaml, run_audit
    from palimpsest.study.progress import Watch

    rules = rule_flags(alpha, detection_limit, margin)
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
        "references_folder": references_folder,
        "adapter_base": adapter_base,
        "round_trip": round_trip,
        "learning_rate": learning_rate,
        "steps": steps,
        "items": items,
        "device": device,
        "dtype": dtype,
        "out": None if out is None else str(out),
        "rules": rules or None,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    if request is None and not given:
        raise PlanError(
            "nothing to audit was given; expected models and files of facts as flags, or one YAML "
            "file; see `palimpsest audit -h`, and the quick start in docs/audit-your-model.md"
        )
    with _flags_named(flags if request is None else given), tracked(track) as tracking:
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
    judged = result.verdict is not None and bool(result.verdict.findings)
    _conclude(result, as_json, _candidate_table(result) if judged and not as_json else "")


def tofu(
    data: Annotated[
        str | None, typer.Option(help="Folder of TOFU's files. Default: download them.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="forget01, forget05 or forget10.")] = None,
    base: Annotated[str | None, typer.Option(help="Model before it was trained on TOFU.")] = None,
    full: Annotated[str | None, typer.Option(help="Model trained on all authors.")] = None,
    retain: Annotated[
        list[str] | None,
        typer.Option("--retain", help="Model trained without the forget authors. Repeatable."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train both from the base instead.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Number of cells, each with its own items.")
    ] = None,
    forget_items: Annotated[int | None, typer.Option(help="Questions to forget.")] = None,
    retain_items: Annotated[int | None, typer.Option(help="Questions to keep.")] = None,
    probes: Annotated[int | None, typer.Option(help="Never-learned questions.")] = None,
    longest: Annotated[
        int | None, typer.Option(help="Longest item in words; 0 for no limit.")
    ] = None,
    evidence: Annotated[
        int | None, typer.Option(help="Retained questions put in context for the headroom.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Candidates: paper, or one per method.")] = None,
    method: Methods = None,
    draws: Annotated[int | None, typer.Option(help="References to train.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of fine-tuning.")] = None,
    items: Annotated[int | None, typer.Option(help="Questions per step of fine-tuning.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of all training.")
    ] = None,
    unlearning_steps: Annotated[int | None, typer.Option(help="Steps of each method.")] = None,
    unlearning_items: Annotated[
        int | None, typer.Option(help="Forget items, and retain items, per step of a method.")
    ] = None,
    round_trip: RoundTrip = None,
    return_steps: Annotated[int | None, typer.Option(help="Steps of re-acquisition.")] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Times re-acquisition is measured on its way.")
    ] = None,
    general: Annotated[
        str | None, typer.Option(help="Plain-text file of general prose, or pocket.")
    ] = None,
    scored_pieces: Annotated[
        int | None, typer.Option(help="Pieces of general text to score.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens per scoring batch.")] = None,
    out: Out = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    fork: Fork = False,
    as_json: AsJson = False,
) -> None:
    """Run the TOFU study: can a model that never saw the forget authors be told from the rest?"""
    given = {name: value for name, value in locals().items() if value is not None}
    own = ("out", "dry_run", "fork", "as_json", "method", "retain")
    for name in (*own, "executor", "workers", "address"):
        given.pop(name, None)
    from palimpsest import tofu as study
    from palimpsest.study.progress import Watch

    request = study.TofuRequest(
        out=str(out or Path("runs/tofu")),
        retain=tuple(retain or ()),
        methods=tuple(method or ()),
        **given,
    )
    # A cell holds several models at once, which may be large: one worker unless asked for more.
    pocket = request.base.startswith("pocket/")
    with Watch(request.seeds, 0) as watch:
        result = study.run_tofu(
            request,
            workers=workers or (cores() if pocket and request.device == "cpu" else 1),
            dry_run=dry_run,
            fork=fork,
            on_event=watch,
            **runner(executor, address),
        )
    _conclude(result, as_json)


def headroom(
    base: Annotated[str, typer.Option(help="Model before it was trained on the forget data.")],
    injected: Annotated[str, typer.Option(help="Model trained on forget and retain data.")],
    forget: Annotated[Path, typer.Option(help="Forget facts with evidence.")],
    reference: Annotated[
        str | None, typer.Option(help="Retrained model, to measure the true headroom.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
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
    from palimpsest.analysis.results import read_run
    from palimpsest.report.terminal import candidate_lines

    assert result.run is not None
    return candidate_lines(read_run(result.run).cells[0])


@contextmanager
def _flags_named(flags: Mapping[str, Any]) -> Iterator[None]:
    """Let errors name what came from these flags by the flag, and not by the key of a file."""
    try:
        yield
    except InputError as error:
        subject, colon, rest = str(error).partition(":")
        keys = [re.sub(r"\[\d+\]$", "", key) for key in subject.split(" and ")]
        keys = [key.removeprefix("rules.") for key in keys]
        known = {**flags, **(flags.get("rules") or {})}
        if not colon or not all(key in known for key in keys):
            raise
        named = " and ".join(f"--{_SINGLE.get(key, key).replace('_', '-')}" for key in keys)
        raise type(error)(f"{named}:{rest}") from error


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
