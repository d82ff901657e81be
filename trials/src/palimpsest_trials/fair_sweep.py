"""Every chance for gradient ascent and NPO: rate × β × retain weight, beside two reverting methods.

32 configurations of the two ascending methods and 8 of KL reversion and the task vector, in three
cells of one pocket model; about 20 minutes on two cores.

    python -m palimpsest_trials.fair_sweep [--out runs/fair-sweep] [--workers 2]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import palimpsest
from palimpsest.config.plan import Plan
from palimpsest.config.presets import KL_REVERSION, TASK_VECTOR, WEIGHTS
from palimpsest.config.sections import MethodGrid
from palimpsest.report.results import RunResults
from palimpsest.report.table import Share

ASCENT = MethodGrid("ga", (("rate", (0.25, 0.5, 1.0, 2.0)), ("weight", WEIGHTS)))
NPO = MethodGrid("npo", (("rate", (0.5, 1.0)), ("beta", (0.1, 0.5)), ("weight", WEIGHTS)))


def sweep_plan() -> Plan:
    """Return the plan of the sweep."""
    methods = (ASCENT, NPO, KL_REVERSION, TASK_VECTOR)
    return palimpsest.Plan.preset("demo", name="fair-sweep", seeds=(5, 6, 7), methods=methods)


def count_passing(results: RunResults) -> dict[str, Share]:
    """Return how many candidates of each method no test tells from a retraining."""
    passed: dict[str, list[bool]] = {}
    for cell, verdict in results.judged:
        for finding in verdict.findings:
            passed.setdefault(cell.method(finding.name), []).append(finding.clears)
    return {method: Share.of(values) for method, values in passed.items()}


def main(arguments: Sequence[str] | None = None, plan: Plan | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/fair-sweep"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    executor = "local" if options.workers > 1 else "inline"
    results = palimpsest.study(
        plan or sweep_plan(), options.out, executor=executor, workers=options.workers
    )
    for method, share in count_passing(results).items():
        print(f"{method:14} {share} pass")


if __name__ == "__main__":
    main()
