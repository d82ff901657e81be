"""A run as numbers: every finished cell measured, screened and judged, from stored files alone.

Nothing here trains or loads a model, so results are read on a machine without torch. A command
reads a run once; verdict, terminal, page, tables, Python API and certificate share the object. A
cell that is not finished, or whose files are damaged, is listed in ``missing`` and never silently
left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.config.commands import AuditConfig
from palimpsest.config.sections import Engine, Prompt
from palimpsest.errors import DamagedArtifact, PlanError, StoreError
from palimpsest.run.files import canonical
from palimpsest.run.status import read_progress, unfinished
from palimpsest.run.store import FixedRoster, Run, Terms
from palimpsest.run.tables import Table
from palimpsest.schema import build
from palimpsest.stats.comparison import Comparison
from palimpsest.stats.controls import Control, ControlKind, reference_bag
from palimpsest.stats.headroom import Headroom, read_headroom
from palimpsest.stats.items import ItemTable
from palimpsest.stats.measures import CellMeasures, measure_cell
from palimpsest.stats.models import Model, Role, models_from_json
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict, decide
from palimpsest.stats.words import count, percent
from palimpsest.text import shown


@dataclass(frozen=True, eq=False)
class CellResult:
    """One finished cell."""

    id: str
    base: str
    """The base's name."""
    seed: int
    family: str
    gated: bool
    models: Mapping[str, Model] = field(repr=False)
    """What each model is, models that failed included."""
    evaluation: CellMeasures = field(repr=False)
    """Every model on the screen's pool."""
    known_label: CellMeasures | None = field(repr=False)
    """Known-label models on the sealed pool; None when there are none."""
    verdict: Verdict | None
    """Under the run's own rules; None when there is no candidate."""
    headroom: Headroom | None = field(repr=False)
    """Of its forget facts; None when none was asked with evidence."""
    summary: Mapping[str, Any] = field(repr=False)
    """The cell's record: steps, facts, beacon, dose."""
    tables: Mapping[str, Table] = field(repr=False)
    """The stored tables: items, curves, measures."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Candidates that were measured."""
        return self.evaluation.of_role(Role.CANDIDATE)

    def method(self, name: str) -> str:
        """Return the method of a candidate; in an audit, which knows none, its own name."""
        return self.models[name].method or name

    @property
    def work(self) -> tuple[int, float] | None:
        """How many models were trained, and what all else took, in retrainings; None where the cost
        of one is not recorded."""
        work = self.summary.get("work")
        told = [work.get(k) for k in ("measuring", "retraining")] if isinstance(work, dict) else []
        known = [number for number in told if isinstance(number, int) and number > 0]
        if len(known) < 2:
            return None
        models = self.models.values()
        own = [m.cost.retrainings - m.cost.shared_retrainings for m in models if m.cost]
        trained = sum(step["kind"] == "train" for step in self.summary["steps"])
        one = known[0] / known[1]
        return trained, len(self.evaluation.models) * one + (sum(own) if trained else 0.0)

    @property
    def failed(self) -> Mapping[str, str]:
        """Candidates that could not be made or measured, with the reason."""
        return {
            name: model.failure.reason
            for name, model in self.models.items()
            if model.role is Role.CANDIDATE
            and model.failure is not None
            and model.failure.kind != "not_applicable"
        }


@dataclass(frozen=True, slots=True)
class Missing:
    """A planned cell without results."""

    id: str
    state: str
    """waiting, running, failed or damaged."""
    reason: str


@dataclass(frozen=True, eq=False)
class RunResults:
    """A run's terms and finished cells."""

    path: Path
    terms: Terms
    rules: Rules
    lists: tuple[FixedRoster, ...]
    """The lists of candidates that the run has had: more than one if it was added to."""
    cells: tuple[CellResult, ...]
    missing: tuple[Missing, ...]

    def __repr__(self) -> str:
        cells = f"{len(self.cells)} of {len(self.planned)} cells finished"
        failed = sum(len(cell.failed) for cell in self.cells)
        found = f"a candidate certified in {self.certified}, failed candidates: {failed}"
        return f"<RunResults of {self.kind} {self.name!r} in {self.path}: {cells}, {found}>"

    @property
    def name(self) -> str:
        return str(self.terms.config.get("name", self.terms.kind))

    @property
    def kind(self) -> str:
        """The command that made the run: study or audit."""
        return self.terms.kind

    @property
    def planned(self) -> tuple[str, ...]:
        return self.terms.cells

    @cached_property
    def judged(self) -> tuple[tuple[CellResult, Verdict], ...]:
        """The cells that have a verdict, with it."""
        return tuple((cell, cell.verdict) for cell in self.cells if cell.verdict is not None)

    @property
    def certified(self) -> int:
        """In how many cells a candidate is certified."""
        return sum(verdict.certified for _, verdict in self.judged)

    @property
    def families(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(cell.family for cell in self.cells))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(cell.method(name) for cell, name in self.candidates()))

    def cell(self, cell_id: str) -> CellResult:
        """Return one finished cell."""
        for cell in self.cells:
            if cell.id == cell_id:
                return cell
        known = ", ".join(cell.id for cell in self.cells[:5]) or "none"
        raise StoreError(f"no finished cell {cell_id!r}; the first that are finished: {known}")

    @property
    def own(self) -> tuple[str, ...]:
        """The methods that are not built in."""
        last = self.lists[-1].models if self.lists else ()
        return tuple(dict.fromkeys(entry["method"] for entry in last if entry.get("plugin")))

    @property
    def replaced(self) -> tuple[str, ...]:
        """Candidates of earlier lists that are not in the last one as they were: they were tried
        and are not judged."""
        listed = [
            {canonical(e): e["name"] for e in roster.models if e.get("role") == "candidate"}
            for roster in self.lists
        ]
        gone = {entry: name for earlier in listed for entry, name in earlier.items()}
        return tuple(name for entry, name in gone.items() if entry not in listed[-1])

    def tried(self) -> str:
        """Return in words which candidates were tried and are not judged; empty if none."""
        if not self.replaced:
            return ""
        last = {entry["name"] for entry in self.lists[-1].models}
        names = [f"an earlier version of {n}" if n in last else n for n in self.replaced]
        one = len(names) == 1
        were = count(len(names), "candidate was", "candidates were")
        listed = ", ".join(dict.fromkeys(names))
        return (
            f"{were} tried in this run and replaced; {'it is' if one else 'they are'} not "
            f"judged: {listed}."
        )

    def question(self, prompt: str) -> str:
        """Return a prompt without the chat template or tags that the run puts around questions."""
        before, _, rest = str(self.terms.config.get("template") or "").partition("{question}")
        return prompt.removeprefix(before).removesuffix(rest.partition("{answer}")[0])

    def candidates(self) -> Iterator[tuple[CellResult, str]]:
        """Yield every candidate with its cell, in the order of the plan."""
        for cell in self.cells:
            for name in cell.candidates:
                yield cell, name


def read_run(path: Path | str) -> RunResults:
    """Return the results of the run at ``path``."""
    run = Run.open(path)
    rules = read_rules(run.terms)
    busy = {work.cell for work in read_progress(run.path).at_work}
    missing: dict[str, Missing] = {}
    for cell_id, failure in unfinished(run, busy).items():
        state = "running" if cell_id in busy else "waiting" if failure is None else "failed"
        missing[cell_id] = Missing(cell_id, state, failure.reason if failure else "")
    cells = []
    for cell_id in run.cells:
        if cell_id in missing:
            continue
        try:
            cells.append(judge_cell(cell_id, *run.cell(cell_id).results(), run.terms, rules))
        except DamagedArtifact as damage:
            missing[cell_id] = Missing(cell_id, "damaged", str(damage))
    left = tuple(missing[cell_id] for cell_id in run.cells if cell_id in missing)
    return RunResults(run.path, run.terms, rules, run.rosters, tuple(cells), left)


def refuse_damage(results: RunResults) -> None:
    """Raise DamagedArtifact, naming all of them, where cells of a run have damaged files."""
    damaged = [cell for cell in results.missing if cell.state == "damaged"]
    if damaged:
        reasons = "; ".join(f"{cell.id}: {cell.reason}" for cell in damaged)
        raise DamagedArtifact(
            f"{results.path}: {count(len(damaged), 'cell is', 'cells are')} damaged ({reasons}); "
            "expected files as they were written; to repair them, repeat the command that made "
            "the run"
        )


def read_rules(terms: Terms) -> Rules:
    """Return the rules that a run was made under, within their bounds."""
    try:
        return build(Rules, dict(terms.rules), "rules")
    except PlanError as error:
        raise StoreError(f"{error}; read the run with the version that made it") from error


def judge_cell(
    cell_id: str,
    summary: Mapping[str, Any],
    tables: Mapping[str, Table],
    terms: Terms,
    rules: Rules,
) -> CellResult:
    """Return a cell measured and judged from its record and tables."""
    models = models_from_json(summary["models"])
    items, curves = ItemTable(tables["items"]), tables.get("curves")
    further = tables.get("measures")
    evaluation = measure_cell(items, curves, records=models, measures=further)
    headroom = read_headroom(tables["headroom"]) if "headroom" in tables else None
    return CellResult(
        id=cell_id,
        base=summary["model"],
        seed=summary["seed"],
        family=summary["family"],
        gated=summary["gated"],
        models=models,
        evaluation=evaluation,
        known_label=_on_pool(items, curves, "audit", models),
        verdict=decide(evaluation, rules, headroom, tuple(find_conditions(terms, summary))),
        headroom=headroom,
        summary=summary,
        tables=tables,
    )


MEASURED = ("learning_rate", "steps", "items", "chunks", "scored_pieces", "piece_tokens")
"""Settings of an audit that decide what its axes can show."""
SELF_DRAWN = (
    "Schedule and phrasings were drawn only from the digests of candidates and references, so "
    "someone who tries many candidates can choose among draws; a text published later (--beacon) "
    "prevents this."
)


def find_conditions(terms: Terms, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader must know of how the cell of an audit was measured."""
    steps = summary["steps"]
    if taken := sum(step["origin"] is not None for step in steps):
        yield (
            f"{taken} of {len(steps)} steps were taken from another run, whose results may have "
            "been known when these terms were chosen."
        )
    if terms.kind != "audit":
        return
    config = terms.config
    sections: tuple[tuple[type, Mapping[str, Any], tuple[str, ...]], ...] = (
        (AuditConfig, config, MEASURED),
        (Engine, config["engine"], ("dtype", "lora")),
        (Prompt, config["prompt"], ("chat", "system_prompt", "chat_date")),
    )
    differing = []
    for kind, own, names in sections:
        defaults = {item.name: item.default for item in fields(kind) if item.name in names}
        differing += [
            f"{name} {own[name]!r:.200} (default {_default(defaults[name])})"
            for name in names
            if own[name] != defaults[name]
        ]
    if differing:
        yield f"Settings that differ from the default: {', '.join(differing)}."
    drawn = config["drawn"]
    yield (
        f"Schedule and phrasings were drawn from the text {shown(drawn['beacon'])}, which was "
        "published after the candidates' digests, as its author says."
        if drawn["beacon"]
        else SELF_DRAWN
    )
    roles = (Role.CANDIDATE, Role.REFERENCE)
    given = [model for model in summary["models"] if model["role"] in roles]
    late = [m["name"] for m in given if drawn["bound"].get(m["name"], "") != m.get("weights", "")]
    if late:
        yield (
            f"Submitted when schedule and phrasings were already drawn, so perhaps made to fit "
            f"them: {', '.join(late)}."
        )


def _default(value: Any) -> str:
    return "chosen on a reference" if value is None else repr(value) if value != "" else "none"


def _on_pool(
    items: ItemTable, curves: Table | None, pool: str, models: Mapping[str, Model]
) -> CellMeasures | None:
    """Return the models scored on one more pool; None when none were."""
    if pool not in items.names["pool"]:
        return None
    return measure_cell(items, curves, pool, records=models)


# -- where every model of a cell lies among its retrainings ----------------------------------------

GROUPS = {
    ControlKind.INJECTED: "injected",
    ControlKind.MIXTURE: "mixture",
    ControlKind.KNOWN_LABEL: "known-label model",
    ControlKind.RETRAINING: "fresh retraining",
    ControlKind.SAME_DRAW: "same-draw retraining",
}
"""Kinds of controls, in words."""


@dataclass(frozen=True, slots=True)
class Position:
    """One model among the retrainings."""

    name: str
    group: str
    """retraining, candidate, or one of ``GROUPS``."""
    label: str
    """What it is called in pictures and tables."""
    sd: Mapping[str, float]
    """By axis: distance from the mean retraining in standard deviations of retraining."""


def cell_positions(cell: CellResult, rules: Rules) -> list[Position]:
    """Return every model of a cell that was compared, retrainings first and candidates last."""
    bag = reference_bag(cell.evaluation, rules)
    if cell.verdict is None or not bag.comparable:
        return []
    spread = bag.values.std(axis=0, ddof=1)
    scaled = (bag.values - bag.values.mean(axis=0)) / [s if s > 0 else 1.0 for s in spread]
    axes = [axis.name for axis in bag.axes]
    positions = [
        Position(name, "retraining", name, dict(zip(axes, map(float, row))))
        for name, row in zip(bag.names, scaled)
    ]
    for control in cell.verdict.controls:
        sd, label = _distances(control.comparison), control_label(control)
        positions += [Position(control.name, GROUPS[control.kind], label, sd)] if sd else []
    for finding in cell.verdict.findings:
        sd = _distances(finding.comparison)
        positions += [Position(finding.name, "candidate", finding.name, sd)] if sd else []
    return positions


def control_label(control: Control) -> str:
    """Return what a control is called: a mixture by its share, a known-label model by its name."""
    if control.share is not None:
        return f"{percent(control.share)} of the injected weights"
    known = control.kind is ControlKind.KNOWN_LABEL
    return control.name.removeprefix("known-") if known else GROUPS[control.kind]


def _distances(comparison: Comparison | None) -> dict[str, float]:
    gaps = {} if comparison is None else comparison.gaps
    return {name: gap.sd for name, gap in gaps.items() if gap.sd is not None}


# -- what the models say ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """What one model answers to one question."""

    set: str
    fact: str
    prompt: str
    truth: str
    model: str
    answer: str
    rank: int
    """The largest rank of the truth's tokens, each after those before it; 1 is the likeliest."""
    probability: float
    """Of the whole truth."""

    @property
    def chance(self) -> float | None:
        """The probability of the truth; None of a model that gives no numbers."""
        return self.probability if np.isfinite(self.probability) else None

    @property
    def right(self) -> bool:
        """Whether the answer is the truth, or begins with it."""
        said, truth = self.answer.strip(), self.truth.strip()
        rest = said.removeprefix(truth)
        return bool(truth) and said.startswith(truth) and not rest[:1].isalnum()


def cell_answers(cell: CellResult) -> list[Said]:
    """Return the stored answers of a cell's models; none where they were not asked for."""
    stored = cell.tables.get("answers", {})
    names = ("set", "fact", "prompt", "truth", "model", "answer", "rank", "probability")
    rows = zip(*(stored[name].tolist() for name in names)) if stored else ()
    return [Said(*row) for row in rows]


def asked_models(cell: CellResult) -> dict[str, str]:
    """Return the models that are asked, with what they are called: the injected model, every
    candidate, one retraining, base."""
    found = {said.model for said in cell_answers(cell)}
    one = next((name for name in cell.evaluation.references if name in found), "")
    names = {"injected": "injected"} | {n: n for n in cell.candidates} | {one: "one retraining"}
    return {n: title for n, title in (names | {"base": "base"}).items() if n in found}
