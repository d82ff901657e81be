"""What `make reliability` runs: the files of tests behind each point of docs/reliability.md.

Tests marked slow run in `make test-all` only. PALIMPSEST_FULL=1 asks for the full counts of all of
them, PALIMPSEST_SEED for another seed of kills and faults.
"""

import os
from collections import Counter

FULL = os.environ.get("PALIMPSEST_FULL") == "1"

POINTS = {
    "kill": "kill/test_store_kill.py kill/test_study_kill.py run/test_local.py cell/test_cell.py",
    "disk": "run/test_stored_files.py run/test_stored_cell.py kill/test_study_kill.py",
    "concurrency": "run/test_locks.py kill/test_store_kill.py kill/test_study_kill.py",
    "corruption": "run/test_stored_cell.py run/test_store.py certificate/test_tampering.py",
    "drift": "cell/test_drift.py run/test_store.py run/test_keys.py run/test_ray.py",
    "determinism": "kill/test_study_kill.py cell/test_cell.py run/test_local.py run/test_ray.py",
    "hostile models": "hostile/test_hostile_models.py",
    "hostile text": "hostile/test_hostile_text.py facts/test_names.py facts/test_files.py "
    "facts/test_general.py audit/test_audit_inputs.py report/test_page.py test_yaml.py",
    "fuzz": "certificate/test_fuzz_verify.py facts/test_fuzz_facts.py test_fuzz_plan.py",
    "sealing": "certificate/test_forged.py run/test_stored_cell.py facts/test_sealed.py",
    "numbers": "cell/test_drift.py models/test_train.py methods/test_running.py "
    "stats/test_ranktest.py certificate/test_forged.py",
    "supply chain": "test_supply_chain.py",
}
"""Files below tests/ by point, in the order of the page."""

_counts: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to what the summary of a run tells, such as 200 kills."""
    _counts[what] += number


def points(file: str) -> list[str]:
    """Return the points that a file below tests/ stands for."""
    return [point for point, files in POINTS.items() if file in files.split()]


def tallied() -> list[str]:
    """Return one line per count."""
    return [f"{number:>9,}  {what}" for what, number in sorted(_counts.items())]
