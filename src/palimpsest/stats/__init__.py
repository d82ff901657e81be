"""From numbers to a verdict: axes, exact tests, controls, the screen, the verdict and its words."""
