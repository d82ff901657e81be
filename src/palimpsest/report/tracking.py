"""A run in somebody's experiment tracker: TensorBoard, Weights & Biases, MLflow or trackio.

There is none by default. A tracker receives the progress of the cells, each candidate's scores and
the verdicts, all read from what the run has stored. It works in the process that schedules the
steps; its folder is ``RUN/tracking/<name>``. Nothing leaves the machine unless the tracker's own
environment variables say so. A tracker that fails is reported once, and the run goes on without it.

In the tracker, ``progress`` has one series per cell (share of its steps done) and one for the run;
``<cell>`` has one series per score, whose step is the candidate's place in the cell's table.
"""

import contextlib
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from palimpsest.analysis.results import CellResult, RunResults, read_run
from palimpsest.analysis.table import Table, printable
from palimpsest.errors import InputError
from palimpsest.report.cell_tables import candidates_table
from palimpsest.report.formats import as_csv, as_markdown
from palimpsest.run.executor import Event
from palimpsest.run.store import make_folder


class Tracker(Protocol):
    """What a tracker must do; values are finite, names are safe as parts of a path."""

    def numbers(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Log the values of one step of a group."""

    def table(self, table: Table) -> None:
        """Keep a table."""

    def text(self, name: str, text: str) -> None:
        """Keep a text."""

    def close(self) -> None:
        """Write out what is left."""


class Tracking:
    """Passes the events of a run on to a tracker: made before it, begun with it, ended after it.

    name: a key of ``TRACKERS``. warn: receives the one line that says the tracker has failed.
    """

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        if name not in TRACKERS:
            raise InputError(
                f"tracker {name!r} is unknown; expected one of {', '.join(TRACKERS)}, or none"
            )
        self.name = name
        self._warn = warn
        package, self._make = TRACKERS[name]
        self._package = _imported(name, package)
        self._run: Path | None = None
        self._tracker: Tracker | None = None
        self._failed = False
        self._logged: set[str] = set()

    def begin(self, run: Path | str) -> "Tracking":
        """Return itself, set to read everything from this run folder."""
        self._run = Path(run)
        return self

    def __call__(self, event: Event) -> None:
        """Log one event of a cell: a step, or its end with its candidates' scores."""
        if event.kind in ("step", "done"):
            share = event.done / max(1, event.total)
            self._do(lambda to: to.numbers("progress", {event.cell: share}, event.done))
        elif event.kind == "finished":
            self._do(lambda to: self._cells(to, only=event.cell))
        elif event.kind in ("failed", "halted"):
            self._do(lambda to: to.text(f"{event.kind}/{event.cell}", printable(event.words)))

    def end(self) -> None:
        """Log every cell not logged yet and all verdicts, which may need the last cell, and close.

        Without a run nothing happens: an audit may end before it needs one.
        """
        if self._run is not None and (self._run / "terms.json").exists():
            self._do(self._cells)
        if self._tracker is not None:
            self._do(lambda to: to.close())

    def _cells(self, to: Tracker, only: str | None = None) -> None:
        assert self._run is not None
        results = read_run(self._run)
        for cell in results.cells:
            if cell.id not in self._logged and only in (None, cell.id):
                self._logged.add(cell.id)
                _log_scores(to, results, cell)
                done = len(self._logged)
                to.numbers("progress", {"cells": done / len(results.planned)}, done)
            if only in (None, cell.id) and cell.verdict is not None:
                to.text(f"verdict/{cell.id}", printable(cell.verdict.paragraph()))
        if only is None:
            to.numbers("verdict", {"certified cells": results.certified}, len(results.cells))

    def _do(self, action: Callable[[Tracker], object]) -> None:
        """Use the tracker; when it fails, the run goes on without it."""
        if self._failed or self._run is None:
            return
        try:
            # Standard output carries the answer of a command, and nothing else.
            with contextlib.redirect_stdout(sys.stderr):
                if self._tracker is None:
                    self._tracker = self._make(self._package, self._run)
                action(self._tracker)
        except (Exception, SystemExit) as error:
            self._failed = True
            self._warn(
                f"tracker {self.name} failed ({type(error).__name__}: {error}) and is not used "
                "any more; the run goes on"
            )


def _log_scores(to: Tracker, results: RunResults, cell: CellResult) -> None:
    table = candidates_table(results, cell.id)
    for place, row in enumerate(table.rows):
        scores = {
            re.sub(r"[^\w.-]+", "_", column).strip("_"): float(value)
            for column, value in zip(table.columns, row)
            if isinstance(value, float | bool)
        }
        to.numbers(cell.id, scores, place)
    to.table(table)


def _imported(name: str, package: str) -> Any:
    try:
        return importlib.import_module(package)
    except Exception as error:
        raise InputError(
            f"tracker {name}: the package {package} cannot be imported ({error}); install it with "
            f"pip install 'palimpsest-audit[{name}]', or leave the tracker out"
        ) from error


def _folder(run: Path, name: str) -> Path:
    folder = run / "tracking" / name
    make_folder(folder)
    return folder


# -- the four trackers --------------------------------------------------------------------------


class _TensorBoard:
    def __init__(self, package: Any, run: Path) -> None:
        self._writer = package.SummaryWriter(str(_folder(run, "tensorboard")))

    def numbers(self, group: str, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
        self._writer.flush()

    def table(self, table: Table) -> None:
        self._writer.add_text(table.name, as_markdown(table))

    def text(self, name: str, text: str) -> None:
        self._writer.add_text(name, text)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Offline unless WANDB_MODE says otherwise; ``wandb sync`` uploads the folder."""

    def __init__(self, package: Any, run: Path) -> None:
        self._package = package
        self._run = package.init(
            project=os.environ.get("WANDB_PROJECT", "palimpsest"),
            name=run.name,
            dir=str(_folder(run, "wandb")),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=package.Settings(console="off"),
        )
        self._groups: set[str] = set()

    def numbers(self, group: str, values: Mapping[str, float], step: int) -> None:
        # Its own step may never go back, so every group counts for itself.
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._run.log(
            {f"{group}/{name}": value for name, value in values.items()} | {f"{group}/step": step}
        )

    def table(self, table: Table) -> None:
        made = self._package.Table(columns=list(table.columns), data=[list(r) for r in table.rows])
        self._run.log({f"tables/{table.name}": made})

    def text(self, name: str, text: str) -> None:
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    """A database in the run folder unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self, package: Any, run: Path) -> None:
        self._package = package
        folder = _folder(run, "mlflow").resolve()
        place = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        self._client = package.MlflowClient(tracking_uri=place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "palimpsest")
        known = self._client.get_experiment_by_name(name)
        if known is None:
            # Tables of a local database lie beside it; a server knows its own place.
            kept = folder.as_uri() if place.startswith("sqlite:") else None
            experiment = self._client.create_experiment(name, artifact_location=kept)
        else:
            experiment = known.experiment_id
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id

    def numbers(self, group: str, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metric = self._package.entities.Metric
        self._client.log_batch(
            self._id,
            metrics=[metric(f"{group}/{name}", value, now, step) for name, value in values.items()],
        )

    def table(self, table: Table) -> None:
        self._client.log_text(self._id, as_csv(table), f"{table.name}.csv")

    def text(self, name: str, text: str) -> None:
        self._client.log_text(self._id, text, f"{name}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._id)


class _Trackio:
    """On this machine, in trackio's own place; TRACKIO_DIR moves it."""

    def __init__(self, package: Any, run: Path) -> None:
        self._package = package
        self._run = package.init(
            project=os.environ.get("TRACKIO_PROJECT", "palimpsest"), name=run.name, resume="allow"
        )

    def numbers(self, group: str, values: Mapping[str, float], step: int) -> None:
        self._run.log({f"{group}/{name}": value for name, value in values.items()}, step=step)

    def table(self, table: Table) -> None:
        self.text(f"tables/{table.name}", as_markdown(table))

    def text(self, name: str, text: str) -> None:
        self._run.log({name: self._package.Markdown(text)})

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, tuple[str, Callable[[Any, Path], Tracker]]] = {
    "tensorboard": ("tensorboardX", _TensorBoard),
    "wandb": ("wandb", _Wandb),
    "mlflow": ("mlflow", _MLflow),
    "trackio": ("trackio", _Trackio),
}
"""The package of each tracker, and what makes it."""
