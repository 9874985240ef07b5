"""How work runs: one file for each kind of worker, and loop.py, which is the worker's side of all of them."""
