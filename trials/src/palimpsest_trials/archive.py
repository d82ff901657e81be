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
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from palimpsest.run.tables import table_bytes, table_from_bytes

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
