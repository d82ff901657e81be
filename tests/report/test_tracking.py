"""Trackers: told everything, in charge of nothing."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from report_runs import cell_run

from palimpsest.analysis.results import read_run
from palimpsest.analysis.table import Table
from palimpsest.errors import InputError
from palimpsest.report.tracking import TRACKERS, Tracking
from palimpsest.run.executor import Event

CELL = "qwen2-s--seed0"


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self, package: Any = None, run: Any = None) -> None:
        self.series: list[tuple[str, dict[str, float], int]] = []
        self.tables: list[Table] = []
        self.texts: dict[str, str] = {}
        self.closed = 0

    def numbers(self, group: str, values: dict[str, float], step: int) -> None:
        self.series.append((group, dict(values), step))

    def table(self, table: Table) -> None:
        self.tables.append(table)

    def text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cell_run(tmp_path_factory.mktemp("tracked") / "run")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The tracker "fake", whose package is this module's neighbour `struct`."""
    recorder = Recorder()
    monkeypatch.setitem(TRACKERS, "fake", ("struct", lambda package, run: recorder))
    return recorder


def test_a_tracker_hears_of_progress_scores_and_verdicts(run: Path, told: Recorder) -> None:
    tracking = Tracking("fake", pytest.fail).begin(run)
    tracking(Event(CELL, "step", "train-injected", done=3, total=12))
    tracking(Event(CELL, "finished"))
    tracking.end()
    assert told.series[0] == ("progress", {CELL: 0.25}, 3)
    cell = read_run(run).cells[0]
    scores = {step: values for group, values, step in told.series if group == CELL}
    assert len(scores) == len(cell.candidates)
    for place, one in enumerate(cell.verdict.findings):
        assert scores[place]["screen_p_Holm"] == one.adjusted_p
        assert scores[place]["excluded_by_the_screen"] == float(one.excluded)
        assert np.isfinite(list(scores[place].values())).all()
    assert [row[1] for row in told.tables[0].rows] == list(cell.candidates)
    assert told.texts == {f"verdict/{CELL}": cell.verdict.paragraph()}
    assert told.closed == 1


def test_cells_finished_before_are_told_at_the_end_and_none_twice(
    run: Path, told: Recorder
) -> None:
    Tracking("fake", pytest.fail).begin(run).end()
    assert len(told.tables) == 1
    assert told.series[-1] == ("verdict", {"certified cells": 1.0}, 1)


def test_a_failed_cell_is_told_as_text(run: Path, told: Recorder) -> None:
    tracking = Tracking("fake", pytest.fail).begin(run)
    tracking(Event(CELL, "failed", words="out of \x1b[31mmemory"))
    assert told.texts == {f"failed/{CELL}": "out of �[31mmemory"}


@pytest.mark.parametrize("where", ["numbers", "table", "text", "close"])
@pytest.mark.parametrize("error", [RuntimeError("no network"), SystemExit(3)])
def test_a_tracker_that_fails_is_named_once_and_left_alone(
    run: Path, told: Recorder, where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(*given: object) -> None:
        calls.append(given)
        raise error

    monkeypatch.setattr(told, where, fail)
    said: list[str] = []
    tracking = Tracking("fake", said.append).begin(run)
    for event in (Event(CELL, "step", "a", total=2), Event(CELL, "finished")):
        tracking(event)
    tracking.end()
    assert len(calls) == 1
    assert len(said) == 1 and said[0].startswith("tracker fake failed (")
    assert said[0].endswith("the run goes on")


def test_ctrl_c_is_not_mistaken_for_a_tracker_that_fails(run: Path, told: Recorder) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    told.numbers = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        Tracking("fake", pytest.fail).begin(run)(Event(CELL, "step", "a", total=2))


def test_what_a_tracker_prints_is_no_answer(
    run: Path, told: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    told.numbers = lambda *given: print("hello")  # type: ignore[method-assign]
    Tracking("fake", pytest.fail).begin(run)(Event(CELL, "step", "a", total=2))
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_missing_package_is_named_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], None)
    with pytest.raises(InputError, match=rf"pip install 'palimpsest-audit\[{name}\]'"):
        Tracking(name, pytest.fail)


def test_an_unknown_tracker_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="tensorboard, wandb, mlflow, trackio"):
        Tracking("neptune", pytest.fail)


def test_without_a_run_nothing_is_opened(tmp_path: Path, told: Recorder) -> None:
    Tracking("fake", pytest.fail).end()
    Tracking("fake", pytest.fail).begin(tmp_path / "never-made").end()
    assert told.closed == 0 and not (tmp_path / "never-made").exists()


# -- each tracker's own way of being told ---------------------------------------------------------


def test_tensorboard_gets_an_event_file_that_holds_the_scores(run: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event as Logged

    Tracking("tensorboard", pytest.fail).begin(run).end()
    (file,) = (run / "tracking" / "tensorboard").glob("events.out.tfevents.*")
    events = [Logged.FromString(record) for record in _records(file.read_bytes())]
    values = {
        (value.tag, event.step): value.simple_value
        for event in events
        for value in event.summary.value
    }
    findings = read_run(run).cells[0].verdict.findings
    for place, one in enumerate(findings):
        assert values[f"{CELL}/retain_nats", place] == pytest.approx(one.values["retain"], rel=1e-6)
    assert any(tag.startswith(f"verdict/{CELL}") for tag, _ in values)


def test_wandb_stays_offline_and_in_the_run_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(logged=[], metrics=[], summary={}, closed=0)
    made.log = made.logged.append
    made.define_metric = lambda name, step_metric: made.metrics.append((name, step_metric))
    made.finish = lambda: setattr(made, "closed", 1)
    given: dict[str, Any] = {}
    fake = SimpleNamespace(
        init=lambda **options: given.update(options) or made,
        Settings=SimpleNamespace,
        Table=lambda columns, data: (columns, data),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    Tracking("wandb", pytest.fail).begin(run).end()
    assert given["mode"] == "offline"
    assert given["dir"] == str(run / "tracking" / "wandb")
    assert (f"{CELL}/*", f"{CELL}/step") in made.metrics
    steps = [one[f"{CELL}/step"] for one in made.logged if f"{CELL}/step" in one]
    assert steps == list(range(len(read_run(run).cells[0].candidates)))
    assert list(made.summary) == [f"verdict/{CELL}"] and made.closed == 1


@pytest.mark.parametrize("known", [None, SimpleNamespace(experiment_id="7")])
def test_mlflow_keeps_a_database_in_the_run_folder(
    run: Path, known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SimpleNamespace(made=[], metrics=[], texts=[], ended=[])
    client.get_experiment_by_name = lambda name: known
    client.create_experiment = lambda name, artifact_location: client.made.append(name) or "1"
    client.create_run = lambda experiment, run_name: SimpleNamespace(
        info=SimpleNamespace(run_id=f"{experiment}-r")
    )
    client.log_batch = lambda run, metrics: client.metrics.extend((run, *one) for one in metrics)
    client.log_text = lambda run, text, file: client.texts.append(file)
    client.set_terminated = client.ended.append
    places: list[str] = []
    fake = SimpleNamespace(
        MlflowClient=lambda tracking_uri: places.append(tracking_uri) or client,
        entities=SimpleNamespace(Metric=lambda key, value, timestamp, step: (key, step)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Tracking("mlflow", pytest.fail).begin(run).end()
    assert places == [f"sqlite:///{run.resolve() / 'tracking' / 'mlflow' / 'mlflow.db'}"]
    mine = "1-r" if known is None else "7-r"
    assert client.made == (["palimpsest"] if known is None else [])
    assert (mine, f"{CELL}/retain", 0) in client.metrics and client.ended == [mine]
    assert client.texts == [f"candidates-{CELL}.csv", f"verdict/{CELL}.txt"]


def test_trackio_is_told_the_same(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, Any], int | None]] = []
    made = SimpleNamespace(
        log=lambda values, step=None: logged.append((values, step)), finish=lambda: None
    )
    fake = SimpleNamespace(init=lambda **options: made, Markdown=str)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    Tracking("trackio", pytest.fail).begin(run).end()
    keys = {key for values, _ in logged for key in values}
    assert {f"{CELL}/retain", f"verdict/{CELL}", f"tables/candidates-{CELL}"} <= keys


def _records(data: bytes) -> Iterator[bytes]:
    """The records of an event file: length, its checksum, the bytes, their checksum."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + length]
        at += 16 + length
