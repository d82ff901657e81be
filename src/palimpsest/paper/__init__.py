"""The paper's own bars, tables and figures, computed beside the verdict and never part of it."""
