"""Recording: while a pool is traced, what its workers and its parent do is collected, and written at the end.

Workers record in rings of their own (native/channel/trace.c). A thread empties those about 50 times a second, and reads
the kernel's run delays of active threads. If there are too many events, the oldest are dropped, and counted.
"""

import logging
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pool_party import _native
from pool_party._ground.quoting import name_of
from pool_party._ground.records import tell_names
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._observe import assemble, chrome
from pool_party._observe.assemble import Life, Present
from pool_party._observe.delays import Look, read_delay
from pool_party._observe.events import Budget, Mark, Trace

if TYPE_CHECKING:
    from pool_party._workers.base import WorkerHandle

_log = logging.getLogger("pool_party")

PERIOD_S = 0.02  # between two passes; guess: a ring holds 37 ms of the smallest tasks that a worker can run
EFFORT = 0.05  # the largest share of its time that the thread of a large pool spends on its passes

_EVENT = struct.Struct(f"={_native.EVENT_WORDS}Q")


class _Now(NamedTuple):
    """What `Channel.present` says of a worker. tid: the thread that runs tasks; 0: it has not begun to serve."""

    n_events: int
    state: int
    since_ns: int
    tid: int
    call: int
    task: int


class Tracing:
    """A trace that is being recorded: a context manager, which writes the file at its end, as does `stop`.

    It comes from `ComposablePool.trace` or `ComposableExecutor.trace`, and is not made by hand. Its attribute `path` is
    the file's absolute path.

    Raises:
        OSError: At the end of a `with` block, if the file cannot be written.

    Guarantees:
        Any thread may end it, and the end of the pool does. No worker ever waits for a trace. In a forked child it does
        nothing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        max_events: int,
        channel: _native.Channel,
        n_workers: int,
        about: dict[str, Any],
        on_stop: Callable[[], object],
        places: "Sequence[WorkerHandle | None]",
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._max_events = max_events
        self._channel = channel
        self._n_workers = n_workers
        self._about = about
        self._on_stop = on_stop
        self._places = places  # the worker in each slot, which may not have been noted yet
        self._pid = os.getpid()
        self._stopping = _native.Guard()  # held while the trace begins or ends
        self._is_over = threading.Event()
        self._writing = threading.Lock()  # held by the thread that writes the file
        self._writer: int | None = None  # that thread's ident
        self._names: deque[tuple[int, str]] = deque(maxlen=max_events)  # names of calls, by number; callers append
        self._lock = _native.Guard()  # guards what follows; no signal handler runs while it is held
        self._is_complete = False  # nothing more is recorded
        self._workers: list[WorkerHandle | None] = [None] * n_workers
        self._lives: list[Life | None] = [None] * n_workers  # the workers' lives, until they end
        self._next = [0] * n_workers  # number of the next event to read, per worker
        self._passes: deque[list[tuple[Life, bytes]]] = deque([[]])  # what was read, a list for each pass over all
        self._n_events = self._n_dropped = 0
        self._closed: deque[Life] = deque(maxlen=max_events)  # lives that ended in the middle of something
        self._marks: deque[Mark] = deque(maxlen=max_events)
        self._grants: deque[Budget] = deque(maxlen=max_events)
        self._start_ns = 0
        self._thread = PoolThread(self._run, "pool_party-trace", channel)

    # ---- the beginning and the end ----

    def start(self, workers: "Callable[[], Iterable[WorkerHandle]]", budget: "Callable[[], Sequence[int]]") -> None:
        """Start recording. workers: the living ones. budget: gives the threads of each.

        Calls of `note_...` before this are ignored.
        """
        _native.call_apart(lambda: self._start(workers, budget))

    def _start(self, workers: "Callable[[], Iterable[WorkerHandle]]", budget: "Callable[[], Sequence[int]]") -> None:
        with self._stopping:
            if self._is_over.is_set():  # the pool has ended meanwhile, and the file is complete
                return
            with open(self.path, "w"):
                pass  # fails now if the file cannot be written
            self._begin(workers, budget)
            start_thread(self._thread)

    def _begin(self, workers: "Callable[[], Iterable[WorkerHandle]]", budget: "Callable[[], Sequence[int]]") -> None:
        with self._lock:
            self._next = [self._present(n).n_events for n in range(self._n_workers)]
            self._start_ns = monotonic_ns()
            for n, n_threads in enumerate(budget()):
                self.note_budget(n, n_threads)
            for worker in workers():  # a worker that replaces one of these is noted once the lock is released
                self._enter(worker)
            self._channel.trace(True)
            self._look()

    @property
    def is_running(self) -> bool:
        """Return whether it is still recording. Does not block, and never raises."""
        return not self._is_over.is_set()

    def stop(self) -> None:
        """End the trace, and write its file. Blocks until that is done; a second call does nothing.

        Raises:
            OSError: The file cannot be written.
        """
        self._write_once()
        if os.getpid() == self._pid and self._writer != get_ident():
            with self._writing:
                pass

    def _write_once(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child workers, file and thread belong to the parent
        me = get_ident()
        try:
            end_ns = _native.call_apart(lambda: self._end(me))
            if end_ns is not None:
                chrome.write(self._assemble(end_ns), self.path)
        finally:
            if self._writer == me and self._writing.locked():
                self._writing.release()

    def finish(self) -> None:
        """Like `stop`, at the pool's end.

        Neither an error of the file nor another thread that is writing it delays that end.
        """
        try:
            self._write_once()
        except Exception:
            _log.exception("the trace could not be written to %s", self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _end(self, writer: int) -> int | None:
        """Collect what is left, once, and return when that was.

        The thread with this ident must then write the file.
        """
        with self._stopping:
            if self._is_over.is_set():
                return None
            self._is_over.set()
            self._writing.acquire()
            self._writer = writer
            if self._thread.ident and self._thread is not threading.current_thread():
                self._thread.join()
            try:
                return self._take_last()
            finally:
                self._on_stop()

    def _take_last(self) -> int:
        with self._lock:
            end_ns = monotonic_ns()
            for worker in self._places:
                if worker is not None:
                    self.note_start(worker)
            for n in range(self._n_workers):
                self._look_at(n)
                self._close(n, is_dead=False)
            self._channel.trace(False)
            for n in range(self._n_workers):
                self._read(n)
            self._channel.forget_events()
            self._is_complete = True
            return end_ns

    def _assemble(self, end_ns: int) -> Trace:
        lives = self._decode()
        spans = assemble.spans_of(lives, dict(self._names.copy()), self._start_ns)
        budgets = assemble.budgets_of(lives, self._grants, self._n_workers, self._start_ns)
        end_ns = max([end_ns, *(span.end_ns for span in spans)])
        marks = list(self._marks)
        if self._n_dropped:
            since = spans[0].start_ns if spans else self._start_ns
            marks.append(Mark(None, since, f"{self._n_dropped} older events were dropped"))
        about = {
            "tool": "pool_party",
            "pid": self._pid,
            "python": sys.version.split()[0],
            "clock": "CLOCK_MONOTONIC",
            "has_run_delay": read_delay(self._pid, threading.get_native_id()) is not None,
            **self._about,
        }
        return Trace(self._start_ns, end_ns, self._n_workers, spans, marks, budgets, self._n_dropped, about)

    def _decode(self) -> list[Life]:
        """Return all lives, with the newest of their events."""
        blocks = [block for blocks in self._passes for block in blocks]
        lives = list({life: None for life, _ in blocks} | dict.fromkeys(self._closed))
        for life, block in blocks:
            life.events.extend(_EVENT.iter_unpack(block))
        if (n_over := self._n_events - self._max_events) > 0:
            self._n_dropped += n_over
            oldest = sorted(event[1] for life in lives for event in life.events)[n_over]
            for life in lives:
                life.events = [event for event in life.events if event[1] >= oldest]
        return lives

    # ---- notes from the pool ----

    def note_call(self, call: int, fn: Any, args: Sequence[Any] = ()) -> None:
        """Note a call that was submitted."""
        self._names.append((call, name_of(fn, args)))

    def note_start(self, worker: "WorkerHandle") -> None:
        """Note a worker that was started in place of another."""
        with self._lock:
            if not self._is_noting or self._workers[worker.n] is worker:
                return
            life = self._enter(worker)
            self._append(self._marks, Mark(worker.n, monotonic_ns(), "worker started", _who(life)))

    def _enter(self, worker: "WorkerHandle") -> Life:
        self._workers[worker.n] = worker
        self._lives[worker.n] = life = Life(worker.n, worker.pid or 0, worker.name)
        return life

    def note_end(self, worker: "WorkerHandle") -> None:
        """Note a worker that has ended, before the channel empties its slot."""
        n, now_ns = worker.n, monotonic_ns()
        with self._lock:
            if not self._is_noting:
                return
            life = self._lives[n] or self._enter(worker)
            self._close(n, is_dead=True)
            self._read(n)
            self._lives[n] = None
            how = "worker lost" if worker.exitcode else "worker ended"
            exitcode = {} if worker.exitcode is None else {"exitcode": worker.exitcode}
            self._append(self._marks, Mark(n, now_ns, how, _who(life) | exitcode))

    def note_budget(self, n: int, n_threads: int) -> None:
        """Note a change of worker n's budget."""
        with self._lock:
            if self._is_noting:
                self._append(self._grants, Budget(n, monotonic_ns(), n_threads))

    @property
    def _is_noting(self) -> bool:
        return self._start_ns != 0 and not self._is_complete

    def _append(self, queue: deque[Any], item: Any) -> None:
        self._n_dropped += len(queue) == queue.maxlen
        queue.append(item)

    # ---- looking ----

    def _run(self) -> None:
        pause_s = PERIOD_S
        while not self._is_over.wait(pause_s):
            begin = monotonic()
            try:
                with self._lock:
                    self._look()
            except Exception:
                _log.exception("a pool's trace ends early")
                return
            pause_s = max(PERIOD_S, (monotonic() - begin) / EFFORT)

    def _look(self) -> None:
        if self._is_complete:  # the end was faster, and the passes are being read
            return
        if self._passes[-1]:
            self._passes.append([])
        for n in range(self._n_workers):
            self._look_at(n)
            self._read(n)
        self._drop_oldest()

    def _present(self, n: int) -> "_Now":
        return _Now(*self._channel.present(n))

    def _look_at(self, n: int) -> None:
        """Read how long the worker has had no CPU so far. That does not change while it sleeps."""
        life = self._lives[n]
        now = self._present(n)
        if life is None or now.tid == 0 or (now.state == _native.PRESENT_SLEEPS and life.looks):
            return
        delay_ns = read_delay(life.pid, now.tid)
        if delay_ns is None:
            return
        looks = life.looks
        if len(looks) > 1 and looks[-2].delay_ns == looks[-1].delay_ns == delay_ns:
            looks.pop()
        looks.append(Look(monotonic_ns(), delay_ns))
        if len(looks) > self._max_events:
            del looks[: len(looks) // 2]

    def _read(self, n: int) -> None:
        life = self._lives[n]
        if life is None:  # a new worker may have recorded events already, which stay until it is noted
            return
        self._next[n], n_lost, block = self._channel.read_events(n, self._next[n])
        n_events = len(block) // _EVENT.size
        if n_events:
            self._passes[-1].append((life, block))
            self._n_events += n_events
        self._n_dropped += n_lost

    def _drop_oldest(self) -> None:
        """Drop whole passes, since one worker's events in a pass may be older than another's.

        The rest is dropped at the end.
        """
        while len(self._passes) > 1:
            n_events = sum(len(block) for _, block in self._passes[0]) // _EVENT.size
            if self._n_events - n_events < self._max_events:
                return
            self._passes.popleft()
            self._n_events -= n_events
            self._n_dropped += n_events

    def _close(self, n: int, *, is_dead: bool) -> None:
        """Note what the worker is doing, since nobody will record its end."""
        life = self._lives[n]
        if life is None:
            return
        now = self._present(n)
        if now.state != _native.PRESENT_LOOKS:
            life.last = Present(monotonic_ns(), now.state, now.since_ns, now.call, now.task, is_dead)
            self._append(self._closed, life)


def _who(life: Life) -> dict[str, Any]:
    return {"pid": life.pid, "worker": life.name}


tell_names(globals())
