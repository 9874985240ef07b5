"""Task functions of the benchmarks, in modules that every kind of worker can import."""
