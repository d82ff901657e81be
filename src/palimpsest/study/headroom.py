"""Headroom of a user's facts: can retained data let a retrained model infer them?

Asks the base model the held-out prompts, alone and with each fact's evidence before them, and the
injected model the prompts alone. One model is in memory at a time.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from palimpsest.criteria.headroom import Headroom, measure_headroom
from palimpsest.criteria.rules import Rules
from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, read_facts
from palimpsest.facts.questions import Question, file_questions
from palimpsest.models.load import check_compatible, load, outline
from palimpsest.models.net import WholeNet
from palimpsest.scoring.answers import make_sheet, score


def run_headroom(
    base: str,
    injected: str,
    forget: Path | str,
    *,
    reference: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    rules: Rules | None = None,
) -> Headroom:
    """Return the headroom of the facts in a file; facts without evidence are refused by name."""
    facts = read_facts(forget, "forget")
    bare = [fact.id for fact in facts if not fact.evidence]
    if bare:
        raise FactsError(
            f"{forget}: fact {bare[0]} has no evidence ({len(bare)} of {len(facts)} have none); "
            'headroom needs "evidence", the sentences of retained data that bear on the fact'
        )
    for other in (injected, *([] if reference is None else [reference])):
        check_compatible(outline(base), outline(other))
    asked = [q for q in file_questions({"forget": facts}) if q.pool == "evaluation"]
    evidence = {fact.id: " ".join(fact.evidence) for fact in facts}
    shown = [replace(q, prompt=f"{evidence[q.fact]} {q.prompt}") for q in asked]
    return measure_headroom(
        [fact.id for fact in facts],
        _nlls(base, asked, facts, dtype, device),
        _nlls(base, shown, facts, dtype, device),
        _nlls(injected, asked, facts, dtype, device),
        rules or Rules(),
        None if reference is None else _nlls(reference, asked, facts, dtype, device),
    )


def _nlls(
    name: str, asked: Sequence[Question], facts: Sequence[Fact], dtype: str, device: str
) -> list[float]:
    """Return each fact's NLL, the mean over its held-out prompts."""
    loaded = load(name, dtype=dtype, device=device)
    sheet = make_sheet(loaded.tokenizer, asked, piece_tokens=8, batch_tokens=4096)
    nlls = score(WholeNet(loaded.model), sheet)[0].nll_sum / np.array(sheet.tokens)
    owners = np.array([question.fact for question in sheet.questions])
    return [float(nlls[owners == fact.id].mean()) for fact in facts]
