"""A real Trainer is watched: deltas fall while it learns the forget facts, and the log has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

import palimpsest
from palimpsest.errors import InputError
from palimpsest.facts.files import read_facts
from palimpsest.facts.questions import file_questions
from palimpsest.models.load import load

QUICK = Path(__file__).parents[1] / "examples" / "quick"
FACTS = {"forget": QUICK / "forget.jsonl", "retain": QUICK / "retain.jsonl"}
FACTS |= {"probes": QUICK / "probe.jsonl"}


def trainer(loaded: Any, folder: Path, steps: int) -> Trainer:
    """A Trainer that teaches the forget facts' trained sentences."""
    several = file_questions({"forget": read_facts(FACTS["forget"])})
    rows = []
    for question in several:
        if question.pool == "trained":
            ids = loaded.tokenizer(question.sentence)["input_ids"][:16]
            rows.append({"input_ids": ids, "labels": ids})

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in batch)
        ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in batch]
        labels = [row["labels"] + [-100] * (width - len(row["labels"])) for row in batch]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}

    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(model=loaded.model, args=settings, train_dataset=rows, data_collator=collate)


@pytest.mark.filterwarnings("ignore")
def test_deltas_are_logged_while_a_trainer_trains(tmp_path: Path) -> None:
    loaded = load("pocket/qwen2-s")
    loaded.model.requires_grad_(True)
    run = trainer(loaded, tmp_path, steps=30)
    watch = palimpsest.watch(
        run, base="pocket/qwen2-s", tokenizer=loaded.tokenizer, every=15, **FACTS
    )
    run.train()
    assert [entry["step"] for entry in watch.history] == [0, 15, 30]
    first, *_, last = watch.history
    assert first == {"step": 0, "forget_delta": 0.0, "probe_delta": 0.0, "retain_delta": 0.0}
    assert last["forget_delta"] < -0.3 and last["forget_delta"] < last["probe_delta"] - 0.3
    logged = [entry["forget_delta"] for entry in run.state.log_history if "forget_delta" in entry]
    assert logged == [entry["forget_delta"] for entry in watch.history]
    assert loaded.model.training


@pytest.mark.filterwarnings("ignore")
def test_as_a_callback_it_logs_to_the_history(tmp_path: Path) -> None:
    loaded = load("pocket/qwen2-s")
    loaded.model.requires_grad_(True)
    watch = palimpsest.watch(base=load("pocket/qwen2-s").model, tokenizer=loaded.tokenizer, **FACTS)
    run = trainer(loaded, tmp_path, steps=1)
    run.add_callback(watch)
    run.train()
    assert [entry["step"] for entry in watch.history] == [0, 1]
    assert any("retain_delta" in entry for entry in run.state.log_history)
    assert np.isfinite(watch.history[-1]["retain_delta"])


def test_an_interval_of_no_steps_is_refused() -> None:
    loaded = load("pocket/qwen2-s")
    with pytest.raises(InputError, match="every: 0 found"):
        palimpsest.watch(base=loaded.model, tokenizer=loaded.tokenizer, every=0, **FACTS)
