"""Small models for audits, trained by a plain loop and not by the package's own commands.

From a pocket model: injected, references, the injected model unchanged, two task vectors, 20 steps
of gradient ascent, and a further retraining without the forget set.
"""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
            named = {"subject": triple.subject, "relation": triple.relation}
            facts.append(Fact(triple.id, triple.object, trained, heldout, **named))
        (out / f"{name}.jsonl").write_bytes(as_jsonl(facts))


def general_text() -> tuple[list[str], list[str]]:
    """Return general text to train on, and general text kept for the audit."""
    kept = list(general_pieces("pocket", 300, "tutorial/kept"))
    return list(general_pieces("pocket", 300, "tutorial/trained")), kept
