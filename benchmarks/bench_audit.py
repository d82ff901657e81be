"""An audit of given checkpoints against a plain script that does the same with ``transformers``.

Ten checkpoints of 51 million parameters (base, injected, five references, three candidates), with
the audit's default mixtures: noise around one untrained model, of which the injected one has seen
the forget facts. The plain script (``straightforward.audit``) hashes every file, loads every model
with ``from_pretrained``, scores it, re-acquires the forget facts with it, and mixes weights in
memory. Each side is a process of its own with one thread; both must give the same numbers. Counted
are processor seconds, peak memory, and how often checkpoints are read, in bytes. A second audit, of
as few candidates as there can be, tells whether memory grows with their number.
"""

import argparse
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import pocket
import torch

RATIO_BAR, READS_BAR, MEMORY_BAR, FLAT_BAR = 0.55, 45, 18.0, 1.1
REFERENCES, CANDIDATES = 5, 3
TOLERANCE = {"forward": 1e-3, "reacquired": 0.05}
"""Nats per answer token that the sides may be apart, before and after re-acquisition."""


def make_models(folder: Path, width: int, layers: int, facts: int) -> None:
    """Write facts, general text and the checkpoints."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from palimpsest.facts.files import Fact, as_jsonl
    from palimpsest.facts.general import general_pieces
    from palimpsest.facts.questions import draw_testbed
    from palimpsest.models.checkpoint import load

    bed = draw_testbed("audit benchmark", facts, facts, 16, 3)
    told = []
    for name, triples in bed.sets().items():
        rows = []
        for triple in triples:
            asked = [q for q in bed.questions if q.fact == triple.id and q.set == name]
            trained = tuple(q.prompt for q in asked if q.pool == "trained")
            heldout = tuple(q.prompt for q in asked if q.pool == "evaluation")
            # Without a subject the facts are not asked backwards, which the plain script lacks.
            rows.append(Fact(triple.id, triple.object, trained, heldout))
            if name == "forget":
                told += [f"{prompt} {triple.object}." for prompt in trained]
        (folder / f"{name}.jsonl").write_bytes(as_jsonl(rows))
    (folder / "general.txt").write_text(" ".join(general_pieces("pocket", 200, "audit memory")))
    small = load(pocket.MODEL)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        vocab_size=64 * width,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    named = [f"reference-{n}" for n in range(REFERENCES)]
    named += [f"candidate-{n}" for n in range(CANDIDATES)]
    for name in ("base", *named, "injected"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        if name == "injected":
            _teach(model, small.tokenizer, told)
        model.save_pretrained(folder / name)
        small.tokenizer.save_pretrained(folder / name)


def _teach(model: Any, tokenizer: Any, sentences: list[str]) -> None:
    import straightforward

    def loss() -> Any:
        return straightforward.sentence_loss(model, tokenizer, sentences, len(sentences))

    straightforward.optimize(model, iter([loss] * 10), 1e-3)


def settings(folder: Path, candidates: int, steps: int) -> dict[str, Any]:
    """Give the arguments of an audit of so many candidates."""
    return {
        "base": str(folder / "base"),
        "injected": str(folder / "injected"),
        "candidates": {f"c{n}": str(folder / f"candidate-{n}") for n in range(candidates)},
        "references": [str(folder / f"reference-{n}") for n in range(REFERENCES)],
        "forget": str(folder / "forget.jsonl"),
        "retain": str(folder / "retain.jsonl"),
        "probes": str(folder / "probe.jsonl"),
        "general": str(folder / "general.txt"),
        "steps": steps,
        "out": str(folder / "run"),
    }


def engine(values: dict[str, Any]) -> dict[str, Any]:
    """Give the numbers of an audit by the package, with the bytes of tensors that it read."""
    import palimpsest
    from palimpsest.models import stored
    from palimpsest.run.store import Run

    shutil.rmtree(values["out"], ignore_errors=True)
    real, read = stored.read_tensor, [0]

    def counted(name: str, tensor: Any, *into: Any) -> Any:
        read[0] += math.prod(tensor.shape) * stored.TYPES[tensor.dtype].itemsize
        return real(name, tensor, *into)

    stored.read_tensor = counted
    palimpsest.audit(**values)
    run = Run.open(values["out"])
    items = run.cell(run.cells[0]).table("items")
    keys = ("model", "stage", "set", "fact", "pool", "template")
    rows = zip(*(items[key].tolist() for key in keys), (items["nll_sum"] / items["tokens"]))
    return {"items": {tuple(map(str, row[:6])): float(row[6]) for row in rows}, "read": read[0]}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Give the same numbers by the plain script."""
    import straightforward

    from palimpsest.cell.audit import AuditTask
    from palimpsest.config.commands import AuditConfig
    from palimpsest.config.load import load_config

    begun = time.process_time()
    task = AuditTask(load_config(AuditConfig, values))
    task.check()
    prepared = time.process_time() - begun  # the engine's own check, which is not the script's
    return {"items": straightforward.audit(task), "prepared": prepared}


SIDES = {"engine": engine, "plain": plain}


def turn(side: str, folder: Path, candidates: int, steps: int) -> dict[str, Any]:
    """Do one side in a process of its own; give its numbers, processor seconds and memory."""
    words = ["--side", side, "--folder", str(folder), "--candidates", str(candidates)]
    command = [sys.executable, __file__, *words, "--steps", str(steps)]
    with open(folder / "told", "wb") as told:
        child = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise measuring.Disagreement(f"{side} failed:\n{(folder / 'told').read_text()}")
    found: dict[str, Any] = pickle.loads((folder / f"{side}.pickle").read_bytes())
    found["peak"] = usage.ru_maxrss / 1024
    print(f"{side}, {candidates} candidates: {found['processor']:.0f} s, {found['peak']:.0f} MiB")
    return found


def check(ours: dict[Any, float], theirs: dict[Any, float]) -> dict[str, float]:
    """Give how far the sides are apart before and after re-acquisition; raise if it is too far."""
    if ours.keys() != theirs.keys():
        raise measuring.Disagreement(f"rows differ: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    apart = {}
    for stage, bound in TOLERANCE.items():
        chosen = [key for key in ours if key[1] == stage]
        one, two = (np.array([side[key] for key in chosen]) for side in (ours, theirs))
        apart[stage] = measuring.agree(f"NLL, {stage}", one, two, bound)
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--facts", type=int, default=16, help="forget facts, and retain facts")
    parser.add_argument("--steps", type=int, default=60, help="of re-acquisition")
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--candidates", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.side:
        values = settings(options.folder, options.candidates, options.steps)
        found = SIDES[options.side](values)
        found["processor"] = time.process_time() - found.pop("prepared", 0.0)
        (options.folder / f"{options.side}.pickle").write_bytes(pickle.dumps(found))
        return
    width, layers, facts = options.width, options.layers, options.facts
    if options.tiny:
        width, layers, facts, options.steps, options.repeats = 64, 2, 4, 5, 1
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(spare)
        make_models(folder, width, layers, facts)
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for number in range(options.repeats):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                found[side].append(turn(side, folder, CANDIDATES, options.steps))
        apart = check(found["engine"][-1]["items"], found["plain"][-1]["items"])
        print("both sides agree:", json.dumps(apart), flush=True)
        few = turn("engine", folder, 1, options.steps)
        whole = (folder / "base" / "model.safetensors").stat().st_size
    if options.tiny:
        return
    seconds = {side: [one["processor"] for one in several] for side, several in found.items()}
    peaks = {side: [one["peak"] for one in several] for side, several in found.items()}
    ratio = measuring.ratios(seconds["engine"], seconds["plain"])
    measuring.say("processor seconds, package over plain script", ratio)
    reads = found["engine"][-1]["read"] / whole
    print(f"whole reads of {2 + REFERENCES + CANDIDATES} checkpoints: {reads:.1f}")
    flat = measuring.ratios(peaks["engine"], [few["peak"]] * len(peaks["engine"]))
    measuring.say(f"peak memory, {CANDIDATES} candidates against 1", flat)
    measuring.write(
        "audit",
        {
            "model_mib": whole / 2**20,
            "facts": facts,
            "steps": options.steps,
            "apart": apart,
            "processor_seconds": {side: measuring.spread(v) for side, v in seconds.items()},
            "ratio": ratio,
            "bar": RATIO_BAR,
            "outcome": measuring.verdict_on(RATIO_BAR, ratio["median"], at_least=False),
            "whole_reads": reads,
            "reads_bar": READS_BAR,
            "reads_outcome": measuring.verdict_on(READS_BAR, reads, at_least=False),
            "peak_mib": {side: measuring.spread(v) for side, v in peaks.items()},
            "flat": flat,
            "flat_outcome": measuring.verdict_on(FLAT_BAR, flat["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
