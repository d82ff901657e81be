"""Facts as questions: a prompt, the answer that continues it, and where it came from.

Both the testbed (invented triples and template pools) and a user's own files become questions;
everything after this point knows nothing else about facts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, check_sets
from palimpsest.facts.names import shown_path
from palimpsest.facts.nonce import Triple, draw, key_number, words_of
from palimpsest.facts.templates import POOLS, RELATIONS, Pools, render

FactSet = StrEnum("FactSet", "FORGET RETAIN PROBE GENERAL FURTHER INVENTED")
"""What a question is about, stored as the column ``set``; FURTHER and INVENTED are never stored."""

Pool = StrEnum(
    "Pool",
    "TRAINED CLOZE EVALUATION CALIBRATION PROSE AUDIT GENERAL "
    # Other ways of asking (elicitation.py).
    "SYMBOLS RECASED MISSPELT ALIAS PRONOUN REVERSED OPENER FEW_SHOT "
    # What methods, criteria and known-label models make for themselves; never stored.
    "OWN REFUSAL DISTRACTOR PREFIXED",
)
"""In which kind of words a question is put, stored as the column ``pool``."""

TRAINED_POOLS = (Pool.TRAINED, Pool.CLOZE)
"""Phrasings that methods may see and that the trained-probe criterion is measured on."""


@dataclass(frozen=True, slots=True)
class Question:
    """One phrasing of one fact."""

    set: FactSet
    fact: str
    pool: Pool
    template: int
    prompt: str
    answer: str

    @property
    def id(self) -> str:
        return f"{self.set}/{self.fact}/{self.pool}/{self.template}"

    @property
    def text(self) -> str:
        """The prompt and its answer as running text; a space between unless something is open."""
        last = self.prompt[-1:]
        gap = "" if not last or last.isspace() or last in "\"'([{“‘" else " "
        return f"{self.prompt}{gap}{self.answer}"

    @property
    def sentence(self) -> str:
        """The text as it is trained on, closed by a full stop."""
        return self.text if self.text.endswith((".", "!", "?")) else f"{self.text}."


@dataclass(frozen=True)
class Testbed:
    """The facts of one cell: three sets that share no word, and their questions."""

    forget: tuple[Triple, ...]
    retain: tuple[Triple, ...]
    probe: tuple[Triple, ...]
    questions: tuple[Question, ...]
    """Of every pool but ``audit``, which stays sealed until the known-label models are scored."""

    def sets(self) -> dict[str, tuple[Triple, ...]]:
        return {"forget": self.forget, "retain": self.retain, "probe": self.probe}


def draw_testbed(
    cell: str,
    forget: int,
    retain: int,
    probes: int,
    phrasings: int,
    probe_key: str | None = None,
) -> Testbed:
    """Return the facts of a cell, drawn from three disjoint seeds derived from its id.

    probe_key: another seed for the probes, where they are drawn later.
    """
    gone = draw(forget, f"{cell}/forget", RELATIONS, frozenset(), key="facts.forget")
    kept = draw(retain, f"{cell}/retain", RELATIONS, words_of(gone), key="facts.retain")
    taken = words_of(gone + kept)
    never = draw(probes, probe_key or f"{cell}/probe", RELATIONS, taken, key="facts.probes")
    facts = Testbed(gone, kept, never, ())
    questions = (
        question
        for name, triples in facts.sets().items()
        for triple in triples
        for question in fact_questions(name, triple, phrasings)
    )
    return replace(facts, questions=tuple(questions))


def fact_questions(name: str, triple: Triple, phrasings: int) -> Iterator[Question]:
    """Yield a fact's open questions: some injection phrasings as trained, cloze and evaluation."""
    injection = POOLS[triple.relation]["injection"]
    order = sorted(range(len(injection)), key=lambda n: key_number(f"{triple.id}/phrasing/{n}"))
    for number in sorted(order[:phrasings]):
        prompt = render(injection[number], triple.subject)
        yield Question(FactSet(name), triple.id, Pool.TRAINED, number, prompt, triple.object)
    for pool in (Pool.CLOZE, Pool.EVALUATION):
        yield from pool_questions({name: (triple,)}, pool)


def pool_questions(
    sets: Mapping[str, Sequence[Triple]], pool: str, pools: Pools = POOLS
) -> tuple[Question, ...]:
    """Return every phrasing of one pool for the facts of the sets."""
    return tuple(
        Question(FactSet(name), fact.id, Pool(pool), n, render(template, fact.subject), fact.object)
        for name, facts in sets.items()
        for fact in facts
        for n, template in enumerate(pools[fact.relation][pool])
    )


def file_questions(sets: Mapping[str, Iterable[Fact]]) -> tuple[Question, ...]:
    """Return the questions of a user's facts; ``heldout`` prompts are the evaluation pool."""
    return tuple(
        Question(FactSet(name), fact.id, pool, number, prompt, fact.answer)
        for name, facts in sets.items()
        for fact in facts
        for pool, prompts in ((Pool.TRAINED, fact.trained), (Pool.EVALUATION, fact.heldout))
        for number, prompt in enumerate(prompts)
    )


def audit_questions(sets: Mapping[str, tuple[Fact, ...]]) -> tuple[Question, ...]:
    """Return the questions of a user's facts, with a cloze for every retain fact.

    The retain axis is measured on pool ``cloze``, which files do not have: there it is each retain
    fact's first trained prompt, moved and not repeated, so that no position counts twice in the
    residual.
    """
    first = (FactSet.RETAIN, Pool.TRAINED, 0)
    return tuple(
        replace(q, pool=Pool.CLOZE) if (q.set, q.pool, q.template) == first else q
        for q in file_questions(sets)
    )


def file_testbed(files: Mapping[str, str]) -> Testbed:
    """Return the facts of the files for forget, retain and probes, as the facts of a cell.

    Only ids and relations are kept beside the questions: what is stored about a cell must not
    carry a user's answer.
    """
    sets = check_sets({"probe" if role == "probes" else role: files[role] for role in files})
    for fact in sets["retain"]:
        if len(fact.trained) < 2:
            where = f"{shown_path(files['retain'])}: {fact.id}"
            raise FactsError(f"{where}: trained: expected two prompts; the first is only asked")
    named = {
        role: tuple(Triple(fact.id, "", fact.relation, "") for fact in facts)
        for role, facts in sets.items()
    }
    return Testbed(**named, questions=audit_questions(sets))
