"""Named plans: the pocket matrix, small ones for trying, and the paper's nine checkpoints.

The pocket dose was set so that the injected model's median retain NLL is near 1 nat, before any
verdict was looked at, and is frozen here.
"""

from dataclasses import replace

from palimpsest.config.plan import Plan
from palimpsest.config.sections import (
    Engine,
    Facts,
    General,
    Injection,
    MethodGrid,
    Reacquisition,
    Replication,
    Unlearning,
)
from palimpsest.errors import PlanError
from palimpsest.models.sources import PAPER, POCKET
from palimpsest.text import shown

WEIGHTS = (3.0, 12.0, 50.0, 200.0)
KL_REVERSION = MethodGrid("kl_reversion", (("weight", WEIGHTS),))
GATE_MASK = MethodGrid("gate_mask", (("weight", WEIGHTS),))
TASK_VECTOR = MethodGrid("task_vector", (("coefficient", (0.5, 1.0, 1.5, 2.0)),))
ASCENT = MethodGrid("ga", (("weight", WEIGHTS),))
NPO = MethodGrid("npo", (("weight", WEIGHTS),))
PAPER_POOL = (KL_REVERSION, GATE_MASK, TASK_VECTOR, ASCENT, NPO)

VECTOR = ("start", ("facts_vector",))
REPLAY_POOL = (
    MethodGrid("replay", (VECTOR, ("share", (0.05, 0.1, 0.2)), ("coefficient", (0.9, 0.95, 1.0)))),
    MethodGrid("replay", (VECTOR, ("speed", (2.0,)), ("coefficient", (0.95, 1.0)))),
    MethodGrid("replay", (("start", ("task_vector",)), ("share", (0.2, 0.3, 0.5)))),
)
"""14 configurations of negation followed by replay, two of them from a vector of half the steps."""
HELD_POOL = (
    MethodGrid("held_vector", (("coefficient", (1.0,)), ("blend", (0.25,)))),
    MethodGrid("held_vector", (("coefficient", (0.98,)), ("blend", (0.35,)))),
    MethodGrid("held_vector", (("coefficient", (0.98,)), ("speed", (1,)))),
)
"""Two that cost less than half a retraining and one that costs less than a whole one."""
FEW_REPLAYS = (
    MethodGrid("replay", (VECTOR, ("share", (0.1, 0.2)))),
    MethodGrid("replay", (VECTOR, ("coefficient", (0.95,)), ("share", (0.2,)))),
)

POCKET_MATRIX = Plan(
    name="pocket",
    models=tuple(spec.name for spec in POCKET),
    injection=Injection(steps=150, learning_rate=1.5e-4),
    # The paper's ratio: ascent at a quarter of the injection rate.
    unlearning=Unlearning(learning_rate=1.5e-4, ascent_learning_rate=3.75e-5),
    reacquisition=Reacquisition(learning_rate=1.5e-4),
    methods=(*PAPER_POOL, *REPLAY_POOL),
)
# The defaults of the sections are the paper's steps, rates and items.
PAPER_MATRIX = Plan(
    name="paper",
    models=PAPER,
    general=General(source="wikitext-2.txt", train_pieces=2400),
    methods=PAPER_POOL,
    # Five are the fewest with which anything is certified; the exact test needs 19.
    replication=Replication(draws=5),
    engine=Engine(device="cuda", dtype="bfloat16", stack=1, batch_tokens=4096),
)
DEMO = replace(
    POCKET_MATRIX,
    name="demo",
    models=("pocket/qwen2-s",),
    seeds=(0,),
    methods=(*PAPER_POOL, *FEW_REPLAYS),
)

PRESETS = {
    "pocket": replace(
        POCKET_MATRIX,
        seeds=(10, 11, 12, 13, 14),
        methods=(*PAPER_POOL, *HELD_POOL, *REPLAY_POOL),
        replication=Replication(draws=20, retrainings=5),
        beacon="third edition",
    ),
    "pocket-small": replace(
        POCKET_MATRIX,
        name="pocket-small",
        models=("pocket/qwen2-s", "pocket/gpt2-s"),
        seeds=(0, 1),
    ),
    "demo": DEMO,
    # Whether a restoration that costs less than a retraining is certified: held vectors alone.
    "restoration": replace(
        POCKET_MATRIX,
        name="restoration",
        seeds=(20, 21, 22, 23, 24),
        methods=HELD_POOL,
        known_label=(),
        replication=Replication(draws=20, retrainings=2),
        beacon="restoration",
    ),
    "paper": PAPER_MATRIX,
    # TOFU's models are fine-tuned on its questions and nothing else; `facts tofu` writes the files.
    "tofu": Plan(
        name="tofu",
        models=("microsoft/phi-1_5",),
        seeds=(0,),
        injection=Injection(steps=90, fact_items=8, general_items=0),
        general=General(train_pieces=1),
        methods=PAPER_POOL,
        known_label=(),
        replication=Replication(draws=5),
        engine=Engine(stack=1),
    ),
    "breadth": replace(
        POCKET_MATRIX,
        name="breadth",
        seeds=(5,),
        facts=Facts(forget=16, retain=16, probes=64),
        methods=(*PAPER_POOL, *FEW_REPLAYS),
    ),
}


def preset(name: str) -> Plan:
    """Return a named plan."""
    if not isinstance(name, str) or name not in PRESETS:
        raise PlanError(f"expected one of {', '.join(PRESETS)}, got {shown(name)}", key="preset")
    return PRESETS[name]
