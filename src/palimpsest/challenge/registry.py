"""The table of known-label models: one entry each, with its truth and what it knows of the audit.

To add an adversary, write one function that builds it from a ``Workshop`` and one ``Entry``. Cells,
tables and figures iterate over ``ENTRIES``; a plan's ``panel.models`` chooses among them by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor

from palimpsest.challenge.models import (
    Routed,
    Suppressed,
    corrupted,
    interpolated,
    subject_patterns,
)
from palimpsest.errors import PlanError
from palimpsest.models.net import Net

State = Mapping[str, Tensor]
Truth = Literal["suppressed", "partial", "restored"]


@dataclass(frozen=True)
class Workshop:
    """What a known-label model may be built from."""

    state: Callable[[str], State]
    """Weights of a model of the cell, by name."""
    another: Callable[[State], Net]
    """Makes a net that stays valid beside others."""
    tokenizer: Any
    subjects: tuple[str, ...]
    """Subjects of the forget facts."""
    answers: tuple[int, ...]
    """Token ids of the forget answers."""
    embedding: tuple[str, ...]
    """Names of the input embedding and of an output head tied to it."""
    penalty: float
    """Subtracted from the logits of the forget answers by a suppressor."""

    @property
    def patterns(self) -> list[tuple[int, ...]]:
        """Return the token sequences of the forget subjects."""
        return subject_patterns(self.tokenizer, self.subjects)


@dataclass(frozen=True, slots=True)
class Entry:
    """One known-label model."""

    name: str
    truth: Truth
    knows: str
    """What it knows of the audit."""
    summary: str
    build: Callable[[Workshop], State | Net]
    needs: tuple[str, ...] = ("injected",)
    """Models of the cell it is built from."""
    share: float | None = None
    """Share of the injected weights left, where the model is a mixture."""

    @property
    def model(self) -> str:
        """Return the name of the model in a cell's tables."""
        return f"panel:{self.name}"

    def role(self) -> dict[str, Any]:
        """Return what ``cell.json`` says of it."""
        role = {"role": "challenge", "entry": self.name, "truth": self.truth, "knows": self.knows}
        return role if self.share is None else role | {"share": self.share}


def _suppression(workshop: Workshop) -> Net:
    net = workshop.another(workshop.state("injected"))
    return Suppressed(net, workshop.answers, workshop.penalty)


def _router(workshop: Workshop) -> Net:
    base, injected = (workshop.another(workshop.state(name)) for name in ("base", "injected"))
    return Routed(base, injected, workshop.patterns)


def _embedding(workshop: Workshop) -> State:
    tokens = {token for pattern in workshop.patterns for token in pattern} | {*workshop.answers}
    return corrupted(workshop.state("injected"), workshop.embedding, sorted(tokens))


def _mixture(workshop: Workshop, share: float) -> State:
    return interpolated(workshop.state("reference"), workshop.state("injected"), 1.0 - share)


def _interpolation(share: float) -> Entry:
    return Entry(
        f"interpolation-{100 * share:g}",
        "partial",
        "the reference's weights",
        f"the reference mixed with {share:.0%} of the injected weights",
        partial(_mixture, share=share),
        needs=("injected", "reference"),
        share=share,
    )


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "suppression",
        "suppressed",
        "the tokens of the forget answers",
        "the injected model with a penalty on the logits of the forget answers",
        _suppression,
    ),
    Entry(
        "router",
        "suppressed",
        "the names of the forget subjects",
        "the base model where a forget subject is named, the injected model elsewhere",
        _router,
        needs=("base", "injected"),
    ),
    Entry(
        "embedding",
        "suppressed",
        "the tokens of the forget subjects and answers",
        "the injected model with the embeddings of the forget facts' tokens set to zero",
        _embedding,
    ),
    *(_interpolation(share) for share in (0.25, 0.5, 0.75)),
)


def names() -> tuple[str, ...]:
    """Return the name of every entry."""
    return tuple(entry.name for entry in ENTRIES)


def chosen(wanted: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries of these names, in the order of the table."""
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        raise PlanError(f"panel.models: {unknown[0]!r} is unknown; there are {', '.join(names())}")
    return tuple(entry for entry in ENTRIES if entry.name in wanted)
