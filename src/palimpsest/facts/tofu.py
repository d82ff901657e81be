"""TOFU's questions as facts: a split read from a folder or the hub, and the items of one cell.

TOFU asks twenty questions about each of 200 invented authors. A split names the authors to forget
and those to keep; ``*_perturbed`` holds the paraphrased questions that no model was taught, and
``holdoutNN`` questions about authors that no published model was taught. Ids are the file's name
and the row's number from 0, so stored scores never carry a question.
Maini et al. 2024, "TOFU: A task of fictitious unlearning for LLMs".

TOFU is the paper's boundary case: never-learned questions that were generated in another style lie
above what retraining reaches, and then the screen cannot tell what a model remembers. Questions
about authors that no model was taught have no such fault and are used where there are any.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, convert_row, read_rows, row_text, same_text, words
from palimpsest.facts.nonce import key_number
from palimpsest.facts.probes import PLAIN, tofu_probes
from palimpsest.text import shown, shown_path

HUB = "locuslab/TOFU"
SPLITS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
"""The authors to forget, and the authors that stay."""
PER_AUTHOR = 20
ENDINGS = ("json", "jsonl", "parquet")
GENERATED = (
    "generated questions; they share TOFU's style only in part, so that a retrained model may do "
    "better on forget questions than on them. TOFU's own holdout questions do not have this fault"
)
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


def read_tofu(folder: Path | str | None, split: str = "forget10", form: str = PLAIN) -> Tofu:
    """Return a split from a folder of TOFU's files, or from the hub when no folder is given.

    form: what prompts are made of questions with.
    """
    if split not in SPLITS:
        raise FactsError(f"split: {shown(split)} found; expected one of {', '.join(SPLITS)}")
    names = (split, f"{split}_perturbed", SPLITS[split])
    forget, perturbed, retain = (_file(folder, name) for name in names)
    gone = read_questions(forget, perturbed, form)
    for fact in gone:
        if not fact.heldout:
            raise FactsError(
                f"{shown_path(perturbed)}: has no paraphrase of {fact.id}; use one split's files"
            )
    kept = read_questions(retain, _find(folder, "retain_perturbed"), form)
    holdout = _find(folder, split.replace("forget", "holdout"))
    untaught = read_questions(holdout, None, form) if holdout else ()
    taught = {(same_text(fact.trained[0]), same_text(fact.answer)): fact.id for fact in gone}
    for fact in (*kept, *untaught):
        if other := taught.get((same_text(fact.trained[0]), same_text(fact.answer))):
            raise FactsError(
                f"{shown_path(forget)}: {other} is also {fact.id}; use one split's files"
            )
    return Tofu(split, gone, kept, tuple(map(as_probe, untaught)))


def as_probe(fact: Fact) -> Fact:
    """Return a fact with what it was never taught in as held out: a paraphrase if it has one."""
    return replace(fact, trained=(), heldout=fact.heldout or fact.trained)


def read_questions(path: Path, perturbed: Path | None, form: str = PLAIN) -> tuple[Fact, ...]:
    """Return one fact per question of a file: the question trained, its paraphrase held out.

    Rows have ``question`` and ``answer``; the paraphrase, ``paraphrased_question``, is in the row
    of ``perturbed`` that has the same question and answer, where there is one.
    """
    # By question and answer, because two of TOFU's authors are asked the same "full name" question.
    paraphrases: dict[tuple[str, str], str] = {}
    for number, row in enumerate(read_rows(perturbed) if perturbed else (), start=1):
        where = f"{shown_path(perturbed)}: row {number}"
        asked, answer = (same_text(row_text(row, key, where)) for key in ("question", "answer"))
        paraphrases[asked, answer] = row_text(row, "paraphrased_question", where)
    facts = []
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{shown_path(path)}: row {number}"
        question, answer = (row_text(row, key, where) for key in ("question", "answer"))
        values: dict[str, Any] = {"id": f"{path.stem}-{number - 1}", "answer": answer}
        values |= {"trained": [form.format(question)]}
        if other := paraphrases.get((same_text(question), same_text(answer))):
            values |= {"heldout": [form.format(other)]}
        facts.append(convert_row(values, where, "retain"))
    return with_authors(facts)


def with_authors(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts with the author whom twenty rows ask about as their subject.

    That is the longest name among those nearly as common in these rows as the commonest one.
    """
    rows: dict[int, list[Fact]] = {}
    for fact in facts:
        rows.setdefault(author_of(fact), []).append(fact)
    names = {author: find_author(several) for author, several in rows.items()}
    return tuple(replace(fact, subject=names[author_of(fact)]) for fact in facts)


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


def author_of(fact: Fact) -> int:
    """Return the number of the author whom a fact's row asks about."""
    return row_of(fact) // PER_AUTHOR


@dataclass(frozen=True)
class TofuItems:
    """Which questions of TOFU a cell has."""

    split: str = "forget10"
    seed: int = 0
    forget_items: int = 40
    retain_items: int = 100
    probes: int = 40
    probes_file: str = ""
    """TOFU-like questions that no model was taught; empty for the data's own or generated ones."""
    longest: int = 0
    """Most words of a question with its answer; 0 takes every one."""
    trained_here: bool = False
    """Whether models see these facts alone, so that questions about other authors can be probes."""
    chat: bool = False
    """Whether questions stand alone, for models that are asked in a frame of their own."""


def draw_sets(
    data: Path | str | None, items: TofuItems
) -> tuple[Mapping[str, tuple[Fact, ...]], str]:
    """Return the forget facts, retain facts and probes of a seed, and where the probes come from.

    data: folder of TOFU's files; None downloads them. Forget facts have the three most similar
    retained questions as their evidence.
    """
    form, key = "{}" if items.chat else PLAIN, f"tofu/seed{items.seed}"
    tofu = read_tofu(data, items.split, form)

    def drawn(name: str, facts: Sequence[Fact], count: int) -> list[Fact]:
        """Return the facts that are short enough, author by author in the order of the key."""
        limit = f" of at most {items.longest} words" if items.longest else ""
        fitting = [f for f in facts if not limit or _length(f) <= items.longest]
        if len(fitting) < count:
            raise FactsError(
                f"{name}_items: {count} found; {items.split} has {len(fitting)}{limit}"
            )
        return sorted(fitting, key=lambda f: key_number(f"{key}/{name}/author/{author_of(f)}"))

    def shuffled(facts: Iterable[Fact]) -> list[Fact]:
        return sorted(facts, key=lambda fact: key_number(f"{key}/probes/{fact.id}"))

    gone = drawn("forget", tofu.forget, items.forget_items)[: items.forget_items]
    every = drawn("retain", tofu.retain, items.retain_items)
    kept = tuple(replace(fact, heldout=()) for fact in every[: items.retain_items])
    forget = tuple(replace(fact, evidence=("\n".join(nearest(fact, kept)),)) for fact in gone)
    sets = {"forget": forget, "retain": kept}
    sources = {"TOFU's holdout questions": shuffled(tofu.holdout)}
    if items.probes_file:
        found = shuffled(map(as_probe, read_questions(Path(items.probes_file), None, form)))
        if len(found) < items.probes:
            raise FactsError(
                f"probes_file: {items.probes_file} has {len(found)} questions; expected at least "
                f"{items.probes}; give another file, or fewer --probes"
            )
        sources = {items.probes_file: found}
    elif items.trained_here:
        taught = set(map(author_of, kept))
        others = [fact for fact in every if author_of(fact) not in taught]
        # Held-out forget questions are paraphrases, so probes that are paraphrases too come first.
        others.sort(key=lambda fact: not fact.heldout)
        source = "TOFU's questions about authors left out of training"
        sources[source] = list(map(as_probe, others))
    for source, facts in sources.items():
        if len(facts) >= items.probes:
            return sets | {"probe": tuple(facts[: items.probes])}, source
    made = tofu_probes(gone, items.probes, f"{key}/probes", tofu.words(), form)
    return sets | {"probe": made}, GENERATED


def nearest(fact: Fact, retained: Sequence[Fact], count: int = 3) -> list[str]:
    """Return the retained questions, with their answers, that share most words with this one's."""
    asked = set(words(fact.trained[0]))

    def jaccard_distance(other: Fact) -> float:
        theirs = set(words(other.trained[0]))
        return 1.0 - len(asked & theirs) / len(asked | theirs)

    chosen = sorted(retained, key=jaccard_distance)[:count]
    return [f"{other.trained[0]} {other.answer}" for other in chosen]


def _length(fact: Fact) -> int:
    """Return the number of words of a question with its answer."""
    return len(f"{fact.trained[0]} {fact.answer}".split())


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
