"""Every setting of a run: plans, presets, rules of reading, and their validation."""
