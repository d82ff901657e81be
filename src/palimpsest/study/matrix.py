"""A study: the run folder of a plan, and each of its cells as one call.

``start`` fixes plan, rules, seal and inputs before anything is trained, or resumes a run made under
the same terms. ``run_cell`` is all that an executor needs to know.
"""

import hashlib
from pathlib import Path

from palimpsest.errors import DriftError, PlanError, SealError
from palimpsest.facts.sealed import AuditPool, Commitment, builtin_pool, open_file, seal
from palimpsest.facts.templates import POOLS, check_pools
from palimpsest.models.families import POCKET, family_of
from palimpsest.plan import CellPlan, Plan, check, plan_from_dict
from palimpsest.run.store import Run, canonical, digest, environment, file_digest
from palimpsest.study.cell import CellRun, Progress


def silent(label: str, done: int, total: int) -> None:
    """Tell nobody."""


def start(plan: Plan, out: Path, *, fork: bool = False) -> Run:
    """Give the run folder of a plan, created or resumed; every check comes before any training."""
    from palimpsest.methods import candidates
    from palimpsest.study.setting import make_setting

    check(plan)
    check_pools(POOLS)
    candidates(plan.methods)
    for cell in plan.cells():
        make_setting(cell, None)
    return Run.create_or_resume(
        out,
        plan.as_dict(),
        plan.as_dict()["rules"],
        environment(inputs(plan)),
        {"commitment": str(commitment(plan)), "pool": "own" if plan.seal else "built-in"},
        cells=[cell.id for cell in plan.cells()],
        fork=fork,
    )


def run_cell(
    run_path: Path | str,
    cell_id: str,
    *,
    pool_file: Path | str | None = None,
    progress: Progress = silent,
) -> None:
    """Do what is left of one cell; on an error the reason is kept with the cell and raised."""
    from palimpsest.models.train import repeatable

    run = Run.open(run_path)
    plan = plan_from_dict(run.plan)
    cell = next(cell for cell in plan.cells() if cell.id == cell_id)
    repeatable(plan.engine.device)
    store = run.cell(cell_id)
    with store.claim() as claimed:
        if claimed.finished():
            return
        try:
            _check_model(run, cell)
            CellRun(
                cell,
                claimed,
                draws=draws(cell),
                progress=progress,
                audit_pool=audit_pool(plan, pool_file),
                commitment=commitment(plan),
            ).run()
        except Exception as error:
            claimed.fail(f"{type(error).__name__}: {error}")
            raise


def _check_model(run: Run, cell: CellPlan) -> None:
    """Refuse a model that is another one than when the run began, or on another machine."""
    fixed = run.environment.get("inputs", {}).get(cell.model)
    found = source_digest(dict(cell.plan.local_models).get(cell.model, cell.model))
    if fixed not in (None, found):
        raise DriftError(
            f"inputs.{cell.model}: the run has {fixed}, found {found}; expected the model the run "
            "was begun with; put it back, or start a new run from here with --fork"
        )


def draws(cell: CellPlan) -> int:
    """Give how many independent references the cell has: several where noise is measured."""
    plan = cell.plan
    if plan.replication.cells == "none":
        return 1
    if plan.replication.cells == "every":
        return plan.replication.draws
    first = next(other for other in plan.cells() if model_family(other) == model_family(cell))
    return plan.replication.draws if first.id == cell.id else 1


def model_family(cell: CellPlan) -> str:
    """Give the family of a cell's model, read from its config and never from its weights."""
    known = {spec.name: spec.family for spec in POCKET}
    if cell.model in known:
        return known[cell.model]
    from palimpsest.models.load import load_config

    local = dict(cell.plan.local_models).get(cell.model, cell.model)
    return family_of(load_config(local).model_type)


def commitment(plan: Plan) -> Commitment:
    """Give the seal of the run: the user's, or the built-in pool under a nonce of the plan's own.

    The built-in pool is public, so its nonce hides nothing; deriving it keeps runs reproducible.
    """
    if plan.seal:
        return Commitment.parse(plan.seal)
    nonce = hashlib.sha256(f"audit pool of {plan.hash()}".encode()).hexdigest()[:32]
    return seal(builtin_pool(), nonce)


def audit_pool(plan: Plan, pool_file: Path | str | None) -> AuditPool | None:
    """Give the pool the panel is scored on, checked against the seal."""
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
    """Give the digest of every model and text that goes in."""
    local = dict(plan.local_models)
    found = {name: source_digest(local.get(name, name)) for name in plan.models}
    if plan.general.source != "pocket":
        try:
            text = Path(plan.general.source).read_bytes()
        except (OSError, ValueError) as error:
            raise PlanError(
                f"general.source: {plan.general.source} cannot be read ({error}); "
                "give the path of a plain-text file, or 'pocket'"
            ) from error
        found["general text"] = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return found


def source_digest(name: str) -> str:
    """Give the digest of a checkpoint's files as they lie on disk; for the hub, its commit."""
    from palimpsest.models import hub
    from palimpsest.models.gguf import smollm2_folder
    from palimpsest.models.load import resolve

    source = resolve(name)
    path = smollm2_folder()[0] if source.kind == "smollm2" else source.path
    if path is None:
        return f"{source.kind}:{name}@{hub.snapshot(name, None, weights=False)[1]}"
    files = [path] if path.is_file() else sorted(path.iterdir())
    return digest(canonical({file.name: file_digest(file) for file in files if file.is_file()}))
