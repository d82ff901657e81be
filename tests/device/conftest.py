"""The pretend device, and tiny files and models to use on it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "audit"))


@pytest.fixture
def far() -> Iterator[str]:
    """The name of the device, which is there while the test runs."""
    from tests.device.pretend import pretend

    before = torch.are_deterministic_algorithms_enabled()
    with pretend() as device:
        yield str(device)
    torch.use_deterministic_algorithms(before)
