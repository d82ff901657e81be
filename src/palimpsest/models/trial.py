"""A program that builds a tokenizer and cuts texts with it, within bounded time and memory.

It reads ``[tokenizer.json as text, texts, seconds, bytes]`` from standard input and ends with 0 if
all went well. It imports nothing of Palimpsest, so that it is started by its path, from anywhere.
"""

import contextlib
import json
import resource
import sys


def main() -> None:
    """Try the tokenizer that standard input holds."""
    tokenizer, texts, seconds, size = json.load(sys.stdin)
    for bound, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, size)):
        with contextlib.suppress(ValueError, OSError):  # where the system knows no such bound
            resource.setrlimit(bound, (most, most))
    from tokenizers import Tokenizer

    Tokenizer.from_str(tokenizer).encode_batch(texts)


if __name__ == "__main__":
    main()
