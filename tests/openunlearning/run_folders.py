"""Run folders in OpenUnlearning's layout, with weights or with files that stand for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = (
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}"
    "{{ ' ' + date_string if m.role == 'system' else '' }}>{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A chat template that writes the day of the run unless it is told another."""
CHAT = {"apply_chat_template": True, "system_prompt": "Help.", "date_string": "10 Apr 2025"}


def write_config(
    folder: Path,
    mode: str,
    model: str,
    base: str,
    *,
    train: str = "",
    handler: str = "NPO",
    template: dict[str, Any] | None = None,
    **trainer: Any,
) -> Path:
    """Write ``.hydra/config.yaml`` of a run and return the run's folder."""
    args = {"learning_rate": 1e-5, "num_train_epochs": 5, "per_device_train_batch_size": 8}
    data: dict[str, Any] = {"forget": {"TOFU_QA_forget": {"args": {"hf_args": {}}}}}
    if train:
        args_of_data = {"hf_args": {"name": train, "split": "train", "path": "locuslab/TOFU"}}
        args_of_data |= {"question_key": "question", "answer_key": "answer", "max_length": 512}
        data = {"train": {"TOFU_QA": {"handler": "QADataset", "args": args_of_data}}}
    config = {
        "mode": mode,
        "model": {
            "model_args": {"pretrained_model_name_or_path": model},
            "tokenizer_args": {"pretrained_model_name_or_path": base},
            "template_args": template or CHAT,
        },
        "trainer": {"handler": handler, "args": args | trainer},
        "data": data,
        "split": "10",
        "forget_split": "forget${split}",
        "holdout_split": "holdout10",
    }
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def stand_in(folder: Path) -> Path:
    """Write the file by which a folder is known to have weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def chat_base(folder: Path) -> Path:
    """Write a pocket model whose tokenizer has the chat template."""
    from palimpsest.models.checkpoint import load

    loaded = load("pocket/qwen2-s")
    loaded.tokenizer.chat_template = TEMPLATE
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def teach(base: Path, out: Path, texts: Sequence[str], seed: int, steps: int = 40) -> Path:
    """Write a copy of a model that was trained on texts, in an order of its own."""
    import random

    from palimpsest.models.checkpoint import load
    from palimpsest.models.encode import encode_texts
    from palimpsest.models.net import WholeNet
    from palimpsest.models.train import text_batch, text_loss, train

    loaded = load(str(base))
    loaded.model.requires_grad_(True)
    encoded, order = encode_texts(loaded.tokenizer, texts), random.Random(seed)
    batches = [[text_batch(order.sample(encoded, 8), 8)] for _ in range(steps)]
    train(WholeNet(loaded.model), batches, text_loss, learning_rate=1e-3)
    loaded.model.save_pretrained(out)
    loaded.tokenizer.save_pretrained(out)
    return out
