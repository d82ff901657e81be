"""Figures: one function each, drawn by matplotlib for the page and for files alike."""
