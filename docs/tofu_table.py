"""Write the table of docs/tofu.md anew from stored summaries: ``python docs/tofu_table.py``.

The explanations are written by hand, by key; every number comes from results/tofu.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
RUNS = {"pocket": "pocket/qwen2-m, 3 seeds", "smollm2": "SmolLM2-135M, 1 seed"}
RESTORATION, SUPPRESSION = ("kl_reversion", "task_vector"), ("ga", "npo")


def spread(values: list[float], digits: int = 2) -> str:
    """Give one value, or the smallest and the largest of several."""
    low, high = (f"{end:.{digits}f}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def of(cells: list[Any], model: str, key: str) -> str:
    return spread([cell["levels"][model][key] for cell in cells])


def oracle_kl(cells: list[Any], methods: tuple[str, ...]) -> str:
    found = [
        value
        for cell in cells
        for name, value in cell["oracle_kl"].items()
        if name.partition("-")[0] in methods
    ]
    return spread(found)


def column(summary: dict[str, Any]) -> dict[str, str]:
    """Give every figure of one run."""
    cells = list(summary["cells"].values())
    rooms = [cell["headroom"] for cell in cells if cell["headroom"]]
    excluded = [f"{c['numbers']['excluded']}/{c['numbers']['candidates']}" for c in cells]
    p_values = [c["levels"]["reference"]["p_value"] for c in cells]
    kl_injected = [cell["oracle_kl"]["injected"] for cell in cells]
    return {
        "forget NLL of base": of(cells, "base", "forget_nll"),
        "forget NLL of the full model": of(cells, "injected", "forget_nll"),
        "forget NLL of the reference": of(cells, "reference", "forget_nll"),
        "probe NLL of base": of(cells, "base", "probe_nll"),
        "probe NLL of the full model": of(cells, "injected", "probe_nll"),
        "probe NLL of the reference": of(cells, "reference", "probe_nll"),
        "retain NLL of the full model and of the reference": (
            f"{of(cells, 'injected', 'retain_nll')} and {of(cells, 'reference', 'retain_nll')}"
        ),
        "reference in the screen, p": ", ".join(f"{p:.2g}" for p in p_values),
        "candidates the screen excludes": ", ".join(excluded),
        "smallest p of a candidate": f"{min(c['numbers']['smallest_p'] for c in cells):.2g}",
        "oracle-KL of the full model": spread(kl_injected),
        "oracle-KL of restoration (KL reversion, task vector)": oracle_kl(cells, RESTORATION),
        "oracle-KL of suppression (GA, NPO)": oracle_kl(cells, SUPPRESSION),
        "true headroom G, nats": spread([room["true"] for room in rooms]) if rooms else "–",
        "estimated headroom, nats": spread([r["estimate"] for r in rooms]) if rooms else "–",
        "regime by the headroom": ", ".join(room["regime"] for room in rooms) or "–",
        "verdict": ", ".join(cell["reason"] or f"certified {cell['candidate']}" for cell in cells),
    }


PAPER = {
    "forget NLL of the reference": "0.5 to 2",
    "probe NLL of the full model": "about 8",
    "candidates the screen excludes": "16/16 in each of 3 seeds",
    "smallest p of a candidate": "7e-15",
    "oracle-KL of restoration (KL reversion, task vector)": "about 0.1",
    "oracle-KL of suppression (GA, NPO)": "0.7 to 1.2",
    "verdict": "not_identifiable",
}


def main() -> None:
    found = {}
    for name, title in RUNS.items():
        path = ROOT / "results" / "tofu" / name / "summary.json"
        if path.exists():
            found[title] = column(json.loads(path.read_text("utf-8")))
    lines = [
        f"| figure | paper, Phi-1.5 | {' | '.join(found)} |",
        f"|---|---|{'---|' * len(found)}",
    ]
    for figure in next(iter(found.values())):
        ours = " | ".join(run[figure] for run in found.values())
        lines.append(f"| {figure} | {PAPER.get(figure, '–')} | {ours} |")
    page = ROOT / "docs" / "tofu.md"
    text = page.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[stop:], encoding="utf-8")


if __name__ == "__main__":
    main()
