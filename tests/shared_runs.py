"""Finished runs that many tests read: each is made once per test run, whichever process asks first.

Tests must not change them; one that does takes a copy.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from palimpsest.config.load import changed
from palimpsest.config.plan import Plan
from palimpsest.config.presets import preset

TINY = {
    "name": "tiny",
    "facts": {"forget": 2, "retain": 2, "probes": 12, "phrasings": 1},
    "injection": {"steps": 12, "learning_rate": 1.5e-4, "fact_items": 2, "general_items": 2},
    "unlearning": {"steps": 6, "learning_rate": 1.5e-4, "ascent_learning_rate": 3.75e-5},
    "reacquisition": {"steps": 5, "learning_rate": 1.5e-4, "items": 2},
    "general": {"train_pieces": 40, "scored_pieces": 6},
    "methods": [{"name": "kl_reversion", "weight": [3.0, 50.0]}, {"name": "task_vector"}],
    "known_label": ["suppression", "router", "interpolation-50"],
    "replication": {"draws": 5, "retrainings": 1},
}


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` filled, once for all processes of a test run."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # every worker has a folder of its own below it
    folder, mark = root / name, root / f"{name}.made"
    with FileLock(root / f"{name}.lock"):
        if not mark.exists():
            make(folder)
            mark.touch()
    return folder


def tiny_plan() -> Plan:
    """Return a real study of one cell that takes seconds: too short to certify anything."""
    return changed(preset("demo"), TINY)


def make_study(out: Path) -> None:
    """Run the tiny study and write its report."""
    import palimpsest
    from palimpsest.paper.tables import paper_section
    from palimpsest.report.page import write_report

    results = palimpsest.study(tiny_plan(), out)
    write_report(results, paper_section(results))


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory):
    """The run folder of the finished tiny study, with its report."""
    return made_once(tmp_path_factory, "tiny-study", make_study)


def make_audit(folder: Path, source: Path) -> None:
    """Audit tiny models that truly learned their facts, by default rules and five references."""
    import palimpsest
    from palimpsest.report.page import write_report
    from tests.audit.audit_models import audit_values, make_models, write_facts

    facts = write_facts(folder / "facts")
    make_models(source, folder / "models", facts)
    results = palimpsest.audit(**audit_values(folder), out=folder / "run").results
    assert results is not None
    write_report(results)


@pytest.fixture(scope="session")
def tiny_audit(tmp_path_factory, tiny_checkpoint):
    """The run folder of the finished tiny audit; facts/ and models/ lie beside it."""
    source = tiny_checkpoint("qwen2-s")
    made = made_once(tmp_path_factory, "tiny-audit", lambda out: make_audit(out, source))
    return made / "run"
