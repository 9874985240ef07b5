"""Invariants over many inputs. hypothesis is used if it is installed.

    @properties.check(n_runs=200)
    def test_sum_is_kept(rng):
        total = rng.randint(0, 100)
        ...

With hypothesis the numbers come from it, so a failing example is shrunk. Without it they come from seeds, and a failure
names its seed. Either way every run has the same inputs.
"""

import functools
import inspect
import random

try:
    import hypothesis
except ImportError:
    hypothesis = None


def check(n_runs=100):
    """Run a test `n_runs` times, each time with a new `random.Random` as its argument `rng`."""
    return functools.partial(_with_seeds if hypothesis is None else _with_hypothesis, n_runs)


def _with_hypothesis(n_runs, test):
    settings = hypothesis.settings(
        max_examples=n_runs,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],  # all examples share the pools
    )
    return settings(hypothesis.given(rng=hypothesis.strategies.randoms(use_true_random=False))(test))


def _with_seeds(n_runs, test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        for seed in range(n_runs):
            try:
                test(*args, rng=random.Random(seed), **kwargs)
            except Exception as error:
                error.add_note(f"with rng=random.Random({seed})")
                raise

    # Hide `rng` from pytest, which supplies all other arguments.
    parameters = inspect.signature(test).parameters
    run.__signature__ = inspect.Signature([p for name, p in parameters.items() if name != "rng"])
    return run
