"""Build tools: run from a clone, not part of the package."""
