"""Measures of other ways of asking (``facts/elicitation.py``), for models of any size."""

from dataclasses import dataclass

import numpy as np

from palimpsest.models.net import Net
from palimpsest.scoring.answers import Sheet, score


@dataclass(frozen=True)
class Elicitation:
    """Takes the measures of ``ASKED`` that a sheet has questions of."""

    sheet: Sheet

    def __call__(self, net: Net) -> list[dict[str, float]]:
        """Return each member's mean log-probability of the answers, by kind of question."""
        pools = np.array([question.pool for question in self.sheet.questions])
        counts = np.array(self.sheet.tokens, np.float64)
        return [
            {
                kind: -float((scores.nll_sum / counts)[pools == kind].mean())
                for kind in dict.fromkeys(pools.tolist())
            }
            for scores in score(net, self.sheet)
        ]
