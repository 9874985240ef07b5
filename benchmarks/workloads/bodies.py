"""The Sun and its four giant planets, moved in small steps by their gravity.

Lengths are in astronomical units, times in years, masses such that the gravitational constant is 1. The initial state
is that of the n-body program of the Computer Language Benchmarks Game.
"""

import copy
import itertools
import math
from collections.abc import Sequence

SUN = 4 * math.pi**2
_DAYS = 365.24
_STEP = 0.01

type Body = tuple[list[float], list[float], float]  # position, velocity, mass
type Task = tuple[int, int]  # rounds, steps in each


def _body(position: Sequence[float], velocity_per_day: Sequence[float], suns: float) -> Body:
    return list(position), [component * _DAYS for component in velocity_per_day], suns * SUN


def _at_rest(planets: list[Body]) -> list[Body]:
    """Add a sun whose momentum cancels that of the planets."""
    drift = [-sum(mass * velocity[axis] for _, velocity, mass in planets) / SUN for axis in range(3)]
    return [([0.0, 0.0, 0.0], drift, SUN), *planets]


_INITIAL = _at_rest(
    [
        _body(
            (4.84143144246472090, -1.16032004402742839, -0.103622044471123109),
            (1.66007664274403694e-3, 7.69901118419740425e-3, -6.90460016972063023e-5),
            9.54791938424326609e-4,
        ),
        _body(
            (8.34336671824457987, 4.12479856412430479, -0.403523417114321381),
            (-2.76742510726862411e-3, 4.99852801234917238e-3, 2.30417297573763929e-5),
            2.85885980666130812e-4,
        ),
        _body(
            (12.8943695621391310, -15.1111514016986312, -0.223307578892655734),
            (2.96460137564761618e-3, 2.37847173959480950e-3, -2.96589568540237556e-5),
            4.36624404335156298e-5,
        ),
        _body(
            (15.3796971148509165, -25.9193146099879641, 0.179258772950371181),
            (2.68067772490389322e-3, 1.62824170038242295e-3, -9.51592254519715870e-5),
            5.15138902046611451e-5,
        ),
    ]
)
_SHARED = copy.deepcopy(_INITIAL)
_SHARED_PAIRS = list(itertools.combinations(_SHARED, 2))


def _advance(bodies: list[Body], pairs: list[tuple[Body, Body]], n_steps: int) -> None:
    for _ in range(n_steps):
        for (here, v, mass), (there, w, other_mass) in pairs:
            dx, dy, dz = here[0] - there[0], here[1] - there[1], here[2] - there[2]
            pull = _STEP * (dx * dx + dy * dy + dz * dz) ** -1.5
            of_other, of_this = other_mass * pull, mass * pull
            v[0] -= dx * of_other
            v[1] -= dy * of_other
            v[2] -= dz * of_other
            w[0] += dx * of_this
            w[1] += dy * of_this
            w[2] += dz * of_this
        for position, velocity, _ in bodies:
            position[0] += _STEP * velocity[0]
            position[1] += _STEP * velocity[1]
            position[2] += _STEP * velocity[2]


def _energy(bodies: list[Body], pairs: list[tuple[Body, Body]]) -> float:
    moving = sum(mass * sum(component**2 for component in velocity) / 2 for _, velocity, mass in bodies)
    return moving - sum(mass * other / math.dist(here, there) for (here, _, mass), (there, _, other) in pairs)


def nbody(task: Task) -> int:
    """Move the bodies that all tasks of this process share, and return the number of steps.

    Threads corrupt each other's numbers, and in processes the positions depend on which one ran which task. Neither is
    therefore returned.
    """
    n_rounds, n_steps = task
    for _ in range(n_rounds):
        _advance(_SHARED, _SHARED_PAIRS, n_steps)
        _energy(_SHARED, _SHARED_PAIRS)
    return n_rounds * n_steps


def nbody_no_share(task: Task) -> list[float]:
    """Move bodies of its own, and return their energy after each round."""
    n_rounds, n_steps = task
    bodies = copy.deepcopy(_INITIAL)
    pairs = list(itertools.combinations(bodies, 2))
    energies = []
    for _ in range(n_rounds):
        _advance(bodies, pairs, n_steps)
        energies.append(_energy(bodies, pairs))
    return energies


def balance(task: tuple[int, int]) -> list[float]:
    """Compute much and return much: move bodies of its own by some steps, and return their energy many times over."""
    n_steps, n_results = task
    return nbody_no_share((1, n_steps)) * n_results
