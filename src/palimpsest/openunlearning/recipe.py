"""The ``retrain --command`` with which OpenUnlearning's own trainer repeats one of its runs.

The run's own overrides (``.hydra/overrides.yaml``) are its recipe. Output folder, seed, evaluation
and training data are replaced by what ``retrain`` hands over; these replacements were tried with
OpenUnlearning's commit d3d7cf9.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palimpsest.config.commands import RunSource
from palimpsest.errors import PlanError
from palimpsest.facts.questions import FactSet
from palimpsest.facts.tofu import SPLITS, read_tofu
from palimpsest.files import parse_yaml
from palimpsest.openunlearning.hydra import (
    BASE,
    CONFIG,
    MODEL,
    RunConfig,
    load_bounded,
    read_run_config,
)
from palimpsest.openunlearning.runs import check_data
from palimpsest.run.files import make_folder, write_bytes
from palimpsest.text import shown_path

TRAINERS = ("FinetuneTrainer", "Trainer")
DRAWS = 20
"""References with which a comparison assumes nothing about their distribution."""
PYTHON = (
    *("env", "-u", "OMP_NUM_THREADS", "-u", "MKL_NUM_THREADS", "-u", "OPENBLAS_NUM_THREADS"),
    "/path/to/ou/bin/python",
)
"""OpenUnlearning's own interpreter, whose pins differ from ours, without a worker's settings."""
INTERPRETER = f"Replace {PYTHON[-1]} by the interpreter of OpenUnlearning's environment."
_DATA = "data.train.TOFU_QA_retain.args"
REPLACED = (
    *("task_name=retrain", "paths.output_dir={out}", "trainer.args.seed={seed}"),
    *("trainer.args.do_eval=false", "trainer.args.eval_on_start=false"),
    *("trainer.args.eval_strategy=no", "data/datasets@data.train=TOFU_QA_retain"),
    *(f"{_DATA}.hf_args.path=json", f"{_DATA}.hf_args.name=null"),
    f"+{_DATA}.hf_args.data_files={{data}}",
    *(f"{_DATA}.question_key=prompt", f"{_DATA}.answer_key=completion"),
)
"""Overrides that take the place of the run's own."""
_OWN = re.compile(r"[+~]*(data\.train\b|data/datasets@|task_name\b|paths\.|hydra[./])")


def retrain_command(source: RunSource, given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the command line that repeats a run without its forget data, and a sentence on what
    was written for it; ``given`` are further settings of ``retrain``."""
    config = read_run_config(Path(source.open_unlearning))
    if (handler := config.get("trainer.handler")) not in TRAINERS:
        raise PlanError(
            f"{shown_path(config.folder)}: trainer {handler} found; expected the run that trained "
            f"the full model, which this one began with: {config.get(MODEL)}",
            key="open_unlearning",
        )
    if "command" in given:
        raise PlanError("given together with --open-unlearning; omit one of them", key="command")
    out = Path(given.get("out") or Path("runs") / f"{config.folder.name}-references").resolve()
    values = {
        "base": config.source_of(config.needed(MODEL)),
        "draws": DRAWS,
        **given,
        "out": str(out),
    }
    if config.section("model.template_args"):
        values["prompt_file"] = str((config.folder / CONFIG).resolve())
    trained = read_overrides(config.folder)
    remark = f"Rows: {values.get('train')}."
    if "train" not in given:
        split = split_to_forget(source, config)
        rows, remark = tofu_rows(source.data, split)
        folder = Path(f"{out}.given")
        make_folder(folder)
        write_bytes(folder / "train.jsonl", rows)
        values["train"] = str(folder / "train.jsonl")
        script = folder / "references.sbatch"
        write_bytes(script, cluster_script(config, trained, split, script, values).encode())
        remark += f" For a Slurm array, or several GPUs a model: {script}."
    # Braces are retrain's own placeholders, and nothing to quote.
    values["command"] = " ".join([*PYTHON, "src/train.py", *map(shlex.quote, trained), *REPLACED])
    flags = [f"--{key.replace('_', '-')}" + _shown(value) for key, value in values.items()]
    return " \\\n  ".join(["palimpsest retrain", *flags]), f"{remark} {INTERPRETER}"


def cluster_script(
    config: RunConfig, trained: list[str], split: str, script: Path, values: Mapping[str, Any]
) -> str:
    """Return the script that trains and evaluates one reference per index of a Slurm array."""
    each, devices = config.batch
    batch = ("trainer.args.per_device_train_batch_size", "trainer.args.gradient_accumulation_steps")
    kept = [text for text in trained if not text.lstrip("+").startswith(batch)]
    model = next((t.partition("=")[2] for t in kept if t.startswith("model=")), "")
    model = model or Path(config.needed(BASE)).name
    evaluated = [text for text in kept if text.lstrip("+").startswith(("model=", "model."))]
    fields = {
        "LAST": str(int(values["draws"]) - 1),
        "MODEL": model,
        "FORGET": split,
        "RETAIN": SPLITS[split],
        "HOLDOUT": split.replace("forget", "holdout"),
        "FILE": shlex.quote(str(script)),
        "STEP": str(each * (devices or 1)),
        "EACH": str(config.get(batch[0]) or 1),
        "TRAIN": " ".join(map(shlex.quote, kept)),
        "EVAL": " ".join(map(shlex.quote, evaluated or [f"model={model}"])),
        "BASE": shlex.quote(str(values["base"])),
    }
    text = Path(__file__).with_name("references.sbatch").read_text("utf-8")
    return re.sub(r"@([A-Z]+)@", lambda match: fields[match[1]], text)


def _shown(value: Any) -> str:
    return "" if value is True else f" {shlex.quote(str(value))}"


def read_overrides(folder: Path) -> list[str]:
    """Return what a run was told on its command line, without what ``REPLACED`` replaces."""
    file = folder / CONFIG.with_name("overrides.yaml")
    if not file.is_file():
        raise PlanError(
            f"{shown_path(file)}: not found; expected the overrides that Hydra stores with a run; "
            "write the run's own command line into --command",
            key="open_unlearning",
        )
    replaced = {entry.lstrip("+").partition("=")[0] for entry in REPLACED}
    found = load_bounded(file, 2**20, parse_yaml)
    return [
        text
        for text in map(str, found if isinstance(found, list) else ())
        if not _OWN.match(text) and text.lstrip("+~").partition("=")[0] not in replaced
    ]


def split_to_forget(source: RunSource, config: RunConfig) -> str:
    """Return the split that a run is to be repeated without."""
    trained_on = config.trained_on
    if trained_on not in (["full"], *([kept] for kept in SPLITS.values())):
        raise PlanError(
            f"{trained_on} found; expected one set of TOFU (full, {', '.join(SPLITS.values())}); "
            "give the run's rows with --train FILE",
            key="data.train",
        )
    own = {kept: split for split, kept in SPLITS.items()}.get(trained_on[0])
    split = source.forget_split or own or str(config.get("forget_split"))
    if split not in ((own,) if own else SPLITS):
        raise PlanError(
            f"{split} found; expected {own or ' or '.join(SPLITS)}; name it with --forget-split, "
            "or give the full model's run",
            key="forget_split",
        )
    return split


def tofu_rows(data: str, split: str) -> tuple[bytes, str]:
    """Return TOFU's rows as a file of ``retrain --train``, what is to be forgotten marked."""
    check_data(data, split)
    tofu = read_tofu(data, split, "{}")
    rows = list(_rows(FactSet.FORGET, tofu.forget)) + list(_rows(FactSet.RETAIN, tofu.retain))
    remark = f"References are trained on TOFU's {len(rows)} rows without {split}."
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode(), remark


def _rows(part: FactSet, facts: Any) -> Iterator[dict[str, str]]:
    for fact in facts:
        yield {"prompt": fact.trained[0], "completion": fact.answer, "set": part}
