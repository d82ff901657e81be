"""Padding side, batch size and batch order change no score, in six architectures."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from palimpsest.models.checkpoint import load
from palimpsest.models.net import Encoded, WholeNet, collate

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
ARCHITECTURES = {
    "llama": SIZES | {"num_key_value_heads": 2},
    "qwen2": SIZES | {"num_key_value_heads": 2},
    "gpt_neox": SIZES,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "olmo2": SIZES,
    "phi": SIZES,
}
LENGTHS = (3, 17, 9, 30, 5, 12)
BOUND = 1e-5


@pytest.fixture(scope="module", params=ARCHITECTURES)
def loaded(request, tmp_path_factory, byte_tokenizer):
    """A random checkpoint, saved by transformers and read by the loader; wide, so errors show."""
    folder = tmp_path_factory.mktemp(request.param)
    end = byte_tokenizer.eos_token_id
    marks = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    config = AutoConfig.for_model(
        request.param,
        **ARCHITECTURES[request.param],
        **marks,
        vocab_size=len(byte_tokenizer),
        initializer_range=0.2,
    )
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    return load(str(folder))


@pytest.fixture(scope="module")
def texts():
    generator = torch.Generator().manual_seed(3)
    return [
        Encoded(tuple(torch.randint(0, 256, (length,), generator=generator).tolist()), length // 2)
        for length in LENGTHS
    ]


def scores(model, texts, pad=0):
    """Log-probabilities of the scored tokens of each text."""
    batch = collate(texts)
    for row, text in enumerate(texts):
        batch.ids[row, len(text.ids) :] = pad
    with torch.no_grad():
        found = WholeNet(model).logits(batch)[0].log_softmax(-1)
    picked = found.gather(1, batch.targets[:, None])[:, 0]
    return list(picked.split([text.scored for text in texts]))


def left_padded_scores(model, texts, pad):
    """The same through plain transformers: padding in front, a mask and positions beside it."""
    width = max(len(text.ids) for text in texts)
    ids = torch.full((len(texts), width), pad)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, width - len(text.ids) :] = torch.tensor(text.ids)
        mask[row, width - len(text.ids) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    found = logits.float().log_softmax(-1)
    picked = []
    for row, text in enumerate(texts):
        ends = torch.arange(width - text.scored, width)
        picked.append(found[row, ends - 1, ids[row, ends]])
    return picked


def largest_gap(some, others):
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))


def test_padding_side_padding_token_batch_size_and_order_change_no_score(loaded, texts):
    end, whole = loaded.tokenizer.eos_token_id, scores(loaded.model, texts)
    shifted = [Encoded((0, *text.ids), text.start + 1) for text in texts]
    assert largest_gap(whole, scores(loaded.model, shifted)) > 0.01  # an error would show
    assert largest_gap(whole, left_padded_scores(loaded.model, texts, end)) < BOUND
    assert largest_gap(whole, scores(loaded.model, texts, end)) < BOUND
    alone = [score for text in texts for score in scores(loaded.model, [text])]
    assert largest_gap(whole, alone) < BOUND
    order = (3, 0, 5, 1, 4, 2)
    turned = scores(loaded.model, [texts[n] for n in order])
    assert largest_gap([whole[n] for n in order], turned) < BOUND
