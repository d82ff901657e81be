"""A user's own facts: JSON lines or parquet, one fact per row, problems named by file and line.

::

    {"id": "f1", "answer": "Velkor",
     "trained": ["The guild of Asha Tren is"], "heldout": ["Asha Tren swore loyalty to the guild"],
     "evidence": ["optional supporting sentence"], "subject": "Asha Tren", "relation": "guild"}

Prompts stop right before the answer, which is appended after one space.  ``evidence``, ``subject``
and ``relation`` may be left out.  These files come from strangers, so they are read as data only:
sizes are bounded, ids are safe names, invisible and direction-changing characters are refused, and
nothing in a text is ever formatted, evaluated or used as a path.
"""

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError
from palimpsest.facts.names import kind, name_problem, shown, shown_path
from palimpsest.facts.rows import (
    FACTS_LIMIT,
    PROMPT_LIMIT,
    PROMPTS_LIMIT,
    Unreadable,
    numbered_rows,
)

KEYS = ("id", "answer", "trained", "heldout", "evidence", "subject", "relation")
_LISTS = ("trained", "heldout", "evidence")

ANSWER_LIMIT = 2_000
"""Longest answer, in characters."""
PROBLEMS_LIMIT = 100
"""Reading stops after this many problems: the file is something else."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "forget": ("trained", "heldout"),
    "retain": ("trained",),
    "probe": ("heldout",),
    "probes": ("heldout",),
}
"""Which prompts a set cannot do without; a file of unknown purpose needs both."""

# Control characters but tab and newline; soft hyphen, zero-width space, word joiner and byte-order
# marks, which make equal-looking texts differ; direction overrides and isolates, which make a text
# look like another; line separators; interlinear and tag characters; lone surrogates and
# noncharacters.  The two joiners that scripts and emoji need (U+200C, U+200D) stay.
_REFUSED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: its answer, the prompts it was taught with, those held out, and its evidence."""

    id: str
    answer: str
    trained: tuple[str, ...]
    heldout: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    subject: str = ""
    relation: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong, or with ``fatal=False`` only worth knowing, in a file."""

    file: str
    line: int | None
    what: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{place(self.file, self.line)}: {self.what}"


def place(file: str, line: int | None) -> str:
    """Return the file, and the line (JSON lines) or row (parquet) in it."""
    unit = "row" if file.lower().endswith(".parquet") else "line"
    return file if line is None else f"{file} {unit} {line}"


def text_problem(text: object, limit: int) -> str | None:
    """Return why a text is not accepted, with what was found; None when it is."""
    if not isinstance(text, str):
        return f"is {kind(text)}; expected a string"
    if not text.strip():
        return "is empty"
    if len(text) > limit:
        return f"has {len(text)} characters; at most {limit} are allowed"
    sign = _REFUSED.search(text)
    if sign is not None:
        name = unicodedata.name(sign.group(), "control character")
        return (
            f"holds U+{ord(sign.group()):04X} ({name.lower()}) at character {sign.start() + 1}; "
            "remove it, because a reader cannot see it"
        )
    if text != text.strip():
        return (
            f"is {shown(text)}, with white space around it; remove it, since one space is "
            "put between prompt and answer"
        )
    return None


def make_fact(row: object, role: str | None = None) -> tuple[Fact | None, list[str]]:
    """Return a fact from a parsed row, or None and every reason why not."""
    if isinstance(row, Unreadable):
        return None, [row.why]
    if not isinstance(row, dict):
        return None, [f"found {kind(row)}; expected an object with the keys {', '.join(KEYS)}"]
    values: dict[str, Any] = {key: value for key, value in row.items() if value is not None}
    wrong = [
        f"unknown key {shown(str(key))}; the keys are {', '.join(KEYS)}"
        for key in row
        if key not in KEYS
    ]
    needed = NEEDED.get(role or "", ("trained", "heldout"))
    for key in KEYS:
        value = values.get(key)
        if key in _LISTS:
            wrong += _list_problems(key, value, key in needed)
        elif key in ("id", "answer") and value is None:
            wrong.append(f'"{key}" is missing; every fact needs one')
        elif key in ("id", "answer") or value not in (None, ""):
            limit = ANSWER_LIMIT if key == "answer" else PROMPT_LIMIT
            why = name_problem(value) if key == "id" else text_problem(value, limit)
            if why == "is empty" and key == "answer":
                why += '; every fact needs a non-empty "answer"'
            wrong += [f"{key} {why}"] if why else []
    lists = {key: tuple(values.get(key, ())) for key in _LISTS} if not wrong else {}
    wrong = wrong or _repetitions(lists["trained"], lists["heldout"])
    return (None, wrong) if wrong else (Fact(**values | lists), [])


def _list_problems(key: str, value: object, needed: bool) -> list[str]:
    if value is None:
        return [f'"{key}" is missing; give a list of prompts'] if needed else []
    if not isinstance(value, list):
        return [f"{key} is {kind(value)}; expected a list of strings"]
    if needed and not value:
        return [f"{key} is an empty list; give at least one prompt"]
    if len(value) > PROMPTS_LIMIT:
        return [f"{key} has {len(value)} entries; at most {PROMPTS_LIMIT} are allowed"]
    return [
        f"{key}[{index}] {why}"
        for index, text in enumerate(value)
        if (why := text_problem(text, PROMPT_LIMIT))
    ]


def _repetitions(trained: Sequence[str], heldout: Sequence[str]) -> list[str]:
    seen: dict[str, str] = {}
    wrong = []
    for key, prompts in (("trained", trained), ("heldout", heldout)):
        for index, prompt in enumerate(prompts):
            here = f"{key}[{index}]"
            first = seen.setdefault(same_text(prompt), here)
            if first != here:
                wrong.append(
                    f"{here} repeats {first}, {shown(prompt)}; trained and heldout must not "
                    "overlap, and no prompt may occur twice"
                )
    return wrong


def same_text(text: str) -> str:
    """Return a key that texts share when they differ only in case, spacing or Unicode form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


# Reading -----------------------------------------------------------------------------------------


def _scan(path: Path | str, role: str | None) -> tuple[list[tuple[int, Fact]], list[Problem]]:
    """Return the good facts of a file with their lines, and its problems."""
    facts: list[tuple[int, Fact]] = []
    issues: list[Problem] = []
    lines: dict[str, int] = {}
    name = shown_path(path)
    try:
        if name.lower().endswith(".csv"):
            convert = f"palimpsest facts from-csv {name} --out {name[:-4]}.jsonl"
            raise FactsError(f"{name}: is a table; make a file of facts of it with `{convert}`")
        for line, row in numbered_rows(path):
            fact, wrong = make_fact(row, role)
            if fact is not None and fact.id in lines:
                first = place(name, lines[fact.id])
                wrong = [f"id {shown(fact.id)} is already that of {first}; ids are unique"]
            elif fact is not None:
                lines[fact.id] = line
                facts.append((line, fact))
                issues += [Problem(name, line, what, fatal=False) for what in _remarks(fact)]
            issues += [Problem(name, line, what) for what in wrong]
            if len(facts) > FACTS_LIMIT:
                raise FactsError(f"{name}: has more than {FACTS_LIMIT} facts; split it")
            if sum(problem.fatal for problem in issues) >= PROBLEMS_LIMIT:
                issues.append(Problem(name, line, "reading stopped here: too many problems"))
                return facts, issues
    except FactsError as error:
        issues.append(Problem(name, None, str(error).removeprefix(f"{name}: ")))
        return facts, issues
    if not facts and not issues:
        issues.append(Problem(name, None, "holds no facts; expected one per line"))
    return facts, issues


def _remarks(fact: Fact) -> list[str]:
    """Return what is allowed but weakens a measurement."""
    answer = re.compile(rf"(?<!\w){re.escape(same_text(fact.answer))}(?!\w)")
    return [
        f"{key} prompt {shown(prompt)} contains the answer"
        for key, prompts in (("trained", fact.trained), ("heldout", fact.heldout))
        for prompt in prompts
        if answer.search(same_text(prompt))
    ]


def problems(path: Path | str) -> list[Problem]:
    """Return everything wrong, and everything worth knowing, in one file of facts."""
    return _scan(path, None)[1]


def read_facts(path: Path | str, role: str | None = None) -> tuple[Fact, ...]:
    """Return the facts of a .jsonl or .parquet file; FactsError with its problems if it has any.

    ``role`` (forget, retain, probe) relaxes what the set does not need: retain facts may come
    without ``heldout``, probes without ``trained``.
    """
    facts, issues = _scan(path, role)
    _refuse(issues)
    return tuple(fact for _, fact in facts)


def named_sets(items: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the files given as SET=FILE, by set, and those given alone.

    An unknown set is a FactsError; a file whose own name has a ``=`` in it is one given alone.
    """
    sets: dict[str, str] = {}
    alone = []
    for item in items:
        name, sign, path = item.partition("=")
        if not sign or (name not in NEEDED and Path(item).exists()):
            alone.append(item)
            continue
        role = "probe" if name == "probes" else name
        if role not in NEEDED:
            known = ", ".join(role for role in NEEDED if role != "probes")
            raise FactsError(f"unknown set {shown(name)}; expected {known}")
        if role in sets:
            raise FactsError(
                f"two files were given as {role}, {shown_path(sets[role])} and {shown_path(path)}; "
                "expected one per set"
            )
        sets[role] = path
    return sets, alone


def set_problems(paths: Mapping[str, Path | str]) -> list[Problem]:
    """Return everything wrong or worth knowing in several sets, each alone and together."""
    return _scan_sets(paths)[1]


def check_sets(paths: Mapping[str, Path | str]) -> dict[str, tuple[Fact, ...]]:
    """Return the facts of each set (forget, retain, probe …), which must share no id or fact."""
    sets, issues = _scan_sets(paths)
    _refuse(issues)
    return sets


def _scan_sets(
    paths: Mapping[str, Path | str],
) -> tuple[dict[str, tuple[Fact, ...]], list[Problem]]:
    sets: dict[str, tuple[Fact, ...]] = {}
    issues: list[Problem] = []
    ids: dict[str, tuple[str, str]] = {}
    asked: dict[str, tuple[str, str, str]] = {}
    answers: dict[str, tuple[str, str]] = {}
    roles: dict[object, str] = {}
    for role, path in paths.items():
        name = shown_path(path)
        before = roles.setdefault(_file(path), role)
        if before != role:
            what = f"the same file was given as {before} and as {role}; each set has its own"
            issues.append(Problem(name, None, what))
            sets[role] = ()
            continue
        facts, own = _scan(path, role)
        issues += own
        sets[role] = tuple(fact for _, fact in facts)
        for line, fact in facts:
            here, answer = place(name, line), same_text(fact.answer)
            fatal: list[str] = []
            remarks: list[str] = []
            other, there = ids.setdefault(fact.id, (role, here))
            if other != role:
                fatal.append(f"id {shown(fact.id)} is also in {there}; an id belongs to one set")
            for prompt in fact.trained + fact.heldout:
                other, there, theirs = asked.setdefault(same_text(prompt), (role, here, answer))
                if there != here and other != role and theirs == answer:
                    again = f"{shown(prompt)} with the same answer is also in {there}"
                    fatal.append(f"{again}; a fact belongs to one set")
                elif there != here:
                    remarks.append(f"{shown(prompt)} is also a prompt of {there}")
            other, there = answers.setdefault(answer, (role, here))
            if other != role:
                again = f"answer {shown(fact.answer)} is also that of {there}, in another set"
                remarks.append(f"{again}; suppressing one affects the other")
            issues += [Problem(name, line, what) for what in fatal]
            issues += [Problem(name, line, what, fatal=False) for what in remarks]
    return sets, issues


def _file(path: Path | str) -> object:
    """Return what two paths of one file have in common; a path that leads nowhere is itself."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return str(path)
    return about.st_dev, about.st_ino


def _refuse(issues: Iterable[Problem]) -> None:
    fatal = [str(problem) for problem in issues if problem.fatal]
    if fatal:
        more = len(fatal) - 3
        rest = f"\n... and {more} more; `palimpsest facts check` lists them all" if more > 0 else ""
        raise FactsError("\n".join(fatal[:3]) + rest)


# Giving back -------------------------------------------------------------------------------------


def as_rows(facts: Iterable[Fact]) -> list[dict[str, object]]:
    """Return one dictionary per fact with the keys of a file, without empty optional ones."""
    return [
        {
            key: list(value) if key in _LISTS else value
            for key in KEYS
            if (value := getattr(fact, key)) or key in ("trained", "heldout")
        }
        for fact in facts
    ]


def as_jsonl(facts: Iterable[Fact]) -> bytes:
    """The file itself, which ``read_facts`` reads back to equal facts."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in as_rows(facts))
    return "".join(lines).encode("utf-8")
