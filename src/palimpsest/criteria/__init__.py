"""Published criteria of unlearning, put to trial on models whose truth is known.

``catalogue.py`` lists them, ``gauge.py`` takes their measures of a model, ``trial.py`` judges every
criterion by the models it accepts, ``page.py`` writes that down. Only taking measures needs torch.
"""
