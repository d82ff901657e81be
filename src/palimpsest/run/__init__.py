"""The run folder and what works in it: store, leases, chains, executors."""
