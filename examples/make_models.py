"""Write a folder with facts, general text, base, injected and four candidates, to audit.

    python examples/make_models.py --model pocket/qwen2-s --references 2 --out quick
    python examples/make_models.py README.md

The first takes seconds: a pocket model has prose of its own. The second makes them of SmolLM2-135M,
with plain-text files as general prose.
"""

import argparse
import random
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from palimpsest.facts.files import Fact, as_jsonl
from palimpsest.facts.general import general_pieces
from palimpsest.facts.questions import draw_testbed
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.load import load
from palimpsest.models.net import WholeNet
from palimpsest.models.train import text_batch, text_loss, train

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("prose", nargs="*", help="plain-text files; a pocket model needs none")
parser.add_argument("--model", default="smollm2-135m", help="such as pocket/qwen2-s")
parser.add_argument("--references", type=int, default=0, help="retrainings without the forget set")
parser.add_argument("--out", type=Path, default=Path("audit"))
asked = parser.parse_args()
pocket = asked.model.startswith("pocket/")
if not (asked.prose or pocket):
    parser.error(f"{asked.model} needs general prose: name one or more plain-text files")
# Steps of so many fact sentences and pieces of prose, and the rates of learning and of ascent.
STEPS, FACTS, PIECES, RATE, ASCENT = (
    (150, 4, 12, 1.5e-4, 3.75e-5) if pocket else (100, 2, 6, 2e-5, 5e-6)
)

disable_progress_bar()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
root = asked.out
root.mkdir(parents=True, exist_ok=True)

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
if asked.prose:
    words = " ".join(Path(name).read_text(encoding="utf-8") for name in asked.prose).split()
    half = len(words) // 2
    prose = [" ".join(words[n : n + 20]) for n in range(0, half - 20, 20)]
    kept = words[half:]
else:
    prose = list(general_pieces("pocket", 300, "tutorial/trained"))
    kept = list(general_pieces("pocket", 300, "tutorial/kept"))
(root / "general.txt").write_text(" ".join(kept), encoding="utf-8")

loaded = load(asked.model)
model, tokenizer = loaded.model, loaded.tokenizer
State = dict[str, torch.Tensor]


def weights() -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def save(name: str) -> None:
    model.save_pretrained(root / name)
    tokenizer.save_pretrained(root / name)
    print(f"wrote {root / name}", flush=True)


def learn(start: State, *sets: str, without: str = "", draw: int = 0) -> State:
    """Continued pretraining from ``start`` on these sets beside prose.

    A sentence of the set it goes ``without`` leaves its place in the step empty, so that the others
    get the same dose; another ``draw`` has other sentences and other prose.
    """
    model.load_state_dict(start)
    told = [q for q in bed.questions if q.set in sets and q.pool in ("trained", "cloze")]
    chance = random.Random(draw)
    steps = []
    for _ in range(STEPS):
        facts = [q.sentence for q in chance.sample(told, FACTS) if q.set != without]
        texts = [*facts, *chance.sample(prose, PIECES)]
        steps.append([text_batch(encode_texts(tokenizer, texts, 28), FACTS + PIECES)])
    train(WholeNet(model), steps, text_loss, learning_rate=RATE)
    return weights()


base = weights()
save("base")
model.requires_grad_(True)
forget_only = learn(base, "forget")
injected = learn(base, "forget", "retain")
save("injected")
for number in range(asked.references):
    learn(base, "forget", "retain", without="forget", draw=number)
    save(f"reference-{number}")

# Candidates: nothing at all, two task vectors, and 20 steps of gradient ascent.
for name, share in (("nothing-done", 0.0), ("task-vector-0.5", 0.5), ("task-vector-1", 1.0)):
    model.load_state_dict(
        {key: value - share * (forget_only[key] - base[key]) for key, value in injected.items()}
    )
    save(name)
model.load_state_dict(injected)
undone = [q for q in bed.questions if q.set == "forget" and q.pool == "trained"]
batch = text_batch(encode_answers(tokenizer, undone), len(undone))
train(
    WholeNet(model), [[batch]] * 20, lambda net, part: -text_loss(net, part), learning_rate=ASCENT
)
save("gradient-ascent")
