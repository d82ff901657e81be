"""A tree of texts has every beginning once, and attention finds each text's way through it."""

import torch

from palimpsest.models.net import Encoded, collate

TEXTS = (
    Encoded((5, 6, 7, 8), 3),
    Encoded((5, 6, 9), 1),
    Encoded((5, 6, 7, 8), 2),
    Encoded((4, 6, 7), 2),
)


def test_common_beginnings_are_one_node_and_last_tokens_none() -> None:
    tree = collate(TEXTS).tree
    assert tree.ids.tolist() == [5, 6, 7, 4, 6]
    assert tree.positions.tolist() == [0, 1, 2, 0, 1]
    assert tree.paths.tolist() == [[0, 1, 2], [3, 4, 0]]
    assert tree.scored.tolist() == [2, 0, 1, 1, 2, 4]


def test_padding_adds_no_node() -> None:
    alone = collate(TEXTS[:1]).tree
    beside = collate([TEXTS[0], Encoded((1,) * 20, 1)]).tree
    assert beside.ids.tolist() == [*alone.ids.tolist(), *[1] * 19]


def test_gradients_of_shared_nodes_are_gathered_from_every_text() -> None:
    texts = [Encoded((5, 6, 7, 1), 1), Encoded((5, 6, 8, 1), 1)]
    tree = collate(texts).tree
    assert tree.paths.tolist() == [[0, 1, 2], [0, 1, 3]]
    assert tree.repeats.tolist() == [3, 4]
    spread = tree.spread(2, 2, 1, 16)
    assert spread.queries.shape == (2 * 2 * 2 * 3,)
    rows = torch.arange(2 * 4 * 2).view(2, 4, 2)  # one number for each (member, node, head)
    entries = rows.view(-1)[spread.queries].view(2, 2, 2, 3)
    assert entries[1, 1].tolist() == [[8, 10, 14], [9, 11, 15]]
    back = entries.reshape(-1)[spread.mixed]
    assert torch.equal(back, rows.view(-1))
    assert (spread.wanted == rows.numel()).sum() == 2 * 2 * 2  # shared beginnings, computed once
