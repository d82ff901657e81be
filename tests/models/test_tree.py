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
    queries, keys = 2 * 2 * 2 * 3, 2 * 2 * 16
    assert spread.forth.shape == (queries + 2 * keys,) and spread.keys == keys
    # One number for each row among nodes: (member, node, head), then (member, node) twice.
    rows = torch.arange(2 * 4 * 2 + 2 * 2 * 4)
    entries = rows[spread.forth]
    asked = entries[:queries].view(2, 2, 2, 3)
    assert asked[1, 1].tolist() == [[8, 10, 14], [9, 11, 15]]
    assert torch.equal(asked.reshape(-1)[spread.mixed], rows[:16])
    assert torch.equal(entries[spread.back], rows)
    assert (spread.wanted == 16).sum() == 2 * 2 * 2  # shared beginnings, computed once
    # The second text's keys and values of the two shared nodes, in both members.
    assert torch.equal(entries[spread.repeated], spread.nodes)
    assert spread.nodes.tolist() == [16, 17, 20, 21, 24, 25, 28, 29]
    assert spread.positions.tolist() == [0, 0, 1, 1, 2, 2, 2, 2] * 2 + [0, 1, 2, 2] * 2
