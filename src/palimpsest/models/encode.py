"""Texts as token ids, with the answer span found by character offsets.

Prompt and answer are tokenized together, because a tokenizer may merge across their border; the
answer's tokens are those that reach past the prompt's last character.
"""

from collections.abc import Sequence
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.facts.general import Text
from palimpsest.facts.questions import Question
from palimpsest.models.device import foreign
from palimpsest.models.net import Encoded
from palimpsest.models.tokenizer import TOKENIZER

NEED_START = ("gemma", "gemma2", "gemma3_text", "mistral", "mixtral", "cohere", "cohere2")
"""Architectures that predict badly without their first token."""


def encode_answers(tokenizer: Any, questions: Sequence[Question | Text]) -> tuple[Encoded, ...]:
    """Return each question as token ids with its answer as the scored span."""
    batch = _tokenize(tokenizer, [question.text for question in questions])
    encoded = []
    for question, ids, offsets in zip(questions, *batch):
        # Tokens put around the text have the offsets (0, 0); those at its end are not scored.
        past = [n for n, (_, end) in enumerate(offsets) if end > len(question.prompt)]
        if not past or past[0] == 0:
            what = "no token stands before" if past else "the tokenizer gives no token for"
            raise ModelError(f"question {question.id}: {what} the answer {question.answer!r}")
        encoded.append(Encoded(tuple(ids[: past[-1] + 1]), past[0]))
    return tuple(encoded)


def encode_texts(
    tokenizer: Any, texts: Sequence[str], limit: int | None = None
) -> tuple[Encoded, ...]:
    """Return each text as token ids, scored from its second token, cut to ``limit`` tokens."""
    all_ids, _ = _tokenize(tokenizer, list(texts))
    for text, ids in zip(texts, all_ids):
        if len(ids[:limit]) < 2:
            raise ModelError(f"text {text[:40]!r} has {len(ids[:limit])} tokens; expected two")
    return tuple(Encoded(tuple(ids[:limit]), 1) for ids in all_ids)


def start_remark(tokenizer: Any, model_type: str) -> str:
    """Return a warning where a family needs its first token and the tokenizer adds none."""
    start = tokenizer.bos_token
    needed = model_type in NEED_START or start in ("<s>", "<|begin_of_text|>", "<bos>")
    if not needed or start is None or adds_start(tokenizer):
        return ""
    return (
        f"models of type {model_type} are trained with {start!r} before every text, and this "
        "tokenizer does not add it; answers may be scored as less likely than they are"
    )


def adds_start(tokenizer: Any) -> bool:
    with foreign("the tokenizer", TOKENIZER):
        return bool(tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id])


def _tokenize(tokenizer: Any, texts: list[str]) -> tuple[list[list[int]], list[Any]]:
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"tokenizer {type(tokenizer).__name__} gives no character offsets; expected a fast "
            "tokenizer (tokenizer.json); convert it with transformers first"
        )
    if not texts:
        return [], []
    # Its regular expressions run here for the first time, and may give up on a text.
    with foreign("the tokenizer", TOKENIZER):
        output = tokenizer(texts, return_offsets_mapping=True, verbose=False)
        return output["input_ids"], output["offset_mapping"]
