"""What models say: stored while scoring, shown on request, and asked for later."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.command import palimpsest

from palimpsest import load_run
from palimpsest.report.results import Said, asked_models, cell_answers, read_run
from palimpsest.report.terminal import question_lines

BASE = "pocket/qwen2-s"


def test_answers_are_stored_with_the_truths_rank_and_probability(tiny_study):
    cell = read_run(tiny_study).cells[0]
    said = cell_answers(cell)
    assert list(asked_models(cell)) == ["injected", *cell.candidates, "reference-1", "base"]
    per_set = {"forget": 2, "retain": 2, "probe": 2}
    assert len(said) == len(asked_models(cell)) * sum(per_set.values())
    for one in said:
        assert 0 < one.probability < 1 and one.rank >= 1 and one.answer and one.truth
        if one.right:
            assert one.rank == 1
    assert len(load_run(tiny_study).answers) == len(said)


def test_a_fact_that_is_named_is_asked_of_every_model_and_no_other_fact_is(tiny_study):
    cell = read_run(tiny_study).cells[0]
    facts = list(dict.fromkeys(said.fact for said in cell_answers(cell)))
    everything = palimpsest("ask", str(tiny_study)).stdout
    assert all(f"fact {fact}: " in everything for fact in facts)
    one = palimpsest("ask", str(tiny_study), "--fact", facts[0]).stdout
    assert facts[1] not in one
    assert all(title.split("-")[0] in one for title in asked_models(cell).values())


def test_a_question_is_shown_without_the_chat_template(tiny_study):
    results = read_run(tiny_study)
    plain = cell_answers(results.cells[0])[0]
    assert results.question(plain.prompt) == plain.prompt
    template = "<user>{question}\n<assistant>{answer}<end>"
    terms = replace(results.terms, config={**results.terms.config, "template": template})
    framed = replace(plain, prompt=f"<user>{plain.prompt}\n<assistant>")
    chat = replace(results, terms=terms)
    assert chat.question(framed.prompt) == plain.prompt
    assert question_lines(chat, [framed], {}) == question_lines(results, [plain], {})


def test_a_model_that_is_given_is_asked_the_same_question(tiny_study):
    fact = cell_answers(read_run(tiny_study).cells[0])[0].fact
    done = palimpsest("ask", str(tiny_study), "--fact", fact, "--model", f"mine={BASE}", "--json")
    said = {row["model"]: row for row in json.loads(done.stdout)}
    mine, base = said["mine"], said["base"]
    # The same weights by another forward pass.
    assert (mine["answer"], mine["rank"]) == (base["answer"], base["rank"])
    assert mine["probability"] == pytest.approx(base["probability"], rel=1e-3)


def test_any_prompt_is_asked_of_kept_and_given_weights(tiny_study, tmp_path):
    from safetensors.torch import save_file

    from palimpsest.models.checkpoint import load
    from palimpsest.scoring.generation import LONGEST

    run = Path(shutil.copytree(tiny_study, tmp_path / "run"))
    loaded = load(BASE)
    weights = run / "cells" / read_run(run).cells[0].id / "models"
    weights.mkdir(exist_ok=True)
    state = {name: value.clone() for name, value in loaded.weights.items()}
    last = "model.norm.weight"
    save_file(state | {last: -state[last]}, weights / "injected.safetensors")
    prompt = "The guild of Asha Tren is"
    asked = ("ask", str(run), "--prompt", prompt, "--model", f"mine={BASE}", "--json")
    first = palimpsest(*asked).stdout
    said = {row["model"]: row["answer"] for row in json.loads(first)}
    assert list(said) == ["mine", "base", "injected"]
    assert said["mine"] == said["base"] != said["injected"]
    assert palimpsest(*asked).stdout == first
    assert len(loaded.tokenizer(said["base"])["input_ids"]) <= LONGEST + 2


def test_the_greedy_answer_has_rank_one_and_is_no_less_likely_than_others():
    from palimpsest.models.checkpoint import load
    from palimpsest.models.net import WholeNet
    from palimpsest.scoring.generation import answer_prompt

    loaded = load(BASE)
    net, prompt = WholeNet(loaded.model), "The guild of Asha Tren is"
    answer, _, _ = answer_prompt(net, loaded.tokenizer, prompt)
    greedy = answer.rstrip(".")
    same, rank, chance = answer_prompt(net, loaded.tokenizer, prompt, greedy)
    _, other_rank, other = answer_prompt(net, loaded.tokenizer, prompt, "Velkor")
    assert same.startswith(greedy) and rank == 1 < other_rank and chance > other
    # Against the module's own forward, token by token.
    whole = loaded.tokenizer(f"{prompt} Velkor", return_tensors="pt")["input_ids"]
    start = len(loaded.tokenizer(prompt)["input_ids"])
    logp = loaded.model(input_ids=whole).logits[0].log_softmax(-1).detach().numpy()
    steps = [(logp[n - 1], int(whole[0, n])) for n in range(start, whole.shape[1])]
    assert other == pytest.approx(np.exp(sum(row[token] for row, token in steps)), rel=1e-3)
    assert other_rank == max(int((row > row[token]).sum()) + 1 for row, token in steps)


@pytest.mark.parametrize(
    "arguments", [("--fact", "nothing"), ("--prompt", "The guild is"), ("--cell", "nowhere")]
)
def test_what_cannot_be_asked_is_refused(tiny_study, arguments):
    done = palimpsest("ask", str(tiny_study), *arguments)
    assert done.returncode in (1, 2) and done.stderr.startswith("error: ") and not done.stdout


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Velkor", True), ("Velkor.", True), ("Velkor of Tren", True), ("Velkorian", False),
     ("velkor", False), ("", False)],
)  # fmt: skip
def test_an_answer_is_right_that_begins_with_the_truth(answer, right):
    assert Said("forget", "f", "p", "Velkor", "m", answer, 1, 0.5).right is right
    assert not Said("", "", "p", "", "m", answer, 0, 0.0).right
