"""The fixtures of Palimpsest's own tests; everything but the smoke test is slow."""

from pathlib import Path

import pytest
from tests.conftest import _no_network, byte_tokenizer, tiny_audit, tiny_checkpoint, tiny_study

__all__ = ["_no_network", "byte_tokenizer", "tiny_audit", "tiny_checkpoint", "tiny_study"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but ``test_smoke.py`` to ``make test-all``."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.path.name != "test_smoke.py":
            item.add_marker(pytest.mark.slow)
