"""Anybody's unlearning run, watched: a ``transformers.TrainerCallback`` that logs deltas.

    trainer = Trainer(…)
    facts = {"forget": "F.jsonl", "retain": "R.jsonl", "probes": "P.jsonl"}
    palimpsest.watch(trainer, base="BASE", tokenizer=tokenizer, **facts)
    trainer.train()

Before the first step, every ``every`` steps and at the end, three numbers are logged in nats, each
the median over facts of the model's answer NLL minus base's: ``forget_delta`` and ``probe_delta``
on held-out prompts, ``retain_delta`` on trained ones. Forgetting is done when the first two meet;
where the forget delta goes on rising the answers are suppressed. This is a gauge, not an audit: it
sees no retraining and asks nothing after relearning.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from palimpsest.errors import InputError
from palimpsest.facts.files import Fact, check_sets
from palimpsest.facts.questions import Question, file_questions
from palimpsest.models.load import load
from palimpsest.models.net import WholeNet
from palimpsest.scoring.answers import Sheet, make_sheet, score

ASKED = {"forget": "evaluation", "probe": "evaluation", "retain": "trained"}
"""The prompts on which each set is asked; where it has none of them, the others."""


class Watch(TrainerCallback):  # type: ignore[misc]
    """Logs forget, probe and retain deltas; ``history`` has them by step."""

    def __init__(
        self, base: Any, tokenizer: Any, sets: dict[str, Sequence[Fact]], every: int
    ) -> None:
        if every < 1:
            raise InputError(f"every: {every} found; expected a number of steps of at least 1")
        self.every = every
        self.history: list[dict[str, float]] = []
        self.trainer: Any = None
        questions = tuple(_asked(sets))
        self.sheet: Sheet = make_sheet(tokenizer, questions, piece_tokens=32, batch_tokens=4096)
        model = load(str(base)).model if isinstance(base, str | Path) else base
        self.base = self._nlls(model)

    def deltas(self, model: Any) -> dict[str, float]:
        """Return the three deltas of a model as it is."""
        moved = self._nlls(model)
        return {
            f"{name}_delta": float(np.median(moved[name] - self.base[name])) for name in self.base
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._log(state, more["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step % self.every == 0:
            self._log(state, more["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not self.history or self.history[-1]["step"] != state.global_step:
            self._log(state, more["model"])

    def _log(self, state: Any, model: Any) -> None:
        values = self.deltas(model)
        self.history.append({"step": state.global_step} | values)
        if self.trainer is not None:
            self.trainer.log(values)
        else:
            state.log_history.append({"step": state.global_step} | values)

    def _nlls(self, model: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the mean answer NLL of each fact, by set."""
        with _at_rest(model):
            (scores,) = score(WholeNet(model), self.sheet)
        facts: dict[str, dict[str, list[float]]] = {}
        for question, nll, tokens in zip(self.sheet.questions, scores.nll_sum, self.sheet.tokens):
            facts.setdefault(question.set, {}).setdefault(question.fact, []).append(nll / tokens)
        return {
            name: np.array([np.mean(values) for values in several.values()])
            for name, several in facts.items()
        }


def watch(
    trainer: Any = None,
    *,
    base: Any,
    tokenizer: Any,
    forget: Any,
    retain: Any,
    probes: Any,
    every: int = 50,
) -> Watch:
    """Return a callback that logs forget, probe and retain deltas while a Trainer trains.

    trainer: it is added to it, and logs through it to every tracker; without one it is returned
    for ``Trainer(callbacks=[…])`` and logs to ``state.log_history`` alone. base: the model before
    it learned, as a path or a module. forget, retain, probes: files, or sequences of ``Fact``.
    """
    given = {"forget": forget, "retain": retain, "probe": probes}
    files = {name: value for name, value in given.items() if isinstance(value, str | Path)}
    sets = {name: tuple(value) for name, value in given.items() if name not in files}
    sets |= check_sets(files)
    callback = Watch(base, tokenizer, {name: sets[name] for name in given}, every)
    if trainer is not None:
        callback.trainer = trainer
        trainer.add_callback(callback)
    return callback


def _asked(sets: dict[str, Sequence[Fact]]) -> Iterator[Question]:
    for name, facts in sets.items():
        for fact in facts:
            several = file_questions({name: [fact]})
            chosen = [question for question in several if question.pool == ASKED[name]]
            yield from chosen or several


@contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """Put a model into evaluation for the block, and back as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
