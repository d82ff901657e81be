"""What the models of a run say to a question."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from palimpsest.cli.options import START, AsJson, app, named_values
from palimpsest.cli.output import answer
from palimpsest.errors import InputError

if TYPE_CHECKING:
    from palimpsest.report.results import CellResult, RunResults, Said


@app.command(group=START)
def ask(
    run: Path,
    /,
    *,
    fact: str = "",
    prompt: str = "",
    truth: str = "",
    model: Annotated[list[str] | None, Parameter(negative=())] = None,
    cell: str | None = None,
    json: AsJson = False,
) -> None:
    """Show what the models of a run answer to its questions, or to a prompt of your own.

    Parameters
    ----------
    run
        Finished run folder.
    fact
        Id of one fact; shows the answers of all models.
    prompt
        Text to continue. Needs weights, kept by the run (study --keep) or given with --model.
    truth
        Correct answer to the prompt; shows its rank and probability.
    model
        NAME=PATH of another model to ask. Repeatable.
    cell
        Cell of the run. Default: the first.
    """
    from dataclasses import asdict

    from palimpsest.report.results import cell_answers, read_run
    from palimpsest.report.terminal import asked_lines

    results = read_run(run)
    if not results.cells:
        raise InputError(f"{run}: no finished cell; expected a finished run; resume it first")
    chosen = results.cell(cell) if cell else results.cells[0]
    stored = [said for said in cell_answers(chosen) if fact in ("", said.fact)]
    if not prompt and not stored:
        known = ", ".join(dict.fromkeys(said.fact for said in cell_answers(chosen)))
        raise InputError(
            f"{fact or run}: no answer is stored; expected one of {known or 'none'}; give --prompt "
            "TEXT to ask models whose weights are available"
        )
    if prompt or model:
        asked = {prompt: truth} if prompt else {said.prompt: said.truth for said in stored}
        kept = sorted(run.glob(f"cells/{chosen.id}/models/*.safetensors")) if prompt else []
        fresh = list(_answers(results, chosen, asked, named_values(model, key="model"), kept))
        stored = fresh if prompt else [*stored, *fresh]
    if json:
        answer([asdict(said) | {"right": said.right} for said in stored])
    else:
        everyone = bool(fact or prompt or model)
        answer("\n".join(asked_lines(results, chosen, stored, everyone=everyone)))


def _answers(
    results: "RunResults",
    cell: "CellResult",
    asked: dict[str, str],
    given: dict[str, str],
    kept: list[Path],
) -> Iterator["Said"]:
    """Yield the answers of the models given, and of base and those whose weights were kept."""
    if not given and not kept:
        raise InputError(
            f"{results.path}: no weights of {cell.id} were kept; expected models to ask; give "
            "--model NAME=PATH, or run the study with --keep models --keep candidates"
        )
    from palimpsest.models.checkpoint import load, stored_state
    from palimpsest.models.net import Net, Nets, WholeNet
    from palimpsest.report.results import Said
    from palimpsest.scoring.generation import answer_prompt

    def said(name: str, net: Net, tokenizer: object) -> Iterator[Said]:
        for prompt, truth in asked.items():
            yield Said("", "", prompt, truth, name, *answer_prompt(net, tokenizer, prompt, truth))

    engine = results.terms.config.get("engine", {})
    how = {key: engine[key] for key in ("dtype", "device") if key in engine}
    for name, source in given.items():
        loaded = load(source, **how)
        yield from said(name, WholeNet(loaded.model), loaded.tokenizer)
    if not kept:
        return
    base = load(cell.base, **how)
    nets = Nets(base, stack=1)
    yield from said("base", WholeNet(base.model), base.tokenizer)
    for path in kept:
        yield from said(path.stem, nets.whole(stored_state(path)), base.tokenizer)
