"""Experiments of their own and the pocket bake: scripts over the public API, not installed."""
