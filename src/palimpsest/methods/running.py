"""Running a cell's methods so that one method's fault costs one candidate and never the cell.

A method ends in a state dict or a ``Failure``: it does not apply to the model, its training
diverged, it raised, or what it returned is not the injected architecture with finite weights.
Gradient methods that differ only in scalars of their losses train side by side.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from palimpsest.errors import MethodError, TrainingDiverged
from palimpsest.facts.nonce import key_number
from palimpsest.methods import title, used
from palimpsest.methods.context import Context, GradientMethod, Method, State, descend, stackable
from palimpsest.methods.recipe import Cost, stream_cost
from palimpsest.models.device import raise_machine_fault


@dataclass(frozen=True)
class Failure:
    """Why a method gave no candidate: of what kind, and the reason in words."""

    kind: Literal["not_applicable", "diverged", "raised", "not_finite", "other_architecture"]
    reason: str


def groups(methods: Sequence[Method], stack: int) -> list[list[Method]]:
    """Return the methods in order, neighbours that can be trained side by side in one list.

    Neighbours that train nothing go together too: they are scored and re-acquired side by side.
    stack: the most that may go in one list; 1 where the engine cannot stack.
    """
    result: list[list[Method]] = []
    for method in methods:
        if result and len(result[-1]) < stack and _neighbours(result[-1][0], method):
            result[-1].append(method)
        else:
            result.append([method])
    return result


def _neighbours(method: Method, other: Method) -> bool:
    if isinstance(method, GradientMethod):
        return stackable(method, other)
    return type(method) is type(other)


def run_group(context: Context, methods: Sequence[Method]) -> list[State | Failure]:
    """Return one state dict or one failure per method, in order; raises for no method's fault."""
    first = methods[0]
    together = len(methods) > 1 and all(stackable(first, method) for method in methods)
    if not together or _out_of_place(first, context):
        return [checked_run(method, context) for method in methods]
    gradient = [method for method in methods if isinstance(method, GradientMethod)]
    context.shared.meter.spent = Cost()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(context, first))
            results = descend(_own(context, first), gradient)
    except (Exception, SystemExit) as error:
        raise_machine_fault(error)
        # One member's fault stops the whole stack: alone, each pays for itself.
        return [checked_run(method, context) for method in methods]
    for method in methods:
        _record(method, context)
    return [
        Failure("diverged", str(result))
        if isinstance(result, TrainingDiverged)
        else checked(result, context)
        for result in results
    ]


def checked_run(method: Method, context: Context) -> State | Failure:
    """Return the method's state dict, or why it has none."""
    misfit = _out_of_place(method, context)
    if misfit is not None:
        return misfit
    context.shared.meter.spent = Cost()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(context, method))
            result: Any = method.run(_own(context, method))
    except TrainingDiverged as error:
        return Failure("diverged", str(error))
    except MethodError as error:
        return Failure("raised", str(error))
    except (Exception, SystemExit) as error:
        raise_machine_fault(error)
        return Failure("raised", _raised(error))
    _record(method, context)
    return checked(result, context)


def _record(method: Method, context: Context) -> None:
    """Record what the method has spent; the models of the cell that it used are counted fully."""
    cost = context.shared.meter.spent
    if (recipe := context.recipe) is not None:
        for name, stream in recipe.models().items():
            if name in used(method):
                trained = stream_cost(context.tokenizer, stream, recipe.piece_tokens)
                cost += replace(trained, shared=trained.tokens)
    context.shared.meter.costs[title(method)] = cost


def checked(result: Any, context: Context) -> State | Failure:
    """Return the state dict if it is the injected architecture with finite weights."""
    if not isinstance(result, Mapping):
        return _other(f"returned {type(result).__name__}; expected a state dict")
    expected = context.injected
    tied = _tied(expected)
    state: dict[str, Tensor] = {}
    for name, like in expected.items():
        value = result.get(name, result.get(tied.get(name, "")))
        if value is None:
            return _other(f"{name} is missing")
        if not isinstance(value, Tensor):
            return _other(f"{name} is a {type(value).__name__}; expected a tensor")
        if value.shape != like.shape:
            return _other(f"{name} is {tuple(value.shape)}; expected {tuple(like.shape)}")
        if value.is_floating_point() != like.is_floating_point():
            return _other(f"{name} is {value.dtype}; expected {like.dtype}")
        # A copy, since a net's own tensors are overwritten when the next net is made.
        value = value.detach().to(device=like.device, dtype=like.dtype, copy=True)
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return Failure("not_finite", f"weights are not finite: {name} holds NaN or infinity")
        state[name] = value
    for name, value in result.items():
        # A tied head may be listed under a name of its own that the injected state leaves out.
        if name not in expected and not _repeats(value, state):
            return _other(f"{name} is not in the injected model")
    for name, source in tied.items():
        if not torch.equal(state[name], state[source]):
            return _other(f"{name} is tied to {source} but differs from it")
        state[name] = state[source]
    return state


def _other(reason: str) -> Failure:
    return Failure("other_architecture", f"another architecture: {reason}")


def _out_of_place(method: Method, context: Context) -> Failure | None:
    if "gated MLP" in method.needs and not context.gated:
        return Failure("not_applicable", "does not apply: gated MLPs only")
    return None


def _own(context: Context, method: Method) -> Context:
    """Return the context, with copies of the frozen models where the method is not ours.

    A method that edits the injected model in place would otherwise corrupt every later one.
    """
    if type(method).__module__.startswith("palimpsest.methods."):
        return context
    return replace(
        context,
        base=_copy(context.base),
        injected=_copy(context.injected),
        forget_only=_copy(context.forget_only),
        general_only=_copy(context.general_only),
    )


def _copy(state: State) -> dict[str, Tensor]:
    """Return a state dict of new tensors, tied ones tied again."""
    tied = _tied(state)
    copies = {name: value.clone() for name, value in state.items() if name not in tied}
    return {name: copies[tied.get(name, name)] for name in state}


def _seed(context: Context, method: Method) -> int:
    """Return torch's seed for this method: from the cell, never from what ran before."""
    return key_number(f"{context.seed_key}/{title(method)}") % 2**63


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


def _raised(error: BaseException) -> str:
    """Return the error in one line with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())[:300]
    return f"raised {type(error).__name__}{': ' if message else ''}{message}{place}"
