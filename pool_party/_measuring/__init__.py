"""How commands and benchmarks measure work, and how they print their figures."""
