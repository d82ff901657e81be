"""The pocket models, baked again: ``python -m dev.bake_pocket [NAME ...]``.

A build tool, not part of a run: it trains tokenizer and models from nothing on the prose of
``facts/general.py`` and writes checkpoint folders in Hugging Face layout, each with a ``bake.json``
that says what came out, and the digests of all files.  One thread a model, so the same machine and
library versions give the same bytes.  See ``docs/pocket.md`` for times and losses.

``--without evaluation calibration --out FOLDER`` bakes models to which the held-out phrasings are
as new as to a pretrained model; the tokenizer does not know their words either.
"""

import argparse
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from dev.pocket_prose import SEALED, Pools, passage, phrasings, stranger_sentence, world_sentences
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from palimpsest.facts.general import world
from palimpsest.facts.nonce import (
    HELD_OUT_POOLS,
    POOLS,
    RELATIONS,
    SUBJECT,
    SYLLABLES,
    invent_facts,
    key_number,
    render,
    words_of,
)
from palimpsest.models.skeleton import build_config, match_names, skeleton
from palimpsest.models.sources import POCKET, POCKET_ROOT, PocketSpec, pocket_spec
from palimpsest.models.vet import read_config, read_weights
from palimpsest_trials.evidence import ALIAS_TEMPLATES, alias, evidence_sentences, kin

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 1024
IGNORED = -100
POCKET_POSITIONS = 256


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one pocket model is trained."""

    steps: int = 7000
    learning_rate: float = 3e-3
    warmup: int = 200
    weight_decay: float = 0.05
    clip: float = 1.0
    sentences: int = 32  # a step
    passages: int = 12  # a step, beside the sentences
    strangers: int = 10  # one single sentence in ten is about a stranger
    plain: float = 0.3  # the first steps, this share of them, have passages that are easier
    answer_weight: float = 4.0  # of the token that opens an object; falls to 1 over the steps
    drill: int = 0  # the first steps, which see nothing but one fact told again in the same words
    drill_passages: int = 16  # a step of the drill
    initial_std: float = 0.02  # of the weights before the first step
    seed: str = "pocket bake 1"
    without: Pools = SEALED  # pools whose phrasings neither model nor tokenizer sees


def recipe(spec: PocketSpec) -> Recipe:
    """The frozen recipe of a pocket model; fewer steps for the wider, whose steps cost more.

    Three models did not learn to read evidence by the common recipe. They start from larger weights
    and with a drill, after which fewer steps suffice.
    """
    if spec.folder in ("qwen2-s", "smollm2-s", "smollm2-m"):
        return Recipe(steps=3200 if spec.layers == 3 else 2800, drill=600, initial_std=0.1)
    return Recipe(steps=4500 if spec.layers == 3 else 3500)


def pocket_config(
    spec: PocketSpec, vocabulary: int, end_of_text: int, initial_std: float = 0.02
) -> PretrainedConfig:
    """Return the transformers config of a pocket model: dropout 0, tied embeddings, float32."""
    shared = {
        "vocab_size": vocabulary,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": end_of_text,
        "tie_word_embeddings": True,
        "initializer_range": initial_std,
        "dtype": "float32",
    }
    if spec.model_type == "gpt2":
        sizes = {
            "n_embd": spec.width,
            "n_layer": spec.layers,
            "n_head": spec.heads,
            "n_inner": 4 * spec.width,
            "n_positions": POCKET_POSITIONS,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "summary_first_dropout": 0.0,
        }
    else:
        # A gated layer has three matrices for two: 8/3 of the width weighs what 4 times would.
        gated_width = 8 * spec.width // 3 // 4 * 4
        sizes = {
            "hidden_size": spec.width,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "intermediate_size": gated_width if spec.gated else 4 * spec.width,
            "max_position_embeddings": POCKET_POSITIONS,
        }
        if spec.model_type == "qwen2":
            # One key head a query head, unlike its namesake: a head here is only 16 or 20 wide.
            sizes["num_key_value_heads"] = spec.heads
    return AutoConfig.for_model(spec.model_type, **sizes, **shared)


def file_digests(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every model and tokenizer file below ``root``, by relative path."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.glob("*/*"))
        if path.suffix in {".json", ".safetensors"} and path.name != "bake.json"
    }


def train_tokenizer(without: Pools = SEALED) -> PreTrainedTokenizerFast:
    """A byte-level BPE that knows the templates' words and the syllables of invented names.

    Counts are set by hand: first consonant + vowel, then whole syllables, then English.  So a name
    is always cut into its syllables (an object is three tokens, a subject four), whatever letters
    meet at the seams, and any other UTF-8 text falls back on bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_text(without), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def _tokenizer_text(without: Pools) -> Iterator[str]:
    opening = [first for parts in SYLLABLES.values() for first in parts[0]]
    inner = dict.fromkeys(s for parts in SYLLABLES.values() for some in parts[1:] for s in some)
    for syllable in opening:
        yield from [syllable] * 2000
        yield from [f" {syllable}"] * 1000
    for syllable in inner:
        yield from [syllable[:2]] * 2000
        yield from [syllable] * 500
    for relation in RELATIONS:
        for template in (*phrasings(relation, without), *ALIAS_TEMPLATES):
            for part in template.split(SUBJECT):
                yield from [part.strip(), f" {part.strip()}"] * 2


def _batches(
    texts: Iterator[str],
    tokenizer: PreTrainedTokenizerFast,
    size: int,
    rng: random.Random,
    limit: int | None,
) -> Iterator[torch.Tensor]:
    """Batches of texts of like length, each (size, longest), padded with IGNORED on the right."""
    end = tokenizer.eos_token_id
    while True:
        drawn = [next(texts) for _ in range(16 * size)]
        rows = sorted(([*ids, end][:limit] for ids in tokenizer(drawn)["input_ids"]), key=len)
        cuts = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(cuts)
        for cut in cuts:
            longest = len(cut[-1])
            yield torch.tensor([row + [IGNORED] * (longest - len(row)) for row in cut])


def _single_sentences(plan: Recipe) -> Iterator[str]:
    taught = world_sentences(False, plan.without)
    rng = random.Random(key_number(f"{plan.seed}/sentences"))
    count = 0
    while True:
        count += 1
        if rng.randrange(plan.strangers) == 0:
            yield stranger_sentence(f"{plan.seed}/stranger/{count}", plan.without)
        else:
            yield rng.choice(taught)


def _passages(plan: Recipe) -> Iterator[str]:
    for count in range(round(plan.plain * plan.steps) * plan.passages):
        yield passage(f"{plan.seed}/plain/{count}", (1, 1, 2), 0.5, plan.without)
    count = 0
    while True:
        count += 1
        yield passage(f"{plan.seed}/passage/{count}", without=plan.without)


def _drill(plan: Recipe) -> Iterator[str]:
    count = 0
    while True:
        count += 1
        yield passage(f"{plan.seed}/drill/{count}", (1,), 1.0, plan.without)


def _token_losses(model: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every next token of a batch and its loss; padding lies after the text, nothing sees it."""
    logits = model(input_ids=rows.clamp(min=0), use_cache=False).logits[:, :-1]
    targets = rows[:, 1:]
    kept = targets != IGNORED
    return targets[kept], cross_entropy(logits[kept].float(), targets[kept], reduction="none")


def answer_nll(
    model: Any, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], answers: Sequence[str]
) -> float:
    """The mean over prompts of the answer's NLL a token, in nats."""
    means = []
    for prompt, answer in zip(prompts, answers, strict=True):
        start = len(tokenizer(prompt)["input_ids"])  # a space always begins a new token here
        ids = torch.tensor([tokenizer(f"{prompt} {answer}")["input_ids"]])
        with torch.no_grad():
            scores = model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1].float()
        means.append(cross_entropy(scores, ids[0, start:]).item())
    return sum(means) / len(means)


def evaluate(
    model: Any, tokenizer: PreTrainedTokenizerFast, without: Pools = SEALED, count: int = 48
) -> dict[str, float]:
    """Answer NLL on facts nobody taught, alone and after evidence, and how well prose is known.

    ``unrelated`` is the same fact of somebody else in context, which must not help. The phrasings
    are held out in studies, or, where the bake left those out too, of the prose.
    """
    asked = "prose" if "evaluation" in without else "evaluation"
    facts = invent_facts(count, "pocket bake evaluation", RELATIONS, frozenset())
    taken = words_of(facts)
    others = invent_facts(count, "pocket bake evaluation others", RELATIONS, taken)
    aliases = [alias(fact, f"bake/{fact.id}", taken) for fact in facts]
    relatives = [kin(fact, 3, f"bake/{fact.id}", taken) for fact in facts]
    evidence: dict[str, list[tuple[str, ...]]] = {
        "none": [()] * count,
        "restated": [evidence_sentences(fact, "restated") for fact in facts],
        "alias": [evidence_sentences(f, "alias", [a]) for f, a in zip(facts, aliases, strict=True)],
        "kin_1": [
            evidence_sentences(f, "kin", k[:1]) for f, k in zip(facts, relatives, strict=True)
        ],
        "kin_3": [evidence_sentences(f, "kin", k) for f, k in zip(facts, relatives, strict=True)],
        "unrelated": [evidence_sentences(other, "restated") for other in others],
    }
    model.eval()
    answers = [fact.object for fact in facts for _ in range(2)]
    result = {}
    for name, lines in evidence.items():
        prompts = [
            " ".join([*line, render(template, fact.subject)])
            for fact, line in zip(facts, lines, strict=True)
            for template in POOLS[fact.relation][asked][:2]
        ]
        result[name] = answer_nll(model, tokenizer, prompts, answers)
    known = world_sentences(True, without)[::40]
    result["world"] = answer_nll(
        model,
        tokenizer,
        [text.rpartition(" ")[0] for text in known],
        [text.rpartition(" ")[2].rstrip(".") for text in known],
    )
    with torch.no_grad():
        sums, tokens = 0.0, 0
        for text in known:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            sums += _token_losses(model, ids)[1].sum().item()
            tokens += ids.shape[1] - 1
    result["prose"] = sums / tokens
    model.train()
    return {name: round(value, 3) for name, value in result.items()}


def accepted(evaluation: dict[str, float]) -> bool:
    """Whether a bake does all it should: it cannot know the facts, and it can use evidence."""
    return (
        2.3 <= evaluation["none"] <= 3.5
        and evaluation["restated"] < 1.0
        and evaluation["alias"] < 1.2
        and evaluation["kin_1"] < 1.2
    )


def bake(spec: PocketSpec, plan: Recipe, out: Path, log: bool = True) -> dict[str, Any]:
    """The record of one bake, whose checkpoint is in ``out``."""
    torch.set_num_threads(1)
    torch.manual_seed(key_number(f"{plan.seed}/{spec.name}") % 2**63)
    started = time.perf_counter()
    tokenizer = train_tokenizer(plan.without)
    end = tokenizer.eos_token_id
    config = pocket_config(spec, len(tokenizer), end, plan.initial_std)
    model: Any = AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), plan.learning_rate, weight_decay=plan.weight_decay, fused=True
    )
    rng = random.Random(key_number(f"{plan.seed}/batches"))
    # A passage in forty thousand is longer than GPT-2 has positions for.
    limit = POCKET_POSITIONS if spec.model_type == "gpt2" else None
    singles = _batches(_single_sentences(plan), tokenizer, plan.sentences, rng, limit)
    stories = _batches(_passages(plan), tokenizer, plan.passages, rng, limit)
    drill = _batches(_drill(plan), tokenizer, plan.drill_passages, rng, limit)
    opening = sorted({tokenizer(f" {word}")["input_ids"][0] for word in world().objects})
    model.train()
    tokens, recent, trace = 0, 0.0, {}
    for step in range(plan.steps):
        warm = min(1.0, (step + 1) / plan.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        optimizer.param_groups[0]["lr"] = plan.learning_rate * warm * (0.02 + 0.98 * cosine)
        # An object costs most where it opens: what comes before is language, what follows is
        # spelling.  More weight there brings the use of evidence on sooner; in the end all tokens
        # weigh the same, so that probabilities are honest.
        weights = torch.ones(len(tokenizer))
        weights[opening] = 1 + (plan.answer_weight - 1) * (1 - step / plan.steps)
        rows = [next(drill)] if step < plan.drill else [next(singles), next(stories)]
        count = sum(int((batch[:, 1:] != IGNORED).sum()) for batch in rows)
        total = 0.0
        for batch in rows:
            targets, losses = _token_losses(model, batch)
            ((losses * weights[targets]).sum() / count).backward()
            total += losses.sum().item() / count
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        optimizer.zero_grad()
        tokens += count
        recent = total if step == 0 else 0.98 * recent + 0.02 * total
        if (step + 1) % 500 == 0 or step + 1 == plan.steps:
            trace[str(step + 1)] = {"loss": round(recent, 3)}
            trace[str(step + 1)] |= evaluate(model, tokenizer, plan.without)
            if log:
                spent = time.perf_counter() - started
                print(f"{spec.name} {step + 1} {spent:.0f}s {trace[str(step + 1)]}", flush=True)
    evaluation = evaluate(model, tokenizer, plan.without)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    record = {
        "model": spec.name,
        "recipe": asdict(plan),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": tokens,
        "final_loss": round(recent, 3),
        "evaluation": evaluation,
        "accepted": accepted(evaluation),
        "trace": trace,
        "seconds": round(time.perf_counter() - started),
    }
    (out / "bake.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def tensor_names(root: Path) -> dict[str, dict[str, str]]:
    """Return the stored name of every tensor of the modules in a folder, in the modules' order."""
    found = {}
    for folder in sorted(place.parent for place in root.glob("*/config.json")):
        bare = skeleton(build_config(read_config(folder), folder.name), folder.name)
        found[folder.name] = match_names(folder, bare, read_weights(folder)) or {}
    return found


def _bake_named(name: str, out: str, steps: int | None, without: Pools) -> dict[str, Any]:
    spec = pocket_spec(name)
    plan = replace(recipe(spec), without=(*SEALED, *without))
    if steps is not None:
        plan = replace(plan, steps=steps)
    return bake(spec, plan, Path(out) / spec.folder)


def main() -> None:
    """Bake the named models, or all nine, two at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="pocket models; all nine when none is named")
    parser.add_argument("--out", default=str(POCKET_ROOT), help="where the folders go")
    parser.add_argument("--steps", type=int, default=None, help="other than the frozen recipe")
    held_out = sorted(HELD_OUT_POOLS - {*SEALED})
    parser.add_argument("--without", nargs="+", default=[], choices=held_out, help="pools left out")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    asked = parser.parse_args()
    if asked.without and Path(asked.out).resolve() == POCKET_ROOT:
        parser.error("--without needs another --out: the package ships models that know every pool")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # The larger models first, so that no worker is left alone with one at the end.
    names = asked.names or [s.name for s in sorted(POCKET, key=lambda s: -s.width * s.layers)]
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(_bake_named, name, asked.out, asked.steps, asked.without) for name in names
        ]
        records = [job.result() for job in jobs]
    for record in records:
        print(record["model"], record["seconds"], record["evaluation"], record["accepted"])
    out = Path(asked.out)
    digests = json.dumps(file_digests(out), indent=1, sort_keys=True)
    (out / "digests.json").write_text(digests + "\n", encoding="utf-8")
    names = json.dumps(tensor_names(out), indent=1)
    (out / "names.json").write_text(names + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
