"""Write the trial of criteria of a run from its stored scores, or list the criteria.

python -m palimpsest_trials.criteria RUN
python -m palimpsest_trials.criteria --list
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from palimpsest.report.results import read_run
from palimpsest_trials.criteria import CRITERIA, INPUTS


def main(arguments: Sequence[str] | None = None) -> None:
    """Write RUN/criteria, or print what the catalogue says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run", nargs="?", type=Path, help="folder of a study with these measures")
    what.add_argument("--list", action="store_true", help="list the criteria and what they need")
    given = parser.parse_args(arguments)
    if given.list:
        print(list_criteria())
        return
    from palimpsest_trials.criteria.page import write_trial

    page, report = write_trial(read_run(given.run))
    print("\n".join([*report.sentences, str(page)]))


def list_criteria() -> str:
    """Return the catalogue: a line per criterion, then what the letters of the inputs mean."""
    lines = [
        f"{criterion.number or '–':>2}  {criterion.name:24} {criterion.inputs:5} "
        f"{criterion.cost:9} {criterion.formula} ({criterion.source})"
        for criterion in CRITERIA
    ]
    return "\n".join([*lines, "", *(f"{letter}  {words}" for letter, words in INPUTS.items())])


if __name__ == "__main__":
    main()
