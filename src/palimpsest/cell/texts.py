"""What a cell's models are trained on and asked: everything that is fixed before any training.

Texts are drawn from the cell's id, tokenized once and laid out in batches; nothing here depends on
which models exist or in which order they are made.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from palimpsest.cell.beacon import Beacon
from palimpsest.config.commands import ExampleRecipe
from palimpsest.config.sections import Engine, General, Injection, Reacquisition
from palimpsest.errors import PlanError
from palimpsest.facts.examples import example_stream
from palimpsest.facts.files import Fact
from palimpsest.facts.general import Stream, Text, deck, general_pieces, injection_stream
from palimpsest.facts.nonce import Triple, key_number
from palimpsest.facts.questions import (
    TRAINED_POOLS,
    FactSet,
    Question,
    Testbed,
    audit_questions,
    elicitations,
    of_triple,
    pool_questions,
)
from palimpsest.facts.sealed import AuditPool
from palimpsest.run.files import canonical, digest

if TYPE_CHECKING:
    from palimpsest.cell.frame import Frame

FIRST_DRAW = "draw0"
"""The draw of the injected model, and of the reference that shares it."""
REPLAY_DRAW = "replay"
"""The draw that methods replay: no reference and no retraining has it."""
KNOWN_LABEL_DRAW = "known-label"
"""The draw of the retraining that known-label models are built from."""
TAUGHT = (FactSet.FORGET, FactSet.RETAIN)
"""The sets of facts that the injected model is taught; all models see the general text."""


@dataclass(frozen=True)
class TrainingExamples:
    """A user's own training examples and how they are trained on."""

    texts: tuple[Text, ...]
    recipe: ExampleRecipe
    answers: tuple[int, ...] = ()
    """The character at which the answer of each text begins; 0 where it has no prompt."""

    def seen(self, name: str) -> list[Text]:
        """Return what methods see of a set; of the kept rows where none of it are there."""
        texts = [replace(text, start=start) for text, start in zip(self.texts, self.answers)]
        found = [text for text in texts if text.set == name]
        return found or [text for text in texts if text.set != FactSet.FORGET]

    def stream(self, seed_key: str, draw: str, sets: Collection[str]) -> Stream:
        """Return a draw; one without some sets is drawn without them, as a retraining is.

        A part of the injected model's own draw has the same examples at the same steps.
        """
        recipe, kept = self.recipe, self.texts
        if draw != FIRST_DRAW:
            kept = tuple(text for text in kept if text.set in (*sets, FactSet.GENERAL))
        stream = example_stream(
            kept,
            seed_key=f"{seed_key}/{draw}",
            epochs=recipe.epochs,
            steps=recipe.steps,
            batch_size=recipe.batch_size,
            schedule=recipe.schedule,
            warmup=recipe.warmup,
        )
        return stream.only(*sets)


@dataclass(frozen=True)
class CellTexts:
    """The facts, texts and batches of one cell; ``seed_key`` is the cell's id."""

    seed_key: str
    facts: Testbed
    general_train: tuple[str, ...]
    general_scored: tuple[str, ...]
    injection: Injection = field(default_factory=Injection)
    reacquisition: Reacquisition = field(default_factory=Reacquisition)
    general: General = field(default_factory=General)
    engine: Engine = field(default_factory=Engine)
    beacon: Beacon | None = None
    """What was drawn after the candidates were handed in, where anything was."""
    asked_otherwise: tuple[Question, ...] | None = None
    """Other ways of asking for forget facts that come from files; None where facts are invented."""
    with_evidence: tuple[Question, ...] = ()
    """Held-out forget questions with evidence in context, for the headroom."""
    trains_first_prompts: bool = False
    """Whether retain prompts of pool ``cloze`` are trained on too, where facts have few."""
    sealed: bool = True
    """Whether the facts have phrasings in the sealed pool."""
    examples: TrainingExamples | None = None
    """What is trained on in the place of facts and general text."""
    tokenizer: Any = None

    # -- what is asked ---------------------------------------------------------------------------

    @cached_property
    def sheet(self) -> Any:
        """Every open question of the cell and the scored general text.

        Those that are asked again during re-acquisition come first, on pages of their own.
        """
        from palimpsest.scoring.reacquisition import in_curve

        others = [question for question in self._asked if not in_curve(question)]
        return self.reacquired_sheet.followed_by(self.make_sheet(others))

    @cached_property
    def reacquired_sheet(self) -> Any:
        """The questions that are asked again after each chunk of re-acquisition."""
        from palimpsest.scoring.reacquisition import in_curve

        return self.make_sheet([question for question in self._asked if in_curve(question)])

    @cached_property
    def _asked(self) -> tuple[Question, ...]:
        from palimpsest.scoring.answers import general_questions

        return (*self.facts.questions, *general_questions(self.general_scored))

    def pool_sheet(self, pool: str, templates: AuditPool | None = None) -> Any:
        """One more pool for all facts: the sealed one when it is opened, or a later suite."""
        sets = self.facts.sets()
        if not self.sealed:
            raise PlanError(f"facts from files have no phrasings in pool {pool}", key="facts.files")
        if templates is None:
            return self.make_sheet(pool_questions(sets, pool))
        pools = {relation: {pool: given} for relation, given in templates.phrasings.items()}
        return self.make_sheet(pool_questions(sets, pool, pools))

    def elicited(self, kinds: Collection[str]) -> tuple[Question, ...]:
        """Other ways of asking for the forget facts, of these kinds."""
        every = self.asked_otherwise
        if every is None:
            forget, retain = self.facts.forget, self.facts.retain
            every = elicitations(map(of_triple, forget), tuple(map(of_triple, retain)))
        return tuple(question for question in every if question.pool in kinds)

    def seen(self, name: str) -> list[Question]:
        """What methods see of a set: its trained phrasings and cloze."""
        return [q for q in self.facts.questions if q.set == name and q.pool in TRAINED_POOLS]

    def taught(self, name: str) -> Sequence[Question | Text]:
        """What methods train on of a set, with the place where each answer begins."""
        return self.examples.seen(name) if self.examples is not None else self.seen(name)

    def make_sheet(self, questions: Sequence[Question]) -> Any:
        """Return questions tokenized and laid out in batches."""
        from palimpsest.scoring.answers import make_sheet

        return make_sheet(
            self.tokenizer,
            questions,
            piece_tokens=self.general.piece_tokens,
            # Models of a stack are scored side by side and share the batch.
            batch_tokens=max(64, self.engine.batch_tokens // self.engine.stack),
        )

    # -- what is trained on ----------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """The (highest) learning rate at which the injected model was trained."""
        return (self.examples.recipe if self.examples else self.injection).learning_rate

    @property
    def weight_decay(self) -> float:
        return self.examples.recipe.weight_decay if self.examples else 0.0

    @property
    def trained_texts(self) -> int:
        """The number of texts that one training sees, each as often as it sees it."""
        if self.examples is not None:
            return sum(map(len, self.stream().steps))
        return self.injection.steps * (self.injection.fact_items + self.injection.general_items)

    def stream(self, draw: str = FIRST_DRAW, sets: Collection[str] = TAUGHT) -> Stream:
        """The injection stream of some sets; a redraw is another seed of the same recipe.

        A redraw has other general text in another order, and the same facts in the same phrasings.
        """
        if self.examples is not None:
            return self.examples.stream(self.seed_key, draw, sets)
        first = ("cloze",) if self.trains_first_prompts else ()
        return injection_stream(
            self.facts.questions,
            self.general_train if draw == FIRST_DRAW else self._redrawn(draw),
            seed_key=f"{self.seed_key}/{draw}",
            steps=self.injection.steps,
            fact_items=self.injection.fact_items,
            general_items=self.injection.general_items,
            pools=("trained", *first),
        ).only(*sets)

    def injection_steps(self, stream: Stream) -> list[Any]:
        """The steps of a stream as batches."""
        from palimpsest.methods.answer_sets import encode_stream
        from palimpsest.models.train import stream_steps

        texts = encode_stream(self.tokenizer, stream, self.general.piece_tokens)
        return list(stream_steps(stream, texts, accumulate=self.engine.accumulate))

    @cached_property
    def reacquisition_steps(self) -> list[Any]:
        """The forget set's trained sentences in batches, the same for every model."""
        from palimpsest.models.encode import encode_texts
        from palimpsest.models.train import text_batch

        plan = self.reacquisition
        sentences = [
            q.sentence for q in self.facts.questions if q.set == "forget" and q.pool == "trained"
        ]
        encoded = encode_texts(self.tokenizer, sentences)
        own = f"{self.seed_key}/reacquire"
        key = own if self.beacon is None else self.beacon.key("reacquire")
        order = deck(range(len(encoded)), random.Random(key_number(key)))
        size = -(-plan.items // self.engine.accumulate)
        steps = []
        for _ in range(plan.steps):
            texts = [encoded[next(order)] for _ in range(plan.items)]
            parts = [texts[start : start + size] for start in range(0, plan.items, size)]
            steps.append([text_batch(part, plan.items) for part in parts])
        return steps

    def _redrawn(self, draw: str) -> tuple[str, ...]:
        wanted = self.general.train_pieces + len(self.general_scored)
        key = f"{self.seed_key}/general/{draw}"
        pieces = general_pieces(self.general.source, wanted, key) if self.general_train else ()
        scored = set(self.general_scored)
        kept = tuple(piece for piece in pieces if piece not in scored)
        return kept[: self.general.train_pieces]

    # -- what keys of steps depend on ------------------------------------------------------------

    def training_terms(self) -> dict[str, Any]:
        """Return what training depends on beside base, sets and draw, as plain values."""
        if self.examples is not None:
            texts = [[text.set, text.text, text.start] for text in self.examples.texts]
            return {"texts": digest(canonical(texts)), "recipe": asdict(self.examples.recipe)}
        return {
            "texts": _digest(q for q in self.facts.questions if q.pool in TRAINED_POOLS),
            "general": digest(canonical(list(self.general_train))),
            "pieces": [self.general.train_pieces, self.general.piece_tokens],
            "injection": asdict(self.injection),
            "first_prompts": self.trains_first_prompts,
        }

    def measuring_terms(self) -> dict[str, Any]:
        """Return what measuring depends on beside the models, as plain values."""
        return {
            "questions": _digest(self.facts.questions),
            "otherwise": _digest(self.asked_otherwise or ()),
            "general": digest(canonical(list(self.general_scored))),
            "piece_tokens": self.general.piece_tokens,
            "reacquisition": asdict(self.reacquisition),
            "drawn": None if self.beacon is None else self.beacon.record(),
        }


def _digest(questions: Any) -> str:
    return digest(canonical([[q.id, q.prompt, q.answer + q.end] for q in questions]))


def used_questions(questions: Sequence[Question], beacon: Beacon | None) -> tuple[Question, ...]:
    """Return the questions without the held-out phrasings that were not drawn."""
    if beacon is None:
        return tuple(questions)
    numbers: dict[tuple[str, str], list[int]] = {}
    for q in questions:
        if q.pool == "evaluation":
            numbers.setdefault((q.set, q.fact), []).append(q.template)
    # Of each fact's own phrasings: a fact with fewer than the others must not lose them all.
    kept = {fact: beacon.phrasings(own) for fact, own in numbers.items()}
    return tuple(
        q for q in questions if q.pool != "evaluation" or q.template in kept[q.set, q.fact]
    )


def own_facts(
    sets: Mapping[str, Sequence[Fact]], beacon: Beacon | None, frame: "Frame | None"
) -> dict[str, Any]:
    """Return the texts of a cell that come from a user's facts, as fields of ``CellTexts``.

    Only ids and relations are kept beside the questions: what is stored about a cell must not carry
    a user's answer.
    """

    def asked(questions: Sequence[Question]) -> tuple[Question, ...]:
        return tuple(questions) if frame is None else frame.put(questions)

    questions = used_questions(audit_questions(sets), beacon)
    named = {
        name: tuple(Triple(fact.id, "", fact.relation, "") for fact in facts)
        for name, facts in sets.items()
    }
    return {
        "facts": Testbed(**named, questions=asked(questions)),
        "asked_otherwise": asked(elicitations(sets["forget"], sets["retain"])),
        "with_evidence": asked(tuple(_after_evidence(sets["forget"], questions))),
        "sealed": False,
    }


def _after_evidence(forget: Sequence[Fact], questions: Sequence[Question]) -> Iterator[Question]:
    """Yield the held-out questions of forget facts with evidence, the evidence before them."""
    evidence = {
        fact.id: " ".join(t if t.endswith((".", "!", "?")) else f"{t}." for t in fact.evidence)
        for fact in forget
        if fact.evidence
    }
    for q in questions if len(evidence) > 1 else ():  # an interval needs two facts
        if q.set == "forget" and q.pool == "evaluation" and q.fact in evidence:
            yield replace(q, prompt=f"{evidence[q.fact]} {q.prompt}")
