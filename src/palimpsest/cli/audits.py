"""Your own models: audit them, or ask what an audit of them could tell."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from palimpsest.cli.options import (
    AsJson,
    Device,
    DryRun,
    Dtype,
    Fork,
    Methods,
    Out,
    RoundTrip,
    Track,
)
from palimpsest.cli.output import answer, progress, tracked

if TYPE_CHECKING:
    from palimpsest.study.audit import AuditResult
    from palimpsest.study.tofu import TofuResult


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
    round_trip: RoundTrip = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of re-acquisition.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of re-acquisition.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    dry_run: DryRun = False,
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
    asked = make_request(flags) if request is None else request_from_yaml(request, flags)
    with tracked(track) as tracking:

        def told(label: str, done: int, total: int) -> None:
            progress(label, done, total)
            if tracking is not None:
                tracking.begin(asked.out).progress(label, done, total)

        result = run_audit(asked, dry_run=dry_run, fork=fork, progress=told)
        if tracking is not None and result.run is not None:
            tracking.begin(result.run)
    _conclude(result, as_json)


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
    round_trip: RoundTrip = None,
    return_steps: Annotated[int | None, typer.Option(help="Of re-acquisition.")] = None,
    chunks: Annotated[int | None, typer.Option(help="Of re-acquisition.")] = None,
    general: Annotated[str | None, typer.Option(help="A plain-text file, or pocket.")] = None,
    scored_pieces: Annotated[int | None, typer.Option(help="Pieces of general text.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Of a scoring batch.")] = None,
    out: Out = None,
    dry_run: DryRun = False,
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
        progress=progress,
    )
    _conclude(result, as_json)


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


def _conclude(result: "AuditResult | TofuResult", as_json: bool) -> NoReturn:
    """Write the report where there is something to report, answer, and end with the exit code."""
    page = None
    if result.run is not None:
        from palimpsest.report.html import write_report

        page = write_report(result.run)
    if as_json:
        answer({**result.summary, "report": None if page is None else str(page)})
    else:
        answer(result.paragraph)
        if page is not None:
            answer(f"\nreport: {page}\nrun: {result.run}")
    raise typer.Exit(result.exit_code)
