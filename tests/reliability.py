"""What `make reliability` runs: the tests behind each point of docs/reliability.md, and a tally.

Tests marked slow run in `make test-all` only. PALIMPSEST_FULL=1 asks for the full counts of all of
them, PALIMPSEST_SEED for another seed of kills and faults.
"""

import os
from collections import Counter

FULL = os.environ.get("PALIMPSEST_FULL") == "1"

# Beginnings of test ids below tests/, by point.
POINTS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "kill",
        (
            "kill/test_store_kill.py::test_a_",
            "kill/test_study_kill.py::test_a_",
            "run/test_local.py",
            "cell/test_cell.py::test_a_cell_stopped",
        ),
    ),
    2: (
        "disk",
        (
            "run/test_stored_files.py",
            "kill/test_study_kill.py::test_a_disk_full",
            "run/test_stored_cell.py::test_a_disk_",
            "run/test_stored_cell.py::test_a_cell_folder_deleted",
            "run/test_stored_cell.py::test_leftover",
            "run/test_store.py::test_an_interrupted_creation",
        ),
    ),
    3: (
        "concurrency",
        (
            "run/test_locks.py",
            "kill/test_store_kill.py::test_sixteen",
            "kill/test_store_kill.py::test_two_commands",
            "kill/test_study_kill.py::test_a_network_file_system",
        ),
    ),
    4: (
        "corruption",
        (
            "run/test_stored_cell.py::test_every_truncation",
            "run/test_stored_cell.py::test_a_damaged",
            "run/test_store.py::test_every_truncation",
            "certificate/test_tampering.py::test_every",
        ),
    ),
    5: (
        "drift",
        (
            "cell/test_drift.py::test_a_changed",
            "cell/test_drift.py::test_a_model_changed",
            "cell/test_drift.py::test_other_code",
            "cell/test_drift.py::test_another_commit",
            "audit/test_audit.py::test_an_input_changed",
            "run/test_store.py::test_drift",
            "run/test_store.py::test_a_cell_moved",
            "run/test_keys.py",
            "run/test_ray.py::test_a_node_without",
        ),
    ),
    6: (
        "determinism",
        (
            "kill/test_study_kill.py::test_the_number_and_kind",
            "cell/test_cell.py::test_two_workers",
            "run/test_local.py::test_inline_one_worker_and_three",
            "run/test_ray.py::test_ray_gives",
            "run/test_ray.py::test_a_node_killed",
        ),
    ),
    7: ("hostile models", ("hostile/test_hostile_models.py",)),
    8: (
        "hostile text",
        (
            "audit/test_audit_inputs.py",
            "hostile/test_hostile_text.py",
            "facts/test_names.py",
            "facts/test_files.py",
            "facts/test_general.py::test_what_is_no",
            "test_config.py",
            "test_yaml.py",
            "report/test_page.py",
        ),
    ),
    9: (
        "fuzz",
        ("certificate/test_fuzz_verify.py", "facts/test_fuzz_facts.py", "test_fuzz_plan.py"),
    ),
    10: (
        "sealing",
        (
            "certificate/test_tampering.py",
            "run/test_stored_cell.py::test_the_sealed_pool",
            "run/test_stored_cell.py::test_an_opening",
            "run/test_stored_cell.py::test_another_pool",
            "run/test_stored_cell.py::test_damaging_a_finished_cell",
            "facts/test_sealed.py",
        ),
    ),
    11: (
        "numbers",
        (
            "cell/test_drift.py::test_a_candidate_that_diverges",
            "cell/test_drift.py::test_an_injection_that_diverges",
            "models/test_train.py::test_a_member_that_diverges",
            "methods/test_running.py::test_divergence",
            "methods/test_running.py::test_one_member",
            "stats/test_ranktest.py::test_a_score_that_is_not_finite",
            "certificate/test_forged.py::test_scores_that_are_not_finite",
        ),
    ),
    12: ("supply chain", ("test_supply_chain.py",)),
}

_counts: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to what the summary of a run tells, such as 200 kills."""
    _counts[what] += number


def points(test_id: str) -> list[int]:
    """Return the points a test stands for, given its id below tests/."""
    return [n for n, (_, starts) in POINTS.items() if any(map(test_id.startswith, starts))]


def tallied() -> list[str]:
    """Return one line per count."""
    return [f"{number:>9,}  {what}" for what, number in sorted(_counts.items())]
