"""Files of facts: check them, or convert other formats to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer, say

if TYPE_CHECKING:
    from palimpsest.facts.files import Fact

app = typer.Typer(help="Check and convert files of facts.", no_args_is_help=True)

FactsOut = Annotated[Path, Option("--out", help="File of facts to write (.jsonl).")]
Prefix = Annotated[str, Option(help="Prefix of every id.")]


@app.command()
def check(
    files: Annotated[
        list[str], Argument(help="FILE, or SET=FILE with SET one of forget, retain, probe.")
    ],
    as_json: AsJson = False,
) -> None:
    """List every problem of facts files, with file and line."""
    from dataclasses import asdict

    from palimpsest.facts.files import named_sets, problems, set_problems

    sets, alone = named_sets(files)
    listed = [*(set_problems(sets) if sets else [])]
    for path in alone:
        listed += problems(path)
    if as_json:
        answer([asdict(problem) for problem in listed])
    else:
        answer("\n".join(map(str, listed)) or "no problems found")
    if any(problem.fatal for problem in listed):
        raise typer.Exit(2)


@app.command()
def from_tofu(
    questions: Path,
    out: FactsOut,
    perturbed: Annotated[
        Path | None, Option(help="TOFU file with the paraphrased questions.")
    ] = None,
    prefix: Prefix = "tofu-",
    without_paraphrase: Annotated[
        str, Option(help="Questions without a paraphrase: refuse, skip or keep.")
    ] = "refuse",
) -> None:
    """Convert TOFU questions: questions become trained prompts, paraphrases held-out ones."""
    from palimpsest.facts import convert

    others = convert.read_rows(perturbed) if perturbed else ()
    rows = convert.read_rows(questions)
    facts = convert.from_tofu(rows, others, prefix=prefix, without_paraphrase=without_paraphrase)
    _write(facts, out)


@app.command()
def from_csv(table: Path, out: FactsOut, prefix: Prefix = "row-") -> None:
    """Convert a CSV table with the columns answer, trained and heldout."""
    from palimpsest.facts import convert

    _write(convert.from_csv(convert.read_rows(table), prefix=prefix), out)


@app.command()
def from_counterfact(
    table: Path,
    out: FactsOut,
    target: Annotated[str, Option(help="Answer to use: target_new or target_true.")] = "target_new",
) -> None:
    """Convert CounterFact records."""
    from palimpsest.facts import convert

    _write(convert.from_counterfact(convert.read_rows(table), target=target), out)


@app.command()
def to_lm_eval(
    files: Annotated[list[str], Argument(help="SET=FILE, with SET one of forget, retain, probe.")],
    out: Annotated[Path, Option("--out", help="Folder for the task files.")],
    prefix: Annotated[str, Option(help="Prefix of every task name.")] = "palimpsest",
) -> None:
    """Write tasks for lm-evaluation-harness, whose log-perplexity is the mean answer NLL."""
    from palimpsest.errors import FactsError
    from palimpsest.facts.files import check_sets, named_sets
    from palimpsest.facts.harness import harness_files
    from palimpsest.run.store import make_folder, write_bytes

    sets, alone = named_sets(files)
    if alone or not prefix.isidentifier():
        what = f"{alone[0]} found; expected SET=FILE" if alone else f"prefix {prefix!r} found; "
        raise FactsError(what if alone else f"{what}expected letters, digits and _")
    make_folder(out)
    for name, data in harness_files(check_sets(sets), out, prefix).items():
        write_bytes(out / name, data)
    answer(
        f"lm_eval --include_path {out} --tasks {prefix} --model hf --model_args pretrained=MODEL"
    )


def _write(facts: "Sequence[Fact]", out: Path) -> None:
    from palimpsest.errors import FactsError
    from palimpsest.facts.files import as_jsonl
    from palimpsest.run.store import write_bytes

    if not facts:
        raise FactsError("the input holds no facts; expected at least one row")
    write_bytes(out, as_jsonl(facts))
    say(f"{len(facts)} facts written to {out}")
