"""An audit of given checkpoints against a plain script that does the same with ``transformers``.

Ten checkpoints of 51 million parameters (base, injected, five references, three candidates), with
the audit's default mixtures: noise around one untrained model, of which the injected one has seen
the forget facts. The plain script (``straightforward.audit``) hashes every file, loads every model
with ``from_pretrained``, scores it, re-acquires the forget facts with it, and mixes weights in
memory. Both must give the same numbers. ``--before PYTHON`` also runs the same audit with another
installed version of the package, by its own defaults.

Each side is a process of its own with one thread, and its processor seconds are those that the
system counts from start to end, imports included. Whole reads are all bytes that the process read
(``/proc/PID/io``), in units of a checkpoint. Memory is its peak, less that of an audit of models a
hundred times smaller. A second audit, of as few candidates as there can be, tells whether memory
grows with their number. A process by itself checks, hashes and loads one checkpoint after another.
"""

import argparse
import json
import os
import re
import shutil
import statistics
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

RATIO_BAR, READS_BAR, LOAD_BAR, MEMORY_BAR, FLAT_BAR = 0.55, 45, 0.35, 18.0, 1.1
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

    folder.mkdir()
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


def settings(folder: Path, candidates: int, beacon: str) -> dict[str, Any]:
    """Give the arguments of an audit of so many candidates, with default settings."""
    return {
        "base": str(folder / "base"),
        "injected": str(folder / "injected"),
        "candidates": {f"c{n}": str(folder / f"candidate-{n}") for n in range(candidates)},
        "references": [str(folder / f"reference-{n}") for n in range(REFERENCES)],
        "forget": str(folder / "forget.jsonl"),
        "retain": str(folder / "retain.jsonl"),
        "probes": str(folder / "probe.jsonl"),
        "general": str(folder / "general.txt"),
        "beacon": beacon,
        "out": str(folder / "run"),
    }


SPENT = """
io, status = (dict(x.split(":", 1) for x in open(f"/proc/self/{f}")) for f in ("io", "status"))
print(json.dumps(said | {"read": int(io["rchar"]), "peak": int(status["VmHWM"].split()[0]) / 1024}))
"""
"""Prints what a process says, with the bytes that it read and its peak memory in MiB."""
AUDIT = f"""
import json, sys, palimpsest
palimpsest.audit(**json.loads(sys.argv[1]))
said = {{}}{SPENT}
"""


def stored_items(folder: Path) -> dict[tuple[str, ...], float]:
    """Give the NLL per token of every question to every model, as an audit stored them."""
    from palimpsest.run.store import Run

    run = Run.open(folder)
    items = run.cell(run.cells[0]).table("items")
    keys = ("model", "stage", "set", "fact", "pool", "template")
    rows = zip(*(items[key].tolist() for key in keys), (items["nll_sum"] / items["tokens"]))
    return {tuple(map(str, row[:6])): float(row[6]) for row in rows}


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
    items = [[*where, value] for where, value in straightforward.audit(task).items()]
    return {"items": items, "prepared": prepared}


def load_seconds(values: dict[str, Any]) -> dict[str, Any]:
    """Give the processor seconds to check, hash and load each reference, after the base."""
    from palimpsest.models.checkpoint import checkpoint_state, load, survey
    from palimpsest.models.net import Nets

    base, seconds = load(values["base"]), []
    nets = Nets(base)
    for place in (values["injected"], *values["references"]):
        begun = time.process_time()
        expected = survey([place])[place].digests
        nets([checkpoint_state(place, base, expected=expected)])
        seconds.append(time.process_time() - begun)
    return {"seconds": seconds[1:]}  # the first finds no module to read into yet


SIDES = {"plain": plain, "load": load_seconds}


def turn(side: str, values: dict[str, Any], python: str = sys.executable) -> dict[str, Any]:
    """Do one side in a process of its own; give what it says, processor seconds and memory."""
    folder, ours = Path(values["forget"]).parent, side not in SIDES
    shutil.rmtree(values["out"], ignore_errors=True)
    words = ["-c", AUDIT] if ours else [__file__, "--side", side]
    with open(folder / "told", "wb") as told:
        child = subprocess.Popen(
            [python, *words, json.dumps(values)], cwd=folder, stdout=told, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    said = (folder / "told").read_text()
    if child.returncode:
        raise measuring.Disagreement(f"{side} failed:\n{said}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    found["processor"] = usage.ru_utime + usage.ru_stime - found.get("prepared", 0.0)
    print(f"{side}: {found['processor']:.1f} s, {found['peak']:.0f} MiB", flush=True)
    return found


def check(ours: dict[Any, float], items: list[Any]) -> dict[str, float]:
    """Give how far the sides are apart before and after re-acquisition; raise if it is too far."""
    theirs = {tuple(where): value for *where, value in items}
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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain-repeats", type=int, default=1, help="turns of the plain script")
    parser.add_argument("--before", default="", help="Python of another version's environment")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--facts", type=int, default=16, help="forget facts, and retain facts")
    parser.add_argument("--beacon", default="", help="what re-acquisition is drawn from")
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("values", nargs="?", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.side:
        exec(SPENT, {"json": json, "said": SIDES[options.side](options.values)})
        return
    with tempfile.TemporaryDirectory() as spare:
        folder, small = Path(spare) / "models", Path(spare) / "small"
        make_models(small, 64, 2, options.facts if not options.tiny else 4)
        values = settings(small, CANDIDATES, options.beacon)
        if options.tiny:
            turn("engine", values | {"steps": 5})
            engine = stored_items(values["out"])
            print(check(engine, turn("plain", values | {"steps": 5})["items"]))
            return
        least = turn("engine", values)["peak"]
        make_models(folder, options.width, options.layers, options.facts)
        values = settings(folder, CANDIDATES, options.beacon)
        measure(values, options, least)


def measure(values: dict[str, Any], options: argparse.Namespace, least: float) -> None:
    """Take turns and write the results; least: peak memory of an audit of tiny models, in MiB."""
    from palimpsest.models.checkpoint import outline

    parameters = outline(values["base"]).parameters
    whole = (Path(values["base"]) / "model.safetensors").stat().st_size
    pythons = {"engine": sys.executable, "before": options.before, "plain": sys.executable}
    counts = {"engine": options.repeats, "before": options.repeats, "plain": options.plain_repeats}
    counts["before"] *= bool(options.before)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in counts}
    drawn, engine = {}, {}
    for number in range(max(counts.values())):
        for side in counts if number % 2 == 0 else reversed(counts):
            if number < counts[side]:
                found[side].append(turn(side, values, pythons[side]))
                if side != "plain":
                    drawn[side] = optimizer(Path(values["out"]))
                if side == "engine":
                    engine = stored_items(values["out"])
    few = turn("engine", settings(Path(values["forget"]).parent, 1, options.beacon))
    load = turn("load", values)["seconds"]
    seconds = {side: [one["processor"] for one in turns] for side, turns in found.items() if turns}
    peaks = {side: [one["peak"] for one in turns] for side, turns in found.items() if turns}
    reads = found["engine"][-1]["read"] / whole
    memory = (statistics.median(peaks["engine"]) - least) * 2**20 / parameters
    bars = {
        "whole_reads": (reads, READS_BAR),
        "load_seconds": (statistics.median(load), LOAD_BAR),
        "bytes_per_parameter": (memory, MEMORY_BAR),
        "memory_against_one_candidate": (peaks["engine"][-1] / few["peak"], FLAT_BAR),
    }
    ratios = {}
    for side in ("before", "plain"):
        if side in seconds:
            pairs = seconds["engine"][: len(seconds[side])], seconds[side]
            ratios[side] = measuring.ratios(*pairs)
            measuring.say(f"processor seconds, over {side}", ratios[side])
    if "before" in ratios:
        bars["over_before"] = (ratios["before"]["median"], RATIO_BAR)
    rows = {}
    for name, (value, bar) in bars.items():
        outcome = measuring.verdict_on(bar, value, at_least=False)
        rows[name] = {"found": value, "bar": bar, "outcome": outcome}
        print(f"{name}: {value:.3g}, at most {bar:g}: {outcome}")
    apart = check(engine, found["plain"][-1]["items"]) if found["plain"] else {}
    print("both sides agree:", json.dumps(apart), flush=True)
    measuring.write(
        "audit",
        {
            "parameters": parameters,
            "facts": options.facts,
            "drawn": drawn,
            "apart": apart,
            "processor_seconds": {side: measuring.spread(v) for side, v in seconds.items()},
            "ratio": ratios,
            "load_seconds": measuring.spread(load),
            "peak_mib": {side: measuring.spread(v) for side, v in peaks.items()} | {"tiny": least},
            "rows": rows,
        },
    )


def optimizer(folder: Path) -> str:
    """Give the optimizer of re-acquisition that an audit drew."""
    found = re.search(r'"optimizer": ?"(\w+)"', (folder / "terms.json").read_text())
    return found[1] if found else ""


if __name__ == "__main__":
    main()
