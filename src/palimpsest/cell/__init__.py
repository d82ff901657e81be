"""The runner of one cell: train or take its models, measure them, store the rows, step by step."""
