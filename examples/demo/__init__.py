"""A demonstration: the same work with every kind of worker, compared with a plain loop.

    python examples/demo [--quick] [--workers N] [--kinds A,B] [--size WxH] [--skip-numpy] [--output FILE]

It renders a picture in pure Python, and then solves eigenvalue problems with NumPy, if that is there. It prints the
time, the cores and the memory that each kind took and what follows from them, and writes the picture as a PNG file.

Workers import this package, since it contains the task functions. So its `__init__` imports nothing.
"""
