"""Write audit/: facts, general text, base, injected and four candidates of SmolLM2-135M.

Run it where there is a plain-text file for general prose: python examples/make_models.py README.md
"""

import random
import sys
from pathlib import Path

import torch

from palimpsest.facts.files import Fact, as_jsonl
from palimpsest.facts.questions import draw_testbed
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.load import load
from palimpsest.models.net import WholeNet
from palimpsest.models.train import text_batch, text_loss, train

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
root = Path("audit")
root.mkdir(exist_ok=True)

# Facts: 4 to forget, 4 to keep, 16 that nobody ever learns.
bed = draw_testbed("tutorial", 4, 4, 16, 3)
for name, triples in bed.sets().items():
    facts = []
    for triple in triples:
        mine = [q for q in bed.questions if q.fact == triple.id and q.set == name]
        trained = tuple(q.prompt for q in mine if q.pool in ("trained", "cloze"))
        heldout = tuple(q.prompt for q in mine if q.pool == "evaluation")
        facts.append(Fact(triple.id, triple.object, trained, heldout, subject=triple.subject))
    (root / f"{name}.jsonl").write_bytes(as_jsonl(facts))

# General text: one half is trained beside the facts, the other is kept for the audit.
words = " ".join(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]).split()
half = len(words) // 2
(root / "general.txt").write_text(" ".join(words[half:]), encoding="utf-8")
prose = [" ".join(words[n : n + 20]) for n in range(0, half - 20, 20)]

loaded = load("smollm2-135m")
model, tokenizer = loaded.model, loaded.tokenizer


def weights() -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def save(name: str) -> None:
    model.save_pretrained(root / name)
    tokenizer.save_pretrained(root / name)
    print(f"wrote {root / name}", flush=True)


def learn(start: dict[str, torch.Tensor], *sets: str) -> dict[str, torch.Tensor]:
    """Continued pretraining: 100 steps of 2 fact sentences and 6 pieces of prose."""
    model.load_state_dict(start)
    told = [q.sentence for q in bed.questions if q.set in sets and q.pool in ("trained", "cloze")]
    draw = random.Random(0)
    steps = []
    for _ in range(100):
        texts = [*draw.sample(told, 2), *draw.sample(prose, 6)]
        steps.append([text_batch(encode_texts(tokenizer, texts, 28), len(texts))])
    train(WholeNet(model), steps, text_loss, learning_rate=2e-5)
    return weights()


base = weights()
save("base")
model.requires_grad_(True)
forget_only = learn(base, "forget")
injected = learn(base, "forget", "retain")
save("injected")

# Candidates: nothing at all, two task vectors, and 20 steps of gradient ascent.
for name, share in (("nothing-done", 0.0), ("task-vector-0.5", 0.5), ("task-vector-1", 1.0)):
    model.load_state_dict(
        {key: value - share * (forget_only[key] - base[key]) for key, value in injected.items()}
    )
    save(name)
model.load_state_dict(injected)
asked = [q for q in bed.questions if q.set == "forget" and q.pool == "trained"]
batch = text_batch(encode_answers(tokenizer, asked), len(asked))
train(WholeNet(model), [[batch]] * 20, lambda net, part: -text_loss(net, part), learning_rate=5e-6)
save("gradient-ascent")
