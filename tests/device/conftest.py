"""The pretend device."""

import pytest
import torch


@pytest.fixture
def far():
    """The name of the device, which is there while the test runs."""
    from tests.device.pretend import pretend

    before = torch.are_deterministic_algorithms_enabled()
    with pretend() as device:
        yield str(device)
    torch.use_deterministic_algorithms(before)
