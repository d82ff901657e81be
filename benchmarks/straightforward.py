"""A cell done the plain way: ``transformers`` models, one thing after another, nothing kept.

This is the other side of the benchmarks. It is what one writes first and what is easy to trust:
texts are tokenized where they are used, teachers run live beside the student, every forward gives
logits at every position, forget and retain texts go through the model separately, every metric has
its own forward, and candidates come one after the other. It uses the same texts, order, losses and
learning rates as the engine, and its numbers are checked against the engine's before anything is
timed. Batches are as large as is comfortable; nothing is made slow on purpose.
"""

import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pocket import PocketCell
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest.cell.audit import AuditTask
from palimpsest.cell.planned import AUDIT as CELL
from palimpsest.cell.planned import planned_cell
from palimpsest.cell.texts import CellTexts
from palimpsest.cell.work import SPARE
from palimpsest.config.commands import LADDER
from palimpsest.config.sections import Unlearning
from palimpsest.facts.general import Stream, deck
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import TRAINED_POOLS, Question
from palimpsest.methods import candidates, title
from palimpsest.models.checkpoint import load
from palimpsest.models.train import LENGTH
from palimpsest.scoring.answers import general_questions
from palimpsest.stats.controls import DOSE
from palimpsest.stats.models import Role
from palimpsest.stats.rules import CONTROL_MIXTURES

ROWS = 64  # questions in one scoring batch

# -- texts ---------------------------------------------------------------------------------------


def tokenized(tokenizer: Any, texts: Sequence[str], limit: int | None = None) -> Any:
    """Give texts as right-padded ids, attention mask and character offsets."""
    return tokenizer(
        list(texts),
        padding=True,
        padding_side="right",
        truncation=limit is not None,
        max_length=limit,
        return_offsets_mapping=True,
        return_tensors="pt",
    )


def answer_mask(encoded: Any, questions: Sequence[Question]) -> Tensor:
    """Tell which tokens (rows, width) belong to the answers; general text counts from its second.

    Column t of the mask is about token t + 1, the one that position t predicts.
    """
    ends = encoded["offset_mapping"][:, :, 1]
    prompts = torch.tensor([len(question.prompt) for question in questions])
    mask = (ends > prompts[:, None]) & encoded["attention_mask"].bool()
    return mask[:, 1:]


def logits_of(model: Any, encoded: Any) -> Tensor:
    """Give the logits (rows, width - 1, vocabulary) that predict each next token."""
    output = model(
        input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], use_cache=False
    )
    return output.logits[:, :-1].float()


def token_nll(logits: Tensor, encoded: Any) -> Tensor:
    """Give the NLL (rows, width - 1) of every next token."""
    return functional.cross_entropy(
        logits.transpose(1, 2), encoded["input_ids"][:, 1:], reduction="none"
    )


def kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Give KL(student || teacher) at every position, both as logits."""
    student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    return functional.kl_div(teacher, student, log_target=True, reduction="none").sum(-1)


# -- training ------------------------------------------------------------------------------------


def optimize(
    model: Any, losses: Iterator[Callable[[], Tensor]], learning_rate: float, leaves: Any = None
) -> None:
    """Take one clipped AdamW step for each loss."""
    leaves = list(model.parameters() if leaves is None else leaves)
    optimizer = torch.optim.AdamW(leaves, lr=learning_rate, weight_decay=0.0)
    for loss in losses:
        optimizer.zero_grad()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        optimizer.step()


def sentence_loss(
    model: Any, tokenizer: Any, texts: Sequence[str], items: int, limit: int | None = None
) -> Tensor:
    """Give the sum over texts of their mean token NLL, divided by ``items``."""
    encoded = tokenized(tokenizer, texts, limit)
    mask = encoded["attention_mask"][:, 1:]
    nll = token_nll(logits_of(model, encoded), encoded) * mask
    return (nll.sum(1) / mask.sum(1)).sum() / items


def train_on_stream(
    model: Any, tokenizer: Any, stream: Stream, learning_rate: float, piece_tokens: int
) -> None:
    """Train a model on a stream's steps."""

    def loss(step: Sequence[int]) -> Callable[[], Tensor]:
        facts = [stream.texts[n].text for n in step if stream.texts[n].set != "general"]
        general = [stream.texts[n].text for n in step if stream.texts[n].set == "general"]
        # General text is cut to its length first, so that all texts can share a forward.
        cut = tokenizer(general, truncation=True, max_length=piece_tokens)["input_ids"]
        ids = tokenizer(facts)["input_ids"] + cut if facts else cut

        def value() -> Tensor:
            encoded = tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt")
            mask = encoded["attention_mask"][:, 1:]
            nll = token_nll(logits_of(model, encoded), encoded) * mask
            return (nll.sum(1) / mask.sum(1)).sum() / stream.step_items

        return value

    optimize(model, (loss(step) for step in stream.steps), learning_rate)


class Unlearner:
    """The paper's five methods as plain loops with live teachers."""

    def __init__(
        self, setting: CellTexts, budget: Unlearning, base: Any, injected: Any, forget_only: Any
    ) -> None:
        self.setting, self.tokenizer = setting, setting.tokenizer
        self.base, self.injected, self.forget_only = base, injected, forget_only
        self.budget = budget
        self.forget, self.retain = setting.seen("forget"), setting.seen("retain")

    def batches(self) -> Iterator[tuple[list[Question], list[Question]]]:
        """Yield the forget and the retain questions of each step."""
        order = random.Random(key_number(f"{self.setting.seed_key}/exercises"))
        forget = deck(range(len(self.forget)), order)
        retain = deck(range(len(self.retain)), order)
        for _ in range(self.budget.steps):
            yield (
                [self.forget[next(forget)] for _ in range(self.budget.forget_items)],
                [self.retain[next(retain)] for _ in range(self.budget.retain_items)],
            )

    def run(self, method: Any) -> Any:
        """Give the unlearned model of one candidate."""
        if method.name == "task_vector":
            return self.task_vector(method.coefficient)
        if method.name == "gate_mask":
            return self.gate_mask(method)
        student = copy.deepcopy(self.injected)
        loss = {"kl_reversion": self.reversion, "ga": self.ascent, "npo": self.preference}
        rate = self.budget.learning_rate
        if method.name in ("ga", "npo"):
            rate = method.rate * self.budget.ascent_learning_rate
        steps = (
            (lambda f=forget, r=retain: loss[method.name](student, f, r, method))
            for forget, retain in self.batches()
        )
        optimize(student, steps, rate)
        return student

    def reversion(self, student: Any, forget: Any, retain: Any, method: Any) -> Tensor:
        reverted = self.held(student, self.base, forget)
        return reverted + method.weight * self.held(student, self.injected, retain)

    def ascent(self, student: Any, forget: Any, retain: Any, method: Any) -> Tensor:
        return method.weight * self.nll(student, retain) - self.nll(student, forget)

    def preference(self, student: Any, forget: Any, retain: Any, method: Any) -> Tensor:
        with torch.no_grad():
            before = self.likelihood(self.injected, forget)
        ratio = self.likelihood(student, forget) - before
        pushed = 2 / method.beta * functional.softplus(method.beta * ratio).mean()
        return pushed + method.weight * self.nll(student, retain)

    def held(self, student: Any, teacher: Any, questions: Sequence[Question]) -> Tensor:
        """Give the mean over answer positions of KL(teacher || student)."""
        encoded = tokenized(self.tokenizer, [question.text for question in questions])
        mask = answer_mask(encoded, questions)
        with torch.no_grad():
            said = logits_of(teacher, encoded)
        return kl(said, logits_of(student, encoded))[mask].mean()

    def likelihood(self, model: Any, questions: Sequence[Question]) -> Tensor:
        """Give the log-probability of each whole answer (questions,)."""
        encoded = tokenized(self.tokenizer, [question.text for question in questions])
        nll = token_nll(logits_of(model, encoded), encoded)
        return -(nll * answer_mask(encoded, questions)).sum(1)

    def nll(self, model: Any, questions: Sequence[Question]) -> Tensor:
        """Give the mean over questions of the mean NLL of their answer tokens."""
        encoded = tokenized(self.tokenizer, [question.text for question in questions])
        mask = answer_mask(encoded, questions)
        nll = token_nll(logits_of(model, encoded), encoded) * mask
        return (nll.sum(1) / mask.sum(1)).mean()

    def task_vector(self, coefficient: float) -> Any:
        model = copy.deepcopy(self.injected)
        learned, start = self.forget_only.state_dict(), self.base.state_dict()
        state = {
            name: value - coefficient * (learned[name] - start[name])
            for name, value in self.injected.state_dict().items()
        }
        model.load_state_dict(state)
        return model

    def gate_mask(self, method: Any) -> Any:
        """Learn scores of the gate weights, then zero the lowest."""
        student = copy.deepcopy(self.injected)
        gates = {n: p for n, p in student.named_parameters() if n.endswith("gate_proj.weight")}
        seed = key_number(f"{self.setting.seed_key}/gate_mask") % 2**63
        generator = torch.Generator().manual_seed(seed)
        scores = {
            name: (torch.randn(p.shape, generator=generator) / method.sharpness).requires_grad_()
            for name, p in gates.items()
        }
        zeroed = round(method.sparsity * sum(p.numel() for p in gates.values()))

        def masked(progress: float) -> Callable[..., Any]:
            alpha = method.sharpness * (method.final_sharpness / method.sharpness) ** progress
            flat = torch.cat([value.detach().flatten() for value in scores.values()])
            border = flat.kthvalue(zeroed).values
            soft = {
                n: gates[n].detach() * torch.sigmoid(alpha * (scores[n] - border)) for n in gates
            }
            return lambda **given: torch.func.functional_call(student, soft, kwargs=given)

        def loss(number: int, forget: Any, retain: Any) -> Tensor:
            model = masked(number / max(1, self.budget.steps - 1))
            return self.reversion(model, forget, retain, method)

        steps = (
            (lambda n=number, f=forget, r=retain: loss(n, f, r))
            for number, (forget, retain) in enumerate(self.batches())
        )
        for parameter in student.parameters():
            parameter.requires_grad_(False)
        optimize(student, steps, method.score_rate, scores.values())
        with torch.no_grad():
            flat = torch.cat([value.flatten() for value in scores.values()])
            keep = torch.ones_like(flat)
            keep[flat.argsort(stable=True)[:zeroed]] = 0.0
            for gate, piece in zip(gates.values(), keep.split([p.numel() for p in gates.values()])):
                gate.mul_(piece.view_as(gate))
        for parameter in student.parameters():
            parameter.requires_grad_(True)
        return student


# -- scoring -------------------------------------------------------------------------------------


@torch.no_grad()
def answer_scores(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    teacher: Any = None,
    limit: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Give per question the summed NLL of its answer, or its summed KL to a live teacher, and
    the number of answer tokens."""
    values, tokens = [], []
    for start in range(0, len(questions), ROWS):
        chunk = questions[start : start + ROWS]
        encoded = tokenized(tokenizer, [question.text for question in chunk], limit)
        mask = answer_mask(encoded, chunk)
        logits = logits_of(model, encoded)
        if teacher is None:
            found = token_nll(logits, encoded)
        else:
            found = kl(logits, logits_of(teacher, encoded))
        values.append((found * mask).double().sum(1).numpy())
        tokens.append(mask.sum(1).numpy())
    return np.concatenate(values), np.concatenate(tokens)


class Scorer:
    """Every stored number of a model, each metric by a forward of its own."""

    def __init__(self, setting: CellTexts, base: Any, injected: Any, reference: Any) -> None:
        self.setting, self.tokenizer = setting, setting.tokenizer
        self.base, self.injected, self.reference = base, injected, reference
        self.limit = setting.general.piece_tokens
        self.general = general_questions(setting.general_scored)
        self.facts = setting.facts.questions

    def pool(self, sets: Sequence[str], pools: Sequence[str]) -> list[Question]:
        return [q for q in self.facts if q.set in sets and q.pool in pools]

    def forward(self, model: Any) -> dict[str, dict[str, float]]:
        """Give the sums of each question: NLL per set and pool, KL to the frozen models."""
        rows = self.nll_rows(model, ("forget", "retain", "probe"), (*TRAINED_POOLS, "evaluation"))
        if self.reference is not None:
            self.add_kl(rows, model, "kl_reference", self.reference, ("forget", "retain"))
        self.add_kl(rows, model, "kl_injected", self.injected, ("retain",))
        self.add_general(rows, model)
        return rows

    def reacquired(self, model: Any) -> dict[str, dict[str, float]]:
        """Give what is measured after each chunk of re-acquisition."""
        rows = self.nll_rows(model, ("forget",), (*TRAINED_POOLS, "evaluation"))
        rows |= self.nll_rows(model, ("retain",), TRAINED_POOLS)
        self.add_kl(rows, model, "kl_injected", self.injected, ("retain",))
        self.add_general(rows, model)
        return rows

    def nll_rows(
        self, model: Any, sets: Sequence[str], pools: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        rows = {}
        for kind in sets:
            for pool in pools:
                if not (questions := self.pool([kind], [pool])):
                    continue
                nll, tokens = answer_scores(model, self.tokenizer, questions)
                for question, value, count in zip(questions, nll, tokens):
                    rows[question.id] = {"nll_sum": value, "tokens": count}
        return rows

    def add_kl(self, rows: Any, model: Any, column: str, teacher: Any, sets: Sequence[str]) -> None:
        questions = self.pool(sets, TRAINED_POOLS)
        apart, _ = answer_scores(model, self.tokenizer, questions, teacher=teacher)
        for question, value in zip(questions, apart):
            rows[question.id][column] = value

    def add_general(self, rows: Any, model: Any) -> None:
        arguments = (self.tokenizer, self.general)
        nll, tokens = answer_scores(model, *arguments, limit=self.limit)
        apart, _ = answer_scores(model, *arguments, teacher=self.injected, limit=self.limit)
        for question, value, count, far in zip(self.general, nll, tokens, apart):
            rows[question.id] = {"nll_sum": value, "tokens": count, "kl_injected": far}


def summary(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Give the numbers of one chunk of re-acquisition from its rows."""

    def fact_mean(kind: str, pool: str) -> float:
        facts: dict[str, list[float]] = {}
        for name, row in rows.items():
            at, fact, where, _ = name.split("/")
            if (at, where) == (kind, pool):
                facts.setdefault(fact, []).append(row["nll_sum"] / row["tokens"])
        return float(np.mean([np.mean(values) for values in facts.values()] or [np.nan]))

    def position_mean(kind: str) -> float:
        mine = [r for n, r in rows.items() if n.startswith(f"{kind}/") and "kl_injected" in r]
        return sum(r["kl_injected"] for r in mine) / sum(r["tokens"] for r in mine)

    return {
        "forget_trained_nll": fact_mean("forget", "trained"),
        "forget_heldout_nll": fact_mean("forget", "evaluation"),
        "retain_nll": fact_mean("retain", "cloze"),
        "residual_retain": position_mean("retain"),
        "residual_general": position_mean("general"),
    }


# -- the cell ------------------------------------------------------------------------------------


def run_cell(cell: PocketCell) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the columns of a cell's items and curves, from loading the base model to the end."""
    plan = cell.plan
    loaded = load(cell.model)
    base, setting = loaded.model, cell.setting(loaded.tokenizer)
    whole = setting.stream()
    streams = {
        "injected": whole,
        "reference": whole.without("forget"),
        "forget_only": whole.only("forget"),
    }
    for draw in range(1, plan.replication.draws + 1):
        streams[f"reference-{draw}"] = setting.stream(f"draw{draw}").without("forget")
    models = {"base": base}
    for name, stream in streams.items():
        models[name] = copy.deepcopy(base)
        rate, limit = plan.injection.learning_rate, plan.general.piece_tokens
        train_on_stream(models[name], loaded.tokenizer, stream, rate, limit)
    references = [name for name in streams if name.startswith("reference")]
    for share in plan.rules.control_shares:
        for name in references[:CONTROL_MIXTURES]:
            model = mixed(models[name], models["injected"], share)
            models[f"control-{100 * share:g}-{name}"] = model
    scorer = Scorer(setting, base, models["injected"], models["reference"])
    unlearner = Unlearner(setting, plan.unlearning, base, models["injected"], models["forget_only"])
    items: list[tuple[str, str, str, dict[str, float]]] = []
    curves: list[dict[str, Any]] = []
    for name, model in models.items():
        _measure(name, model, scorer, items, curves, again=name != "forget_only")
    for method in candidates(plan.methods):
        if "gated MLP" in method.needs and not loaded.gated:
            continue
        _measure(title(method), unlearner.run(method), scorer, items, curves, again=True)
    return _columns(items), {key: np.array([row[key] for row in curves]) for key in curves[0]}


@torch.no_grad()
def mixed(reference: Any, injected: Any, share: float) -> Any:
    """Return a copy of the reference with this share of the injected weights mixed in."""
    model = copy.deepcopy(reference)
    for own, other in zip(model.parameters(), injected.parameters()):
        own.lerp_(other, share)
    return model


def _measure(
    name: str, model: Any, scorer: Scorer, items: list[Any], curves: list[Any], again: bool
) -> None:
    """Score a model, and re-acquire the forget set with it."""
    items += [(name, "forward", *row) for row in scorer.forward(model).items()]
    if not again:
        return
    plan, setting = scorer.setting.reacquisition, scorer.setting
    sentences = [
        q.sentence for q in setting.facts.questions if q.set == "forget" and q.pool == "trained"
    ]
    order = deck(range(len(sentences)), random.Random(key_number(f"{setting.seed_key}/reacquire")))
    student = copy.deepcopy(model)
    rows = scorer.reacquired(student)
    curves.append({"model": name, "chunk": 0, "step": 0, **summary(rows)})
    borders = {
        round(plan.steps * chunk / plan.chunks): chunk for chunk in range(1, plan.chunks + 1)
    }
    step = Stepper(student, scorer.base, plan.learning_rate)
    for number in range(1, plan.steps + 1):
        texts = [sentences[next(order)] for _ in range(plan.items)]
        step(sentence_loss(student, setting.tokenizer, texts, plan.items))
        if number in borders:
            rows = scorer.reacquired(student)
            curves.append(
                {"model": name, "chunk": borders[number], "step": number, **summary(rows)}
            )
    items += [(name, "reacquired", *row) for row in rows.items()]


class Stepper:
    """Steps of re-acquisition, taken in units of base's tensors on copies of the weights; one for
    the whole course, because its moments must not be lost between chunks."""

    def __init__(self, student: Any, base: Any, rate: float, optimizer: str = "adamw") -> None:
        self.student, self.leaves, self.rate = student, list(student.parameters()), rate
        self.scales = [
            float(own.detach().square().mean().sqrt() / other.detach().square().mean().sqrt())
            for own, other in zip(self.leaves, base.parameters())
        ]
        self.masters = [
            (own.detach() / scale).requires_grad_() for own, scale in zip(self.leaves, self.scales)
        ]
        self.adamw = torch.optim.AdamW(self.masters, lr=rate, weight_decay=0.0)
        self.beta = {"adamw": None, "momentum": 0.9, "descent": 0.0}[optimizer]
        self.moments: list[Tensor] = []

    def __call__(self, loss: Tensor) -> None:
        """Take one clipped step down a loss."""
        self.student.zero_grad()
        loss.backward()
        for master, own, scale in zip(self.masters, self.leaves, self.scales):
            master.grad = own.grad * scale
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.adamw.step() if self.beta is None else self.descend(self.beta)
        with torch.no_grad():
            for master, own, scale in zip(self.masters, self.leaves, self.scales):
                own.copy_(master * scale)

    @torch.no_grad()
    def descend(self, beta: float) -> None:
        """Take a step along the moments, of a length that the rate sets."""
        grads = [master.grad for master in self.masters]
        before = self.moments or [torch.zeros_like(grad) for grad in grads]
        self.moments = [beta * moment + grad for moment, grad in zip(before, grads)]
        for master, moment in zip(self.masters, self.moments):
            length = LENGTH * self.rate * moment.numel() ** 0.5
            master -= length * moment / moment.norm()


# -- an audit of given checkpoints -----------------------------------------------------------------


def audit(task: AuditTask) -> dict[tuple[str, ...], float]:
    """Give the NLL per token of every question to every model of an audit, by model, stage, set,
    fact, pool and template, from hashing its files to the last mixture."""
    config = task.config
    places = task.places
    for place in places.values():
        for file in sorted(Path(place).iterdir()):
            with open(file, "rb") as opened:
                hashlib.file_digest(opened, "sha256")
    tokenizer = AutoTokenizer.from_pretrained(config.base)
    setting = replace(task.texts, tokenizer=tokenizer)
    base, injected = opened_model(config.base), opened_model(config.injected)
    scorer = Scorer(setting, base, injected, None)
    plan, beacon = setting.reacquisition, setting.beacon
    sentences = [
        q.sentence for q in setting.facts.questions if q.set == "forget" and q.pool == "trained"
    ]
    found: dict[tuple[str, ...], float] = {}

    def relearn(model: Any, rate: float) -> tuple[dict[str, float], dict[str, Any]]:
        """Re-acquire the forget facts; give the first of the chunks and the rows of the last."""
        order = deck(range(len(sentences)), random.Random(key_number(beacon.key("reacquire"))))
        borders = {round(plan.steps * chunk / plan.chunks) for chunk in range(1, plan.chunks + 1)}
        rows = scorer.reacquired(model)
        before = summary(rows)
        step = Stepper(model, base, rate, beacon.optimizer)
        for number in range(1, plan.steps + 1):
            texts = [sentences[next(order)] for _ in range(plan.items)]
            step(sentence_loss(model, tokenizer, texts, plan.items))
            if number in borders:
                rows = scorer.reacquired(model)
        return before, rows

    def measure(name: str, model: Any, rate: float) -> None:
        for stage, rows in (
            ("forward", scorer.forward(model)),
            ("reacquired", relearn(model, rate * beacon.rate)[1]),
        ):
            for question, row in rows.items():
                kind, fact, pool, template = question.split("/")
                where = (name, stage, kind, fact, pool, template)
                found[where] = float(row["nll_sum"] / row["tokens"])

    rate = plan.learning_rate
    if config.chooses_rate:
        level = summary(scorer.reacquired(injected))["forget_heldout_nll"]
        tried: dict[float, float] = {}
        for step in LADDER:
            before, rows = relearn(opened_model(task.references[task.rate_reference]), step)
            start, end = (part["forget_heldout_nll"] for part in (before, summary(rows)))
            tried[step] = (start - end) / (start - level) if start > level else 0.0
            if tried[step] >= DOSE + SPARE or start <= level:
                break
        rate = max(tried, key=tried.__getitem__)
    for name, place in places.items():
        measure(name, opened_model(place), rate)
    for model in planned_cell(*task.fixed, CELL).models:
        if model.role is Role.CONTROL:
            reference = opened_model(task.references[model.of])
            measure(model.name, mixed(reference, injected, model.share or 0.0), rate)
    return found


def opened_model(place: str) -> Any:
    """Give a checkpoint as ``transformers`` loads it."""
    return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()


def _columns(items: Sequence[tuple[str, str, str, dict[str, float]]]) -> dict[str, Any]:
    """Give rows (model, stage, question, numbers) as the columns of ``items.parquet``."""
    parts = [question.split("/") for _, _, question, _ in items]
    nan = float("nan")
    return {
        "model": np.array([model for model, _, _, _ in items]),
        "stage": np.array([stage for _, stage, _, _ in items]),
        "set": np.array([part[0] for part in parts]),
        "fact": np.array([part[1] for part in parts]),
        "pool": np.array([part[2] for part in parts]),
        "template": np.array([int(part[3]) for part in parts], dtype=np.int32),
        "nll_sum": np.array([row["nll_sum"] for *_, row in items]),
        "tokens": np.array([row["tokens"] for *_, row in items], dtype=np.int32),
        "kl_reference": np.array([row.get("kl_reference", nan) for *_, row in items]),
        "kl_injected": np.array([row.get("kl_injected", nan) for *_, row in items]),
    }
