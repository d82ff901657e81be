"""A small study and audit for the device tests."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.config.plan import Plan
from palimpsest.config.sections import Engine, Facts, MethodGrid
from tests.audit.audit_models import STEPS, learned, write_facts
from tests.cell.small import bare_plan
from tests.reliability import FULL

FAMILIES = ("qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s")
DTYPES = ("float32", "bfloat16")
PAIRS = [(family, dtype) for family in FAMILIES for dtype in DTYPES]
"""Every family in both dtypes, in a full run; by default two of them for each command."""
CELLS = PAIRS if FULL else [("qwen2-s", "bfloat16"), ("gpt2-s", "float32")]
AUDITS = PAIRS if FULL else [("smollm2-s", "bfloat16"), ("pythia-s", "float32")]


def device_plan(folder: Path, engine: Engine, methods: tuple[str, ...], **changes: Any) -> Plan:
    plan = bare_plan(folder, methods=tuple(MethodGrid(name) for name in methods), engine=engine)
    return replace(
        plan,
        facts=Facts(forget=2, retain=2, probes=2, phrasings=1),
        reacquisition=replace(plan.reacquisition, steps=1, chunks=1, items=1),
        **changes,
    )


def audit_files(base: Path, root: Path) -> dict[str, Any]:
    """Return an audit's arguments: tiny models that learned a little of the facts."""
    facts = write_facts(root / "facts")
    lines = Path(facts["forget"]).read_text().splitlines()
    retained = Path(facts["retain"]).read_text().splitlines()
    made = {"base": str(shutil.copytree(base, root / "base"))}
    for number, (name, texts) in enumerate(
        [("injected", [*lines, *retained])]
        + [(name, retained) for name in ("reference", "again", "candidate")]
    ):
        made[name] = str(learned(base, root / name, [text[:60] for text in texts], 2 + number))
    return {
        **facts,
        **STEPS,
        "base": made["base"],
        "injected": made["injected"],
        "references": [made["reference"], made["again"]],
        "candidates": {"candidate": made["candidate"]},
        "learning_rate": 1e-4,
        "rules": {"control_shares": [0.1]},
    }
