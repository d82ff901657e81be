"""The texts of a batch as a tree of tokens, so that what they share is computed once.

Under causal attention a token's hidden state depends on what stands before it and on nothing else.
Texts that begin alike have equal states along their common beginning, and neither padding nor a
text's last token, which predicts nothing, is looked at by anything that is scored. So a net
evaluates one *node* per distinct beginning; only attention needs texts side by side, and finds the
nodes of each in ``paths``.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


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
        """Give the rows of attention for so many members, heads and key groups; kept."""
        key = (stack, heads, groups, padded)
        if key not in self._spreads:
            self._spreads[key] = _spread(self, *key)
        return self._spreads[key]


def tree_of(ids: Tensor, rows: Tensor, columns: Tensor) -> Tree:
    """Give the tree of the texts ``ids`` (rows, width) up to the last column scored in each."""
    texts = ids.tolist()
    asked = list(zip(rows.tolist(), columns.tolist()))
    ends = [0] * len(texts)
    for row, column in asked:
        ends[row] = max(ends[row], column + 1)
    children: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    positions: list[int] = []
    paths: list[list[int]] = []
    of_row: list[list[int]] = []
    origins: list[tuple[int, int]] = []
    repeats: list[tuple[int, int]] = []
    for text, end in zip(texts, ends):
        path: list[int] = []
        node, fresh = -1, len(tokens)
        for token in text[:end]:
            known = children.get((node, token))
            if known is None:
                break
            node = known
            path.append(node)
        of_row.append(path)
        # A text that ends within another has all its nodes there; behind the first new one all are.
        shared = len(path)
        if shared < end:
            new = range(fresh, fresh + end - shared)
            children.update(zip(zip((node, *new[:-1]), text[shared:end]), new))
            tokens += text[shared:end]
            positions += range(shared, end)
            origins += [(len(paths), column) for column in range(shared, end)]
            repeats += [(len(paths), column) for column in range(shared)]
            path += new
            paths.append(path)
    width = max((len(path) for path in paths), default=1)
    padded = [path + [0] * (width - len(path)) for path in paths]

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=ids.device)

    return Tree(
        tensor(tokens),
        tensor(positions),
        torch.tensor(padded, dtype=torch.int64, device=ids.device).reshape(len(paths), width),
        tensor([text * width + column for text, column in origins]),
        tensor([text * width + column for text, column in repeats]),
        tensor([of_row[row][column] for row, column in asked]),
    )


def _spread(tree: Tree, stack: int, heads: int, groups: int, padded: int) -> Spread:
    device = tree.ids.device
    texts, width, shared = *tree.paths.shape, heads // groups
    count = len(tree.ids)

    def axis(size: int, place: int) -> Tensor:
        """Give 0, 1, ... along one of the axes (stack, texts, groups, heads of a group, width)."""
        shape = [1] * 5
        shape[place] = size
        return torch.arange(size, device=device).view(shape)

    member, group, head = axis(stack, 0), axis(groups, 2), axis(shared, 3)
    at = tree.paths.view(1, texts, 1, 1, width)
    queries = ((member * count + at) * groups + group) * shared + head
    kept = torch.zeros(texts * width, dtype=torch.bool, device=device)
    kept[tree.origins] = True
    wanted = torch.where(kept.view(at.shape), queries, stack * count * heads)
    longer = torch.nn.functional.pad(tree.paths, (0, padded - width)).view(1, texts, 1, 1, padded)
    keys = (member * count + longer) * groups + group

    def keyed(entries: Tensor) -> Tensor:
        """Give the rows of keys (stack, entries, groups) at entries of paths."""
        text, column = entries // width, entries % width
        each = torch.arange(stack, device=device)[:, None, None]
        rows = (each * texts + text[:, None]) * groups + torch.arange(groups, device=device)
        return (rows * padded + column[:, None]).reshape(-1)

    text, column = (tree.origins // width)[:, None], (tree.origins % width)[:, None]
    each = torch.arange(stack, device=device)[:, None, None]
    mixed = ((each * texts + text) * heads + torch.arange(heads, device=device)) * width + column
    mixed = mixed.reshape(-1)
    shared_nodes = tree.paths.view(-1)[tree.repeats]
    nodes = (each * count + shared_nodes[:, None]) * groups + torch.arange(groups, device=device)
    nodes = nodes.reshape(-1)
    queries, keys = queries.reshape(-1), keys.expand(stack, texts, groups, 1, padded).reshape(-1)
    asked, held = stack * count * heads, stack * count * groups  # rows of queries, of keys
    first, second = len(queries), len(queries) + len(keys)  # where entries of keys, values begin
    own, again = keyed(tree.origins), keyed(tree.repeats)
    places = tree.positions.repeat(stack)
    return Spread(
        torch.cat((places.repeat_interleave(heads), places.repeat_interleave(groups))),
        torch.cat((queries, asked + keys, asked + held + keys)),
        len(keys),
        wanted.reshape(-1),
        mixed,
        torch.cat((mixed, first + own, second + own)),
        torch.cat((first + again, second + again)),
        torch.cat((asked + nodes, asked + held + nodes)),
    )
