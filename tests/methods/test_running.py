"""A method's own fault is recorded with its reason, and costs nobody else anything."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import TABLE, TableNet, table_context, transformer_context

from palimpsest.errors import TRACEBACK
from palimpsest.methods.context import Context, GradientMethod
from palimpsest.methods.gate_mask import GateMask
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.methods.npo import NPO
from palimpsest.methods.rollback import Rollback
from palimpsest.methods.running import FailureKind, check_state, run_group, run_method
from palimpsest.models.net import Encoded
from palimpsest.stats.models import ModelFailure

GATE = "model.layers.0.mlp.gate_proj.weight"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Plugin:
    """A third party's method: gives back whatever its function does."""

    act: object = None
    name: ClassVar[str] = "plugin"
    summary: ClassVar[str] = "anything"
    needs: ClassVar[tuple[str, ...]] = ()
    citation: ClassVar[str] = ""
    label: ClassVar[str] = "x"

    def run(self, context: Context):
        return self.act(dict(context.injected))


@dataclass(frozen=True)
class Faulty(GradientMethod):
    """Raises or diverges for one of its weights."""

    weight: float = 1.0
    fault: str = "raise"
    name: ClassVar[str] = "faulty"

    def loss(self, view):
        if self.weight == 13.0 and self.fault == "raise":
            raise ZeroDivisionError("thirteen")
        scale = float("nan") if self.weight == 13.0 else 1.0
        return scale * view.forget_nll() + self.weight * view.retain_nll()


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


def raising(state):
    raise ValueError("no\nway")


MISFIT = FailureKind.OTHER_ARCHITECTURE
FAULTS = {
    "NaN weights": (lambda s: s | {GATE: s[GATE] * float("nan")}, FailureKind.NOT_FINITE),
    "infinite weights": (lambda s: s | {GATE: s[GATE] / 0}, FailureKind.NOT_FINITE),
    "a missing tensor": (lambda s: without(s, GATE), MISFIT),
    "an extra tensor": (lambda s: s | {"new": torch.ones(3)}, MISFIT),
    "another shape": (lambda s: s | {GATE: s[GATE][:-1]}, MISFIT),
    "whole numbers": (lambda s: s | {GATE: s[GATE].long()}, MISFIT),
    "a number": (lambda s: s | {GATE: 1.0}, MISFIT),
    "an untied head": (lambda s: s | {HEAD: s[HEAD] + 1}, MISFIT),
    "nothing": (lambda s: None, MISFIT),
    "an error": (raising, FailureKind.RAISED),
    "an exit": (lambda s: sys.exit(3), FailureKind.RAISED),
}
"""From the injected state to what a plug-in returns, and how that is recorded."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plugin_is_recorded_with_its_reason(fault):
    act, kind = FAULTS[fault]
    context = transformer_context("llama")
    bad, good = run_group(context, [Plugin(act), Rollback()])
    assert isinstance(bad, ModelFailure) and bad.kind == kind
    assert bad.reason and "\n" not in bad.reason
    if act is raising:
        assert "ValueError: no way" in bad.reason and "test_running.py line" in bad.reason
    assert torch.equal(good[GATE], context.base[GATE])


def test_on_request_the_lines_that_led_to_an_error_are_shown(monkeypatch, capsys):
    for asked in ("", "1"):
        monkeypatch.setenv(TRACEBACK, asked)
        run_group(transformer_context("llama"), [Plugin(raising)])
        told = capsys.readouterr().err
        assert ("in raising" in told and "ValueError" in told) == bool(asked)


def test_a_plugin_may_leave_out_a_tied_head_or_use_another_precision():
    context = transformer_context("llama")
    moved = {name: value.double() + 1 for name, value in context.injected.items()}
    state = check_state(without(moved, HEAD), context.injected)
    assert torch.equal(state[HEAD], state[EMBEDDING])
    assert state[HEAD].dtype == torch.float32
    del moved[HEAD]
    copies = {name: value.clone() for name, value in context.injected.items()}
    assert isinstance(check_state(moved, copies), dict)
    bare = without(context.injected, HEAD)
    assert set(check_state(moved | {HEAD: moved[EMBEDDING]}, bare)) == set(bare)


def test_a_plugin_that_writes_into_its_context_spoils_only_itself():
    context = transformer_context("llama")
    before = {name: value.clone() for name, value in context.injected.items()}

    def scribble(state):
        for value in {id(value): value for value in state.values()}.values():
            value.data.zero_()
        return state

    zeroed = run_method(Plugin(scribble), context)
    assert not zeroed[GATE].any() and torch.equal(zeroed[HEAD], zeroed[EMBEDDING])
    assert all(torch.equal(context.injected[name], value) for name, value in before.items())


def test_a_plugins_random_numbers_come_from_the_cell():
    context = transformer_context("llama")
    noisy = Plugin(lambda state: state | {GATE: torch.randn_like(state[GATE])})
    torch.manual_seed(1)
    first = run_method(noisy, context)
    drawn = torch.rand(1)
    torch.manual_seed(2)
    assert torch.equal(first[GATE], run_method(noisy, context)[GATE])
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))


def test_a_candidate_survives_the_student_that_made_it():
    context = transformer_context("llama")
    methods = [KLReversion(3.0), NPO(3.0)]
    first, second = run_group(context, methods)
    assert not torch.equal(first[GATE], second[GATE])
    assert torch.equal(first[GATE], run_method(methods[0], context)[GATE])
    assert first[HEAD] is first[EMBEDDING]


def test_the_mask_on_a_gelu_model_does_not_apply_and_the_others_go_on():
    context = transformer_context("gpt2")
    for methods in ([GateMask(3.0), GateMask(12.0)], [GateMask(3.0), KLReversion(3.0)]):
        results = run_group(context, methods)
        assert isinstance(results[0], ModelFailure)
        assert results[0].kind == FailureKind.NOT_APPLICABLE
    assert not isinstance(results[1], ModelFailure)


@pytest.mark.parametrize("fault", ["raise", "diverge"])
def test_one_member_of_a_stack_fails_alone(fault):
    context = transformer_context("llama", stacked=True)
    methods = [Faulty(1.0, fault), Faulty(13.0, fault), Faulty(2.0, fault)]
    good, bad, other = run_group(context, methods)
    assert isinstance(bad, ModelFailure)
    assert bad.kind == (FailureKind.RAISED if fault == "raise" else FailureKind.DIVERGED)
    for state, method in ((good, methods[0]), (other, methods[2])):
        alone = run_method(method, context)
        torch.testing.assert_close(state[GATE], alone[GATE], atol=1e-5, rtol=0)


def test_divergence_is_a_failure_with_its_step():
    texts = [Encoded((0, 1), 1)]
    context = table_context(torch.zeros(2, 2), torch.full((2, 2), float("nan")), texts, texts)
    failure = run_method(NPO(), context)
    assert isinstance(failure, ModelFailure) and failure.kind == FailureKind.DIVERGED
    assert "step 1" in failure.reason


def test_a_gradient_method_with_a_run_of_its_own_is_never_stacked():
    @dataclass(frozen=True)
    class Own(KLReversion):
        def run(self, context: Context):
            return {TABLE: torch.full((2, 2), self.weight)}

    texts = [Encoded((0, 1), 1)]
    context = table_context(torch.zeros(2, 2), torch.ones(2, 2), texts, texts)
    results = run_group(context, [Own(3.0), Own(12.0)])
    assert [state[TABLE][0, 0].item() for state in results] == [3.0, 12.0]
    assert context.net is TableNet
