"""Verdicts from score tables, read within bounds.

Tables may come from anybody: their sizes are checked before anything is read, and so is the work
that the exact tests would take. The verdict is computed by the functions that judge a run folder.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from palimpsest.errors import BundleError
from palimpsest.run.store import Table, table_from_bytes
from palimpsest.stats.headroom import read_headroom
from palimpsest.stats.items import ITEM_COLUMNS
from palimpsest.stats.measures import CURVE_COLUMNS, MEASURE_COLUMNS, measure_cell
from palimpsest.stats.ranktest import EXACT_PAIRS
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict, decide

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
_KINDS = dict.fromkeys(("model", "stage", "set", "fact", "pool", "measure"), "object")
_KINDS |= dict.fromkeys(("template", "tokens", "chunk", "step"), "int32")


def judge(
    cell_id: str, rules: Rules, roles: Mapping[str, Any], tables: Mapping[str, Table]
) -> Verdict | None:
    """Return the verdict on a cell from its tables; None without any candidate."""
    items, curves = tables["items.parquet"], tables["curves.parquet"]
    extra, asked = tables.get("measures.parquet"), tables.get("headroom.parquet")
    _bounded(cell_id, "models", len({*items["model"], *curves["model"], *roles}), MAX_MODELS)
    _bounded(cell_id, "facts", len(set(items["fact"])), MAX_FACTS)
    # Scores so large that sums overflow are refused as not finite by what reads them.
    with np.errstate(all="ignore"):
        measures = measure_cell(items, curves, rules.screen_pool, roles=roles, measures=extra)
        pairs = min(len(measures.forget_facts) * len(measures.probe_facts), EXACT_PAIRS)
        _bounded(cell_id, "compared pairs of facts", len(measures.models) * pairs, MAX_PAIRS)
        headroom = None
        if asked is not None:
            resampled = len(set(asked["fact"])) * rules.bootstrap_resamples
            _bounded(cell_id, "resampled numbers", resampled, MAX_RESAMPLED)
            headroom = read_headroom(asked, rules)
        if not measures.of_role("candidate"):
            return None
        return decide(measures, roles, rules, headroom=headroom)


def _bounded(cell_id: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise BundleError(f"cell {cell_id}: {count} {what}; expected at most {most}")


def count_rows(cell_id: str, files: Mapping[str, bytes]) -> int:
    """Return the rows that a cell's tables say they have; BundleError if columns or size are wrong.

    Only the footers are read. Pages that ask for more than they say meet the memory limit of the
    process that examines (apart.py).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for name, data in files.items():
        try:
            footer = pq.read_metadata(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise BundleError(f"cells/{cell_id}/{name}: not a parquet table ({error})") from error
        columns = tuple(footer.schema.names)
        size = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
        if columns != TABLES[name] or not 0 <= size <= MAX_TABLE_BYTES or footer.num_rows < 0:
            raise BundleError(
                f"cells/{cell_id}/{name}: columns {columns} with {size} bytes once decompressed; "
                f"expected {TABLES[name]} with at most {MAX_TABLE_BYTES}"
            )
        rows += int(footer.num_rows)
    return rows


def read_tables(cell_id: str, files: Mapping[str, bytes]) -> dict[str, Table]:
    """Return the columns of a cell's tables, after checking their sizes."""
    count_rows(cell_id, files)
    tables = {name: table_from_bytes(files[name], f"cells/{cell_id}/{name}") for name in files}
    for name, table in tables.items():
        for column, values in table.items():
            kind = _KINDS.get(column, "float64")
            if values.dtype.name != kind:
                raise BundleError(
                    f"cells/{cell_id}/{name}: column {column} holds {values.dtype}; expected {kind}"
                )
    return tables


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
