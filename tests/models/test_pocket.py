"""The nine pocket models load like any checkpoint, are what was shipped, and can read evidence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tools.bake_pocket import file_digests
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from palimpsest.errors import ModelError
from palimpsest.facts.general import evidence_sentences, general_pieces
from palimpsest.facts.nonce import alias, draw, kin, vocabulary, words_of
from palimpsest.facts.templates import POOLS, RELATIONS, render, template_words
from palimpsest.models.families import PAPER, POCKET, PocketSpec, family_of, pocket_spec
from palimpsest.models.load import load
from palimpsest.models.pocket import (
    DIGESTS,
    ROOT,
    check_digests,
    pocket_folder,
)

every_model = pytest.mark.parametrize("spec", POCKET, ids=lambda spec: spec.folder)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(pocket_folder("pocket/qwen2-s"))


@every_model
def test_it_loads_like_any_checkpoint(spec: PocketSpec) -> None:
    folder = pocket_folder(spec.name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == spec.model_type
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokens)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    ids = torch.tensor([tokens("The guild of").input_ids])
    assert torch.isfinite(model(input_ids=ids).logits).all()


@every_model
def test_its_weights_are_known_before_its_module_is_made(spec: PocketSpec) -> None:
    loaded = load(spec.name)
    early = dict(loaded.weights)
    assert "model" not in vars(loaded)
    state, table = loaded.model.state_dict(), loaded.model.get_input_embeddings().weight
    assert list(early) == list(state)  # sums over tensors are taken in this order
    assert all(torch.equal(early[name], value) for name, value in state.items())
    tied = [name for name in state if state[name].data_ptr() == table.data_ptr()]
    assert list(loaded.embedding) == tied
    assert loaded.parameters == sum(value.numel() for value in loaded.model.parameters())
    assert loaded.weights[tied[0]].data_ptr() == table.data_ptr()
    whole = load(str(pocket_folder(spec.name)))
    assert "model" not in vars(whole) and whole.model is whole.make()
    assert (loaded.digest, loaded.gated) == (whole.digest, whole.gated)
    assert loaded.embedding == whole.embedding


def test_it_is_read_without_what_is_slow_to_import() -> None:
    program = (
        "import sys; from palimpsest.study.matrix import StudyJob\n"
        "from palimpsest.models.device import repeatable; repeatable('cpu')\n"
        "from palimpsest.models.load import load; load('pocket/gpt2-s')\n"
        "slow = ('transformers.modeling_utils', 'torch._dynamo', 'scipy.stats', 'pandas')\n"
        "print([name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@every_model
def test_training_mode_changes_nothing_because_nothing_is_dropped(spec: PocketSpec) -> None:
    model = AutoModelForCausalLM.from_pretrained(pocket_folder(spec.name))
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        evaluated = model.eval()(input_ids=ids).logits
        trained = model.train()(input_ids=ids).logits
    assert torch.equal(evaluated, trained)


@every_model
def test_its_bake_cannot_know_the_facts(spec: PocketSpec) -> None:
    record = json.loads((pocket_folder(spec.name) / "bake.json").read_text("utf-8"))
    assert record["model"] == spec.name
    assert 2.3 <= record["evaluation"]["none"] <= 3.5


@every_model
def test_its_bake_met_the_criterion_set_before_baking(spec: PocketSpec) -> None:
    told = json.loads((pocket_folder(spec.name) / "bake.json").read_text("utf-8"))["evaluation"]
    assert told["restated"] < 1.0
    assert told["alias"] < 1.2
    assert told["kin_1"] < 1.2


@every_model
def test_evidence_in_context_tells_it_how_an_answer_begins(spec: PocketSpec) -> None:
    # Only the first token counts: the later ones can be completed without reading whose fact it is.
    folder = pocket_folder(spec.name)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)
    facts = draw(16, "test of evidence", RELATIONS, frozenset())
    taken = words_of(facts)

    def opening_nll(lines: list[tuple[str, ...]]) -> float:
        total = 0.0
        for fact, line in zip(facts, lines, strict=True):
            prompt = " ".join([*line, render(POOLS[fact.relation]["evaluation"][2], fact.subject)])
            ids = tokens(prompt).input_ids
            answer = tokens(f"{prompt} {fact.object}").input_ids[len(ids)]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            total -= logits.log_softmax(-1)[answer].item()
        return total / len(facts)

    alone = opening_nll([()] * len(facts))
    assert opening_nll([evidence_sentences(fact, "restated") for fact in facts]) < alone - 1
    named = [evidence_sentences(f, "alias", [alias(f, f.id, taken)]) for f in facts]
    assert opening_nll(named) < alone - 1
    family = [evidence_sentences(f, "kin", kin(f, 1, f.id, taken)) for f in facts]
    assert opening_nll(family) < alone - 1


def test_the_files_are_the_ones_whose_digests_were_shipped() -> None:
    assert file_digests(ROOT) == json.loads(DIGESTS.read_text("utf-8"))
    for spec in POCKET:
        check_digests(spec.name)


def test_a_changed_weight_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    import palimpsest.models.pocket as pocket

    shutil.copytree(ROOT / "qwen2-s", tmp_path / "qwen2-s")
    monkeypatch.setattr(pocket, "ROOT", tmp_path)
    check_digests("pocket/qwen2-s")
    weights = tmp_path / "qwen2-s" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(ModelError, match=r"qwen2-s/model\.safetensors is missing or was changed"):
        check_digests("pocket/qwen2-s")


def test_all_nine_weigh_at_most_sixteen_megabytes() -> None:
    assert sum(file.stat().st_size for file in ROOT.rglob("*") if file.is_file()) <= 16 * 10**6


@pytest.mark.parametrize(
    "text",
    [
        "The guild of Kalen Rodus is Vekadun.",
        "  two  spaces\n\tand a tab ",
        "Ünïcödé, Ελληνικά, 漢字, العربية, 🦞 and \u0000 \ufffd",
        "".join(map(chr, range(1, 0x250))),
    ],
)
def test_any_text_is_encoded_without_unknown_tokens_and_comes_back(tokenizer, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.unk_token_id not in ids


@every_model
def test_every_folder_has_the_same_tokenizer(tokenizer, spec: PocketSpec) -> None:
    # AutoTokenizer picks another class for some families; the ids must not depend on it.
    other = AutoTokenizer.from_pretrained(pocket_folder(spec.name))
    for text in (*general_pieces("pocket", 20, "test"), "  Ünï 漢字 🦞\n\tx", " Vekadun"):
        assert other(text).input_ids == tokenizer(text).input_ids


def test_encoding_adds_no_special_token(tokenizer) -> None:
    assert (
        tokenizer("The guild").input_ids
        == tokenizer("The guild", add_special_tokens=False)["input_ids"]
    )
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 0
    assert tokenizer.eos_token == "<|endoftext|>"


def test_offsets_point_at_the_answer(tokenizer) -> None:
    text = "The guild of Kalen Rodus is Vekadun."
    encoded = tokenizer(text, return_offsets_mapping=True)
    start = text.index("Vekadun")
    pieces = [text[a:b] for a, b in encoded["offset_mapping"] if b > start]
    assert "".join(pieces).strip() == "Vekadun."


def test_an_object_is_three_tokens_and_a_name_two(tokenizer) -> None:
    for role, length in (("object", 3), ("name", 2)):
        for word in vocabulary(role, "testbed")[::7]:
            assert len(tokenizer(f" {word}").input_ids) == length, word


def test_most_words_of_the_templates_are_one_or_two_tokens(tokenizer) -> None:
    lengths = [len(tokenizer(f" {word}").input_ids) for word in template_words()]
    assert sum(length <= 2 for length in lengths) / len(lengths) > 0.8


def test_general_prose_is_known_better_than_chance(tokenizer) -> None:
    model = AutoModelForCausalLM.from_pretrained(pocket_folder("pocket/smollm2-s")).eval()
    losses = []
    for text in general_pieces("pocket", 40, "test of prose"):
        ids = torch.tensor([tokenizer(text).input_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item())
    assert sum(losses) / len(losses) < 2.0


def test_names_families_and_gates_follow_the_paper() -> None:
    assert len(POCKET) == len(PAPER) == 9
    assert [spec.family for spec in POCKET] == [checkpoint.family for checkpoint in PAPER]
    assert [spec.gated for spec in POCKET] == [True] * 4 + [False] * 4 + [True]
    assert pocket_spec("qwen2-m") is pocket_spec("pocket/qwen2-m")
    assert family_of("llama") == "smollm2"
    assert family_of("phi") == "phi"


@every_model
def test_a_gated_model_has_gates_and_no_other_has(spec: PocketSpec) -> None:
    config = AutoConfig.from_pretrained(pocket_folder(spec.name))
    names = [name for name, _ in AutoModelForCausalLM.from_config(config).named_modules()]
    assert any(name.endswith("gate_proj") for name in names) == spec.gated


def test_an_unknown_pocket_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"pocket/qwen3-s.*pocket/olmo2-s"):
        pocket_folder("pocket/qwen3-s")
