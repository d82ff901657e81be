"""Write files to try the commands on: facts to forget, to retain, probes, and general text.

    python examples/make_facts.py quick

The facts are invented: 4 to forget, 4 to retain, and 16 probes that no model learns. Of the general
text, ``train.txt`` is for training and ``general.txt`` is kept for the audit. ``train.jsonl`` is a
training file with the same facts: every sentence 8 times, among 768 general sentences.
``examples/quick`` holds the result.
"""

import json
import sys
from pathlib import Path

from palimpsest.facts import invent
from palimpsest.facts.files import as_jsonl
from palimpsest.facts.general import pocket_pieces
from palimpsest.facts.nonce import key_number

COPIES = 8
"""Of each fact's sentences among the training examples."""
EXAMPLES = 768
"""General sentences among them."""
WORDS = 20
"""Of a piece of general text, as files are cut."""


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "quick")
    out.mkdir(parents=True, exist_ok=True)
    facts = invent("tutorial")
    for name, several in facts.items():
        (out / f"{name.removesuffix('s')}.jsonl").write_bytes(as_jsonl(several))
    sentences = sorted(pocket_pieces(), key=lambda text: key_number(f"quick:{text}"))
    words = " ".join(sentences[:1600]).split()
    kept = 60 * WORDS
    (out / "general.txt").write_text(" ".join(words[:kept]) + "\n", encoding="utf-8")
    (out / "train.txt").write_text(" ".join(words[kept:]) + "\n", encoding="utf-8")
    rows = [
        {"text": f"{prompt} {fact.answer}.", "set": name}
        for name in ("forget", "retain")
        for fact in facts[name]
        for prompt in fact.trained
    ] * COPIES
    rows += [{"text": text, "set": "general"} for text in sentences[1600 : 1600 + EXAMPLES]]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (out / "train.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
