"""Further measures of every model of a study: name this class in a plan, from this folder.

measures: [my_measures:Confidence]
"""

import torch

from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Net, collate
from palimpsest.scoring.measures import MeasuredCell


class Confidence:
    """The mean probability of the likeliest token at the forget answers, and beside injected."""

    def __init__(self, cell: MeasuredCell) -> None:
        asked = [question for question in cell.facts.questions if question.set == "forget"]
        self.batch = collate(encode_answers(cell.tokenizer, asked))
        (self.injected,) = self.confidences(cell.net([cell.state("injected")]))

    @torch.no_grad()
    def confidences(self, net: Net) -> list[float]:
        logits = net.logits(self.batch.to(net.device))  # (members, answer tokens, vocabulary)
        return logits.softmax(-1).amax(-1).mean(-1).tolist()

    def __call__(self, net: Net) -> list[dict[str, float]]:
        return [
            {"confidence": mine, "above_injected": mine - self.injected}
            for mine in self.confidences(net)
        ]
