"""Thread budgets: which CPUs there are, how many threads each worker may use on them, and how libraries are told."""
