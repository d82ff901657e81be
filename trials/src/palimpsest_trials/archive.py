"""Run folders as small archives: without weights, reports and the files of single steps.

Tables are kept without parquet's own compression and with the bytes of their numbers apart, which
xz compresses by a third more. Unpacking writes them as the run did, byte for byte: their digests
are in ``cell.json``.

    python -m palimpsest_trials.archive pack RUN ARCHIVE.tar.xz
    python -m palimpsest_trials.archive unpack ARCHIVE.tar.xz FOLDER
"""

import io
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from palimpsest.run.files import parse_digested, write_digested
from palimpsest.run.store import ROSTERS, TERMS, FixedRoster, Terms
from palimpsest.run.tables import table_bytes, table_from_bytes
from palimpsest.stats.rules import Rules

KEPT = ("terms.json", "rosters.json", "cells/*/*.json", "cells/*/*.parquet")


def main(arguments: Sequence[str]) -> None:
    """Pack a run folder, or unpack an archive of one."""
    action, source, target = arguments
    {"pack": pack, "unpack": unpack}[action](Path(source), Path(target))


def pack(run: Path, archive: Path) -> None:
    """Write what is needed to read a run again into an archive; equal runs give equal bytes."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        # Files of one kind side by side, so that what cells share is found.
        paths = [path for pattern in KEPT for path in sorted(run.glob(pattern))]
        for path in sorted(paths, key=lambda path: path.name):
            data = path.read_bytes()
            if path.suffix == ".parquet":
                data = _for_packing(data)
            entry = tarfile.TarInfo(f"{run.name}/{path.relative_to(run).as_posix()}")
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))


def unpack(archive: Path, folder: Path) -> None:
    """Write the run of an archive into a folder, as it was."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
        for path in (folder / name for name in packed.getnames() if name.endswith(".parquet")):
            path.write_bytes(table_bytes(table_from_bytes(path.read_bytes(), str(path))))
        runs = {folder / Path(name).parts[0] for name in packed.getnames()}
    for run in sorted(runs):
        put_under_todays_rules(run)


def put_under_todays_rules(run: Path) -> None:
    """Leave out rules that are no setting any more, so that today's verdict can be read.

    The digests of terms and lists follow from them and are made anew: what was measured is as it
    was, and ``certify`` would not say that these terms were fixed before the run.
    """
    if not (run / TERMS).exists():
        return
    known = {item.name for item in fields(Rules)}
    record = parse_digested((run / TERMS).read_bytes(), TERMS)
    plain = record["terms"]
    if not plain["rules"].keys() - known:
        return
    before = [entry.digest for entry in _lists(run, Terms(**plain))]
    plain["rules"] = {key: value for key, value in plain["rules"].items() if key in known}
    terms = Terms(**plain)
    _write(run / TERMS, record)
    lists = [list(entry.models) for entry in _lists(run, terms)]
    write_digested(run / ROSTERS, {"terms": terms.digest, "rosters": lists})
    renamed = dict(zip(before, (entry.digest for entry in _lists(run, terms))))
    for path in sorted(run.glob("cells/*/cell.json")):
        cell = parse_digested(path.read_bytes(), str(path))
        for holder in (cell, *cell["models"]):
            if holder.get("roster"):
                holder["roster"] = renamed[holder["roster"]]
        _write(path, cell)


def _write(path: Path, record: dict[str, Any]) -> None:
    write_digested(path, {key: value for key, value in record.items() if key != "digest"})


def _lists(run: Path, terms: Terms) -> list[FixedRoster]:
    stored = parse_digested((run / ROSTERS).read_bytes(), ROSTERS)["rosters"]
    return [FixedRoster.of(models, terms) for models in stored]


def _for_packing(data: bytes) -> bytes:
    table = pq.read_table(pa.BufferReader(data))
    numbers = [field.name for field in table.schema if not pa.types.is_string(field.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="none",
        use_dictionary=[name for name in table.column_names if name not in numbers],
        column_encoding=dict.fromkeys(numbers, "BYTE_STREAM_SPLIT"),
        store_schema=False,
    )
    return bytes(sink.getvalue())


if __name__ == "__main__":
    main(sys.argv[1:])
