"""Verdicts of a whole run from its score tables, read within bounds.

Tables come from strangers: their sizes are looked up before anything is read, and so is the work
that the exact tests would take. What is computed is what ``study.results`` computes for a run
folder, from the same functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from palimpsest.certificate.pages import outline
from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.items import ITEM_COLUMNS
from palimpsest.criteria.measures import CURVE_COLUMNS, CellMeasures, measure_cell
from palimpsest.criteria.ranktest import EXACT_PAIRS
from palimpsest.criteria.rules import Rules
from palimpsest.errors import BundleError
from palimpsest.run.store import Table, table_from_bytes
from palimpsest.study.replication import Draws, pool_tolerances, read_draws
from palimpsest.verdict import Verdict, decide

MAX_ROWS = 20_000_000
"""Rows of all tables together."""
MAX_TABLE_BYTES = 256 * 2**20
"""Bytes of one table once decompressed."""
MAX_MODELS = 1_000
MAX_DRAWS = 100
MAX_FACTS = 2_000
MAX_PAIRS = 2_000_000
"""Exact tests, counted by the pairs of facts they compare."""

MAX_RESAMPLED = 100_000_000
"""Numbers that a bootstrap draws."""

COLUMNS = {
    "items.parquet": ITEM_COLUMNS,
    "curves.parquet": CURVE_COLUMNS,
    "headroom.parquet": ITEM_COLUMNS,
}
_TEXT = ("model", "stage", "set", "fact", "pool")
_WHOLE = ("template", "tokens", "chunk", "step")


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What a verdict on one cell is computed from."""

    family: str
    candidates: tuple[str, ...]
    items: bytes
    """Parquet, as are the curves."""
    curves: bytes
    headroom: bytes | None = None
    """Forget facts asked with evidence; None where none were."""
    reference_must_pass: bool = False


def verdicts(rules: Rules, cells: Mapping[str, Scores]) -> dict[str, Verdict | None]:
    """The verdict on every cell by its id; None where no candidate could be made."""
    # Scores so large that sums overflow are refused by what reads them, as not finite.
    with np.errstate(all="ignore"):
        return _verdicts(rules, cells)


def _verdicts(rules: Rules, cells: Mapping[str, Scores]) -> dict[str, Verdict | None]:
    measured: dict[str, CellMeasures] = {}
    headrooms: dict[str, Headroom | None] = {}
    replicated: dict[str, list[Draws]] = {}
    pairs = 0
    for cell_id, cell in cells.items():
        items = read_table(cell.items, f"cells/{cell_id}/items.parquet")
        curves = read_table(cell.curves, f"cells/{cell_id}/curves.parquet")
        measures = _measured(cell_id, items, curves, rules)
        pairs += len(cell.candidates) * _pairs(measures)
        if pairs > MAX_PAIRS:
            raise BundleError(
                f"cell {cell_id}: the exact tests compare {pairs} pairs of facts so far; expected "
                f"at most {MAX_PAIRS}"
            )
        if len(measures.references) >= rules.minimum_draws:
            draws = read_draws(cell_id, items, measures, rules)
            replicated.setdefault(cell.family, []).append(draws)
        measured[cell_id] = measures
        headrooms[cell_id] = None if cell.headroom is None else _headroom(cell_id, cell, rules)
    tolerances = {
        family: pool_tolerances(family, draws, rules).tolerances
        for family, draws in replicated.items()
    }
    return {
        cell_id: decide(
            measured[cell_id],
            rules,
            cell.candidates,
            tolerances.get(cell.family),
            headroom=headrooms[cell_id],
            reference_must_pass=cell.reference_must_pass,
        )
        if cell.candidates
        else None
        for cell_id, cell in cells.items()
    }


def _headroom(cell_id: str, cell: Scores, rules: Rules) -> Headroom | None:
    name = f"cells/{cell_id}/headroom.parquet"
    table = read_table(cell.headroom or b"", name)
    facts = len(set(table["fact"]))
    if facts > MAX_FACTS or facts * rules.bootstrap_resamples > MAX_RESAMPLED:
        raise BundleError(
            f"{name}: {facts} facts resampled {rules.bootstrap_resamples} times; expected at most "
            f"{MAX_FACTS} facts and {MAX_RESAMPLED} numbers"
        )
    try:
        return read_headroom(table, rules)
    except KeyError as error:
        raise BundleError(f"{name}: has no scores of {error}; expected three models") from error


def table_rows(data: bytes, name: str) -> int:
    """How many rows a table says it has; BundleError when it is not the table it should be."""
    found, expected = outline(data, name), COLUMNS[name.rpartition("/")[2]]
    if found.columns != expected:
        raise BundleError(f"{name}: has the columns {found.columns}; expected {expected}")
    if found.size > MAX_TABLE_BYTES:
        raise BundleError(
            f"{name}: {found.size} bytes once decompressed; expected at most {MAX_TABLE_BYTES}"
        )
    return found.rows


def read_table(data: bytes, name: str) -> Table:
    """The columns of a table whose size was looked up; BundleError when they cannot be read."""
    rows = table_rows(data, name)
    try:
        table = table_from_bytes(data, name)
    except (ValueError, IndexError) as error:
        raise BundleError(f"{name}: text or index that is none ({error})") from error
    for column, values in table.items():
        if values.dtype.name != _kind(column) or len(values) != rows:
            raise BundleError(
                f"{name}: column {column} has {len(values)} values of {values.dtype}; expected "
                f"{rows} of {_kind(column)}"
            )
    return table


def _kind(column: str) -> str:
    return "object" if column in _TEXT else "int32" if column in _WHOLE else "float64"


def _measured(cell_id: str, items: Table, curves: Table, rules: Rules) -> CellMeasures:
    counts = {
        "models": (len(set(items["model"]) | set(curves["model"])), MAX_MODELS),
        "facts": (len(set(items["fact"])), MAX_FACTS),
        "reference draws": (
            sum(name.startswith("reference") for name in set(items["model"])),
            MAX_DRAWS,
        ),
    }
    for what, (found, most) in counts.items():
        if found > most:
            raise BundleError(f"cell {cell_id}: {found} {what}; expected at most {most}")
    return measure_cell(items, curves, rules.screen_pool)


def _pairs(measures: CellMeasures) -> int:
    return min(len(measures.forget_facts) * len(measures.probe_facts), EXACT_PAIRS)


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Where two verdicts' JSON differ: numbers by more than rounding, all else at all.

    Libraries add up in different orders on different machines, so the last digits of a mean may
    differ there; a decision may not.
    """
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return [
            line
            for key in expected
            for line in differences(found[key], expected[key], f"{where}.{key}".lstrip("."))
        ]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [
            line
            for n, pair in enumerate(zip(found, expected, strict=True))
            for line in differences(*pair, f"{where}[{n}]")
        ]
    if type(found) is float and type(expected) is float:
        same = abs(found - expected) <= 1e-12 + 1e-9 * max(abs(found), abs(expected))
    else:
        same = type(found) is type(expected) and found == expected
    return [] if same else [f"{where}: recorded {found!r}, recomputed {expected!r}"]
