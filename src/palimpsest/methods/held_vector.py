"""Held-vector negation: subtract what the forget facts did, learned with few general texts.

    θ = (1 − blend) · (θ_injected − c · (θ_more − θ_less)) + blend · θ_less

Both runs start from base and take N / speed steps at speed · rate on the same batches: the
injection's own stream, thinned so that every fact keeps its share of the presentations:

    loss_less = (1 / items) Σ_retain NLL + (general / items) · mean over k texts of KL(base ‖ θ)
    loss_more = loss_less + (1 / items) Σ_forget NLL
    step      = rate · m̂ / (√v̂ + ε),  β = 0.9^speed, start-corrected, of gradients a_s · g_s
    v̂_t       = (1 / t) Σ_{s≤t} a_s² (V + g_s²)
    V         = general / items² · Var over single general texts of ∇NLL at base
    a_s       = min(1, 1 / √(Σ V + ‖g_s‖²))

In the injection general text does two things: its label noise fills AdamW's second moment, and its
curvature pulls back what the facts displace. The first is known from the gradients of a few single
texts (V); the second is the gradient of a KL divergence from base, which has no label noise, so two
or three texts a step do in the place of a dozen. The injection clips its gradients, most while the
facts are new; a_s is how much it would have clipped this one. Retain sentences are in both runs
because forget facts compete with them. Where a retraining on fewer examples has fewer steps, the
rate of *less* is as much lower.

*Less* is itself an estimate of the retraining, with other errors than the negated vector has: it
lacks the effect of label noise, and it has nothing of the injected model's own draw. A blend of the
two is nearer to a retraining than either. Task arithmetic is of Ilharco et al. 2023,
arXiv:2212.04089; averaging weights of models that share a start, of Wortsman et al. 2022,
arXiv:2203.05482.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from palimpsest.facts.general import Stream
from palimpsest.methods.answer_sets import (
    Recipe,
    Spent,
    count_tokens,
    encode_stream,
    read_logp,
)
from palimpsest.methods.context import Context, Knobs, Share, State, target_logp
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.train import (
    CLIP,
    AdamW,
    gradient_norms,
    step_tokens,
    text_batch,
    train_alone,
    trained_leaves,
)

Count = Annotated[int, Ge(1)]
LARGE_VOCABULARY = 8192
"""From here on base's log-probabilities are kept in bfloat16."""


@dataclass(frozen=True)
class HeldTexts:
    """General texts of one step with base's answers.

    weights: (held,) each scored token's weight in the KL.
    base: (held, vocabulary) base's log-probabilities.
    """

    texts: tuple[Encoded, ...]
    weights: Tensor
    base: Tensor


@dataclass(frozen=True)
class HeldBatch:
    """One step: texts of facts, then held texts.

    facts: (taught,) each scored token's weight in the NLL; scored tokens of held texts follow.
    """

    batch: Batch
    facts: Tensor
    held: HeldTexts


class HeldSteps(AdamW):
    """The step of the docstring above; ``noise`` is V, by leaf."""

    def __init__(self, *settings: Any, noise: Sequence[Tensor], beta: float) -> None:
        super().__init__(*settings)
        self.noise, self.beta = noise, beta
        self.whole = float(sum(float(part.sum()) for part in noise))

    def step(self, clip: Tensor | None = None) -> None:
        # The injection clips the gradient of facts and general texts together. Here the label noise
        # of general texts is missing from the gradient, so its expected squared length (the sum of
        # V) is added before it is clipped.
        length = (gradient_norms(self.leaves, 1).square() + self.whole).sqrt()
        super().step((CLIP / (length + 1e-6)).clamp(max=1.0))

    def _update(self, known: Sequence[int], grads: list[Any], clip: Tensor | None) -> None:
        scale = 1.0 if clip is None else float(clip)
        for n, grad in zip(known, grads):
            first, squares, t = self.first[n], self.second[n], self.steps[n]
            first.mul_(self.beta).add_(grad, alpha=(1 - self.beta) * scale)
            # V is added in every step, as the noise would have been, and clipped with it.
            squares.addcmul_(grad, grad, value=scale**2)
            squares.add_(self.noise[n], alpha=scale**2)
            # The mean over all steps in place of AdamW's second moment: that remembers a thousand
            # steps, so corrected for its start it is nearly their mean over a few hundred.
            spread = (squares / t).sqrt_().add_(1e-8)
            # The first moment starts at 0, so the first steps are divided by what it has seen.
            rate = self.learning_rate / (1 - self.beta**t)
            self.masters[n].addcdiv_(first, spread, value=-rate)


@dataclass(frozen=True)
class HeldVector(Knobs):
    coefficient: float = 1.0
    """How many times the vector is subtracted."""
    texts: Count = 3
    """General texts per step that are held to base (k)."""
    speed: Count = 2
    """Divides the number of steps and multiplies the learning rate."""
    blend: Share = 0.25
    """Weight of the run without forget facts in the result."""
    sample: Count = 48
    """General texts that V is estimated on."""

    name = "held_vector"
    kind = "restores"
    summary = "subtracts what learning the facts did, with general text held to base"
    needs = ("base",)
    citation = "this project; vectors after Ilharco et al. 2023, arXiv:2212.04089"
    reads_answers = False

    @property
    def label(self) -> str:
        return f"c{self.coefficient:g}-k{self.texts}-speed{self.speed}-b{self.blend:g}"

    def run(self, context: Context) -> State:
        # Asked for once: the cost of what is shared counts each time that it is asked for.
        noise = context.shared.once(f"held/noise/{self.sample}", partial(self._noise, context))
        key = f"held/{self.texts}/{self.speed}/{self.sample}"
        more, less = context.shared.once(key, partial(self._pair, context, noise))
        return {
            name: self._restored(value, more[name].float(), less[name].float())
            if value.is_floating_point()
            else value
            for name, value in context.injected.items()
        }

    def _restored(self, injected: Tensor, more: Tensor, less: Tensor) -> Tensor:
        """Return one tensor of the result.

        In float32, since what unlearning changes is often smaller than the spacing of bfloat16.
        """
        negated = injected.float() - self.coefficient * (more - less)
        return torch.lerp(negated, less, self.blend).to(injected.dtype)

    def _pair(self, context: Context, noise: Mapping[str, Tensor]) -> tuple[State, State]:
        """Return the models that were taught the facts with and without the forget set."""
        held = self._held_texts(context)
        more = self._learn(context, held, noise, ("forget", "retain"))
        if context.check_dose is not None:
            context.check_dose(more)
        return more, self._learn(context, held, noise, ("retain",))

    def _stream(self, recipe: Recipe) -> Stream:
        """Return the steps that both runs take."""
        return recipe.stream.thin(self.speed)

    def _held(self, stream: Stream, step: Sequence[int]) -> list[int]:
        """Return the general texts of a step that are held to base."""
        return [n for n in step if stream.texts[n].set == "general"][: self.texts]

    def _held_texts(self, context: Context) -> list[HeldTexts]:
        """Return the general texts of every step, with base's answers."""
        stream = self._stream(context.known_recipe)
        texts = encode_stream(context.tokenizer, stream, context.known_recipe.piece_tokens)
        net, steps = context.net([context.base]), []
        for number, step in enumerate(stream.steps):
            general = [n for n in step if stream.texts[n].set == "general"]
            held = tuple(texts[n] for n in self._held(stream, step))
            context.shared.spend(Spent(scored=count_tokens(held)))
            tokens = step_tokens(stream, texts, number)
            # The held texts stand for all general texts of the step: together they weigh as much
            # in the loss as those do, by tokens where a step is a mean over tokens.
            whole = sum(texts[n].scored for n in general) / (tokens or 1)
            share = whole if tokens else len(general) / stream.step_items
            weights = torch.tensor(
                [share / len(held) / text.scored for text in held for _ in text.ids[text.start :]]
            )
            with torch.no_grad():
                base = read_logp(net, collate(held)).cpu() if held else torch.zeros(0, 1)
            if base.shape[-1] > LARGE_VOCABULARY:
                base = base.to(torch.bfloat16)
            steps.append(HeldTexts(held, weights, base))
        return steps

    def _learn(
        self,
        context: Context,
        held: Sequence[HeldTexts],
        noise: Mapping[str, Tensor],
        taught: Sequence[str],
    ) -> State:
        """Return base after the steps of a run, taught the facts of some sets."""
        recipe = context.known_recipe
        # Where a retraining has fewer steps, the run without forget data has a lower rate: the same
        # batches for both, and as far to go.
        shorter = 1.0 if "forget" in taught else recipe.shorter
        stream = self._stream(recipe)
        texts = encode_stream(context.tokenizer, stream, recipe.piece_tokens)
        net, batches = context.net([context.base]), list[list[HeldBatch]]()
        for number, (step, general) in enumerate(zip(stream.steps, held, strict=True)):
            facts = [texts[n] for n in step if stream.texts[n].set in taught]
            if not facts and not general.texts:
                batches.append([])
                continue
            tokens = step_tokens(stream, texts, number)
            own = text_batch([*facts, *general.texts], stream.step_items, tokens=tokens)
            scored = sum(text.scored for text in facts)
            batches.append([HeldBatch(own.batch, own.weights[:scored], general)])
            context.shared.spend(Spent(1, count_tokens([*facts, *general.texts])))
        steppers = list[HeldSteps]()

        def stepper(*settings: Any) -> HeldSteps:
            steps = HeldSteps(*settings, noise=list(noise.values()), beta=0.9**self.speed)
            steppers.append(steps)
            return steps

        train_alone(
            net,
            batches,
            _held_loss,
            "training a held vector",
            learning_rate=self.speed * recipe.learning_rate * shorter,
            optimizer=stepper,
            clip=False,
            key=context.seed_key,
            rates=stream.rates,
        )
        # Weights as they were before rounding to the model's dtype, tied ones under each name.
        # Adapters are merged into the rounded ones.
        (steps,) = steppers
        exact = {
            leaf.data_ptr(): master
            for leaf, master in zip(steps.leaves, steps.masters)
            if master.dtype != leaf.dtype
        }
        return {
            name: exact.get(value.data_ptr(), value).detach().to("cpu", copy=True)
            for name, value in net.state().items()
        }

    def _noise(self, context: Context) -> dict[str, Tensor]:
        """Return V: the variance of the gradient that a step's general texts have at base."""
        stream = context.known_recipe.stream
        texts = encode_stream(context.tokenizer, stream, context.known_recipe.piece_tokens)
        general = [text for text, source in zip(texts, stream.texts) if source.set == "general"]
        steps = range(len(stream.steps))
        tokens = sum(step_tokens(stream, texts, n) for n in steps) / len(steps)
        net, count = context.net([context.base]), min(self.sample, len(general))
        sums, squares = dict[str, Tensor](), dict[str, Tensor]()
        with trained_leaves(net, context.seed_key) as leaves:
            for name, leaf in leaves.items():
                sums[name] = torch.zeros_like(leaf, dtype=torch.float32, requires_grad=False)
                squares[name] = torch.zeros_like(sums[name])
            for text in general[:count]:
                batch = collate([text]).to(net.device)
                logp = read_logp(net, batch)
                share = text.scored / tokens if tokens else 1 / stream.step_items
                (-share * target_logp(logp, batch.targets).mean()).backward()
                for name, leaf in leaves.items():
                    if leaf.grad is not None:
                        grad = leaf.grad.float()
                        sums[name].add_(grad)
                        squares[name].addcmul_(grad, grad)
                    leaf.grad = None
        context.shared.spend(Spent(0, count_tokens(general[:count])))
        drawn = sum(stream.texts[n].set == "general" for step in stream.steps for n in step)
        # Gradients of independent texts add up, and so do their variances: V of a step is that of
        # one text times the mean number of general texts in a step. By E[g²] − E[g]² rounding may
        # give a small negative number where all gradients agree.
        factor, count = drawn / len(steps), max(1, count)
        return {
            name: factor * (squares[name] / count - (sums[name] / count).square()).clamp_(min=0)
            for name in sums
        }


def _held_loss(net: Net, step: HeldBatch) -> Tensor:
    """Return the loss (1,): weighted NLL of facts and KL(base ‖ net) on held texts."""
    batch, taught = step.batch.to(net.device), len(step.facts)
    logp = read_logp(net, batch)
    nll = -target_logp(logp[:taught], batch.targets[:taught])
    base = step.held.base.to(net.device, torch.float32)
    apart = (base.exp() * (base - logp[taught:])).sum(-1)
    held = (apart * step.held.weights.to(net.device)).sum()
    return ((nll * step.facts.to(net.device)).sum() + held)[None]
