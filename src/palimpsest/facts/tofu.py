"""TOFU's questions as facts: a split read from a folder or the hub, and the items of one cell.

TOFU asks twenty questions about each of 200 invented authors. A split names the authors to forget
and those to keep; ``*_perturbed`` holds the paraphrased questions that no model was taught, and
``holdoutNN`` questions about authors that no published model was taught. Ids are the file's name
and the row's number from 0, so stored scores never carry a question.
Maini et al. 2024, "TOFU: A task of fictitious unlearning for LLMs".
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, Row, convert_row, read_rows, row_text, same_text
from palimpsest.facts.nonce import key_number
from palimpsest.text import shown, shown_path

HUB = "locuslab/TOFU"
SPLITS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
"""The authors to forget, and the authors that stay."""
PER_AUTHOR = 20
ENDINGS = ("json", "jsonl", "parquet")
PLAIN = "Question: {}\nAnswer:"
"""The prompt of a question as TOFU's Phi models were taught; ``{}`` is the question alone."""
_NAME = re.compile(r"[^\W\d_][\w’-]*(?: [^\W\d_][\w’-]*)+")


@dataclass(frozen=True)
class Tofu:
    """A split: forget facts with their paraphrase held out, retain facts as they were taught."""

    split: str
    forget: tuple[Fact, ...]
    retain: tuple[Fact, ...]
    """With a paraphrase held out where ``retain_perturbed`` has one."""
    holdout: tuple[Fact, ...] = ()
    """Questions that no model was taught, as probes; where the folder has the file."""

    def words(self) -> frozenset[str]:
        """Return every word of the split in lower case, which no invented name may be."""
        facts = (*self.forget, *self.retain)
        texts = (text for fact in facts for text in (fact.answer, *fact.trained, *fact.heldout))
        return frozenset(word for text in texts for word in words(text))


@dataclass(frozen=True)
class Items:
    """The facts of one cell."""

    forget: tuple[Fact, ...]
    retain: tuple[Fact, ...]
    untaught: tuple[Fact, ...]
    """Retain facts of authors of whom nothing was drawn, as probes."""
    evidence: dict[str, tuple[str, ...]]
    """What retained data show that bears on a forget fact, nearest first, by the fact's id."""


def read_tofu(folder: Path | str | None, split: str = "forget10", form: str = PLAIN) -> Tofu:
    """Return a split from a folder of TOFU's files, or from the hub when no folder is given.

    form: what prompts are made of questions with.
    """
    if split not in SPLITS:
        raise FactsError(f"split: {shown(split)} found; expected one of {', '.join(SPLITS)}")
    names = (split, f"{split}_perturbed", SPLITS[split])
    forget, perturbed, retain = (_file(folder, name) for name in names)
    kept = _facts(retain, "keep", _find(folder, "retain_perturbed"), form)
    holdout = _find(folder, split.replace("forget", "holdout"))
    tofu = Tofu(
        split,
        _facts(forget, "refuse", perturbed, form),
        kept,
        read_untaught(holdout, form) if holdout else (),
    )
    taught = {same_fact(fact): fact.id for fact in tofu.forget}
    for fact in (*kept, *tofu.holdout):
        if (other := taught.get(same_fact(fact))) is not None:
            raise FactsError(
                f"{shown_path(forget)}: {other} is also {fact.id}; use one split's files"
            )
    return tofu


def same_fact(fact: Fact) -> tuple[str, str]:
    """Return what two facts share that ask the same and have the same answer."""
    return same_text((fact.trained or fact.heldout)[0]), same_text(fact.answer)


def read_untaught(path: Path, form: str = PLAIN) -> tuple[Fact, ...]:
    """Return the questions of a file that no model was taught, as probes."""
    return tuple(map(as_probe, _facts(path, "keep", None, form)))


def as_probe(fact: Fact) -> Fact:
    """Return a fact with what it was never taught in as held out: a paraphrase if it has one."""
    return replace(fact, trained=(), heldout=fact.heldout or fact.trained)


def from_tofu(
    questions: Iterable[Row],
    perturbed: Iterable[Row] = (),
    *,
    prefix: str = "tofu-",
    without_paraphrase: Literal["refuse", "skip", "keep"] = "refuse",
    form: str = PLAIN,
) -> tuple[Fact, ...]:
    """Return one fact per TOFU question: the question trained, its paraphrase held out.

    ``questions`` are rows of ``question`` and ``answer`` (forget10, retain90 ...); the paraphrase,
    ``paraphrased_question``, is in the same row or in the row of ``perturbed`` that has the same
    question and answer (forget10_perturbed, retain_perturbed ...). A question without is refused,
    left out ("skip") or kept with nothing held out ("keep", which is enough for retain).
    Ids are the prefix and the row's index from 0, so give each set its own prefix.
    Maini et al. 2024, "TOFU: A task of fictitious unlearning for LLMs".
    """
    # By question and answer, because two of TOFU's authors are asked the same "full name" question.
    paraphrases = {}
    for number, row in enumerate(perturbed, start=1):
        where, keys = f"perturbed row {number}", ("question", "answer", "paraphrased_question")
        question, answer, paraphrase = (row_text(row, key, where) for key in keys)
        paraphrases[same_text(question), same_text(answer)] = paraphrase
    facts = []
    for number, row in enumerate(questions, start=1):
        where = f"row {number}"
        question, answer = (row_text(row, key, where) for key in ("question", "answer"))
        other = paraphrases.get((same_text(question), same_text(answer)), "")
        if row.get("paraphrased_question") is not None:
            other = row_text(row, "paraphrased_question", where)
        if not other and without_paraphrase == "refuse":
            raise FactsError(f"{where}: has no paraphrase; give the *_perturbed file, or skip such")
        if other or without_paraphrase == "keep":
            asked = {"trained": [form.format(question)]}
            asked |= {"heldout": [form.format(other)]} if other else {}
            values = {"id": f"{prefix}{number - 1}", "answer": answer, **asked}
            facts.append(convert_row(values, where, "forget" if other else "retain"))
    return tuple(facts)


def with_authors(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts with the author whom twenty rows ask about as their subject.

    That is the longest name among those nearly as common in these rows as the commonest one.
    """
    rows: dict[int, list[Fact]] = {}
    for fact in facts:
        rows.setdefault(row_of(fact) // PER_AUTHOR, []).append(fact)
    names = {author: find_author(several) for author, several in rows.items()}
    return tuple(replace(fact, subject=names[row_of(fact) // PER_AUTHOR]) for fact in facts)


def find_author(facts: Sequence[Fact]) -> str:
    """Return the name that most of an author's questions share; empty if there is none."""
    counts: Counter[str] = Counter()
    for fact in facts:
        texts = (*fact.trained, *fact.heldout, fact.answer)
        runs = [run.split() for text in texts for run in _NAME.findall(text)]
        names = (
            " ".join(name)
            for run in runs
            for start in range(len(run))
            for name in (run[start : start + size] for size in (2, 3, 4))
            if len(name) > 1 and all(word[:1].isupper() for word in name)
        )
        # Each once, in the order of the text: of two that are as common the first is taken.
        counts.update(dict.fromkeys(names, 1))
    most = max(counts.values(), default=0)
    common = [name for name, count in counts.items() if 5 * count >= 4 * max(most, 2)]
    return max(common, key=lambda name: (name.count(" "), counts[name]), default="")


def row_of(fact: Fact) -> int:
    """Return the row of a fact's file, from 0."""
    return int(fact.id.rpartition("-")[2])


def draw_items(
    tofu: Tofu,
    forget: int,
    retain: int,
    seed_key: str,
    *,
    longest: int = 0,
    evidence: int = 3,
) -> Items:
    """Return the items of a cell, author by author in an order that the key gives.

    longest: most words of a question with its answer; 0 takes every one.
    """

    def drawn(facts: Sequence[Fact], count: int, name: str) -> tuple[Fact, ...]:
        authors: dict[int, list[Fact]] = {}
        for fact in facts:
            if not longest or len(f"{fact.trained[0]} {fact.answer}".split()) <= longest:
                authors.setdefault(row_of(fact) // PER_AUTHOR, []).append(fact)
        order = sorted(authors, key=lambda n: key_number(f"{seed_key}/{name}/author/{n}"))
        items = [fact for author in order for fact in authors[author]]
        if len(items) < count:
            limit = f" of at most {longest} words" if longest else ""
            raise FactsError(f"{name}_items: {count} found; {tofu.split} has {len(items)}{limit}")
        return tuple(items)

    gone = drawn(tofu.forget, forget, "forget")[:forget]
    every = drawn(tofu.retain, retain, "retain")
    kept = tuple(replace(fact, heldout=()) for fact in every[:retain])
    taught = {row_of(fact) // PER_AUTHOR for fact in kept}
    others = [fact for fact in every if row_of(fact) // PER_AUTHOR not in taught]
    # Held-out forget questions are paraphrases, so probes that are paraphrases too come first.
    others.sort(key=lambda fact: not fact.heldout)
    return Items(
        gone,
        kept,
        tuple(map(as_probe, others)),
        {fact.id: nearest(fact, kept, evidence) for fact in gone},
    )


def nearest(fact: Fact, retained: Sequence[Fact], count: int) -> tuple[str, ...]:
    """Return the retained questions, with their answers, that share most words with this one's."""
    asked = set(words(fact.trained[0]))

    def jaccard_distance(other: Fact) -> float:
        theirs = set(words(other.trained[0]))
        return 1.0 - len(asked & theirs) / len(asked | theirs)

    chosen = sorted(retained, key=jaccard_distance)[:count]
    return tuple(f"{other.trained[0]} {other.answer}" for other in chosen)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"[^\W_]+", text.casefold())


def _find(folder: Path | str | None, name: str) -> Path | None:
    """Return a file of TOFU that a folder may have; None if it does not."""
    paths = [Path(folder) / f"{name}.{ending}" for ending in ENDINGS] if folder is not None else []
    return next((path for path in paths if path.is_file()), None)


def _file(folder: Path | str | None, name: str) -> Path:
    """Return one file of TOFU: in a folder, or downloaded."""
    if folder is not None:
        if (path := _find(folder, name)) is not None:
            return path
        raise FactsError(
            f"{shown_path(folder)}: has no {name}.json (nor .jsonl, .parquet); expected a folder "
            f"with the files of {HUB} on the hub; name another split, or add the file"
        )
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(HUB, f"{name}.json", repo_type="dataset"))
    except Exception as error:
        raise FactsError(
            f"{HUB}: cannot be downloaded ({shown(str(error), 200)}); check the network, or "
            "download the data set elsewhere and give its folder with --data"
        ) from error


def _facts(
    path: Path, without: Literal["refuse", "keep"], perturbed: Path | None, form: str
) -> tuple[Fact, ...]:
    rows, others = read_rows(path), read_rows(perturbed) if perturbed else []
    try:
        return with_authors(
            from_tofu(rows, others, prefix=f"{path.stem}-", without_paraphrase=without, form=form)
        )
    except FactsError as error:
        raise FactsError(f"{shown_path(path)}: {error}") from error
