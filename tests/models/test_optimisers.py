"""The optimisers that a beacon may draw learn, and treat a stack as its members alone."""

import pytest
import torch

from palimpsest.criteria import beacon
from palimpsest.models.optimisers import LENGTH, OPTIMISERS


def test_every_optimiser_of_a_beacon_exists() -> None:
    assert tuple(OPTIMISERS) == ("adamw", *beacon.OPTIMISERS)


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_steps_are_about_as_long_as_the_rate_and_lead_downhill(name: str) -> None:
    torch.manual_seed(0)
    leaf = torch.randn(1, 20, 10, requires_grad=True)
    start = leaf.detach().clone()
    stepper = OPTIMISERS[name]([leaf], 1e-3)
    for number in range(20):
        leaf.grad = 2 * leaf.detach()
        stepper.step()
        if number == 0:
            length = float((leaf.detach() - start).norm()) / 200**0.5
            expected = 1e-3 if name == "adamw" else 1e-3 * LENGTH
            assert length == pytest.approx(expected, rel=0.01)
    assert float(leaf.detach().norm()) < float(start.norm())


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_a_member_of_a_stack_moves_as_if_it_were_alone(name: str) -> None:
    torch.manual_seed(0)
    members = torch.randn(3, 4, 5)
    grads = torch.randn(3, 4, 5)
    stacked = members.clone().requires_grad_()
    together = OPTIMISERS[name]([stacked], 1e-2, stack=3)
    stacked.grad = grads.clone()
    together.step()
    for member in range(3):
        leaf = members[member : member + 1].clone().requires_grad_()
        alone = OPTIMISERS[name]([leaf], 1e-2)
        leaf.grad = grads[member : member + 1].clone()
        alone.step()
        assert torch.allclose(leaf[0], stacked[member])
