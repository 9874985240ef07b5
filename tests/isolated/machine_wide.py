"""A program whose pool's regions wait for those of other programs.

Checks its results, and that regions passed the gate.
"""

from probe import ComposablePool, main, tasks

from pool_party import _native


def run(policy):
    gate = _native.Gate.machine(1)  # the pool's gate, which keeps its own number of tokens
    before = gate.n_acquired
    with ComposablePool(2, kind="process", policy=policy, scope="machine") as pool:
        errors = pool.map(tasks.linear_algebra, range(6), 1)
    print(max(errors) < 1e-8, gate.n_acquired > before, gate.n_free == gate.n_tokens)


if __name__ == "__main__":
    main(globals())
