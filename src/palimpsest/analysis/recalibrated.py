"""The paper's edition: its recalibrated bar over a run, counted and never used.

Four versions of the bar are counted side by side: the paper's, which has no relearn veto, and the
one with it, each at the family's own tolerance and at the smallest delta_f of all families (the
sensitivity row). Cells of a family without replicated references have no such bar and are counted
apart, never as abstentions. The verdicts of a run are those of ``palimpsest.verdict``.

A bar must survive its own reference. Where a cell has three draws or more, each draw is held out in
turn and judged as if it were a candidate, by the other draws only; a sound bar accepts it. The
injected model, which knows the forget set, must be rejected.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from palimpsest.analysis.counts import averaged, bounded
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import Row, Share, Table, counted, number, row
from palimpsest.criteria.bars import (
    FAILURES,
    DamageBar,
    Tolerances,
    absolute_bar,
    damage_bar,
    measure_tolerances,
)
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone

PaperReason = Literal["underpowered", "not_identifiable", "all_excluded", "no_candidate_clears_bar"]


# -- what each criterion would pick; ties go to the candidate listed first -------------------------


def residual_pick(cell: CellResult, names: Sequence[str] | None = None) -> str | None:
    """Return the smallest residual among survivors (or ``names``); None if there are none."""
    among = cell.survivors if names is None else names
    return min(among, key=lambda name: cell.evaluation[name].need("residual"), default=None)


def nearest_pick(bars: Mapping[str, DamageBar]) -> str | None:
    """Return the smallest worst axis among candidates with a bar; None if there are none."""
    return min(bars, key=lambda name: bars[name].worst_axis, default=None)


def clearing_absolute(cell: CellResult, rules: Rules) -> list[str]:
    """Return the candidates that clear the absolute bar."""
    return [
        name
        for name in cell.candidates
        if absolute_bar(cell.evaluation[name], cell.survives(name), rules).clears
    ]


def absolute_pick(cell: CellResult, rules: Rules) -> str | None:
    """Return the smallest residual among candidates clearing the absolute bar; None where none
    clears it."""
    return residual_pick(cell, clearing_absolute(cell, rules))


def trained_probe_pick(cell: CellResult) -> str | None:
    """Return the smallest oracle-KL of all candidates, screened or not."""
    measures = cell.evaluation
    return min(cell.candidates, key=lambda name: measures[name].need("oracle_kl"), default=None)


# -- the bar over all cells ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PaperVerdict:
    """What the paper's bar says of one cell: its pick, or why there is none."""

    candidate: str | None
    reason: PaperReason | None
    bars: Mapping[str, DamageBar]
    """By candidate."""


def paper_verdict(cell: CellResult, rules: Rules, tolerances: Tolerances) -> PaperVerdict:
    """Return the recalibrated bar's verdict on a cell with candidates."""
    measures = cell.evaluation
    bars = {
        name: damage_bar(measures, name, cell.survives(name), tolerances, rules)
        for name in cell.candidates
    }
    pick = nearest_pick({name: bar for name, bar in bars.items() if bar.clears})
    reason: PaperReason | None = None if pick else "no_candidate_clears_bar"
    assert cell.screen is not None
    if not cell.screen.bound.certifiable:
        reason = "underpowered"
    elif not cell.survivors:
        excluded = screen_alone(measures[measures.references[0]], rules).excluded
        reason = "not_identifiable" if excluded else "all_excluded"
    elif not screen_alone(measures.injected, rules).excluded:
        reason = "not_identifiable"
    return PaperVerdict(None if reason else pick, reason, bars)


@dataclass(frozen=True, slots=True, eq=False)
class Certification:
    """One version of the bar over all cells that have tolerances."""

    title: str
    rules: Rules
    tolerances: Mapping[str, Tolerances]
    verdicts: Mapping[str, PaperVerdict]
    """By cell id."""
    tried: tuple[tuple[CellResult, str], ...]
    """Every candidate of these cells."""
    passed: tuple[tuple[CellResult, str], ...]
    """Those that clear the bar in a cell that has a pick."""

    @property
    def certified_cells(self) -> tuple[str, ...]:
        return tuple(cell for cell, verdict in self.verdicts.items() if verdict.candidate)

    def share(self, method: str | None = None, family: str | None = None) -> Share:
        """Return how many candidates (of a method, of a family, or of both) pass."""

        def among(some: Sequence[tuple[CellResult, str]]) -> int:
            return sum(
                method in (None, cell.methods[name]) and family in (None, cell.family)
                for cell, name in some
            )

        return Share(among(self.passed), among(self.tried))


@lru_cache(maxsize=4)
def _version(results: RunResults, veto: bool, smallest: bool) -> Certification:
    rules = replace(results.rules, relearn_veto=veto)
    tolerances = results.tolerances
    if smallest:
        least = min(noise.delta_f for noise in tolerances.values())
        tolerances = {f: replace(noise, delta_f=least) for f, noise in tolerances.items()}
    judged = [
        cell
        for cell in results.cells
        if cell.family in tolerances and cell.candidates and cell.evaluation.references
    ]
    verdicts = {cell.id: paper_verdict(cell, rules, tolerances[cell.family]) for cell in judged}
    tried = tuple((cell, name) for cell in judged for name in cell.candidates)
    return Certification(
        f"{'global minimum' if smallest else 'recalibrated'}, {'relearn' if veto else 'no'} veto",
        rules,
        tolerances,
        verdicts,
        tried,
        tuple(
            (cell, name)
            for cell, name in tried
            if verdicts[cell.id].candidate and verdicts[cell.id].bars[name].clears
        ),
    )


def with_veto(results: RunResults) -> Certification:
    """Return the paper's bar at the families' own tolerances, with the relearn veto."""
    return _version(results, veto=True, smallest=False)


def versions(results: RunResults) -> tuple[Certification, ...]:
    """Return all four versions (the paper's own first, then with veto; then both at the smallest
    delta_f), remembered for the run read last; none without tolerances."""
    if not results.tolerances:
        return ()
    return tuple(_version(results, veto, low) for low in (False, True) for veto in (False, True))


# -- tables ----------------------------------------------------------------------------------------


def versions_table(results: RunResults) -> Table:
    """Return the four versions of the recalibrated bar side by side."""
    rows: list[Row] = []
    counts = []
    for version in versions(results):
        cells = [results.cell(cell_id) for cell_id in version.verdicts]
        events = [cell.suppresses(version.verdicts[cell.id].candidate) for cell in cells]
        picked = bounded(events, [cell.model for cell in cells], version.rules)
        deltas = [tolerance.delta_f for tolerance in version.tolerances.values()]
        reasons = Counter(v.reason for v in version.verdicts.values() if v.reason).most_common()
        passed, certified = version.share(), Share(len(version.certified_cells), len(cells))
        suppressing = Share(
            sum(cell.suppresses(name) for cell, name in version.passed),
            sum(cell.suppresses(name) for cell, name in version.tried),
        )
        rows.append(
            row("version", version.title)
            | row("delta_f", f"{number(min(deltas))} to {number(max(deltas))}")
            | row("candidates that pass|cells with one", passed, certified)
            | row("reasons of the others", "; ".join(f"{why} {n}" for why, n in reasons) or None)
            | row("suppressing candidates that pass", suppressing)
            | row("suppression picked", Share(picked.count, picked.total))
            | picked.bounds("picked")
            | row("cells without tolerances", len(results.cells) - len(cells))
        )
        where = f" in {certified.count} of {certified.total} cells" if certified.total > 1 else ""
        counts.append(f"{passed.count} of {passed.total} candidates{where}")
    reading = "Without replicated references there is no recalibrated bar."
    if counts:
        reading = f"The bar passes {counts[0]}; with the relearn veto {counts[1]}"
        if len(results.families) > 1:
            reading += f"; at the smallest delta_f of all families {counts[2]}"
        reading += "."
    return Table.of("recalibrated-bar", "The recalibrated bar", reading, rows)


def passing_table(results: RunResults) -> Table:
    """Return the candidates that pass the bar by method and family, without and with the veto."""
    rows: list[Row] = []
    leaders = []
    families = [family for family in results.families if family in results.tolerances]
    for version in versions(results)[:2]:
        for method in (*results.methods, None):
            values = row("version|method", version.title, method or "all methods")
            for family in (*families, None):
                share = version.share(method, family)
                values[family or "all families"] = share if share.total else None
            rows.append(values)
        counts = {method: version.share(method).count for method in results.methods}
        best = max(counts, key=lambda method: counts[method], default="")
        leader = f"{best} leads with {counts[best]} of {len(version.passed)}"
        found = leader if best and counts[best] else "no candidate passes"
        leaders.append(f"{version.title}: {found}")
    reading = "Without replicated references there is no bar relative to them."
    title = "Candidates that pass the recalibrated bar"
    reading = "; ".join(leaders) + "." if leaders else reading
    return Table.of("recalibrated-passing", title, reading, rows)


def selection_table(results: RunResults) -> Table:
    """Return the selectors on the same cells, those in which a candidate passes the bar: where
    their picks lie on the held-out axes, damages clipped at 0. A selection by the absolute bar that
    no candidate clears falls back on the smallest residual and is counted apart."""
    rows: list[Row] = []
    readings = []
    for version in versions(results)[:2]:
        cells = [results.cell(cell_id) for cell_id in version.certified_cells]
        bare = replace(version.rules, relearn_veto=False)
        picks = {
            "recalibrated certificate pick": [
                version.verdicts[cell.id].candidate for cell in cells
            ],
            "absolute-bar pick": [absolute_pick(cell, version.rules) for cell in cells],
            "smallest residual, where none clears the absolute bar": [
                None if clearing_absolute(cell, version.rules) else residual_pick(cell)
                for cell in cells
            ],
            "trained-probe best": [trained_probe_pick(cell) for cell in cells],
        }
        distances = []
        for selector, names in picks.items():
            picked = [(cell, name) for cell, name in zip(cells, names) if name is not None]
            bars = [
                damage_bar(c.evaluation, n, c.survives(n), version.tolerances[c.family], bare)
                for c, n in picked
            ]
            axes = {
                "forget distance": [bar.forget_distance for bar in bars],
                "retain damage+": [max(0.0, bar.retain_damage) for bar in bars],
                "round-trip damage+": [max(0.0, bar.residual_damage or 0.0) for bar in bars],
                "trained-probe KL": [c.evaluation[n].need("oracle_kl") for c, n in picked],
            }
            within = sum(bar.forget_distance <= bar.delta_f for bar in bars)
            clusters = [cell.id for cell, _ in picked]
            means = {a: averaged(v, clusters, version.rules) for a, v in axes.items()}
            rows.append(
                row("version|selector|cells", version.title, selector, len(picked))
                | means
                | row("within delta_f", Share(within, len(picked)) if picked else None)
            )
            distances.append(means["forget distance"])
        ours, *_, trained = distances
        if ours is not None and trained is not None:
            readings.append(
                f"{version.title}: on {counted(len(cells), 'cell')} the bar's pick lies "
                f"{number(ours.value)} nats from the reference and the trained-probe best "
                f"{number(trained.value)}"
            )
    reading = "; ".join(readings) + "." if readings else "No candidate passes the bar in any cell."
    return Table.of("selection", "Selection quality on the same cells", reading, rows)


def self_check_table(results: RunResults) -> Table:
    """Return held-out references and injected models under the bar with its veto."""
    groups = {
        "held-out references": [bar for *_, bar in held_out_draws(results)],
        "injected models": [
            _judged(cell, "injected", cell.tolerances, results.rules, cell.evaluation.references)
            for cell in results.cells
            if cell.tolerances is not None and cell.evaluation.references
        ],
    }
    rows: list[Row] = []
    accepted = []
    for label, bars in groups.items():
        if bars:
            passed = Share(sum(bar.clears for bar in bars), len(bars))
            failed: Row = {
                f"fails {failure}": Share(sum(failure in bar.failures for bar in bars), len(bars))
                for failure in FAILURES
            }
            rows.append(row("models|accepted", label, passed) | failed)
            accepted.append(f"{passed.count} of {passed.total} {label}")
    reading = "There are too few references to check the recalibrated bar against them."
    if accepted:
        reading = f"The recalibrated bar with its veto accepts {' and '.join(accepted)}."
    title = "The recalibrated bar on its own references"
    return Table.of("self-check", title, reading, rows)


def held_out_draws(results: RunResults) -> list[tuple[CellResult, str, DamageBar]]:
    """Return every reference draw judged by the other draws of its cell."""
    judged = []
    for cell in results.cells:
        draws = cell.evaluation.references
        for name in draws if len(draws) > results.rules.minimum_draws else ():
            others = tuple(other for other in draws if other != name)
            tolerances = measure_tolerances(cell.evaluation, results.rules, others)
            judged.append((cell, name, _judged(cell, name, tolerances, results.rules, others)))
    return judged


def _judged(
    cell: CellResult, name: str, tolerances: Tolerances, rules: Rules, references: Sequence[str]
) -> DamageBar:
    rules = replace(rules, relearn_veto=True)
    passes = not screen_alone(cell.evaluation[name], rules).excluded
    return damage_bar(cell.evaluation, name, passes, tolerances, rules, references)
