"""An audit repeated with one more candidate, against a whole audit of all of them.

Eight pocket models are retrained on the rows of ``examples/quick``: five are references, three are
candidates. An audit of two is run again with the third, which alone is then measured; a whole audit
of the three does everything. Both must judge all three; their numbers differ, because the schedule
of re-acquisition is drawn from the candidates of the first command. The ratio is reported.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import measuring
import pocket

PALIMPSEST = str(Path(sys.executable).with_name("palimpsest"))
QUICK = Path(__file__).parents[1] / "examples" / "quick"
REFERENCES, CANDIDATES = range(5), range(5, 8)


def retrain(folder: Path) -> None:
    """Write the injected model and the retrainings."""
    line = [PALIMPSEST, "retrain", "--base", pocket.MODEL, "--train", str(QUICK / "train.jsonl")]
    line += ["--batch-size", "16", "--learning-rate", "3e-4", "--with-forget"]
    line += ["--draws", str(len(REFERENCES) + len(CANDIDATES)), "--out", str(folder / "made")]
    subprocess.run(line, check=True, capture_output=True)


def audit(folder: Path, out: Path, count: int) -> float:
    """Give the seconds of an audit of so many candidates."""
    made = folder / "made"
    line = [PALIMPSEST, "audit", "--base", pocket.MODEL, "--injected", str(made / "injected")]
    line += ["--forget", str(QUICK / "forget.jsonl"), "--retain", str(QUICK / "retain.jsonl")]
    line += ["--probes", str(QUICK / "probe.jsonl"), "--general", str(QUICK / "general.txt")]
    line += ["--learning-rate", "1.5e-4", "--beacon", "benchmark", "--out", str(out), "--json"]
    for number in REFERENCES:
        line += ["--reference", str(made / f"{number:02}")]
    for number in CANDIDATES[:count]:
        line += ["--candidate", f"c{number}={made / f'{number:02}'}"]
    begun = time.perf_counter()
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode not in (0, 3):
        raise measuring.Disagreement(f"the audit failed: {done.stderr}")
    judged = len(json.loads(done.stdout)["candidates"])
    if judged != count:
        raise measuring.Disagreement(f"{judged} candidates judged of {count}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = pocket.run_folder("again")
    whole, added = list[float](), list[float]()
    try:
        retrain(folder)
        for turn in range(options.repeats):
            first, second = folder / f"added-{turn}", folder / f"whole-{turn}"
            audit(folder, first, 2)
            added.append(audit(folder, first, 3))
            whole.append(audit(folder, second, 3))
            print(f"whole {whole[-1]:.1f} s, one more {added[-1]:.1f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratio = measuring.ratios(whole, added)
    measuring.say("one more candidate against a whole audit, times faster", ratio)
    found = {"whole": measuring.spread(whole), "one_more": measuring.spread(added), "ratio": ratio}
    measuring.write("again", found)


if __name__ == "__main__":
    main()
