"""Adversaries beyond the paper's panel, each a known-label model that a plan may name.

To add one, write a function of a ``Distiller`` below ``@adversary(...)`` in a file here, and its
name into the list of ``palimpsest_trials``.
"""
