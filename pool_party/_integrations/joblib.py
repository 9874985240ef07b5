"""The backend for joblib: each `Parallel` runs its batches in a pool of its own, and leaves it to the next one.

A backend object serves one `Parallel` at a time. joblib uses one object for all calls in a block of `parallel_config`,
and two of them may be under way at the same time, so `configure` has joblib use a copy of an object that is in use.
"""

import functools
import itertools
import os
import threading
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]  # not in its stubs
from pickle import loads
from typing import Any

import joblib
from joblib.parallel import (
    BACKENDS,
    AutoBatchingMixin,
    BatchedCalls,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    parallel_config,
    register_parallel_backend,
)

from pool_party import _native
from pool_party._budget.policies import for_kind
from pool_party._budget.topology import cpu_count
from pool_party._config import resolve_context, resolve_kind
from pool_party._core.functions import is_global
from pool_party._core.options import changed
from pool_party._default import end_idle_interpreters
from pool_party._ground.broken import InitializerFailed
from pool_party._ground.errors import PoolClosed, PoolPartyError
from pool_party._ground.quoting import item_text, note_call
from pool_party._integrations import idle_pools
from pool_party._integrations.feed import Callback, FedPool
from pool_party._pool import ComposablePool
from pool_party._wire import codec

NAME = "pool_party"
IDLE_S = 300.0  # as loky
OPTIONS = frozenset(
    (
        *("initializer", "initargs", "maxtasksperchild", "context", "policy", "threads_per_worker", "oversubscription"),
        *("affinity", "scope", "extensions", "preload", "quote_items"),
    )
)
ON_ERROR = ("raise", "return")

_claiming = threading.Lock()  # held for two statements, of which none runs other code


def register(make_default: bool = False) -> None:
    """Register the backend with joblib."""
    register_parallel_backend(NAME, PoolPartyBackend, make_default=make_default)


class PoolPartyBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Runs the batches of `joblib.Parallel` in a `ComposablePool`.

    Args:
        kind: The kind of the workers: "process", "thread" or "interp".
        on_error: "raise": the first failure ends the call, as in joblib's own backends. "return": a task that fails, or
            whose worker dies, has its exception as its result, and the others go on.
        task_timeout_s: How many seconds each task may run; see `ComposablePool.options`. None: there is no limit. Tasks
            are then submitted one by one, whatever joblib's `batch_size` is.
        idle_worker_timeout: The number of seconds for which a pool stays open after its last call.
        nesting_level: joblib's own: how many `Parallel` calls are around this one.
        inner_max_num_threads: The number of threads that BLAS and OpenMP libraries may use in each worker. None: each
            worker's part of the CPUs, and under policy="dynamic" what idle workers leave.
        **options: `policy` ("dynamic" by default) and other arguments of `ComposablePool`.

    Raises:
        ValueError: An option has an impossible value.
        TypeError: There is no such option.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    MIN_IDEAL_BATCH_DURATION = 0.02  # a tenth of joblib's, since a batch costs us less than 0.2 ms
    MAX_IDEAL_BATCH_DURATION = 0.2

    def __init__(
        self,
        kind: str = "process",
        *,
        on_error: str = "raise",
        task_timeout_s: float | None = None,
        idle_worker_timeout: float = IDLE_S,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        if unknown := sorted(options.keys() - OPTIONS):
            raise TypeError(f"the joblib backend {NAME!r} has no option {unknown[0]!r}")
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error must be one of {', '.join(map(repr, ON_ERROR))}, not {on_error!r}")
        self._kind = resolve_kind(kind)
        self._on_error = on_error
        self._call_options = (
            None if task_timeout_s is None else changed(None, {"timeout_s": task_timeout_s}, self._kind)
        )
        self._is_each = on_error == "return" or task_timeout_s is not None  # each task has an outcome of its own
        self._idle_s = idle_worker_timeout
        self._options = options
        self._key: Any = None
        self._pool: FedPool | None = None
        self._functions: dict[int, _Encoded] = {}  # of this call of `Parallel`, by id
        self._n_packed = 0  # how many of its tasks were packed
        self.parallel: Any = None  # the last `Parallel` that this object served
        self._user: Any = None  # the one that it serves now; set under `_claiming`
        self._made_for: Any = None  # the one with whose options this object was made
        self.nested_as: tuple[str | None, int] | None = None  # the arguments of `_nested` that made it

    @property
    def uses_threads(self) -> bool:
        """Whether tasks run in this process: joblib asks."""
        return self._kind == "thread"

    supports_sharedmem = uses_threads

    # ---- how many, and how large ----

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of workers for joblib's `n_jobs`. In a task it is at most what the task may use itself."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        n = self._count_workers(n_jobs)
        # For one worker joblib would run the tasks itself, which neither survives a crash nor returns an exception.
        # Nor could it stop one that takes too long.
        return max(n, 2) if self._user is not None and self._is_each else n

    def _count_workers(self, n_jobs: int) -> int:
        n = n_jobs if n_jobs > 0 else max(1, _capped(cpu_count()) + 1 + n_jobs)
        return min(n, _native.own_grant() or _native.MAX_WORKERS)

    def compute_batch_size(self) -> int:
        """Return how many tasks joblib is to put into a batch, if its user leaves that open."""
        if self._kind == "thread" or self._is_each:
            return 1
        size: int = super().compute_batch_size()
        return size

    def get_nested_backend(self) -> tuple[ParallelBackendBase, None]:
        """Return the backend for `Parallel` calls in tasks: threads, as many as the task may use by its budget."""
        level = (self.nesting_level or 0) + 1
        policy = self._options.get("policy", "dynamic")
        if policy is None and level > 1:  # without budgets something else must end it
            return SequentialBackend(nesting_level=level), None
        is_named = policy is None or isinstance(policy, str)
        return _nested(for_kind(policy, "thread") if is_named else "dynamic", level), None

    def __reduce__(self) -> Any:
        if self.nested_as is not None:
            return _nested, self.nested_as
        return _rebuild, (self._describe(),)

    def _describe(self) -> dict[str, Any]:
        """Return the arguments that make an equal backend."""
        return {
            "kind": self._kind,
            "on_error": self._on_error,
            "task_timeout_s": self._call_options and self._call_options.timeout_s,
            "idle_worker_timeout": self._idle_s,
            "nesting_level": self.nesting_level,
            "inner_max_num_threads": self.inner_max_num_threads,
            **self._options,
        }

    # ---- the pool ----

    def configure(
        self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None, **others: Any
    ) -> int:
        """Take a pool for a `Parallel`, and return the number of its workers.

        joblib's options for memory-mapped files are ignored, since large arrays travel through shared memory.
        """
        if self._user is not parallel and not self._claim(parallel, others):
            raise FallbackToBackend(self._for_one_parallel(parallel, others))
        try:
            return self._take_pool(n_jobs)
        except BaseException:
            self._user = None
            raise

    def _claim(self, parallel: Any, others: dict[str, Any]) -> bool:
        """Serve this `Parallel` from now on, unless another one is served, or it has options of its own."""
        if self._made_for is not parallel and self._options_of(others):
            return False
        with _claiming:
            if self._user is not None:
                return False
            self._user = self.parallel = parallel
        return True

    def _take_pool(self, n_jobs: int) -> int:
        n_effective = self.effective_n_jobs(n_jobs)
        if n_effective == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self._release()
        n = self._count_workers(n_jobs)
        self._key = self._make_key(n)
        self._pool = (self._key and idle_pools.take(self._key)) or self._open(n)
        return n_effective

    def _options_of(self, others: dict[str, Any]) -> dict[str, Any]:
        """Return the options of this backend that a `Parallel` has for itself."""
        own = {name: value for name, value in others.items() if name in _OF_PARALLEL}
        if "JOBLIB_START_METHOD" in os.environ and "context" in others and "context" not in self._options:
            own["context"] = others["context"]
        return own

    def _for_one_parallel(self, parallel: Any, others: dict[str, Any]) -> "PoolPartyBackend":
        """Return a copy for this `Parallel`, whose own options prevail."""
        copy = type(self)(**(self._describe() | self._options_of(others)))
        copy._made_for = parallel
        return copy

    def _make_key(self, n: int) -> Any:
        """Return what makes pools interchangeable, or None if this one is not for others.

        Those in tasks end with their call, as their worker may end at any time.
        """
        if self.nesting_level or _native.own_grant() or not threading._daemon_threads_allowed():  # type: ignore[attr-defined]
            return None
        cpus = frozenset(os.sched_getaffinity(0))
        key = (
            self._kind,
            n,
            cpu_count(),
            cpus,
            self.inner_max_num_threads,
            self._call_options,
            *sorted(self._options.items()),
        )
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _open(self, n: int) -> FedPool:
        options = dict(self._options)
        if self._kind == "process":
            options.setdefault("context", "forkserver")  # libraries have threads, with which forking is not safe
            if resolve_context(options["context"]).get_start_method() == "fork":
                idle_pools.end_all("interp")
                end_idle_interpreters()
        if self.inner_max_num_threads is not None:
            options["threads_per_worker"] = self.inner_max_num_threads
        pool = ByValuePool(n, kind=self._kind, **options)
        return FedPool(pool, _run if self._kind == "thread" else _run_by_value, self._call_options)

    def _release(self) -> None:
        """Leave the pool, all of whose tasks are done, to the next call, or close it."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if self._key is not None and self._idle_s > 0:
            idle_pools.keep(self._key, pool, self._idle_s)
        else:
            pool.close()

    def start_call(self) -> None:
        """Called by joblib at the beginning of a call.

        A `Parallel` that is called again after an error may still have batches of the earlier call, which it would run.
        """
        batches = self.parallel._ready_batches
        while not batches.empty():
            batches.get()
        self._functions = {}
        self._n_packed = 0

    def terminate(self) -> None:
        """Called by joblib at the end of a call, or of a `with Parallel` block."""
        self._release()
        self._user = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the pool, and whatever runs in it: killed in processes, interrupted in Python code of threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()
        if ensure_ready:
            self.configure(self.parallel.n_jobs, self.parallel)

    # ---- tasks ----

    def submit(self, func: Any, callback: Callback) -> None:
        """Run a batch, and call `callback` with what `retrieve_result_callback` takes."""
        pool = self._pool
        if pool is None:
            return  # the call is being aborted
        try:
            if self._is_each:
                _Each(pool, func, callback, self._on_error == "raise", self.pack)
            else:
                pool.submit(self.pack(func), callback)
        except PoolClosed:
            if self._pool is pool:
                raise

    def pack(self, batch: Any) -> Any:
        """Return what `_run` takes for a batch: usually only its calls and what nested calls use, which pickle faster.

        A function of `__main__` is pickled once for a call of `Parallel`. This is not done where its arguments may be
        objects that it names as well, which must be in one pickle to be the same objects in the worker.
        """
        place = self._n_packed, self._options.get("quote_items", True)
        self._n_packed += len(batch.items)
        nested_as = getattr(batch._backend, "nested_as", None)
        if nested_as is None:
            return batch, None, place
        if self._kind == "thread":
            return batch.items, nested_as, place
        items = [
            (self._encoded(call), args, kwargs) if _is_by_value(call) and _are_plain(args, kwargs) else item
            for item in batch.items
            for call, args, kwargs in (item,)
        ]
        return items, nested_as, place

    def _encoded(self, function: Any) -> Any:
        known = self._functions.get(id(function))
        if known is None:
            known = self._functions.setdefault(id(function), _Encoded(function))
        return known

    def retrieve_result_callback(self, out: Any) -> Any:
        """Return a batch's results, or raise its failure."""
        if isinstance(out, BaseException):
            raise out if self._kind != "thread" else _with_traceback(out)
        return out


_OF_PARALLEL = OPTIONS - {"context"} | {
    "kind",
    "on_error",
    "task_timeout_s",
    "idle_worker_timeout",
}  # joblib passes a context of its own


def _capped(n_cpus: int) -> int:
    """Return the number of CPUs, at most what joblib's own variable allows."""
    return min(n_cpus, joblib.cpu_count()) if "LOKY_MAX_CPU_COUNT" in os.environ else n_cpus


class ByValuePool(ComposablePool):
    """A pool to which functions and classes of `__main__` travel as to loky's workers, which this one stands in for."""

    _sends_by_value = True


_PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None)))
_N_FUNCTIONS = 64  # functions that a worker keeps; guess

_numbers = itertools.count()  # one for each function and call, unique in this process
_received: OrderedDict[int, Any] = OrderedDict()  # in a worker


def _is_by_value(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and (
        function.__module__ in ("__main__", "__mp_main__") or not is_global(function)
    )


def _are_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _PLAIN.issuperset(map(type, args)) and (not kwargs or _PLAIN.issuperset(map(type, kwargs.values())))


class _Encoded:
    """A function of `__main__`, which is pickled once for a call of `Parallel`, and unpickled once in each worker."""

    def __init__(self, function: Any) -> None:
        self._function = function  # retained, so that its id is not used again
        self._number = next(_numbers)
        self._pickle: bytes | None = None

    def __reduce__(self) -> Any:
        if self._pickle is None:
            self._pickle = codec.dumps_current(self._function)
        return _receive, (self._number, self._pickle)


def _receive(number: int, pickle: bytes) -> Any:
    function = _received.get(number)
    if function is None:
        function = _received[number] = loads(pickle)
        if len(_received) > _N_FUNCTIONS:
            _received.popitem(last=False)
    return function


def _run_by_value(batch: Any) -> Any:
    codec.reply_with_definitions()
    return _run(batch)


def _run(packed: Any) -> Any:
    """Do what a batch's `__call__` does, and add to an exception which call of `Parallel` has raised it."""
    batch, nested_as, (first, quotes) = packed
    if nested_as is not None:
        batch = BatchedCalls(batch, (_nested(*nested_as), None))
    done: list[Any] = []
    with parallel_config(backend=batch._backend, n_jobs=batch._n_jobs):
        for function, args, kwargs in batch.items:
            try:
                done.append(function(*args, **kwargs))
            except BaseException as error:
                note_call(error, item_text(first + len(done)), function, args, kwargs, quotes)
                raise
    return done


@functools.cache
def _nested(policy: str | None, level: int) -> PoolPartyBackend:
    """Return the backend of `Parallel` calls in tasks, one for all, and make it known by name in workers, too."""
    BACKENDS.setdefault(NAME, PoolPartyBackend)
    backend = PoolPartyBackend("thread", policy=policy, nesting_level=level)
    backend.nested_as = policy, level
    return backend


def _rebuild(options: dict[str, Any]) -> PoolPartyBackend:
    return PoolPartyBackend(**options)


def _with_traceback(error: BaseException) -> BaseException:
    """Put the traceback of a task into the exception's cause, as processes do: joblib removes it from the exception."""
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(error))
        error.__cause__ = RemoteTraceback(f'\n"""\n{text}"""')
    return error


class _Each:
    """A batch whose tasks are submitted one by one, so that each has an outcome of its own.

    raises: whether the failure of one is that of the batch.
    """

    def __init__(self, pool: FedPool, batch: Any, callback: Callback, raises: bool, pack: Callable[[Any], Any]) -> None:
        self._callback = callback
        self._raises = raises
        self._outcomes: list[Any] = [None] * len(batch.items)
        self._n_left = len(batch.items)
        self._failure: BaseException | None = None  # one that is not a task's own
        for n, item in enumerate(batch.items):
            task = BatchedCalls([item], (batch._backend, batch._n_jobs), None, batch._pickle_cache)
            pool.submit(pack(task), functools.partial(self._note, n))

    def _note(self, n: int, out: Any) -> None:
        """Note the outcome of task n: a list of its only result, or an exception. A pool has one thread for that."""
        if not isinstance(out, BaseException):
            self._outcomes[n] = out[0]
        elif not self._raises and _is_of_task(out):
            self._outcomes[n] = _with_traceback(out)
        else:
            self._failure = self._failure or out
        self._n_left -= 1
        if self._n_left == 0:
            self._callback(self._failure or self._outcomes)


def _is_of_task(error: BaseException) -> bool:
    """Whether a task failed, rather than the pool, or the program was interrupted."""
    return (
        not isinstance(error, KeyboardInterrupt | PoolClosed | InitializerFailed) and type(error) is not PoolPartyError
    )
