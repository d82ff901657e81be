"""The scored tokens of a question are those of its answer, whatever the tokenizer does."""

import copy
import json
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from palimpsest.errors import ModelError
from palimpsest.facts.questions import Question
from palimpsest.models.encode import chat_prompt, encode_answers, encode_texts, start_remark

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def ask(prompt, answer):
    return Question("forget", "f1", "trained", 0, prompt, answer)


def bpe(*words, special=(), processor=None, prefix_space=False, trim=True):
    """A byte-level BPE (GPT-2's and Qwen's kind) with these words too; Ġ stands for a blank."""
    vocabulary, merges = {sign: n for n, sign in enumerate(ALPHABET)}, []
    for word in words:
        whole = word[0]
        for sign in word[1:]:
            if whole + sign not in vocabulary:
                vocabulary[whole + sign] = len(vocabulary)
                merges.append((whole, sign))
            whole += sign
    for token in special:
        vocabulary[token] = len(vocabulary)
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, trim_offsets=trim)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(special))
    if processor is not None:
        core.post_processor = processor(core)
    elif trim is not None:
        core.post_processor = processors.ByteLevel(trim_offsets=trim)
    return PreTrainedTokenizerFast(tokenizer_object=core)


def framed(single):
    """A post-processor that puts special tokens around the text."""

    def make(core):
        tokens = [(name, core.token_to_id(name)) for name in ("<s>", "</s>") if name in single]
        return processors.TemplateProcessing(single=single, special_tokens=tokens)

    return make


def metaspace(*words):
    """A SentencePiece-like tokenizer (Llama's kind): blanks are ▁, unknown signs fall on bytes."""
    pieces = [("<unk>", 0.0)] + [(f"<0x{n:02X}>", -20.0) for n in range(256)]
    signs = sorted(set("▁" + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:\"'()\n"))
    pieces += [(sign, -10.0) for sign in signs] + [(word, -1.0) for word in words]
    core = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    core.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def llama_two(*words):
    """Llama 2's own file: a ▁ is put before the text, blanks become ▁, and nothing is split."""
    vocabulary, merges = {"<unk>": 0}, []
    for sign in ["▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:\n"]:
        vocabulary[sign] = len(vocabulary)
    for word in words:
        whole = word[0]
        for sign in word[1:]:
            if whole + sign not in vocabulary:
                vocabulary[whole + sign] = len(vocabulary)
                merges.append((whole, sign))
            whole += sign
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def tokens(tokenizer, encoded):
    """The prompt's and the answer's tokens as the vocabulary spells them."""
    spelled = tokenizer.convert_ids_to_tokens(list(encoded.ids))
    return spelled[: encoded.start], spelled[encoded.start :]


def one(tokenizer, prompt, answer):
    (encoded,) = encode_answers(tokenizer, [ask(prompt, answer)])
    return tokens(tokenizer, encoded)


# ---------------------------------------------------------------- where the answer begins


def test_the_blank_before_a_word_goes_with_the_answer():
    prompt, answer = one(bpe("Ġis", "ĠVelkor"), "Asha is", "Velkor")
    assert prompt == ["A", "s", "h", "a", "Ġis"]
    assert answer == ["ĠVelkor"]


def test_a_blank_that_ends_the_prompt_stays_with_the_prompt():
    prompt, answer = one(bpe("Velkor"), "Asha is ", "Velkor")
    assert prompt[-1] == "Ġ" and answer == ["Velkor"]


def test_a_token_merged_across_the_border_counts_as_answer():
    """Tokenised apart, the answer would be 'Velkor'; together its first token starts earlier."""
    tokenizer = bpe('"Vel', "kor")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    prompt, answer = one(tokenizer, 'is "', "Velkor")
    assert prompt == ["i", "s", "Ġ"]
    assert answer == ['"Vel', "kor"]


def test_a_blank_merged_with_the_answer_across_the_border_counts_as_answer():
    prompt, answer = one(bpe("Ġis", "ĠVelkor"), "Asha is ", "Velkor")
    assert prompt == ["A", "s", "h", "a", "Ġis"]
    assert answer == ["ĠVelkor"]


@pytest.mark.parametrize("trim", [True, False])
def test_trimmed_offsets_change_nothing(trim):
    tokenizer = bpe("Ġis", "ĠVelkor", "Ġhill", trim=trim)
    assert one(tokenizer, "Asha is", "Velkor hill")[1] == ["ĠVelkor", "Ġhill"]


def test_a_blank_token_of_its_own_before_the_answer_is_scored_with_it():
    """The answer's tokens are all that reach past the prompt; here the blank is one of them."""
    prompt, answer = one(bpe(), "is", "Vo")
    assert (prompt, answer) == (["i", "s"], ["Ġ", "V", "o"])


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("Q: who?\nA:\n", "V"),
        ('They call it "', "V"),
        ("They call it “", "V"),
        ("They call it (", "V"),
        ("They call it:", "Ġ"),
        ("It is 42", "Ġ"),
    ],
)
def test_prompts_that_end_in_signs(prompt, first):
    tokenizer = bpe()
    encoded = encode_answers(tokenizer, [ask(prompt, "Velkor")])[0]
    _, right = tokens(tokenizer, encoded)
    assert tokenizer.decode(encoded.ids[: encoded.start]) == prompt
    assert right[0] == first and "".join(right).lstrip("Ġ") == "Velkor"


@pytest.mark.parametrize("answer", ["Žižek", "日本", "🙂🙃", "e\u0301tude", "ﬁn", "Ⅳ", "שלום"])
def test_answers_of_several_bytes_a_sign(answer):
    tokenizer = bpe("Ġis")
    encoded = encode_answers(tokenizer, [ask("Größe is", answer)])[0]
    assert tokenizer.decode(encoded.ids[encoded.start :]) == f" {answer}"
    assert tokenizer.decode(encoded.ids[: encoded.start]) == "Größe is"
    assert encoded.scored == 1 + len(answer.encode())


def test_a_prompt_that_ends_inside_a_shared_first_byte_keeps_its_own_sign():
    tokenizer = bpe()
    encoded = encode_answers(tokenizer, [ask("ends in “", "é")])[0]
    assert tokenizer.decode(encoded.ids[: encoded.start]) == "ends in “"
    assert encoded.scored == 2


# ---------------------------------------------------------------- special tokens


@pytest.mark.parametrize(
    ("single", "front", "scored"),
    [
        ("$A", [], ["ĠVelkor"]),
        ("<s> $A", ["<s>"], ["ĠVelkor"]),
        ("$A </s>", [], ["ĠVelkor"]),
        ("<s> $A </s>", ["<s>"], ["ĠVelkor"]),
    ],
)
def test_tokens_put_around_the_text_are_never_part_of_the_answer(single, front, scored):
    tokenizer = bpe("Ġis", "ĠVelkor", special=("<s>", "</s>"), processor=framed(single))
    prompt, answer = one(tokenizer, "is", "Velkor")
    assert prompt == [*front, "i", "s"]
    assert answer == scored


def test_a_prompt_of_nothing_but_an_opening_token_is_enough():
    tokenizer = bpe("Velkor", special=("<s>",), processor=framed("<s> $A"))
    assert one(tokenizer, "", "Velkor") == (["<s>"], ["Velkor"])


def test_an_answer_with_nothing_before_it_is_refused():
    with pytest.raises(ModelError, match="no token stands before the answer 'Velkor'"):
        one(bpe("Velkor"), "", "Velkor")


def test_an_answer_that_swallows_the_whole_prompt_is_refused():
    tokenizer = bpe("isĠV")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    with pytest.raises(ModelError, match="no token stands before"):
        one(tokenizer, "is", "V")


def test_an_answer_without_tokens_is_refused():
    tokenizer = bpe()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex(r"\s*Ω"), "")
    with pytest.raises(ModelError, match="no token for the answer 'Ω'"):
        one(tokenizer, "is", "Ω")


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match="Slow gives no character offsets"):
        encode_answers(Slow(), [ask("is", "Velkor")])


# ---------------------------------------------------------------- other kinds of tokenizer


def test_a_sentencepiece_like_tokenizer():
    tokenizer = metaspace("▁is", "▁Vel", "kor")
    prompt, answer = one(tokenizer, "Asha is", "Velkor")
    assert prompt == ["▁", "A", "s", "h", "a", "▁is"]
    assert answer == ["▁Vel", "kor"]


def test_a_sentencepiece_like_tokenizer_after_a_quote():
    prompt, answer = one(metaspace("▁is", "Vel", "kor"), 'is "', "Velkor")
    assert (prompt, answer) == (["▁is", "▁", '"'], ["Vel", "kor"])


def test_a_sentencepiece_like_tokenizer_falling_back_on_bytes():
    prompt, answer = one(metaspace("▁is"), "is", "ß")
    assert prompt == ["▁is"]
    assert answer == ["▁", "<0xC3>", "<0x9F>"]


@pytest.mark.parametrize("prompt", ["Asha is", "the home of Asha is"])
def test_a_file_of_the_llama_two_kind(prompt):
    tokenizer = llama_two("▁is", "▁Velkor")
    left, right = one(tokenizer, prompt, "Velkor")
    assert left[-1] == "▁is" and right == ["▁Velkor"]


@pytest.mark.parametrize("form", [normalizers.NFC(), normalizers.NFKC(), normalizers.NFD()])
def test_normalisation_that_changes_lengths_moves_no_border(form):
    tokenizer = bpe("Ġis", "ĠVelkor")
    tokenizer.backend_tokenizer.normalizer = form
    _, answer = one(tokenizer, "e\u0301e\u0301 ﬁ é is", "Velkor")
    assert answer == ["ĠVelkor"]


def test_a_tokenizer_that_puts_a_blank_in_front():
    prompt, answer = one(bpe("Ġis", "ĠVelkor", prefix_space=True), "is", "Velkor")
    assert (prompt, answer) == (["Ġis"], ["ĠVelkor"])


# ---------------------------------------------------------------- many at once


def test_questions_side_by_side_are_encoded_as_if_alone():
    tokenizer = bpe("Ġis", "ĠVelkor", special=("<s>", "</s>"), processor=framed("<s> $A </s>"))
    tokenizer.pad_token = "</s>"
    questions = [ask("is", "Vo"), ask("The guild of Asha Tren is", "Velkor of the hill")]
    together = encode_answers(tokenizer, questions)
    assert together == tuple(encode_answers(tokenizer, [q])[0] for q in questions)
    assert len(together[0].ids) < len(together[1].ids)  # nothing was padded


def test_padding_and_truncation_left_in_a_tokenizer_file_are_not_applied(tmp_path):
    core = bpe("Ġis", special=("</s>",)).backend_tokenizer
    core.enable_padding(direction="left", length=64, pad_id=core.token_to_id("</s>"))
    core.enable_truncation(max_length=3)
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    assert saved["padding"] and saved["truncation"]
    left, right = one(tokenizer, "Asha is", "Velkor")
    assert left == ["A", "s", "h", "a", "Ġis"] and len(right) == 7


def test_running_text_is_scored_from_its_second_token_and_cut():
    tokenizer = bpe("Ġis")
    whole, cut = encode_texts(tokenizer, ["ab is"])[0], encode_texts(tokenizer, ["ab is"], 2)[0]
    assert (len(whole.ids), whole.start, whole.scored) == (3, 1, 2)
    assert cut.ids == whole.ids[:2]


@pytest.mark.parametrize(("text", "limit"), [("", None), ("a", None), ("abc", 1)])
def test_running_text_of_fewer_than_two_tokens_is_refused(text, limit):
    with pytest.raises(ModelError, match="expected at least 2"):
        encode_texts(bpe(), [text], limit)


def test_a_chat_prompt_ends_where_the_answer_begins(byte_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(byte_tokenizer)
    with pytest.raises(ModelError, match="no chat template"):
        chat_prompt(tokenizer, "Who?")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>\n{% endif %}"
    )
    tokenizer.bos_token = "<|endoftext|>"
    assert chat_prompt(tokenizer, "Who?") == "<|endoftext|><user>Who?\n<assistant>\n"
    question = Question("forget", "f", "trained", 0, chat_prompt(tokenizer, "Who?"), "Velkor")
    (text,) = encode_answers(tokenizer, [question])
    assert tokenizer.decode(text.ids[text.start :]) == "Velkor"


def test_a_first_token_is_written_once_and_missed_where_it_is_needed(byte_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}:"
    assert "does not add it" in start_remark(tokenizer, "gemma2")
    assert start_remark(tokenizer, "gpt2") == ""
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)]
    )
    assert chat_prompt(tokenizer, "Who?") == "Who?:"
    assert start_remark(tokenizer, "gemma2") == ""
