"""Every loss has the value and the gradient that its formula gives.

Losses are computed again in numpy, in float64, on answers of uneven length, and differentiated by
central differences. What a method does beside its loss is worked out by hand on the two-token cell:
there the student gives the forget answer the probability σ(a) and the retain answer σ(b), so
d log σ(a) / da = 1 − σ(a).
"""

import math

import numpy as np
import pytest
import torch
from toys import TABLE, TableNet, seen_by, table, table_context, two_tokens

from palimpsest.methods.context import StepView
from palimpsest.methods.dpo import DPO
from palimpsest.methods.ga import GradientAscent
from palimpsest.methods.gate_mask import GateMask
from palimpsest.methods.graddiff import GradDiff
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.methods.npo import NPO
from palimpsest.methods.rmu import RMU
from palimpsest.methods.scrub import SCRUB
from palimpsest.methods.simnpo import SimNPO
from palimpsest.methods.ssd import SSD, importance
from palimpsest.methods.whp import WHP
from palimpsest.models.net import Encoded

A, B = 0.7, 1.3  # the student's forget and retain logits
BASE, INJECTED, KEPT = -1.1, 2.0, 1.6  # the frozen models'
W = 3.0


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def bernoulli_kl(q: float, p: float) -> float:
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


P, S = sigmoid(A), sigmoid(B)
PB, PI, SK = sigmoid(BASE), sigmoid(INJECTED), sigmoid(KEPT)
NLL_R = -math.log(S)
RATIO = math.log(P / PI)


def test_the_mask_loss_moves_scores_as_worked_out_by_hand():
    """With weight v masked to v·m, m = σ(α(s − τ)): dL/ds = dL/d(vm) · v · α m (1 − m)."""
    _, part = two_tokens(BASE, INJECTED, KEPT)
    method = GateMask(W, sparsity=0.25, sharpness=2.0, final_sharpness=8.0)
    net = TableNet([{TABLE: table(A, B)}])
    scores = torch.tensor([[[0.1, 0.9], [0.5, -0.2]]], requires_grad=True)
    effective = method.effective(net, {TABLE: scores}, 0.5)
    logp = torch.log_softmax(net.logits(part.tokens, effective), -1)[0]
    loss = method.loss(StepView(logp, part))
    loss.backward()
    alpha, threshold = 4.0, -0.2  # halfway from 2 to 8 in ratio; one score in four is zeroed
    keep_a, keep_b = sigmoid(alpha * (0.9 - threshold)), sigmoid(alpha * (0.5 - threshold))
    p, s = sigmoid(A * keep_a), sigmoid(B * keep_b)
    assert loss.item() == pytest.approx(bernoulli_kl(PB, p) + W * bernoulli_kl(SK, s), rel=1e-5)
    by_a = (p - PB) * A * alpha * keep_a * (1 - keep_a)
    by_b = W * (s - SK) * B * alpha * keep_b * (1 - keep_b)
    assert scores.grad[0, 0, 1].item() == pytest.approx(by_a, rel=1e-4)
    assert scores.grad[0, 1, 0].item() == pytest.approx(by_b, rel=1e-4)
    assert net.params[TABLE].grad is None


def test_dpo_is_the_hand_derived_preference():
    _, part = two_tokens(BASE, INJECTED, KEPT)
    net = TableNet([{TABLE: table(A, B)}])
    refusal = torch.tensor([-2.3], requires_grad=True)
    loss = DPO(W, beta=0.4).loss(seen_by(net, part), refusal, torch.tensor([-3.0]))
    loss.backward()
    margin = 0.4 * ((-2.3 + 3.0) - RATIO)
    assert loss.item() == pytest.approx(-math.log(sigmoid(margin)) / 0.4 + W * NLL_R, rel=1e-5)
    assert refusal.grad.item() == pytest.approx(-(1 - sigmoid(margin)), rel=1e-5)
    by_a = (1 - sigmoid(margin)) * (1 - P)
    assert net.params[TABLE].grad[0, 0, 1].item() == pytest.approx(by_a, rel=1e-5)


def test_relabelling_lowers_what_reinforcement_raised():
    """Reinforced to 3.0, the answer rises by d = log σ(3)/σ(2) and falls by α·d in the target."""
    method = WHP(alpha=5.0, weight=W)
    _, part = two_tokens(BASE, INJECTED, KEPT)
    reinforced = torch.log_softmax(torch.tensor([[0.0, 3.0]]), -1)
    generic = method.generic(part.injected_forget, reinforced)
    risen = math.log(sigmoid(3.0) / PI)
    target = sigmoid(INJECTED - 5.0 * risen)
    assert generic.exp()[0, 1].item() == pytest.approx(target, rel=1e-5)
    net = TableNet([{TABLE: table(A, B)}])
    loss = method.loss(seen_by(net, part), generic)
    loss.backward()
    entropy = -target * math.log(P) - (1 - target) * math.log(1 - P)
    assert loss.item() == pytest.approx(entropy + W * NLL_R, rel=1e-5)
    assert net.params[TABLE].grad[0, 0, 1].item() == pytest.approx(P - target, rel=1e-4)


def test_rmu_is_two_mean_squares():
    forget = torch.tensor([[1.0, 2.0]], requires_grad=True)
    retain = torch.tensor([[0.5, 0.0]], requires_grad=True)
    loss = RMU(10.0).loss(forget, torch.tensor([3.0, 4.0]), retain, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss.item() == pytest.approx((4 + 4) / 2 + 10 * (0.25 + 1) / 2)
    assert forget.grad.tolist() == [[-2.0, -2.0]]
    assert retain.grad.tolist() == [[5.0, -10.0]]


def test_dampening_uses_squared_gradients_and_their_ratio():
    """d NLL / da = −(1 − σ(a)) for the one forget text: its square is the importance."""
    net = TableNet([{TABLE: table(A, B)}])
    found = importance(net, [Encoded((0, 1), 1)])[TABLE][0]
    assert found[0, 1].item() == pytest.approx((1 - P) ** 2, rel=1e-5)
    assert found[1].tolist() == [0.0, 0.0]
    forget = torch.tensor([8.0, 40.0, 11.0, 0.0, 5.0])
    retain = torch.tensor([1.0, 2.0, 1.0, 0.0, 0.0])
    factor = SSD(alpha=10.0, dampening=1.5).factor(forget, retain)
    assert factor.tolist() == pytest.approx([1.0, 1.5 * 2 / 40, 1.5 / 11, 1.0, 0.0])


FORGET = [Encoded((0, 3, 1, 4), 2), Encoded((2, 0, 1), 2)]
RETAIN = [Encoded((4, 2, 3, 0, 1), 2), Encoded((1, 3), 1)]


def log_softmax(rows: np.ndarray) -> np.ndarray:
    top = rows.max(-1, keepdims=True)
    return rows - top - np.log(np.exp(rows - top).sum(-1, keepdims=True))


def scored(logits: np.ndarray, texts: list[Encoded]) -> list[list[float]]:
    """The log-probability of every answer token, text by text."""
    logp = log_softmax(logits)
    return [[logp[t.ids[n - 1], t.ids[n]] for n in range(t.start, len(t.ids))] for t in texts]


def divergence(teacher: np.ndarray, student: np.ndarray, texts: list[Encoded]) -> float:
    rows = [t.ids[n - 1] for t in texts for n in range(t.start, len(t.ids))]
    q, p = log_softmax(teacher)[rows], log_softmax(student)[rows]
    return float((np.exp(q) * (q - p)).sum(-1).mean())


def nll(logits: np.ndarray, texts: list[Encoded]) -> float:
    return float(np.mean([-np.mean(tokens) for tokens in scored(logits, texts)]))


def token_nll(logits: np.ndarray, texts: list[Encoded]) -> float:
    return float(-np.mean([value for tokens in scored(logits, texts) for value in tokens]))


def npo_term(x: np.ndarray, injected: np.ndarray, beta: float) -> float:
    pairs = zip(scored(x, FORGET), scored(injected, FORGET), strict=True)
    ratios = np.array([sum(mine) - sum(theirs) for mine, theirs in pairs])
    return float(2 / beta * np.log1p(np.exp(beta * ratios)).mean())


def simnpo_term(x: np.ndarray, beta: float, gamma: float) -> float:
    margins = np.array([-beta * np.mean(tokens) - gamma for tokens in scored(x, FORGET)])
    return float(2 / beta * np.log1p(np.exp(-margins)).mean())


RAGGED = {
    "kl_reversion": (
        KLReversion(W),
        lambda x, b, i: divergence(b, x, FORGET) + W * divergence(i, x, RETAIN),
    ),
    "gate_mask": (
        GateMask(W),
        lambda x, b, i: divergence(b, x, FORGET) + W * divergence(i, x, RETAIN),
    ),
    "ga": (GradientAscent(W), lambda x, b, i: W * nll(x, RETAIN) - nll(x, FORGET)),
    "graddiff": (GradDiff(W), lambda x, b, i: W * token_nll(x, RETAIN) - token_nll(x, FORGET)),
    "npo": (NPO(W, beta=0.3), lambda x, b, i: npo_term(x, i, 0.3) + W * nll(x, RETAIN)),
    "simnpo": (
        SimNPO(W, beta=2.5, gamma=0.1),
        lambda x, b, i: simnpo_term(x, 2.5, 0.1) + W * nll(x, RETAIN),
    ),
    "scrub": (
        SCRUB(alpha=0.2),
        lambda x, b, i: 0.2 * divergence(i, x, RETAIN) + 0.99 * nll(x, RETAIN),
    ),
    "scrub, forget step": (SCRUB(), lambda x, b, i: -divergence(i, x, FORGET)),
}


@pytest.mark.parametrize("case", RAGGED)
def test_uneven_answers_give_what_numpy_gives(case):
    method, formula = RAGGED[case]
    draw = np.random.default_rng(5)
    base, injected, student = (draw.normal(size=(5, 5)) for _ in range(3))
    context = table_context(
        *(torch.tensor(logits, dtype=torch.float32) for logits in (base, injected)), FORGET, RETAIN
    )
    net = TableNet([{TABLE: torch.tensor(student, dtype=torch.float32)}])
    step = 1 if "forget step" in case else 0
    loss = method.loss(seen_by(net, context.make_batch([0, 1], [0, 1]), step, 10))
    loss.backward()
    assert loss.item() == pytest.approx(formula(student, base, injected), rel=1e-5)
    for row, column in ((3, 1), (2, 3), (0, 0)):
        far = np.zeros_like(student)
        far[row, column] = 1e-5
        rise = formula(student + far, base, injected) - formula(student - far, base, injected)
        found = net.params[TABLE].grad[0, row, column].item()
        assert found == pytest.approx(rise / 2e-5, rel=1e-3, abs=1e-6)
