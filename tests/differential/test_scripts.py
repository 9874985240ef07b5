"""Scripts whose functions live in `__main__` do the same with `multiprocessing.Pool` as with each kind of ours."""

import functools
import os
import sys
import tempfile

import fresh
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import scripts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 14), reason="compared on the newest versions alone, as it takes minutes"),
]

PROCESSES = ("process-fork", "process-forkserver", "process-spawn")
NEEDS_STATE = "an interpreter has not run the script, and this cannot be sent to it"
SHARED = "threads share the caller's objects"
# What differs from multiprocessing.Pool, and why; `None` stands for an error that says so.
ACCEPTED = {
    ("interp", "global_lock"): (NEEDS_STATE, None),
    ("interp", "sqlite_connection"): (NEEDS_STATE, None),
    ("interp", "executor"): (NEEDS_STATE, None),
    ("interp", "generator"): (NEEDS_STATE, None),
    ("interp", "context_variable"): (NEEDS_STATE, None),
    ("interp", "ctypes_library"): (NEEDS_STATE, None),
    ("interp", "open_file"): (NEEDS_STATE, None),
    ("interp", "weak_references"): (NEEDS_STATE, None),
    ("interp", "unused_and_opaque"): (NEEDS_STATE, None),
    ("thread", "class_counter"): (SHARED, "[True, True, True, True, True, True] 9\nTrue True 10\n"),
    ("thread", "counter_in_worker"): (SHARED, "[1, 2, 3] 3 3\n"),
    ("thread", "cache_in_worker"): (SHARED, "[1, 1, 2] [3] {1: 2, 2: 1, 3: 1}\n"),
    ("thread", "value_changed_by_caller"): (SHARED, "[2]\n[11]\n"),
    ("thread", "reducer_with_effects"): ("nothing is pickled", "[1, 2, 3] True 0\n"),
}


def run(subject, text):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "app.py")
        with open(path, "w") as script:
            script.write(text)
        process = fresh.start([path], cwd=folder, extra={"KIND": subject}, options=())
        return fresh.finish(process)


@functools.cache
def by_pool(method, name):
    return fresh.check(run(f"pool-{method}", scripts.text_of(name))).out


@pytest.mark.parametrize("name", scripts.SCRIPTS)
@pytest.mark.parametrize("subject", [*PROCESSES, "interp", "thread"])
def test_as_with_pool(subject, name):
    done = run(subject, scripts.text_of(name))
    if (subject, name) in ACCEPTED:
        _, expected = ACCEPTED[subject, name]
    else:
        expected = by_pool(subject.removeprefix("process-") if subject in PROCESSES else "fork", name)
    if expected is None:
        assert done.returncode == 1 and "Error: " in done.err, done
    else:
        fresh.check(done, expected)
