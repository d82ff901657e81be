"""The pieces of a forward, with their gradients written out by hand.

Hidden states are (stack, nodes, width of the model); ``tree.py`` says what a node is. torch's own
automatic differentiation costs a pocket-sized model more than the arithmetic does, so each piece
notes here how it is undone, and all of them together are one operation to torch (``forward.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from palimpsest.models.fast.tree import Tree

Params = Mapping[str, Tensor]


class Var:
    """A value of the forward and, in the backward pass, the gradient collected for it so far."""

    __slots__ = ("grad", "value", "wanted")

    def __init__(self, value: Tensor, wanted: bool) -> None:
        self.value, self.wanted = value, wanted  # wanted: whether its gradient is needed
        self.grad: Tensor | None = None

    def add(self, make: Callable[..., Tensor] | Tensor, *arguments: Any) -> None:
        """Add to the gradient; what has to be computed for it is, only where it is wanted."""
        if self.wanted:
            grad = make if isinstance(make, Tensor) else make(*arguments)
            # Never in place: a residual connection hands the same tensor to both of its sides.
            self.grad = grad if self.grad is None else self.grad + grad

    def take(self) -> Tensor:
        """Return the whole gradient and let go of it."""
        grad, self.grad = self.grad, None
        assert grad is not None, "every value enters the result"
        return grad


@dataclass(frozen=True)
class Layout:
    """What the layers of one forward share: above all, how attention lays out the texts.

    heads, groups: of queries, of keys; width: of a head.
    causal: (heads of a group * width of the texts, padded width), queries by keys; minus infinity
        where the key comes after the query or is padding.
    turn: (head width, head width); cos, sin: (nodes, heads * head width). The rotary embedding is
        x * cos + (x @ turn) * sin; turn is None where there is none.
    """

    tree: Tree
    heads: int
    groups: int
    width: int
    eps: float
    causal: Tensor
    turn: Tensor | None
    cos: Tensor
    sin: Tensor

    def rotate(self, x: Tensor, way: int = 1) -> Tensor:
        """Return queries or keys rotated by their position, or back with ``way`` -1."""
        if self.turn is None:
            return x
        size = x.shape[-1]
        # ``turn`` takes each pair of a head a quarter of a circle on, so this is a rotation of the
        # pair by its angle. The gradient of a rotation is the rotation back: the sine changes sign.
        quarter = (x.reshape(-1, self.width) @ self.turn).view(x.shape)
        return (x * self.cos[:, :size]).addcmul_(quarter, self.sin[:, :size], value=way)

    def rows(self, entries: Tensor, columns: int) -> Tensor:
        """Return (stack, texts * columns, heads * head width) as (stack * texts * groups, heads of
        a group * columns, head width): queries that share their keys are rows of one product."""
        shared = entries.shape[-1] // (self.groups * self.width)
        split = entries.view(len(entries), -1, columns, self.groups, shared, self.width)
        return split.permute(0, 1, 3, 4, 2, 5).reshape(-1, shared * columns, self.width)

    def entries(self, rows: Tensor, stack: int) -> Tensor:
        """Return rows of ``paths`` as (stack, entries, heads * head width)."""
        texts, columns = self.tree.paths.shape
        split = rows.view(stack, texts, self.groups, -1, columns, self.width)
        return split.permute(0, 1, 4, 2, 3, 5).reshape(stack, texts * columns, -1)

    def gather(self, rows: Tensor, stack: int) -> Tensor:
        """Return the gradients of nodes from those of the texts' keys or values."""
        tree = self.tree
        # What texts share is one node, read once for each text: its gradient is the sum over them.
        entries = self.entries(rows[:, : tree.paths.shape[1]].contiguous(), stack)
        grad = entries.index_select(1, tree.origins)
        if len(tree.repeats):
            grad.index_add_(1, tree.repeated, entries.index_select(1, tree.repeats))
        return grad


class Tape:
    """One forward over ``given`` parameters: its pieces, and how each is undone.

    wanted: the names whose gradients are asked for; where there are none nothing is noted.
    """

    def __init__(self, given: Params, wanted: frozenset[str] = frozenset()) -> None:
        self.leaves = {name: Var(value, name in wanted) for name, value in given.items()}
        self._undo: list[Callable[[], None]] = []

    def backward(self, result: Var, grad: Tensor) -> dict[str, Tensor | None]:
        """Return the gradients of the wanted parameters, from the result's; once."""
        result.add(grad)
        while self._undo:
            self._undo.pop()()  # and so lets go of what it kept
        return {name: leaf.grad for name, leaf in self.leaves.items()}

    def _made(self, value: Tensor, undo: Callable[[Tensor], None], *inputs: Var | None) -> Var:
        """Return a value made of inputs; ``undo`` gives them their parts of its gradient."""
        out = Var(value, any(x is not None and x.wanted for x in inputs))
        if out.wanted:
            self._undo.append(lambda: undo(out.take()))
        return out

    def embed(self, name: str, at: Tensor, unmoved: int | None = None) -> Var:
        """The rows ``at`` of a table; those of the token ``unmoved`` give it no gradient."""
        table = self.leaves[name]

        def undo(grad: Tensor) -> None:
            if unmoved is not None:
                grad = grad * (at != unmoved)[:, None]
            # A tied head is undone first and leaves the gradient of the whole table: only the rows
            # of tokens that occur are added to it.
            known = torch.zeros_like(table.value) if table.grad is None else table.grad
            table.grad = known.index_add_(1, at, grad)

        return self._made(table.value.index_select(1, at), undo, table)

    def linear(
        self, x: Var, *names: str, onto: Var | None = None, across: bool = False
    ) -> tuple[Var, ...]:
        """x @ weight.T + bias for each of these layers; ``onto`` is added to the only one.

        across: weights are stored (in, out), as GPT-2's are.
        """
        layers = [(self.leaves[f"{n}.weight"], self.leaves.get(f"{n}.bias")) for n in names]
        made = []
        for weight, bias in layers:
            matrix = weight.value if across else weight.value.mT
            if bias is not None:
                value = torch.baddbmm(bias.value.unsqueeze(1), x.value, matrix)
                value = value if onto is None else value.add_(onto.value)
            elif onto is not None:
                value = torch.baddbmm(onto.value, x.value, matrix)
            else:
                value = torch.bmm(x.value, matrix)
            made.append(Var(value, any(v and v.wanted for v in (x, weight, bias, onto))))

        def undo() -> None:
            # y = x Wᵀ + b: dx = dy W, dW = dyᵀ x, db = Σ dy; stored across, W is its own transpose.
            # Layers that read the same x give it the sum, collected in one tensor.
            for_x = None
            for (weight, bias), out in zip(layers, made):
                if not out.wanted:
                    continue
                grad = out.take()
                if onto is not None:
                    onto.add(grad)
                left, right = (x.value, grad) if across else (grad, x.value)
                weight.add(torch.bmm, left.mT, right)
                if bias is not None:
                    bias.add(grad.sum, 1)
                if x.wanted:
                    back = weight.value.mT if across else weight.value
                    for_x = grad.bmm(back) if for_x is None else for_x.baddbmm_(grad, back)
            if for_x is not None:
                x.add(for_x)

        if any(out.wanted for out in made):
            self._undo.append(undo)
        return tuple(made)

    def norm(self, x: Var, name: str, eps: float) -> Var:
        """The layer norm of x where there is a bias, its RMS norm where there is none."""
        weight, bias = self.leaves[f"{name}.weight"], self.leaves.get(f"{name}.bias")
        gain, size = weight.value.unsqueeze(1), x.value.shape[-1]
        if bias is None:
            scale = torch.linalg.vector_norm(x.value, dim=-1, keepdim=True)
            scale = scale.square_().div_(size).add_(eps).rsqrt_()
            unit = x.value * scale
            value = unit * gain
        else:
            unit, _, scale = torch.native_layer_norm(x.value, [size], None, None, eps)
            value = torch.addcmul(bias.value.unsqueeze(1), unit, gain)

        def undo(grad: Tensor) -> None:
            along = grad * unit

            # y = gain · u with u = (x − mean x) / σ, without the mean in an RMS norm. σ depends on
            # every entry of x, and so does the mean: with h = gain · dy,
            # dx = (h − u · mean(h · u) − mean h) / σ. The means are products with gain / size,
            # which need no tensor of the size of h.
            def for_x() -> Tensor:
                share = gain.mT / size
                part = (grad * gain).addcmul_(unit, along.bmm(share), value=-1.0)
                if bias is not None:
                    part.sub_(grad.bmm(share))
                return part.mul_(scale)

            weight.add(along.sum, 1)
            if bias is not None:
                bias.add(grad.sum, 1)
            x.add(for_x)

        return self._made(value, undo, x, weight, bias)

    def attention(self, q: Var, k: Var, v: Var, layout: Layout) -> Var:
        """Causal attention with rotary embedding, on (stack, nodes, heads * head width)."""
        tree, stack, scale = layout.tree, len(q.value), layout.width**-0.5
        columns, padded = tree.paths.shape[1], tree.keys.shape[1]
        queries = layout.rotate(q.value).index_select(1, tree.paths.view(-1))
        queries = layout.rows(queries, columns)
        keys, values = (
            layout.rows(x.index_select(1, tree.keys.view(-1)), padded)
            for x in (layout.rotate(k.value), v.value)
        )
        chances = torch.baddbmm(layout.causal, queries, keys.mT, alpha=scale).softmax(-1)
        mixed = layout.entries(chances.bmm(values), stack).index_select(1, tree.origins)

        def undo(grad: Tensor) -> None:
            # Where a text repeats a node, the node's outcome was taken from another text.
            entries = grad.new_zeros(stack, tree.paths.numel(), grad.shape[-1])
            by_row = layout.rows(entries.index_copy_(1, tree.origins, grad), columns)
            # Through the softmax P of the scores: dS = P · (dP − Σ P · dP), row by row. Keys that
            # come later and padding have P = 0, so nothing reaches them.
            weighted = by_row.bmm(values.mT).mul_(chances)
            weighted.addcmul_(chances, weighted.sum(-1, keepdim=True), value=-1.0)

            def for_queries() -> Tensor:
                # beta=0: the first argument only says the shape; the product is scaled on its way.
                rows = torch.baddbmm(queries, weighted, keys, beta=0, alpha=scale)
                return layout.entries(rows, stack).index_select(1, tree.origins)

            def for_keys() -> Tensor:
                rows = torch.baddbmm(keys, weighted.mT, queries, beta=0, alpha=scale)
                return layout.gather(rows, stack)

            q.add(lambda: layout.rotate(for_queries(), -1))
            k.add(lambda: layout.rotate(for_keys(), -1))
            v.add(lambda: layout.gather(chances.mT.bmm(by_row), stack))

        return self._made(mixed, undo, q, k, v)

    def gated(self, gate: Var, up: Var) -> Var:
        """silu(gate) * up."""
        passing = F.silu(gate.value)

        def undo(grad: Tensor) -> None:
            up.add(torch.mul, grad, passing)
            gate.add(lambda: torch.ops.aten.silu_backward(grad * up.value, gate.value))

        return self._made(passing * up.value, undo, gate, up)

    def gelu(self, x: Var, approximate: str = "none") -> Var:
        def undo(grad: Tensor) -> None:
            backward = torch.ops.aten.gelu_backward
            x.add(lambda: backward(grad, x.value, approximate=approximate))

        return self._made(F.gelu(x.value, approximate=approximate), undo, x)

    def plus(self, x: Var, other: Var) -> Var:
        def undo(grad: Tensor) -> None:
            x.add(grad)
            other.add(grad)

        return self._made(x.value + other.value, undo, x, other)

    def thirds(self, x: Var, heads: int = 1) -> tuple[Var, ...]:
        """Queries, keys and values out of one projection: three blocks in each of ``heads``."""
        split = x.value.unflatten(-1, (heads, 3, -1)).unbind(-2)
        parts = tuple(Var(part.flatten(2), x.wanted) for part in split)

        def undo() -> None:
            grads = [part.take().unflatten(-1, (heads, -1)) for part in parts]
            x.add(lambda: torch.stack(grads, dim=-2).flatten(2))

        if x.wanted:
            self._undo.append(undo)
        return parts

    def only(self, nodes: Tensor | None, x: Var) -> Var:
        """x at some nodes, which may repeat; at all of them where ``nodes`` is None."""
        if nodes is None:
            return x

        def undo(grad: Tensor) -> None:
            x.add(lambda: torch.zeros_like(x.value).index_add_(1, nodes, grad))

        return self._made(x.value.index_select(1, nodes), undo, x)
