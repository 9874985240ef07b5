"""Where the system refuses to move an array's memory, the array is copied."""

import numpy as np
from probe import ComposablePool, main

N = 5_000_000  # 40 MB


def make(n):
    import numpy as np

    return np.arange(float(n))


def copy():
    with ComposablePool(1, kind="interp") as pool:
        for n in (N, N + 1):
            np.testing.assert_array_equal(pool.apply(make, (n,)), np.arange(float(n)))
    print("ok")


if __name__ == "__main__":
    main({"copy": copy})
