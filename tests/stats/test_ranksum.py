"""The rank test over cells against brute-force enumeration, and its level."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from tests.stats.made_cell import cell

from palimpsest.errors import ScoreError
from palimpsest.stats.controls import reference_bag
from palimpsest.stats.ranksum import rank_sum
from palimpsest.stats.rules import Rules


@pytest.mark.parametrize("references", [(3,), (1, 1, 1), (3, 2, 4), (5, 1, 3, 2)])
def test_the_null_is_that_of_every_arrangement_of_ranks(references):
    every = [sum(ranks) for ranks in product(*(range(1, count + 2) for count in references))]
    for total in sorted(set(every)):
        exact = Fraction(sum(value <= total for value in every), len(every))
        test = rank_sum(_with_sum(total, references), references)
        assert (test.total, test.exact_p) == (total, exact)
        assert test.expected == pytest.approx(np.mean(every))


def _with_sum(total: int, references: tuple[int, ...]) -> list[int]:
    ranks = [1] * len(references)
    for place, count in enumerate(references):
        ranks[place] += min(count, total - sum(ranks))
    return ranks


def test_one_cell_gives_the_exact_test_of_one_checkpoint():
    assert rank_sum([1], [19]).exact_p == Fraction(1, 20)


def test_many_cells_of_few_references_tell_what_one_cannot():
    assert rank_sum([1] * 15, [3] * 15).exact_p == Fraction(1, 4**15)
    assert rank_sum([4] * 15, [3] * 15).exact_p == 1


@pytest.mark.parametrize(("ranks", "references"), [([], []), ([1, 2], [3]), ([0], [3]), ([5], [3])])
def test_ranks_that_cannot_be_are_refused(ranks, references):
    with pytest.raises(ScoreError):
        rank_sum(ranks, references)


def test_ranks_come_from_the_bag_of_the_comparison():
    measures = cell(20)
    bag = reference_bag(measures, Rules())
    injected = measures["injected"]
    compared = bag.compare(injected)
    assert compared is not None and bag.rank(injected) == round(compared.p * 21) == 1
    assert bag.rank(replace(injected, retain_nll=None)) is None
