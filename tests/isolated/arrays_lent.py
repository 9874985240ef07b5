"""Memoryviews that a worker has sent with concurrent.interpreters can be read after its interpreter has ended."""

import gc
from concurrent import interpreters

from probe import TIMEOUT_S, ComposablePool, main

N_VIEWS = 20


def send(queue_id, what):
    import numpy as np

    queue = interpreters.Queue(queue_id)
    for n in range(N_VIEWS):
        queue.put(memoryview(bytes([n]) * 50 if what == "bytes" else np.full(50, n, np.uint8)))


def keep_busy(_):
    """Reuse memory as it becomes free, so that wrong reads would see other numbers."""
    import numpy as np

    return float(np.linalg.norm([bytearray(40)[0] for _ in range(50_000)]))


def read(what):
    queue = interpreters.create_queue()
    with ComposablePool(1, kind="interp") as pool:
        pool.apply(send, (queue.id, what))
        views = [queue.get() for _ in range(N_VIEWS)]
    pool.join(timeout=TIMEOUT_S)
    with ComposablePool(2, kind="interp") as pool:
        assert pool.map(keep_busy, range(4), 1) == [0.0] * 4
        assert [bytes(view) for view in views] == [bytes([n]) * 50 for n in range(N_VIEWS)]
        del views
        gc.collect()
    pool.join(timeout=TIMEOUT_S)
    print("ok")


if __name__ == "__main__":
    main({"read": read})
