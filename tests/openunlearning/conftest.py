"""Small logs of OpenUnlearning's shape: a world of questions, and models that know some of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

Values = NDArray[np.float64]

BASE = "Llama-3.2-1B-Instruct"
CHAT = {"apply_chat_template": True, "system_prompt": "Help.", "date_string": "10 Apr 2025"}


class World:
    """A folder of logs about questions of given difficulty."""

    def __init__(self, root: Path, questions: int = 40) -> None:
        self.root = root
        self.random = np.random.default_rng(5)
        self.difficulty = {
            "forget": self.random.normal(5.5, 1.5, questions),
            "holdout": self.random.normal(5.0, 1.5, questions),
            "retain": self.random.normal(1.0, 0.3, 400),
        }

    def sets(self, *shifts: float) -> dict[str, Values]:
        """Return the losses of a model that lies this far from the difficulty of each set."""
        return {
            name: values + shift + self.random.normal(0, 0.2, len(values))
            for (name, values), shift in zip(self.difficulty.items(), (*shifts, 0.0, 0.0, 0.0))
        }

    def write(
        self,
        folder: str,
        sets: Mapping[str, Values],
        *,
        scores: tuple[str, ...] = ("mia_min_k", "mia_loss"),
        config: Any = None,
        name: str = "TOFU_EVAL.json",
    ) -> Path:
        """Write a log into a folder under the root, with a configuration beside it if given."""
        path = self.root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sides = {side: _metric(sets[side], "score") for side in sets if side != "retain"}
        log: dict[str, Any] = {score: {**sides, "agg_value": 0.5} for score in scores}
        log |= {"forget_quality": {"agg_value": None}, "model_utility": {"agg_value": 0.6}}
        if "retain" in sets:
            log["retain_Q_A_Prob"] = _metric(sets["retain"], "avg_loss")
            log["forget_Q_A_Prob"] = _metric(sets["forget"], "avg_loss")
            log["forget_Q_A_PARA_Prob"] = _metric(sets["forget"] + 1.0, "avg_loss")
        path.write_text(json.dumps(log))
        if config is not None:
            (path.parent / ".hydra").mkdir(exist_ok=True)
            (path.parent / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
        return path

    def references(self, config: Any = None) -> None:
        """Write the logs of pretrained, retrained and full model."""
        for kind, shift in (("pretrained_retain99", 0.0), ("retain99", 0.4)):
            self.write(f"eval/tofu_{BASE}_{kind}", self.sets(shift, shift), config=config)
        full = f"eval/tofu_{BASE}_full/evals_forget01"
        self.write(full, self.sets(-3.0, 0.4), config=config)

    def candidate(self, name: str, *shifts: float, at: int | None = None, **more: Any) -> Path:
        """Write the log of an unlearned model, or of one of its checkpoints."""
        step = "" if at is None else f"checkpoint-{at}/"
        folder = f"unlearn/tofu_{BASE}_forget01_{name}/{step}evals"
        return self.write(folder, self.sets(*shifts), **more)

    def retraining(self, name: str, *shifts: float, at: int | None = None) -> Path:
        """Write the log of a retrained model, or of one of its checkpoints."""
        step = "" if at is None else f"checkpoint-{at}/"
        return self.write(f"finetune/tofu_{BASE}_{name}/{step}evals", self.sets(*shifts))


def _metric(values: Values, field: str) -> dict[str, Any]:
    entries = {str(place): {field: value} for place, value in enumerate(values.tolist())}
    return {"agg_value": 0.5, "value_by_index": entries}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "saves")
