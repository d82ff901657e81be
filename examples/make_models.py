"""Write a folder of models to audit: facts, general text, base, injected, references, candidates.

    python examples/make_models.py --model pocket/qwen2-s --references 19 --out quick
    python examples/make_models.py README.md

The first takes half a minute on two cores: a pocket model comes with general text of its own. The
second trains SmolLM2-135M, with plain-text files as general text.

Candidates: the injected model unchanged, two task vectors, 20 steps of gradient ascent, and, if
references are asked for, one further retraining without the forget set: a truly restored model.
"""

import argparse
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers.utils.logging import disable_progress_bar

from palimpsest.facts.files import Fact, as_jsonl
from palimpsest.facts.general import general_pieces
from palimpsest.facts.questions import Testbed, draw_testbed
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.load import load
from palimpsest.models.net import WholeNet
from palimpsest.models.train import text_batch, text_loss, train

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """How every model here is trained: steps, texts per step, learning rates."""

    model: str
    out: Path
    general: tuple[str, ...]
    steps: int
    facts: int
    pieces: int
    rate: float
    ascent: float


def bed() -> Testbed:
    """Return 4 facts to forget, 4 to retain, and 16 probes that no model learns."""
    return draw_testbed("tutorial", 4, 4, 16, 3)


@cache
def loaded(name: str) -> tuple[Any, Any, State]:
    """Return the model, its tokenizer and a copy of its weights, loaded once per process."""
    disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    found = load(name)
    found.model.requires_grad_(True)
    return found.model, found.tokenizer, copied(found.model.state_dict())


def copied(state: State) -> State:
    return {name: value.detach().clone() for name, value in state.items()}


def save(recipe: Recipe, name: str) -> None:
    model, tokenizer, _ = loaded(recipe.model)
    model.save_pretrained(recipe.out / name)
    tokenizer.save_pretrained(recipe.out / name)
    print(f"wrote {recipe.out / name}", flush=True)


def learn(recipe: Recipe, sets: tuple[str, ...], without: str = "", draw: int = 0) -> State:
    """Train the base on these sets and general text; return the weights.

    A sentence of the set ``without`` is left out and nothing takes its place, so that the other
    sets get the same dose. Another ``draw`` uses other sentences and other general text.
    """
    model, tokenizer, base = loaded(recipe.model)
    model.load_state_dict(base)
    taught = [q for q in bed().questions if q.set in sets and q.pool in ("trained", "cloze")]
    chance = random.Random(draw)
    steps = []
    for _ in range(recipe.steps):
        facts = [q.sentence for q in chance.sample(taught, recipe.facts) if q.set != without]
        texts = [*facts, *chance.sample(recipe.general, recipe.pieces)]
        batch = text_batch(encode_texts(tokenizer, texts, 28), recipe.facts + recipe.pieces)
        steps.append([batch])
    train(WholeNet(model), steps, text_loss, learning_rate=recipe.rate)
    return copied(model.state_dict())


def retrain(recipe: Recipe, name: str, draw: int) -> None:
    """Write a retraining: the injected model's recipe without the forget set."""
    learn(recipe, ("forget", "retain"), without="forget", draw=draw)
    save(recipe, name)


def inject(recipe: Recipe) -> None:
    """Write base, injected and the candidates that are made from them."""
    model, tokenizer, base = loaded(recipe.model)
    model.load_state_dict(base)
    save(recipe, "base")
    forget_only = learn(recipe, ("forget",))
    injected = learn(recipe, ("forget", "retain"))
    save(recipe, "injected")
    for name, share in (("nothing-done", 0.0), ("task-vector-0.5", 0.5), ("task-vector-1", 1.0)):
        vector = {key: forget_only[key] - base[key] for key in base}
        model.load_state_dict({key: injected[key] - share * vector[key] for key in base})
        save(recipe, name)
    model.load_state_dict(injected)
    forget = [q for q in bed().questions if q.set == "forget" and q.pool == "trained"]
    batch = text_batch(encode_answers(tokenizer, forget), len(forget))
    ascend = [[batch]] * 20
    train(
        WholeNet(model),
        ascend,
        lambda net, part: -text_loss(net, part),
        learning_rate=recipe.ascent,
    )
    save(recipe, "gradient-ascent")


def write_facts(out: Path) -> None:
    """Write the facts files: forget.jsonl, retain.jsonl, probe.jsonl."""
    for name, triples in bed().sets().items():
        facts = []
        for triple in triples:
            mine = [q for q in bed().questions if q.fact == triple.id and q.set == name]
            trained = tuple(q.prompt for q in mine if q.pool in ("trained", "cloze"))
            heldout = tuple(q.prompt for q in mine if q.pool == "evaluation")
            facts.append(Fact(triple.id, triple.object, trained, heldout, subject=triple.subject))
        (out / f"{name}.jsonl").write_bytes(as_jsonl(facts))


def general_text(files: list[str]) -> tuple[list[str], list[str]]:
    """Return general text to train on, and general text kept for the audit."""
    if not files:
        kept = list(general_pieces("pocket", 300, "tutorial/kept"))
        return list(general_pieces("pocket", 300, "tutorial/trained")), kept
    words = " ".join(Path(name).read_text(encoding="utf-8") for name in files).split()
    half = len(words) // 2
    return [" ".join(words[n : n + 20]) for n in range(0, half - 20, 20)], words[half:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="*", help="plain-text files; a pocket model needs none")
    parser.add_argument("--model", default="smollm2-135m", help="for example pocket/qwen2-s")
    parser.add_argument("--references", type=int, default=0, help="retrainings to compare with")
    parser.add_argument("--out", type=Path, default=Path("audit"))
    parser.add_argument(
        "--workers", type=int, help="processes; default: all cores for a pocket model, else 1"
    )
    asked = parser.parse_args()
    pocket = asked.model.startswith("pocket/")
    if not (asked.text or pocket):
        parser.error(f"{asked.model} needs general text: name one or more plain-text files")
    asked.out.mkdir(parents=True, exist_ok=True)
    write_facts(asked.out)
    trained, kept = general_text(asked.text)
    (asked.out / "general.txt").write_text(" ".join(kept), encoding="utf-8")
    dose = (150, 4, 12, 1.5e-4, 3.75e-5) if pocket else (100, 2, 6, 2e-5, 5e-6)
    recipe = Recipe(asked.model, asked.out, tuple(trained), *dose)
    # Draw 0 is the injected model's own; the candidate comes after the last reference.
    retrainings = [(f"references/{draw:02d}", draw) for draw in range(asked.references)]
    retrainings += [("retrained", asked.references)] if asked.references else []
    workers = asked.workers or ((os.cpu_count() or 1) if pocket else 1)
    with ProcessPoolExecutor(min(workers, 1 + len(retrainings)), get_context("spawn")) as pool:
        jobs = [pool.submit(inject, recipe)]
        jobs += [pool.submit(retrain, recipe, name, draw) for name, draw in retrainings]
        for job in jobs:
            job.result()


if __name__ == "__main__":
    main()
