"""Palimpsest inside OpenUnlearning: Hydra finds this module in its namespace ``hydra_plugins``.

Hydra gets a folder of configurations on its search path. One of them names ``Register``, which adds
metrics to OpenUnlearning's registry before they are looked up, so that no file of theirs changes.
In other programs with Hydra the folder on the path is all that happens.
"""

from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.experimental.callback import Callback
from hydra.plugins.search_path_plugin import SearchPathPlugin


class PalimpsestSearchPath(SearchPathPlugin):  # type: ignore[misc]
    """Puts ``eval=palimpsest`` and ``eval/tofu_metrics=palimpsest_screen`` on Hydra's path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        found = find_spec("palimpsest")  # its place, without importing it into every program
        if found is not None and found.origin is not None:
            folder = Path(found.origin).parent / "openunlearning" / "configs"
            search_path.append("palimpsest", f"file://{folder}")


class Register(Callback):  # type: ignore[misc]
    """Registers the metrics with OpenUnlearning when a job starts."""

    def on_job_start(self, config: Any, **kwargs: Any) -> None:
        from evals.metrics import _register_metric
        from evals.metrics.base import UnlearningMetric

        from palimpsest.openunlearning.metric import screen_metric, value_metric

        class ScreenMetric(UnlearningMetric):  # type: ignore[misc]
            """A metric that is told what has been evaluated before it."""

            def evaluate(
                self, model: Any, metric_name: str, cache: MutableMapping[str, Any], **kwargs: Any
            ) -> Any:
                kwargs["evaluated"] = dict(cache)
                return super().evaluate(model, metric_name, cache, **kwargs)

        _register_metric(ScreenMetric("palimpsest_screen", screen_metric))
        _register_metric(UnlearningMetric("palimpsest_value", value_metric))
