"""A small study and audit for the device tests."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit_models import STEPS, learned, write_facts

from palimpsest.config.plan import Counts, Engine, MethodGrid, Plan
from palimpsest.config.presets import preset
from palimpsest.engine.matrix import StudyJob, start
from palimpsest.run.executor import Outcome, executor
from palimpsest.run.store import Run
from tests.reliability import FULL

FAMILIES = ("qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s")
DTYPES = ("float32", "bfloat16")
PAIRS = [(family, dtype) for family in FAMILIES for dtype in DTYPES]
"""Every family in both dtypes, in a full run; by default two of them for each command."""
CELLS = PAIRS if FULL else [("qwen2-s", "bfloat16"), ("gpt2-s", "float32")]
AUDITS = PAIRS if FULL else [("smollm2-s", "bfloat16"), ("pythia-s", "float32")]


def small_plan(folder: Path, engine: Engine, methods: tuple[str, ...]) -> Plan:
    plan = preset("demo")
    return replace(
        plan,
        models=(str(folder),),
        facts=Counts(forget=2, retain=2, probes=2, phrasings=1),
        injection=replace(plan.injection, steps=2, fact_items=2, general_items=1),
        unlearning=replace(plan.unlearning, steps=2, forget_items=1, retain_items=1),
        round_trip=replace(plan.round_trip, steps=1, chunks=1, items=1),
        general=replace(plan.general, train_pieces=8, scored_pieces=1, piece_tokens=8),
        methods=tuple(MethodGrid(name) for name in methods),
        replication=replace(plan.replication, draws=1, retrainings=0),
        rules=replace(plan.rules, control_shares=(0.5,)),
        engine=engine,
    )


def run_study(plan: Plan, out: Path) -> tuple[Run, Outcome]:
    run = start(plan, out)
    return run, executor("inline").execute(StudyJob(run.path), out, run.cells, workers=1)


def audit_files(base: Path, root: Path) -> dict[str, Any]:
    """Return an audit's arguments: tiny models that learned a little of the facts."""
    facts = write_facts(root / "facts")
    lines = Path(facts["forget"]).read_text().splitlines()
    retained = Path(facts["retain"]).read_text().splitlines()
    made = {"base": str(shutil.copytree(base, root / "base"))}
    for number, (name, texts) in enumerate(
        [("injected", [*lines, *retained])]
        + [(name, retained) for name in ("reference", "again", "third", "candidate")]
    ):
        made[name] = str(learned(base, root / name, [text[:60] for text in texts], 2 + number))
    return {
        **facts,
        **STEPS,
        "base": made["base"],
        "injected": made["injected"],
        "references": [made["reference"], made["again"], made["third"]],
        "candidates": {"candidate": made["candidate"]},
        "round_trip": "all",
        "learning_rate": 1e-4,
    }
