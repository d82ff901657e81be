"""The core of the method, without input or output: arrays in, plain values out.

From numbers to a verdict: axes, exact tests, controls, the screen, the verdict and its words. It
reads and writes no file and loads no model; a contract in ``pyproject.toml`` keeps it so.
"""
