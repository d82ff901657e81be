"""What is drawn after submission depends on the text and on the candidates, and on nothing else."""

from palimpsest.cell.beacon import OPTIMIZERS, Beacon

BOUND = {"a": "sha256:1", "b": "sha256:2"}


def test_another_text_or_another_candidate_gives_another_draw():
    values = {
        Beacon("tuesday", BOUND).value,
        Beacon("wednesday", BOUND).value,
        Beacon("tuesday", BOUND | {"b": "sha256:3"}).value,
    }
    assert len(values) == 3
    assert Beacon("tuesday", dict(reversed(BOUND.items()))).value in values  # whatever the order


def test_draws_cover_their_ranges():
    draws = [Beacon(f"text {number}", BOUND) for number in range(200)]
    rates = [draw.rate for draw in draws]
    assert all(1 <= rate < 2 for rate in rates) and min(rates) < 1.1 and max(rates) > 1.9
    assert {draw.optimizer for draw in draws} == set(OPTIMIZERS)
    chosen = {draw.phrasings(range(4)) for draw in draws}
    assert len(chosen) == 6 and all(len(several) == 2 for several in chosen)
    assert all(draw.phrasings([0]) == {0} for draw in draws)
