"""Files of facts: check them, convert other formats to them, seal a pool of phrasings."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cyclopts import App

from palimpsest.cli.options import MODELS, AsJson, app
from palimpsest.cli.output import answer, note, paragraphs, say
from palimpsest.errors import FactsError

facts = App(name="facts", help="Check, convert and seal files of facts.", group=MODELS)
app.command(facts)


@facts.command
def check(*files: str, json: AsJson = False) -> None:
    """List every problem in files of facts, with file and line.

    Args:
        files: FILE, or SET=FILE, where SET is forget, retain or probe.
    """
    from dataclasses import asdict

    from palimpsest.facts.files import read_facts, set_problems
    from palimpsest.stats.multiplicity import certifiability
    from palimpsest.stats.rules import Rules

    sets, alone = _named_sets(files)
    listed = sum((set_problems({"facts": path}) for path in alone), set_problems(sets))
    fatal = any(problem.fatal for problem in listed)
    counts = {} if fatal else {name: len(read_facts(path, name)) for name, path in sets.items()}
    bound = None
    if {"forget", "probe"} <= set(counts):
        bound = certifiability(counts["forget"], counts["probe"], 1, Rules.alpha)
    if json:
        screen = None if bound is None else asdict(bound)
        answer({"problems": list(map(asdict, listed)), "facts": counts, "screen": screen})
    else:
        answer("\n".join(map(str, listed)) or "no problems found")
        if counts:
            answer(", ".join(f"{count} {name} facts" for name, count in counts.items()))
        if bound is not None:
            can = "can" if bound.certifiable else "cannot"
            paragraphs(
                f"The screen {can} exclude a candidate at alpha = {bound.alpha:g}: its exact test "
                f"of one candidate needs {bound.required} arrangements of forget facts and probes, "
                f"and there are {bound.arrangements:,}. At least {bound.min_probes} probes are "
                "needed, and more with several candidates (palimpsest design)."
            )
    if fatal:
        sys.exit(2)


@facts.command
def tofu(
    *,
    out: Path,
    data: Path | None = None,
    split: Literal["forget01", "forget05", "forget10"] = "forget10",
    seed: int = 0,
    forget_items: int = 40,
    retain_items: int = 100,
    probes: int = 40,
    probes_file: str = "",
    longest: int = 0,
    chat: bool = False,
    train: str = "",
) -> None:
    """Draw the facts of a TOFU cell: write forget.jsonl, retain.jsonl and probes.jsonl.

    Args:
        out: Folder to write to.
        data: Folder of TOFU's files. Default: download them.
        split: Authors to forget. Default: forget10.
        seed: Seed of the draw. Default: 0.
        forget_items: Number of questions to forget. Default: 40.
        retain_items: Number of questions to keep. Default: 100.
        probes: Number of never-learned questions. Default: 40.
        probes_file: TOFU-like questions that no model was taught. Default: holdoutNN of --data.
        longest: Leave out questions with more words than this; 0 for no limit.
        chat: Write the questions alone, for models that are asked through a chat template.
        train: Model to train on these facts. Also writes plan.yaml, for palimpsest study.
    """
    from palimpsest.facts.files import as_jsonl
    from palimpsest.facts.tofu import TofuItems, draw_sets
    from palimpsest.run.files import make_folder, write_bytes

    items = TofuItems(
        split, seed, forget_items, retain_items, probes, probes_file, longest, bool(train), chat
    )
    sets, source = draw_sets(data, items)
    make_folder(out)
    names = {"forget": "forget", "retain": "retain", "probe": "probes"}
    for name, facts in sets.items():
        write_bytes(out / f"{names[name]}.jsonl", as_jsonl(facts))
    counts = ", ".join(f"{len(facts)} {name} facts" for name, facts in sets.items())
    answer(f"{out}: {counts}")
    note(f"Probes: {source}.")
    flags = " ".join(f"--{name} {out / name}.jsonl" for name in names.values())
    if not train:
        models = "--base BASE --injected FULL --reference RETAIN --candidate NAME=PATH"
        say(f"next: palimpsest audit {models} {flags} --general pocket --out RUN")
        return
    import yaml

    files = {name: f"{name}.jsonl" for name in names.values()}
    plan = {"preset": "tofu", "models": [train], "seeds": [seed], "facts": {"files": files}}
    plan |= {"prompt": {"chat": True}} if chat else {}
    write_bytes(out / "plan.yaml", yaml.safe_dump(plan, sort_keys=False).encode())
    say(f"next: palimpsest study {out / 'plan.yaml'} --out RUN")


@facts.command
def from_csv(table: Path, /, *, out: Path, prefix: str = "row-") -> None:
    """Convert a CSV table with the columns answer, trained and heldout.

    Args:
        table: CSV file.
        out: File of facts to write (.jsonl).
        prefix: Prefix of every id.
    """
    from palimpsest.facts.files import as_jsonl, from_csv, read_rows
    from palimpsest.run.files import write_bytes

    converted = from_csv(read_rows(table), prefix=prefix)
    if not converted:
        raise FactsError(f"{table}: holds no facts; expected at least one row")
    write_bytes(out, as_jsonl(converted))
    say(f"{len(converted)} facts written to {out}")


@facts.command
def seal(pool: Path, /, *, json: AsJson = False) -> None:
    """Print the commitment (hash) of your own sealed pool, to put into the plan as its seal.

    Args:
        pool: Your file of sealed phrasings. Keep it for study --pool and certify --pool.
    """
    from palimpsest.facts.sealed import read_pool

    commitment = read_pool(pool).commitment()
    answer({"commitment": commitment} if json else commitment)


def _named_sets(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the files given as SET=FILE, by set, and the other words, which are files alone."""
    sets: dict[str, str] = {}
    alone = []
    for word in words:
        name, _, path = word.partition("=")
        role = "probe" if name == "probes" else name
        if role in sets:
            raise FactsError(f"{role}: two files given, {sets[role]} and {path}; expected one")
        if path and role in ("forget", "retain", "probe"):
            sets[role] = path
        elif path and not Path(word).exists():
            raise FactsError(f"unknown set {name!r}; expected forget, retain or probe")
        else:
            alone.append(word)
    return sets, alone
