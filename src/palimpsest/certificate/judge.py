"""Verdicts from score tables, read within bounds.

Tables may come from anybody: their sizes are checked before anything is read, and so is the work
that the exact tests would take. The verdict is computed by the functions that judge a run folder.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.items import ITEM_COLUMNS
from palimpsest.criteria.measures import CURVE_COLUMNS, MEASURE_COLUMNS, measure_cell
from palimpsest.criteria.ranktest import EXACT_PAIRS
from palimpsest.criteria.rules import Rules
from palimpsest.errors import BundleError
from palimpsest.run.store import Table, table_from_bytes
from palimpsest.verdict import Verdict, decide

MAX_ROWS = 20_000_000
"""Rows of all tables together."""
MAX_TABLE_BYTES = 256 * 2**20
"""Bytes of one table once decompressed."""
MAX_MODELS = 1_000
MAX_FACTS = 2_000
MAX_PAIRS = 2_000_000
"""Exact tests of a cell, counted by the pairs of facts they compare."""
MAX_RESAMPLED = 100_000_000
"""Numbers that a bootstrap draws."""

TABLES: dict[str, tuple[str, ...]] = {
    "items.parquet": tuple(ITEM_COLUMNS),
    "curves.parquet": tuple(CURVE_COLUMNS),
    "measures.parquet": tuple(MEASURE_COLUMNS),
    "headroom.parquet": tuple(ITEM_COLUMNS),
}
"""Columns of the tables that a verdict depends on."""
_TEXT = ("model", "stage", "set", "fact", "pool", "measure")
_WHOLE = ("template", "tokens", "chunk", "step")


def judge(
    cell_id: str, rules: Rules, roles: Mapping[str, Any], files: Mapping[str, bytes]
) -> Verdict | None:
    """Return the verdict on a cell from the bytes of its tables; None without any candidate."""
    tables = {n: read_table(data, f"cells/{cell_id}/{n}") for n, data in files.items()}
    items, curves = tables["items.parquet"], tables["curves.parquet"]
    extra, asked = tables.get("measures.parquet"), tables.get("headroom.parquet")
    _bounded(cell_id, "models", len({*items["model"], *curves["model"], *roles}), MAX_MODELS)
    _bounded(cell_id, "facts", len(set(items["fact"])), MAX_FACTS)
    # Scores so large that sums overflow are refused as not finite by what reads them.
    with np.errstate(all="ignore"):
        measures = measure_cell(items, curves, rules.screen_pool, roles=roles, measures=extra)
        pairs = min(len(measures.forget_facts) * len(measures.probe_facts), EXACT_PAIRS)
        _bounded(cell_id, "compared pairs of facts", len(measures.models) * pairs, MAX_PAIRS)
        headroom = None if asked is None else _headroom(cell_id, asked, rules)
        if not measures.of_role("candidate"):
            return None
        return decide(measures, roles, rules, headroom=headroom)


def _bounded(cell_id: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise BundleError(f"cell {cell_id}: {count} {what}; expected at most {most}")


def _headroom(cell_id: str, table: Table, rules: Rules) -> Headroom | None:
    facts = len(set(table["fact"]))
    _bounded(cell_id, "facts with evidence", facts, MAX_FACTS)
    _bounded(cell_id, "resampled numbers", facts * rules.bootstrap_resamples, MAX_RESAMPLED)
    try:
        return read_headroom(table, rules)
    except KeyError as error:
        raise BundleError(
            f"cells/{cell_id}/headroom.parquet: no scores of {error}; expected three models"
        ) from error


def table_rows(data: bytes, name: str) -> int:
    """Return the rows a table says it has; BundleError when its columns or size are wrong.

    Only the footer is read. Pages that ask for more than it says meet the memory limit of the
    process that examines (apart.py).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BundleError(f"{name}: not a parquet table ({error})") from error
    columns, expected = tuple(footer.schema.names), TABLES[name.rpartition("/")[2]]
    if columns != expected:
        raise BundleError(f"{name}: has the columns {columns}; expected {expected}")
    size = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    if not 0 <= size <= MAX_TABLE_BYTES or footer.num_rows < 0:
        raise BundleError(
            f"{name}: {size} bytes once decompressed; expected at most {MAX_TABLE_BYTES}"
        )
    return int(footer.num_rows)


def read_table(data: bytes, name: str) -> Table:
    """Return the columns of a table, after checking its size; BundleError if unreadable."""
    rows = table_rows(data, name)
    try:
        table = table_from_bytes(data, name)
    except (ValueError, IndexError) as error:
        raise BundleError(f"{name}: invalid text or index ({error})") from error
    for column, values in table.items():
        kind = "object" if column in _TEXT else "int32" if column in _WHOLE else "float64"
        if values.dtype.name != kind or len(values) != rows:
            raise BundleError(
                f"{name}: column {column} has {len(values)} values of {values.dtype}; expected "
                f"{rows} of {kind}"
            )
    return table


def differences(stored: Any, expected: Any, where: str = "") -> list[str]:
    """Return where two JSON values differ: numbers by more than rounding, all else at all.

    Libraries add up in different orders on different machines, so the last digits of a mean may
    differ there; a decision may not.
    """
    parts: list[tuple[str, Any, Any]] | None = None
    if isinstance(stored, dict) and isinstance(expected, dict) and stored.keys() == expected.keys():
        parts = [(f"{where}.{key}".lstrip("."), stored[key], expected[key]) for key in expected]
    elif isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        parts = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(stored, expected))]
    if parts is not None:
        return [line for at, mine, theirs in parts for line in differences(mine, theirs, at)]
    if type(stored) is float and type(expected) is float:
        same = math.isclose(stored, expected, rel_tol=1e-9, abs_tol=1e-12)
    else:
        same = type(stored) is type(expected) and stored == expected
    return [] if same else [f"{where}: recorded {stored!r}, recomputed {expected!r}"]
