"""Plain encoders, slow and easy to read, that fast tokenizers are checked against."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from palimpsest.errors import ModelError
from palimpsest.facts.general import pocket_pieces
from palimpsest.facts.nonce import POOLS, RELATIONS, invent_facts, render

Encode = Callable[[str], list[int]]
SPACE = "▁"
"""Stands for a space in the pieces of a sentencepiece vocabulary."""
ODD = (
    *(" leading", "trailing ", "two  blanks", "   three", "a\tb\nc\n\n d\r\n", "\n\n", "1 12 1234"),
    *(
        "e\u0301 é ﬁ Ａ",
        "日本語 русский العربية 🙂",
        "foo_bar/baz-qux@x.org",
        "x=y+1; // ok",
        "3.14",
    ),
    *('Tim\'s "ball".', "UPPER lower MiXeD", "don't we'll I've", "<unk> and < unk >", "…—–“”3.14"),
)


def by_score(ids: Mapping[str, int], scores: Sequence[float], prefix: str, first: int) -> Encode:
    """Return an encoder that joins the pair of neighbors with the best score, until none is left.

    ids: the piece's id, of equal pieces the later; scores: by id; prefix: put before a text;
    first: the id of byte 0, for what has no piece.
    """

    def encode(text: str) -> list[int]:
        parts = list((prefix + text).replace(" ", SPACE)) if text else []
        while True:
            joined = [ids.get(a + b) for a, b in pairwise(parts)]
            found = [(-scores[n], at) for at, n in enumerate(joined) if n is not None]
            if not found:
                break
            at = min(found)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        each = ([ids[p]] if p in ids else [first + b for b in p.encode()] for p in parts)
        return [n for some in each for n in some]

    return encode


def by_rank(ids: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Encode:
    """Return GPT-2's encoder: bytes of each word, joined in the order of the merges."""
    import regex
    from tokenizers.pre_tokenizers import ByteLevel

    word = regex.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )
    signs = byte_signs()
    assert sorted(signs.values()) == sorted(ByteLevel.alphabet())
    ranks = {pair: n for n, pair in enumerate(merges)}

    def encode(text: str) -> list[int]:
        found = []
        for match in word.findall(text):
            parts = [signs[byte] for byte in match.encode()]
            while True:
                pairs = [(ranks.get(pair, len(ranks)), pair) for pair in pairwise(parts)]
                rank, pair = min(pairs, default=(len(ranks), ("", "")))
                if rank == len(ranks):
                    break
                parts = _join(parts, pair)
            found += [ids[part] for part in parts]
        return found

    return encode


def _join(parts: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Return the parts with every occurrence of a pair joined, from the left."""
    joined: list[str] = []
    at = 0
    while at < len(parts):
        both = tuple(parts[at : at + 2]) == pair
        joined.append("".join(pair) if both else parts[at])
        at += 2 if both else 1
    return joined


def byte_signs() -> dict[int, str]:
    """Return GPT-2's printable character of every byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


def texts() -> Iterator[str]:
    """Yield words and sentences on which a tokenizer is checked: invented, plain and odd ones."""
    yield from ODD
    for piece in pocket_pieces()[:400]:
        yield piece
        yield from piece.split()[:3]
    for fact in invent_facts(60, "encoders", RELATIONS, frozenset()):
        for pool in POOLS[fact.relation].values():
            yield f"{render(pool[0], fact.subject)} {fact.object}."


def check_ids(folder: Path, encode: Encode, start: Sequence[int] = ()) -> None:
    """Refuse a folder whose fast tokenizer gives other ids than the plain encoder.

    start: ids that the model was trained with before every text.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    for text in texts():
        mine, plain = tokenizer(text)["input_ids"], [*start, *encode(text)]
        if mine != plain:
            raise ModelError(
                f"{folder}: the fast tokenizer cuts {text[:60]!r} into {mine[:20]}; expected "
                f"{plain[:20]} as the plain encoder does; use the versions of constraints.txt"
            )
