"""Your own models: audit them, or ask what an audit of them could tell."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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
from palimpsest.cli.output import answer, progress, say, tracked
from palimpsest.errors import InputError, PlanError

if TYPE_CHECKING:
    from palimpsest.study.audit import AuditResult
    from palimpsest.study.tofu import TofuResult

_SINGLE = {"candidates": "candidate", "references": "reference"}
"""Flags that are given once for each, by their keys in a file."""


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
    items: Annotated[int | None, typer.Option(help="Sentences a step of re-acquisition.")] = None,
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
        "items": items,
        "device": device,
        "dtype": dtype,
        "out": None if out is None else str(out),
    }
    given = {key: value for key, value in flags.items() if value is not None}
    if request is None and not given:
        raise PlanError(
            "nothing to audit was given; expected models and files of facts as flags, or one YAML "
            "file; see `palimpsest audit -h`, and docs/audit-your-model.md for one from its start"
        )
    with _flags_named(flags if request is None else given), tracked(track) as tracking:
        asked = make_request(flags) if request is None else request_from_yaml(request, flags)

        def told(label: str, done: int, total: int) -> None:
            if asked.round_trip == "all":
                progress(label, done, total)
            else:  # how many survivors there will be to re-acquire is not known beforehand
                say(f"{label} (step {done + 1})")
            if tracking is not None:
                tracking.begin(asked.out).progress(label, done, total)

        def noted(sentence: str) -> None:
            say(f"note: {sentence}")

        result = run_audit(asked, dry_run=dry_run, fork=fork, progress=told, tell=noted)
        if tracking is not None and result.run is not None:
            tracking.begin(result.run)
    judged = result.verdict is not None and bool(result.verdict.findings)
    if judged and asked.default_dose:
        noted(
            f"re-acquisition took its default dose, {asked.dose}; if the injected model learned "
            "with another, give that one with --steps, --items and --learning-rate"
        )
    _conclude(result, as_json, _candidate_table(result) if judged and not as_json else "")


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


def _candidate_table(result: "AuditResult") -> str:
    """Give the candidates as a table, the one that ends a demo."""
    from palimpsest.report.terminal import candidate_lines
    from palimpsest.study.results import read_run

    assert result.run is not None
    return candidate_lines(read_run(result.run).cells[0])


@contextmanager
def _flags_named(flags: Mapping[str, Any]) -> Iterator[None]:
    """Have errors call what came from these flags by the flag, and not by the key of a file."""
    try:
        yield
    except InputError as error:
        subject, colon, rest = str(error).partition(":")
        keys = [re.sub(r"\[\d+\]$", "", key) for key in subject.split(" and ")]
        if not colon or not all(key in flags for key in keys):
            raise
        named = " and ".join(f"--{_SINGLE.get(key, key).replace('_', '-')}" for key in keys)
        raise type(error)(f"{named}:{rest}") from error


def _conclude(result: "AuditResult | TofuResult", as_json: bool, candidates: str = "") -> NoReturn:
    """Write the report where there is something to report, answer, and end with the exit code."""
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
