"""What an audit of 2 and one of 8 candidates need at their peak: memory must not grow.

The models are noise around one untrained checkpoint of 40 million parameters, large enough that one
kept by mistake shows. Every candidate goes through the round trip. Each audit is a process of its
own; its peak is what the system counted for it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring
import pocket

FEW, MANY, BAR = 2, 8, 0.10


def make_models(folder: Path, count: int, width: int) -> None:
    """Write facts, general text, base, injected and so many candidates."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from palimpsest.facts.files import Fact, as_jsonl
    from palimpsest.facts.general import general_pieces
    from palimpsest.facts.questions import draw_testbed
    from palimpsest.models.checkpoint import load

    bed = draw_testbed("audit memory", 4, 4, 16, 3)
    for name, triples in bed.sets().items():
        facts = []
        for triple in triples:
            asked = [q for q in bed.questions if q.fact == triple.id and q.set == name]
            trained = tuple(q.prompt for q in asked if q.pool == "trained")
            heldout = tuple(q.prompt for q in asked if q.pool == "evaluation")
            facts.append(Fact(triple.id, triple.object, trained, heldout, subject=triple.subject))
        (folder / f"{name}.jsonl").write_bytes(as_jsonl(facts))
    (folder / "general.txt").write_text(" ".join(general_pieces("pocket", 200, "audit memory")))
    small = load(pocket.MODEL)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=12,
        num_attention_heads=4,
        vocab_size=small.model.config.vocab_size,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for name in ("base", "injected", *(f"candidate-{n}" for n in range(count))):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        model.save_pretrained(folder / name)
        small.tokenizer.save_pretrained(folder / name)


def peak(folder: Path, count: int) -> float:
    """Give the peak memory in MiB of an audit of so many candidates."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = ["--base", "base", "--injected", "injected", "--forget", "forget.jsonl"]
    command += ["--retain", "retain.jsonl", "--probes", "probe.jsonl", "--general", "general.txt"]
    command += ["--steps", "5", "--out", str(out), "--json"]
    for number in range(count):
        command += ["--candidate", f"c{number}=candidate-{number}"]
    program = "from palimpsest.cli import main; main()"
    with open(folder / "said", "wb") as said, open(folder / "told", "wb") as told:
        child = subprocess.Popen(
            [sys.executable, "-c", program, "audit", *command], cwd=folder, stdout=said, stderr=told
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 3):
        raise measuring.Disagreement(f"the audit failed:\n{(folder / 'told').read_text()}")
    audited = len(json.loads((folder / "said").read_bytes())["candidates"])
    if audited != count:
        raise measuring.Disagreement(f"{audited} candidates audited of {count}")
    return usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="check only that all are audited")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(spare)
        if options.tiny:
            make_models(folder, FEW, 32)
            print(f"{peak(folder, FEW):.0f} MiB")
            return
        make_models(folder, MANY, 448)
        peaks: dict[int, list[float]] = {FEW: [], MANY: []}
        for turn in range(options.repeats):
            for count in (FEW, MANY) if turn % 2 == 0 else (MANY, FEW):
                peaks[count].append(peak(folder, count))
                print(f"{count} candidates: {peaks[count][-1]:.0f} MiB", flush=True)
        stored = (folder / "base" / "model.safetensors").stat().st_size / 2**20
    found = measuring.ratios(peaks[MANY], peaks[FEW])
    measuring.say("8 candidates against 2, peak memory", found)
    measuring.write(
        "audit",
        {
            "model_mib": stored,
            "peak_mib": {str(count): measuring.spread(peaks[count]) for count in peaks},
            "ratio": found,
            "bar": 1 + BAR,
            "outcome": measuring.verdict_on(1 + BAR, found["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
