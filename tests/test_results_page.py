"""The results page says what the stored tables say."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_table_of_rules_is_the_one_of_the_stored_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import compare_rules

    try:
        page = compare_rules.PAGE.read_text(encoding="utf-8")
        assert compare_rules.BEGIN + compare_rules.rules_table() + compare_rules.END in page
        # One cell judged again gives what was stored of it.
        rows = compare_rules.pq.read_table(compare_rules.FOLDER / "models.parquet").to_pylist()
        cell = [r for r in rows if r["run"] == "breadth" and r["cell"] == "pocket-qwen2-s--seed5"]
        kinds = [kind for kind, found in compare_rules.judged_alone(cell, 5) if found["rejected"]]
        assert "suppression" in kinds and "ga" in kinds
    finally:
        sys.modules.pop("compare_rules", None)
