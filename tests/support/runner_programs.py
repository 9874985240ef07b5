"""Programs that tests/running/test_runner.py runs, as text."""

# What a program can see of its interpreter. Not compared, because it differs: sys.orig_argv, which has our options; our
# modules, and what they import, in sys.modules; a finder of ours in sys.meta_path; our frames below the program's.
PROBE = """\
'''A docstring.'''
import sys, __main__, atexit, signal
def shown(value):
    return value if isinstance(value, (str, int, dict, tuple, type(None))) else type(value)
for name, value in list(vars(__main__).items()):
    print(name, shown(value) if name != '__spec__' or value is None else (value.name, value.origin, value.parent))
print(sys.argv, sys.path, sys.flags, sys.warnoptions, sys.ps1 if hasattr(sys, 'ps1') else None)
print(vars(__main__) is globals(), sys.modules['__main__'] is __main__, sys._getframe().f_code.co_filename)
print(sys.excepthook is sys.__excepthook__, signal.getsignal(signal.SIGINT), 'multiprocessing' in sys.modules)
atexit.register(lambda: print('the end', sys.argv, sorted(vars(__main__))))
print('to stderr', file=sys.stderr)
"""

# How programs end.
ENDS = {
    "error": """\
def f():
    return 1 / 0
f()
""",
    "chained": """\
try:
    {}['a']
except KeyError as error:
    raise ValueError('b') from error
""",
    "group": """\
raise ExceptionGroup('several', [ValueError(1), TypeError(2)])
""",
    "noted": """\
error = ValueError('a')
error.add_note('a note')
raise error
""",
    "status": """\
raise SystemExit(7)
""",
    "message": """\
import sys
sys.exit('a message')
""",
    "none": """\
import sys
sys.exit()
""",
    "large": """\
import sys
sys.exit(2 ** 40)
""",
    "forced": """\
import os
print('a', flush=True)
os._exit(9)
""",
    "interrupt": """\
import signal
signal.raise_signal(signal.SIGINT)
for _ in range(9): pass
""",
    "raised": """\
raise KeyboardInterrupt
""",
    "subclass": """\
class E(KeyboardInterrupt): pass
raise E
""",
    "killed": """\
import os, signal
os.kill(os.getpid(), signal.SIGTERM)
""",
    "warning": """\
import warnings
def f():
    warnings.warn('old', DeprecationWarning, stacklevel=2)
f()
""",
    "recursion": """\
def f():
    return f()
try:
    f()
except RecursionError:
    print('deep')
""",
    "hook": """\
import sys
sys.excepthook = lambda *args: print('hook', args[0], args[2].tb_frame.f_code.co_name, '__file__' in globals())
raise ValueError
""",
    "bad hook": """\
import sys
def hook(*args):
    raise TypeError('in the hook')
sys.excepthook = hook
raise ValueError
""",
    "leaving hook": """\
import sys
sys.excepthook = lambda *args: sys.exit(5)
raise ValueError
""",
    "atexit": """\
import atexit
for n in range(3):
    atexit.register(print, n)
1 / 0
""",
    "last": """\
import atexit, sys, traceback
atexit.register(lambda: print(traceback.format_exception(sys.last_exc)))
1 / 0
""",
    "file at the end": """\
import atexit
atexit.register(lambda: print('__file__' in globals()))
""",
    "file after exit": """\
import atexit
atexit.register(lambda: print('__file__' in globals()))
raise SystemExit
""",
    "thread": """\
import threading, time
threading.Thread(target=lambda: (threading.main_thread().join(), print('b'))).start()
""",
    "thread error": """\
import threading
threading.excepthook = lambda args: print(args.exc_type)
t = threading.Thread(target=lambda: 1 / 0)
t.start()
t.join()
""",
    "del": """\
class A:
    def __del__(self): print('deleted')
a = A()
""",
    "del after exit": """\
class A:
    def __del__(self): print('deleted')
a = A()
raise SystemExit
""",
    "pickle": """\
import pickle
class A: pass
print(type(pickle.loads(pickle.dumps(A()))) is A)
""",
    "doctest": """\
'''
>>> 1 + 1
2
'''
import doctest
print(doctest.testmod())
""",
    "again": """\
import runpy, sys
print(runpy.run_path(sys.argv[1], run_name='again')['x'])
""",
    "broken pipe": """\
import sys, os
print(1, flush=True)
os.close(1)
print(2)
""",
    "finalizers": """\
import atexit, multiprocessing, weakref
class A: pass
if __name__ == '__main__':
    pool = multiprocessing.get_context('fork').Pool(1)
    a = A()
    atexit.register(print, 'exit handler')
    weakref.finalize(a, print, 'finalizer')
    print(pool.map(abs, [-1]))
    pool.terminate()
    pool.join()
""",
    "no main": """\
import atexit, sys
atexit.register(lambda: print("__main__" in sys.modules))
del sys.modules["__main__"]
""",
    "context": """\
import sys
print(sys.exception())
try:
    1 / 0
finally:
    print('last')
""",
}

# Objects in globals of a program that has used pools are deallocated at its end, and files are written then.
LEFT_OPEN = """\
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
def double(x):
    return 2 * x
class Tells:
    def __del__(self, write=os.write):  # free-threaded builds have cleared the globals by then
        write(1, b"deleted\\n")
if __name__ == "__main__":
    how, tells = sys.argv[1], Tells()
    out = open(1, "w", closefd=False)
    out.write("written\\n")
    context = multiprocessing.get_context("spawn")
    if how == "pool":
        with context.Pool(1) as pool:
            out.write(f"{pool.map(double, [1])}\\n")
    elif how == "open pool":
        pool = context.Pool(1)
        results = pool.map_async(double, [1]), pool.imap(double, [2, 3])
        out.write(f"{results[0].get()} {next(results[1])}\\n")
    elif how == "executor":
        executor = ProcessPoolExecutor(1, context)
        future = executor.submit(double, 1)
        out.write(f"{future.result()}\\n")
    else:
        from joblib import Parallel, delayed
        with Parallel(n_jobs=2) as parallel:
            out.write(f"{parallel(delayed(double)(n) for n in range(3))}\\n")
"""

CHILDREN = """\
import multiprocessing, os, sys
from multiprocessing import resource_tracker
from multiprocessing.pool import ThreadPool
IS_PATCHED = "__wrapped__" in vars(ThreadPool.__init__)  # when the main module is imported
def look(queue, depth):
    with ThreadPool(1) as pool:
        is_ours = "pool_party" in type(pool).__mro__[1].__module__
        queue.put((__name__, IS_PATCHED, is_ours, pool.apply(abs, (-2,)), sys.path, sys.argv, dict(os.environ)))
    if depth:
        process = multiprocessing.Process(target=look, args=(queue, depth - 1))
        process.start()
        process.join()
if __name__ == "__main__":
    assert multiprocessing.get_start_method(allow_none=True) is None
    assert resource_tracker._resource_tracker._fd is None  # it is started for the first lock
    multiprocessing.set_start_method(sys.argv[1])
    queue = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=look, args=(queue, 1), name=sys.argv[2])
    process.start()
    for _ in range(2):
        print(*queue.get())
    process.join()
    print(process.exitcode)
"""

OPTIONS = """\
import multiprocessing, os
def look(queue):
    with multiprocessing.Pool() as pool:
        queue.put((pool.apply(os.getpid) == os.getpid(), len(pool._pool)))
if __name__ == "__main__":
    for method in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        context.Process(target=look, args=(queue,)).start()
        print(method, queue.get())
"""

UNPATCHING = """\
import multiprocessing, pool_party
from multiprocessing.pool import ThreadPool
def look(queue):
    with ThreadPool() as pool:
        queue.put(len(pool._pool) if isinstance(pool, pool_party.ComposablePool) else "not ours")
def child():
    process = multiprocessing.Process(target=look, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    queue = multiprocessing.SimpleQueue()
    child()
    with pool_party.patched(n_workers=5):
        child()
    pool_party.unpatch()
    child()
"""

LOKY = """\
import sys
from joblib.externals.loky import ProcessPoolExecutor
def look():
    from multiprocessing.pool import ThreadPool
    with ThreadPool(1) as pool:
        return "pool_party" in type(pool).__mro__[1].__module__, pool.apply(abs, (-2,))
if __name__ == "__main__":
    with ProcessPoolExecutor(1) as executor:
        print(executor.submit(look).result())
"""

REPORTED = """\
import asyncio, atexit, os, sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
class Odd(ThreadPoolExecutor):
    def _adjust_thread_count(self):
        super()._adjust_thread_count()
async def wait():
    return await asyncio.to_thread(abs, -3)
if __name__ == "__main__":
    atexit.register(print, "the end", file=sys.stderr)
    with ThreadPool(3) as pool:
        print(pool.map(abs, range(8), chunksize=1))
    left_open = ThreadPoolExecutor(2)
    print(left_open.submit(abs, -1).result(), left_open.submit(int, "x").exception() is not None)
    also_left_open = ThreadPool(1)
    print(also_left_open.apply(abs, (-2,)))
    with Odd(1) as odd:
        print(odd.submit(abs, -4).result())
    print(asyncio.run(wait()))
    if os.fork() == 0:
        sys.exit()
    os.wait()
"""

REPORTED_CHILDREN = """\
import multiprocessing, os, signal, sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
class Odd(ThreadPoolExecutor):
    def _adjust_thread_count(self):
        super()._adjust_thread_count()
def look(end):
    if end == "odd":
        with Odd(1) as odd:
            odd.submit(abs, -1).result()
        return
    with ThreadPool(2) as pool:
        pool.map(abs, [-1, -2, -3], chunksize=1)
        pool.close()
        pool.join()
    if end == "killed":
        left_open = ThreadPool(3)
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "idle":
        os.write(begun[1], b"1")
        os.close(1), os.close(2), os.close(held[1])
        os.read(held[0], 1)  # until the parent has ended
        os._exit(0)
    if end == "forked":
        sys.exit()
if __name__ == "__main__":
    for method, end in (("fork", "killed"), ("spawn", "killed"), ("forkserver", "none"), ("spawn", "odd")):
        process = multiprocessing.get_context(method).Process(target=look, args=(end,), name=f"{method} {end}")
        process.start()
        process.join()
    with multiprocessing.Pool(1) as pool:
        pool.apply(look, ("nested",))
        pool.close()
        pool.join()
    begun, held = os.pipe(), os.pipe()
    pids = []
    for end in "forked", "idle":
        pids.append(os.fork())
        if pids[-1] == 0:
            look(end)
    os.waitpid(pids[0], 0)
    os.read(begun[0], 1)
"""

POOLS = """\
import multiprocessing, sys
def double(x):
    return 2 * x
if __name__ == "__main__":
    if sys.argv[1] != "default":
        multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(2) as pool:
        print("pool_party" in type(pool).__mro__[1].__module__, pool.map(double, range(3)))
"""

WAITING = """\
import atexit, multiprocessing, os, time
def wait(fd):
    os.write(fd, b"the task runs\\n")
    while True:
        time.sleep(0.01)
if __name__ == "__main__":
    atexit.register(print, "the end")
    with multiprocessing.Pool(1) as pool:
        pool.apply(wait, (1,))
"""

# What went wrong in programs under `python -m smp` and `python -m tbb`: for each, options, a program, and its output.
_LIMITS = """\
import os, signal, sys
import pool_party
CPUS = pool_party.cpu_count()
def limit(_=None):
    import numpy, threadpoolctl
    return max(library["num_threads"] for library in threadpoolctl.threadpool_info())
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
DEFECTS = {
    "smp: ThreadPool raises TypeError": (
        "",
        """\
import sys
from multiprocessing.pool import ThreadPool
with ThreadPool(1, sys.stdout.write, ("init\\n",)) as pool:
    print(pool.map(abs, [-1, -2]))
""",
        "init\n[1, 2]\n",
    ),
    "smp: ThreadPoolExecutor takes max_workers only": (
        "",
        """\
import threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1, thread_name_prefix="mine", initializer=print, initargs=("init",)) as executor:
    print(executor.submit(lambda: threading.current_thread().name).result())
""",
        "init\nmine_0\n",
    ),
    "smp: asyncio.to_thread fails": (
        "--kind interp",
        """\
import asyncio, threading
async def main():
    return await asyncio.to_thread(lambda: threading.get_native_id() != threading.main_thread().native_id)
print(asyncio.run(main()))
""",
        "True\n",
    ),
    "smp: workers of ProcessPoolExecutor are unlimited": (
        "--policy static",
        _LIMITS
        + """\
if __name__ == "__main__":
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    for method in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(CPUS, mp_context=context, initializer=abs, initargs=(1,)) as executor:
            print({*executor.map(limit, range(8))})
""",
        "{1}\n{1}\n{1}\n",
    ),
    "smp: a worker in the place of another is unlimited": (
        "--policy static --kind process",
        _LIMITS
        + """\
if __name__ == "__main__":
    import multiprocessing
    with multiprocessing.Pool(CPUS, maxtasksperchild=1) as pool:
        print({*pool.map(limit, range(3 * CPUS), chunksize=1)})
    with multiprocessing.Pool(CPUS) as pool:
        for _ in range(CPUS):
            try:
                pool.apply(die)
            except pool_party.WorkerLost:
                print("lost") if _ == 0 else None
        print({*pool.map(limit, range(3 * CPUS), chunksize=1)})
""",
        "{1}\nlost\n{1}\n",
    ),
    "smp: numbers of threads are rounded, to more than CPUs or to fewer": (
        "--policy static",
        _LIMITS
        + """\
from multiprocessing.pool import ThreadPool
for n in range(1, 2 * CPUS + 2):
    with ThreadPool(n) as pool:
        assert sum(pool.statistics().n_threads) == max(n, CPUS), (n, pool.statistics())
print("fine")
""",
        "fine\n",
    ),
    "smp: OpenBLAS, and libraries that are loaded later, are not limited": (
        "--policy static",
        _LIMITS
        + """\
from multiprocessing.pool import ThreadPool
with ThreadPool(CPUS) as pool:
    print(pool.map(abs, [-1] * CPUS, chunksize=1) == [1] * CPUS, "numpy" in sys.modules)
    pool.apply(limit)  # loads the library, which is limited from the next task on
    print({*pool.map(limit, range(CPUS), chunksize=1)})
""",
        "True False\n{1}\n",
    ),
    "smp: a limit stays after its pool": (
        "--policy static",
        _LIMITS
        + """\
from multiprocessing.pool import ThreadPool
before = limit()
with ThreadPool(CPUS) as pool:
    print(pool.apply(limit))
    pool.close()
    pool.join()
print(limit() == before)
""",
        "1\nTrue\n",
    ),
    "smp: its own runs lose the originals when nested": (
        "--policy static -m pool_party --policy static",
        """\
from multiprocessing.pool import ThreadPool
with ThreadPool(2) as pool:
    print(pool.statistics().policy, pool.map(abs, [-1, -2]))
""",
        "static [1, 2]\n",
    ),
    "tbb: a killed worker takes its tokens with it": (
        "--policy counting --kind process",
        _LIMITS
        + """\
def work(n):
    import numpy
    return float((numpy.ones((n, n)) @ numpy.ones((n, n)))[0, 0])
if __name__ == "__main__":
    import multiprocessing
    with multiprocessing.Pool(2) as pool:
        calls = [pool.apply_async(work, (600,)) for _ in range(4)] + [pool.apply_async(die)]
        for call in calls:
            call.wait()
        print(pool.map(work, [500] * 8, chunksize=1) == [500.0] * 8)
""",
        "True\n",
    ),
    "tbb: a killed program leaves files in /dev/shm": (
        "--policy counting --kind process",
        """\
import multiprocessing, os
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(abs, [-1, -2]))
        files = [os.readlink(entry) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry)]
        print([line for line in [*open("/proc/self/maps"), *files] if "/dev/shm" in line])
""",
        "[1, 2]\n[]\n",
    ),
    "tbb: a program of threads aborts at its end": (
        "",
        """\
from multiprocessing.pool import ThreadPool
pool = ThreadPool(2)
print(pool.starmap(pow, [(2, 3), (3, 2)]))
""",
        "[8, 9]\n",
    ),
    "tbb: ThreadPool ignores its number of workers, and cannot be nested": (
        "",
        """\
import threading
from multiprocessing.pool import ThreadPool
barrier = threading.Barrier(5)
def wait(_):
    barrier.wait(60)
    with ThreadPool(1) as inner:
        return inner.apply(abs, (-1,))
with ThreadPool(5) as pool:
    print(pool.map(wait, range(5), chunksize=1))
""",
        "[1, 1, 1, 1, 1]\n",
    ),
    "smp: children have the default oversubscription": (
        "--policy static -f 2",
        """\
import multiprocessing, pool_party
from multiprocessing.pool import ThreadPool
def look(queue):
    with ThreadPool(pool_party.cpu_count()) as pool:
        queue.put(set(pool.statistics().n_threads))
if __name__ == "__main__":
    for method in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=look, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
""",
        "{2}\n{2}\n{2}\n",
    ),
    "smp: a library that was initialised before the fork keeps its threads": (
        "--policy static",
        _LIMITS
        + """\
def compute(n):
    import numpy
    return float((numpy.ones((n, n)) @ numpy.ones((n, n)))[0, 0])
if __name__ == "__main__":
    import multiprocessing
    print(compute(300), limit() == CPUS)
    with multiprocessing.get_context("fork").Pool(CPUS) as pool:
        print({*pool.map(limit, range(3 * CPUS), chunksize=1)}, pool.map(compute, [200] * 4))
    print(limit() == CPUS)
""",
        "300.0 True\n{1} [200.0, 200.0, 200.0, 200.0]\nTrue\n",
    ),
    "smp: two pools have the machine twice": (
        "",
        _LIMITS
        + """\
import threading
from multiprocessing.pool import ThreadPool
both = threading.Barrier(2)
def share(_):
    limit()  # loads the library
    both.wait(60)
    while limit() > max(1, CPUS // 2):  # what was lent to the first of them is taken back
        pass
    both.wait(60)
    return "shared"
with ThreadPool(1) as a, ThreadPool(1) as b:
    a.apply(limit), b.apply(limit)
    results = [pool.apply_async(share, (0,)) for pool in (a, b)]
    print(*(result.get() for result in results))
""",
        "shared shared\n",
    ),
    "smp: a class of pools that was imported from where it is defined stays unlimited": (
        "--policy static",
        """\
from concurrent.futures.process import ProcessPoolExecutor
from concurrent.futures.thread import ThreadPoolExecutor
from multiprocessing.pool import Pool
if __name__ == "__main__":
    for make in (ProcessPoolExecutor, ThreadPoolExecutor, Pool):
        with make(2) as pool:
            print(list(pool.map(abs, [-1, -2])), pool.statistics().policy)
""",
        "[1, 2] static\n" * 3,
    ),
    "tbb: processes of concurrent.futures, and of pools that end amid their work, keep their tokens": (
        "--policy counting --kind process",
        _LIMITS
        + """\
def work(n):
    import numpy
    return float((numpy.ones((n, n)) @ numpy.ones((n, n)))[0, 0])
if __name__ == "__main__":
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    for _ in range(3):
        with multiprocessing.Pool(2) as pool:
            pool.imap_unordered(work, [400] * 50)
            pool.apply(work, (300,))
    for _ in range(2):
        with ProcessPoolExecutor(2) as executor:
            print(list(executor.map(work, [500] * 8)) == [500.0] * 8)
""",
        "True\nTrue\n",
    ),
}
