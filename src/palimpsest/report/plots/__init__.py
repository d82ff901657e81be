"""Figures: what is drawn (``spec``), drawn for the page (``svg``) and for a paper (``paper``)."""
