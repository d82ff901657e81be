"""What a cell's models are trained on and asked: everything that is fixed before any training.

Texts are drawn from the cell's id, tokenised once and laid out in batches; nothing here depends on
which models exist or in which order they are made.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from palimpsest.criteria.beacon import Draw
from palimpsest.errors import PlanError
from palimpsest.facts.elicitation import elicitations, file_elicitations, of_triple
from palimpsest.facts.files import check_sets
from palimpsest.facts.general import general_pieces
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import (
    TRAINED_POOLS,
    Question,
    Testbed,
    draw_testbed,
    file_testbed,
    pool_questions,
)
from palimpsest.facts.sealed import AuditPool
from palimpsest.facts.stream import Stream, deck, injection_stream
from palimpsest.methods.recipe import stream_batches
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Encoded
from palimpsest.models.train import TextBatch, text_batch
from palimpsest.plan import CellPlan
from palimpsest.scoring.answers import Sheet, general_questions, make_sheet
from palimpsest.scoring.roundtrip import on_the_way


@dataclass(frozen=True)
class Setting:
    """The facts, texts and batches of one cell."""

    cell: CellPlan
    tokenizer: Any
    facts: Testbed
    general_train: tuple[str, ...]
    general_scored: tuple[str, ...]
    drawn: Draw | None = None
    """What was drawn after the candidates were handed in, where anything was."""
    asked_otherwise: tuple[Question, ...] = ()
    """Other ways of asking for forget facts that come from files."""

    @property
    def rate(self) -> float:
        """Factor of the learning rate of re-acquisition."""
        return 1.0 if self.drawn is None else self.drawn.rate

    @property
    def optimiser(self) -> str:
        """The optimiser of re-acquisition."""
        return "adamw" if self.drawn is None else self.drawn.optimiser

    @property
    def pad(self) -> int:
        """A token id that fills the right end of a row; never scored, so any will do."""
        return int(self.tokenizer.pad_token_id or 0)

    @cached_property
    def sheet(self) -> Sheet:
        """Every open question of the cell and the scored general text."""
        return self._sheet((*self.facts.questions, *general_questions(self.general_scored)))

    @cached_property
    def way_back(self) -> Sheet:
        """The questions that are asked again after each chunk of re-acquisition."""
        return self._sheet([q for q in self.sheet.questions if on_the_way(q)])

    def pool_sheet(self, pool: str, templates: AuditPool | None = None) -> Sheet:
        """One more pool for all facts: ``audit`` when the seal is opened, or a later suite."""
        sets = self.facts.sets()
        if self.cell.plan.facts.files:
            raise PlanError(f"pool {pool}: facts from files have no phrasings there")
        if templates is None:
            return self._sheet(pool_questions(sets, pool))
        pools = {relation: {pool: given} for relation, given in templates.phrasings.items()}
        return self._sheet(pool_questions(sets, pool, pools))

    def elicited(self, kinds: Collection[str]) -> Sheet:
        """Other ways of asking for the forget facts, of these kinds."""
        forget, retain = (map(of_triple, some) for some in (self.facts.forget, self.facts.retain))
        every = self.asked_otherwise or elicitations(forget, tuple(retain))
        return self._sheet([question for question in every if question.pool in kinds])

    def lesson(self, name: str) -> tuple[Encoded, ...]:
        """What methods see of a set: its trained phrasings and cloze, scored at the answers."""
        return encode_answers(self.tokenizer, self.seen(name))

    def seen(self, name: str) -> list[Question]:
        """The questions behind ``lesson``."""
        return [q for q in self.facts.questions if q.set == name and q.pool in TRAINED_POOLS]

    def stream(self, draw: int = 0) -> Stream:
        """The injection stream; an independent redraw is another seed of the same recipe.

        A redraw has other general text in another order, and the same facts in the same phrasings.
        """
        plan = self.cell.plan.injection
        return injection_stream(
            self.facts.questions,
            self.general_train if draw == 0 else self._redrawn(draw),
            seed_key=f"{self.cell.id}/draw{draw}",
            steps=plan.steps,
            fact_items=plan.fact_items,
            general_items=plan.general_items,
        )

    def injection_steps(self, stream: Stream) -> list[list[TextBatch]]:
        """The steps of a stream as batches."""
        plan = self.cell.plan
        return stream_batches(
            self.tokenizer,
            stream,
            plan.general.piece_tokens,
            pad=self.pad,
            accumulate=plan.engine.accumulate,
        )

    @cached_property
    def way_back_steps(self) -> list[list[TextBatch]]:
        """Re-acquisition: the forget set's trained sentences, the same for every model."""
        plan = self.cell.plan.round_trip
        sentences = [
            q.sentence for q in self.facts.questions if q.set == "forget" and q.pool == "trained"
        ]
        encoded = encode_texts(self.tokenizer, sentences)
        key = f"{self.cell.id}/reacquire" if self.drawn is None else self.drawn.key("reacquire")
        order = deck(range(len(encoded)), random.Random(key_number(key)))
        size = -(-plan.items // self.cell.plan.engine.accumulate)
        steps = []
        for _ in range(plan.steps):
            texts = [encoded[next(order)] for _ in range(plan.items)]
            parts = [texts[start : start + size] for start in range(0, plan.items, size)]
            steps.append([text_batch(part, plan.items, self.pad) for part in parts])
        return steps

    def _redrawn(self, draw: int) -> tuple[str, ...]:
        general = self.cell.plan.general
        wanted = general.train_pieces + len(self.general_scored)
        pieces = general_pieces(general.source, wanted, f"{self.cell.id}/general/draw{draw}")
        scored = set(self.general_scored)
        return tuple(piece for piece in pieces if piece not in scored)[: general.train_pieces]

    def _sheet(self, questions: Sequence[Question]) -> Sheet:
        plan = self.cell.plan
        return make_sheet(
            self.tokenizer,
            questions,
            piece_tokens=plan.general.piece_tokens,
            # Models of a stack are scored side by side and share the batch.
            batch_tokens=max(64, plan.engine.batch_tokens // plan.engine.stack),
            pad=self.pad,
        )


def make_setting(cell: CellPlan, tokenizer: Any) -> Setting:
    """Return the setting of a cell; too few names or too short a text is an error here."""
    plan = cell.plan
    counts = plan.facts
    drawn = Draw(plan.beacon, {"cell": cell.id}) if plan.beacon else None
    otherwise: tuple[Question, ...] = ()
    if counts.files:
        facts = file_testbed(dict(counts.files))
        otherwise = file_elicitations(check_sets(dict(counts.files)))
    else:
        facts = draw_testbed(
            cell.id,
            counts.forget,
            counts.retain,
            counts.probes,
            counts.phrasings,
            probe_key=None if drawn is None else drawn.key("probes"),
        )
    facts = replace(facts, questions=used(facts.questions, drawn))
    train, scored = plan.general.train_pieces, plan.general.scored_pieces
    pieces = general_pieces(plan.general.source, train + scored, f"{cell.id}/general")
    return Setting(cell, tokenizer, facts, pieces[:train], pieces[train:], drawn, otherwise)


def used(questions: Sequence[Question], drawn: Draw | None) -> tuple[Question, ...]:
    """Return the questions without the held-out phrasings that were not drawn."""
    if drawn is None:
        return tuple(questions)
    kept = drawn.phrasings([q.template for q in questions if q.pool == "evaluation"])
    return tuple(q for q in questions if q.pool != "evaluation" or q.template in kept)
