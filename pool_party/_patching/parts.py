"""The names of the parts that can be replaced, for the options `only` and `excluded`."""

PARTS: tuple[str, ...] = ("multiprocessing", "concurrent.futures", "asyncio", "joblib", "dask", "scipy")
