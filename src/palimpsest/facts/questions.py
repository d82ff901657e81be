"""Facts as questions: a prompt, the answer that continues it, and where it came from.

Both the testbed (invented triples and template pools) and a user's own files become questions;
everything after this point knows nothing else about facts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, check_sets
from palimpsest.facts.names import shown_path
from palimpsest.facts.nonce import Triple, draw, key_number, words_of
from palimpsest.facts.templates import POOLS, RELATIONS, Pools, render

TRAINED_POOLS = ("trained", "cloze")
"""Phrasings that methods may see and that the trained-probe criterion is measured on."""


@dataclass(frozen=True, slots=True)
class Question:
    """One phrasing of one fact; ``set`` is forget, retain or probe."""

    set: str
    fact: str
    pool: str
    template: int
    prompt: str
    answer: str

    @property
    def id(self) -> str:
        return f"{self.set}/{self.fact}/{self.pool}/{self.template}"

    @property
    def text(self) -> str:
        """The prompt and its answer, joined as running text."""
        return joined(self.prompt, self.answer)

    @property
    def sentence(self) -> str:
        """The text as it is trained on, closed by a full stop."""
        return self.text if self.text.endswith((".", "!", "?")) else f"{self.text}."


def joined(prompt: str, answer: str) -> str:
    """Return prompt and answer as one text, a space between unless the prompt opens something."""
    gap = "" if not prompt or prompt[-1].isspace() or prompt[-1] in "\"'([{“‘" else " "
    return f"{prompt}{gap}{answer}"


@dataclass(frozen=True)
class Testbed:
    """The facts of one cell: three sets that share no word, and their questions."""

    forget: tuple[Triple, ...]
    retain: tuple[Triple, ...]
    probe: tuple[Triple, ...]
    questions: tuple[Question, ...]
    """Of every pool but ``audit``, which stays sealed until the panel."""

    def sets(self) -> dict[str, tuple[Triple, ...]]:
        return {"forget": self.forget, "retain": self.retain, "probe": self.probe}


def draw_testbed(
    cell: str,
    forget: int,
    retain: int,
    probes: int,
    phrasings: int,
    pools: Pools = POOLS,
    probe_key: str | None = None,
) -> Testbed:
    """Return the facts of a cell, drawn from three disjoint seeds derived from its id.

    probe_key: another seed for the probes, where they are drawn later.
    """
    sets: dict[str, tuple[Triple, ...]] = {}
    taken: frozenset[str] = frozenset()
    for name, count, key in (
        ("forget", forget, "facts.forget"),
        ("retain", retain, "facts.retain"),
        ("probe", probes, "facts.probes"),
    ):
        seed = probe_key if name == "probe" and probe_key else f"{cell}/{name}"
        sets[name] = draw(count, seed, RELATIONS, taken, key=key)
        taken |= words_of(sets[name])
    questions = tuple(
        question
        for name, triples in sets.items()
        for triple in triples
        for question in fact_questions(name, triple, phrasings, pools)
    )
    return Testbed(sets["forget"], sets["retain"], sets["probe"], questions)


def pool_questions(
    sets: Mapping[str, Sequence[Triple]], pool: str, pools: Pools = POOLS
) -> tuple[Question, ...]:
    """Return every phrasing of one pool for the facts of the sets."""
    return tuple(
        Question(name, triple.id, pool, number, render(template, triple.subject), triple.object)
        for name, triples in sets.items()
        for triple in triples
        for number, template in enumerate(pools[triple.relation][pool])
    )


def file_questions(sets: Mapping[str, Iterable[Fact]]) -> tuple[Question, ...]:
    """Return the questions of a user's facts; ``heldout`` prompts are the evaluation pool."""
    return tuple(
        Question(name, fact.id, pool, number, prompt, fact.answer)
        for name, facts in sets.items()
        for fact in facts
        for pool, prompts in (("trained", fact.trained), ("evaluation", fact.heldout))
        for number, prompt in enumerate(prompts)
    )


def audit_questions(sets: Mapping[str, tuple[Fact, ...]]) -> tuple[Question, ...]:
    """Return the questions of a user's facts.

    Trained prompts are pool ``trained`` and held-out ones pool ``evaluation``. The retain axis is
    measured on pool ``cloze``, which files do not have: there it is each retain fact's first
    trained prompt, moved and not repeated, so that no position counts twice in the residual.
    """
    return tuple(
        replace(question, pool="cloze")
        if question.set == "retain" and question.pool == "trained" and question.template == 0
        else question
        for question in file_questions(sets)
    )


def file_testbed(files: Mapping[str, str]) -> Testbed:
    """Return the facts of the files for forget, retain and probes, as the facts of a cell.

    Only ids and relations are kept beside the questions: what is stored about a cell must not
    carry a user's answer.
    """
    sets = check_sets({"probe" if role == "probes" else role: files[role] for role in files})
    for fact in sets["retain"]:
        if len(fact.trained) < 2:
            raise FactsError(
                f"{shown_path(files['retain'])}: {fact.id} has one trained prompt; expected two or "
                "more of every retain fact: the first is asked and never trained on"
            )
    named = {
        role: tuple(Triple(fact.id, "", fact.relation, "") for fact in facts)
        for role, facts in sets.items()
    }
    return Testbed(named["forget"], named["retain"], named["probe"], audit_questions(sets))


def fact_questions(
    name: str, triple: Triple, phrasings: int, pools: Pools = POOLS
) -> Iterator[Question]:
    """Yield a fact's open questions: some injection phrasings as trained, cloze and evaluation."""
    injection = pools[triple.relation]["injection"]
    order = sorted(
        range(len(injection)), key=lambda number: key_number(f"{triple.id}/phrasing/{number}")
    )
    for number in sorted(order[:phrasings]):
        prompt = render(injection[number], triple.subject)
        yield Question(name, triple.id, "trained", number, prompt, triple.object)
    for pool in ("cloze", "evaluation"):
        yield from pool_questions({name: (triple,)}, pool, pools)
