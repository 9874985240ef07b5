"""Programs with pools whose interpreters are kept: `python reusing.py NAME`. Each prints "ok".

`python reusing.py measure [plain|numpy|sklearn] [N]` prints what N pools of two cost, with `reuse` and without.
"""

import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
import tracemalloc

import gates
import reuse_tasks

from pool_party import ComposablePool, InterpreterPool, PoolPartyError, _native, end_kept_interpreters

counter = 0


def answer():
    return "first"


def count():
    global counter
    counter += 1
    return counter


class Point:
    def __init__(self, x):
        self.x = x


def move(point):
    return Point(point.x + 1)


def names_in_main():
    return sorted(vars(sys.modules["__main__"]))


def use(function, *args, n=1, **options):
    with InterpreterPool(n, reuse=True, **options) as pool:
        result = pool.apply(function, args)
        gates.wait_until(lambda: pool._engine._workers.n_starting == 0, "all workers")
    pool.join()
    return result


def main_module():
    """What is sent of `__main__` is sent to each pool."""
    global answer
    assert use(answer) == "first" and use(count) == 1 and use(count) == 1
    assert use(move, Point(1)).x == 2
    Point.y = 3

    def answer():
        return "second"

    answer.__qualname__ = "answer"
    assert use(answer) == "second" and use(count) == 1
    assert use(lambda: Point.y) == 3 and use(move, Point(4)).x == 5
    assert _native.n_kept() == 1
    found = use(names_in_main)
    end_kept_interpreters()
    assert found == use(names_in_main) and "answer" not in found


def ending():
    """Kept interpreters end with the program, and so do those of a pool that is left open."""
    use(abs, 1, n=2)
    globals()["pool"] = pool = InterpreterPool(2, reuse=True)
    pool.apply(abs, (1,))


def interrupt_end(pid):
    """Make the interpreter's end take some time, and send Ctrl-C."""
    library = {"__name__": "os"}  # what libraries register stays
    exec("import atexit, os, time", library)
    exec(f"atexit.register(time.sleep, 0.2); atexit.register(os.kill, {pid}, 2)", library)


def ending_interrupted():
    """Ctrl-C while the program's end waits for kept interpreters."""
    use(interrupt_end, os.getpid())
    assert _native.n_kept() == 1


def forking():
    """A fork ends them; the child has none, and may have pools."""
    use(abs, 1)
    assert _native.n_kept() == 1
    pid = os.fork()
    if pid == 0:
        assert _native.n_kept() == _native.n_interpreters() == 0
        assert use(abs, -2) == 2 and _native.n_kept() == 1
        end_kept_interpreters()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert _native.n_kept() == 0
    assert use(abs, -3) == 3


def end_while_busy(reuse):
    """End a pool whose task ends some time after the file that is returned exists."""
    folder = pathlib.Path(tempfile.mkdtemp())
    begun, told = folder / "begun", folder / "told"
    with InterpreterPool(1, reuse=reuse) as pool:
        pool.apply_async(reuse_tasks.end_when_told, (str(begun), str(told)))
        gates.wait_until(begun.exists, "the task")
    assert _native.n_interpreters() == 1
    return told


def forking_at_once():
    """A fork waits for interpreters whose tasks the end of the pool has interrupted."""
    for reuse in (True, False):
        told = end_while_busy(reuse)
        os.register_at_fork(before=told.touch)  # the hook that was registered last is the first one
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert _native.n_interpreters() == 0
        end_while_busy(reuse).touch()
        with ComposablePool(1, kind="process", context="fork") as pool:
            assert pool.apply(os.getppid) == os.getpid()


def forked_workers():
    use(abs, 1)
    context = multiprocessing.get_context("fork")
    with ComposablePool(1, kind="process", context=context) as pool:
        assert pool.apply(os.getppid) == os.getpid(), "they were not forked"
    pool.join()
    use(abs, 1)
    process = context.Process(target=abs, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0


def tracing():
    pool = InterpreterPool(1, reuse=True)
    pool.apply(abs, (1,))
    tracemalloc.start()
    pool.close()
    pool.join()
    assert _native.n_kept() == 0
    tracemalloc.stop()
    use(abs, 1)
    tracemalloc.start()
    try:
        use(abs, 1)
    except PoolPartyError:
        tracemalloc.stop()
    assert use(abs, -1) == 1 and _native.n_kept() == 1


def open_pool():
    with InterpreterPool(1, reuse=True) as pool:
        return pool.apply(abs, (-1,))


def nesting():
    """A pool that a task opens keeps none for the program."""
    assert use(open_pool) == 1
    assert _native.n_kept() == 0 == _native.n_interpreters()


def norm(n):
    import numpy

    return float(numpy.linalg.norm(numpy.arange(n)))


def wait_for(pipe):
    import _thread

    _thread.start_new_thread(os.read, (pipe, 1))


def raw_thread():
    """An interpreter with a thread that nobody waits for never ends."""
    here, _ = os.pipe()
    use(wait_for, here)
    assert _native.n_kept() == 0 and _native.n_interpreters() == 1
    print("ok", flush=True)
    os._exit(0)  # CPython would complain of the interpreter


def bounded():
    """At most as many are kept as the largest pool had; the oldest ends."""
    numbers = [use(reuse_tasks.number, extensions=extensions) for extensions in (None, (), ["own_one"])]
    assert len(set(numbers)) == 3 and _native.n_kept() == 1
    assert use(reuse_tasks.number, extensions=["own_one"]) == numbers[2]
    assert use(reuse_tasks.number) not in numbers
    use(abs, 1, n=3)
    assert _native.n_kept() == 3
    use(abs, 1, extensions=())
    assert _native.n_kept() == 3
    gates.wait_until(lambda: _native.n_interpreters() == 3, "the end of the oldest")
    end_kept_interpreters()
    assert _native.n_kept() == _native.n_interpreters() == 0


def fit(n):
    import numpy
    import pandas
    from sklearn.ensemble import RandomForestRegressor  # noqa: F401
    from sklearn.linear_model import LinearRegression

    x = pandas.DataFrame({"x": numpy.arange(float(n))})
    return float(LinearRegression().fit(x, x["x"]).predict(x)[0])


TASKS = {"plain": abs, "numpy": norm, "sklearn": fit}


def measure(name="plain", n="20"):
    """The medians of all pools but the first two, in CPU time of the process, and the growth of private memory."""
    for reuse in (True, False):
        opening, ending, private = [], [], []
        for _ in range(int(n)):
            begin = time.process_time()
            with InterpreterPool(2, reuse=reuse) as pool:
                pool.apply(TASKS[name], (10,))
                opening.append(1e3 * (time.process_time() - begin))
                pool.map(TASKS[name], range(10, 18), 1)
                gates.wait_until(lambda: pool._engine._workers.n_starting == 0, "all workers")
                begin = time.process_time()
            pool.join()
            ending.append(1e3 * (time.process_time() - begin))
            private.append(resources()[2])
        grown = (private[-1] - private[1]) / (len(private) - 2)
        first, end = statistics.median(opening[2:]), statistics.median(ending[2:])
        print(f"{name}, {reuse=}: to the first result {first:.1f} ms, end {end:.1f} ms, growth {grown:.0f} KiB a pool")


def resources():
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    private = pathlib.Path("/proc/self/smaps_rollup").read_text().split("Private_Dirty:")[1].split()[0]
    counts = [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), _native.n_interpreters()]
    return counts, len(maps), int(private)


def many(name="plain"):
    function = TASKS[name]
    in_both = {"n": 2, "initializer": function, "initargs": (10,)}  # one worker may do all tasks of ten pools
    for _ in range(10):
        use(function, 10, **in_both)
    counts, n_maps, private = resources()
    for _ in range(50):
        use(function, 10, **in_both)
    gates.wait_until(
        lambda: all(now <= then for now, then in zip(resources()[0], counts, strict=True)),
        f"at most {counts} descriptors, threads and interpreters",
    )
    _, n_maps_now, private_now = resources()
    assert "memfd:pool_party" not in pathlib.Path("/proc/self/maps").read_text()
    assert n_maps_now <= n_maps + 25, (n_maps_now, n_maps)
    assert private_now <= private + 2048, (private_now, private)  # KiB; with NumPy and without `reuse` 60 times that


PROGRAMS = {"main": main_module, "ending": ending, "ending_interrupted": ending_interrupted}
PROGRAMS |= {"forking": forking, "forking_at_once": forking_at_once}
PROGRAMS |= {"forked_workers": forked_workers}
PROGRAMS |= {"tracing": tracing, "nesting": nesting, "raw_thread": raw_thread, "bounded": bounded, "many": many}
PROGRAMS |= {"measure": measure}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
    print("ok")
