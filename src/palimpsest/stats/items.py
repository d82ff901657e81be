"""The columns of ``items.parquet`` as a table that answers two questions: the NLL of each fact in
a pool, and a score per token over a set of rows.

Text columns become integer codes once, so that a cell of fifteen thousand rows takes milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palimpsest.errors import ScoreError

Columns = Mapping[str, NDArray[np.generic]]
Values = NDArray[np.float64]

ITEM_COLUMNS = (
    "model",
    "stage",
    "set",
    "fact",
    "pool",
    "template",
    "nll_sum",
    "tokens",
    "kl_reference",
    "kl_injected",
)


@dataclass(frozen=True, slots=True)
class FactNlls:
    """NLL per (model, fact) of one set in one pool; rows without any score are absent."""

    facts: tuple[str, ...]
    by_model: dict[str, Values]

    def mean(self, name: str) -> float | None:
        values = self.by_model.get(name)
        return None if values is None else float(values.mean())


class ItemTable:
    """The item columns, with text turned into integer codes once."""

    def __init__(self, items: Columns) -> None:
        require_columns("items", items, ITEM_COLUMNS)
        self.codes: dict[str, NDArray[np.int64]] = {}
        self.names: dict[str, list[str]] = {}
        for column in ("model", "stage", "set", "fact", "pool"):
            self.codes[column], self.names[column] = _encode(items[column])
        self.template = np.asarray(items["template"], dtype=np.int64)
        self.tokens = np.asarray(items["tokens"], dtype=np.int64)
        self.values = {
            column: np.asarray(items[column], dtype=np.float64)
            for column in ("nll_sum", "kl_reference", "kl_injected")
        }
        self._refuse(~np.isfinite(self.values["nll_sum"]), "an NLL that is not finite")
        self._refuse(self.tokens < 1, "no scored token")
        self._refuse(self._repeated(), "two rows for the same stage, pool and template")

    def fact_nlls(self, which: str, pool: str) -> FactNlls:
        """Return the mean over templates of nll_sum / tokens, for each model that has the set in
        the pool."""
        rows = self._rows((which,), (pool,), "forward")
        if not len(rows):
            return FactNlls((), {})
        fact_codes = list(dict.fromkeys(self.codes["fact"][rows].tolist()))
        facts = tuple(self.names["fact"][code] for code in fact_codes)
        position = np.full(len(self.names["fact"]), -1)
        position[fact_codes] = np.arange(len(facts))

        # Sorted by model, then fact, then template, every model must show the same sequence:
        # a delta between averages over different templates would compare two pools.
        key = position[self.codes["fact"][rows]] * (self.template.max() + 1) + self.template[rows]
        order = np.lexsort((key, self.codes["model"][rows]))
        rows, key = rows[order], key[order]
        models = self.codes["model"][rows]
        cuts = np.flatnonzero(np.diff(models)) + 1
        groups = {int(models[part[0]]): part for part in np.split(np.arange(len(rows)), cuts)}
        base = self.names["model"].index("base") if "base" in self.names["model"] else -1
        anchor = base if base in groups else next(iter(groups))
        expected = key[groups[anchor]]
        fact = position[self.codes["fact"][rows]]
        nll = self.values["nll_sum"][rows] / self.tokens[rows]
        by_model = {}
        for code, part in groups.items():
            if not np.array_equal(key[part], expected):
                odd = int(np.setxor1d(key[part], expected)[0])
                short = anchor if odd in key[part] else code
                fact_index, template = divmod(odd, int(self.template.max() + 1))
                raise ScoreError(
                    f"model {self.names['model'][short]}, {which} fact {facts[fact_index]}: no "
                    f"score for template {template} of pool {pool}, which other models have; "
                    "score every model on the same facts and templates"
                )
            sums = np.bincount(fact[part], weights=nll[part], minlength=len(facts))
            by_model[self.names["model"][code]] = sums / np.bincount(fact[part])
        return FactNlls(facts, by_model)

    def rates(
        self, column: str, sets: tuple[str, ...], pools: tuple[str, ...], stage: str
    ) -> dict[str, float]:
        """Return the sum of ``column`` over sum of tokens per model; models where it was not
        measured are absent, and one measured in part is an error."""
        rows = self._rows(sets, pools, stage)
        values = self.values[column][rows]
        models = self.codes["model"][rows]
        count = len(self.names["model"])
        missing = np.isnan(values)
        total = np.bincount(models, minlength=count)
        absent = np.bincount(models[missing], minlength=count)
        partly = missing & (absent < total)[models]
        wrong = np.flatnonzero(partly | np.isinf(values))
        if len(wrong):
            row = rows[wrong[0]]
            raise ScoreError(
                f"model {self._name('model', row)}, fact {self._name('fact', row)}: {column} is "
                f"{self.values[column][row]} on pool {self._name('pool', row)}, stage {stage}; "
                "expected a finite number, as for the model's other facts"
            )
        sums = np.bincount(models, weights=np.where(missing, 0.0, values), minlength=count)
        tokens = np.bincount(models, weights=self.tokens[rows], minlength=count)
        return {
            self.names["model"][code]: float(sums[code] / tokens[code])
            for code in np.flatnonzero(total > absent).tolist()
        }

    def _rows(self, sets: tuple[str, ...], pools: tuple[str, ...], stage: str) -> NDArray[np.int64]:
        keep = self._is("stage", (stage,)) & self._is("set", sets) & self._is("pool", pools)
        return np.flatnonzero(keep)

    def _is(self, column: str, allowed: tuple[str, ...]) -> NDArray[np.bool_]:
        flags = np.array([name in allowed for name in self.names[column]], dtype=np.bool_)
        return flags[self.codes[column]]

    def _name(self, column: str, row: int) -> str:
        return self.names[column][int(self.codes[column][row])]

    def _repeated(self) -> NDArray[np.bool_]:
        key = np.zeros(len(self.template), dtype=np.int64)
        for column in ("model", "stage", "set", "fact", "pool"):
            key = key * len(self.names[column]) + self.codes[column]
        key = key * (int(self.template.max()) + 1) + self.template
        order = np.argsort(key, kind="stable")
        repeated = np.zeros(len(key), dtype=np.bool_)
        repeated[order[1:]] = key[order[1:]] == key[order[:-1]]
        return repeated

    def _refuse(self, wrong: NDArray[np.bool_], what: str) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            raise ScoreError(
                f"model {self._name('model', row)}, fact {self._name('fact', row)}: {what} "
                f"(pool {self._name('pool', row)}, stage {self._name('stage', row)}, template "
                f"{self.template[row]}); score it again or leave the model out"
            )


def _encode(column: NDArray[np.generic]) -> tuple[NDArray[np.int64], list[str]]:
    """Return integer codes in order of first appearance, and the names they stand for."""
    values = column.tolist()
    names = list(dict.fromkeys(values))
    codes = {name: code for code, name in enumerate(names)}
    return np.fromiter(map(codes.__getitem__, values), np.int64, len(values)), names


def require_columns(table: str, columns: Columns, expected: tuple[str, ...]) -> None:
    missing = [name for name in expected if name not in columns]
    if missing:
        raise ScoreError(f"{table} lack the columns {', '.join(missing)}")
    lengths = {len(columns[name]) for name in expected}
    if len(lengths) > 1:
        raise ScoreError(f"the columns of {table} differ in length: {sorted(lengths)}")
    if table == "items" and lengths == {0}:
        raise ScoreError("items are empty; there is nothing to measure")
