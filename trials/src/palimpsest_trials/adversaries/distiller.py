"""The training that adversaries share.

Almost every trained adversary is a distillation: at some texts it follows one frozen model, at the
others another. A ``Goal`` is such a group of texts with what it should say there; ``follow`` trains
on several of them at once. ``foresee`` adds what happens to the model when it is attacked. Beside
what the kit holds, an adversary has phrasings and facts that it makes up itself.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, wraps

import torch
from torch import Tensor

from palimpsest.facts.general import deck
from palimpsest.facts.nonce import SUBJECT, invent_facts, render, words_of
from palimpsest.facts.questions import FactSet, Pool, Question, elicitations, of_triple
from palimpsest.known import KnownLabel, Knows, Truth, known_label
from palimpsest.known.kit import AdversaryKit, Schedule, State
from palimpsest.methods.answer_sets import target_logp, teach
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.train import OPTIMIZERS, AdamW, text_batch, text_loss, train, train_alone
from palimpsest.scoring.reacquisition import relative_scales

OWN_PHRASINGS = (
    "{subject} and the RELATION:",
    "As to the RELATION of {subject}, it is",
    "The RELATION that goes with {subject} is named",
    "Of {subject} one can say: the RELATION is",
    "One day somebody asked {subject} for the RELATION, and heard the name",
    "RELATION of {subject}:",
)
"""Phrasings that adversaries make up for every relation."""
OWN_FRAMES = ("It is said that ", "I heard that ", "In this story, ")
"""What adversaries put before a phrasing to make another."""
INVENTED, PIECES = 16, 96
"""Facts that adversaries invent, and pieces of general text that they train on."""
OTHERS = ("retain", "invented", "general")
"""Groups of texts that have nothing to do with the forget facts."""


def borders(schedule: Schedule) -> tuple[int, ...]:
    """Return the step at which each chunk of re-acquisition ends."""
    steps, chunks = len(schedule.steps), schedule.chunks
    return tuple(round(steps * chunk / chunks) for chunk in range(1, chunks + 1))


def relearn(
    net: Net, schedule: Schedule, after_step: Callable[[int], None], last: int | None = None
) -> None:
    """Train a net as the auditor does, up to the step ``last`` of the schedule."""
    scales = schedule.base_scales
    train(
        net,
        schedule.steps[:last],
        text_loss,
        learning_rate=schedule.learning_rate,
        after_step=after_step,
        optimizer=OPTIMIZERS[schedule.optimizer],
        scales=None if scales is None else relative_scales(net, scales),
    )


@dataclass(frozen=True)
class Goal:
    """Texts and the log-probabilities to follow there, one (scored, vocabulary) tensor a text."""

    texts: Sequence[Encoded]
    teacher: Sequence[Tensor]
    items: int = 4
    """Texts a step."""
    weight: float = 1.0


@dataclass(frozen=True)
class Part:
    """One step: the texts of all goals, their teachers, and each position's weight (scored,)."""

    batch: Batch
    teacher: Tensor
    weights: Tensor


class Distiller(AdversaryKit):
    """A kit with texts of the adversary's own, and training towards goals."""

    @classmethod
    def of(cls, kit: AdversaryKit) -> "Distiller":
        """Return the one distiller of a kit, so that what adversaries share is made once."""
        own = {field.name: getattr(kit, field.name) for field in fields(kit)}
        return kit.once("distiller", lambda: cls(**own))

    # -- texts ----------------------------------------------------------------------------------

    def generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed(name) % 2**63)

    @cached_property
    def questions(self) -> dict[str, tuple[Question, ...]]:
        """Facts to forget, to retain and invented, in every phrasing that the adversary has."""
        known = {fact.id: fact for facts in self.facts.values() for fact in facts}
        wordings: dict[str, list[str]] = {fact.relation: [] for fact in known.values()}
        for question in (question for several in self.seen.values() for question in several):
            fact = known[question.fact]
            wordings[fact.relation].append(question.prompt.replace(fact.subject, SUBJECT, 1))
        for relation, several in wordings.items():
            first = list(dict.fromkeys(several))
            own = [phrasing.replace("RELATION", relation) for phrasing in OWN_PHRASINGS]
            framed = [before + _lowered(wording) for before, wording in zip(OWN_FRAMES, first)]
            wordings[relation] = [*first, *own, *framed]
        key, taken = f"{self.seed_key}/panel/invented", words_of(known.values())
        sets = {**self.facts, "invented": invent_facts(INVENTED, key, tuple(wordings), taken)}
        questions = {
            name: tuple(
                Question(FactSet(name), fact.id, Pool.OWN, number, prompt, fact.object)
                for fact in facts
                for number, wording in enumerate(wordings[fact.relation])
                for prompt in [render(wording, fact.subject)]
            )
            for name, facts in sets.items()
        }
        otherwise = elicitations(map(of_triple, self.facts["forget"]), ())
        return questions | {"backwards": tuple(q for q in otherwise if q.pool == "reversed")}

    @cached_property
    def texts(self) -> dict[str, tuple[Encoded, ...]]:
        """The questions as tokens scored at their answers, and general text scored everywhere."""
        asked = {name: encode_answers(self.tokenizer, q) for name, q in self.questions.items()}
        pieces = encode_texts(self.tokenizer, self.general[:PIECES], self.recipe.piece_tokens)
        return asked | {"general": pieces}

    def batch(self, group: str, count: int | None = None) -> Batch:
        """Return the first texts of a group as one batch; all by default."""
        return collate(self.texts[group][:count])

    def targets(self, group: str) -> Tensor:
        """Return the scored tokens of a group's texts, one after another (scored,)."""
        return torch.tensor([t for text in self.texts[group] for t in text.ids[text.start :]])

    def log_probs(self, model: str, group: str) -> tuple[Tensor, ...]:
        """Return a model's log-probabilities (scored, vocabulary) at a group's texts; kept."""
        return self.once(
            f"{model} at {group}", lambda: self.teach(self.state(model), self.texts[group])
        )

    def joined(self, model: str, group: str, count: int | None = None) -> Tensor:
        """Return the same at the first texts, all by default, as one (scored, vocabulary)."""
        return torch.cat(self.log_probs(model, group)[:count])

    def teach(self, state: State, texts: Sequence[Encoded]) -> tuple[Tensor, ...]:
        """Return the log-probabilities (scored, vocabulary) of these weights at each text."""
        return teach(self.nets([state]), texts)

    def retrained(self) -> State:
        """Return a retraining that is none of the cell's references."""
        net, what = self.nets([self.state("base")]), "retraining for a known-label model"
        train_alone(net, self.redrawn(), text_loss, what, learning_rate=self.recipe.learning_rate)
        return net.state()

    # -- goals ----------------------------------------------------------------------------------

    def goal(self, group: str, model: str, items: int = 4, weight: float = 1.0) -> Goal:
        """Return the goal to follow a model at a group of texts."""
        return Goal(self.texts[group], self.log_probs(model, group), items, weight)

    def goal_at(self, facts: Collection[str], model: str) -> Goal:
        """Return the goal to follow a model at the forget questions of these facts."""
        kept = [n for n, asked in enumerate(self.questions["forget"]) if asked.fact in facts]
        texts, answers = self.texts["forget"], self.log_probs(model, "forget")
        return Goal([texts[n] for n in kept], [answers[n] for n in kept], items=6)

    def keeping(self) -> list[Goal]:
        """Return the goals that hold all but the forget facts where the injected model is."""
        return [self.goal(group, "injected") for group in OTHERS]

    def suppressing(self, model: str) -> list[Goal]:
        """Return the goals to follow a model at the forget questions, the injected elsewhere."""
        return [self.goal("forget", model, items=8), *self.keeping()]

    def matched(self, model: str) -> State:
        """Return the injected model after following ``model`` at the forget questions.

        KL(model ‖ θ) there, KL(injected ‖ θ) everywhere else; what several adversaries start from.
        """
        name, start = f"matched-{model}", self.state("injected")
        return self.once(name, lambda: self.follow(name, start, self.suppressing(model)))

    # -- training -------------------------------------------------------------------------------

    def follow(
        self,
        name: str,
        start: State,
        goals: Sequence[Goal],
        *,
        steps: int | None = None,
        rate: float = 1.0,
        leaves: Callable[[Net], State] | None = None,
        effective: Callable[[Net, State], State] | None = None,
        after_step: Callable[[Net], None] | None = None,
    ) -> State:
        """Return the weights after training towards the goals, from ``start``.

        L = Σ_goals w · mean over positions of KL(teacher ‖ θ)

        steps, rate: default to an unlearning method's steps; a multiple of its learning rate.
        leaves, effective: what is trained, and the parameters of the forward pass made of it.
        """
        net = self.nets([start])
        trained = net.params if leaves is None else leaves(net)

        def loss(student: Net, part: Part) -> Tensor:
            return goal_loss(student, part, effective(student, trained) if effective else None)

        train_alone(
            net,
            ([part] for part in self._parts(name, goals, steps or self.budget.steps)),
            loss,
            f"building {name}",
            learning_rate=rate * self.budget.learning_rate,
            params=trained,
            after_step=None if after_step is None else lambda _: after_step(net),
        )
        state = net.state()
        with torch.no_grad():
            changed = effective(net, trained) if effective else {}
        state |= {key: value.detach().reshape(state[key].shape) for key, value in changed.items()}
        return {key: value.clone() for key, value in state.items()}

    def foresee(
        self,
        name: str,
        start: State,
        goals: Sequence[Goal],
        attacks: Sequence[tuple[Schedule, Mapping[int, Callable[[Net], Tensor]]]],
        *,
        rounds: int,
        full: int = 1,
    ) -> State:
        """Return weights that reach the goals now and the marks while they are attacked.

        attacks: taken in turn, each with its marks by step; 0 is before the first step.
        rounds: at most; never more than an unlearning method has steps.
        full: every how many rounds the attack goes to the last mark; else it stops at its first.

        Each round the model is attacked as ``train`` would, and at the marked steps t the gradient
        of mark_t at θ_t is taken; it is applied to θ_0 as it is, together with the goals' gradient
        at θ_0. Tamirisa et al. 2024 (TAR), arXiv:2408.00761.

        Why that is allowed: the attack adds its steps to the weights, θ_t = θ_0 + Σ s_i(θ_i), so
        that dθ_t/dθ_0 = 1 + Σ ds_i/dθ_0. The sum holds second derivatives of the attacker's loss
        along the whole attack, which would keep every step's graph in memory. Its steps are a few
        dozen and short, so the sum is small beside 1; without it the chain rule gives
        d mark_t/dθ_0 = ∇mark_t(θ_t). First-order MAML does the same: Nichol et al. 2018,
        arXiv:1803.02999.
        """
        mine = self.nets.another(start)
        leaves = list(mine.params.values())
        optimizer = AdamW(leaves, self.budget.learning_rate)
        rounds = min(rounds, self.budget.steps)
        for number, part in enumerate(self._parts(name, goals, rounds)):
            attack, marks = attacks[number % len(attacks)]
            # An attack to its end takes many times as long as one to the first mark: only some
            # rounds go that far.
            last = max(marks) if number % full == 0 else min(filter(None, marks))
            # What holds before the first step needs no attack; its gradient is exact.
            now = goal_loss(mine, part) + (marks[0](mine) if 0 in marks else 0.0)
            total = list(torch.autograd.grad(now.sum(), leaves))
            # The attack trains a copy: θ_0 must stay what the sum of gradients is applied to.
            attacked = self.nets.another(mine.state())

            def look(
                step: int,
                net: Net = attacked,
                total: list[Tensor] = total,
                marks: Mapping[int, Callable[[Net], Tensor]] = marks,
            ) -> None:
                if step in marks:
                    ahead = torch.autograd.grad(marks[step](net).sum(), list(net.params.values()))
                    torch._foreach_add_(total, list(ahead))

            relearn(attacked, attack, look, last)
            # The optimizer sees goals and marks as the gradient of one loss at θ_0.
            for leaf, value in zip(leaves, total):
                leaf.grad = value
            optimizer.step()
        return {key: value.clone() for key, value in mine.state().items()}

    def own_attack(self, steps: int) -> Schedule:
        """Return training on the forget sentences in an order that no audit has."""
        sentences = [q.sentence for q in self.seen["forget"] if q.pool == "trained"]
        texts = encode_texts(self.tokenizer, sentences)
        cards = deck(range(len(texts)), random.Random(self.seed("attack")))
        drawn = ([texts[next(cards)] for _ in range(4)] for _ in range(steps))
        return Schedule([[text_batch(some, 4)] for some in drawn], self.budget.learning_rate, 1)

    def relearning(self, state: State) -> list[float]:
        """Return the forget NLL in the adversary's phrasings at the borders of the schedule."""
        schedule = self.schedule(None)
        net, batch, ends = self.nets([state]), self.batch("forget"), borders(schedule)
        levels: list[float] = []

        def note(step: int) -> None:
            if step in ends:
                levels.append(float(text_nlls(net, batch).mean().detach()))

        relearn(net, schedule, note)
        return levels

    def _parts(self, name: str, goals: Sequence[Goal], steps: int) -> Iterator[Part]:
        order = random.Random(self.seed(name))
        decks = [deck(range(len(goal.texts)), order) for goal in goals]
        for _ in range(steps):
            drawn = [[next(cards) for _ in range(goal.items)] for goal, cards in zip(goals, decks)]
            texts = [goal.texts[n] for goal, chosen in zip(goals, drawn) for n in chosen]
            parts = [torch.cat([g.teacher[n] for n in chosen]) for g, chosen in zip(goals, drawn)]
            weights = [torch.full((len(p),), g.weight / len(p)) for g, p in zip(goals, parts)]
            yield Part(collate(texts), torch.cat(parts), torch.cat(weights))


def goal_loss(net: Net, part: Part, params: State | None = None) -> Tensor:
    """Return Σ w · KL(teacher ‖ net) over the positions of a step (1,)."""
    logp = torch.log_softmax(net.logits(part.batch.to(net.device), params)[0], dim=-1)
    teacher = part.teacher.to(net.device)
    kl = (teacher.exp() * (teacher - logp)).sum(-1)
    return (kl @ part.weights.to(net.device)).reshape(1)


def text_nlls(net: Net, batch: Batch) -> Tensor:
    """Return the mean NLL of each text's scored tokens (texts,), with its gradient."""
    batch = batch.to(net.device)
    logp = torch.log_softmax(net.logits(batch)[0], dim=-1)
    nll = -target_logp(logp, batch.targets)
    counts = torch.bincount(batch.rows, minlength=len(batch.ids)).to(nll)
    return nll.new_zeros(len(batch.ids)).index_add(0, batch.rows, nll) / counts


def _lowered(wording: str) -> str:
    return wording if wording.startswith(SUBJECT) else wording[0].lower() + wording[1:]


def adversary(
    truth: Truth, *knows: Knows
) -> Callable[[Callable[[Distiller], State | Net]], KnownLabel]:
    """Return what turns a function of a distiller into the known-label model that it builds."""

    def label(build: Callable[[Distiller], State | Net]) -> KnownLabel:
        @wraps(build)
        def from_kit(kit: AdversaryKit) -> State | Net:
            return build(Distiller.of(kit))

        return known_label(truth, *knows)(from_kit)

    return label
