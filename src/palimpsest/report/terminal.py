"""The answer: one line a method, which the page shows too, and what stands on a terminal."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from palimpsest.report.leaderboard import Standing, by_closeness, standings
from palimpsest.report.results import CellResult, RunResults, Said, asked_models, cell_positions
from palimpsest.report.table import Row, Table, table_lines, width, wrapped
from palimpsest.stats import words
from palimpsest.stats.axes import Sign, axis, chosen
from palimpsest.stats.comparison import Gap
from palimpsest.stats.verdict import Finding, Reason, Verdict

MOST_LINES = 25
"""Of an answer without ``--explain``."""
LEAST_ROWS = 5
"""Methods or candidates that are shown even where the answer is then longer."""
MOST_OF_ONE = 6
"""Lines of one paragraph, which may list many names."""
MOST_MISSING = 3
"""Cells without results, and candidates that failed, that are named."""
MOST_REASONS = 8
"""Refused candidates or methods whose reasons are printed, the nearest to retraining first."""
MOST_AXES = 2
"""Axes of each that are put in words; the others are named."""
NOTHING = "–"
DISTANCE = "distance: as far from retrainings as a mixture with this share of the injected weights."


# -- one line a method, here and on the page -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the answer: a candidate, or a method by its best setting."""

    name: str
    label: str
    sentence: str
    furthest: tuple[tuple[str, str], ...]
    """The axes that show what the label says, at most two, with the distance in one cell."""
    scale: float | None
    """As far from retrainings as a mixture of this share."""
    cost: float | None
    """In retrainings; the median over cells."""
    settings: int = 1
    """Tried of the method."""
    restores: str = ""
    """In how many of several cells."""
    finding: Finding | None = None
    """Of the best setting; None over several cells."""

    @property
    def far(self) -> str:
        """How far it lies from retrainings, in words; empty where that is not known."""
        if self.scale is None or math.isinf(self.scale):
            return "" if self.scale is None else "further than the injected model"
        return f"as far as a {words.short_share(self.scale)} mixture"


def answer_lines(results: RunResults, most: int = 2, first: Collection[str] = ()) -> list[Line]:
    """Return one line per candidate, or per method where methods made them: the user's own first,
    and those named, then the best; ``most`` failing axes are in words, the others named."""
    if len(results.planned) > 1:
        lines = [_over_cells(standing) for standing in standings({results.name: results})]
    else:
        groups: dict[str, list[Finding]] = {}
        failed: dict[str, list[str]] = {}
        for cell, verdict in results.judged:
            for finding in by_closeness(verdict):
                groups.setdefault(cell.method(finding.name), []).append(finding)
            for name, reason in cell.failed.items():
                failed.setdefault(cell.method(name), []).append(f"{name}: {reason}")
        lines = [_of_best(n, mine, len(failed.get(n, ())), most) for n, mine in groups.items()]
        for name in (name for name in failed if name not in groups):
            reasons = "; ".join(failed[name])
            lines.append(Line(name, "failed", reasons, (), None, None, len(failed[name])))
    return sorted(lines, key=lambda line: line.name not in (*results.own, *first))


def _of_best(name: str, mine: Sequence[Finding], failed: int, most: int) -> Line:
    """Return the line of a candidate, or of a method with its findings, the best first;
    ``failed`` of its settings have none."""
    best = mine[0]
    furthest = [(axis(gap.axis).title, signed(gap.sd)) for gap in telling_axes(best)]
    furthest = [("screen", ""), *furthest[:1]] if best.excluded else furthest
    return Line(
        name,
        best.label,
        as_sentence(best, most),
        tuple(furthest),
        None if best.scale is None else best.scale.share,
        best.cost,
        len(mine) + failed,
        finding=best,
    )


def signed(sd: float | None) -> str:
    """Return a distance in standard deviations; empty where retrainings do not vary."""
    return "" if sd is None else f"{sd:+.1f}"


def telling_axes(finding: Finding) -> list[Gap]:
    """Return the two axes that show most of what the label says: the worst one for each part of
    it, then the next worst."""
    compared = finding.comparison
    gaps = [] if compared is None else sorted(compared.gaps.values(), key=lambda gap: -abs(gap.t))
    gaps = list(finding.failing) or gaps
    worst: dict[Sign, Gap] = {}
    for gap in gaps:
        worst.setdefault(axis(gap.axis).side(gap.offset).sign, gap)
    parts = [worst[sign] for sign in Sign if sign in worst and sign in finding.label]
    return [*parts, *(gap for gap in gaps if gap not in parts)][:2]


def as_sentence(finding: Finding, most: int = 99) -> str:
    """Return what was found about a candidate, to stand beside its name and label."""
    text = words.why(finding, most).removeprefix("is ")
    return f"{text[0].upper()}{text[1:]}."


def _over_cells(mine: Standing) -> Line:
    cells = words.count(mine.cells, "cell", "cells")
    labels = [f"{label} in {n} of {cells}" for label, n in mine.labels]
    far = "" if not mine.axes else f"; most often furthest on {mine.axes[0]}"
    sentence = f"Its best setting is {'; '.join(labels)}{far}."
    return Line(
        mine.method,
        mine.label,
        sentence,
        tuple((title, "") for title in mine.axes),
        mine.scale,
        mine.cost,
        mine.settings,
        str(mine.restores),
    )


def spent(results: RunResults) -> str:
    """Return in words what the audit itself took, in retrainings; empty where that is not recorded.
    Given models are counted by the recipe that is recorded beside a reference."""
    several = [work for cell in results.cells if (work := cell.work) is not None]
    if not several:
        return ""
    trained, rest = (sorted(part)[len(several) // 2] for part in zip(*several))
    each = " per cell" if len(results.planned) > 1 else ""
    if not trained:
        return f"Measuring took about as much work as {rest:.2g} retrainings."
    return (
        f"The audit took about as much work as {trained + rest:.0f} retrainings{each}: "
        f"{trained} models trained, the rest for making and measuring the others."
    )


# -- on a terminal ---------------------------------------------------------------------------------


def study_lines(
    results: RunResults,
    *,
    explain: bool = False,
    own: Collection[str] = (),
    after: Sequence[str] = (),
) -> list[str]:
    """Return what a person reads after a run: the answer, one line a method and ``after``; with
    ``explain`` also the reasons, every candidate and every axis.

    own: methods that come first, beside those that are not built in.
    """
    missing = [f"{cell.id}: {cell.state} {cell.reason}".rstrip() for cell in results.missing]
    missing = missing if explain else _first(missing, MOST_MISSING, "cells have no results")
    if not results.judged:
        none = "No candidate was measured, so there is no verdict."
        return [*map(wrapped, [*missing, none]), *after]
    single = len(results.planned) == 1
    cell, verdict = results.judged[0]
    if single:
        first = [words.headline(verdict), *words.conditions(verdict), results.tried()]
        short = (Reason.DISTINGUISHABLE, Reason.ALL_EXCLUDED)
        if not (explain or verdict.certified or verdict.reason in short):
            first.append(words.reasons(verdict)[0])
        failed = [f"{name} failed: {why}" for name, why in cell.failed.items()]
        failed = failed if explain else _first(failed, MOST_MISSING, "candidates failed")
    else:
        first = [words.certified_cells(results.certified, len(results.judged))]
        failed = []
    texts = [wrapped(text) for text in (*first, *missing) if text]
    blocks = [*(texts if explain else map(_begun, texts)), ""]
    told = [*map(wrapped, filter(None, [*failed, spent(results)]))]
    ends = [*([""] if explain and told else []), *told, *after]
    room = MOST_LINES - sum(block.count("\n") + 1 for block in (*blocks, *ends))
    lines = answer_lines(results, first=own)
    blocks.append(_answer(lines, results, max(room, LEAST_ROWS), explain=explain))
    if explain and single:
        blocks += _explained(cell, verdict, results)
    elif explain:
        blocks += ["", *(wrapped(f"{c.id}: {words.headline(v)}") for c, v in results.judged)]
    return [*blocks, *ends]


def _begun(text: str) -> str:
    """Return at most the first lines of a paragraph; the page has all of it."""
    lines = text.split("\n")
    return "\n".join(lines[:MOST_OF_ONE]) + (" …" if len(lines) > MOST_OF_ONE else "")


def _first(texts: list[str], most: int, what: str) -> list[str]:
    """Return the first texts, and how many more there are."""
    more = [f"{len(texts) - most} more {what}."] if len(texts) > most else []
    return [*texts[:most], *more]


def _answer(lines: Sequence[Line], results: RunResults, room: int, *, explain: bool) -> str:
    """Return one line per method or candidate, in so many lines of the terminal with what the
    columns mean; distances on axes are left out where the terminal is too narrow for them."""
    about = ["Each method by its best setting." if any(n.settings > 1 for n in lines) else ""]
    about += [DISTANCE if any(line.scale is not None for line in lines) else ""]
    about += ["cost: in retrainings." if any(line.cost is not None for line in lines) else ""]
    about += ["" if explain else "--explain: the reasons, every candidate and every axis."]
    head = "candidate" if results.kind == "audit" else "method"
    tables = [_table([_row(n, head, numbers=exact) for n in lines]) for exact in (True, False)]
    fits = max(map(len, table_lines(tables[0], 1000).split("\n"))) <= width()
    table = tables[0] if fits else tables[1]
    for count in range(len(lines) if explain else min(len(lines), room), 0, -1):
        hidden = [f"{len(lines) - count} more are on the page."] * (count < len(lines))
        reading = " ".join(filter(None, [*hidden, *about]))
        text = table_lines(replace(table, rows=table.rows[:count], reading=reading))
        if explain or count <= LEAST_ROWS or text.count("\n") < room:
            break
    return text


def _table(rows: Sequence[Row]) -> Table:
    """Return the table of rows of text, without the columns that hold nothing."""
    held = [name for name in rows[0] if any(row[name] != NOTHING for row in rows)]
    return Table.of("answer", "", "", rows).only(held)


def _row(line: Line, head: str, *, numbers: bool) -> Row:
    """Return the cells of one line of the answer; what is left, where nothing else is known."""
    row: Row = {head: line.name, "label": line.label, "restores": line.restores or NOTHING}
    left = None if line.finding is None or line.finding.comparison else line.finding.left
    row["left at most"] = words.percent(words.rounded(left.bound)) if left else NOTHING
    row["distance"] = NOTHING if line.scale is None else words.short_share(line.scale)
    far = [f"{title} {sd}".rstrip() if numbers else title for title, sd in line.furthest]
    row["furthest on, sd" if numbers else "furthest on"] = ", ".join(far) or NOTHING
    return row | {"cost": NOTHING if line.cost is None else f"{line.cost:.2f}"}


# -- with --explain --------------------------------------------------------------------------------


def _explained(cell: CellResult, verdict: Verdict, results: RunResults) -> list[str]:
    """Return the reasons of a verdict, every candidate and every axis."""
    found, wide = by_closeness(verdict), width()
    lines = [_of_best(finding.name, [finding], 0, MOST_AXES) for finding in found]
    rows = [{"": str(n)} | _row(line, "candidate", numbers=True) for n, line in enumerate(lines, 1)]
    blocks = ["", *map(wrapped, _reasons(verdict, answer_lines(results)))]
    blocks += ["", table_lines(_table(rows), wide)]
    axes = _by_axis(cell, results, found, wide)
    return [*blocks, "", table_lines(axes, wide)] if axes.rows else blocks


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
    for entry in chosen(results.rules):
        values = {
            name: [sd[entry.name] for sd in some if entry.name in sd]
            for name, some in groups.items()
        }
        rows.append({"axis": entry.title} | {n: _short(v) for n, v in values.items()})
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
