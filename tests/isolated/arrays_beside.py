"""Two pools of interpreters use NumPy, and the main interpreter does before, during or after.

Exits with one open, or busy.
"""

from probe import ComposablePool, main, tasks

pools = []


def compute(n):
    import numpy as np

    a = np.random.default_rng(n).standard_normal((80, 80))
    return float(np.linalg.eigvalsh(a @ a.T).sum()), float(np.fft.fft(a).real.sum()), np.geterr()["over"]


def work(order):
    expected = [compute(n) for n in range(8)] if order == "before" else None
    pools.extend(ComposablePool(2, kind="interp") for _ in range(2))
    jobs = [pool.map_async(compute, range(8), 1) for pool in pools]
    if order == "during":
        expected = [compute(n) for n in range(8)]
    results = [job.get(60) for job in jobs]
    if order == "busy":
        pools[1].map_async(compute, range(3_000), 1)
        print("ok")
        return
    pools[0].close()
    pools[0].join(timeout=30)
    expected = expected or [compute(n) for n in range(8)]
    for result in results:
        for there, here in zip(result, expected, strict=True):
            assert abs(there[0] - here[0]) < 1e-6 and abs(there[1] - here[1]) < 1e-6 and there[2] == here[2]
    assert pools[1].map(compute, range(2), 1)[0][0] == results[1][0][0]
    print("ok")


def limited():
    """A library that the first task loads must keep to the budget within that task."""
    with ComposablePool(2, kind="interp", threads_per_worker=1) as pool:
        assert pool.apply(tasks.openblas_count) == [1]
    print("ok")


if __name__ == "__main__":
    main({"work": work, "limited": limited})
