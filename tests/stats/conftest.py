"""Made-up cells, in the columns of items.parquet and curves.parquet."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from palimpsest.stats.models import Model, Role

Table = dict[str, np.ndarray]


@dataclass
class Made:
    """What a made-up model scores; anything left out is not measured."""

    forget: list[float]
    probe: list[float]
    retain: float | None = 1.0
    general: float | None = 2.0
    oracle_kl: float | None = None
    residual: tuple[float, float] | None = None
    falls: list[float] | None = field(default=None)
    """Held-out forget NLL per chunk of the re-acquisition log."""


def records_of(names: Iterable[str]) -> dict[str, Model]:
    """What made-up models are, from the names that tests give them."""
    records: dict[str, Model] = {}
    for name in names:
        kind, _, number = name.partition("-")
        if kind == "reference":
            records[name] = Model(name, Role.REFERENCE, seed_no=int(number or 0))
        else:
            role = Role(name) if name in ("base", "injected") else Role.CANDIDATE
            records[name] = Model(name, role)
    return records


def tables(
    models: Mapping[str, Made], pool: str = "evaluation", templates: int = 2
) -> tuple[Table, Table]:
    rows: list[tuple] = []
    curves: list[tuple] = []

    def row(model, stage, which, fact, where, template, nll, tokens=2, reference=np.nan, kl=np.nan):
        scores = (nll * tokens, tokens, reference * tokens, kl * tokens)
        rows.append((model, stage, which, fact, where, template, *scores))

    for name, made in models.items():
        for which, values in (("forget", made.forget), ("probe", made.probe)):
            for index, nll in enumerate(values):
                for template in range(templates):
                    wobble = 0.25 * (template - (templates - 1) / 2)  # cancels in the mean
                    row(name, "forward", which, f"{which[0]}{index}", pool, template, nll + wobble)
        kl = np.nan if made.oracle_kl is None else made.oracle_kl
        row(name, "forward", "forget", "f0", "trained", 0, 1.0, reference=kl)
        if made.retain is not None:
            for index in range(3):
                row(name, "forward", "retain", f"r{index}", "cloze", 0, made.retain, reference=kl)
        if made.general is not None:
            row(name, "forward", "general", "g0", "general", 0, made.general, tokens=9)
        if made.residual is not None:
            retain, general = made.residual
            row(name, "reacquired", "retain", "r0", "cloze", 0, 1.0, kl=retain)
            row(name, "reacquired", "general", "g0", "general", 0, 1.0, tokens=9, kl=general)
        for chunk, nll in enumerate(made.falls or ()):
            curves.append((name, chunk, 3 * chunk, nll, nll, 1.0, 0.1, 0.1))

    text = ("model", "stage", "set", "fact", "pool")
    names = (*text, "template", "nll_sum", "tokens", "kl_reference", "kl_injected")
    items = {
        column: np.array(values, dtype=object if column in text else None)
        for column, values in zip(names, zip(*rows))
    }
    names = ("model", "chunk", "step", "forget_trained_nll", "forget_heldout_nll", "retain_nll")
    names += ("residual_retain", "residual_general")
    columns = list(zip(*curves)) or [()] * len(names)
    log = {
        column: np.array(values, dtype=object if column == "model" else None)
        for column, values in zip(names, columns)
    }
    return items, log


@pytest.fixture
def make_tables() -> Callable[..., tuple[Table, Table]]:
    return tables


@pytest.fixture
def made() -> type[Made]:
    return Made


@pytest.fixture
def make_records() -> Callable[[Iterable[str]], dict[str, Model]]:
    return records_of
