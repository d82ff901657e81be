"""The texts of a batch as a tree of tokens, so that what they share is computed once.

Under causal attention a token's hidden state depends only on the tokens before it. Texts with a
common beginning have equal states along it, and neither padding nor a text's last token, which
predicts nothing, influences anything that is scored. So a net evaluates one *node* per distinct
beginning; only attention needs the texts side by side, and finds the nodes of each in ``paths``.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LANES = 16
"""Floats in the widest vector register. A softmax along 15 scores leaves torch's vectorized kernel
and takes ten times as long as one along 16, so keys are padded to a multiple of this."""


@dataclass(frozen=True)
class Tree:
    """Distinct beginnings of some texts; an *entry* is a place in ``paths``, flattened.

    ids, positions: (nodes,) each node's token and its place in the text, from 0.
    paths: (texts, width) the nodes along each text, 0 behind its end.
    keys: (texts, padded width) the same, padded to full vector registers.
    origins: (nodes,) the first entry of each node, where its outcome of attention is taken from.
    repeats, repeated: (repeats,) the other entries of shared nodes, and their nodes.
    scored: (scored,) the node of each scored position.
    """

    ids: Tensor
    positions: Tensor
    paths: Tensor
    keys: Tensor
    origins: Tensor
    repeats: Tensor
    repeated: Tensor
    scored: Tensor


def tree_of(ids: Tensor, rows: Tensor, columns: Tensor) -> Tree:
    """Return the tree of the texts ``ids`` (rows, width) up to the last column scored in each.

    Among sorted texts, the longest beginning that a text shares with any text above it is the one
    that it shares with its neighbor. In falling order, a text that is a beginning of another comes
    right after it and adds no node.
    """
    texts, row, column = (part.cpu().numpy() for part in (ids, rows, columns))
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
    paths = np.where(within, nodes, 0)[kept]
    repeats = np.flatnonzero((within & ~fresh)[kept])

    def tensor(values: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(ids.device)

    return Tree(
        ids=tensor(texts[fresh]),
        positions=tensor(np.broadcast_to(places, texts.shape)[fresh]),
        paths=tensor(paths),
        keys=tensor(np.pad(paths, ((0, 0), (0, -len(places) % LANES)))),
        origins=tensor(np.flatnonzero(fresh[kept])),
        repeats=tensor(repeats),
        repeated=tensor(paths.reshape(-1)[repeats]),
        scored=tensor(nodes[np.argsort(order)[row], column]),
    )
