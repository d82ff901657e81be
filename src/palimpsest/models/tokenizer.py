"""The tokenizer of a checkpoint: read, tried once, compared and called.

Its regular expressions and replacements are the checkpoint's and may take any time and memory:
one that doubles its input forty times once took 23 GB. So a stranger's tokenizer is built and tried
on short texts in a process of its own before this process builds it. What it does with longer texts
is bounded by nothing but the user's patience.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.models.device import foreign
from palimpsest.models.vet import check_tokenizer, file_in

TOKENIZER = "one that cuts any text into tokens"
TRIAL_SECONDS = 20
"""Of the processor, for building a tokenizer and trying it; large ones take three."""
TRIAL_BYTES = 4 * 2**30
"""Of addresses, most of which are never used."""
# Builds a tokenizer and cuts texts with it, within the bounds that the system knows.
_TRIAL = """
import contextlib, json, resource, sys
tokenizer, texts, seconds, size = json.load(sys.stdin)
for bound, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, size)):
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(bound, (most, most))
from tokenizers import Tokenizer
Tokenizer.from_str(tokenizer).encode_batch(texts)
"""
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
    # AutoTokenizer keeps only the vocabulary of tokenizer.json for some architectures (Qwen2) and
    # sets its own normalization and splitting around it; the model was trained with the file's.
    whole = file_in(folder, "tokenizer.json")
    kind = PreTrainedTokenizerFast if whole else AutoTokenizer
    if whole and not shipped and (problem := _problem(whole.read_text("utf-8", "replace"))):
        raise ModelError(
            f"{whole}: the tokenizer cannot be used ({problem}); expected one that is built "
            f"within {TRIAL_SECONDS} seconds and {TRIAL_BYTES / 2**30:.0f} GB; do not use this "
            "checkpoint, or save the base's tokenizer there"
        )
    with foreign(f"{folder}: its tokenizer", "the tokenizer of a causal language model"):
        return kind.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


@functools.cache
def _problem(tokenizer: str) -> str:
    """Return why a tokenizer, given as JSON, cannot be built and tried, "" if it can."""
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL],
            input=json.dumps([tokenizer, TELLING, TRIAL_SECONDS, TRIAL_BYTES]),
            capture_output=True,
            text=True,
            timeout=6 * TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "it does not end"
    if tried.returncode == 0:
        return ""
    said = tried.stderr.strip().splitlines()
    stopped = tried.returncode < 0 or not said
    return "it takes too long or too much memory" if stopped else said[-1][:300]


def token_ids(tokenizer: Any, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
    """Return the token ids of each text, with or without the tokens put around it."""
    if not texts:
        return []
    with foreign("the tokenizer", TOKENIZER):
        output = tokenizer(list(texts), add_special_tokens=special, verbose=False)
        ids: list[list[int]] = output["input_ids"]
        return ids


def token_lengths(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text."""
    return [len(ids) for ids in token_ids(tokenizer, texts)]


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
    for text, mine, theirs in zip(texts, token_ids(base, texts), token_ids(other, texts)):
        if mine != theirs:
            return f"the same vocabulary but splits {text!r} into other tokens"
    return ""


def _pipeline(tokenizer: Any) -> str:
    """Return what a tokenizer does, as canonical JSON; padding and truncation are the caller's."""
    if not getattr(tokenizer, "is_fast", False):
        return json.dumps(sorted(tokenizer.get_vocab().items()))
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps(parts | {"padding": None, "truncation": None}, sort_keys=True)
