"""TOFU's questions as facts: a split read from a folder or the hub, and the items of one cell.

TOFU asks twenty questions about each of 200 invented authors. A split names the authors to forget
and those to keep; ``*_perturbed`` holds the paraphrased questions that nobody was taught. Ids are
the file's name and the row's number from 0, so stored scores never carry a question.
Maini et al. 2024, "TOFU: A task of fictitious unlearning for LLMs".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import FactsError
from palimpsest.facts.convert import Row, from_tofu, read_rows
from palimpsest.facts.files import Fact, same_text
from palimpsest.facts.names import shown, shown_path
from palimpsest.facts.nonce import key_number

HUB = "locuslab/TOFU"
SPLITS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
"""The authors to forget, and the authors that stay."""
PER_AUTHOR = 20
ENDINGS = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Tofu:
    """A split: forget facts with their paraphrase held out, retain facts as they were taught."""

    split: str
    forget: tuple[Fact, ...]
    retain: tuple[Fact, ...]

    def words(self) -> frozenset[str]:
        """Every word of the split in lower case, which no invented name may be."""
        return frozenset(
            word
            for fact in (*self.forget, *self.retain)
            for text in (fact.answer, *fact.trained, *fact.heldout)
            for word in words(text)
        )


@dataclass(frozen=True)
class Items:
    """The facts of one cell; ``evidence`` is what retained data show that bears on a forget fact,
    nearest first, by the fact's id."""

    forget: tuple[Fact, ...]
    retain: tuple[Fact, ...]
    evidence: dict[str, tuple[str, ...]]


def read_tofu(folder: Path | str | None, split: str = "forget10") -> Tofu:
    """Return a split from a folder of TOFU's files, or from the hub when no folder is given."""
    if split not in SPLITS:
        raise FactsError(f"split: {shown(split)} found; expected one of {', '.join(SPLITS)}")
    names = (split, f"{split}_perturbed", SPLITS[split])
    paths = _downloaded(names) if folder is None else _found(Path(folder), names)
    forget, perturbed, retain = (_rows(path) for path in paths)
    tofu = Tofu(
        split,
        _named(paths[0], forget, perturbed, f"{split}-", "refuse"),
        _named(paths[2], retain, (), f"{SPLITS[split]}-", "keep"),
    )
    kept = {(same_text(fact.trained[0]), same_text(fact.answer)): fact for fact in tofu.retain}
    for fact in tofu.forget:
        other = kept.get((same_text(fact.trained[0]), same_text(fact.answer)))
        if other is not None:
            raise FactsError(
                f"{shown_path(paths[0])}: {fact.id} is also {other.id} of "
                f"{paths[2].name}; a question is either forgotten or kept; give the files of one "
                "split"
            )
    return tofu


def draw_items(
    tofu: Tofu,
    forget: int,
    retain: int,
    seed_key: str,
    *,
    longest: int = 0,
    per_author: int = PER_AUTHOR,
    evidence: int = 3,
) -> Items:
    """Return the items of a cell, author by author in an order that the key gives.

    longest: most words of a question with its answer; 0 takes every one.
    """
    gone = _drawn(tofu.forget, forget, f"{seed_key}/forget", longest, per_author, tofu.split)
    kept = _drawn(
        tofu.retain, retain, f"{seed_key}/retain", longest, per_author, SPLITS[tofu.split]
    )
    return Items(gone, kept, {fact.id: nearest(fact, kept, evidence) for fact in gone})


def nearest(fact: Fact, retained: Sequence[Fact], count: int) -> tuple[str, ...]:
    """Return the retained questions, with their answers, that share most words with this one's."""
    asked = set(words(fact.trained[0]))

    def apart(other: Fact) -> float:
        theirs = set(words(other.trained[0]))
        return 1.0 - len(asked & theirs) / len(asked | theirs)

    chosen = sorted(retained, key=apart)[:count]
    return tuple(f"{other.trained[0]} {other.answer}" for other in chosen)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"[^\W_]+", text.casefold())


def _drawn(
    facts: Sequence[Fact], count: int, key: str, longest: int, per_author: int, name: str
) -> tuple[Fact, ...]:
    authors: dict[int, list[Fact]] = {}
    for fact in facts:
        if not longest or len(f"{fact.trained[0]} {fact.answer}".split()) <= longest:
            row = int(fact.id.rpartition("-")[2])
            authors.setdefault(row // per_author, []).append(fact)
    order = sorted(authors, key=lambda author: key_number(f"{key}/author/{author}"))
    drawn = [fact for author in order for fact in authors[author]][:count]
    if len(drawn) < count:
        limit = f" of at most {longest} words" if longest else ""
        raise FactsError(
            f"{name}: {count} items asked for, but it has {len(drawn)}{limit}; ask for fewer, or "
            "allow longer ones"
        )
    return tuple(drawn)


def _found(folder: Path, names: Sequence[str]) -> list[Path]:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "nothing"
        raise FactsError(
            f"{shown_path(folder)}: found {what} there; expected a folder with "
            f"{', '.join(f'{name}.json' for name in names)}"
        )
    paths = []
    for name in names:
        here = [folder / f"{name}{end}" for end in ENDINGS if (folder / f"{name}{end}").is_file()]
        if not here:
            raise FactsError(
                f"{shown_path(folder)}: holds no {name}.json (nor .jsonl, .parquet); expected "
                f"{', '.join(names)} as on the hub ({HUB}); name another split, or add the file"
            )
        paths.append(here[0])
    return paths


def _downloaded(names: Sequence[str]) -> list[Path]:
    import huggingface_hub

    try:
        return [
            Path(huggingface_hub.hf_hub_download(HUB, f"{name}.json", repo_type="dataset"))
            for name in names
        ]
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise FactsError(
            f"{HUB}: cannot be downloaded from the Hugging Face hub ({type(error).__name__}: "
            f"{first}); check the network, or download the data set elsewhere and give its folder "
            "with --data"
        ) from error


def _rows(path: Path) -> list[Row]:
    rows = read_rows(path)
    if not rows:
        raise FactsError(f"{shown_path(path)}: holds no rows; expected questions and answers")
    return rows


def _named(
    path: Path, rows: Sequence[Row], perturbed: Sequence[Row], prefix: str, missing: str
) -> tuple[Fact, ...]:
    try:
        return from_tofu(rows, perturbed, prefix=prefix, without_paraphrase=missing)
    except FactsError as error:
        raise FactsError(f"{shown_path(path)}: {error}") from error
