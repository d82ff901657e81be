"""The scheduler alone: what is handed out, in which order, and what a fault costs."""

import random
from collections import Counter

import pytest

from palimpsest.run.steps import FINISH, Failure, Scheduler, Step, Task, steps_to_do

FAILED = Failure("diverged", "loss is nan", "b")


def step(name: str, *needs: str, transient: bool = False) -> Step:
    return Step(name, "toy", f"key of {name}", name, needs, transient=transient)


def chain(*names: str) -> tuple[Step, ...]:
    return tuple(step(name, *names[n - 1 : n] if n else ()) for n, name in enumerate(names))


def wide(number: int) -> tuple[Step, ...]:
    return (step("train"), *(step(f"part-{n}", "train") for n in range(number)))


def schedule(
    cells: dict[str, tuple[Step, ...]], done: dict[str, tuple[str, ...]] | None = None
) -> Scheduler:
    """Return a scheduler of the cells, of which some steps are done."""
    done = done or {}
    return Scheduler(cells, {c: steps_to_do(steps, done.get(c, ())) for c, steps in cells.items()})


def test_the_steps_of_one_cell_go_to_all_free_workers():
    scheduler = schedule({"c": wide(3)})
    assert scheduler.next(0) == Task("c", "train")
    assert scheduler.next(1) is None
    scheduler.done(0)
    tasks = [scheduler.next(worker) for worker in range(4)]
    assert tasks == [*(Task("c", f"part-{n}") for n in range(3)), None]
    for worker in range(3):
        assert scheduler.next(3) is None
        scheduler.done(worker)
    assert scheduler.next(0) == Task("c", FINISH) and scheduler.progress("c") == (4, 4)
    scheduler.done(0)
    assert scheduler.over and scheduler.finished == ["c"]


def test_a_worker_stays_with_its_cell_and_else_follows_the_plan():
    scheduler = schedule({"x": chain("a", "b"), "y": chain("a", "b"), "z": chain("a", "b")})
    assert [scheduler.next(n) for n in (1, 2)] == [Task("x", "a"), Task("y", "a")]
    scheduler.done(1)
    scheduler.done(2)
    # The second worker asks first, and still gets its own cell.
    assert scheduler.next(2) == Task("y", "b")
    # A worker without a cell gets the first that is ready in the order of the plan.
    assert scheduler.next(3) == Task("x", "b")
    assert scheduler.next(1) == Task("z", "a")


def test_few_cells_are_open_at_a_time_and_they_are_the_earliest():
    scheduler = schedule({f"cell-{n}": wide(5) for n in range(40)})
    draw = random.Random(7)
    workers = range(4)
    while not scheduler.over:
        for worker in workers:
            if worker not in scheduler.running and (task := scheduler.next(worker)) is not None:
                unfinished = [c for c in scheduler.cells if c not in scheduler.finished]
                opened = [
                    c
                    for c in unfinished
                    if scheduler.cells[c].done or c in {t.cell for t in scheduler.running.values()}
                ]
                assert len(opened) <= len(workers) and opened == unfinished[: len(opened)]
                assert task.cell in opened
        scheduler.done(draw.choice(list(scheduler.running)))
    assert len(scheduler.finished) == 40


def test_a_failed_step_blocks_what_needs_it_and_nothing_else():
    steps = (*chain("a", "b", "c"), step("d", "a"))
    scheduler = schedule({"x": steps, "y": chain("a")})
    done = []
    while (task := scheduler.next("w")) is not None:
        if task == Task("x", "b"):
            scheduler.failed("w", FAILED)
        else:
            done.append(task)
            scheduler.done("w")
    assert done == [Task("x", "a"), Task("x", "d"), Task("y", "a"), Task("y", FINISH)]
    assert scheduler.over and scheduler.failures == {"x": FAILED}


def test_of_two_failures_the_first_in_the_plan_is_the_cells():
    for order in ((0, 1), (1, 0)):
        scheduler = schedule({"x": chain("a") + chain("b")})
        for worker in (0, 1):
            scheduler.next(worker)
        for worker in order:
            scheduler.failed(worker, Failure("error", "", "ab"[worker]))
        assert scheduler.failures["x"].step == "a"


def test_a_step_lost_once_is_started_again_and_lost_twice_has_failed():
    scheduler = schedule({"x": chain("a")})
    scheduler.next(0)
    assert scheduler.lost(0, "killed") == (Task("x", "a"), None)
    assert scheduler.next(1) == Task("x", "a")
    lost = scheduler.lost(1, "killed")
    assert lost[1] is not None and lost[1].kind == "worker lost" and scheduler.over


def test_a_transient_step_is_done_again_only_where_another_needs_it():
    steps = (step("train", transient=True), step("a", "train"), step("b", "train"))
    assert steps_to_do(steps, {"a", "b"}, {"train"}) == set()
    assert steps_to_do(steps, {"a"}, {"train"}) == {"train", "b"}
    assert steps_to_do(steps, {"train", "a"}) == {"b"}
    # Its record is part of the cell: if that is lost, it is made again.
    assert steps_to_do(steps, {"a", "b"}) == {"train"}
    scheduler = schedule({"x": steps}, {"x": ("a",)})
    assert (scheduler.next(0), scheduler.next(1)) == (Task("x", "train"), None)
    assert scheduler.progress("x") == (1, 3)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_workers_do_every_step_is_done_once_after_its_needs(seed, monkeypatch):
    monkeypatch.setattr("palimpsest.run.steps.ATTEMPTS", 1000)
    draw = random.Random(seed)
    cells = {}
    for n in range(draw.randint(1, 6)):
        names = [f"s{k}" for k in range(draw.randint(1, 12))]
        cells[f"cell-{n}"] = tuple(
            step(name, *draw.sample(names[:k], min(k, draw.randint(0, 3))))
            for k, name in enumerate(names)
        )
    scheduler = schedule(cells)
    done: list[Task] = []
    busy: list[int] = []
    fresh = iter(range(10**6))
    while not scheduler.over:
        if draw.random() < 0.6 and scheduler.ready:
            worker = next(fresh)
            assert scheduler.next(worker) is not None
            busy.append(worker)
        elif busy:
            worker = busy.pop(draw.randrange(len(busy)))
            if draw.random() < 0.2:
                scheduler.lost(worker, "killed")
                continue
            task = scheduler.done(worker)
            needs = scheduler.step(task).needs
            assert {Task(task.cell, need) for need in needs} <= set(done)
            done.append(task)
    assert set(Counter(done).values()) == {1}
    assert len(done) == sum(len(steps) + 1 for steps in cells.values())
    assert sorted(scheduler.finished) == sorted(cells)
