"""Pure statistics on stored numbers: numpy and scipy only, so verdicts are checked without torch."""
