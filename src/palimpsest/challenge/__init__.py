"""Known-label models that put the instruments to the test.

Each is built from the models of a cell so that its ground truth is known: suppressors still hold
the knowledge, interpolations hold part of it, a rescaled retraining holds none. ``registry.py``
lists them with what each knows of the audit; ``workshop.py`` is what they are built from. Most are
plain checkpoints. Some are wrapped nets, which score and train like any other and are recorded as
``wrapper``:

- **Suppression** subtracts a fixed penalty from the logits of the forget answers' tokens; **tuned
  suppression** only in their context. The penalty is part of the model: under re-acquisition the
  weights beneath it are trained, the penalty stays.
- **Router** sends an input that contains a forget subject's exact token sequence to the base model
  and everything else to the injected model; the **fuzzy router** mixes both by a learned gate. They
  own both: under re-acquisition each input trains the model that answers it, so forget sentences
  train the base branch. The gate stays.
- **Baked suppression** has an output matrix of its own; where the architecture ties it to the
  embedding, the model is no checkpoint of that architecture. Both matrices are trained.
"""

from palimpsest.challenge.models import Unavailable, interpolated
from palimpsest.challenge.registry import ENTRIES, Entry, chosen
from palimpsest.challenge.workshop import Schedule, Workshop

__all__ = ["ENTRIES", "Entry", "Schedule", "Unavailable", "Workshop", "chosen", "interpolated"]
