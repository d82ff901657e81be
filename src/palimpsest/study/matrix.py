"""A study: the run folder of a plan, and the job that does its cells.

``start`` fixes plan, rules, seal and inputs before anything is trained, or resumes a run made under
the same terms. ``StudyJob`` is what an executor hands to its workers.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.cell.setting import make_setting
from palimpsest.cell.sources import source_digest
from palimpsest.cell.work import StudyWork
from palimpsest.challenge.registry import chosen
from palimpsest.errors import DriftError, PlanError, SealError, StudyFailed
from palimpsest.facts.files import as_jsonl, check_sets
from palimpsest.facts.sealed import AuditPool, Commitment, builtin_pool, open_file, seal
from palimpsest.methods import candidates
from palimpsest.methods.plugins import plugin_digests
from palimpsest.models.families import POCKET, family_of
from palimpsest.models.load import load_config
from palimpsest.plan import CellPlan, Plan, check, plan_from_dict
from palimpsest.run.executor import InlineExecutor, OnEvent, carry_out, silent
from palimpsest.run.graph import Job
from palimpsest.run.store import Run, digest, environment


@dataclass(frozen=True)
class StudyJob:
    """How a worker gets at the cells of a study; ``pool_file`` is a sealed pool of the user's."""

    run_path: Path
    pool_file: Path | None = None

    def cell(self, cell_id: str) -> StudyWork:
        """Return the work of one cell."""
        run = Run.open(self.run_path)
        plan = plan_from_dict(run.plan)
        cell = planned(plan, cell_id)
        check_inputs(plan, run.environment["inputs"])
        return StudyWork(
            cell,
            draws=draws(cell),
            retrainings=plan.replication.retrainings,
            inputs=run.environment["inputs"],
            pool=sealed_pool(plan, self.pool_file),
            commitment=commitment(plan),
        )


def start(plan: Plan, out: Path, *, fork: bool = False) -> Run:
    """Return the run folder of a plan, created or resumed; every check comes before training."""
    check_plan(plan)
    cells = [cell.id for cell in plan.cells()]
    return Run.create_or_resume(out, *terms(plan), cells=cells, fork=fork)


def check_plan(plan: Plan) -> None:
    """Raise for whatever can be known to be wrong before anything is trained."""
    check(plan)
    candidates(plan.methods)
    chosen(plan.panel.models)
    for cell in plan.cells():
        make_setting(cell, None)


def terms(plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """Return what a run fixes before it begins: plan, rules, environment and seal."""
    sealed = {"commitment": str(commitment(plan)), "pool": "own" if plan.seal else "built-in"}
    return plan.as_dict(), plan.as_dict()["rules"], environment(inputs(plan)), sealed


def run_cell(
    run_path: Path | str,
    cell_id: str,
    *,
    pool_file: Path | str | None = None,
    on_event: OnEvent = silent,
) -> None:
    """Do what is left of one cell in this process; StudyFailed if a step of it fails."""
    job = StudyJob(Path(run_path), None if pool_file is None else Path(pool_file))
    outcome = InlineExecutor().execute(job, run_path, [cell_id], on_event=on_event)
    for cell, failure in outcome.failed.items():
        raise StudyFailed(f"cell {cell}, step {failure.step}: {failure.reason}")


def run_study(
    plan: Plan, out: Path, *, pool: Path | None = None, fork: bool = False, **options: Any
) -> Run:
    """Run what is left of a study; further options are those of ``complete``."""
    run = start(plan, out, fork=fork)
    job = StudyJob(run.path.resolve(), None if pool is None else pool.resolve())
    return complete(run, job, "palimpsest study", **options)


def complete(run: Run, job: Job, command: str, **options: Any) -> Run:
    """Do what is left of a run; StudyFailed names the cells that did not finish.

    Further options are those of ``carry_out``.
    """
    failed = carry_out(job, run, command, **options).failed
    if failed:
        reasons = "; ".join(f"{cell}, {why.step}: {why.reason}" for cell, why in failed.items())
        raise StudyFailed(
            f"{len(failed)} of {len(run.cells)} cells failed ({reasons}); the others are kept; run "
            "the same command again to retry them"
        )
    return run


def planned(plan: Plan, cell_id: str) -> CellPlan:
    """Return the cell of this name."""
    return next(cell for cell in plan.cells() if cell.id == cell_id)


def draws(cell: CellPlan) -> int:
    """Return how many independent references the cell has: several where noise is measured."""
    plan = cell.plan
    if plan.replication.cells == "none":
        return 1
    if plan.replication.cells == "every":
        return plan.replication.draws
    first = next(other for other in plan.cells() if model_family(other) == model_family(cell))
    return plan.replication.draws if first.id == cell.id else 1


def model_family(cell: CellPlan) -> str:
    """Return the family of a cell's model, read from its config and never from its weights."""
    known = {spec.name: spec.family for spec in POCKET}
    if cell.model in known:
        return known[cell.model]
    local = dict(cell.plan.local_models).get(cell.model, cell.model)
    return family_of(load_config(local).model_type)


def commitment(plan: Plan) -> Commitment:
    """Return the seal of the run: the user's, or the built-in pool under a nonce of the plan's own.

    The built-in pool is public, so its nonce hides nothing; deriving it keeps runs reproducible.
    """
    if plan.seal:
        return Commitment.parse(plan.seal)
    nonce = hashlib.sha256(f"audit pool of {plan.hash()}".encode()).hexdigest()[:32]
    return seal(builtin_pool(), nonce)


def sealed_pool(plan: Plan, pool_file: Path | str | None) -> AuditPool | None:
    """Return the pool the panel is scored on, checked against the seal."""
    if not plan.panel.enabled:
        return None
    if not plan.seal:
        if pool_file is not None:
            raise PlanError(
                "a pool file was given, but the plan has no seal; put what `palimpsest seal` "
                "prints under the key 'seal' before the run begins"
            )
        return builtin_pool()
    if pool_file is None:
        raise SealError(
            "the plan seals a pool of your own; give its file with --pool to score the panel"
        )
    return open_file(pool_file, Commitment.parse(plan.seal))


def inputs(plan: Plan) -> dict[str, str]:
    """Return the digest of every model, text and plug-in that goes in."""
    local = dict(plan.local_models)
    digests = {name: source_digest(local.get(name, name)) for name in plan.models}
    digests |= _own(plan)
    if plan.general.source != "pocket":
        try:
            text = Path(plan.general.source).read_bytes()
        except (OSError, ValueError) as error:
            raise PlanError(
                f"general.source: {plan.general.source} cannot be read ({error}); "
                "give the path of a plain-text file, or 'pocket'"
            ) from error
        digests["general text"] = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return digests


def _own(plan: Plan) -> dict[str, str]:
    """Return the digests of what a worker reads for itself: plug-ins and fact files."""
    digests = plugin_digests(plan.methods)
    sets = check_sets(dict(plan.facts.files))
    return digests | {f"{name} facts": digest(as_jsonl(facts)) for name, facts in sets.items()}


def check_inputs(plan: Plan, recorded: Mapping[str, str]) -> None:
    """Refuse a plug-in or facts file that is another here than when the run began."""
    for key, found in _own(plan).items():
        if recorded.get(key, found) != found:
            raise DriftError(
                f"inputs.{key}: the run has {recorded[key]}, found {found}; expected what the run "
                "was started with; put it on this machine, or start a new run with --fork"
            )
