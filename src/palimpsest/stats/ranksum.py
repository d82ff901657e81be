"""Is a method a way of retraining? Ranks within cells, added over cells, with their exact null.

Null hypothesis: in every cell the method's candidate is one more retraining, exchangeable with the
K references of its cell; cells are independent. In a cell its rank is

    r = #{j : S_j >= S_candidate}, the candidate itself counted,

where S is a model's sum of squared leave-one-out t in the bag of all K+1 (``comparison.py``).
Under the null r is uniform on 1 … K+1; ties only make it larger. The sum R of the ranks over cells
then has the convolution of these uniform distributions, and p = P(sum <= R): small when the
candidates lie further out than retrainings do. A few references per cell are enough for a claim
about a method over many cells, where a claim about one checkpoint needs nineteen in its own.

It is the stratified form of the rank test (van Elteren 1960, Bulletin of the International
Statistical Institute 37); exchangeability is needed within cells only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

from palimpsest.errors import ScoreError


@dataclass(frozen=True, slots=True)
class RankSum:
    """Ranks of one method's candidates over cells."""

    total: int
    cells: int
    expected: float
    """Of the sum, under the null."""
    exact_p: Fraction
    least_p: Fraction
    """The smallest p-value that so many cells and references can give."""

    @property
    def p_value(self) -> float:
        return float(self.exact_p)


def rank_sum(ranks: Sequence[int], references: Sequence[int]) -> RankSum:
    """Return the test of ranks (cells,), each among its cell's number of ``references``."""
    if len(ranks) != len(references) or not len(ranks):
        raise ScoreError(
            f"{len(ranks)} ranks for {len(references)} cells; expected one rank per cell, of at "
            "least one cell"
        )
    for rank, count in zip(ranks, references):
        if not 1 <= rank <= count + 1:
            raise ScoreError(f"rank {rank} among {count} references; expected 1 to {count + 1}")
    ways = _ways(tuple(sorted(references)))
    total, least = sum(ranks), len(ranks)
    p = Fraction(sum(ways[: total - least + 1]), sum(ways))
    expected = sum(count + 2 for count in references) / 2
    return RankSum(total, len(ranks), expected, p, Fraction(1, sum(ways)))


@lru_cache(maxsize=64)
def _ways(references: tuple[int, ...]) -> list[int]:
    """Return the number of ways to each sum of ranks, counted from the smallest possible one."""
    ways = [1]
    for count in references:
        below = [0, *accumulate(ways)]
        last = len(ways)
        ways = [
            below[min(index + 1, last)] - below[max(0, index - count)]
            for index in range(last + count)
        ]
    return ways
