"""The TOFU study: is the never-learned level within a retrained model's reach at all?"""

from palimpsest.tofu.request import TofuRequest
from palimpsest.tofu.run import TofuResult, run_tofu

__all__ = ["TofuRequest", "TofuResult", "run_tofu"]
