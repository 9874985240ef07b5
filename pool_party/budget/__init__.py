"""Thread budgets: which CPUs there are, who may use how many of them, and how libraries are told."""
