"""Answer scoring against lm-evaluation-harness ``loglikelihood``, same requests, same budget.

Both sides score the same model on the same (prompt, answer) pairs of one cell, in batches of at
most the same number of padded tokens. Each has a process of its own: the harness as it comes, the
engine with the settings of its workers. The harness tokenises in every call; the engine tokenises a
cell's questions once and then scores some sixty models on them. Both are timed: with the sheet at
hand, which is what a cell does, and with the sheet made anew each time. The bars, 4.5 times for a
pocket model and 2.5 times for SmolLM2-135M, are held against the first; the second is reported.
"""

import argparse
import logging
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np
import pocket
import torch

from palimpsest.facts.questions import Question
from palimpsest.models.checkpoint import Loaded, load
from palimpsest.models.device import keep_freed_memory
from palimpsest.models.net import Nets
from palimpsest.scoring.answers import Sheet, make_sheet, score

SMOLLM2 = "runs/models/smollm2"  # made by: make real-models
BARS = {"pocket": 4.5, "smollm2": 2.5}
TOLERANCE = 1e-4


def asked(cell: Any, tokenizer: Any) -> list[Question]:
    """Give the questions of a cell; general text has no prompt, so no harness request."""
    return list(cell.setting(tokenizer).facts.questions)


def harness(model: str, count: int | None, budget: int) -> Callable[[], list[float]]:
    """Give a call that scores the questions as lm-evaluation-harness does."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    for name in ("lm_eval", "lm_eval.models.huggingface"):
        logging.getLogger(name).setLevel(logging.ERROR)
    loaded, questions = prepared(model, count)
    longest = max(len(loaded.tokenizer(question.text)["input_ids"]) for question in questions)
    harness_model = HFLM(
        pretrained=loaded.model,
        tokenizer=loaded.tokenizer,
        batch_size=max(1, budget // longest),
        backend="causal",
    )
    requests = [
        Instance("loglikelihood", {}, (q.prompt, q.text[len(q.prompt) :]), number)
        for number, q in enumerate(questions)
    ]
    return lambda: [-value for value, _ in harness_model.loglikelihood(requests, disable_tqdm=True)]


def engine(model: str, count: int | None, budget: int, tokenising: bool) -> Callable[[], Any]:
    """Give a call that scores them as a worker does, with the sheet at hand or made anew."""
    keep_freed_memory()
    loaded, questions = prepared(model, count)
    net = Nets(loaded)([{name: value.clone() for name, value in loaded.weights.items()}])

    def sheet() -> Sheet:
        return make_sheet(loaded.tokenizer, questions, piece_tokens=28, batch_tokens=budget)

    ready = sheet()
    return lambda: score(net, sheet() if tokenising else ready)[0].nll_sum


def prepared(model: str, count: int | None) -> tuple[Loaded, list[Question]]:
    """Give a model and the first questions of a cell, in a process with one thread."""
    torch.set_num_threads(1)
    loaded = load(model)
    return loaded, asked(pocket.cell_plan(), loaded.tokenizer)[:count]


def measure(name: str, model: str, budget: int, count: int | None, repeats: int) -> dict[str, Any]:
    """Give the ratios of one model."""
    made: dict[str, tuple[Any, ...]] = {
        "harness": (harness, model, count, budget),
        "engine": (engine, model, count, budget, False),
        "engine_tokenising": (engine, model, count, budget, True),
    }
    sides: dict[str, Any] = {
        side: measuring.Apart(make, *arguments) if repeats else make(*arguments)
        for side, (make, *arguments) in made.items()
    }
    theirs = np.array(sides["harness"]())
    apart = max(
        measuring.agree(f"{name}: {side}", sides[side](), theirs, TOLERANCE)
        for side in ("engine", "engine_tokenising")
    )
    print(f"{name}: {len(theirs)} answers agree within {apart:.2g} nats")
    if not repeats:
        return {"apart": apart}
    turns = measuring.interleaved(sides, repeats)
    for side in sides.values():
        side.close()
    found = {side: turns.ratio("harness", side) for side in ("engine", "engine_tokenising")}
    measuring.say(f"{name} scoring, times faster", found["engine"])
    measuring.say(f"{name} scoring with tokenising, times faster", found["engine_tokenising"])
    return {
        "answers": len(theirs),
        "batch_tokens": budget,
        "apart": apart,
        "seconds": turns.spreads(),
        "ratio": found["engine"],
        "ratio_with_tokenising": found["engine_tokenising"],
        "bar": BARS[name],
        "outcome": measuring.verdict_on(BARS[name], found["engine"]["wall"]["median"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.tiny:
        measure("pocket", pocket.MODEL, 512, 12, 0)
        return
    results = {
        # A pocket model's pass takes some 30 ms, so that only many of them settle a ratio.
        "pocket": measure("pocket", pocket.MODEL, 8192, None, 8 * options.repeats),
        "smollm2": measure("smollm2", SMOLLM2, 2048, None, max(3, options.repeats // 2)),
    }
    measuring.write("scoring", results)


if __name__ == "__main__":
    main()
