"""The texts of a batch as a tree of tokens, so that what they share is computed once.

Under causal attention a token's hidden state depends on what stands before it and on nothing else.
Texts that begin alike have equal states along their common beginning, and neither padding nor a
text's last token, which predicts nothing, is looked at by anything that is scored. So a net
evaluates one *node* per distinct beginning; only attention needs texts side by side, and finds the
nodes of each in ``paths``.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """Where attention finds its rows, one row a head: indices into nodes and back.

    Two lists of rows. *Nodes*: queries (stack, nodes, heads), then keys (stack, nodes, key groups),
    then values. *Entries*: queries (stack, texts, key groups, heads of a group, width), then keys
    (stack, texts, key groups, padded width), then values.

    positions: the place in its text of each row of queries and keys among nodes.
    forth: the node's row of each entry. Behind the end of a text they name any node: causal
        attention does not let anybody see it.
    keys: how many entries are keys.
    wanted: like the queries of ``forth``, but where an entry's outcome is not used, the row after
        the last.
    mixed: the entry of each query among nodes.
    back: the entry of each node's row; repeated, nodes: further entries of nodes that several texts
        share, and their rows, whose gradients add up.
    """

    positions: Tensor
    forth: Tensor
    keys: int
    wanted: Tensor
    mixed: Tensor
    back: Tensor
    repeated: Tensor
    nodes: Tensor


@dataclass(frozen=True)
class Tree:
    """Distinct beginnings of some texts.

    ids, positions: (nodes,) each node's token and its place in the text, from 0.
    paths: (texts, width) the nodes along each text, 0 behind its end.
    origins: (nodes,) the entry of ``paths``, flattened, that a node is computed at.
    repeats: (repeats,) the other entries of shared nodes.
    scored: (scored,) the node of each scored position.
    """

    ids: Tensor
    positions: Tensor
    paths: Tensor
    origins: Tensor
    repeats: Tensor
    scored: Tensor
    _spreads: dict[tuple[int, ...], Spread] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The length of the longest text."""
        return int(self.paths.shape[1])

    def spread(self, stack: int, heads: int, groups: int, padded: int) -> Spread:
        """Return the rows of attention for so many members, heads and key groups; kept."""
        key = (stack, heads, groups, padded)
        if key not in self._spreads:
            self._spreads[key] = _spread(self, *key)
        return self._spreads[key]


def tree_of(ids: Tensor, rows: Tensor, columns: Tensor) -> Tree:
    """Return the tree of the texts ``ids`` (rows, width) up to the last column scored in each.

    Sorted texts share their longest known beginning with their neighbour: everything else follows
    from how long that is. In falling order a text that ends within another comes right after it.
    """
    device, texts = ids.device, ids.cpu().numpy()
    row, column = rows.cpu().numpy(), columns.cpu().numpy()
    ends = np.zeros(len(texts), dtype=np.int64)
    np.maximum.at(ends, row, column + 1)
    places = np.arange(max(1, ends.max(initial=0)))
    texts = np.where(places < ends[:, None], texts[:, : len(places)], -1)
    order = np.lexsort(texts.T[::-1])[::-1]
    texts, ends = texts[order], ends[order][:, None]
    within = places < ends
    shared = np.zeros_like(ends)
    alike = (texts[1:] == texts[:-1]) & within[1:]
    shared[1:, 0] = np.logical_and.accumulate(alike, axis=1).sum(axis=1)
    fresh = within & (places >= shared)
    first = fresh.sum(axis=1, keepdims=True).cumsum(axis=0) - fresh.sum(axis=1, keepdims=True)
    # The row in which the node at each place came up, here or above.
    own = np.where(places >= shared, np.arange(len(texts))[:, None], 0)
    own = np.maximum.accumulate(own, axis=0)
    nodes = first[own, 0] + places - shared[own, 0]
    kept = fresh.any(axis=1)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))

    def tensor(values: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    return Tree(
        tensor(texts[fresh]),
        tensor(np.broadcast_to(places, texts.shape)[fresh]),
        tensor(np.where(within, nodes, 0)[kept]),
        tensor(np.flatnonzero(fresh[kept])),
        tensor(np.flatnonzero((within & ~fresh)[kept])),
        tensor(nodes[back[row], column]),
    )


def _spread(tree: Tree, stack: int, heads: int, groups: int, padded: int) -> Spread:
    device = tree.ids.device
    paths, origins, repeats, positions = (
        x.cpu().numpy() for x in (tree.paths, tree.origins, tree.repeats, tree.positions)
    )
    texts, width, shared, count = *paths.shape, heads // groups, len(positions)
    each, group = np.arange(stack), np.arange(groups)
    # Axes: (stack, texts, groups, heads of a group, width).
    member = each[:, None, None, None, None]
    key_group = group[:, None, None]
    at = paths[:, None, None, :]
    queries = ((member * count + at) * groups + key_group) * shared + np.arange(shared)[:, None]
    used = np.zeros(texts * width, dtype=bool)
    used[origins] = True
    unused = stack * count * heads
    wanted = np.where(used.reshape(texts, 1, 1, width), queries, unused).reshape(-1)
    longer = np.zeros((texts, padded), dtype=np.int64)
    longer[:, :width] = paths
    keys = ((member * count + longer[:, None, None]) * groups + key_group).reshape(-1)
    queries = queries.reshape(-1)

    def entries(chosen: Ints, kinds: int, length: int) -> Ints:
        """Return the rows (stack, chosen, kinds) of entries of paths, ``kinds`` rows a text."""
        text, column = (chosen // width)[:, None], (chosen % width)[:, None]
        rows = (each[:, None, None] * texts + text) * kinds + np.arange(kinds)
        return (rows * length + column).reshape(-1)

    mixed = entries(origins, heads, width)
    own, again = entries(origins, groups, padded), entries(repeats, groups, padded)
    of_repeats = paths.reshape(-1)[repeats][:, None]
    nodes = ((each[:, None, None] * count + of_repeats) * groups + group).reshape(-1)
    asked, held = stack * count * heads, stack * count * groups  # rows of queries, of keys
    first, second = len(queries), len(queries) + len(keys)  # where entries of keys, values begin
    places = np.tile(positions, stack)

    def tensor(*values: Ints) -> Tensor:
        return torch.from_numpy(np.concatenate(values).astype(np.int32)).to(device)

    return Spread(
        tensor(np.repeat(places, heads), np.repeat(places, groups)),
        tensor(queries, asked + keys, asked + held + keys),
        len(keys),
        tensor(wanted),
        tensor(mixed),
        tensor(mixed, first + own, second + own),
        tensor(first + again, second + again),
        tensor(asked + nodes, asked + held + nodes),
    )
