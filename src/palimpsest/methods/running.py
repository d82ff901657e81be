"""Running a cell's methods so that one method's fault costs one candidate and never the cell.

A method ends in a state dict or a ``ModelFailure``. Gradient methods that differ only in scalars
of their losses train side by side.
"""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import MethodError, TrainingDiverged, show_traceback
from palimpsest.facts.nonce import key_number
from palimpsest.methods import title, used
from palimpsest.methods.answer_sets import Spent, stream_cost
from palimpsest.methods.context import Context, GradientMethod, Method, State, descend, stackable
from palimpsest.models.device import raise_machine_fault
from palimpsest.plugins import IN_MEMORY, defined_at
from palimpsest.stats.models import ModelFailure


class FailureKind(StrEnum):
    """Why a method gave no candidate."""

    NOT_APPLICABLE = "not_applicable"
    DIVERGED = "diverged"
    RAISED = "raised"
    NOT_FINITE = "not_finite"
    OTHER_ARCHITECTURE = "other_architecture"


def groups(methods: Sequence[Method], stack: int) -> list[list[Method]]:
    """Return the methods in order, neighbors that can be trained side by side in one list.

    Neighbors that train nothing go together too: they are scored and re-acquired side by side.
    stack: the most that may go in one list; 1 where the engine cannot stack.
    """
    result: list[list[Method]] = []
    for method in methods:
        first = result[-1][0] if result and len(result[-1]) < stack else None
        trained = isinstance(first, GradientMethod)
        if first and (stackable(first, method) if trained else type(first) is type(method)):
            result[-1].append(method)
        else:
            result.append([method])
    return result


def run_group(context: Context, methods: Sequence[Method]) -> list[State | ModelFailure]:
    """Return one state dict or one failure per method, in order; raises for no method's fault."""
    first = methods[0]
    stack = [m for m in methods if isinstance(m, GradientMethod) and stackable(first, m)]
    if len(stack) == len(methods) > 1:
        results = _attempt(first, context, lambda own: descend(own, stack))
        # One member's fault stops the whole stack: alone, each pays for itself.
        if not isinstance(results, ModelFailure):
            return [_finish(*pair, context) for pair in zip(methods, results)]
    return [run_method(method, context) for method in methods]


def run_method(method: Method, context: Context) -> State | ModelFailure:
    """Return the method's state dict, or why it has none."""
    result = _attempt(method, context, method.run)
    return result if isinstance(result, ModelFailure) else _finish(method, result, context)


def _attempt(method: Method, context: Context, run: Callable[[Context], Any]) -> Any:
    """Return what ``run`` returns with torch seeded from the cell, or the ModelFailure it is."""
    if "gated MLP" in method.needs and not context.gated:
        return ModelFailure(FailureKind.NOT_APPLICABLE, "does not apply: gated MLPs only")
    if not type(method).__module__.startswith("palimpsest.methods."):
        # A plug-in that edits the injected model in place would corrupt every later method.
        context = replace(
            context,
            base=_copy(context.base),
            injected=_copy(context.injected),
            forget_only=_copy(context.forget_only),
            general_only=_copy(context.general_only),
        )
    context.shared.spent = Spent()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key_number(f"{context.seed_key}/{title(method)}") % 2**63)
            return run(context)
    except TrainingDiverged as error:
        return ModelFailure(FailureKind.DIVERGED, str(error))
    except MethodError as error:
        return ModelFailure(FailureKind.RAISED, str(error))
    except (Exception, SystemExit) as error:
        raise_machine_fault(error)
        show_traceback(error)
        return ModelFailure(FailureKind.RAISED, _describe(error, method))


def _finish(method: Method, result: Any, context: Context) -> State | ModelFailure:
    """Record what a method spent, and return its model if it is one."""
    cost, recipe = context.shared.spent, context.recipe
    for name, stream in recipe.models().items() if recipe else ():
        if recipe and name in used(method):  # models of the cell are counted fully
            trained = stream_cost(context.tokenizer, stream, recipe.piece_tokens)
            cost += replace(trained, shared=trained.tokens)
    context.shared.costs[title(method)] = cost
    if isinstance(result, TrainingDiverged):
        return ModelFailure(FailureKind.DIVERGED, str(result))
    state = check_state(result, context.injected)
    if isinstance(state, ModelFailure) and state.kind == FailureKind.OTHER_ARCHITECTURE:
        return replace(state, reason=f"{defined_at(type(method).run)} returned {state.reason}")
    return state


def check_state(result: Any, expected: State) -> State | ModelFailure:
    """Return the state dict if it is the expected architecture with finite weights."""
    if not isinstance(result, Mapping):
        found = "None" if result is None else f"a {type(result).__name__}"
        names = "the names and tensors of context.injected"
        reason = f"{found}; expected a state dict with {names}, changed; add a return"
        return ModelFailure(FailureKind.OTHER_ARCHITECTURE, reason)
    tied = _tied(expected)
    state: dict[str, Tensor] = {}
    for name, like in expected.items():
        value = result.get(name, result.get(tied.get(name, "")))
        if not isinstance(value, Tensor):
            found = "missing" if value is None else f"a {type(value).__name__}"
            return _misfit(f"{name} is {found}; expected a tensor")
        if value.shape != like.shape or value.is_floating_point() != like.is_floating_point():
            found, wanted = (f"{tuple(t.shape)} of {t.dtype}" for t in (value, like))
            return _misfit(f"{name} is {found}; expected {wanted}")
        # A copy, since a net's own tensors are overwritten when the next net is made.
        value = value.detach().to(device=like.device, dtype=like.dtype, copy=True)
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            reason = f"weights are not finite: {name} holds NaN or infinity"
            return ModelFailure(FailureKind.NOT_FINITE, reason)
        state[name] = value
    for name, value in result.items():
        # A tied head may be listed under a name of its own that the injected state leaves out.
        if name not in expected and not _repeats(value, state):
            return _misfit(f"{name} is not in the injected model")
    for name, source in tied.items():
        if not torch.equal(state[name], state[source]):
            return _misfit(f"{name} is tied to {source} but differs from it")
        state[name] = state[source]
    return state


def _misfit(reason: str) -> ModelFailure:
    return ModelFailure(FailureKind.OTHER_ARCHITECTURE, f"another architecture: {reason}")


def _copy(state: State) -> dict[str, Tensor]:
    """Return a state dict of new tensors, tied ones tied again."""
    tied = _tied(state)
    copies = {name: value.clone() for name, value in state.items() if name not in tied}
    return {name: copies[tied.get(name, name)] for name in state}


def _tied(state: State) -> dict[str, str]:
    """Return each name that repeats an earlier matrix, with that one's name.

    By value, since a state that was stored and read again no longer shares memory. Only matrices
    count: norms and biases are often alike without being tied.
    """
    owners: dict[tuple[torch.Size, tuple[float, ...]], str] = {}
    tied = {}
    for name, value in state.items():
        start = tuple(value.reshape(-1)[:8].tolist())
        if value.dim() < 2 or len(set(start)) < 2:
            continue
        owner = owners.setdefault((value.shape, start), name)
        if owner != name and torch.equal(value, state[owner]):
            tied[name] = owner
    return tied


def _repeats(value: Any, state: State) -> bool:
    return isinstance(value, Tensor) and any(
        value.shape == other.shape and torch.equal(value.to(other), other)
        for other in state.values()
    )


def _describe(error: BaseException, method: Method) -> str:
    """Return the error in one line with the last line of the method's own file on its way."""
    module = type(method).__module__
    file = getattr(sys.modules[module], "__file__", f"<{module}>")
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    place = f"{Path(frame.filename).name} line {frame.lineno}: " if module not in IN_MEMORY else ""
    message = " ".join(str(error).split())[:300]
    raised = f"raised {type(error).__name__}{': ' if message else ''}{message}"
    return f"{raised} ({place}{frame.line})"
