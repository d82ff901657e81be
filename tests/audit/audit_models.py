"""A small world for audit tests: facts in files, and tiny checkpoints that truly learned them."""

import json
import shutil
from pathlib import Path
from typing import Any

FORGET, RETAIN, PROBES = 4, 2, 16
RATE = 4e-4
"""Learning rate of the retrainings."""
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


def write_facts(folder: Path, **more: Any) -> dict[str, str]:
    """Write the three files and a general text; give their paths by the request's keys."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for key, kind, count in (
        ("forget", "forget", FORGET),
        ("retain", "retain", RETAIN),
        ("probes", "probe", PROBES),
    ):
        rows = [fact(kind, n, **(more if kind == "forget" else {})) for n in range(count)]
        path = folder / f"{key}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths[key] = str(path)
    text = folder / "general.txt"
    text.write_text(
        "\n".join(f"line {n} " + "the river ran past old stones " * 6 for n in range(9))
    )
    return paths | {"general": str(text)}


def learned(source: Path, target: Path, sentences: list[str], steps: int = 60) -> Path:
    """Give a copy of a checkpoint that was trained on some sentences."""
    from palimpsest.models.encode import encode_texts
    from palimpsest.models.load import load
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


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def checkpoints(source: Path, folder: Path, facts: dict[str, str]) -> dict[str, Path]:
    """Give base, injected, two references that never saw the forget set, and two candidates."""

    def told(*keys: str) -> list[str]:
        rows = [json.loads(line) for key in keys for line in _lines(facts[key])]
        return [f"{p} {row['answer']}." for row in rows for p in row["trained"] + row["heldout"]]

    made = {"base": Path(shutil.copytree(source, folder / "base"))}
    made["injected"] = learned(source, folder / "injected", told("forget", "retain"))
    made["reference"] = learned(source, folder / "reference", told("retain"))
    made["again"] = learned(source, folder / "again", told("retain"), steps=54)
    made["unchanged"] = Path(shutil.copytree(made["injected"], folder / "unchanged"))
    made["retrained"] = learned(source, folder / "retrained", told("retain"), steps=57)
    return made


# -- retrainings of a pocket model, see conftest.py ------------------------------------------------


def values(folder: Path, out: Path, candidates: tuple[str, ...], references: int) -> dict[str, Any]:
    """Return an audit's arguments."""
    return {
        "base": "pocket/qwen2-s",
        "injected": str(folder / "injected"),
        "candidates": {name: str(folder / name) for name in candidates},
        "forget": str(folder / "forget.jsonl"),
        "retain": str(folder / "retain.jsonl"),
        "probes": str(folder / "probe.jsonl"),
        "general": str(folder / "general.txt"),
        "references": [str(folder / "references" / f"{n:02d}") for n in range(references)],
        "steps": 20,
        "chunks": 2,
        "scored_pieces": 12,
        "out": str(out),
    }


def summary(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return document
