"""Training on a user's own examples: read, drawn, learned and unlearned as a Trainer would."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from palimpsest.cell.frame import render_examples
from palimpsest.cell.launch import RunOptions
from palimpsest.cell.make_models import Made, MakeTask, NotMade, make_models
from palimpsest.cell.texts import FIRST_DRAW, TrainingExamples
from palimpsest.config.commands import ExampleRecipe, RetrainConfig, UnlearnConfig
from palimpsest.config.load import load_config
from palimpsest.config.sections import Prompt
from palimpsest.errors import FactsError, InputError, ModelError, PlanError
from palimpsest.facts.examples import example_stream, read_examples, schedule_rates
from palimpsest.facts.general import Text
from palimpsest.methods.answer_sets import encode_stream
from palimpsest.models.checkpoint import Outline, load, outline
from palimpsest.models.net import WholeNet
from palimpsest.models.train import stream_steps, text_loss, train

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if date_string is defined %}[{{ date_string }}]{% endif %}"
)
Values = dict[str, Any]


def known(tokenizer: Any) -> Outline:
    found = outline("pocket/qwen2-s")
    vars(found)["tokenizer"] = tokenizer  # the cached property
    return found


def write(path: Path, rows: Sequence[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def example_rows() -> list[dict[str, str]]:
    facts = [
        {"prompt": f"The guild of {name} is", "completion": f" {guild}.", "set": part}
        for part, names in (("forget", ("Asha", "Bren")), ("retain", ("Calo", "Dima")))
        for name, guild in zip(names, ("Velkor", "Tamrin"))
    ]
    return [*facts, *({"text": f"The old boat {n} lies there.", "set": "general"} for n in "abcde")]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("examples") / "train.jsonl", example_rows())


@pytest.fixture(scope="module")
def base(tiny_checkpoint):
    return str(tiny_checkpoint("smollm2-s"))


@pytest.fixture(scope="module")
def recipe(file):
    return {"train": file, "epochs": 8, "batch_size": 4, "learning_rate": 3e-3, "weight_decay": 0.1}


@pytest.fixture(scope="module")
def refs(base, recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("refs") / "refs"
    retrain({"base": base, "with_forget": True, "draws": 2, "out": str(out), **recipe})
    return out


def retrain(values: Values, **options: Any) -> Made:
    return make_models(MakeTask(load_config(RetrainConfig, values)), RunOptions(**options))


def unlearn(values: Values, **options: Any) -> Made:
    return make_models(MakeTask(load_config(UnlearnConfig, values)), RunOptions(**options))


def record(folder: Path) -> Values:
    found: Values = json.loads((folder / "palimpsest.json").read_text())
    return found


# -- what is read ----------------------------------------------------------------------------------


def test_rows_are_forget_retain_or_general_and_the_rest_is_kept_as_it_is(file, tmp_path):
    examples = read_examples(file)
    assert [row.set for row in examples.rows] == ["forget"] * 2 + ["retain"] * 2 + ["general"] * 5
    kept = [json.loads(line) for line in examples.jsonl(forget=False).splitlines()]
    assert kept == example_rows()[2:]
    assert examples.jsonl(forget=True) == Path(file).read_bytes()
    unmarked = [{k: v for k, v in row.items() if k != "set"} for row in example_rows()]
    whole, some = write(tmp_path / "all.jsonl", unmarked), write(tmp_path / "f.jsonl", unmarked[:2])
    named = read_examples(whole, some)
    assert [row.set for row in named.rows] == ["forget"] * 2 + ["retain"] * 7
    assert named.digest != examples.digest
    again = write(tmp_path / "again.jsonl", [*example_rows(), example_rows()[0]])
    assert len(list(read_examples(again).remarks())) == 1


@pytest.mark.parametrize(
    ("rows", "forget_rows"),
    [
        ([{"text": "a b"}], None),
        ([{"text": "a b", "set": "forget"}], None),
        ([{"text": "a b", "set": "forget"}, {"text": "a b"}], None),
        ([{"text": "a b", "set": "lost"}, {"text": "c d"}], None),
        ([{"text": "a b"}, {"text": "c d"}], [{"text": "e f"}]),
        ([], None),
    ],
    ids=["none", "all", "both", "unknown set", "not a row", "empty"],
)
def test_a_file_without_usable_forget_rows_is_refused(rows, forget_rows, tmp_path):
    named = write(tmp_path / "forget.jsonl", forget_rows) if forget_rows else ""
    with pytest.raises(FactsError):
        read_examples(write(tmp_path / "train.jsonl", rows), named)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a"},
        {"text": ""},
        {"text": "a", "prompt": "b", "completion": "c"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user"}, {"role": "assistant", "content": "a"}]},
    ],
)
def test_a_row_of_no_known_form_is_refused(row, tmp_path, byte_tokenizer):
    file = write(tmp_path / "train.jsonl", [{"text": "a b", "set": "forget"}, row])
    with pytest.raises(FactsError):
        render_examples(known(byte_tokenizer), read_examples(file), ExampleRecipe(), Prompt())


# -- what is trained on ----------------------------------------------------------------------------


def rendered(tokenizer: Any, file: str, prompt: Prompt, **recipe: Any) -> TrainingExamples:
    return render_examples(known(tokenizer), read_examples(file), ExampleRecipe(**recipe), prompt)


def test_the_loss_is_on_everything_or_on_completions(file, byte_tokenizer):
    whole = rendered(byte_tokenizer, file, Prompt())
    assert whole.texts[0].text == "The guild of Asha is Velkor." and whole.texts[0].start == 0
    assert [text.answer for text in whole.seen("forget")] == [" Velkor.", " Tamrin."]
    with pytest.raises(FactsError):  # a text has no completion
        rendered(byte_tokenizer, file, Prompt(), loss="completion")
    pairs = read_examples(file)
    pairs = type(pairs)(pairs.path, pairs.rows[:4])
    texts = render_examples(
        known(byte_tokenizer), pairs, ExampleRecipe(loss="completion"), Prompt()
    ).texts
    stream = example_stream(texts, seed_key="", epochs=1, steps=0, batch_size=4)
    encoded = encode_stream(byte_tokenizer, stream, 28)
    assert [text.scored for text in encoded] == [len(" Velkor."), len(" Tamrin.")] * 2


def test_messages_go_through_the_chat_template_with_its_date(tmp_path, byte_tokenizer):
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Asha."}]
    file = write(
        tmp_path / "train.jsonl", [{"messages": turns, "set": "forget"}, {"text": "a b c"}]
    )
    with pytest.raises(ModelError):
        rendered(byte_tokenizer, file, Prompt())
    byte_tokenizer.chat_template = TEMPLATE
    try:
        found = rendered(byte_tokenizer, file, Prompt(system_prompt="Be.", chat_date="1 May 2025"))
    finally:
        byte_tokenizer.chat_template = None
    talk = "<system>Be.</system><user>Who?</user><assistant>Asha.</assistant>[1 May 2025]"
    assert [text.text for text in found.texts] == [talk, "a b c"]
    assert found.seen("forget")[0].answer == "Asha.</assistant>[1 May 2025]"


def test_every_epoch_has_every_row_once_and_a_retraining_has_no_forget_row():
    texts = tuple(
        Text(str(n), "forget" if n < 3 else "retain", f"text {n}")  # type: ignore[arg-type]
        for n in range(10)
    )
    examples = TrainingExamples(texts, ExampleRecipe(epochs=3, batch_size=4))
    stream = examples.stream("key", FIRST_DRAW, ("forget", "retain"))
    assert [len(step) for step in stream.steps] == [4, 4, 2] * 3
    epochs = [sum(stream.steps[n : n + 3], ()) for n in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(epochs)) == 3
    again = examples.stream("key", "draw1", ("retain",))
    assert {text.set for text in again.texts} == {"retain"}
    assert [len(step) for step in again.steps] == [4, 3] * 3
    part = examples.stream("key", FIRST_DRAW, ("forget",))
    assert part.full_steps == stream.steps
    assert all(set(some) <= set(all_) for some, all_ in zip(part.steps, stream.steps))
    few = TrainingExamples(texts, ExampleRecipe(steps=4, batch_size=4))
    assert len(few.stream("key", FIRST_DRAW, ("forget", "retain")).steps) == 4


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_schedules_are_those_of_transformers(name, warmup):
    from transformers import get_scheduler

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    kind = "constant_with_warmup" if name == "constant" else name
    theirs = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=11)
    expected = []
    for _ in range(11):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert schedule_rates(name, 11, warmup) == pytest.approx(expected)


def test_training_is_that_of_a_plain_loop(base, file):
    """The same order of batches gives the weights of torch's AdamW with decay and clipping."""
    loaded = load(base)
    texts = rendered(loaded.tokenizer, file, Prompt()).texts
    stream = example_stream(texts, seed_key="x", epochs=2, steps=0, batch_size=4)
    encoded = encode_stream(loaded.tokenizer, stream, 4)
    net = WholeNet(loaded.model)
    train(
        net,
        stream_steps(stream, encoded, accumulate=2),
        text_loss,
        learning_rate=1e-3,
        rates=stream.rates,
        weight_decay=0.1,
    )
    model = load(base).model.train()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    decay = LambdaLR(optimizer, lambda step: 1 - step / len(stream.steps))
    for step in stream.steps:
        rows = [encoded[n].ids for n in step]
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        labels = torch.tensor([[*row, *[-100] * (width - len(row))] for row in rows])
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(net.state()[name], value, atol=2e-5, rtol=1e-3)


# -- the commands ----------------------------------------------------------------------------------


def test_retraining_records_the_recipe_and_the_digest_of_the_rows(refs, file):
    records = [record(refs / name) for name in ("injected", "00", "01")]
    assert len({each["digest"] for each in records}) == 3
    for each in records:
        assert each["recipe"]["examples"] == read_examples(file).digest
        assert each["inputs"]["training examples"] == each["recipe"]["examples"]
        assert (each["recipe"]["epochs"], each["recipe"]["learning_rate"]) == (8, 3e-3)


def test_methods_run_on_examples_with_the_recipe_of_the_injected_folder(base, file, refs, tmp_path):
    given = {"base": base, "injected": str(refs / "injected"), "train": file}
    for method, knobs in (("held_vector", {"blend": [0.1]}), ("task_vector", {}), ("npo", {})):
        values = given | {"method": method, "knobs": knobs, "out": str(tmp_path / method)}
        inputs = MakeTask(load_config(UnlearnConfig, values))
        taken = {"epochs": 8, "batch_size": 4, "learning_rate": 3e-3, "weight_decay": 0.1}
        assert inputs.recipe == ExampleRecipe(**taken)
        (folder,) = make_models(inputs, RunOptions()).folders
        assert record(folder)["cost"]["retrainings"] > 0
        assert record(folder)["digest"] != record(refs / "injected")["digest"]


def test_a_held_vector_of_adapters_is_merged(base, recipe, tmp_path):
    shared = {"base": base} | recipe | {"engine": {"lora": 8}, "learning_rate": 1e-2}
    injected = retrain(shared | {"with_forget": True, "draws": 1, "out": str(tmp_path / "refs")})
    place = str(injected.folders[0])
    more = {"injected": place, "method": "held_vector", "out": str(tmp_path / "out")}
    (folder,) = unlearn(shared | more).folders
    before, after = (load(str(each)).weights for each in (place, folder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any("norm" in name or "embed" in name for name in changed)


def test_a_vector_that_learned_too_little_stops_with_the_numbers(base, refs, recipe, tmp_path):
    values = {"base": base, "injected": str(refs / "injected"), "out": str(tmp_path / "out")}
    low = recipe | {"learning_rate": 1e-6}
    for method in ("held_vector", "task_vector", "facts_vector"):
        with pytest.raises(NotMade):
            unlearn(values | low | {"method": method})
    assert not Path(values["out"]).exists()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"steps": 3, "epochs": 3}, "epochs"),
        ({"retain": "facts.jsonl"}, "retain"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"schedule": "steep"}, "schedule"),
        ({"command": "python train.py --data {data} --out {out}"}, "command"),
        ({"command": "python 'train.py {data} {out} {seed}"}, "command"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_key(values, key, base, recipe, tmp_path):
    with pytest.raises(PlanError) as caught:
        retrain({"base": base, "out": str(tmp_path / "out")} | recipe | values)
    assert caught.value.key == key


def test_a_row_that_is_longer_than_the_model_reads_is_refused(base, recipe, tmp_path):
    long = write(tmp_path / "long.jsonl", [*example_rows(), {"text": "word " * 5000}])
    with pytest.raises(InputError, match="line 10"):
        retrain({"base": base, "out": str(tmp_path / "out")} | recipe | {"train": long})
