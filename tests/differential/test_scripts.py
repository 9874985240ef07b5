"""Scripts whose functions are in `__main__` behave the same with `multiprocessing.Pool` and with each of our kinds."""

import functools
import os
import sys
import tempfile

import fresh
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import accepted
import scripts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 14), reason="compared on the newest versions alone, as it takes minutes"),
]

PROCESSES = ("process-fork", "process-forkserver", "process-spawn")


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
    if (subject, name) in accepted.SCRIPTS:
        _, expected = accepted.SCRIPTS[subject, name]
    else:
        expected = by_pool(subject.removeprefix("process-") if subject in PROCESSES else "fork", name)
    if expected is None:
        assert done.returncode == 1 and "Error: " in done.err, done
    else:
        fresh.check(done, expected)
