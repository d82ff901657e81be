"""A training run of OpenUnlearning as settings of ``retrain``: recipe, prompt and TOFU's rows.

Flags override ``.hydra/config.yaml``; what neither says has the default of Hugging Face's Trainer,
as it had in the run. What training here cannot reproduce is refused by the configuration's key.
"""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.commands import ExampleRecipe, RecipeSource, RetrainConfig
from palimpsest.config.load import load_config
from palimpsest.errors import PlanError
from palimpsest.facts.examples import read_examples
from palimpsest.facts.questions import FactSet
from palimpsest.facts.rows import shown_path
from palimpsest.facts.tofu import HUB, SPLITS, read_tofu
from palimpsest.openunlearning.reading import SIZE_LIMIT, load_bounded, parse_metrics
from palimpsest.openunlearning.runs import CONFIG, MODEL, RunConfig, read_run_config
from palimpsest.run.disk import make_folder, write_bytes
from palimpsest.schema import shorten

STATE = "trainer_state.json"
MOST_DEVICES = 64
FRACTION = (int, float)
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
TRAINERS = ("FinetuneTrainer", "Trainer")
FIXED: dict[str, tuple[Any, ...]] = {
    "optim": ("adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw", "paged_adamw_32bit"),
    "adam_beta1": (0.9,),
    "adam_beta2": (0.999,),
    "adam_epsilon": (1e-8,),
    "max_grad_norm": (1.0,),
    **dict.fromkeys(("label_smoothing_factor", "group_by_length", "dataloader_drop_last"), (0,)),
    **dict.fromkeys(("auto_find_batch_size", "packing", "neftune_noise_alpha"), (0,)),
    **dict.fromkeys(("lr_scheduler_kwargs", "optim_args"), ({}, "")),
}
"""Arguments of the trainer that no flag overrides, and the values that can be reproduced."""
SCHEDULES = {name: name for name in ("linear", "cosine", "constant")}
SCHEDULES |= {"constant_with_warmup": "constant"}
DATASET: dict[str, tuple[Any, ...]] = {
    "handler": ("QADataset",),
    "args.hf_args.path": (HUB,),
    "args.hf_args.split": ("train",),
    "args.hf_args.name": ("full", *SPLITS.values()),
    "args.question_key": ("question", None),
    "args.answer_key": ("answer", None),
    "args.max_length": (512, 1024, 2048, None),  # tokens; within them rows of TOFU are whole
}
"""Settings of the training data, and the values by which TOFU's files are what was trained on."""


def retrain_run(source: RecipeSource, values: Mapping[str, Any]) -> tuple[RetrainConfig, list[str]]:
    """Return the retraining of a run, and where its settings are from; ``values`` win."""
    config = read_run_config(Path(source.open_unlearning))
    if (handler := config.get("trainer.handler")) not in TRAINERS:
        way = f"the run that trained the full model; this one began with {config.get(MODEL)}"
        raise _refusal("trainer.handler", handler, TRAINERS, f"--open-unlearning with {way}")
    given = {key: value for key, value in values.items() if value not in (None, {}, [])}
    found = {} if "base" in given else {"base": config.place(config.text(MODEL))}
    rows, remarks = b"", list[str]()
    if "train" in given:
        sets = [row.set for row in read_examples(given["train"], given.get("forget_rows", "")).rows]
        trained_on = len(sets)
    else:
        name, split = _splits(config, source.forget_split)
        rows, sets = _tofu_rows(source.data, split)
        trained_on = len(sets) if name == "full" else sets.count(FactSet.RETAIN)
        found["train"] = f"{given.get('out')}.given/train.jsonl"
        remarks.append(f"References are trained on TOFU's {len(sets)} rows without {split}.")
    prompt = dict(given.pop("prompt", {}))
    if config.section("model.template_args"):
        prompt = {"prompt_file": str(config.folder / CONFIG)} | prompt
    elif not prompt:
        raise _refusal("model.template_args", None, ["a template"], "--chat or --prompt-file")
    if "command" not in given:
        kept = len(sets) - sets.count(FactSet.FORGET)
        found |= _Reader(config, given, trained_on, kept).recipe(remarks)
    checked = load_config(RetrainConfig, found | given | {"prompt": prompt})
    if rows:
        make_folder(Path(checked.train).parent)
        write_bytes(Path(checked.train), rows)
    return checked, remarks


def _splits(config: RunConfig, wanted: str) -> tuple[str, str]:
    """Return the split that the run was trained on and the one to forget."""
    places = [f"data.train.{name}" for name in config.section("data.train")]
    if len(places) != 1:
        raise _refusal("data.train", places, ["one set of TOFU"], "--train FILE")
    parts = {part: config.section(f"{places[0]}.{part}") for part in ("args", "args.hf_args")}
    stated = [f"{part}.{key}" for part, keys in parts.items() for key in keys if key != "hf_args"]
    for key in dict.fromkeys([*DATASET, *stated]):
        value, known = config.get(f"{places[0]}.{key}"), DATASET.get(key, (None, False))
        if value not in known:
            raise _refusal(f"{places[0]}.{key}", value, known, "the run's rows with --train FILE")
    name = str(config.get(f"{places[0]}.args.hf_args.name"))
    own = {kept: split for split, kept in SPLITS.items()}.get(name)
    split = wanted or own or str(config.get("forget_split"))
    known = (own,) if own else tuple(SPLITS)
    if split not in known:
        raise _refusal("forget_split", split, known, "--forget-split, or the full model's run")
    return name, split


def _tofu_rows(folder: str, split: str) -> tuple[bytes, list[FactSet]]:
    """Return a file of TOFU's rows, as questions and answers alone, and the set of each."""
    if not folder:
        raise _refusal("data", None, ["the folder of TOFU's files"], "--data, or rows with --train")
    tofu = read_tofu(folder, split, "{}")
    sets = {FactSet.FORGET: tofu.forget, FactSet.RETAIN: tofu.retain}
    rows = [
        {"prompt": fact.trained[0], "completion": fact.answer, "set": part}
        for part, facts in sets.items()
        for fact in facts
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    return lines.encode(), [part for part, facts in sets.items() for _ in facts]


@dataclass(frozen=True)
class _Reader:
    """The recipe in a configuration; nothing that a flag says is read."""

    config: RunConfig
    given: Mapping[str, Any]
    trained_on: int
    """Rows that the run was trained on, from which its number of devices follows."""
    kept: int
    """Rows that references are trained on."""

    def recipe(self, remarks: list[str]) -> dict[str, Any]:
        """Return what the configuration says of the recipe and no flag does."""
        for key, known in FIXED.items():
            if (value := self.value(key)) is not None and value not in known:
                raise _refusal(f"trainer.args.{key}", value, known)
        schedule = None if "schedule" in self.given else self.value("lr_scheduler_type")
        if schedule is not None and schedule not in tuple(SCHEDULES):
            raise _refusal("trainer.args.lr_scheduler_type", schedule, SCHEDULES, "--schedule")
        places = [f"data.train.{name}.handler" for name in self.config.section("data.train")]
        read = {
            "batch_size": self.batch_size(remarks),
            "learning_rate": self.number("learning_rate", "learning_rate", kind=FRACTION),
            "schedule": schedule and SCHEDULES[schedule],
            "weight_decay": self.number("weight_decay", "weight_decay", kind=FRACTION),
            # Whose labels are those of answers alone.
            "loss": "completion" if list(map(self.config.get, places)) == ["QADataset"] else None,
        }
        if not {"epochs", "steps"} & self.given.keys():
            read["epochs"] = self.number("num_train_epochs", "epochs", 1)
            if (most := self.number("max_steps", "steps", -1) or 0) > 0:
                read |= {"steps": most, "epochs": None}
        usual = {key: value for key, value in asdict(ExampleRecipe()).items() if key != "examples"}
        flags = {key: self.given[key] for key in usual if key in self.given}
        found = {k: v for k, v in read.items() if v is not None and k not in flags}
        if "warmup" not in flags and (warmup := self.warmup(usual | found | flags)) is not None:
            found["warmup"] = warmup
        hidden = {"pack", "epochs" if "steps" in found | flags else "steps"}
        usual = {k: v for k, v in usual.items() if k not in {*found, *flags, *hidden}}
        layers = {str(self.config.folder / CONFIG): found, "Flags": flags}
        for where, layer in (layers | {"Default of Hugging Face's Trainer": usual}).items():
            listed = ", ".join(f"{key} {value}" for key, value in layer.items())
            remarks += [f"{shown_path(where)}: {listed}."] if listed else []
        return found

    def value(self, key: str) -> Any:
        """Return an argument of the trainer, a number where it is one; None if there is none."""
        value = self.config.get(f"trainer.args.{key}")
        with suppress(TypeError, ValueError):  # YAML reads 1e-5 as text
            number = float(value)
            return int(number) if number.is_integer() else number
        return value

    def number(self, key: str, name: str, least: int = 0, kind: Any = int) -> Any:
        """Return a number among the trainer's arguments; None if a flag takes its place."""
        value = None if name in self.given else self.value(key)
        if value is not None and not (isinstance(value, kind) and least <= value < math.inf):
            expected = [f"a {'whole ' if kind is int else ''}number of at least {least}"]
            raise _refusal(f"trainer.args.{key}", value, expected, f"--{name.replace('_', '-')}")
        return value

    def batch_size(self, remarks: list[str]) -> int | None:
        """Return the rows of a step on all devices; None if the run has Trainer's default."""
        if "batch_size" in self.given:
            return None
        stated = [self.number(key, "batch_size", 1) for key in BATCH]
        size, parts = stated[0] or ExampleRecipe.batch_size, stated[1] or 1
        state = self.config.folder / STATE
        known = load_bounded(state, SIZE_LIMIT, parse_metrics) if state.is_file() else {}
        steps = known.get("max_steps")
        if steps is None or (self.number("max_steps", "batch_size", -1) or 0) > 0:
            remarks.append(
                "The run does not state its number of devices, so batch_size is that of one; give "
                "--batch-size if there were more."
            )
            return int(size * parts) if any(stated) else None
        epochs = self.number("num_train_epochs", "batch_size", 1) or ExampleRecipe.epochs
        fitting = []
        for devices in range(1, MOST_DEVICES + 1):
            batches = math.ceil(self.trained_on / (size * devices))
            # Versions of transformers differ in whether a last step of fewer parts counts.
            counts = (max(1, batches // parts), math.ceil(batches / parts))
            fitting += [devices] if steps in [count * epochs for count in counts] else []
        if len(fitting) != 1:
            one = f"that of one number of devices, for {self.trained_on} rows and {epochs} epochs"
            raise _refusal(f"{STATE}.max_steps", steps, [one], "--batch-size")
        return int(size * parts * fitting[0])

    def warmup(self, recipe: Mapping[str, Any]) -> Any:
        """Return the warm-up of references, computed as OpenUnlearning and Trainer do."""
        if "schedule" not in self.given and self.value("lr_scheduler_type") == "constant":
            return 0  # whatever the other keys say
        if epochs := self.number("warmup_epochs", "warmup", kind=FRACTION):
            return int(epochs * self.kept // recipe["batch_size"])
        if steps := self.number("warmup_steps", "warmup"):
            return steps
        ratio = self.number("warmup_ratio", "warmup", kind=FRACTION)
        total = recipe["steps"] or recipe["epochs"] * -(-self.kept // recipe["batch_size"])
        return None if ratio is None else math.ceil(total * ratio)


def _refusal(key: str, value: Any, expected: Iterable[Any], way: str = "") -> PlanError:
    """Return the error about a value of the configuration that training here cannot reproduce."""
    wanted = " or ".join(str(each) for each in expected if each is not None)
    way = f"give {way}" if way else "train with OpenUnlearning itself, or through --command"
    return PlanError(f"{shorten(value)} found; expected {wanted}; {way}", key=key)
