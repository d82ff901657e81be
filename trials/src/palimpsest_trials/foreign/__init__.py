"""Foreign cells: models that this project's training code did not make, to calibrate checks on.

A check that can refuse an audit must be right about models made by others. Each cell here is made
by a plain Hugging Face loop (``loop.py``) with a recipe drawn at random (``recipes.py``): an
injected model, 9 or 20 references, five fresh retrainings, injected models of three wrong recipes,
mixtures and two suppressed models. ``audits.py`` audits them by the command and counts what refuses
what.

    python -m palimpsest_trials.foreign make OUT --cells 0:60 --workers 2
    python -m palimpsest_trials.foreign audit OUT --cells 0:60
    python -m palimpsest_trials.foreign table OUT --cells 30:60
"""
