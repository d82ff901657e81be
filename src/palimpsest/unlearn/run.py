"""``unlearn`` and ``retrain`` as one call: check, run what is left, write the folders."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from palimpsest import cost
from palimpsest.errors import DriftError, InputError, PalimpsestError
from palimpsest.models.device import check_device, check_room
from palimpsest.models.load import Outline, load
from palimpsest.preview import cell_memory
from palimpsest.run import disk
from palimpsest.run.executor import carry_out
from palimpsest.run.store import Cell, Run, environment
from palimpsest.unlearn.folder import card, publish, write_checkpoint
from palimpsest.unlearn.job import OwnJob, OwnWork
from palimpsest.unlearn.request import Request, Unlearn, check_new, work_folder

TRAINED = {
    "reference": "Trained from base on the retain facts and general text, never on the forget "
    "facts: a reference for an audit.",
    "injected": "Trained from base on forget and retain facts and general text.",
}


class NotMade(PalimpsestError):
    """A model could not be made; what was finished is kept."""


@dataclass(frozen=True)
class Made:
    """What was written, or would be."""

    folders: tuple[Path, ...]
    lines: tuple[str, ...]
    records: Mapping[str, Any]
    failed: Mapping[str, str] = field(default_factory=dict)
    """The settings that gave no model, and why."""


def make(
    request: Request,
    *,
    workers: int | None = 1,
    preview: bool = False,
    **options: Any,
) -> Made:
    """Make the models of a request and write their folders; stopped, the same call resumes.

    workers: None takes as many as there are cores and memory for. options: of ``carry_out``.
    """
    if options.get("executor") != "ray":  # its nodes have other devices
        check_device(request.device)
    known = request.check()
    workers = workers or cost.workers_for(memory(request, known), request.device)
    job = OwnJob(request)
    work = job.cell("")
    out = Path(request.out)
    if preview:
        return Made((), tuple(preview_lines(request, work, known, workers)), {})
    check_room(memory(request, known), request.device, "a worker")
    folder = work_folder(out)
    new = not folder.exists()
    try:
        run = Run.create_or_resume(
            folder,
            request.terms(),
            request.plan.as_dict()["rules"],
            environment(request.digests()),
            {"commitment": "none", "pool": "none"},
            cells=[work.plan.id],
        )
    except DriftError as error:
        reason = str(error).partition("\nexpected")[0]
        raise DriftError(
            f"{reason}\nit holds unfinished work of another command for the same --out; run that "
            "one again, or remove the folder, or choose another --out"
        ) from error
    command = f"palimpsest {type(request).__name__.lower()}"
    with run.lock(command):
        outcome = carry_out(job, run, command, workers=workers, **options)
        for failure in outcome.failed.values():
            if new and failure.kind in (InputError.kind, "not_applicable", "model_error"):
                disk.remove(run.path)  # the corrected command could use nothing of it
            raise NotMade(failure.reason)
        records = dict(_records(request, run.cell(run.cells[0]), run.environment))
        failed = {n: r["failure"]["reason"] for n, r in records.items() if "failure" in r}
        records = {name: record for name, record in records.items() if name not in failed}
        if not records:
            disk.remove(run.path)
            name, reason = next(iter(failed.items()))
            raise NotMade(f"{name}: {reason}; leave this setting out, or change it")
        alone = isinstance(request, Unlearn) and len(work.results()) == 1
        _write(request, work, run, {"" if alone else name: r for name, r in records.items()})
    disk.remove(run.path)
    folders = tuple(out if alone else out / name for name in records)
    lines = [_line(folder, record) for folder, record in zip(folders, records.values())]
    lines += [f"failed: {name}: {reason}" for name, reason in failed.items()]
    return Made(folders, tuple(lines), records, failed)


def _write(
    request: Request, work: OwnWork, run: Run, records: Mapping[str, dict[str, Any]]
) -> None:
    """Write every model's folder, by its name inside the new one; a name may be empty."""
    built, out = run.path / "built", Path(request.out)
    disk.remove(built)
    loaded = load(request.model, dtype=request.dtype)
    steps = work.results()
    for name, record in records.items():
        # A chosen candidate got its name from the choice; it is the only one.
        step = steps.get(record["model"]) or next(iter(steps.values()))
        weights = run.cell(run.cells[0]).folder / "models" / f"{step}.safetensors"
        write_checkpoint(built / name, loaded, weights, record, _card(record["model"], record))
    check_new(out)
    publish(built, out)


def _records(
    request: Request, cell: Cell, made_with: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each folder with what its ``palimpsest.json`` says."""
    summary = cell.summary()
    shared = {
        "command": type(request).__name__.lower(),
        "seed": request.seed,
        "inputs": made_with["inputs"],
        "code": made_with["code"],
        "packages": made_with["packages"],
        "recipe": request.terms()["injection"],
        "engine": asdict(request.plan.engine) | {"chat": request.chat},
        "choice": summary.get("choice"),
    }
    wanted = ("candidate",) if isinstance(request, Unlearn) else ("injected", "reference")
    models: dict[str, dict[str, Any]] = summary["models"]
    for name, role in sorted(models.items(), key=lambda item: item[1].get("draw", -1)):
        if role["role"] in wanted:
            folder = name if role["role"] != "reference" else f"{role['draw']:02d}"
            yield folder, {"model": name, **role, **shared}


def _card(name: str, record: Mapping[str, Any]) -> str:
    inputs = {key: str(value) for key, value in record["inputs"].items()}
    recipe = ", ".join(f"{key} {value}" for key, value in record["recipe"].items())
    made = {"recipe": recipe, "seed": str(record["seed"])}
    if record["role"] in TRAINED:
        return card(name, made | inputs, TRAINED[record["role"]])
    knobs = ", ".join(f"{key} = {value}" for key, value in record["knobs"].items()) or "none"
    cost = record["cost"]
    spent = (
        f"{cost['steps']} optimiser steps, {cost['tokens']} tokens, {cost['flops']:.3g} "
        f"floating-point operations, {cost['retrainings']:.2f} of a retraining"
    )
    return card(
        name,
        {"method": str(record["method"]), "knobs": knobs} | made | {"cost": spent} | inputs,
        "The injected model after unlearning the forget facts, made by `palimpsest unlearn`.",
        "Unlearning alone does not show whether it is restored or suppressed: audit it with "
        "`palimpsest audit`. Nothing here is a guarantee that the facts cannot be recovered.",
    )


def _line(folder: Path, record: Mapping[str, Any]) -> str:
    cost = record.get("cost")
    spent = "" if cost is None else f" (cost: {cost['retrainings']:.2f} retrainings)"
    return f"wrote {folder}{spent}"


def preview_lines(
    request: Request, work: OwnWork, known: Outline, workers: int = 1
) -> Iterator[str]:
    """Yield what would be done, with memory and time; loads no weights."""
    plan = request.plan
    facts = ", ".join(f"{len(facts)} {name}" for name, facts in request.sets.items())
    yield f"model: {known.name}, {known.parameters:,} parameters, {request.dtype}"
    yield f"facts: {facts}; general text: {len(request.pieces)} pieces"
    recipe = plan.injection
    yield (
        f"recipe: {recipe.steps} steps of {recipe.fact_items} sentences and {recipe.general_items} "
        f"general texts at learning rate {recipe.learning_rate:g}, seed {request.seed}"
    )
    words = [step.words for step in work.steps]
    if len(words) > 6:
        words[3:-1] = [f"… {len(words) - 4} more"]
    for step in words:
        yield f"step: {step}"
    seconds = _seconds(request, work, known) / max(1, min(workers, len(work.steps)))
    yield cost.total(memory(request, known), seconds, request.device, workers)
    yield f"would write: {request.out}"


def memory(request: Request, known: Outline) -> float:
    """Return the bytes that a worker needs."""
    return cell_memory(request.plan, cost.size_of(known.config, known.parameters))


def _seconds(request: Request, work: OwnWork, known: Outline) -> float:
    plan, size = request.plan, cost.size_of(known.config, known.parameters)

    def steps(number: int, texts: int) -> float:
        tokens = texts * plan.general.piece_tokens
        return number * cost.seconds(size, tokens, device=request.device, passes=3)

    recipe, budget = plan.injection, plan.unlearning
    training = steps(recipe.steps, recipe.fact_items + recipe.general_items)
    unlearning = steps(budget.steps, budget.forget_items + budget.retain_items)
    trained = len(work.trained)
    return 10 + trained * training + (len(work.steps) - trained) * unlearning
