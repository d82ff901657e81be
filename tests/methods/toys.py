"""Small models and contexts for the tests of the methods.

``TableNet`` is a bigram model: its one parameter is a table of logits, one row per previous token,
so every loss has a closed form. ``transformer_context`` makes a context of random transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import torch
from tests.checkpoints import random_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from palimpsest.config.plan import Unlearning
from palimpsest.facts.general import Stream, injection_stream
from palimpsest.facts.questions import Question
from palimpsest.methods.answer_sets import Recipe, make_answer_set, teach
from palimpsest.methods.context import AnswerSet, Context, StepView, UnlearnBatch
from palimpsest.models.fast import StackedNet
from palimpsest.models.net import Batch, Encoded, WholeNet

TABLE = "mlp.gate_proj.weight"
FAMILIES = ("qwen2", "llama", "gpt_neox", "gpt2", "olmo2")
GATED = ("qwen2", "llama", "olmo2")


class TableNet:
    """Bigram models: logits of the next token are the previous token's row of a table."""

    def __init__(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        self.stack = len(states)
        tables = torch.stack([state[TABLE] for state in states]).clone()
        self.params = {TABLE: tables.requires_grad_()}
        self.device = torch.device("cpu")
        self.rows_read: list[int] = []

    def logits(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        self.rows_read.append(len(batch.ids))
        table = (params or self.params)[TABLE]
        return table[:, batch.ids[batch.rows, batch.columns]].float()

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return {TABLE: self.params[TABLE].detach()[member].clone()}


def table_context(
    base: Tensor,
    injected: Tensor,
    forget: Sequence[Encoded],
    retain: Sequence[Encoded],
    budget: Unlearning | None = None,
) -> Context:
    """A context whose models are tables (tokens, tokens); forget_only is injected."""
    states = {name: {TABLE: table} for name, table in (("base", base), ("injected", injected))}
    nets = {name: TableNet([state]) for name, state in states.items()}
    return Context(
        base=states["base"],
        injected=states["injected"],
        forget_only=states["injected"],
        forget=AnswerSet(tuple(forget), {name: teach(net, forget) for name, net in nets.items()}),
        retain=AnswerSet(tuple(retain), {name: teach(net, retain) for name, net in nets.items()}),
        budget=budget or Unlearning(steps=3, forget_items=len(forget), retain_items=len(retain)),
        seed_key="toy--seed0",
        gated=True,
        net=TableNet,
        whole=lambda state: SimpleNamespace(),
    )


def two_tokens(base: float, injected: float, kept: float) -> tuple[Context, UnlearnBatch]:
    """A two-token cell: the forget fact is "0, then 1", the retain fact is "1, then 0".

    A table ((0, a), (b, 0)) gives the forget answer the probability σ(a) and the retain answer
    σ(b). a is ``base`` and ``injected`` in the two models, b is ``kept`` in both.
    """
    context = table_context(
        table(base, kept), table(injected, kept), [Encoded((0, 1), 1)], [Encoded((1, 0), 1)]
    )
    return context, context.make_batch([0], [0])


def table(a: float, b: float) -> Tensor:
    return torch.tensor([[0.0, a], [b, 0.0]])


def seen_by(net: TableNet, part: UnlearnBatch, step: int = 0, steps: int = 1) -> StepView:
    """What a loss sees of the net's first member at this batch."""
    return StepView(torch.log_softmax(net.logits(part.tokens), -1)[0], part, step, steps)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<end>", "not", "known", "the", "guild", "of", "swore", "to", "is"]
    words += [f"{kind}{n}" for kind in "fr" for n in range(3)] + [f"o{n}" for n in range(6)]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<end>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<end>", pad_token="<end>", eos_token="<end>"
    )


def questions(kind: str) -> list[Question]:
    """Three facts in two phrasings, of one or two answer tokens."""
    offset = 0 if kind == "forget" else 3
    return [
        Question(kind, f"{kind[0]}{n}", pool, 0, f"{start} {kind[0]}{n} {end}", answer)
        for n, answer in enumerate((f"o{offset}", f"o{offset + 1} o{offset}", f"o{offset + 2}"))
        for pool, start, end in (("trained", "the guild of", "is"), ("cloze", "", "swore to"))
    ]


STEPS = 10
"""Of the injection that ``recipe`` describes."""


@cache
def recipe() -> Recipe:
    return Recipe(_stream("injected"), _stream("replay").without("forget"), 1e-2, piece_tokens=5)


def _stream(seed: str) -> Stream:
    general = [f"the guild of is known to o{n}" for n in range(6)]
    facts = (*questions("forget"), *questions("retain"))
    items = {"fact_items": 2, "general_items": 2}
    return injection_stream(facts, general, seed_key=seed, steps=STEPS, **items)


@cache
def model(family: str, seed: int):
    """A random transformer of the family, every parameter away from its default."""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 32,
    }
    if family == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}
        sizes |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer()), tie_word_embeddings=True, **ends, **sizes
    )
    return random_model(config, seed, 0.2)


def whole(family: str, state: Mapping[str, Tensor]) -> WholeNet:
    made = AutoModelForCausalLM.from_config(model(family, 0).config).eval()
    made.load_state_dict(dict(state))
    return WholeNet(made)


@cache
def transformer_context(family: str, stacked: bool = False, **budget: float) -> Context:
    """A context of random transformers, trained one at a time or side by side."""
    base, injected, forget_only, general_only = (
        {name: value.detach() for name, value in model(family, seed).state_dict().items()}
        for seed in (0, 1, 2, 3)
    )
    teachers = {"base": whole(family, base), "injected": whole(family, injected)}
    config = model(family, 0).config

    student = whole(family, injected)

    def one(state: Mapping[str, Tensor]) -> WholeNet:
        """The one student, as large models share it: valid until the next call."""
        student.model.load_state_dict(dict(state))
        for value in student.params.values():
            value.grad = None
            value.requires_grad_()
        return student

    def alone(states: Sequence[Mapping[str, Tensor]]) -> WholeNet:
        (state,) = states
        return one(state)

    settings = {"steps": 3, "learning_rate": 1e-3, "ascent_learning_rate": 1e-3}
    return Context(
        base=base,
        injected=injected,
        forget_only=forget_only,
        forget=make_answer_set(tokenizer(), questions("forget"), teachers),
        retain=make_answer_set(tokenizer(), questions("retain"), teachers),
        budget=replace(Unlearning(), **{**settings, **budget}),
        seed_key=f"{family}--seed0",
        gated=family in GATED,
        net=(lambda states: StackedNet(config, states)) if stacked else alone,
        whole=one,
        tokenizer=tokenizer(),
        general_only=general_only,
        recipe=recipe(),
    )


def answers_of(family: str, context: Context, state: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities (positions, vocabulary) of a state at every text of the context."""
    texts = (*context.forget.texts, *context.retain.texts)
    return torch.cat(teach(whole(family, state), texts))
