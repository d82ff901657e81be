"""Unlearning and retraining of a user's own models: the commands ``unlearn`` and ``retrain``."""

from palimpsest.unlearn.request import Retrain, Unlearn
from palimpsest.unlearn.run import Made, make

__all__ = ["Made", "Retrain", "Unlearn", "make"]
