"""Pure statistics on stored numbers: numpy and scipy only, so no verdict needs torch."""
