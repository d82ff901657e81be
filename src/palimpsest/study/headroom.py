"""Headroom of a user's facts: can retained data let a retrained model infer them?

The base model is asked the held-out prompts, alone and with each fact's evidence before them, the
injected model the prompts alone. Each model is a step, so that a worker has one in memory.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from palimpsest import cost
from palimpsest.audit.run import check_out, failed
from palimpsest.cell.graph import Task, TaskWork
from palimpsest.cell.measure import stacked
from palimpsest.cell.sources import Given, source_digest
from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.rules import Rules
from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, as_jsonl, read_facts
from palimpsest.facts.questions import Question, file_questions
from palimpsest.models.device import check_device
from palimpsest.models.load import Outline, check_compatible, outline
from palimpsest.plan import Computing
from palimpsest.run.executor import carry_out
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell, Run, digest, environment
from palimpsest.scoring.answers import item_columns, make_sheet, score

CELL = "headroom"


@dataclass(frozen=True)
class HeadroomJob(Computing):
    """The models to ask and the facts to ask about, checked before any weight is read."""

    places: Mapping[str, str]
    """base, injected and, for the true headroom, reference."""
    facts: tuple[Fact, ...]

    def cell(self, cell_id: str) -> "HeadroomWork":
        return HeadroomWork(self)

    @cached_property
    def outline(self) -> Outline:
        """The base on paper, which the other models must match."""
        return outline(self.places["base"])

    def questions(self, evidence: bool = False) -> list[Question]:
        """Return the held-out questions, alone or with the fact's evidence before them."""
        asked = [q for q in file_questions({"forget": self.facts}) if q.pool == "evaluation"]
        if not evidence:
            return asked
        shown = {fact.id: " ".join(fact.evidence) for fact in self.facts}
        return [replace(q, prompt=f"{shown[q.fact]} {q.prompt}") for q in asked]

    def preview_lines(self, workers: int) -> Iterator[str]:
        """Yield what would be done; loads no weights."""
        for name, place in self.places.items():
            yield f"{name}: {place}"
        yield f"{len(self.facts)} facts, {len(self.questions())} questions, base asked twice"
        words = sum(len(q.prompt.split()) for q in self.questions(evidence=True))
        size = cost.size_of(self.outline.config, self.outline.parameters)
        each = cost.seconds(size, 2 * words, device=self.device)
        each += cost.loading(size, device=self.device, dtype=self.dtype)
        seconds = each * (len(self.places) + 1) / min(workers, len(self.places))
        yield cost.total(self.memory, seconds, self.device, workers)

    @property
    def memory(self) -> float:
        """Bytes that scoring one model takes."""
        size = cost.size_of(self.outline.config, self.outline.parameters)
        page = cost.Step(self.batch_tokens, self.batch_tokens)
        return cost.scoring(size, page, device=self.device, dtype=self.dtype).device


class HeadroomWork(TaskWork):
    """One step per model."""

    def __init__(self, job: HeadroomJob) -> None:
        self.job, self.device = job, job.device
        super().__init__()

    def tasks(self) -> list[Task]:
        return [
            Task(Step(f"ask-{name}", f"asking {name}"), partial(self._ask, name))
            for name in self.job.places
        ]

    def finish(self, cell: Cell) -> dict[str, Any]:
        return {"facts": len(self.job.facts)}

    def _ask(self, name: str, step: str) -> None:
        job, rows = self.job, []
        with Given(job.places[name], job.dtype, job.device).net(job.outline) as (loaded, net):
            for label in (name, "evidence") if name == "base" else (name,):
                sheet = make_sheet(
                    loaded.tokenizer,
                    job.questions(label == "evidence"),
                    piece_tokens=8,
                    batch_tokens=job.batch_tokens,
                )
                rows.append(item_columns(label, "forward", sheet, score(net, sheet)[0]))
        self.cell.put(step, {"headroom": stacked(rows)})


def headroom_job(
    base: str, injected: str, forget: Path | str, reference: str | None = None, **settings: Any
) -> HeadroomJob:
    """Return the checked job; facts without evidence are refused by name.

    settings: those of ``Computing``.
    """
    facts = read_facts(forget, "forget")
    bare = [fact.id for fact in facts if not fact.evidence]
    if bare:
        raise FactsError(
            f"{forget}: fact {bare[0]} has no evidence ({len(bare)} of {len(facts)} have none); "
            'headroom needs "evidence", the sentences of retained data that bear on the fact'
        )
    places = {"base": base, "injected": injected}
    places |= {} if reference is None else {"reference": reference}
    job = HeadroomJob(places, tuple(facts), **settings)
    for other in (injected, reference):
        if other is not None:
            check_compatible(job.outline, outline(other))
    return job


def run_headroom(
    base: str,
    injected: str,
    forget: Path | str,
    *,
    reference: str | None = None,
    rules: Rules | None = None,
    out: Path | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Headroom:
    """Return the headroom of the facts in a file.

    out: the run folder; None takes a temporary one. options: of ``carry_out``; settings: those of
    ``Computing``.
    """
    job = headroom_job(base, injected, forget, reference, **settings)
    options = dict(options or {})
    if options.get("executor") != "ray":  # its nodes have other devices
        check_device(job.device, training=False)
    if out is not None:
        check_out(out)
    rules = rules or Rules()
    digests = {name: source_digest(place) for name, place in job.places.items()}
    digests["forget facts"] = digest(as_jsonl(job.facts))
    with tempfile.TemporaryDirectory(prefix="palimpsest-") as temporary:
        run = Run.create_or_resume(
            Path(temporary) / "run" if out is None else out,
            {"name": CELL, "engine": {"device": job.device, "dtype": job.dtype}},
            vars(rules),
            environment(digests),
            {"commitment": "none", "pool": "none"},
            cells=[CELL],
        )
        outcome = carry_out(job, run, "palimpsest headroom", **options)
        for failure in outcome.failed.values():
            raise failed(failure)
        result = read_headroom(run.cell(CELL).table("headroom"), rules)
    if result is None:
        raise FactsError(f"{forget}: has one fact; an interval needs 2 or more")
    return result
