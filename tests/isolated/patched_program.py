"""A program that uses pools of every kind, written for the standard library, and prints what it observes.

    patched_program.py KIND

KIND is "plain", or the kind that replaces processes. The test compares the output of both. All names are imported
before the patches are installed.
"""

import asyncio
import atexit
import concurrent.futures
import multiprocessing
import multiprocessing.dummy
import multiprocessing.pool
import pickle
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import BrokenThreadPool
from multiprocessing import Pool, get_context
from multiprocessing.pool import ThreadPool

try:
    from concurrent.futures import InterpreterPoolExecutor
    from concurrent.futures.interpreter import BrokenInterpreterPool
except ImportError:
    InterpreterPoolExecutor = None

_state = None


def square(x):
    return x * x


def power(x, y=2):
    return x**y


def divide(x):
    return 1 // x


class Odd(Exception):
    pass


def raise_odd(x):
    raise Odd(x, "is odd")


def set_state(value):
    global _state
    _state = value


def get_state(_):
    return _state


def run_until_interrupted():
    while True:
        time.sleep(0.01)


def fail():
    raise Odd("no start")


def caught(call, *classes):
    """Which of these classes catch what a call raises, and its text."""
    try:
        call()
    except Exception as error:
        return [cls.__name__ for cls in classes if isinstance(error, cls)], str(error)
    return "nothing was raised"


def pools(make):
    """What a pool does. make: makes one, with the arguments of Pool."""
    with make(2) as pool:
        yield isinstance(pool, multiprocessing.pool.Pool), issubclass(type(pool), multiprocessing.pool.Pool)
        yield type(pool).__name__, pool._processes
        yield pool.map(square, range(10)), pool.map(square, []), pool.map(square, iter(range(5)), 2)
        yield pool.starmap(power, [(2, 3), (3, 2)]), pool.apply(power, (2,), {"y": 5})
        yield list(pool.imap(square, range(5))), list(pool.imap(square, range(5), 2))
        yield sorted(pool.imap_unordered(square, range(5)))
        heard = []
        result = pool.apply_async(square, (3,), callback=heard.append)
        yield result.get(60), heard, result.ready(), result.successful()
        result = pool.map_async(divide, [1, 0], error_callback=heard.append)
        yield caught(lambda: result.get(60), ZeroDivisionError), [type(e).__name__ for e in heard[1:]]
        yield caught(lambda: pool.apply(raise_odd, (3,)), Odd)
        slow = pool.apply_async(run_until_interrupted)
        yield caught(lambda: slow.get(0.01), multiprocessing.TimeoutError, TimeoutError)[0]
        yield caught(slow.successful, ValueError)[0]
        yield caught(lambda: pool.join(), ValueError)
        yield caught(lambda: pickle.dumps(pool), NotImplementedError)
        yield caught(lambda: list(pool.imap(square, [1], 0)), ValueError)
    yield caught(lambda: pool.map(square, [1]), ValueError)
    yield caught(lambda: pool.__enter__(), ValueError)
    pool = make(2, set_state, ("set",))
    yield pool.map(get_state, range(4), 1)
    pool.close()
    yield caught(lambda: pool.apply_async(square, (1,)), ValueError)
    pool.join()
    yield caught(lambda: make(0), ValueError)
    yield caught(lambda: make(1, 5), TypeError)
    yield caught(lambda: make(1, 2, 3, 4, 5, 6), TypeError)
    yield caught(lambda: make(process=2), TypeError)


def executors(make, broken):
    """What an executor does. make: makes one, with the arguments of its class. broken: what a failed start raises."""
    with make(2) as executor:
        yield isinstance(executor, concurrent.futures.Executor), type(executor).__name__, executor._max_workers
        future = executor.submit(power, 2, y=5)
        yield isinstance(future, concurrent.futures.Future), future.result(60), future.done(), future.exception()
        yield list(executor.map(square, range(5))), list(executor.map(power, [2, 3], [3, 2], chunksize=2))
        yield list(executor.map(square, [])), caught(lambda: list(executor.map(divide, [1, 0])), ZeroDivisionError)
        futures = [executor.submit(square, n) for n in range(4)]
        done, pending = concurrent.futures.wait(futures)
        yield len(done), len(pending), sorted(f.result() for f in concurrent.futures.as_completed(futures))
        error = executor.submit(raise_odd, 5).exception(60)
        yield isinstance(error, Odd), error.args
        heard = []
        executor.submit(square, 6).add_done_callback(lambda future: heard.append(future.result()))
        yield caught(lambda: executor.submit(), TypeError)[0]
    yield heard
    yield caught(lambda: executor.submit(square, 1), RuntimeError)
    yield caught(lambda: executor.map(square, [1]), RuntimeError)
    unused = make(3)
    unused.shutdown()
    unused.shutdown(wait=False, cancel_futures=True)
    yield caught(lambda: unused.submit(square, 1), RuntimeError)
    with make(1, initializer=set_state, initargs=("set",)) as executor:
        yield list(executor.map(get_state, range(3)))
    with make(1, initializer=fail) as executor:
        yield caught(lambda: executor.submit(square, 1).result(60), broken, concurrent.futures.BrokenExecutor)[0]
        yield caught(lambda: executor.submit(square, 1).result(60), broken, concurrent.futures.BrokenExecutor)[0]
    yield caught(lambda: make(0), ValueError), caught(lambda: make(-1), ValueError)
    yield caught(lambda: make("2"), TypeError)
    yield caught(lambda: make(max_worker=2), TypeError)[0]


class Counting(ThreadPoolExecutor):
    """A class of the program that can be ours."""

    def __init__(self, *args, **kwargs):
        self.count = 0
        super().__init__(*args, **kwargs)
        self.limit = self._max_workers

    def submit(self, fn, /, *args, **kwargs):
        self.count += 1
        return super().submit(fn, *args, **kwargs)


class Looking(ThreadPoolExecutor):
    """One that relies on a private attribute."""

    def waiting(self):
        return self._work_queue.qsize()


class Named(multiprocessing.pool.Pool):
    def twice(self, values):
        return self.map(square, super().map(square, values))


def subclasses():
    with Counting(2) as executor:
        yield list(executor.map(square, range(3))), executor.count, executor.limit, isinstance(executor, Counting)
    with Looking(2) as executor:
        yield executor.submit(square, 2).result(), executor.waiting()
    with Named(2) as pool:
        yield pool.twice(range(4)), isinstance(pool, Named), type(pool).__name__


def names_of_threads():
    seen = threading.Barrier(2)

    def name(_):
        seen.wait(60)
        return threading.current_thread().name

    with ThreadPoolExecutor(2, "mine") as executor:
        yield sorted(executor.map(name, range(2)))


def in_asyncio():
    async def main():
        loop = asyncio.get_running_loop()
        seen = [await asyncio.to_thread(power, 2, y=4), await loop.run_in_executor(None, square, 5)]
        default = loop._default_executor
        seen.append((isinstance(default, ThreadPoolExecutor), default._max_workers))
        barrier = threading.Barrier(default._max_workers)  # all threads wait for each other
        waits = [asyncio.to_thread(barrier.wait, 60) for _ in range(default._max_workers)]
        seen.append(sorted(await asyncio.gather(*waits)))
        try:
            await asyncio.to_thread(divide, 0)
        except ZeroDivisionError as error:
            seen.append(str(error))
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
        seen.append(name.startswith("asyncio_"))
        loop.set_default_executor(ThreadPoolExecutor(1))
        seen.append(await asyncio.to_thread(square, 7))
        with ProcessPoolExecutor(1) as executor:
            seen.append(await loop.run_in_executor(executor, square, 8))
        return seen

    yield from asyncio.run(main())


def contexts():
    for name in ("spawn", "forkserver", "fork"):
        with get_context(name).Pool(1) as pool:
            yield name, pool._ctx.get_start_method(), pool.apply(square, (3,))
        with ProcessPoolExecutor(1, mp_context=get_context(name)) as executor:
            yield executor.submit(square, 4).result()
    yield caught(lambda: ProcessPoolExecutor(1, get_context("fork"), max_tasks_per_child=1), ValueError)
    yield caught(lambda: ProcessPoolExecutor(1, max_tasks_per_child=0), ValueError)
    yield caught(lambda: ProcessPoolExecutor(1, max_tasks_per_child="1"), TypeError)
    yield caught(lambda: Pool(1, maxtasksperchild=0), ValueError)
    with Pool(1, maxtasksperchild=1) as pool:
        yield pool.map(square, range(3), 1)


SECTIONS = {
    "Pool": lambda: pools(Pool),
    "ThreadPool": lambda: pools(ThreadPool),
    "dummy.Pool": lambda: pools(multiprocessing.dummy.Pool),
    "contexts": contexts,
    "ThreadPoolExecutor": lambda: executors(ThreadPoolExecutor, BrokenThreadPool),
    "ProcessPoolExecutor": lambda: executors(ProcessPoolExecutor, BrokenProcessPool),
    "subclasses": subclasses,
    "names of threads": names_of_threads,
    "asyncio": in_asyncio,
}
if InterpreterPoolExecutor is not None:
    SECTIONS["InterpreterPoolExecutor"] = lambda: executors(InterpreterPoolExecutor, BrokenInterpreterPool)


@atexit.register
def use_at_exit():
    """The end of the program is observed, too."""
    if __name__ == "__main__":
        for make in (ThreadPoolExecutor, ProcessPoolExecutor):
            print("at exit", make.__name__, caught(lambda make=make: make(1).submit(square, 2), RuntimeError))


def main(kind):
    if kind != "plain":
        import pool_party

        pool_party.patch(kind=kind)
    for section, observe in SECTIONS.items():
        for n, observed in enumerate(observe()):
            print(section, n, observed)


if __name__ == "__main__":
    main(sys.argv[1])
