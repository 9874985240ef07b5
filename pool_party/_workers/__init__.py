"""How work runs: one file for each kind of worker, and loop.py, which is the worker side of all kinds."""
