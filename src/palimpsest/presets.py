"""Named plans: the pocket matrix, small ones for trying, and the paper's nine checkpoints.

The pocket dose was set so that the injected model's median retain NLL is near 1 nat, before any
verdict was looked at, and is frozen here.
"""

from dataclasses import replace

from palimpsest.criteria.rules import Rules
from palimpsest.errors import PlanError
from palimpsest.models.families import PAPER, POCKET
from palimpsest.plan import (
    KNOWN_LABEL_MODELS,
    Counts,
    Engine,
    General,
    Injection,
    MethodGrid,
    Panel,
    Plan,
    Replication,
    RoundTrip,
    Unlearning,
    check,
)

WEIGHTS = (3.0, 12.0, 50.0, 200.0)
PAPER_POOL = (
    MethodGrid("kl_reversion", (("weight", WEIGHTS),)),
    MethodGrid("gate_mask", (("weight", WEIGHTS),)),
    MethodGrid("task_vector", (("coefficient", (0.5, 1.0, 1.5, 2.0)),)),
    MethodGrid("ga", (("weight", WEIGHTS),)),
    MethodGrid("npo", (("weight", WEIGHTS),)),
)

VECTOR = ("start", ("facts_vector",))
REPLAY_POOL = (
    MethodGrid("replay", (VECTOR, ("share", (0.05, 0.1, 0.2)), ("coefficient", (0.9, 0.95, 1.0)))),
    MethodGrid("replay", (VECTOR, ("speed", (2.0,)), ("coefficient", (0.95, 1.0)))),
    MethodGrid("replay", (("start", ("task_vector",)), ("share", (0.2, 0.3, 0.5)))),
)
"""14 configurations of negation followed by replay, two of them from a vector of half the steps."""
FEW_REPLAYS = (
    MethodGrid("replay", (VECTOR, ("share", (0.1, 0.2)))),
    MethodGrid("replay", (VECTOR, ("coefficient", (0.95,)), ("share", (0.2,)))),
)

SMALL_POOL = (
    MethodGrid("replay", (VECTOR, ("coefficient", (0.95,)), ("share", (0.05, 0.1, 0.2)))),
    MethodGrid("replay", (VECTOR, ("coefficient", (1.0,)), ("share", (0.1,)))),
    MethodGrid("kl_reversion", (("weight", (3.0,)),)),
    MethodGrid("gate_mask", (("weight", (50.0,)),)),
    MethodGrid("task_vector", (("coefficient", (1.0,)),)),
    MethodGrid("ga", (("weight", (50.0,)),)),
    MethodGrid("npo", (("weight", (50.0,)),)),
)

FAIR_SWEEP = (
    MethodGrid("ga", (("rate", (0.25, 0.5, 1.0, 2.0)), ("weight", WEIGHTS))),
    MethodGrid("npo", (("rate", (0.5, 1.0)), ("beta", (0.1, 0.5)), ("weight", WEIGHTS))),
)
"""32 configurations that give ascent and NPO every chance: rate × β × retain weight."""

MATRIX_PANEL = (
    *KNOWN_LABEL_MODELS[:6],
    *("tuned-suppression", "low-rank", "fuzzy-router", "tamper-resistant", "curve-mimic"),
    *("full-mimic", "rescaled-suppressed", "one-fact-left", "trigger", "sub-quantum"),
)
"""The paper's, and the adversaries that the trial of criteria showed to matter."""

POCKET_MATRIX = Plan(
    name="pocket",
    models=tuple(spec.name for spec in POCKET),
    injection=Injection(steps=150, learning_rate=1.5e-4),
    # The paper's ratio: ascent at a quarter of the injection rate.
    unlearning=Unlearning(learning_rate=1.5e-4, ascent_learning_rate=3.75e-5),
    round_trip=RoundTrip(learning_rate=1.5e-4),
    methods=(*PAPER_POOL, *REPLAY_POOL),
)
# The defaults of ``plan.py`` are the paper's steps, rates and items.
PAPER_MATRIX = Plan(
    name="paper",
    models=tuple(checkpoint.id for checkpoint in PAPER),
    general=General(source="wikitext-2.txt", train_pieces=2400),
    methods=PAPER_POOL,
    # Five are the fewest with real power; the exact test would need 19.
    replication=Replication(draws=5),
    engine=Engine(device="cuda", dtype="bfloat16", stack=1, batch_tokens=4096),
)
DEMO = replace(
    POCKET_MATRIX,
    name="demo",
    models=("pocket/qwen2-s",),
    seeds=(0,),
    methods=(*PAPER_POOL, *FEW_REPLAYS),
    replication=Replication(draws=20),
)

PRESETS = {
    "pocket": replace(
        POCKET_MATRIX,
        seeds=(5, 6, 7, 8, 9),
        panel=Panel(models=MATRIX_PANEL),
        replication=Replication(draws=30, retrainings=5),
        beacon="second edition",
    ),
    "pocket-small": replace(
        POCKET_MATRIX,
        name="pocket-small",
        models=("pocket/qwen2-s", "pocket/gpt2-s"),
        seeds=(0, 1),
        replication=Replication(draws=20),
    ),
    "demo": DEMO,
    "smollm2": replace(
        PAPER_MATRIX,
        name="smollm2",
        models=("smollm2-135m",),
        seeds=(5,),
        # The paper's rate and 3:1 mix; few items and steps and a small pool, for two cores.
        injection=Injection(steps=100, fact_items=2, general_items=6),
        unlearning=Unlearning(steps=60, forget_items=2, retain_items=2),
        round_trip=RoundTrip(steps=30, items=2),
        methods=SMALL_POOL,
        panel=Panel(models=KNOWN_LABEL_MODELS[:3]),
        replication=Replication(draws=9, retrainings=2),
        engine=Engine(stack=1, batch_tokens=2048),
    ),
    "criteria": replace(
        POCKET_MATRIX,
        name="criteria",
        seeds=(100, 101, 102),
        methods=(),
        # Adversaries use the first reference and criteria the second; each of 20 has 19 others.
        replication=Replication(draws=22, retrainings=5),
        # The trial decided on the axis ``reversed``, and on the adversary that knows of it.
        panel=Panel(models=tuple(name for name in KNOWN_LABEL_MODELS if name != "full-mimic")),
        rules=Rules().without("reversed"),
        measures="all",
    ),
    "paper": PAPER_MATRIX,
    "fair-sweep": replace(
        DEMO, name="fair-sweep", seeds=(5, 6, 7), methods=(*FAIR_SWEEP, *PAPER_POOL[:3:2])
    ),
    "breadth": replace(
        POCKET_MATRIX,
        name="breadth",
        seeds=(5,),
        facts=Counts(forget=16, retain=16, probes=64),
        methods=(*PAPER_POOL, *FEW_REPLAYS),
        replication=Replication(draws=20),
    ),
}


def preset(name: str) -> Plan:
    """Return a named plan, checked."""
    if name not in PRESETS:
        raise PlanError(f"preset {name!r} is unknown; there are {', '.join(PRESETS)}")
    return check(PRESETS[name])
