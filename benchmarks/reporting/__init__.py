"""The report of bench.py: what the benchmarks found, as a page of Markdown with tables and pictures."""
