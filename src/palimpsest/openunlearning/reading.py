"""Find and read evaluation logs: which model, in which role, and its scores per question."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from palimpsest.errors import InputError
from palimpsest.openunlearning.hydra import (
    BASE,
    CHAT,
    CONFIG,
    MODEL,
    TAGS,
    RunConfig,
    load_bounded,
    read_run_config,
)
from palimpsest.openunlearning.models import Model, Role, Values, median

SIZE_LIMIT = 512 * 2**20
"""Largest log read, in bytes."""
SCORES = ("mia_min_k", "mia_loss", "mia_zlib")
"""Scores that can be screened: all made of losses, lower for what a model knows better."""
LOSSES = {"retain": "retain_Q_A_Prob", "real authors": "ra_Q_A_Prob", "world facts": "wf_Q_A_Prob"}
MEDIANS = {"forget": "forget_Q_A_Prob", "paraphrases": "forget_Q_A_PARA_Prob", **LOSSES}
"""Mean negative log-likelihoods of answer tokens, by the questions they are of."""
MUSE_MEDIANS = {"forget knowledge": "forget_knowmem_ROUGE", "forget text": "forget_verbmem_ROUGE"}
MUSE_MEDIANS |= {"retain knowledge": "retain_knowmem_ROUGE"}
SPLIT_SIZES = {"forget01": 40, "forget05": 200, "forget10": 400}
TOFU_NAME = re.compile(
    r"tofu_(?P<base>.+?)_(?P<kind>full|ft|pretrained|retain(?=\d)|forget(?=\d))"
    r"(?:_retain)?(?P<size>\d\d)?(?P<rest>(?:_.*)?)$"
)
MUSE_NAME = re.compile(r"muse_(?P<base>.+?)_(?P<split>News|Books)_(?P<kind>[^_]+)(?P<rest>.*)$")
NUMBERED = re.compile(r"(?:_(?:seed|run|draw)?[-_]?\d+)?")
KINDS = {"full": Role.FULL, "ft": Role.FULL, "target": Role.FULL, "pretrained": Role.PRETRAINED}
KINDS |= {"retain": Role.RETRAINED, "retrain": Role.RETRAINED}


class Identity(NamedTuple):
    """What a name or a configuration says about a model; empty where it says nothing."""

    base: str = ""
    split: str = ""
    role: Role | None = None
    template: Mapping[str, str] = {}


def find_logs(paths: Iterable[Path | str]) -> list[Path]:
    """Return the files given and every ``*_EVAL.json`` in the folders given, each once."""
    found: list[Path] = []
    for given in map(Path, paths):
        if not given.exists():
            raise InputError(f"{given}: not found; expected a folder of runs or a log file")
        found += sorted(given.rglob("*_EVAL.json")) if given.is_dir() else [given]
    if not found:
        raise InputError("no *_EVAL.json found there; expected evaluation logs of OpenUnlearning")
    return list({path.resolve(): path.absolute() for path in found}.values())


def read_log(path: Path, roles: Mapping[str, Role]) -> Model:
    """Return a model; ``roles``, by name of the run folder, win over names and configurations."""
    metrics = load_bounded(path, SIZE_LIMIT, parse_metrics)
    muse = path.name.startswith("MUSE") or any("knowmem" in name for name in metrics)
    scores = {
        score: {s: _values(_section(metrics, score, s), "score") for s in ("forget", "holdout")}
        for score in SCORES
    }
    losses = {name: _values(metrics.get(key), "avg_loss") for name, key in LOSSES.items()}
    levels = {name: _number(metric, "agg_value") for name, metric in metrics.items()}
    if muse:
        medians = {name: levels.get(key, np.nan) for name, key in MUSE_MEDIANS.items()}
    else:
        answers = {name: _values(metrics.get(key), "avg_loss") for name, key in MEDIANS.items()}
        medians = {name: median(values) for name, values in answers.items()}

    run, checkpoint, hint = _locate_run(path)
    folders = path.parents[: path.parents.index(run) + 1]
    beside = next((folder for folder in folders if (folder / CONFIG).is_file()), None)
    config = Identity() if beside is None else read_identity(read_run_config(beside))
    named = parse_name(run.name)
    sizes = {len(sets["forget"]) for sets in scores.values()} - {0}
    sized = [split for split, size in SPLIT_SIZES.items() if sizes == {size} and not muse]
    splits = list(dict.fromkeys(filter(None, (named.split, hint, config.split, *sized))))
    told = list(dict.fromkeys(filter(None, (named.role, config.role))))
    role = roles.get(run.name, told[0] if len(told) == 1 else None)
    fault = ""
    if len(splits) > 1 or (sizes and not sized and splits and splits[0] in SPLIT_SIZES):
        fault = f"folder, configuration and {sizes} questions disagree: {' and '.join(splits)}"
    elif role is None:
        unclear = f"folder and configuration say {' and '.join(told)}" if told else "role unknown"
        fault = f"{unclear}; give --role {run.name}=ROLE"
    return Model(
        path=path,
        name=run.name,
        checkpoint=checkpoint,
        benchmark="MUSE" if muse else "TOFU",
        base=named.base or config.base or "unknown",
        split=splits[0] if splits else "unknown",
        role=role,
        template=config.template,
        scores={name: sets for name, sets in scores.items() if all(map(len, sets.values()))},
        losses={name: values for name, values in losses.items() if np.isfinite(values).any()},
        medians={name: level for name, level in medians.items() if np.isfinite(level)},
        levels={name: level for name, level in levels.items() if np.isfinite(level)},
        reason=fault,
    )


def parse_name(name: str) -> Identity:
    """Return what a name in one of OpenUnlearning's forms says."""
    match = MUSE_NAME.match(name) or TOFU_NAME.match(name)
    if match is None:
        return Identity()
    parts = match.groupdict()
    role: Role | None = KINDS.get(parts["kind"], Role.CANDIDATE)
    if role is not Role.CANDIDATE and not NUMBERED.fullmatch(parts["rest"]):
        role = None  # what follows a reference's name may be a method
    split = parts.get("split") or ""
    if size := parts.get("size"):
        split = f"forget{size if parts['kind'] == 'forget' else f'{100 - int(size):02}'}"
    return Identity(parts["base"], split, role)


def read_identity(config: RunConfig) -> Identity:
    """Return what a configuration says about the model and its prompt."""
    model, base, mode = (config.text(key) for key in (MODEL, BASE, "mode"))
    if mode == "unlearn":
        role: Role | None = Role.CANDIDATE
    elif mode == "eval":
        role = Role.PRETRAINED if model == base else parse_name(Path(model).name).role
    else:
        role = KINDS.get(" ".join(config.trained_on).rstrip("0123456789"))
    template = config.section("model.template_args")
    chat = template.get("apply_chat_template") is True
    used = {key: config.text(f"model.template_args.{key}") for key in (CHAT if chat else TAGS)}
    prompt = {"apply_chat_template": str(chat), **used} if template else {}
    split = config.text("forget_split") or config.text("data_split")
    return Identity(Path(base).name, split, role, prompt)


def _locate_run(path: Path) -> tuple[Path, int | None, str]:
    """Return the run folder of a log, its checkpoint, and the split of an ``evals_SPLIT``."""
    folder, checkpoint, hint = path.parent, None, ""
    if match := re.fullmatch(r"evals?(?:_(forget\d\d|News|Books))?", folder.name):
        folder, hint = folder.parent, match[1] or ""
    if match := re.fullmatch(r"checkpoint-(\d{1,9})", folder.name):
        folder, checkpoint = folder.parent, int(match[1])
    return folder, checkpoint, hint


def parse_metrics(text: str) -> Any:
    """Return the metrics of a log, without its texts."""
    data = json.loads(text, object_hook=_drop_texts)
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} found; expected metrics by name")
    return data


def _drop_texts(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if not isinstance(value, (str, list))}


def _values(metric: Any, field: str) -> Values:
    """Return the numbers of a metric; index i is always question i."""
    entries = _section(metric, "value_by_index")
    return np.array([_number(entries.get(str(i)), field) for i in range(len(entries))], np.float64)


def _number(entry: Any, field: str) -> float:
    value = _section(entry).get(field)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else np.nan


def _section(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under these keys; empty if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
