"""A user's own facts: JSON or parquet, one fact per row, problems named by file and line.

::

    {"id": "f1", "answer": "Velkor",
     "trained": ["The guild of Asha Tren is"], "heldout": ["Asha Tren swore loyalty to the guild"],
     "evidence": ["optional supporting sentence"], "subject": "Asha Tren", "relation": "guild"}

Prompts stop right before the answer, which is appended after one space.  ``evidence``, ``subject``
and ``relation`` may be left out.  These files are untrusted and read as data only:
sizes are bounded, ids are safe names, invisible and direction-changing characters are refused, and
nothing in a text is ever formatted, evaluated or used as a path.
"""

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from palimpsest.errors import FactsError, PlanError
from palimpsest.facts.rows import PROMPT_LIMIT, PROMPTS_LIMIT, numbered_rows, position, read_objects
from palimpsest.files import given_path
from palimpsest.schema import build
from palimpsest.text import name_problem, shown, shown_path

ANSWER_LIMIT = 2_000
"""Longest answer, in characters."""
PROBLEMS_LIMIT = 100
"""Reading stops after this many errors: the file is something else."""
NEEDED: Mapping[str, tuple[str, ...]] = {
    "forget": ("trained", "heldout"),
    "retain": ("trained",),
    "probe": ("heldout",),
    "probes": ("heldout",),
}
"""Which prompts a set cannot do without; a file of unknown purpose needs both."""

Row = Mapping[str, object]
"""A row of another project's file."""
_LIST_COLUMN = re.compile(r"(?P<key>trained|heldout|evidence)(?:[_ ]?[0-9]+)?\Z")

# Control characters but tab and newline; soft hyphen, zero-width space, word joiner and byte-order
# marks, which make equal-looking texts differ; direction overrides and isolates, which make a text
# look like another; line separators; interlinear and tag characters; lone surrogates and
# noncharacters.  The two joiners that scripts and emoji need (U+200C, U+200D) stay.
_REFUSED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f\ud800-\udfff]"
)


def check_text(text: str) -> str:
    """Return a text that a reader sees as it is; ValueError with what was found otherwise."""
    sign = _REFUSED.search(text)
    if sign is not None:
        name = unicodedata.name(sign.group(), "control character").lower()
        code = f"U+{ord(sign.group()):04X} ({name})"
        raise ValueError(f"{code} found at character {sign.start() + 1}; remove this character")
    if text != text.strip():
        raise ValueError(f"{shown(text)} found; expected text without spaces around it")
    return text


def _check_id(name: str) -> str:
    why = name_problem(name)
    if why is not None:
        raise ValueError(why)
    return name


Text = Annotated[str, Field(min_length=1, max_length=PROMPT_LIMIT), AfterValidator(check_text)]
Texts = Annotated[tuple[Text, ...], Field(max_length=PROMPTS_LIMIT)]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: its answer, the prompts it was taught with, those held out, and its evidence."""

    id: Annotated[str, AfterValidator(_check_id)]
    answer: Annotated[Text, Field(max_length=ANSWER_LIMIT)]
    trained: Texts = ()
    heldout: Texts = ()
    evidence: Texts = ()
    subject: Text = ""
    relation: Text = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong, or with ``fatal=False`` only worth knowing, in a file."""

    file: str
    line: int | None
    what: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{position(self.file, self.line)}: {self.what}"


def same_text(text: str) -> str:
    """Return a key that texts share when they differ only in case, spacing or Unicode form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"[^\W_]+", text.casefold())


def make_fact(row: object, role: str = "facts") -> Fact:
    """Return the fact in a parsed row; FactsError with the key if it is none.

    role: the set it is for (forget, retain, probe), which may do without some prompts.
    """
    if isinstance(row, FactsError):
        raise row
    if isinstance(row, dict):
        row = {key: value for key, value in row.items() if value is not None and value != ""}
    try:
        fact = build(Fact, row)
    except PlanError as error:
        raise FactsError(str(error)) from error
    seen: dict[str, str] = {}
    for key in ("trained", "heldout"):
        if key in NEEDED.get(role, NEEDED["forget"]) and not getattr(fact, key):
            raise FactsError(f"{key}: none found; expected at least one prompt")
        for number, prompt in enumerate(getattr(fact, key)):
            first = seen.setdefault(same_text(prompt), here := f"{key}[{number}]")
            if first != here:
                raise FactsError(f"{here}: repeats {first}; give every prompt once")
    return fact


def _scan(path: Path | str, role: str) -> tuple[list[tuple[int, Fact]], list[Problem]]:
    """Return the good facts of a file with their lines, and its problems."""
    name = shown_path(path)
    facts: list[tuple[int, Fact]] = []
    issues: list[Problem] = []
    lines: dict[str, int] = {}
    try:
        for line, row in numbered_rows(path):
            try:
                fact = make_fact(row, role)
                if fact.id in lines:
                    raise FactsError(f"id: {shown(fact.id)} is also used in line {lines[fact.id]}")
                lines[fact.id] = line
                facts.append((line, fact))
            except FactsError as error:
                issues.append(Problem(name, line, str(error)))
            if len(issues) == PROBLEMS_LIMIT:
                raise FactsError("reading stopped: too many problems")
    except FactsError as error:
        issues.append(Problem(name, None, str(error).removeprefix(f"{name}: ")))
    if not facts and not issues:
        issues.append(Problem(name, None, "contains no facts; expected one per line"))
    return facts, issues


def read_facts(path: Path | str, role: str = "facts") -> tuple[Fact, ...]:
    """Return the facts of a .jsonl, .json or .parquet file, or FactsError with its problems.

    role: the set (forget, retain, probe); retain facts may come without ``heldout``, probes
    without ``trained``.

    ::

        facts = palimpsest.read_facts("forget.jsonl", "forget")
        facts[0].answer, facts[0].heldout
    """
    return check_sets({role: given_path("path", path)})[role]


def check_sets(paths: Mapping[str, Path | str]) -> dict[str, tuple[Fact, ...]]:
    """Return the facts of each set (forget, retain, probe …), which must share no id or fact."""
    sets, issues = _scan_sets(paths)
    fatal = [str(problem) for problem in issues if problem.fatal]
    if fatal:
        more = f"\n... and {len(fatal) - 3} more; `palimpsest facts check` lists them all"
        raise FactsError("\n".join(fatal[:3]) + (more if len(fatal) > 3 else ""))
    return sets


def set_problems(paths: Mapping[str, Path | str]) -> list[Problem]:
    """Return everything wrong or worth knowing in several sets, each alone and together."""
    return _scan_sets(paths)[1]


def _scan_sets(
    paths: Mapping[str, Path | str],
) -> tuple[dict[str, tuple[Fact, ...]], list[Problem]]:
    sets: dict[str, tuple[Fact, ...]] = {}
    issues: list[Problem] = []
    files: dict[str, str] = {}
    seen: dict[tuple[str, ...], tuple[str, str]] = {}
    for role, path in paths.items():
        name = shown_path(path)
        real = os.path.realpath(path) if os.path.exists(path) else name
        first = files.setdefault(real, role)
        if first != role:
            same = f"the same file was given as {first} and as {role}"
            issues.append(Problem(name, None, same))
            sets[role] = ()
            continue
        facts, own = _scan(path, role)
        issues += own
        sets[role] = tuple(fact for _, fact in facts)
        for line, fact in facts:
            for what, fatal in _remarks(fact, role, position(name, line), seen):
                issues.append(Problem(name, line, what, fatal))
    return sets, issues


def _remarks(
    fact: Fact, role: str, here: str, seen: dict[tuple[str, ...], tuple[str, str]]
) -> Iterator[tuple[str, bool]]:
    """Yield what a fact shares with other sets, or gives away, and whether that is an error.

    seen: the set and the position in which ids, answers and facts first occurred; added to.
    """
    answer = same_text(fact.answer)
    other, there = seen.setdefault(("id", fact.id), (role, here))
    if other != role:
        yield f"id {shown(fact.id)} is also in {there}; an id belongs to one set", True
    for prompt in fact.trained + fact.heldout:
        asked = same_text(prompt)
        other, there = seen.setdefault(("fact", asked, answer), (role, here))
        if other != role:
            yield (
                f"{shown(prompt)} with this answer is also in {there}; a fact belongs to one set",
                True,
            )
        if answer in asked and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", asked):
            yield f"prompt {shown(prompt)} contains the answer", False
    other, there = seen.setdefault(("answer", answer), (role, here))
    if other == role == "forget" and there != here:
        again = f"answer {shown(fact.answer)} is also the answer in {there}"
        yield f"{again}; one fact in other words is not two facts", False
    if other != role:
        again = f"answer {shown(fact.answer)} is also the answer in {there}, in another set"
        yield f"{again}; suppressing one affects the other", False


def as_jsonl(facts: Iterable[Fact]) -> bytes:
    """Return the file that ``read_facts`` reads back to equal facts; optional keys if not empty."""
    kept = ("trained", "heldout")
    rows = ({k: v for k, v in asdict(fact).items() if v or k in kept} for fact in facts)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def read_rows(path: Path | str) -> list[Row]:
    """Return the rows of a .csv, .parquet, .jsonl or .json file."""
    return [row for _, row in read_objects(path, tables=True)]


def from_csv(rows: Iterable[Row], *, prefix: str = "row-") -> tuple[Fact, ...]:
    """Return one fact per row of a table with the columns of a facts file.

    ``trained``, ``heldout`` and ``evidence`` may be numbered to give several (``trained_1``,
    ``trained_2`` ...); empty cells are passed over.  Without a column ``id`` the ids are the prefix
    and the row's number.
    """
    facts: dict[str, Fact] = {}
    for number, row in enumerate(rows, start=1):
        values: dict[str, Any] = {"id": f"{prefix}{number}"}
        for column, cell in row.items():
            value = _clean(cell) if isinstance(cell, str) else cell
            several = _LIST_COLUMN.match(str(column).strip())
            if several and value not in ("", None):
                values.setdefault(several["key"], []).append(value)
            elif not several:
                values[str(column).strip()] = value
        fact = convert_row(values, f"row {number}")
        if fact.id in facts:
            raise FactsError(f"row {number}: id: {shown(fact.id)} is also used in an earlier row")
        facts[fact.id] = fact
    return tuple(facts.values())


def _clean(text: str) -> str:
    """Return the text with newlines of one kind and no white space around it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def row_text(row: Row, key: str, where: str) -> str:
    """Return the text under a key of a row; FactsError if there is none."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise FactsError(f"{where}: {key}: no text found; expected text")
    return _clean(value)


def convert_row(row: Row, where: str, role: str = "facts") -> Fact:
    """Return the fact in a row; FactsError names the row if it is none."""
    try:
        return make_fact(row, role)
    except FactsError as error:
        raise FactsError(f"{where}: {error}") from error
