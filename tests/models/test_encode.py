"""The scored tokens of a question are those of its answer, whatever the tokenizer does."""

import copy
import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from palimpsest.cell.frame import Frame, find_frame
from palimpsest.config.sections import Prompt
from palimpsest.errors import ModelError
from palimpsest.facts.questions import Question
from palimpsest.models.encode import encode_answers, encode_texts, start_remark

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def ask(prompt, answer):
    return Question("forget", "f1", "trained", 0, prompt, answer)


def byte_pairs(signs, words, special=(), **options):
    """A BPE model of these signs that merges the words from their left."""
    vocabulary, merges = {sign: n for n, sign in enumerate(signs)}, []
    for word in words:
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = len(vocabulary)
                merges.append((word[:end], word[end]))
    vocabulary |= {token: len(vocabulary) + n for n, token in enumerate(special)}
    return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))


def bpe(*words, special=(), processor=None, prefix_space=False, trim=True):
    """A byte-level BPE (GPT-2's and Qwen's kind) with these words too; Ġ stands for a blank."""
    core = byte_pairs(ALPHABET, words, special)
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
    signs = ["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:\n"]
    core = byte_pairs(signs, words, unk_token="<unk>")
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


def unsplit(*words):
    """A byte-level BPE that merges across blanks and signs."""
    tokenizer = bpe(*words)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    return tokenizer


def around(single, *words):
    """A byte-level BPE that puts special tokens around the text."""
    return bpe(*words, special=("<s>", "</s>"), processor=framed(single))


ASHA = ["A", "s", "h", "a"]
WORDS = ("Ġis", "ĠVelkor")
BORDERS = {
    "the blank goes with the answer": (
        lambda: bpe(*WORDS), "Asha is", "Velkor", [*ASHA, "Ġis"], ["ĠVelkor"],
    ),
    "a blank that ends the prompt": (
        lambda: bpe("Velkor"), "is ", "Velkor", ["i", "s", "Ġ"], ["Velkor"],
    ),
    # Tokenized apart, the answer would be 'Velkor'; together its first token starts earlier.
    "a token across the border": (
        lambda: unsplit('"Vel', "kor"), 'is "', "Velkor", ["i", "s", "Ġ"], ['"Vel', "kor"],
    ),
    "a blank merged across the border": (
        lambda: bpe(*WORDS), "Asha is ", "Velkor", [*ASHA, "Ġis"], ["ĠVelkor"],
    ),
    "offsets that are not trimmed": (
        lambda: bpe(*WORDS, "Ġhill", trim=False), "is", "Velkor hill", ["i", "s"],
        ["ĠVelkor", "Ġhill"],
    ),
    "after a line end": (lambda: bpe("V"), "A:\n", "Vo", ["A", ":", "Ċ"], ["V", "o"]),
    "after a quote": (lambda: bpe(), 'a "', "Vo", ["a", "Ġ", '"'], ["V", "o"]),
    "after a colon": (lambda: bpe(), "a:", "Vo", ["a", ":"], ["Ġ", "V", "o"]),
    "tokens on both sides": (
        lambda: around("<s> $A </s>", *WORDS), "is", "Velkor", ["<s>", "i", "s"], ["ĠVelkor"],
    ),
    "nothing but an opening token": (
        lambda: around("<s> $A", "Velkor"), "", "Velkor", ["<s>"], ["Velkor"],
    ),
    "a blank put in front": (
        lambda: bpe(*WORDS, prefix_space=True), "is", "Velkor", ["Ġis"], ["ĠVelkor"],
    ),
    "sentencepiece": (
        lambda: metaspace("▁is", "▁Vel", "kor"), "Asha is", "Velkor", ["▁", *ASHA, "▁is"],
        ["▁Vel", "kor"],
    ),
    "sentencepiece, bytes": (
        lambda: metaspace("▁is"), "is", "ß", ["▁is"], ["▁", "<0xC3>", "<0x9F>"],
    ),
    "llama 2": (
        lambda: llama_two("▁is", "▁Velkor"), "Asha is", "Velkor", ["▁", *ASHA, "▁is"],
        ["▁Velkor"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BORDERS)
def test_the_answer_begins_where_its_tokens_reach_past_the_prompt(case):
    make, prompt, answer, left, right = BORDERS[case]
    assert one(make(), prompt, answer) == (left, right)


@pytest.mark.parametrize("form", [normalizers.NFC(), normalizers.NFKC(), normalizers.NFD()])
def test_normalization_that_changes_lengths_moves_no_border(form):
    tokenizer = bpe(*WORDS)
    tokenizer.backend_tokenizer.normalizer = form
    assert one(tokenizer, "e\u0301e\u0301 ﬁ é is", "Velkor")[1] == ["ĠVelkor"]


@pytest.mark.parametrize("answer", ["Žižek", "日本", "🙂🙃", "e\u0301tude", "ﬁn", "Ⅳ", "שלום"])
def test_answers_of_several_bytes_a_sign(answer):
    tokenizer = bpe("Ġis")
    encoded = encode_answers(tokenizer, [ask("Größe is", answer)])[0]
    assert tokenizer.decode(encoded.ids[encoded.start :]) == f" {answer}"
    assert tokenizer.decode(encoded.ids[: encoded.start]) == "Größe is"
    assert encoded.scored == 1 + len(answer.encode())


def without_omega():
    tokenizer = bpe()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex(r"\s*Ω"), "")
    return tokenizer


class Slow:
    is_fast = False


@pytest.mark.parametrize(
    ("make", "prompt", "answer"),
    [
        (lambda: bpe("Velkor"), "", "Velkor"),  # nothing before it
        (lambda: unsplit("isĠV"), "is", "V"),  # it swallows the whole prompt
        (without_omega, "is", "Ω"),  # no token of its own
        (Slow, "is", "Velkor"),  # no offsets
    ],
)
def test_an_answer_that_cannot_be_scored_is_refused(make, prompt, answer):
    with pytest.raises(ModelError, match="Slow" if make is Slow else f"f1.*{answer}"):
        one(make(), prompt, answer)


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
    with pytest.raises(ModelError):
        encode_texts(bpe(), [text], limit)


TURNS = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


def test_a_chat_template_frames_question_and_answer(byte_tokenizer):
    tokenizer = copy.deepcopy(byte_tokenizer)
    assert find_frame(tokenizer, Prompt()) is None
    with pytest.raises(ModelError):
        find_frame(tokenizer, Prompt(chat=True))
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = TURNS + "{{ strftime_now('%d') }}"
    asked = Prompt(chat=True, system_prompt="Be brief.", chat_date="1 May")
    frame = find_frame(tokenizer, asked)
    start = "<|endoftext|><system>Be brief.\n<user>"
    assert frame == Frame(start, "\n<assistant>", f"\n1 May{tokenizer.eos_token}")
    (question,) = frame.put([Question("forget", "f", "trained", 0, "Who?", "Velkor")])
    (text,) = encode_answers(tokenizer, [question])
    assert tokenizer.decode(text.ids[: text.start]) == f"{start}Who?\n<assistant>"
    assert tokenizer.decode(text.ids[text.start :]) == f"Velkor{frame.after}"
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ModelError):
        find_frame(tokenizer, Prompt(chat=True))


def test_a_first_token_is_written_once_and_missed_where_it_is_needed(byte_tokenizer):
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = TURNS
    assert "does not add it" in start_remark(tokenizer, "gemma2")
    assert start_remark(tokenizer, "gpt2") == ""
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)]
    )
    frame = find_frame(tokenizer, Prompt(chat=True))
    assert frame is not None and frame.before == "<user>"
    assert start_remark(tokenizer, "gemma2") == ""
