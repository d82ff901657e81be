"""TOFU tests train their checkpoints as the tests of the audit do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "audit"))
