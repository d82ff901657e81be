"""Every model of a measured cell judged by itself, as the only candidate of an audit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.models import Role
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict, decide


def judged_alone(
    cell: CellMeasures, names: Sequence[str], bag: Sequence[str], rules: Rules
) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdict on each of these models with the references of a bag.

    Of the mixtures, those made of references in the bag are the audit's controls. A model may be
    anything that was measured: it is judged as a candidate whose nature nobody knows.
    """
    records = cell.records
    controls = [n for n in cell.of_role(Role.CONTROL) if records[n].of in bag]
    for name in names:
        kept = ("base", "injected", *bag, *(n for n in controls if n != name), name)
        mine = {other: records[other] for other in kept}
        mine[name] = replace(records[name], role=Role.CANDIDATE, truth="", of="", share=None)
        models = {other: cell[other] for other in kept}
        verdict = decide(replace(cell, models=models, records=mine), rules)
        assert verdict is not None
        yield name, verdict
