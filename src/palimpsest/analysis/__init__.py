"""Analyses of stored results: what a run says, read from its files without torch."""
