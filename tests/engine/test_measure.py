"""A model that cannot be measured says of what kind its failure is, and costs no other a row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from palimpsest.engine.sources import Given, mixed_net
from tests.study.test_cell import small_plan

from palimpsest.adversaries import Unavailable
from palimpsest.adversaries.wrappers import Interpolated
from palimpsest.engine.measure import (
    Instrument,
    Measured,
    Teachers,
    injected_teachers,
    reference_teacher,
    tables,
)
from palimpsest.engine.setting import make_setting
from palimpsest.errors import ScoreError, TrainingDiverged
from palimpsest.models.load import load, outline
from palimpsest.models.net import Nets


@pytest.fixture(scope="module")
def bench(tiny_checkpoint):  # type: ignore[no-untyped-def]
    folder = tiny_checkpoint("qwen2-s")
    loaded = load(str(folder))
    nets = Nets(loaded, stack=4)
    setting = make_setting(small_plan(folder).cells()[0], loaded.tokenizer)
    state = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    teachers = Teachers(
        *injected_teachers(nets([state]), setting), reference_teacher(nets([state]), setting)
    )
    return nets, state, Instrument(setting, teachers)


def broken(state: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    name = "model.norm.weight"
    return state | {name: torch.full_like(state[name], value)}


def test_the_sound_members_of_a_stack_keep_their_rows(bench) -> None:  # type: ignore[no-untyped-def]
    nets, state, instrument = bench
    net = nets([state, broken(state, float("nan")), state])
    results = instrument.measure(["first", "broken", "last"], net)
    assert results[1].failure is not None and results[1].failure.kind == "not_finite"
    made = tables(results)
    assert set(made["items"]["model"]) == set(made["curves"]["model"]) == {"first", "last"}
    assert np.isfinite(made["items"]["nll_sum"]).all()
    rows = np.array(made["items"]["model"])
    assert np.allclose(
        made["items"]["nll_sum"][rows == "first"], made["items"]["nll_sum"][rows == "last"]
    )
    with pytest.raises(ScoreError, match="broken: gives a score that is not finite"):
        results[1].check()


def test_a_re_acquisition_that_diverges_names_its_step_and_the_rate(bench) -> None:  # type: ignore[no-untyped-def]
    nets, state, instrument = bench
    cell = instrument.setting.cell
    trip = replace(cell.plan.round_trip, learning_rate=1e30)
    wild = replace(instrument.setting, cell=replace(cell, plan=replace(cell.plan, round_trip=trip)))
    (result,) = Instrument(wild, instrument.teachers).measure(["model"], nets([state]))
    assert result.failure is not None and result.failure.kind == "diverged"
    assert result.failure.step is not None and "below 1e+30" in result.failure.reason
    assert result.items and not result.curves  # what was scored before is still there
    assert tables([result]) == {}
    with pytest.raises(TrainingDiverged, match=f"step {result.failure.step}: model"):
        result.check()


def test_the_round_trip_is_spared_where_the_scores_say_so(bench) -> None:  # type: ignore[no-untyped-def]
    nets, state, instrument = bench
    seen = []

    def never(scores: object) -> bool:
        seen.append(scores)
        return False

    (result,) = instrument.measure(["model"], nets([state]), round_trip=never)
    assert len(seen) == 1 and len(result.items) == 1 and not result.curves


def test_a_control_of_two_checkpoints_has_the_weights_of_the_mixture(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path
) -> None:
    reference = Path(tiny_checkpoint("qwen2-s"))
    loaded = load(str(reference))
    with torch.no_grad():
        for value in loaded.model.parameters():
            value.add_(0.1)
    loaded.model.save_pretrained(tmp_path / "injected")
    loaded.tokenizer.save_pretrained(tmp_path / "injected")
    given = [Given(str(place)) for place in (reference, tmp_path / "injected")]
    states = [one.load(outline(str(reference))).model.state_dict() for one in given]
    expected = Interpolated(*states, 0.75)
    with mixed_net(*given, 0.25, outline(str(reference))) as (mixed, net):
        made = mixed.model.state_dict()
        assert all(torch.allclose(made[name], expected[name], atol=1e-6) for name in expected)
        assert not torch.equal(made["model.norm.weight"], states[0]["model.norm.weight"])
        assert net.params["model.norm.weight"].requires_grad


def test_quantised_weights_cannot_be_mixed() -> None:
    one, other = ({"w": torch.tensor([n, 2], dtype=torch.int8)} for n in (0, 1))
    with pytest.raises(Unavailable, match=r"w is torch\.int8"):
        Interpolated(one, other, 0.5)["w"]
    assert torch.equal(Interpolated(one, one, 0.5)["w"], one["w"])
    with pytest.raises(Unavailable, match="in the injected model only"):
        Interpolated({}, one, 0.5)["w"]


def test_a_model_without_a_failure_passes_its_check() -> None:
    Measured("sound").check()
