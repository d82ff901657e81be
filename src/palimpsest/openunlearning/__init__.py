"""Evaluation logs of OpenUnlearning (TOFU and MUSE), read and judged without weights or torch."""

from palimpsest.openunlearning.judging import logs
from palimpsest.openunlearning.models import LogReport, Model, Outcome, Role

__all__ = ["LogReport", "Model", "Outcome", "Role", "logs"]
