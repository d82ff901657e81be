"""Find and read evaluation logs: which model, in which role, and its scores per question."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from palimpsest.errors import InputError, PlanError
from palimpsest.openunlearning.hydra import CONFIG, load_bounded, read_run_config
from palimpsest.openunlearning.models import Model, Role, Values, median
from palimpsest.openunlearning.naming import Identity, locate_run, parse_name, read_identity

SIZE_LIMIT = 512 * 2**20
"""Largest log read, in bytes."""
SUITES = ("TOFU_EVAL.json", "MUSE_EVAL.json")
"""Ends of the names of logs; other suites write other files."""
ARCHIVES = (".zip", ".tgz", ".tar.gz", ".tar")
SCORES = ("mia_min_k", "mia_loss", "mia_zlib")
"""Scores that can be screened: all made of losses, lower for what a model knows better."""
LOSSES = {"retain": "retain_Q_A_Prob", "real authors": "ra_Q_A_Prob", "world facts": "wf_Q_A_Prob"}
MEDIANS = {"forget": "forget_Q_A_Prob", "paraphrases": "forget_Q_A_PARA_Prob", **LOSSES}
"""Mean negative log-likelihoods of answer tokens, by the questions they are of."""
MUSE_MEDIANS = {"forget knowledge": "forget_knowmem_ROUGE", "forget text": "forget_verbmem_ROUGE"}
MUSE_MEDIANS |= {"retain knowledge": "retain_knowmem_ROUGE"}
SPLIT_SIZES = {"forget01": 40, "forget05": 200, "forget10": 400}
NO_ROLE, NO_BASE = "role unknown", "unknown base"
AGAIN = "evaluate again with the metric mia_min_k (privleak brings it)"
EARLY = "forget_minKpc_neg_logprob"
"""What logs have that were written before mia_min_k came, in April 2025."""


class Given(NamedTuple):
    """What the user says: roles and base models by patterns of run folders' names."""

    roles: Mapping[str, str]
    bases: Mapping[str, str]

    def of(self, name: str) -> tuple[Role | None, str]:
        """Return the role and the base model of a run; of several patterns the last one wins."""
        told = [[v for pattern, v in kind.items() if fnmatchcase(name, pattern)] for kind in self]
        role, base = ((found or [""])[-1] for found in told)
        return (Role(role) if role else None), base

    def check(self, names: set[str]) -> None:
        """Raise PlanError for a pattern that no run's name matches."""
        for key, kind in (("role", self.roles), ("base", self.bases)):
            for pattern in kind:
                if not any(fnmatchcase(name, pattern) for name in names):
                    known = ", ".join(sorted(names)[:10]) + ", ..." * (len(names) > 10)
                    raise PlanError(f"{pattern!r} matches no run; runs are {known}", key=key)


def find_logs(paths: Iterable[Path | str]) -> tuple[list[Path], list[str]]:
    """Return the files given and the logs of known suites in the folders given, each once, and
    remarks on what else is there."""
    named, files = list[Path](), dict[Path, None]()
    for given in map(Path, paths):
        if not given.exists():
            raise InputError(f"{given}: not found; expected a folder of runs or a log file")
        if not given.is_dir():
            named.append(given)
        for folder, children, names in os.walk(given):
            children.sort()
            files |= dict.fromkeys(Path(folder) / name for name in sorted(names))
    archives = [path for path in (*named, *files) if path.name.lower().endswith(ARCHIVES)]
    logs = [path for path in named if path not in archives]
    logs += [path for path in files if path.name.endswith(SUITES)]
    others = [p for p in files if p.name.endswith("_EVAL.json") and not p.name.endswith(SUITES)]
    bare = [
        path
        for path in files
        if path.name.endswith("_SUMMARY.json")
        and path.with_name(path.name.replace("_SUMMARY", "_EVAL")) not in files
    ]
    remarks = [
        f"{len(found)} {what}: {', '.join(sorted({path.name for path in found})[:3])}"
        for found, what in (
            (others, "logs of other suites were not read"),
            (bare, "summaries without a log; take the *_EVAL.json, which has scores of questions"),
            (archives, "archives; unpack them to have their logs read"),
        )
        if found
    ]
    if not logs:
        expected = f"no *{SUITES[0]} or *{SUITES[1]} found; expected logs of OpenUnlearning"
        raise InputError("; ".join([expected, *remarks]))
    return list({path.resolve(): path.absolute() for path in logs}.values()), remarks


def read_log(path: Path, given: Given, configs: dict[Path, Identity]) -> Model:
    """Return a model; what is ``given`` wins over names and configurations, which are read once."""
    metrics = load_bounded(path, SIZE_LIMIT, parse_metrics)
    muse = "MUSE" in path.name or any("knowmem" in name for name in metrics)
    run, checkpoint, hint = locate_run(path)
    name = path.name.partition("MUSE_EVAL" if muse else "TOFU_EVAL")[0].strip("_-") or run.name
    folders = path.parents[: path.parents.index(run) + 1]
    beside = next((folder for folder in folders if (folder / CONFIG).is_file()), None)
    if beside is not None and beside not in configs:
        configs[beside] = read_identity(read_run_config(beside))
    config = Identity() if beside is None else configs[beside]
    named, (role, base) = parse_name(name), given.of(name)
    told = list(dict.fromkeys(filter(None, (named.role, config.role))))
    if not told and run.parent.name == "unlearn":
        told = [Role.CANDIDATE]
    role = role or (told[0] if len(told) == 1 else None)
    if checkpoint == 0 and role is not None:
        # The evaluation before the first step is of the model that the run began with.
        role = Role.FULL if role is Role.CANDIDATE else Role.PRETRAINED
    model = model_of(
        metrics,
        path=path,
        name=name,
        checkpoint=checkpoint,
        benchmark="MUSE" if muse else "TOFU",
        base=base or named.base or config.base or NO_BASE,
        role=role,
        template=config.template,
    )
    sizes = {len(sets["forget"]) for sets in model.scores.values()}
    sized = [split for split, size in SPLIT_SIZES.items() if sizes == {size} and not muse]
    splits = list(dict.fromkeys(filter(None, (named.split, hint, config.split, *sized))))
    fault = ""
    if len(splits) > 1 or (sizes and not sized and splits and splits[0] in SPLIT_SIZES):
        fault = f"folder, configuration and {sizes} questions disagree: {' and '.join(splits)}"
    elif role is None:
        fault = f"{NO_ROLE}: folder and configuration say {' and '.join(told)}" if told else NO_ROLE
    elif named.setting:
        fault = "evaluated at another temperature, where scores are no likelihoods"
    elif not model.scores and EARLY in metrics:
        fault = f"a log of before April 2025 ({EARLY}); {AGAIN}"
    elif not model.scores:
        fault = f"no {', '.join(SCORES)} of forget and holdout questions; {AGAIN}"
    return replace(model, split=splits[0] if splits else "unknown split", reason=fault)


def model_of(metrics: Mapping[str, Any], *, benchmark: str = "TOFU", **about: Any) -> Model:
    """Return the model of these metrics; ``about`` are further fields of it."""
    scores = {
        score: {s: _values(_section(metrics, score, s), "score") for s in ("forget", "holdout")}
        for score in SCORES
    }
    losses = {name: _values(metrics.get(key), "avg_loss") for name, key in LOSSES.items()}
    levels = {name: _number(metric, "agg_value") for name, metric in metrics.items()}
    if benchmark == "MUSE":
        medians = {name: levels.get(key, np.nan) for name, key in MUSE_MEDIANS.items()}
    else:
        answers = {name: _values(metrics.get(key), "avg_loss") for name, key in MEDIANS.items()}
        medians = {name: median(values) for name, values in answers.items()}
    return Model(
        benchmark=benchmark,
        scores={score: sets for score, sets in scores.items() if all(map(len, sets.values()))},
        losses={name: values for name, values in losses.items() if np.isfinite(values).any()},
        medians={name: level for name, level in medians.items() if np.isfinite(level)},
        levels={name: level for name, level in levels.items() if np.isfinite(level)},
        **about,
    )


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
