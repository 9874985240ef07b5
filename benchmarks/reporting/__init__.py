"""The report of bench.py: the results of the benchmarks, as a Markdown page with tables and pictures."""
