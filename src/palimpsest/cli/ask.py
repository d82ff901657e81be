"""What the models of a run say to a question."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.cli.options import START, AsJson, Repeatable, app, named_values
from palimpsest.cli.output import answer
from palimpsest.errors import InputError

if TYPE_CHECKING:
    from palimpsest.models.net import Net


@app.command(group=START)
def ask(
    run: Path,
    /,
    *,
    fact: str = "",
    prompt: str = "",
    truth: str = "",
    model: Repeatable = None,
    cell: str | None = None,
    json: AsJson = False,
) -> None:
    """Show what the models of a run answer to its questions, or to a prompt of your own.

    Args:
        run: Finished run folder.
        fact: Id of one fact; shows the answers of all models.
        prompt: Text to continue. Needs weights: kept by the run (study --keep) or of --model.
        truth: Correct answer to the prompt; shows its rank and probability.
        model: NAME=PATH of another model to ask. Repeatable.
        cell: Cell of the run. Default: the first.
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
        from palimpsest.report.results import Said
        from palimpsest.scoring.generation import answer_prompt

        asked = {prompt: truth} if prompt else {said.prompt: said.truth for said in stored}
        kept = sorted(run.glob(f"cells/{chosen.id}/models/*.safetensors")) if prompt else []
        engine, given = results.terms.config.get("engine", {}), named_values(model, "model")
        fresh = [
            Said("", "", text, right, name, *answer_prompt(net, tokenizer, text, right))
            for name, net, tokenizer in _nets(chosen.base, given, kept, engine)
            for text, right in asked.items()
        ]
        if not fresh:
            raise InputError(
                f"{run}: no weights of {chosen.id} were kept; expected models to ask; give --model "
                "NAME=PATH, or run the study with --keep models --keep candidates"
            )
        stored = fresh if prompt else [*stored, *fresh]
    if json:
        answer([asdict(said) | {"right": said.right} for said in stored])
    else:
        everyone = bool(fact or prompt or model)
        answer("\n".join(asked_lines(results, chosen, stored, everyone=everyone)))


def _nets(
    base: str, given: dict[str, str], kept: list[Path], engine: dict[str, Any]
) -> Iterator[tuple[str, "Net", Any]]:
    """Yield the models given, then base and those whose weights were kept, with tokenizers."""
    from palimpsest.models.checkpoint import load, stored_state
    from palimpsest.models.net import Nets, WholeNet

    how = {key: engine[key] for key in ("dtype", "device") if key in engine}
    for name, source in given.items():
        loaded = load(source, **how)
        yield name, WholeNet(loaded.model), loaded.tokenizer
    if kept:
        loaded = load(base, **how)
        nets = Nets(loaded, stack=1)
        yield "base", WholeNet(loaded.model), loaded.tokenizer
        for path in kept:
            yield path.stem, nets.whole(stored_state(path)), loaded.tokenizer
