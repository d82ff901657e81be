"""The configuration of a run of OpenUnlearning, ``.hydra/config.yaml``, and files within bounds."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from palimpsest.errors import InputError, PlanError
from palimpsest.files import YAML_LIMIT, parse_yaml, read_bytes
from palimpsest.text import shown_path

CONFIG = Path(".hydra") / "config.yaml"
BASE = "model.tokenizer_args.pretrained_model_name_or_path"
MODEL = "model.model_args.pretrained_model_name_or_path"
RECIPE = (
    *("learning_rate", "num_train_epochs", "max_steps", "warmup_epochs", "warmup_ratio"),
    *("warmup_steps", "weight_decay", "lr_scheduler_type", "optim"),
)
"""Settings of the trainer that a retraining must share with the injected model; not the seed."""
CHAT = ("system_prompt", "date_string")
TAGS = ("user_start_tag", "user_end_tag", "asst_start_tag", "system_prompt_with_special_tokens")
"""Template settings that reach the prompt, with and without the tokenizer's chat template."""
ROWS = {"full": 4000, "retain99": 3960, "retain95": 3800, "retain90": 3600}
"""Questions of TOFU's training sets."""
STATE_LIMIT = 64 * 2**20
_VALUE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class RunConfig:
    """A ``.hydra/config.yaml``; values may refer to keys at its top."""

    folder: Path
    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """Return the value under a dotted key; None if there is none."""
        found: Any = self.values
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, str):
            return found
        return _VALUE.sub(lambda match: str(self.values.get(match[1], match[0])), found)

    def text(self, key: str) -> str:
        """Return a plain value as text; empty where there is none, or it refers to nothing."""
        value = self.get(key)
        plain = isinstance(value, str | float) or (type(value) is int and abs(value) < 10**18)
        return str(value) if plain and "${" not in str(value) else ""

    def needed(self, key: str) -> str:
        """Return a value that the audit cannot do without."""
        if not (text := self.text(key)):
            where = shown_path(self.folder / CONFIG)
            raise PlanError(f"{where}: {key} has no plain value", key="open_unlearning")
        return text

    def section(self, key: str) -> dict[str, Any]:
        """Return what is under a dotted key; empty where nothing is."""
        found = self.get(key)
        return found if isinstance(found, dict) else {}

    def source_of(self, model: str) -> str:
        """Return a model's folder, named from where OpenUnlearning ran, or its id on the hub."""
        root = next((p.parent for p in self.folder.resolve().parents if p.name == "saves"), None)
        local = None if root is None else root / model
        return str(local) if local is not None and local.is_dir() else model

    def settings(self) -> dict[str, Any]:
        """Return the recipe and the prompt, by dotted key."""
        keys = [f"trainer.args.{key}" for key in RECIPE]
        keys += [f"model.template_args.{key}" for key in ("apply_chat_template", *CHAT, *TAGS)]
        return {key: self.get(key) for key in keys}

    @property
    def batch(self) -> tuple[int, int | None]:
        """The questions of a step on one device, and the number of devices; None if unknown.

        No configuration says how many devices there were. What the trainer left does: its steps
        are rows * epochs / (questions of a step on all devices), rounded.
        """
        parts = ("per_device_train_batch_size", "gradient_accumulation_steps")
        numbers = [self.get(f"trainer.args.{part}") or 1 for part in parts]
        if not all(type(number) is int and 0 < number < 10**6 for number in numbers):
            raise PlanError(f"{self.folder}: {parts} are not numbers", key="references")
        each = numbers[0] * numbers[1]
        rows = sum(ROWS.get(name, 0) for name in self.trained_on)
        state = self.folder / "trainer_state.json"
        left = load_bounded(state, STATE_LIMIT, json.loads) if state.is_file() else None
        told = left if isinstance(left, dict) else {}
        steps, epochs = told.get("max_steps"), told.get("num_train_epochs")
        if not (rows and isinstance(steps, int) and steps > 0 and isinstance(epochs, int | float)):
            return each, None
        return each, max(1, round(rows * epochs / steps / each))

    @property
    def trained_on(self) -> list[str]:
        """The splits that a finetune run was trained on."""
        keys = [f"data.train.{name}.args.hf_args.name" for name in self.section("data.train")]
        return [str(self.get(key)) for key in keys]


def read_run_config(folder: Path) -> RunConfig:
    """Return the configuration of a run folder."""
    if not (folder / CONFIG).is_file():
        raise PlanError(
            f"{shown_path(folder)}: has no {CONFIG}; expected a run folder of OpenUnlearning",
            key="open_unlearning",
        )
    return RunConfig(folder, load_bounded(folder / CONFIG, YAML_LIMIT, _parse_config, "utf-8"))


def load_bounded(
    path: Path, limit: int, parse: Callable[[str], Any], encoding: str = "latin-1"
) -> Any:
    """Return what a file of at most ``limit`` bytes holds."""
    # Latin-1 bounds the memory whatever the text: one byte per character. What JSON itself consists
    # of is ASCII in UTF-8 too, and garbled strings still differ where the texts do.
    data = read_bytes(path, limit)
    try:
        return parse(data.decode(encoding))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: cannot be read: {problem}") from error


def _parse_config(text: str) -> dict[str, Any]:
    """Return a configuration without its metrics (``eval``), which would take most of the time."""
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    data = parse_yaml("".join(block for block in blocks if not block.startswith("eval:")))
    return data if isinstance(data, dict) else {}
