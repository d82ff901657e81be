"""``palimpsest logs`` on 1,000 evaluation logs of one split, against parsing them and no more.

A log is taken from a file of OpenUnlearning, or made up with as many questions; the others are
copies with noise on every score. Ten of the runs are retrainings, one is the full model and one the
pretrained one. Counted are processor seconds of the command, and of reading and parsing the same
files with ``json`` alone.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

BAR = 25.0
SCORED = ("mia_min_k", "mia_loss", "mia_zlib")
METRICS = ("forget_Q_A_Prob", "forget_Q_A_PARA_Prob", "retain_Q_A_Prob", "ra_Q_A_Prob")


def made_up(questions: int = 400) -> str:
    """Give a log with as many questions, and as long texts, as those of OpenUnlearning."""
    scores = {str(n): {"score": 0.1 * (n % 10), "text": "word " * 40} for n in range(questions)}
    losses = {str(n): {"avg_loss": 0.1 * (n % 10), "text": "word " * 60} for n in range(questions)}
    log: dict[str, Any] = {name: {"agg_value": 0.5, "value_by_index": losses} for name in METRICS}
    for name in SCORED:
        entry = {"agg_value": 0.5, "value_by_index": scores}
        log[name] = {"agg_value": 0.5, "forget": entry, "holdout": entry}
    return json.dumps(log, indent=4)


def with_noise(log: str, draw: random.Random) -> str:
    """Give a log with noise on every fraction."""

    def noisy(found: re.Match[str]) -> str:
        return f"{float(found[0]) * draw.uniform(0.9, 1.1):.17g}"

    return re.sub(r"(?<=: )-?\d+\.\d+", noisy, log)


def make_logs(folder: Path, log: str, count: int) -> None:
    """Write the runs of one split."""
    names = ["full", "pretrained_retain90", *(f"retain90_seed{n}" for n in range(10))]
    names += [f"forget10_NPO_{n}" for n in range(count - len(names))]
    for number, name in enumerate(names):
        run = folder / "saves" / "eval" / f"tofu_Llama-3.2-1B-Instruct_{name}"
        run.mkdir(parents=True)
        (run / "TOFU_EVAL.json").write_text(with_noise(log, random.Random(number)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?", type=Path, help="a TOFU_EVAL.json of forget10")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    log = options.log.read_text() if options.log else made_up()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_logs(folder, log, options.count)
        files = sorted(folder.rglob("*.json"))
        seconds, parsing = [], []
        for _ in range(options.repeats):
            command = [sys.executable, "-m", "palimpsest", "logs", str(folder)]
            seconds.append(measuring.spent(command, (0, 3)))
            begun = time.process_time()
            for file in files:
                json.loads(file.read_text())
            parsing.append(time.process_time() - begun)
            print(f"{seconds[-1]:.1f} s, parsing {parsing[-1]:.1f} s", flush=True)
        size = sum(file.stat().st_size for file in files)
    found = measuring.spread(seconds)
    measuring.say(f"logs, {options.count} of one split, {size / 1e9:.1f} GB", found, " s")
    measuring.write(
        "logs",
        {
            "logs": options.count,
            "bytes": size,
            "processor_seconds": found,
            "parsing_alone": measuring.spread(parsing),
            "bar": BAR,
            "outcome": measuring.verdict_on(BAR, found["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
