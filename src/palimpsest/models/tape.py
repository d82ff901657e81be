"""The pieces of a forward, with their gradients written out by hand.

Hidden states are (stack, nodes, width of the model); ``tree.py`` says what a node is. torch's own
automatic differentiation costs a pocket-sized model more than the arithmetic does, so each piece
notes here how it is undone, and all of them together are one operation to torch (``forward.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from palimpsest.models.tree import Spread

Params = Mapping[str, Tensor]


class Var:
    """A value on the way and, on the way back, the gradient that has arrived at it."""

    __slots__ = ("fresh", "grad", "value", "wanted")  # wanted: whether anybody asks for it

    def __init__(self, value: Tensor, wanted: bool) -> None:
        self.value, self.wanted = value, wanted
        self.grad: Tensor | None = None
        self.fresh = False  # whether nobody else holds the gradient, so that it may be added to

    def add(self, grad: Tensor, *, fresh: bool = True) -> None:
        if self.grad is None:
            self.grad, self.fresh = grad, fresh
        elif self.fresh:
            self.grad.add_(grad)
        elif fresh:
            self.grad, self.fresh = grad.add_(self.grad), True
        else:
            self.grad, self.fresh = self.grad + grad, True

    def taken(self) -> Tensor:
        """Return the whole gradient, which nobody asks for again."""
        grad, self.grad = self.grad, None
        assert grad is not None, "every value on the way enters the result"
        return grad


@dataclass(frozen=True)
class Layout:
    """What the layers of one forward share: above all, how a batch's attention is laid out.

    heads, groups: of queries, of keys; width: of a head.
    causal: (heads of a group * width, padded width), queries by keys; minus infinity where the key
        comes after the query or is padding.
    turn: (head width, head width); cos, sin: (rows of queries and keys, head width), by position
        until the batch is known. The rotary embedding is x * cos + (x @ turn) * sin; without one,
        turn is None.
    spread: the rows of the batch; None until it is known.
    """

    heads: int
    groups: int
    width: int
    eps: float
    causal: Tensor
    turn: Tensor | None
    cos: Tensor
    sin: Tensor
    spread: Spread | None = None


class Tape:
    """One forward over ``given`` parameters: its pieces, and how each is undone.

    wanted: the names whose gradients are asked for; where there are none nothing is noted.
    """

    def __init__(self, given: Params, wanted: frozenset[str] = frozenset()) -> None:
        self.given, self.wanted = given, wanted
        self.grads: dict[str, Tensor] = {}
        self._undo: list[Callable[[], None]] = []

    def back(self, result: Var, grad: Tensor) -> dict[str, Tensor]:
        """Return the gradients of the wanted parameters, from the result's; once."""
        result.add(grad, fresh=False)
        while self._undo:
            self._undo.pop()()  # and so lets go of what it kept
        return self.grads

    def _note(self, undo: Callable[[], None], *made: Var) -> None:
        if any(out.wanted for out in made):
            self._undo.append(undo)

    def _gave(self, name: str, grad: Tensor) -> None:
        """Note a parameter's gradient; a parameter may be used more than once."""
        known = self.grads.get(name)
        self.grads[name] = grad if known is None else known.add_(grad)

    # -- pieces ------------------------------------------------------------------------------------

    def embed(self, name: str, at: Tensor, unmoved: int | None = None) -> Var:
        """The rows ``at`` of a table; those of the token ``unmoved`` give it no gradient."""
        table = self.given[name]
        out = Var(table.index_select(1, at), name in self.wanted)

        def undo() -> None:
            grad = out.taken()
            if unmoved is not None:
                grad = grad * (at != unmoved)[:, None]
            if name not in self.grads:
                self.grads[name] = torch.zeros_like(table)
            self.grads[name].index_add_(1, at, grad)

        self._note(undo, out)
        return out

    def linear(
        self, x: Var, *names: str, onto: Var | None = None, across: bool = False
    ) -> tuple[Var, ...]:
        """x @ weight.T + bias for each of these layers; ``onto`` is added to the only one.

        across: weights are stored (in, out), as GPT-2's are.
        """
        made, weights = [], []
        for name in names:
            weight, bias = self.given[f"{name}.weight"], self.given.get(f"{name}.bias")
            weight = weight.mT if across else weight
            start = onto.value if onto is not None else None
            if bias is not None:
                value = torch.baddbmm(bias.unsqueeze(1), x.value, weight.mT)
                value = value if start is None else value.add_(start)
            elif start is not None:
                value = torch.baddbmm(start, x.value, weight.mT)
            else:
                value = torch.bmm(x.value, weight.mT)
            weights.append(weight)
            own = f"{name}.weight" in self.wanted or f"{name}.bias" in self.wanted
            made.append(Var(value, own or x.wanted or (onto is not None and onto.wanted)))

        def undo() -> None:
            for_x = None
            for name, weight, out in zip(names, weights, made):
                if not out.wanted:
                    continue
                grad = out.taken()
                if onto is not None and onto.wanted:
                    onto.add(grad, fresh=False)
                if f"{name}.weight" in self.wanted:
                    product = x.value.mT.bmm(grad) if across else grad.mT.bmm(x.value)
                    self._gave(f"{name}.weight", product)
                if f"{name}.bias" in self.wanted:
                    self._gave(f"{name}.bias", grad.sum(1))
                if x.wanted:
                    for_x = grad.bmm(weight) if for_x is None else for_x.baddbmm_(grad, weight)
            if for_x is not None:
                x.add(for_x)

        self._note(undo, *made)
        return tuple(made)

    def norm(self, x: Var, name: str, eps: float) -> Var:
        """The layer norm of x where there is a bias, its RMS norm where there is none."""
        weight = self.given[f"{name}.weight"].unsqueeze(1)
        bias = self.given.get(f"{name}.bias")
        size = x.value.shape[-1]
        if bias is None:
            scale = torch.linalg.vector_norm(x.value, dim=-1, keepdim=True)
            scale = scale.square_().div_(size).add_(eps).rsqrt_()
            unit = x.value * scale
            value = unit * weight
        else:
            unit, _, scale = torch.native_layer_norm(x.value, [size], None, None, eps)
            value = torch.addcmul(bias.unsqueeze(1), unit, weight)
        own = f"{name}.weight" in self.wanted or f"{name}.bias" in self.wanted
        out = Var(value, own or x.wanted)

        def undo() -> None:
            grad = out.taken()
            along = grad * unit
            if f"{name}.weight" in self.wanted:
                self._gave(f"{name}.weight", along.sum(1))
            if f"{name}.bias" in self.wanted:
                self._gave(f"{name}.bias", grad.sum(1))
            if x.wanted:
                share = weight.mT / size
                for_x = (grad * weight).addcmul_(unit, along.bmm(share), value=-1.0)
                if bias is not None:
                    for_x.sub_(grad.bmm(share))
                x.add(for_x.mul_(scale))

        self._note(undo, out)
        return out

    def attention(self, q: Var, k: Var, v: Var, layout: Layout) -> Var:
        """Causal attention with rotary embedding, on (stack, nodes, heads * head width).

        Queries whose heads share a key group are rows of one product. Keys and values are padded to
        full vector registers: a softmax along 15 scores leaves torch's vectorised kernel and takes
        ten times as long as one along 16.
        """
        at, width = layout.spread, layout.width
        assert at is not None, "attention is of a batch"
        rows, padded = layout.causal.shape
        parts = [x.value.reshape(-1, width) for x in (q, k, v)]
        sizes = [len(part) for part in parts]
        flat = torch.cat(parts)
        _turn(flat[: sizes[0] + sizes[1]], layout)
        gathered = flat.index_select(0, at.forth)
        # Three blocks: a row a query, a row a key, a row a value.
        blocks = (len(at.wanted), at.keys, at.keys)
        queries, keys, values = gathered.split(blocks)
        queries, keys, values = (
            queries.view(-1, rows, width),
            keys.view(-1, padded, width),
            values.view(-1, padded, width),
        )
        scores = torch.baddbmm(layout.causal, queries, keys.mT, alpha=width**-0.5)
        chances = scores.softmax(-1)
        mixed = chances.bmm(values).view(-1, width).index_select(0, at.mixed)
        out = Var(mixed.view(q.value.shape), q.wanted or k.wanted or v.wanted)

        def undo() -> None:
            # One more row, of zeros, for entries whose outcome nobody used.
            grad = torch.cat((out.taken().reshape(-1, width), flat.new_zeros(1, width)))
            grad = grad.index_select(0, at.wanted).view(-1, rows, width)
            weighted = grad.bmm(values.mT).mul_(chances)
            weighted.addcmul_(chances, weighted.sum(-1, keepdim=True), value=-1.0)
            for_rows = torch.empty_like(gathered)
            for_queries, for_keys, for_values = for_rows.split(blocks)
            scaled = {"beta": 0, "alpha": width**-0.5}
            torch.baddbmm(queries, weighted, keys, out=for_queries.view(queries.shape), **scaled)
            torch.baddbmm(keys, weighted.mT, queries, out=for_keys.view(keys.shape), **scaled)
            torch.bmm(chances.mT, grad, out=for_values.view(values.shape))
            back = for_rows.index_select(0, at.back)
            if len(at.repeated):
                back.index_add_(0, at.nodes, for_rows.index_select(0, at.repeated))
            _turn(back[: sizes[0] + sizes[1]], layout, -1)
            for x, for_x in zip((q, k, v), back.split(sizes)):
                if x.wanted:
                    x.add(for_x.view(x.value.shape))

        self._note(undo, out)
        return out

    def gated(self, gate: Var, up: Var) -> Var:
        """silu(gate) * up."""
        passing = F.silu(gate.value)
        out = Var(passing * up.value, gate.wanted or up.wanted)

        def undo() -> None:
            grad = out.taken()
            if up.wanted:
                up.add(grad * passing)
            if gate.wanted:
                gate.add(torch.ops.aten.silu_backward(grad * up.value, gate.value))

        self._note(undo, out)
        return out

    def gelu(self, x: Var, approximate: str = "none") -> Var:
        out = Var(F.gelu(x.value, approximate=approximate), x.wanted)

        def undo() -> None:
            backward = torch.ops.aten.gelu_backward
            x.add(backward(out.taken(), x.value, approximate=approximate))

        self._note(undo, out)
        return out

    def plus(self, x: Var, other: Var) -> Var:
        out = Var(x.value + other.value, x.wanted or other.wanted)

        def undo() -> None:
            grad = out.taken()
            for part in (x, other):
                if part.wanted:
                    part.add(grad, fresh=False)

        self._note(undo, out)
        return out

    def thirds(self, x: Var, heads: int = 0) -> tuple[Var, ...]:
        """Queries, keys and values out of one projection: three blocks, or three for each head."""
        if heads:
            split = x.value.unflatten(-1, (heads, 3, -1)).unbind(-2)
            parts = tuple(Var(part.flatten(2), x.wanted) for part in split)
        else:
            parts = tuple(Var(part, x.wanted) for part in x.value.chunk(3, dim=-1))

        def undo() -> None:
            grads = [part.taken() for part in parts]
            if heads:
                grads = [grad.unflatten(-1, (heads, -1)) for grad in grads]
                x.add(torch.stack(grads, dim=-2).flatten(2))
            else:
                x.add(torch.cat(grads, dim=-1))

        self._note(undo, *parts)
        return parts

    def only(self, nodes: Tensor | None, x: Var) -> Var:
        """x at some nodes, which may repeat; at all of them where ``nodes`` is None."""
        if nodes is None:
            return x
        out = Var(x.value.index_select(1, nodes), x.wanted)

        def undo() -> None:
            x.add(torch.zeros_like(x.value).index_add_(1, nodes, out.taken()))

        self._note(undo, out)
        return out


def _turn(x: Tensor, layout: Layout, way: int = 1) -> None:
    """Rotate rows of queries and keys by their position, or back with ``way`` -1, in place."""
    if layout.turn is not None:
        quarter = x @ layout.turn
        x.mul_(layout.cos).addcmul_(quarter, layout.sin, value=way)
