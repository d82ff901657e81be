"""Evaluation logs of OpenUnlearning (TOFU and MUSE), read and judged without weights or torch."""

from palimpsest.openunlearning.judging import logs
from palimpsest.openunlearning.models import LogReport, Model, Outcome, Role
from palimpsest.openunlearning.screening import Screen, screen

__all__ = ["LogReport", "Model", "Outcome", "Role", "Screen", "logs", "screen"]
