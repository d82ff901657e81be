"""The nine pocket models load like any checkpoint, are what was shipped, and can read evidence.

The shipped files are compared with their digests, so what was true of them when they were baked is
not tested again, except on one model.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dev.bake_pocket import file_digests, tensor_names
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest.errors import ModelError
from palimpsest.facts.general import general_pieces
from palimpsest.facts.nonce import POOLS, RELATIONS, invent_facts, render, vocabulary, words_of
from palimpsest.models import sources
from palimpsest.models.checkpoint import load, outline
from palimpsest.models.families import PAPER, POCKET, PocketSpec, family_of, pocket_spec
from palimpsest.models.sources import POCKET_DIGESTS, POCKET_NAMES, POCKET_ROOT, pocket_folder
from palimpsest_trials.evidence import alias, evidence_sentences, kin


@pytest.mark.parametrize("spec", POCKET, ids=lambda spec: spec.folder)
def test_it_loads_like_any_checkpoint(spec: PocketSpec) -> None:
    folder = pocket_folder(spec.name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)
    assert (model.config.model_type, model.config.vocab_size) == (spec.model_type, len(tokens))
    loaded = load(spec.name)
    ids = torch.tensor([tokens("The guild of").input_ids])
    assert torch.equal(loaded.model(input_ids=ids).logits, model(input_ids=ids).logits)
    assert loaded.embedding == (next(iter(loaded.weights)), "lm_head.weight")
    # Read without the module, and yet its tensors in its order.
    state = model.state_dict()
    assert list(loaded.weights) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in loaded.weights.items())
    assert loaded.parameters == outline(spec.name).parameters == model.num_parameters()
    assert (loaded.gated, loaded.family) == (spec.gated, spec.family)
    # AutoTokenizer picks another class for some families; the ids must not depend on it.
    for text in (*general_pieces("pocket", 20, "test"), "  Ünï 漢字 🦞\n\tx", " Vekadun"):
        assert loaded.tokenizer(text).input_ids == tokens(text).input_ids


def test_the_files_are_the_ones_whose_digests_were_shipped() -> None:
    assert file_digests(POCKET_ROOT) == json.loads(POCKET_DIGESTS.read_text("utf-8"))
    sizes = [file.stat().st_size for file in POCKET_ROOT.rglob("*") if file.is_file()]
    assert sum(sizes) <= 16 * 10**6
    for spec in POCKET:
        told = json.loads((pocket_folder(spec.name) / "bake.json").read_text("utf-8"))["evaluation"]
        assert 2.3 <= told["none"] <= 3.5  # it cannot know the facts
        assert told["restated"] < 1.0 and told["alias"] < 1.2 and told["kin_1"] < 1.2


def test_the_names_are_those_of_the_modules() -> None:
    assert tensor_names(POCKET_ROOT) == json.loads(POCKET_NAMES.read_text("utf-8"))


def test_a_first_step_imports_no_module_of_transformers() -> None:
    program = """
import sys
from palimpsest.config.presets import preset
from palimpsest.cell.study import StudySpecs
from palimpsest.cell.estimate import check_memory, suitable_workers
from palimpsest.cell.work import CellWork
spec = StudySpecs(preset("demo"))("pocket-qwen2-s--seed0")
check_memory(spec), suitable_workers(spec)
assert "transformers" not in sys.modules, "a command that starts workers has no use for it"
work = CellWork(spec)
assert work.nets([work.base]).stack == 1 and work.nets.stacked
assert "transformers.modeling_utils" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_changed_weight_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(POCKET_ROOT / "qwen2-s", tmp_path / "qwen2-s")
    monkeypatch.setattr(sources, "POCKET_ROOT", tmp_path)
    pocket_folder("pocket/qwen2-s")
    weights = tmp_path / "qwen2-s" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(ModelError, match=r"qwen2-s/model\.safetensors"):
        pocket_folder("pocket/qwen2-s")


def test_evidence_in_context_tells_it_how_an_answer_begins() -> None:
    # Only the first token counts: the later ones can be completed without reading whose fact it is.
    loaded = load("pocket/smollm2-s")
    facts = invent_facts(16, "test of evidence", RELATIONS, frozenset())
    taken = words_of(facts)

    def opening_nll(lines: list[tuple[str, ...]]) -> float:
        total = 0.0
        for fact, line in zip(facts, lines, strict=True):
            prompt = " ".join([*line, render(POOLS[fact.relation]["evaluation"][2], fact.subject)])
            ids = loaded.tokenizer(prompt).input_ids
            answer = loaded.tokenizer(f"{prompt} {fact.object}").input_ids[len(ids)]
            with torch.no_grad():
                logits = loaded.model(input_ids=torch.tensor([ids])).logits[0, -1]
            total -= logits.log_softmax(-1)[answer].item()
        return total / len(facts)

    alone = opening_nll([()] * len(facts))
    for evidence in (
        [evidence_sentences(fact, "restated") for fact in facts],
        [evidence_sentences(f, "alias", [alias(f, f.id, taken)]) for f in facts],
        [evidence_sentences(f, "kin", kin(f, 1, f.id, taken)) for f in facts],
    ):
        assert opening_nll(evidence) < alone - 1


def test_any_text_is_encoded_without_unknown_tokens_and_comes_back() -> None:
    tokenizer = load("pocket/qwen2-s").tokenizer
    for text in (
        "  two  spaces\n\tand a tab ",
        "Ünïcödé, Ελληνικά, 漢字, العربية, 🦞 and \u0000 \ufffd",
        "".join(map(chr, range(1, 0x250))),
    ):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert not {tokenizer.eos_token_id, tokenizer.unk_token_id} & set(ids)
    for role, length in (("object", 3), ("name", 2)):
        for word in vocabulary(role, "testbed")[::7]:
            assert len(tokenizer(f" {word}").input_ids) == length, word


def test_names_families_and_gates_follow_the_paper() -> None:
    for spec, checkpoint in zip(POCKET, PAPER, strict=True):
        assert spec.family in checkpoint.lower().replace("qwen2.5", "qwen2").replace("-2", "2")
    assert [spec.gated for spec in POCKET] == [True] * 4 + [False] * 4 + [True]
    assert pocket_spec("qwen2-m") is pocket_spec("pocket/qwen2-m")
    assert (family_of("llama"), family_of("phi")) == ("smollm2", "phi")
    with pytest.raises(ModelError, match="pocket/qwen3-s"):
        pocket_folder("pocket/qwen3-s")
