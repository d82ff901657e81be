"""Every headline figure of the paper beside ours: the same quantity computed on this run.

``ours`` is None where the run cannot answer (no panel, no replicated references, or a study with a
run of its own, whose figure the caller passes in). Why figures differ is told in the documentation,
by ``key``.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from palimpsest.report.audit_headlines import (
    Headline,
    absolute_headlines,
    replication_headlines,
    screen_headlines,
    trained_probe_headlines,
)
from palimpsest.report.certificate_headlines import (
    certificate_headlines,
    panel_headlines,
    selection_headlines,
)
from palimpsest.report.formats import Table
from palimpsest.study.results import RunResults

__all__ = ["Headline", "headlines", "headlines_table"]

NOTHING: Mapping[str, str] = MappingProxyType({})

OTHER_STUDIES = tuple(
    Headline(key, figure, paper, None, "")
    for key, figure, paper in (
        ("headroom-spearman", "Spearman of estimated and true headroom", "0.97"),
        ("headroom-error", "mean absolute error of the estimated headroom, nats", "1.7"),
        ("tofu-excluded", "TOFU candidates the screen excludes, in every seed", "16/16"),
        ("tofu-diagnostic", "TOFU oracle-KL, restoration and suppression", "0.1 and 0.7-1.2"),
    )
)
"""Figures of studies that are not part of a matrix run."""


def headlines(results: RunResults, elsewhere: Mapping[str, str] = NOTHING) -> tuple[Headline, ...]:
    """All headline figures, in the order the paper tells them.

    ``elsewhere`` gives our figure of other studies by key.
    """
    return (
        *trained_probe_headlines(results),
        *screen_headlines(results),
        *absolute_headlines(results),
        *replication_headlines(results),
        *panel_headlines(results),
        *certificate_headlines(results),
        *selection_headlines(results),
        *(replace(one, ours=elsewhere.get(one.key)) for one in OTHER_STUDIES),
    )


def headlines_table(results: RunResults, elsewhere: Mapping[str, str] = NOTHING) -> Table:
    """The headline figures as a table."""
    found = headlines(results, elsewhere)
    answered = sum(one.ours is not None for one in found)
    return Table(
        "headlines",
        "The paper's headline figures beside ours",
        f"{answered} of {len(found)} headline figures are measured in this run.",
        ("figure", "paper", "ours", "table"),
        tuple((one.figure, one.paper, one.ours, one.table or None) for one in found),
    )
