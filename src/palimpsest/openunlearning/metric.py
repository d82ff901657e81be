"""The screen as a metric of OpenUnlearning, from scores that its evaluation has at hand.

It costs no forward pass beyond ``mia_min_k``. ``hydra_plugins`` registers it.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError
from palimpsest.openunlearning.judging import judge_group
from palimpsest.openunlearning.models import Model, Outcome, Role
from palimpsest.openunlearning.reading import SCORES, Given, model_of, read_log

HERE = Path("this evaluation")
_log = logging.getLogger("metrics")


def screen_metric(model: Any, **settings: Any) -> dict[str, Any]:
    """Return AUC, both p-values, medians and shifts of the model that is being evaluated.

    settings: ``pre_compute`` with the scores, ``evaluated`` with metrics that are there already,
        and paths of logs: ``pretrained``, ``full`` and ``retained`` (one, several, or a pattern).
    """
    metrics = {**settings.get("evaluated", {}), SCORES[0]: settings["pre_compute"]["scores"]}
    references = [
        log
        for kind, role in (
            ("pretrained", "pretrained"),
            ("full", "full"),
            ("retained", "retrained"),
        )
        for log in _read(settings.get(kind), role)
    ]
    own = model_of(metrics, path=HERE, name="candidate", role=Role.CANDIDATE, split="")
    group = judge_group("", sorted([own, *references], key=lambda log: log.position), SCORES[0])
    for log in group.models:
        if log.outcome is Outcome.NOT_JUDGED:
            _log.warning("%s: %s", log.path, log.reason)
    (judged,) = (log for log in group.models if log.path is HERE)
    found: dict[str, Any] = {"agg_value": getattr(judged.screen, "auc", None)}
    found |= {"outcome": str(judged.outcome), "reason": judged.reason}
    for key in ("p_below", "p_above", "median_forget", "median_holdout"):
        found[key] = getattr(judged, key, getattr(judged.screen, key, None))
    found["shifts"] = dict(judged.shifts)
    found["retraining_p"] = judged.retraining_p
    found["anchor_logs"] = [str(path) for path in judged.anchor_logs]
    found["reference_logs"] = [str(path) for path in judged.reference_logs]
    return found


def value_metric(model: Any, **settings: Any) -> dict[str, Any]:
    """Return one number of the screen, for the summary."""
    return {"agg_value": settings["pre_compute"]["palimpsest_screen"][settings["key"]]}


def _read(places: Any, role: str) -> Iterator[Model]:
    """Yield the logs at one place or several, which may be patterns."""
    several = [places] if isinstance(places, str | None) else places
    for place in filter(None, several):
        paths = sorted(glob(place))
        if not paths:
            raise InputError(f"{place}: no such log of a {role} model")
        for path in paths:
            log = read_log(Path(path), Given({"*": role}, {}), {})
            yield replace(log, name=path, reason="" if log.scores else log.reason)
