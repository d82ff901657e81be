"""Write the table of docs/results.md anew from stored scores: ``python docs/results_table.py``.

The paper's figures are in results/paper/figures.csv; every number of ours comes from the run folders
(docs/headlines.py). The explanations are written by hand, by key.
"""

import json
from pathlib import Path

from headlines import ours, paper_figures
from tofu_table import column as tofu_column

from palimpsest.analysis.results import read_run
from palimpsest.study.inferability import read_inferability

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- table -->", "<!-- end of table -->"

WHY = {
    "trained-probe-mean": "same sign and well away from zero; smaller because pocket answers hold about 2 nats of knowledge in all, not 5",
    "trained-probe-mean-probes": "against the candidate's own probes, which drift upwards",
    "trained-probe-median": "427 candidates are rated adequate, all of them restoration methods or masks",
    "rollback": "rollback destroys the retain set here too",
    "loss-based-excluded": "KL reversion 61 %; GA and NPO over-forget at this dose, so few of them are excluded",
    "diagnostic": "closer by a factor of 15 instead of 2: the reference is nearer, and suppression goes further past it",
    "n4-vacuous": "as Proposition 1 says",
    "screen-excluded": "GA and NPO (360 of 820) mostly overshoot; masks and KL reversion are excluded in 187 of 280",
    "at-floor": "the same lattice",
    "survivors": "follows from the row above",
    "survivor-gap": "survivors are mostly over-forgetters in both",
    "survivor-equivalent": "our tolerance is smaller by a factor of four",
    "injected-retain": "the dose was set to a median of 1 nat, so the fixed threshold is out of reach by the same cause",
    "injected-residual": "smaller models drift less in 75 steps",
    "reference-screen": "",
    "reference-retain": "narrower spread of retain NLL over cells",
    "reference-residual": "",
    "reference-all": "",
    "absolute-candidates": "all 210 are GA and NPO, which collapse onto the retain set: here the absolute bar does not only fail its reference, it rewards suppression",
    "injected-retain-nll": "by choice of the dose",
    "floor": "as above",
    "shortest-budget": "the floor grows with the budget in 5 of 5 families, as in the paper; none is path-dependent from the start",
    "delta-range": "float32 on a CPU: two retrainings differ in their general text and its order and in nothing else",
    "delta-median": "as above",
    "panel-injected": "",
    "panel-reference": "",
    "panel-interpolation": "a quarter of the injected weights still shows in the ranks: deltas are small and the test sees their order, not their size",
    "panel-router": "the seam is there: probes drift by +0.2 to +0.5 nats in the injected model",
    "panel-suppression-screen": "a penalty of 10 lies far above 3-nat answers in every cell",
    "panel-suppression-forward": "for the same reason the equivalence axis sees it everywhere; a penalty fitted to the model would not be seen",
    "panel-suppression-relearning": "",
    "panel-embedding": "syllables are shared, so zeroed rows hurt everything",
    "residual-selection": "the opposite of the paper: GA and NPO re-acquire with little damage to the injected distribution on retain, so the smallest residual is theirs",
    "certified": "see below: the reference itself clears the round-trip axis in 7 of 45 cells only",
    "certified-cells": "as above",
    "abstaining": "as above",
    "certified-by-method": "as above",
    "noisiest-family": "",
    "global-minimum": "",
    "with-veto": "",
    "selection-recalibrated": "one cell only; not a comparison",
    "selection-absolute-bar": "the same one cell",
    "selection-trained-probe": "the same one cell",
    "headroom-spearman": "kin, pocket/olmo2-s; alias chains in the text below",
    "headroom-error": "as above",
    "tofu-excluded": "pocket/qwen2-m, three seeds; the reference is excluded in all three, so the verdict is the paper's (`docs/tofu.md`)",
    "tofu-diagnostic": "does not replicate: the pocket base, which restoration aims at, is far from any model that was taught TOFU's language",
}


def _tofu(figures: dict[str, str]) -> dict[str, str]:
    """The two TOFU figures of the table."""
    restored = figures["oracle-KL of restoration (KL reversion, task vector)"]
    suppressed = figures["oracle-KL of suppression (GA, NPO)"]
    return {
        "tofu-excluded": figures["candidates the screen excludes"],
        "tofu-diagnostic": f"{restored} and {suppressed}",
    }


def main() -> None:
    results = read_run(ROOT / "results" / "pocket")
    _, agreements = read_inferability(ROOT / "results" / "inferability")
    kin = next(one for one in agreements if one.mechanism == "kin")
    rank, error = kin.rank_correlation, kin.absolute_error
    tofu = tofu_column(json.loads((ROOT / "results/tofu/pocket/summary.json").read_text("utf-8")))
    mine = (
        ours(results)
        | _tofu(tofu)
        | {
            "headroom-spearman": f"{rank.estimate:.2f} [{rank.low:.2f}, {rank.high:.2f}]",
            "headroom-error": f"{error.estimate:.2f} [{error.low:.2f}, {error.high:.2f}]",
        }
    )
    there = tofu_column(json.loads((ROOT / "results/tofu/smollm2/summary.json").read_text("utf-8")))
    real = ours(read_run(ROOT / "results" / "smollm2")) | _tofu(there)
    lines = [
        "| figure | paper | pocket matrix | SmolLM2-135M, 1 cell | what differs in the matrix, and why |",
        "|---|---|---|---|---|",
    ]
    for one in paper_figures():
        key = one["key"]
        values = (mine.get(key) or "–", real.get(key) or "–")
        cells = (one["figure"], one["paper"], *values, WHY[key])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    path = ROOT / "docs" / "results.md"
    text = path.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    path.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[stop:], encoding="utf-8")


if __name__ == "__main__":
    main()
