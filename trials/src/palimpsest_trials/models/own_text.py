"""General text in a model's own words: what it writes when it is sampled from its start token.

Further training on other text teaches a model that text beside the facts: stories15M learns even
WikiText, and the prose of the pocket models teaches it the form of the answers. Its own stories
teach it nothing. Chat models write poor text from nothing, so MiniMind2 is given WikiText.

    python -m palimpsest_trials.models.own_text runs/models/stories15m runs/models/stories.txt

One story a line, blank lines between. The same torch on the same processor writes the same text;
the terms of every run hold the digest of the file.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

BATCH = 64
NEW_TOKENS = 200
TOP_K = 60
FEWEST_WORDS = 20
"""A shorter story gives no piece of general text."""


def sample(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Yield ``count`` stories that the model in the folder writes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    starts = torch.full((BATCH, 1), start)
    given = 0
    while True:
        written = model.generate(
            starts,
            attention_mask=torch.ones_like(starts),
            max_new_tokens=NEW_TOKENS,
            do_sample=True,
            top_k=TOP_K,
            pad_token_id=end,
        )
        for row in written[:, 1:].tolist():
            size = next((n for n, token in enumerate(row) if token in (start, end)), len(row))
            words = tokenizer.decode(row[:size], skip_special_tokens=True).split()
            text = " ".join(words)
            if len(words) >= FEWEST_WORDS and text.isascii():
                yield text
                given += 1
                if given == count:
                    return


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with given.out.open("x", encoding="utf-8") as file:
        for story in sample(given.model, given.count, given.seed):
            file.write(f"{story}\n\n")
            file.flush()


if __name__ == "__main__":
    main()
