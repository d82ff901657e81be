from dataclasses import replace
from pathlib import Path

from made_run import Made, made_plan, write_run

from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.self_audit import held_out_draws, injected_models
from palimpsest.plan import Replication


def test_draws_are_judged_by_the_others_alone(results: RunResults) -> None:
    """Draws lie in a row, g apart. The middle one is g from the first, and the other two are 2 g
    apart, so it is accepted; an end one is 2 g from the draw it is held against when tolerances
    of the other two say g."""
    rows = {(row.family, row.model): row for row in held_out_draws(results)}
    assert len(rows) == 6
    assert rows["qwen2", "reference-1"].accepted
    assert "forget equivalence" in rows["qwen2", "reference-2"].failures
    assert rows["gpt2", "reference-2"].delta_f < results.tolerances["gpt2"].delta_f


def test_the_injected_model_is_rejected(results: RunResults) -> None:
    rows = injected_models(results)
    assert len(rows) == 6
    assert not any(row.accepted for row in rows)
    assert all("screen" in row.failures for row in rows)


def test_a_draw_within_the_others_noise_is_accepted(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        places = {"reference": 0.25, "reference-1": 0.1, "reference-2": 0.3}
        near = {
            name: replace(models[name], forget=place, retain=1.2, residual=1.0, fall=0.3)
            for name, place in places.items()
        }
        return models | near

    rows = held_out_draws(
        read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,)), change=change))
    )
    # reference-1 is 0.15 from the draw it is held against, and the other two are 0.05 apart.
    assert [row.model for row in rows if row.accepted] == ["reference", "reference-2"]
    assert next(row.failures for row in rows if not row.accepted)[0] == "forget equivalence"


def test_two_draws_leave_nothing_to_hold_out(tmp_path: Path) -> None:
    plan = replace(made_plan(("gpt2-s",), (0,)), replication=Replication(draws=2))
    assert held_out_draws(read_run(write_run(tmp_path / "run", plan))) == ()
