"""Known-label models that put the instruments to the test.

Each is built from the injected model (or the reference) so that its ground truth is known:
suppression, router and embedding corruption still hold the knowledge, interpolations hold part of
it. ``registry.py`` lists them. Suppression and router are wrapped models that score and train like
any other:

- **Suppression** subtracts a fixed penalty from the logits of the forget answers' tokens. The
  penalty is part of the model: under re-acquisition the weights beneath it are trained, the penalty
  stays.
- **Router** sends an input that contains a forget subject's exact token sequence to the base model
  and everything else to the injected model. It owns both: under re-acquisition each input trains
  the model that answers it, so forget sentences train the base branch.
"""

from palimpsest.challenge.models import Unavailable, interpolated
from palimpsest.challenge.registry import ENTRIES, Entry, Workshop, chosen

__all__ = ["ENTRIES", "Entry", "Unavailable", "Workshop", "chosen", "interpolated"]
