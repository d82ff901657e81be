"""Hiding below the quantum: weights whose 4-bit rounding is that of the injected model, exactly.

Projected descent: after every step each weight is put back into the interval that rounds to the
injected weight's 4-bit value; the largest weight of a group, which sets the scale, and all vectors
stay as they are. Loaded in 4 bits, the model is the injected model. Egashira et al. 2024,
*Exploiting LLM Quantization*, arXiv:2405.18137; why unlearning is prone to it: Zhang et al. 2024,
arXiv:2410.16454.
"""

from palimpsest.adversaries.registry import Knows, Net, State, Tensor, Truth, Workshop, known_label

GROUP, LEVELS = 32, 7
"""Weights of a row that share a scale; whole steps from zero to the largest of them."""
INSIDE = 0.49
"""Farthest from a 4-bit value, in steps, that a weight may lie; at 0.5 it rounds to the next."""


@known_label(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def sub_quantum(workshop: Workshop) -> State:
    """Return a model that follows the reference and equals the injected model in 4 bits."""
    boxes: dict[str, tuple[Tensor, Tensor]] = {}
    axes = 3 if workshop.nets.stacked else 2  # a stack axis comes first

    def leaves(net: Net) -> State:
        chosen = {name: value for name, value in net.params.items() if value.dim() == axes}
        for name, value in net.params.items():
            value.requires_grad_(name in chosen)
        boxes.update({name: _bounds(value.detach()) for name, value in chosen.items()})
        return chosen

    def project(net: Net) -> None:
        for name, (low, high) in boxes.items():
            net.params[name].data.clamp_(low, high)

    start, goals = workshop.state("injected"), workshop.suppressing("reference")
    return workshop.follow("sub-quantum", start, goals, leaves=leaves, after_step=project)


def _bounds(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest values that leave each weight's 4-bit value as it is."""
    from torch.nn import functional

    padded = functional.pad(value, (0, -value.shape[-1] % GROUP))
    groups = padded.reshape(*value.shape[:-1], -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    scale = largest.clamp(min=1e-12) / LEVELS
    codes = (groups / scale).round()
    low = ((codes - INSIDE) * scale).maximum(-LEVELS * scale)
    high = ((codes + INSIDE) * scale).minimum(LEVELS * scale)
    # A weight that lies outside by itself stays where it is, as does the one that sets the scale.
    still = (groups.abs() == largest) | (groups < low) | (groups > high)
    low, high = (
        groups.where(still, border).flatten(-2)[..., : value.shape[-1]] for border in (low, high)
    )
    return low, high
