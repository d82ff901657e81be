"""Fetch a real model and write it as a checkpoint folder.

python -m palimpsest_trials.models NAME OUT
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from palimpsest_trials.models import MODELS, make


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    make(given.name, given.out)
    print(f"{given.out}: {MODELS[given.name].about} ({MODELS[given.name].license})")


if __name__ == "__main__":
    main()
