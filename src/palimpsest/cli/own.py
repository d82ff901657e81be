"""Unlearn facts with your own model, and retrain references to compare it with."""

from typing import TYPE_CHECKING, Any

from palimpsest.cli.app import MODELS, app
from palimpsest.cli.options import EngineFlags, RunFlags, flags_of, given
from palimpsest.cli.output import answer
from palimpsest.config.own import RetrainConfig, UnlearnConfig

if TYPE_CHECKING:
    RetrainFlags = RetrainConfig
    UnlearnFlags = UnlearnConfig
else:
    RetrainFlags, UnlearnFlags = flags_of(RetrainConfig), flags_of(UnlearnConfig)


@app.command(group=MODELS)
def retrain(
    *,
    settings: RetrainFlags | None = None,
    engine: EngineFlags | None = None,
    run: RunFlags | None = None,
) -> None:
    """Train references for an audit: the injected model's recipe without the forget data."""
    _make(RetrainConfig, given(settings) | {"engine": given(engine)}, run or RunFlags())


@app.command(group=MODELS)
def unlearn(
    *,
    settings: UnlearnFlags | None = None,
    engine: EngineFlags | None = None,
    run: RunFlags | None = None,
) -> None:
    """Unlearn facts: write one checkpoint per combination of the method's knobs."""
    from palimpsest.engine.own import knob_values

    values = given(settings) | {"engine": given(engine)}
    if "knobs" in values:
        values["knobs"] = knob_values(values["knobs"])
    _make(UnlearnConfig, values, run or RunFlags())


def _make(kind: type[Any], values: dict[str, Any], run: RunFlags) -> None:
    """Check the flags, do the work and say what was written."""
    from palimpsest.config.load import load_config
    from palimpsest.engine.estimate import check_memory, estimate_cells, suitable_workers
    from palimpsest.engine.own import NotMade, OwnInputs, make_models
    from palimpsest.models.device import check_device

    inputs = OwnInputs(load_config(kind, values))
    if run.executor != "ray":
        check_device(inputs.config.engine.device)
    inputs.check()
    spec = inputs(inputs.cell)
    workers = run.workers or suitable_workers(spec, len(spec.models) + len(spec.methods))
    if run.dry_run:
        answer(f"would write {inputs.config.out}: {estimate_cells([spec]).line(workers)}")
        return
    check_memory(spec)
    with run.options(workers) as options:
        made = make_models(inputs, options)
    if run.json:
        answer({"folders": [str(folder) for folder in made.folders], "records": made.records})
    else:
        for folder, record in zip(made.folders, made.records.values()):
            cost = record.get("cost")
            spent = "" if cost is None else f" (cost: {cost['retrainings']:.2f} retrainings)"
            answer(f"wrote {folder}{spent}")
    if made.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.failed.items())
        raise NotMade(f"{len(made.failed)} settings failed ({reasons}); the others are written")
