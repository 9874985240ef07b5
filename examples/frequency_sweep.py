"""Sweep a parameter with NumPy, in interpreters that have a GIL and BLAS threads of their own.

    python examples/frequency_sweep.py [--kind KIND] [--context METHOD] [--quick]

A chain of masses and springs is shaken at one end. For each frequency a system of equations gives how far the other
end moves. Each worker's BLAS keeps to its part of the CPUs by itself. `preload` imports NumPy when a worker starts.

It prints how long a plain loop and the pool took, whether they agree, and at which frequencies the chain resonates.
These must be its natural frequencies, which another computation gives. In interpreters, NumPy needs CPython 3.14.
"""

import argparse
import sys
import time

from pool_party import ComposablePool, InitializerFailed

try:
    import numpy as np
except ImportError:
    print("Skipped: this example needs NumPy (pip install numpy)")
    sys.exit()

STIFFNESS, MASS, DAMPING = 400.0, 1.0, 0.05


def stiffness_matrix(n_masses: int) -> np.ndarray:
    """Return the matrix of forces between neighbours; the walls hold both ends of the chain."""
    return STIFFNESS * (2 * np.eye(n_masses) - np.eye(n_masses, k=1) - np.eye(n_masses, k=-1))


def response(task: tuple[int, float]) -> float:
    """Return how far the last of `n_masses` moves while the first is shaken at a frequency, in rad/s."""
    n_masses, frequency = task
    force = np.eye(n_masses)[0]
    inertia = (MASS * frequency**2 - 1j * DAMPING * frequency) * np.eye(n_masses)
    return float(abs(np.linalg.solve(stiffness_matrix(n_masses) - inertia, force)[-1]))


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="interp")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="a short chain and few frequencies")
    args = parser.parse_args()
    n_masses, n_frequencies = (20, 200) if args.quick else (250, 400)
    natural = np.sqrt(np.linalg.eigvalsh(stiffness_matrix(n_masses)) / MASS)[:5]
    frequencies, step = np.linspace(0.5 * natural[0], natural[-1] + 0.5 * natural[0], n_frequencies, retstep=True)
    tasks = [(n_masses, float(frequency)) for frequency in frequencies]

    started_s = time.perf_counter()
    with ComposablePool(kind=args.kind, context=args.context, preload=["numpy"]) as pool:
        values = np.array(pool.map(response, tasks))
        pool_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    expected = np.array([response(task) for task in tasks])
    loop_s = time.perf_counter() - started_s

    print(f"{n_frequencies} frequencies, {n_masses} masses, workers of kind {args.kind!r}")
    peaks = frequencies[1:-1][(values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])]
    is_same = np.allclose(values, expected, rtol=1e-9)
    is_right = len(peaks) == len(natural) and np.allclose(peaks, natural, rtol=0, atol=step)
    print(f"plain loop: {loop_s:.2f} s; pool, with its start: {pool_s:.2f} s, {loop_s / pool_s:.2f} times as fast")
    print(f"peaks:               {' '.join(f'{peak:.4f}' for peak in peaks)} rad/s, in steps of {step:.4f}")
    print(f"natural frequencies: {' '.join(f'{frequency:.4f}' for frequency in natural)} rad/s")
    print(f"same as the loop: {'yes' if is_same else 'NO'}; peaks where they should be: {'yes' if is_right else 'NO'}")
    return is_same and is_right


if __name__ == "__main__":
    try:
        sys.exit(not main())
    except InitializerFailed as error:  # NumPy does not load in these workers
        print(f"Skipped: {error.__cause__}")
