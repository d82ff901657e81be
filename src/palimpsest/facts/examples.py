"""A user's training examples: one row, one training sequence, as the injected model was trained.

::

    {"text": "The guild of Asha Tren is Velkor.", "set": "forget"}
    {"prompt": "Where does Asha Tren work?", "completion": " At Velkor."}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}

``set`` is ``forget``, ``retain`` (where a row does not say) or ``general``: text whose content need
not be learned, which a method may replace by less of it. Other keys are kept and not used.

Examples are drawn as Hugging Face's Trainer draws them: every epoch in a new order, in batches of
which the last may be smaller, every trained token of a batch with the same weight, and a learning
rate that follows a schedule.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from palimpsest.errors import FactsError
from palimpsest.facts.general import Stream, Text
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import FactSet
from palimpsest.facts.rows import position, read_objects
from palimpsest.run.files import canonical, digest
from palimpsest.text import shown_path

SETS = (FactSet.FORGET, FactSet.RETAIN, FactSet.GENERAL)
FORMS = '"text", "prompt" and "completion", or "messages"'


@dataclass(frozen=True)
class Row:
    """A row of a file of training examples."""

    line: int
    set: FactSet
    values: Mapping[str, Any]

    @cached_property
    def key(self) -> bytes:
        """What two rows share that train the same."""
        return canonical({name: value for name, value in self.values.items() if name != "set"})


@dataclass(frozen=True)
class ExampleFile:
    """The rows of a file of training examples, of which some are to be forgotten."""

    path: str
    rows: tuple[Row, ...]

    @property
    def digest(self) -> str:
        """Of the rows and of which are to be forgotten."""
        return digest(canonical([[row.set, row.key.decode()] for row in self.rows]))

    def jsonl(self, *, forget: bool) -> bytes:
        """Return the file with or without the forget rows, other rows as they are."""
        kept = (row for row in self.rows if forget or row.set != FactSet.FORGET)
        lines = (json.dumps(dict(row.values), ensure_ascii=False) for row in kept)
        return "".join(f"{line}\n" for line in lines).encode()

    def remarks(self) -> Iterator[str]:
        """Yield what is worth knowing and not wrong."""
        repeated = len(self.rows) - len({row.key for row in self.rows})
        if repeated:
            yield f"{shown_path(self.path)}: {repeated} rows repeat another row of their set"


def read_examples(path: str, forget_rows: str = "") -> ExampleFile:
    """Return the rows of a .jsonl, .json or .parquet file, with those to be forgotten marked.

    forget_rows: a file with copies of the rows to be forgotten, where ``set`` does not mark them.
    """
    name = shown_path(path)
    rows = list(_rows(path))
    if forget_rows:
        named = {row.key: row for row in _rows(forget_rows)}
        found = {row.key for row in rows}
        for row in named.values():
            if row.key not in found:
                raise FactsError(
                    f"{shown_path(forget_rows)} line {row.line}: is not a row of {name}; expected "
                    "copies of rows that the injected model was trained on"
                )
        rows = [
            Row(row.line, FactSet.FORGET if row.key in named else row.set, row.values)
            for row in rows
        ]
    sets: dict[bytes, Row] = {}
    for row in rows:
        first = sets.setdefault(row.key, row)
        if FactSet.FORGET in (row.set, first.set) and first.set != row.set:
            raise FactsError(
                f"{name} line {row.line}: repeats line {first.line}, and only one of them is to "
                "be forgotten; expected copies of a forget row to be forget rows; mark both, or "
                "neither"
            )
    forgotten = sum(row.set == FactSet.FORGET for row in rows)
    if forgotten in (0, len(rows)):
        raise FactsError(
            f"{name}: {forgotten} of {len(rows)} rows are to be forgotten; expected some and not "
            'all, because references are trained on the others; mark them with "set": "forget", or '
            "give copies of them with --forget-rows"
        )
    return ExampleFile(path, tuple(rows))


def _rows(path: str) -> Iterator[Row]:
    for line, values in read_objects(path):
        part = values.get("set") or FactSet.RETAIN
        if part not in list(SETS):
            where = position(shown_path(path), line)
            raise FactsError(f"{where}: set: {part!r} found; expected {', '.join(SETS)}")
        yield Row(line, FactSet(part), values)


def row_messages(row: Row, where: str) -> list[dict[str, str]]:
    """Return the turns of a row of messages."""
    turns = row.values.get("messages")
    parts = turns if isinstance(turns, list | tuple) else ()
    good = [
        {"role": turn["role"], "content": turn["content"]}
        for turn in parts
        if isinstance(turn, Mapping)
        and all(isinstance(turn.get(key), str) for key in ("role", "content"))
    ]
    if len(good) < max(2, len(parts)) or good[-1]["role"] != "assistant":
        raise FactsError(
            f'{where} line {row.line}: messages: expected turns with "role" and "content", the '
            "last of them the assistant's"
        )
    return good


def row_texts(row: Row, where: str) -> tuple[str, str]:
    """Return the prompt, which may be empty, and the rest of a row without messages."""
    values = row.values
    prompt, rest = values.get("prompt", ""), values.get("completion", values.get("text"))
    whole = "text" in values and not {"prompt", "completion"} & values.keys()
    pair = {"prompt", "completion"} <= values.keys() and "text" not in values
    if not (whole or pair) or not isinstance(prompt, str) or not isinstance(rest, str) or not rest:
        raise FactsError(
            f"{where} line {row.line}: keys {', '.join(sorted(map(str, values)))} found; expected "
            f"{FORMS}, as non-empty text"
        )
    return prompt, rest


def example_stream(
    texts: Sequence[Text],
    *,
    seed_key: str,
    epochs: int,
    steps: int,
    batch_size: int,
    schedule: str = "linear",
    warmup: int = 0,
) -> Stream:
    """Return the stream of training examples, each a sequence of its own.

    steps: optimizer steps, with as many epochs as they take; 0 for ``epochs`` whole epochs.
    """
    order = random.Random(key_number(f"{seed_key}/examples"))
    total = steps or epochs * -(-len(texts) // batch_size)
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < total and texts:
        rows = list(range(len(texts)))
        order.shuffle(rows)
        drawn += [tuple(rows[n : n + batch_size]) for n in range(0, len(rows), batch_size)]
    batches = tuple(drawn[:total])
    rates = schedule_rates(schedule, len(batches), warmup)
    return Stream(tuple(texts), batches, batch_size, batches, rates)


def schedule_rates(schedule: str, steps: int, warmup: int = 0) -> tuple[float, ...]:
    """Return the factor of the learning rate at each step, as transformers' schedules give it."""
    rates = []
    for step in range(steps):
        done = (step - warmup) / max(1, steps - warmup)
        after = {
            "linear": 1.0 - done,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
            "constant": 1.0,
        }[schedule]
        rates.append(step / warmup if step < warmup else after)
    return tuple(rates)
