"""Tasks for lm-evaluation-harness hold our questions, and the harness finds our NLL."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.errors import FactsError
from palimpsest.facts.files import read_facts
from palimpsest.facts.questions import file_questions

QUICK = Path(__file__).parents[2] / "examples" / "quick"
SETS = [f"{name}={QUICK / name}.jsonl" for name in ("forget", "retain", "probe")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["facts", "to-lm-eval", *SETS, "--out", str(tmp_path / "tasks")])
    assert done.exit_code == 0, done.output
    assert "--tasks palimpsest" in done.output
    return tmp_path / "tasks"


def test_every_set_and_kind_of_prompt_is_a_task(folder: Path) -> None:
    group = yaml.safe_load((folder / "palimpsest.yaml").read_text())
    kinds = [
        f"palimpsest_{s}_{k}" for s in ("forget", "retain", "probe") for k in ("trained", "heldout")
    ]
    assert sorted(group["task"]) == sorted(kinds)
    for task in kinds:
        values = yaml.safe_load((folder / f"{task}.yaml").read_text())
        file = Path(values["dataset_kwargs"]["data_files"]["test"])
        assert values["task"] == task and file.is_absolute()
        for row in map(json.loads, file.read_text().splitlines()):
            assert row["continuation"].startswith(" ") and not row["prompt"].endswith(" ")


def test_a_file_without_its_set_is_refused(tmp_path: Path) -> None:
    line = ["facts", "to-lm-eval", str(QUICK / "forget.jsonl"), "--out", str(tmp_path)]
    assert isinstance(CliRunner().invoke(app, line).exception, FactsError)


def test_the_harness_finds_our_nll(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="the harness reads its questions with datasets")
    lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval, which `make bench` installs")
    pytest.importorskip("sacrebleu", reason="the harness's metrics need sacrebleu")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from palimpsest.models.load import load
    from palimpsest.models.net import WholeNet
    from palimpsest.scoring.answers import make_sheet, score

    loaded = load("pocket/qwen2-s")
    harness: Any = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=8)
    results = lm_eval.simple_evaluate(
        model=harness,
        tasks=["palimpsest_forget_heldout", "palimpsest_retain_trained"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )["results"]
    for name, pool, task in (
        ("forget", "evaluation", "palimpsest_forget_heldout"),
        ("retain", "trained", "palimpsest_retain_trained"),
    ):
        several = file_questions({name: read_facts(QUICK / f"{name}.jsonl")})
        asked = [question for question in several if question.pool == pool]
        sheet = make_sheet(loaded.tokenizer, asked, piece_tokens=32, batch_tokens=2048)
        (ours,) = score(WholeNet(loaded.model), sheet)
        theirs = math.log(results[task]["perplexity,none"])
        assert theirs == pytest.approx(float(ours.nll_sum.mean()), rel=1e-4)
