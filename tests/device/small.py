"""A small study and audit for the device tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.config.plan import Plan
from palimpsest.config.sections import Engine, Facts, MethodGrid
from tests.audit.audit_models import audit_values, make_models, write_facts
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
    make_models(base, root / "models", write_facts(root / "facts"), references=2, steps=10)
    candidates, rules = {"one": str(root / "models" / "retrained")}, {"control_shares": [0.1]}
    return audit_values(root, references=2, candidates=candidates, learning_rate=1e-4, rules=rules)
