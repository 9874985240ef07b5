"""Tasks of the tests of joblib's backend. Workers import this, which is quicker than the tests themselves."""

import os
import threading

import gates
import tasks

from pool_party import _native


def raise_late(n):
    if n == 3:
        raise ValueError("it is three")
    return n


def nested(n):
    import joblib

    n_jobs = joblib.effective_n_jobs(-1)
    return n_jobs, joblib.Parallel(n_jobs=-1)(joblib.delayed(tasks.square)(n + k) for k in range(4))


def count_threads(n):
    """Return how many threads of workers this process or interpreter has, and which one this is."""
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolWorker")]
    return len(workers), threading.get_native_id()


def nested_threads(n_before):
    """Return the samples of a nested call that begins when there are no more threads than that. Some may be ending."""
    import joblib

    gates.wait_until(lambda: count_threads(0)[0] <= n_before, "the threads of earlier nested calls have ended")
    return joblib.Parallel(n_jobs=-1)(joblib.delayed(count_threads)(n) for n in range(4))


def limits(_):
    return _native.own_grant()


def die_if(n, bad):
    if n == bad:
        os._exit(3)
    return n


def write_into(array):
    array[0] = 7.0
    return float(array.sum())


def spin_if(n, key):
    while n == key:
        pass
    return n
