"""The report of a run as one page that needs nothing else: no network, no server, no other file.

A page carries its own style and script and forbids all others by a content security policy with
their hashes; every name is text, whatever it holds. The same results give the same bytes.
"""

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from palimpsest.errors import StoreError
from palimpsest.report.canvas import FAR, LINEAR, Picture, figure_bytes
from palimpsest.report.figures import all_figures
from palimpsest.report.leaderboard import by_closeness
from palimpsest.report.results import (
    CellResult,
    Position,
    RunResults,
    Said,
    asked_models,
    cell_answers,
    cell_positions,
    control_label,
)
from palimpsest.report.table import Share, Table, as_csv
from palimpsest.report.tables import run_tables
from palimpsest.report.terminal import answer_lines, as_sentence, spent
from palimpsest.run.files import make_folder, remove, write_bytes
from palimpsest.stats import words
from palimpsest.stats.axes import Axis, Sign, chosen
from palimpsest.stats.design import ReferenceDesign, design_references
from palimpsest.stats.rules import MINIMUM_REFERENCES
from palimpsest.stats.share import Scale
from palimpsest.stats.verdict import Verdict
from palimpsest.text import printable

TEMPLATES = Path(__file__).parent / "template"
MORE_REFERENCES = (20, 40)
"""Numbers of references that a reader may choose between; between them nothing is gained."""
TONES = dict.fromkeys(("restored", "not", "partial", "failed"), "open")
"""How labels look that begin with these words: neither good nor bad."""
SCALE_TICKS = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0)
TICKS = (-30, -10, -3, -1, 0, 1, 3, 10, 30)


@dataclass(frozen=True, slots=True)
class Mark:
    """One model on an axis: its place in percent of the width."""

    group: str
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One axis of the picture."""

    axis: Axis
    hints: tuple[str, str]
    """What a model at the left and at the right end shows."""
    noticed: float | None
    """Share of the way to the injected model from which a move here is noticed."""
    marks: list[Mark]
    candidates: list[Mark | None]
    """In the order of the choice."""
    shares: list[str]
    """The share of the injected weights that the axis alone shows, of each candidate; empty where
    it does not show any."""


@dataclass(frozen=True, slots=True)
class ScaleStrip:
    """The scale: as far from retrainings as a mixture, logarithmic."""

    ticks: list[tuple[str, float]]
    marks: list[Mark]
    candidates: list[Mark | None]


def write_report(
    results: RunResults, section: Sequence[Table | Picture] = (), verified: Sequence[str] = ()
) -> Path:
    """Write the page with its tables and figures into RUN/report; return its path.

    section: tables and figures of the page's last section, as ``paper_section`` returns them.
    verified: what a verification of the run's bundle said.
    """
    folder = results.path / "report"
    for path in (folder, folder / "tables", folder / "figures"):
        if path.is_symlink():  # what lies behind it is not ours to overwrite
            raise StoreError(f"{path}: found a link; expected a folder; remove the link")
    tables, pictures = run_tables(results), all_figures(results)
    paper = {item.name: item for item in section if isinstance(item, Table)}
    pictures |= {item.name: item for item in section if isinstance(item, Picture)}
    drawn = {name: figure_bytes(picture.figure, "svg") for name, picture in pictures.items()}
    images = {name: _embed(svg) for name, svg in drawn.items()}
    shown = {"tables": tables, "paper": paper, "pictures": pictures, "images": images}
    shown |= page_values(results) | {"verified": verified}
    files = {folder / "index.html": template("report.html.j2").render(shown).encode()}
    for name, table in (tables | paper).items():
        files[folder / "tables" / f"{name}.csv"] = as_csv(table).encode()
    for name, picture in pictures.items():
        files[folder / "figures" / f"{name}.svg"] = drawn[name]
        files[folder / "figures" / f"{name}.png"] = figure_bytes(picture.figure, "png")
    for path, content in files.items():
        make_folder(path.parent)
        write_bytes(path, content)
    for old in sorted(p for kind in ("tables", "figures") for p in folder.glob(f"{kind}/*.*")):
        # Of an earlier version, or of a run that had fewer cells.
        if old not in files and old.suffix in (".csv", ".md", ".tex", ".svg", ".png"):
            remove(old)
    return folder / "index.html"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page of tables."""

    title: str
    about: str
    tables: Sequence[Table] = ()
    sentences: Sequence[str] = ()
    picture: Picture | None = None


def tables_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return sentences, pictures and tables as one page that needs nothing else."""
    values = {"title": title, "lead": lead, "sections": sections, "embedded": embedded}
    return template("tables.html.j2").render(values)


def page_values(results: RunResults) -> dict[str, Any]:
    """Return what the page shows beside tables and figures."""
    single = len(results.planned) == 1
    cell, verdict = results.judged[0] if single and results.judged else (None, None)
    lines = answer_lines(results)
    best = [line.finding.name for line in lines if line.finding]
    everyone = [finding.name for finding in by_closeness(verdict)] if verdict else []
    picked = [verdict.candidate] if verdict and verdict.candidate else everyone[:1]
    choices = list(dict.fromkeys([*picked, *best, *everyone]))
    return {
        "results": results,
        "single": single,
        "verdict": verdict,
        "headline": headline(results, verdict),
        "spent": spent(results),
        "lines": lines,
        "choices": choices,
        "strips": strips(results, choices) if verdict else [],
        "scale": scale_strip(verdict, choices) if verdict else None,
        "ticks": [(tick, across(tick)) for tick in TICKS],
        "designs": more_references(verdict) if verdict else [],
        "asked": questions(cell) if cell else [],
        "titles": asked_models(cell) if cell else {},
    }


def headline(results: RunResults, verdict: Verdict | None) -> str:
    """Return the answer in one sentence."""
    if verdict is not None:
        return words.headline(verdict)
    if not results.judged:
        share = Share(len(results.cells), len(results.planned))
        return f"Nothing to judge: {share} planned cells finished, no candidate measured."
    return words.certified_cells(results.certified, len(results.judged))


def questions(cell: CellResult) -> list[dict[str, Said]]:
    """Return the answers to each question, by model."""
    found: dict[tuple[str, str], dict[str, Said]] = {}
    for said in cell_answers(cell):
        found.setdefault((said.fact, said.prompt), {})[said.model] = said
    return list(found.values())


def strips(results: RunResults, choices: list[str]) -> list[Strip]:
    """Return the picture of one cell: every axis with retrainings, mixtures, injected model and the
    candidates to choose from."""
    cell, verdict = results.judged[0]
    positions = cell_positions(cell, results.rules)
    shown = [p for p in positions if p.group in ("retraining", "mixture", "injected")]
    by_name = {position.name: position for position in positions if position.group == "candidate"}
    picture = []
    for axis in (a for a in chosen(results.rules) if any(a.name in p.sd for p in shown)):
        marks = [mark for position in shown if (mark := _mark(position, axis)) is not None]
        mine = [_mark(by_name[name], axis) if name in by_name else None for name in choices]
        left = [verdict.finding(name).left for name in choices]
        shares = [
            words.percent(round(known.by_axis[axis.name], 2) + 0.0)
            if known and axis.name in known.by_axis
            else ""
            for known in left
        ]
        noticed = verdict.sensitivity.get(axis.name)
        picture.append(Strip(axis, end_hints(axis), noticed, marks, mine, shares))
    return picture


def end_hints(axis: Axis) -> tuple[str, str]:
    """Return in a few words what a model far below and far above the retrainings shows."""
    known = {Sign.KNOWS: "knows more", Sign.FORGETS: "knows less"}
    other = "changed" if axis.low.sign is Sign.KNOWS else "worse"
    return known.get(axis.low.sign, "better"), known.get(axis.high.sign, other)


def scale_strip(verdict: Verdict, choices: list[str]) -> ScaleStrip | None:
    """Return the strip of the scale; None where the audit has none."""
    scales = [verdict.finding(name).scale for name in choices]
    if not any(scales):
        return None
    controls = {control.name: control for control in verdict.controls}
    marks = [
        Mark(controls[name].kind, along(scale), f"{control_label(controls[name])}: {said(scale)}")
        for name, scale in verdict.scales.items()
    ]
    ticks = [(f"{share:.0%}", along(Scale(share, share, share))) for share in SCALE_TICKS]
    mine = [Mark("candidate", along(s), said(s)) if s is not None else None for s in scales]
    return ScaleStrip(ticks, marks, mine)


def said(scale: Scale) -> str:
    """Return a place on the scale in words, with its interval."""
    return f"{words.short_share(scale.share)} ({words.scale_range(scale)})"


def along(scale: Scale) -> float:
    """Return where a share lies on the scale, in percent: logarithmic from 1 % on."""
    low = math.log(SCALE_TICKS[0])
    share = min(max(scale.share, SCALE_TICKS[0]), 1.3)
    return round(3 + 90 * (math.log(share) - low) / -low, 2)


def _mark(position: Position, axis: Axis) -> Mark | None:
    sd = position.sd.get(axis.name)
    return (
        None if sd is None else Mark(position.group, across(sd), f"{position.label}: {sd:+.1f} sd")
    )


def across(sd: float) -> float:
    """Return where a distance lies, in percent: linear up to 3 standard deviations, then
    logarithmic up to 60, where everything beyond is drawn."""
    size = min(abs(sd), FAR)
    far = 0.55 * min(size, LINEAR) / LINEAR
    far += 0.45 * math.log(max(size, LINEAR) / LINEAR) / math.log(FAR / LINEAR)
    return round(50 + math.copysign(48 * far, sd), 2)


def more_references(verdict: Verdict) -> list[ReferenceDesign]:
    """Return what this number of references notices, and what more of them would."""
    count = verdict.reference_count
    enough = [max(count, MINIMUM_REFERENCES)]
    counts = enough + [more for more in MORE_REFERENCES if more > count]
    return [design_references(number, verdict.rules.alpha) for number in counts]


def template(name: str) -> Template:
    """Return the template of a page, with its style, its script and the policy that allows both."""
    style, script = ((TEMPLATES / f"report.{end}").read_text("utf-8") for end in ("css", "js"))
    hashes = [_base64(hashlib.sha256(text.encode()).digest()) for text in (style, script)]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        csp="default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; "
        "base-uri 'none'; form-action 'none'".format(*hashes),
        style=Markup(style),
        script=Markup(script),
        words=words,
        as_sentence=as_sentence,
        # A minus sign in front of numbers, where text has a hyphen.
        signed=lambda text: re.sub(r"(?<![\w.-])-(?=\d)", "−", text),
        tone=lambda label: "good" if label == "restored" else TONES.get(label.split()[0], "bad"),
    )
    return environment.get_template(name)


def _finalize(value: object) -> object:
    """Return text without characters that could fool a parser or a reader; markup as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def embedded(picture: Picture) -> str:
    """Return a figure as an address that a page can hold in itself."""
    return _embed(figure_bytes(picture.figure, "svg"))


def _embed(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{_base64(svg)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
