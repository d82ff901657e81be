"""Every table of a run, in the order a reader needs them; all computed from stored artifacts.

``as_csv``, ``as_markdown`` and ``as_latex`` write them; see ``formats.py``.
"""

from collections.abc import Mapping

from palimpsest.criteria.measures import CellMeasures
from palimpsest.report.audit_tables import (
    absolute_cells_table,
    absolute_table,
    budget_table,
    diagnostic_table,
    dichotomy_table,
    panel_cells_table,
    panel_family_table,
    panel_table,
    points_table,
    replication_table,
    sub_panel_table,
    survivors_table,
    trained_probe_table,
)
from palimpsest.report.cell_tables import (
    candidates_table,
    cells_table,
    failed_table,
    models_table,
)
from palimpsest.report.certificate_tables import (
    certified_table,
    second_suite_table,
    selection_table,
    self_audit_table,
    suppression_table,
    versions_table,
)
from palimpsest.report.formats import (
    Estimate,
    Share,
    Table,
    Value,
    as_csv,
    as_latex,
    as_markdown,
    shown,
)
from palimpsest.report.headlines import NOTHING, Headline, headlines, headlines_table
from palimpsest.study.results import RunResults
from palimpsest.study.second_suite import compare

__all__ = [
    "Estimate",
    "Headline",
    "Share",
    "Table",
    "Value",
    "all_tables",
    "as_csv",
    "as_latex",
    "as_markdown",
    "candidates_table",
    "headlines",
    "shown",
]


def all_tables(
    results: RunResults,
    second: Mapping[str, CellMeasures] | None = None,
    elsewhere: Mapping[str, str] = NOTHING,
) -> tuple[Table, ...]:
    """Every table of the run.

    ``second`` holds the scores of a second suite (``second_suite.read_second``), and ``elsewhere``
    our headline figures of studies with a run of their own, by key.
    """
    compared = compare(results, second)
    made = (
        headlines_table(results, elsewhere),
        cells_table(results),
        models_table(results),
        candidates_table(results),
        failed_table(results),
        trained_probe_table(results),
        dichotomy_table(results),
        diagnostic_table(results),
        points_table(results),
        sub_panel_table(results),
        survivors_table(results),
        absolute_table(results),
        absolute_cells_table(results),
        budget_table(results),
        replication_table(results),
        panel_table(results),
        panel_family_table(results),
        panel_cells_table(results),
        versions_table(results),
        certified_table(results),
        selection_table(results),
        suppression_table(results),
        self_audit_table(results),
    )
    return (*made, second_suite_table(compared)) if compared else made
