"""The run folder and what works in it: files, locks, signals; store, steps, executors."""
