"""Facts as questions: a prompt, the answer that continues it, and where it came from.

Both the testbed (invented triples and template pools) and a user's own files become questions;
everything after this point knows nothing else about facts.

Other ways of asking for a forget fact show what a model that only hides may still answer. No
training text continues in their words, and nothing is taught: a model that never learned the facts
gains nothing. Names are varied after arXiv:2409.18025, questions from the object to the subject and
behind an affirmative opening are RWKU's (arXiv:2406.10890), those behind sentences of other facts
are after arXiv:2411.12103.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import (
    POOLS,
    RELATIONS,
    Pools,
    Triple,
    invent_facts,
    key_number,
    render,
    words_of,
)

FactSet = StrEnum("FactSet", "FORGET RETAIN PROBE GENERAL FURTHER INVENTED")
"""What a question is about, stored as the column ``set``; FURTHER and INVENTED are never stored."""

Pool = StrEnum(
    "Pool",
    "TRAINED CLOZE EVALUATION CALIBRATION PROSE AUDIT GENERAL "
    # Other ways of asking (``elicitations``).
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
    end: str = ""
    """What closes the answer, where prompt and answer are exactly as models were trained on them;
    then nothing is put between the two."""

    @property
    def id(self) -> str:
        return f"{self.set}/{self.fact}/{self.pool}/{self.template}"

    @property
    def text(self) -> str:
        """The prompt and its answer as running text; a space between unless something is open."""
        if self.end:
            return f"{self.prompt}{self.answer}{self.end}"
        last = self.prompt[-1:]
        gap = "" if not last or last.isspace() or last in "\"'([{“‘" else " "
        return f"{self.prompt}{gap}{self.answer}"

    @property
    def sentence(self) -> str:
        """The text as it is trained on, closed by a full stop."""
        closed = self.end or self.text.endswith((".", "!", "?"))
        return self.text if closed else f"{self.text}."


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
    gone = invent_facts(forget, f"{cell}/forget", RELATIONS, frozenset(), key="facts.forget")
    kept = invent_facts(retain, f"{cell}/retain", RELATIONS, words_of(gone), key="facts.retain")
    taken = words_of(gone + kept)
    never = invent_facts(probes, probe_key or f"{cell}/probe", RELATIONS, taken, key="facts.probes")
    questions = (
        question
        for name, triples in (("forget", gone), ("retain", kept), ("probe", never))
        for triple in triples
        for question in fact_questions(name, triple, phrasings)
    )
    return Testbed(gone, kept, never, tuple(questions))


def invent(
    seed: str = "0", *, forget: int = 4, retain: int = 4, probes: int = 16
) -> dict[str, tuple[Fact, ...]]:
    """Return invented facts by set: to forget, to retain, and probes, which no model learns.

    ::

        facts = palimpsest.facts.invent("my seed")
        facts["forget"][0].trained, facts["forget"][0].answer
    """
    bed, sets = draw_testbed(seed, forget, retain, probes, 3), dict[str, tuple[Fact, ...]]()
    for name, triples in bed.sets().items():
        asked = {triple.id: [q for q in bed.questions if q.fact == triple.id] for triple in triples}
        sets["probes" if name == "probe" else name] = tuple(
            Fact(
                triple.id,
                triple.object,
                tuple(q.prompt for q in asked[triple.id] if q.pool in TRAINED_POOLS),
                tuple(q.prompt for q in asked[triple.id] if q.pool == Pool.EVALUATION),
                subject=triple.subject,
                relation=triple.relation,
            )
            for triple in triples
        )
    return sets


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


def audit_questions(sets: Mapping[str, Sequence[Fact]]) -> tuple[Question, ...]:
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


ASK = 2
"""Held-out phrasings that each kind of question uses."""
SHOTS = 3
"""Sentences of other facts before a few-shot question."""
OPENER = "Yes, this is well known to all."
ASKED = (
    *(Pool.SYMBOLS, Pool.RECASED, Pool.MISSPELT, Pool.ALIAS),
    *(Pool.PRONOUN, Pool.REVERSED, Pool.OPENER, Pool.FEW_SHOT),
)
"""The kinds of questions, in the order in which they are asked."""


def of_triple(fact: Triple) -> Fact:
    """Return an invented fact as a file would have it."""
    heldout = [render(template, fact.subject) for template in POOLS[fact.relation]["evaluation"]]
    return Fact(fact.id, fact.object, (), tuple(heldout), (), fact.subject, fact.relation)


def elicitations(forget: Iterable[Fact], retain: Sequence[Fact]) -> tuple[Question, ...]:
    """Return the questions of every kind, with the kind as their pool.

    A kind that not every forget fact can be asked in is left out.
    """
    asked = [(fact, _prompts(fact, retain)) for fact in forget]
    questions = []
    for kind in ASKED:
        for fact, prompts in asked if all(prompts[kind] for _, prompts in asked) else ():
            answer = fact.subject if kind == Pool.REVERSED else fact.answer
            for number, prompt in enumerate(prompts[kind]):
                questions.append(Question(FactSet.FORGET, fact.id, kind, number, prompt, answer))
    return tuple(questions)


def reversible(forget: Iterable[Fact]) -> bool:
    """Return whether these facts can be asked from the answer to the subject."""
    return all(fact.subject and fact.relation for fact in forget)


def _phrasings(fact: Fact) -> list[str]:
    """Return the prompts that can be varied: held-out ones, if any, that name the subject."""
    prompts = fact.heldout or fact.trained
    return [prompt for prompt in prompts if fact.subject and fact.subject in prompt][:ASK]


def _prompts(fact: Fact, others: Sequence[Fact]) -> dict[Pool, list[str]]:
    """Return a fact's prompts by kind; none of a kind that it cannot be asked in."""
    plain, subject = _phrasings(fact), fact.subject
    words = subject.split() or [""]
    first, last = words[0], words[-1]
    swapped = [f"{first[:1]}{first[2:3]}{first[1:2]}{first[3:]}", *words[1:]]
    shorter = [*words[:-1], f"{last[:2]}{last[3:]}"]
    names = {
        Pool.SYMBOLS: [_marked(words, sign) for sign in "-."],
        Pool.RECASED: [subject.lower(), subject.upper()],
        Pool.MISSPELT: [" ".join(swapped), " ".join(shorter)],
        Pool.ALIAS: [first, f"{last}, {first}"],
    }
    back = [
        f"{fact.answer} is the {fact.relation} of",
        f"The {fact.relation} called {fact.answer} belongs to",
    ]
    renamed = {
        kind: [prompt.replace(subject, name, 1) for prompt, name in zip(plain, several)]
        for kind, several in names.items()
    }
    return renamed | {
        Pool.PRONOUN: [f"I met {subject}. {p.replace(subject, 'this person', 1)}" for p in plain],
        Pool.REVERSED: back if reversible([fact]) else [],
        Pool.OPENER: [f"{OPENER} {prompt}" for prompt in plain],
        Pool.FEW_SHOT: [f"{_shots(others, number)} {p}" for number, p in enumerate(plain)],
    }


def _marked(words: Sequence[str], sign: str) -> str:
    """Return a name with a sign after every second letter of a word."""
    return " ".join(sign.join(word[i : i + 2] for i in range(0, len(word), 2)) for word in words)


def _shots(others: Sequence[Fact], number: int) -> str:
    """Return the first other facts as sentences, each in its phrasing of this number."""
    asked = [(other.answer, _phrasings(other)[number:]) for other in others[:SHOTS]]
    return " ".join(f"{prompts[0]} {answer}." for answer, prompts in asked if prompts)
