"""A small world for audit tests: facts in files, and tiny checkpoints that truly learned them."""

import json
import shutil
from pathlib import Path
from typing import Any

FORGET, RETAIN, PROBES, REFERENCES = 4, 2, 16, 5
STEPS = {"steps": 4, "chunks": 2, "items": 2, "scored_pieces": 3, "piece_tokens": 12}
PEOPLE = [one + two for one in ("As", "Bor", "Cy", "Den") for two in ("ha", "lo", "ram", "nek")]
GUILDS = [one + two for one in ("Ve", "Zo", "Qui", "Dra") for two in ("lk", "rm", "bix", "ffy")]


def fact(kind: str, number: int, **more: Any) -> dict[str, Any]:
    """One fact in the file format; every set has names of its own."""
    shift = {"forget": 0, "retain": 7, "probe": 11}[kind]
    person = f"{PEOPLE[number % 16]}{kind[0]} {PEOPLE[(number + shift) % 16]}"
    row = {
        "id": f"{kind}-{number}",
        "answer": f"{GUILDS[(number * 5 + shift) % 16]}{kind[-1]}",
        "trained": [f"The guild of {person} is", f"{person} joined the guild"],
        "heldout": [f"{person} is sworn to", f"Ask {person}, whose guild is"],
        "subject": person,
        "relation": "guild",
    }
    return row | more


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_facts(folder: Path, **more: Any) -> dict[str, str]:
    """Write the three files and a general text; return their paths by the keys of an audit."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"forget": FORGET, "retain": RETAIN, "probe": PROBES}
    for kind, count in counts.items():
        rows = [fact(kind, n, **(more if kind == "forget" else {})) for n in range(count)]
        write_rows(folder / f"{kind}.jsonl", rows)
    text = [f"line {n} " + "the river ran past old stones " * 6 for n in range(9)]
    (folder / "general.txt").write_text("\n".join(text))
    return fact_files(folder)


def fact_files(folder: Path) -> dict[str, str]:
    files = {"forget": "forget", "retain": "retain", "probes": "probe"}
    paths = {key: str(folder / f"{file}.jsonl") for key, file in files.items()}
    return paths | {"general": str(folder / "general.txt")}


def learned(source: Path, target: Path, sentences: list[str], steps: int = 60) -> Path:
    """Return a copy of a checkpoint that was trained on some sentences."""
    from palimpsest.models.checkpoint import load
    from palimpsest.models.encode import encode_texts
    from palimpsest.models.net import WholeNet
    from palimpsest.models.train import text_batch, text_loss, train

    loaded = load(str(source))
    loaded.model.requires_grad_(True)
    texts = encode_texts(loaded.tokenizer, sentences)
    batch = [text_batch(texts, len(texts))]
    train(WholeNet(loaded.model), [batch] * steps, text_loss, learning_rate=5e-3)
    loaded.model.save_pretrained(target)
    loaded.tokenizer.save_pretrained(target)
    return target


def make_models(source: Path, folder: Path, facts: dict[str, str]) -> None:
    """Write base, injected, references that never saw the forget set, and two candidates.

    ``unchanged`` is the injected model itself, ``retrained`` never saw the forget set.
    """

    def told(*keys: str) -> list[str]:
        lines = [line for key in keys for line in Path(facts[key]).read_text().splitlines()]
        rows = [json.loads(line) for line in lines]
        return [f"{p} {row['answer']}." for row in rows for p in row["trained"] + row["heldout"]]

    shutil.copytree(source, folder / "base")
    learned(source, folder / "injected", told("forget", "retain"))
    for number in range(REFERENCES):
        learned(source, folder / f"{number:02d}", told("retain"), steps=52 + 2 * number)
    shutil.copytree(folder / "injected", folder / "unchanged")
    learned(source, folder / "retrained", told("retain"), steps=57)


def audit_values(world: Path, references: int = REFERENCES, **changes: Any) -> dict[str, Any]:
    """Return the arguments of an audit of the world's models, but for ``out``."""
    models = world / "models"
    values = fact_files(world / "facts") | STEPS
    return values | {
        "base": str(models / "base"),
        "injected": str(models / "injected"),
        "candidates": {name: str(models / name) for name in ("unchanged", "retrained")},
        "references": [str(models / f"{n:02d}") for n in range(references)],
        "learning_rate": 1e-3,
        **changes,
    }


def mix(reference: Path, injected: Path, target: Path, share: float) -> None:
    """Write a reference with a share of the injected weights mixed in."""
    import torch

    from palimpsest.models.checkpoint import load

    one, other = load(str(reference)), load(str(injected))
    with torch.no_grad():
        for mine, theirs in zip(one.model.parameters(), other.model.parameters()):
            mine.lerp_(theirs, share)
    one.model.save_pretrained(target)
    one.tokenizer.save_pretrained(target)


def spoil(folder: Path) -> Path:
    """Put a value that is not a number into a checkpoint."""
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    state = load_file(weights)
    next(iter(state.values()))[0] = float("nan")
    save_file(state, weights, metadata={"format": "pt"})
    return folder
