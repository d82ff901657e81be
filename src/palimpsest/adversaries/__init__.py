"""Known-label models that put the instruments to the test; adversaries among them try to fool.

Each is built from the models of a cell so that its ground truth is known: suppressed models still
hold the knowledge, interpolations hold part of it, a rescaled retraining holds none.
``registry.py`` finds them, ``known/`` has one file for each family, ``workshop.py`` is what they
are built from. Most are plain checkpoints. Some are wrapped nets (``wrappers.py``), which score and
train like any other.
"""
