"""Plans from strangers: a plan or a PlanError of bounded length, never anything else.

PALIMPSEST_FULL=1 tries 14 000 of them.
"""

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from palimpsest.config.load import as_dict, load_config
from palimpsest.config.plan import Plan
from palimpsest.config.presets import preset
from palimpsest.errors import PlanError
from tests.mutation import EDITS, counted, edited, places, replaced
from tests.reliability import count

SMALL = as_dict(preset("pocket-small"))
TEXT = b"""\
preset: pocket-small
name: mine
models: [pocket/qwen2-s, pocket/gpt2-s]
seeds: [0, 1, 7]
facts: {forget: 4, retain: 4, probes: 16}
injection: {steps: 150, learning_rate: 1.0e-3}
methods:
- {name: kl_reversion, weight: [3.0, 12.0]}
- name: task_vector
rules: {alpha: 0.05}
seal: ""
"""
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [10**400, -(10**400), 2**63, "1e999", "nan", "-inf", "\0", "\x1b[31m", "../x"]
    )
    | st.floats()
    | st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


PLACES = [path for path in places(SMALL) if path]


def plan_from_dict(values: Any) -> Plan:
    return load_config(Plan, values)


def plan_from_yaml(path: Path) -> Plan:
    return load_config(Plan, {}, path)


def answered(read: Any, given: Any) -> None:
    """A plan that survives the trip through plain values, or a PlanError of a few lines."""
    count("fuzzed inputs of the plan parser")
    plan, said = None, ""
    try:
        plan = read(given)
    except PlanError as error:
        said = str(error)
    assert 0 < len(said) < 4_000 if plan is None else not said
    if plan is not None:
        assert plan_from_dict(json.loads(json.dumps(as_dict(plan)))) == plan


@counted(8_000, 200)
@given(st.sampled_from(PLACES), VALUES)
@example(("injection", "learning_rate"), 10**400)
@example(("methods", 4, "weight"), float("inf"))
@example(("name",), "\ud800")
@example(("methods", 4), {"name": "npo", "\ud800": 1})
def test_any_value_at_any_place_gives_a_plan_or_a_plan_error(path, new):
    answered(plan_from_dict, replaced(SMALL, path, new))


@counted(6_000, 100)
@given(EDITS)
def test_any_edit_of_a_plan_gives_a_plan_or_a_plan_error(tmp_path, changes):
    path = tmp_path / "plan.yaml"
    path.write_bytes(edited(TEXT, changes))
    answered(plan_from_yaml, path)
