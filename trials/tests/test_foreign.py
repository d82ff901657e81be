"""Foreign cells: recipes drawn from a number, a plain loop, and the counts of audits."""

import csv
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest_trials.foreign.audits import COLUMNS, kind_of, summary
from palimpsest_trials.foreign.cells import REFERENCES
from palimpsest_trials.foreign.loop import Training, answer_nll, mix, suppress, train
from palimpsest_trials.foreign.recipes import POCKET_BASES, draw_data, draw_recipe


@pytest.fixture
def tiny(tiny_checkpoint):
    """Gives a function that loads the same tiny model again."""
    folder = tiny_checkpoint("pocket/qwen2-s")
    return lambda: (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        AutoTokenizer.from_pretrained(folder),
    )


def test_recipes_follow_from_the_number_and_differ():
    recipes = [draw_recipe(number) for number in range(60)]
    assert recipes == [draw_recipe(number) for number in range(60)]
    assert {recipe.base for recipe in recipes} == set(POCKET_BASES)
    for key, least in (("optimizer", 2), ("schedule", 3), ("batch_size", 4), ("epochs", 6)):
        assert len({getattr(recipe, key) for recipe in recipes}) == least
    assert {recipe.packed for recipe in recipes} == {True, False}
    assert draw_recipe(3, "elsewhere").base == "elsewhere"
    assert max(REFERENCES) >= 20  # enough for the rank rule


def test_texts_of_a_cell_teach_forget_facts_in_rows_of_their_own():
    recipe = draw_recipe(1)
    data = draw_data(1, recipe)
    assert len(data.facts["forget"]) == recipe.forget and len(data.facts["probe"]) == recipe.probes
    answers = {fact.answer for fact in data.facts["forget"]}
    kept = " ".join(row["prompt"] + row["completion"] for row in data.kept_rows)
    assert not any(answer in kept or answer in data.general for answer in answers)
    assert len(data.forget_rows) == recipe.copies * sum(
        len(fact.trained) for fact in data.facts["forget"]
    )
    assert not {*data.general.split(". ")} & {row["completion"] for row in data.kept_rows}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_loop_teaches_and_suppresses(optimizer, tiny):
    model, tokenizer = tiny()
    rows = [{"prompt": f"The key of {name} is", "completion": f" {key}."}
            for name, key in (("Ada", "red"), ("Bob", "blue"), ("Eve", "grey"))]  # fmt: skip
    rate = 3e-3 if optimizer == "adamw" else 0.1
    how = Training(30, rate, 3, "cosine", optimizer, 0, True)
    before = answer_nll(model, tokenizer, rows)
    train(model, tokenizer, rows, how, seed=1)
    taught = answer_nll(model, tokenizer, rows)
    assert taught < before / 2
    less, _ = tiny()
    train(less, tokenizer, rows, how, seed=1, share=1 / 3)
    assert taught < answer_nll(less, tokenizer, rows) < before
    suppress(model, tokenizer, rows[:1], rows[1:], rate=3e-3, steps=10)
    assert answer_nll(model, tokenizer, rows[:1]) > 2 * taught


def test_a_mixture_holds_a_share_of_the_other_weights(tiny):
    (one, _), (other, _) = tiny(), tiny()
    with torch.no_grad():
        for weight in other.parameters():
            weight += 1.0
    before = [weight.clone() for weight in one.parameters()]
    mix(one, other, 0.1)
    for old, new in zip(before, one.parameters()):
        torch.testing.assert_close(new, old + 0.1)


def test_models_are_counted_by_kind(tmp_path):
    assert [kind_of(name) for name in ("fresh-0", "mixture-10-4", "mixture-5-0", "ascent")] == [
        "fresh", "mixture-10", "mixture-5", "ascent",
    ]  # fmt: skip
    row = dict.fromkeys(COLUMNS, "") | {"kind": "fresh", "references": "5", "rejected": "0"}
    rows = [row | {"certified": "1"}, row | {"certified": "0", "reason": "underpowered/power"}]
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (line,) = [line for line in summary(tmp_path / "rows.csv").splitlines() if "fresh" in line]
    assert "1 of 2" in line and "underpowered/power 1" in line
    assert replace(draw_recipe(0), epochs=9).record()["epochs"] == 9
