"""Models: loading, training, and evaluating one or several of them at asked positions."""
