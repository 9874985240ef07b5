"""The worker side of `log=True` and `output="relay"`: what it logs and prints is sent to the parent, packet by packet.

A record has left this process once the call that logs it returns. So has a line of output once its end is written. Only
what a thread was about to send is lost if the process is killed, which is one record or line, since a lock lets one
thread send at a time. A count that outlives the process tells the parent of it.
"""

import io
import logging
import os
import select
import sys
import threading
from time import monotonic

from pool_party._ground.descriptors import Known
from pool_party._observe import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Buffer, Callable
    from types import FrameType
    from typing import Any

    from pool_party import _native
    from pool_party._observe.relay import Relay

POLL_MS = 100  # between checks whether the pool was terminated, while the parent is too slow
PATIENCE_S = 5.0  # how long a worker waits for a parent that handles nothing; later messages are dropped at once
# The outermost frame that this module calls, apart from our own wrappers, is the task's function.
_LOOP = "pool_party._workers.loop"
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def terms(relay: "Relay", n: int) -> "tuple[Any, ...]":
    """Return what `Sender` is made from, for the next worker in this slot, with the log levels of this moment."""
    return (relay.sending.get(), relay.counting.get(), relay.lives[n], _levels() if relay.logs else None, relay.prints)


def _levels() -> "tuple[dict[str, int], int]":
    """Return the levels that were set for loggers here, and the one up to which logging is disabled."""
    manager = logging.root.manager
    loggers = {name: each.level for name, each in manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in loggers.items() if level}}, manager.disable


# ---- naming what a worker logs ----


class Namer:
    """Names the worker and its task on a log record, as its attributes `worker`, `task`, `task_number` and `call`."""

    def __init__(self, worker: "_native.Worker", name: str) -> None:
        self._worker = worker
        self._name = name
        self._ident = threading.get_ident()

    def mark(self, fields: "dict[str, Any]") -> None:
        """Add what is missing: a record from a pool inside a task keeps the names of the worker that logged it."""
        if "worker" in fields:
            return
        held = self._worker.task
        call, number = held or (None, None)
        fields |= {"worker": self._name, "task": held and self._task(), "task_number": number, "call": call}

    def _task(self) -> "str | None":
        """Return the name of the function that this thread was told to run; None if it is not the worker's own.

        Frames of another thread are not looked at: `sys._current_frames` touches those of all interpreters, which run
        meanwhile.
        """
        frame: FrameType | None = sys._getframe() if threading.get_ident() == self._ident else None
        found = None
        while frame is not None and frame.f_globals.get("__name__") != _LOOP:
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                found = frame.f_code.co_qualname
            frame = frame.f_back
        return found


# ---- sending ----


class Sender:
    """Sends messages of this worker. Any thread may use it, and signal handlers may interrupt it."""

    def __init__(self, worker: "_native.Worker", fd: int, counting_fd: int, life: int) -> None:
        self._worker = worker
        self._sending = Known(fd)
        self._counting = Known(counting_fd)
        self._life = life
        self._pid = os.getpid()
        self._n_begun = 0
        self._is_patient = True
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._lock._at_fork_reinit)  # type: ignore[attr-defined]

    def send(self, what: int, encode: "Callable[[], bytes]") -> None:
        """Send the message that `encode` makes.

        It is counted before that, and if it does not arrive, for whatever reason, it counts as lost.
        """
        with self._lock:
            self._n_begun = number = self._n_begun + 1
            pid = os.getpid()
            flags = 0 if pid == self._pid else messages.UNCOUNTED
            if not flags and (counting_fd := self._counting.fd) >= 0:
                os.pwrite(counting_fd, number.to_bytes(8, sys.byteorder), 8 * self._life)
            for packet in messages.packets(what, flags, self._life, pid, number, encode()):
                if not self._write(packet):
                    return

    def _write(self, packet: bytes) -> bool:
        """Write a packet. Return False if the parent does not take it, be it gone, stuck, or ending the pool.

        It does not get there either if a task has closed the descriptor.
        """
        deadline = monotonic() + PATIENCE_S
        while True:
            if (fd := self._sending.fd) < 0:
                return False
            try:
                os.write(fd, packet)
            except BlockingIOError:
                self._is_patient = self._is_patient and monotonic() < deadline
                if not self._is_patient or self._worker.must_stop:
                    return False
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                poll.poll(POLL_MS)
            except OSError:
                return False
            else:
                self._is_patient = True
                return True


class RelayHandler(logging.Handler):
    """Sends records to the parent, formatted as far as only this process can."""

    def __init__(self, sender: Sender, namer: Namer) -> None:
        super().__init__()
        self._sender = sender
        self._namer = namer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sender.send(messages.RECORD, lambda: self._encode(record))
        except Exception:
            self.handleError(record)

    def _encode(self, record: logging.LogRecord) -> bytes:
        fields = dict(record.__dict__, msg=record.getMessage(), args=None, exc_info=None)
        fields.pop("message", None)
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
        self._namer.mark(fields)
        return messages.encode_record(fields)


class _Output(io.RawIOBase):
    """What is written to it is printed by the parent."""

    def __init__(self, sender: Sender, what: int, fd: int) -> None:
        self._sender = sender
        self._what = what
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the process's own descriptor, for libraries that pass it to other programs or to C."""
        return self._fd

    def write(self, data: "Buffer", /) -> int:
        text = bytes(data)
        self._sender.send(self._what, lambda: text)
        return len(text)


def _stream(sender: Sender, what: int, fd: int) -> io.TextIOWrapper:
    """Return a text stream that sends each line when it is complete, and the rest when it is flushed."""
    raw = io.BufferedWriter(_Output(sender, what, fd))
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", newline="\n", line_buffering=True)


# ---- a worker's begin and end ----


def enter(worker: "_native.Worker", name: str, given: "tuple[Any, ...]") -> "Callable[[], None]":
    """Relay what this worker logs and prints from now on. Return what to call at its end."""
    fd, counting_fd, life, levels, prints = given
    sender = Sender(worker, fd, counting_fd, life)
    if levels is not None:
        _relay_records(RelayHandler(sender, Namer(worker, name)), *levels)
    streams = [_stream(sender, messages.STDOUT, 1), _stream(sender, messages.STDERR, 2)] if prints else []
    if prints:
        sys.stdout, sys.stderr = streams

    def leave() -> None:
        for stream in streams:
            if not stream.closed:
                stream.flush()

    return leave


def _relay_records(handler: RelayHandler, levels: "dict[str, int]", disabled: int) -> None:
    """Send all records to the parent, instead of to the handlers that were inherited or made by the main module."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.root.handlers[:] = [handler]
    logging.disable(disabled)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


# ---- workers that are threads of the parent ----

_local = threading.local()  # .namer: of the worker whose thread this is


class Naming:
    """Names worker and task on what the threads of a pool log, while the pool is open.

    Their records need no relay. All pools share one record factory, which is removed with the last pool, unless the
    program has set another one since then.
    """

    _n_open = 0
    _made: "Callable[..., logging.LogRecord] | None" = None
    _before: "Callable[..., logging.LogRecord]"
    _lock = threading.Lock()  # taken by background threads only, in which no signal handler runs

    @classmethod
    def open(cls) -> None:
        """Name what workers log from now on."""
        with cls._lock:
            cls._n_open += 1
            if logging.getLogRecordFactory() is not cls._made:
                cls._before = logging.getLogRecordFactory()
                cls._made = _named(cls._before)
                logging.setLogRecordFactory(cls._made)

    @classmethod
    def close(cls) -> None:
        """End what `open` began."""
        with cls._lock:
            cls._n_open -= 1
            if cls._n_open == 0 and logging.getLogRecordFactory() is cls._made:
                logging.setLogRecordFactory(cls._before)


def _named(before: "Callable[..., logging.LogRecord]") -> "Callable[..., logging.LogRecord]":
    def make(*args: "Any", **kwargs: "Any") -> logging.LogRecord:
        record = before(*args, **kwargs)
        namer = getattr(_local, "namer", None)
        if namer is not None:
            namer.mark(record.__dict__)
        return record

    return make


def enter_thread(worker: "_native.Worker", name: str) -> "Callable[[], None]":
    """Name what this thread logs from now on. Return what ends that."""
    _local.namer = Namer(worker, name)
    return _local.__dict__.clear
