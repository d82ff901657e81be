"""What a run fixed before its first training, and the order of what followed, for the page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.analysis.table import Table, Value
from palimpsest.run.store import Entry, Run, verify_chain


@dataclass(frozen=True, slots=True)
class Record:
    """The terms of a run and the entries of its record."""

    digests: tuple[tuple[str, str], ...]
    """What was fixed, and its digest."""
    links: tuple[tuple[str, str], ...]
    """Each entry of the record in words, and its digest; without the steps in a run of cells."""
    rules: Table
    environment: Table


def read_record(path: Path) -> Record:
    """Return what the run at ``path`` fixed, and its record, from its stored files."""
    run = Run.open(path)
    single = len(run.cells) == 1
    entries = verify_chain(run.record())
    return Record(
        (
            ("terms of the run", run.terms_digest),
            ("rules", run.rules_hash),
            ("sealed pool", str(run.seal["commitment"])),
        ),
        tuple(
            (_words(entry, single), entry.digest)
            for entry in entries
            if single or entry.event != "step"
        ),
        _table("rules", "Rules", run.rules),
        _table("environment", "Environment", run.environment),
    )


def _words(entry: Entry, single: bool) -> str:
    where = "" if single else f" of {entry.data.get('cell')}"
    if entry.event == "step":
        return f"step {entry.data.get('step')}{where} stored"
    return {
        "terms": "plan, rules, seal and cells fixed",
        "opened": f"sealed pool{where} opened, once",
        "cell": f"cell {entry.data.get('cell')} finished",
        "halted": f"cell {entry.data.get('cell')} ended early",
    }.get(entry.event, entry.event)


def _table(name: str, title: str, values: Any) -> Table:
    rows: list[dict[str, Value]] = [{"key": key, "value": text} for key, text in _flat(values)]
    return Table.of(name, title, "", rows)


def _flat(values: Any, name: str = "") -> list[tuple[str, str]]:
    if isinstance(values, dict):
        pairs = [_flat(value, f"{name} {key}".strip()) for key, value in sorted(values.items())]
        return [pair for some in pairs for pair in some]
    if isinstance(values, list | tuple):
        return [(name, ", ".join(_plain(value) for value in values))]
    return [(name, _plain(values))]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
