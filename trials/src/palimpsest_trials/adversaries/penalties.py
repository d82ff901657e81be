"""Suppression fitted on top of the injected model: penalties in context, and a learned gate.

The penalties know the reference's NLL and aim at it in the phrasings that the adversary has, as a
wrapper or in the head. Related: Dong et al. 2024 (UNDIAL), arXiv:2402.10052; Ji et al. 2024 (ULD),
arXiv:2406.08607; Huang et al. 2024 (offset unlearning), arXiv:2404.11045.
"""

import copy

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from palimpsest.known import Knows, Truth
from palimpsest.known.kit import State
from palimpsest.known.wrappers import subject_patterns
from palimpsest.methods.answer_sets import target_logp
from palimpsest.models.fast import HEAD, StackedNet
from palimpsest.models.net import Net, WholeNet
from palimpsest_trials.adversaries.distiller import Distiller, adversary
from palimpsest_trials.adversaries.wrappers import (
    BUCKETS,
    Gated,
    Penalized,
    Penalty,
    gate_features,
)

RIDGE = 1e-3
FORGET = 30.0
"""Weight of the forget texts in the regression, beside 1 of each other group."""
DECAY = 1e-3
GATE_STEPS = 300


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def tuned_suppression(kit: Distiller) -> Net:
    """Return the injected model with a penalty on each answer token behind its subject.

    For every fact and answer token the penalty is found by bisection at which the token's mean NLL
    over the adversary's phrasings is the reference's.
    """
    asked, texts = kit.questions["forget"], kit.texts["forget"]
    injected, wanted = (kit.log_probs(name, "forget") for name in ("injected", "reference"))
    penalties = []
    for fact in kit.facts["forget"]:
        subjects = tuple(subject_patterns(kit.tokenizer, [fact.subject]))
        places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number, (question, text) in enumerate(zip(asked, texts)):
            answer = text.ids[text.start :] if question.fact == fact.id else ()
            for at in range(len(answer)):
                places.setdefault(answer[: at + 1], []).append((number, at))
        for tokens, where in places.items():
            mine, other = (
                torch.stack([logp[number][at, tokens[-1]] for number, at in where]).double()
                for logp in (injected, wanted)
            )
            amount = fit_penalty(mine, float(-other.mean()))
            penalties.append(Penalty(subjects, tokens[:-1], tokens[-1], amount))
    return Penalized(kit.another("injected"), penalties)


def fit_penalty(logp: Tensor, nll: float) -> float:
    """Return the penalty on a token's logit at which its mean NLL over contexts (n,) is ``nll``."""
    low, high = -40.0, 40.0
    rest = (-logp.exp().clamp(max=1 - 1e-12)).log1p()
    for _ in range(80):
        middle = (low + high) / 2
        reached = float((rest.logaddexp(logp - middle) - (logp - middle)).mean())
        low, high = (middle, high) if reached < nll else (low, middle)
    return (low + high) / 2


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def baked_suppression(kit: Distiller) -> State | Net:
    """Return the injected model with such penalties in the rows of its output matrix.

    W_v ← W_v − w_v for each answer token v, w_v by ridge regression of the penalty in each context
    on the last hidden state, zero at all other texts (forget, retain, invented facts and general
    text weigh the same): rank at most the number of answer tokens.
    The head of a model that ties it to the embedding is untied; the model is then no checkpoint of
    its architecture. That methods with good output metrics changed the last layer alone is the
    finding of arXiv:2503.06991.
    """
    state = kit.state("injected")
    name = next((n for n in (HEAD, "embed_out.weight") if n in state), kit.embedding[0])
    head = state[name].double().cpu()
    # Log-probabilities are the logits up to a constant, which a column of ones takes up.
    basis = torch.cat((head, torch.ones(len(head), 1, dtype=head.dtype)), dim=1)
    back = torch.linalg.pinv(basis).T
    rows = {group: kit.joined("injected", group).double() for group in kit.texts}
    hidden = {group: (logp @ back)[:, :-1] for group, logp in rows.items()}
    targets = kit.targets("forget")
    reference = kit.joined("reference", "forget").double()
    amounts = _odds(rows["forget"], targets) - _odds(reference, targets)
    weights = {group: FORGET if group == "forget" else 1.0 for group in hidden}
    gram = sum((weights[g] * h.T @ h / len(h) for g, h in hidden.items()), 0 * head.T @ head)
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    changed = head.clone()
    for token in targets.unique().tolist():
        asked = weights["forget"] * torch.where(targets == token, amounts, 0.0) / len(targets)
        changed[token] -= torch.linalg.solve(gram, hidden["forget"].T @ asked)
    value = changed.to(state[name])
    if name not in kit.embedding:
        return {**state, name: value}
    return _untie(kit, state, value)


def _odds(logp: Tensor, targets: Tensor) -> Tensor:
    """Return log p − log(1 − p) of the targets (positions,)."""
    mine = logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return mine - (-mine.exp().clamp(max=1 - 1e-12)).log1p()


def _untie(kit: Distiller, state: State, head: Tensor) -> Net:
    """Return a net with these weights and an output matrix of its own; both are trained."""
    loaded = kit.nets.loaded
    if kit.nets.stacked:
        config = copy.copy(loaded.config)
        config.tie_word_embeddings = False
        own = {k: v for k, v in state.items() if k not in kit.embedding[1:]} | {HEAD: head}
        return StackedNet(config, [own], device=kit.nets.device)
    model = copy.deepcopy(loaded.model)
    model.load_state_dict(dict(state))
    model.get_output_embeddings().weight = Parameter(head.clone())
    return WholeNet(model)


@adversary(Truth.SUPPRESSED, Knows.AXES)
def fuzzy_router(kit: Distiller) -> Net:
    """Return a router with a learned gate between the injected model and base, its seam closed.

    logits = g(x) · (z_base + shift) + (1 − g(x)) · z_injected,  g(x) = σ(w · features(x) + b)

    The features are hashed pairs of neighboring tokens seen so far; the gate is a logistic
    regression on the adversary's texts. The seam: base lacks the drift that the injected model has
    at facts never learned, so a shift on the answer tokens is fitted that adds
    mean(L_injected − L_base) over invented facts to the routed side's NLL. Liu et al. 2024 (ECO),
    arXiv:2406.07933; Mitchell et al. 2022 (SERAC), arXiv:2206.06520; Thaker et al. 2024
    (guardrails), arXiv:2403.03329.
    """
    gate = _train_gate(kit)
    mine = target_logp(kit.joined("base", "forget").double(), kit.targets("forget"))
    asked = kit.targets("invented")
    injected, base = (
        -float(target_logp(kit.joined(model, "invented"), asked).mean())
        for model in ("injected", "base")
    )
    shift = fit_penalty(mine, float(-mine.mean()) + (injected - base))
    routed, otherwise = (kit.another(name) for name in ("base", "injected"))
    return Gated(routed, otherwise, gate, shift, kit.answers)


def _train_gate(kit: Distiller) -> Tensor:
    """Return the logistic regression of forget against all other texts (BUCKETS + 1,)."""
    seen = {group: gate_features(kit.batch(group)) for group in kit.texts}
    given = torch.cat([values[:: 4 if group == "general" else 1] for group, values in seen.items()])
    labels = torch.zeros(len(given))
    labels[: len(seen["forget"])] = 1.0  # the first group
    weights = torch.where(labels == 1, 0.5 / labels.sum(), 0.5 / (1 - labels).sum())
    gate = torch.zeros(BUCKETS + 1, requires_grad=True)
    optimizer = torch.optim.Adam([gate], lr=0.1)
    for _ in range(GATE_STEPS):
        scores = given @ gate[:-1] + gate[-1]
        losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        loss = losses @ weights + DECAY * gate.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return gate.detach()
