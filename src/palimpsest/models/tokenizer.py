"""The tokenizer of a checkpoint: read, tried, compared and called.

Its regular expressions and replacements are the checkpoint's and may take any time and memory. So a
stranger's tokenizer is tried in a process of its own, with bounds on both, before this one builds
it, and again on the texts of a run before the run starts.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.models.device import foreign
from palimpsest.models.vet import (
    check_tokenizer,
    file_in,
    run_apart,
    split_texts,
    tokenizer_trials,
)

TOKENIZER = "one that cuts any text into tokens"
CHARACTERS_APART = 2**21
"""Of the texts that one process tokenizes, so that a large file is no reason to refuse it."""
_TRIED: set[str] = set()
"""Digests of the tokenizers that this process has tried."""
# Texts that tokenizers with one vocabulary cut differently: case, accents, digits, blanks, signs.
TELLING = (
    "The guild of Asha Tren is called Velkor.", " leading", "trailing ", "UPPER lower MiXeD",
    "e\u0301 \u00e9 \ufb01 \uff21", "1 12 123 1234567 3.14", "  two   blanks", "a\tb\nc\n\n d\r\n",
    "it's we'll \u2019s \"quoted\" (x) [y]", "foo_bar/baz-qux@x.org", "日本語 русский العربية 🙂",
    "x=y+1; // ok", "", "<s></s><|endoftext|>",
)  # fmt: skip


def read_tokenizer(folder: Path, shipped: bool) -> Any:
    """Return a folder's tokenizer, vetted; that of a shipped model is known."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not check_tokenizer(folder):
        raise ModelError(
            f"{folder}: has no tokenizer (tokenizer.json or another vocabulary); save it there "
            "with tokenizer.save_pretrained"
        )
    if not shipped:
        _try_tokenizer(folder)
    # AutoTokenizer keeps only the vocabulary of tokenizer.json for some architectures (Qwen2) and
    # sets its own normalization and splitting around it; the model was trained with the file's.
    whole = file_in(folder, "tokenizer.json") is not None
    kind = PreTrainedTokenizerFast if whole else AutoTokenizer
    with foreign(f"{folder}: its tokenizer", "the tokenizer of a causal language model"):
        return kind.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


def _try_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer that does not end on short texts, before this process builds it.

    Building it runs its normalizer on every token that is added to its vocabulary.
    """
    for path, whole, tokens in tokenizer_trials(folder):
        key = hashlib.sha256(json.dumps([whole, tokens]).encode()).hexdigest()
        if key not in _TRIED:
            run_apart(f"{path}: the tokenizer", split_texts, whole, [*TELLING, *tokens])
            _TRIED.add(key)


def token_ids(tokenizer: Any, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
    """Return the token ids of each text, with or without the tokens put around it."""
    if not texts:
        return []
    with foreign("the tokenizer", TOKENIZER):
        output = tokenizer(list(texts), add_special_tokens=special, verbose=False)
        ids: list[list[int]] = output["input_ids"]
        return ids


def token_ids_apart(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return what ``token_ids`` does, computed by processes with bounded time and memory.

    On which texts a stranger's tokenizer takes forever is the stranger's choice, so it is tried on
    those that will be used.
    """
    if not texts or not getattr(tokenizer, "is_fast", False):
        return token_ids(tokenizer, texts)  # a slow one's code is that of transformers
    with foreign("the tokenizer", TOKENIZER):
        whole = tokenizer.backend_tokenizer.to_str()
    parts: list[list[str]] = [[]]
    length = 0
    for text in texts:
        if parts[-1] and length + len(text) > CHARACTERS_APART:
            parts.append([])
            length = 0
        parts[-1].append(text)
        length += len(text)
    return [ids for part in parts for ids in run_apart("the tokenizer", split_texts, whole, part)]


def tokenizer_difference(base: Any, other: Any, texts: Sequence[str]) -> str:
    """Say how the other tokenizer differs from the base's, "" when they do the same to texts."""
    if _pipeline(base) == _pipeline(other):
        return ""
    known, found = base.get_vocab(), other.get_vocab()
    if len(known) != len(found):
        return f"{len(found)} tokens instead of {len(known)}"
    moved = sorted(token for token in known if found.get(token) != known[token])
    if moved:
        return f"token {moved[0]!r} at id {found.get(moved[0])} instead of {known[moved[0]]}"
    # Toolkits write the same tokenizer with other incidental settings; what counts is its tokens.
    for text, mine, theirs in zip(texts, *(token_ids_apart(each, texts) for each in (base, other))):
        if mine != theirs:
            return f"the same vocabulary but splits {text!r} into other tokens"
    return ""


def _pipeline(tokenizer: Any) -> str:
    """Return what a tokenizer does, as canonical JSON; padding and truncation are the caller's."""
    if not getattr(tokenizer, "is_fast", False):
        return json.dumps(sorted(tokenizer.get_vocab().items()))
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps(parts | {"padding": None, "truncation": None}, sort_keys=True)
