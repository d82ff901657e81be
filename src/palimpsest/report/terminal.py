"""The answer on a terminal: the verdict, why, then tables that fit it."""

from collections.abc import Mapping
from statistics import median

from palimpsest.report.leaderboard import Line, answer_lines, by_closeness, standings
from palimpsest.report.results import CellResult, RunResults, Said, asked_models, cell_positions
from palimpsest.report.table import Row, Table, p_value, table_lines, width, wrapped
from palimpsest.stats import words
from palimpsest.stats.axes import chosen
from palimpsest.stats.verdict import Finding, Verdict

MOST_REASONS = 8
"""Refused candidates or methods whose reasons are printed, the nearest to retraining first."""
MOST_AXES = 2
"""Axes of each that are put in words; the others are named."""


def study_lines(results: RunResults) -> list[str]:
    """Return what a person reads after a run: the answer, the reasons, then tables."""
    missing = [f"{cell.id}: {cell.state} {cell.reason}".rstrip() for cell in results.missing]
    if not results.judged:
        return [*map(wrapped, missing), "No candidate was measured, so there is no verdict."]
    if len(results.planned) > 1:
        blocks = [*_over_cells(results), *map(wrapped, missing)]
    else:
        cell, verdict = results.judged[0]
        found, wide = by_closeness(verdict), width()
        first = (words.headline(verdict), *words.conditions(verdict), results.tried())
        blocks = [*map(wrapped, filter(None, first)), ""]
        blocks += [*map(wrapped, _reasons(verdict, answer_lines(results))), ""]
        blocks += [_candidates(verdict, found, wide), ""]
        if not verdict.partial:
            blocks += [table_lines(_by_axis(cell, results, found, wide), wide)]
        blocks += [wrapped(f"{name} failed: {why}") for name, why in cell.failed.items()]
    return blocks


def _reasons(verdict: Verdict, lines: list[Line]) -> list[str]:
    """Return why the verdict is what it is: a sentence for each of a few refused, the power."""
    if verdict.partial:
        return [*words.reasons(verdict), *words.remarks(verdict), words.CLOSING]
    refused = [line.finding for line in lines if line.finding and not line.finding.clears]
    texts = [] if verdict.certified else [words.reasons(verdict)[0]]
    texts += [words.refusal(finding, MOST_AXES) for finding in refused[:MOST_REASONS]]
    if (more := len(refused) - MOST_REASONS) > 0:
        texts.append(f"{more} more did not pass; the report page gives the reasons.")
    texts += [words.power_sentence(verdict)] if verdict.controls else []
    return [*texts, *words.remarks(verdict), words.CLOSING]


def _candidates(verdict: Verdict, found: list[Finding], wide: int) -> str:
    """Return one line per candidate: number, name, label, p, worst axis."""
    rows: list[Row] = []
    scaled = any(finding.scale for finding in found)
    for number, finding in enumerate(found, 1):
        worst = finding.comparison.worst if finding.comparison else None
        p = finding.comparison.p if finding.comparison else finding.screened.adjusted_p
        row: Row = {"": str(number), "candidate": finding.name, "label": finding.label}
        if verdict.partial:
            left = finding.left
            bound = "–" if left is None else words.percent(words.rounded(left.bound))
            rows.append(row | {"left at most": bound})
            continue
        # Where there is a scale, p is the same for nearly all of them; the headline has the best.
        row |= {"≙ mix": placed(finding)} if scaled else {"p": p_value(p)}
        far = "–" if worst is None else words.distance(worst, " ").removesuffix(" sd")
        rows.append(row | {"worst axis, sd": far})
    comparisons = [finding.comparison for finding in found if finding.comparison]
    ranked = max((c.references for c in comparisons if c.test == "rank"), default=0)
    least = f"p: {1 / (ranked + 1):.2g} is the smallest that {ranked} retrainings allow."
    about = "≙ mix: as far from retrainings as a mixture with this share of the injected weights."
    reading = about if scaled else least if ranked else ""
    return table_lines(Table.of("candidates", "", reading, rows), wide)


def placed(finding: Finding) -> str:
    """Return where a candidate lies on the scale; a dash where that is not known."""
    return words.short_share(finding.scale.share) if finding.scale else "–"


def _by_axis(cell: CellResult, results: RunResults, found: list[Finding], wide: int) -> Table:
    """Return one row per axis: injected model, mixtures, and the best candidates of as many
    methods as fit."""
    positions = cell_positions(cell, results.rules)
    known = [position for position in positions if position.group in ("injected", "mixture")]
    groups: dict[str, list[Mapping[str, float]]] = {}
    for position in known:
        label = position.label.replace(" of the injected weights", "")
        groups.setdefault(label, []).append(position.sd)
    by_name = {
        position.name: position.sd for position in positions if position.group == "candidate"
    }
    columns = max(1, (wide - 16 - sum(len(name) + 2 for name in groups)) // 7)
    names = [finding.name for finding in found]
    for name in _best_of_methods(cell, names)[:columns]:
        groups[str(names.index(name) + 1)] = [by_name.get(name, {})]
    rows: list[Row] = []
    for axis in chosen(results.rules):
        values = {
            name: [sd[axis.name] for sd in some if axis.name in sd] for name, some in groups.items()
        }
        rows.append({"axis": axis.title} | {n: _short(v) for n, v in values.items()})
    title = "Distance from the mean retraining, in standard deviations of the retrainings"
    return Table.of("axes", f"{title}; candidates numbered as above", "", rows if positions else [])


def _best_of_methods(cell: CellResult, names: list[str]) -> list[str]:
    """Return the first candidate of each method; ``names`` are in order of closeness."""
    return list({cell.method(name): name for name in reversed(names)}.values())[::-1]


def _short(values: list[float]) -> str:
    if not values:
        return "–"
    value = median(values)
    return f"{value:+.1f}" if abs(value) < 10 else f"{value:+.0f}"


def _over_cells(results: RunResults) -> list[str]:
    """Return the answer over several cells: one line per method, then one per cell."""
    rows: list[Row] = [
        {"method": standing.method, "restored in": standing.restores}
        | {"mostly": standing.labels[0][0], "furthest on": standing.axis}
        | {"median sd": median(standing.distances)}
        for standing in standings({results.name: results})
    ]
    reading = "Each method is shown by its best setting in each cell."
    table = Table.of("methods", "", reading, rows, {"median sd": ".1f"})
    cells = [wrapped(f"{cell.id}: {words.headline(verdict)}") for cell, verdict in results.judged]
    return [
        words.certified_cells(results.certified, len(results.judged)),
        "",
        table_lines(table),
        "",
        *cells,
    ]


# -- what the models say ---------------------------------------------------------------------------


def asked_lines(
    results: RunResults, cell: CellResult, answers: list[Said], *, everyone: bool
) -> list[str]:
    """Return answers, question by question: of every model, or else of the injected model, the
    nearest candidate of each method, one retraining and base."""
    titles = asked_models(cell)
    near = [f.name for f in by_closeness(cell.verdict)] if cell.verdict else list(cell.candidates)
    best = _best_of_methods(cell, near)[:MOST_REASONS]
    hidden = [] if everyone else [n for n in titles if n in near and n not in best]
    order = {name: number for number, name in enumerate(titles)}
    questions: dict[str, list[Said]] = {}
    for said in sorted(answers, key=lambda said: order.get(said.model, len(order))):
        if said.model not in hidden:
            questions.setdefault(said.prompt, []).append(said)
    blocks = []
    for mine in questions.values():
        blocks += [*question_lines(results, mine, titles), ""]
    more = [f"--fact ID shows {len(hidden)} more candidates."] if hidden else []
    return [*blocks, *more] if more else blocks[:-1]


def question_lines(
    results: RunResults, answers: list[Said], titles: Mapping[str, str]
) -> list[str]:
    """Return one question with what each model answers; a right answer is marked."""
    first = answers[0]
    of = f"{first.set} fact {first.fact}: " if first.fact else ""
    truth = f" … (truth: {first.truth})" if first.truth else " …"
    rows: list[Row] = []
    for said in answers:
        row: Row = {"model": titles.get(said.model, said.model)}
        row |= {"answers": f"{said.answer}{' ✓' if said.right else ''}"}
        if said.truth:
            row |= {"truth's rank": said.rank, "its probability": f"{said.probability:.2g}"}
        rows.append(row)
    asked = wrapped(f"{of}{results.question(first.prompt)}{truth}")
    return [asked, table_lines(Table.of("asked", "", "", rows))]
