"""Choices made after submission: what is drawn from a value that nobody knew beforehand.

A model can be trained to follow the references' relearning curve on a schedule that is known. So
the schedule (order, rate, optimizer), the held-out phrasings that are used and the generated probes
can be drawn from a *beacon*: a text that became known only after the candidates were handed in,
such as the hash of a later block or a draw of a public lottery.

    value = SHA-256(canonical JSON of the beacon's text and what it is bound to)

In an audit it is bound to the digests of the candidates' weights, so that another candidate has
another draw: whoever knows the text can still try many candidates, whoever does not cannot. In a
study it is bound to the cell alone, because the text is in the plan before any candidate exists;
there it is the package that hands neither text nor draw to methods and adversaries. Every model of
a cell or an audit is measured by the same draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palimpsest.run.files import canonical, digest

Optimizer = Literal["momentum", "descent"]
OPTIMIZERS: tuple[Optimizer, ...] = ("momentum", "descent")
"""Gradient descent with and without memory. Not the published AdamW: in trials another order, rate
or memory of AdamW did not give the curve mimic away, another kind of step mostly did; see
``dev/log/``."""


@dataclass(frozen=True)
class Beacon:
    """What was drawn from a beacon."""

    text: str
    bound: Mapping[str, str]
    """Digests, or the cell, that the draw depends on beside the text."""

    @property
    def value(self) -> str:
        """The value that everything is drawn from."""
        return digest(canonical({"beacon": self.text, "bound": dict(self.bound)}))

    @property
    def rate(self) -> float:
        """Factor of the learning rate of re-acquisition, from 1 to 2."""
        return float(2.0 ** (self._number("rate") / 2**64))

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of re-acquisition."""
        return OPTIMIZERS[self._number("optimizer") % len(OPTIMIZERS)]

    def key(self, what: str) -> str:
        """Return the seed key of the order of re-acquisition or of the probes."""
        return f"{self.value}/{what}"

    def phrasings(self, numbers: Sequence[int]) -> frozenset[int]:
        """Return the held-out phrasings that are used: half of them, rounded up."""
        several = sorted(set(numbers), key=lambda number: self._number(f"phrasing/{number}"))
        return frozenset(several[: (len(several) + 1) // 2])

    def record(self) -> dict[str, Any]:
        """Return what a run records of it: what it is bound to, the text, and what follows."""
        return {
            "bound": dict(self.bound),
            "beacon": self.text,
            "value": self.value,
            "rate": self.rate,
            "optimizer": self.optimizer,
        }

    def _number(self, what: str) -> int:
        return int(digest(self.key(what).encode()).removeprefix("sha256:")[:16], 16)
