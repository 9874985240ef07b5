"""A thread that sleeps until a worker process dies, or wants shared memory of this process."""

import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from time import sleep

from pool_party import _native
from pool_party._ground.descriptors import Owned
from pool_party._ground.log import attempt
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._workers.base import WorkerHandle

RETRY_S = 0.1  # after a failure; guess


class _Bell:
    """Wakes the thread. If somebody closes its descriptors, that wakes the thread as well, which then makes another.

    It is a pair of sockets: the end of one makes the other readable, and no other file takes what is sent to one.
    """

    def __init__(self) -> None:
        _native.occupy_standard()
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        self._ears, self._hand = (Owned(end.detach()) for end in ends)

    @property
    def fd(self) -> int:
        """Readable once it was rung; -1 if it is lost."""
        return self._ears.fd if self._hand.fd >= 0 else -1

    def ring(self) -> None:
        if (fd := self._hand.fd) >= 0:
            _send(fd)

    def hush(self) -> None:
        if (fd := self._ears.fd) >= 0:
            _receive(fd)

    def close(self) -> None:
        self._ears.close()
        self._hand.close()


def _send(fd: int) -> None:
    end = socket.socket(fileno=fd)
    try:
        end.send(b"!")
    except OSError:
        pass  # it was rung often enough, or the other end is lost
    finally:
        end.detach()


def _receive(fd: int) -> None:
    end = socket.socket(fileno=fd)
    try:
        end.recv(4096)
    except OSError:
        pass
    finally:
        end.detach()


class Watcher:
    """Reports each watched process's death once. Takes no lock, since a signal handler may run at any moment.

    A worker keeps its sentinel open until it was reported. After that it may be released.
    """

    def __init__(self, report: Callable[[WorkerHandle], object], channel: _native.Channel) -> None:
        self._report = report
        self._new: deque[WorkerHandle] = deque()  # not yet registered by the thread
        self._is_stopping = self._is_closed = False
        self._bell = _Bell()
        self._thread = PoolThread(self._run, "pool_party-watcher", channel)

    def start(self) -> None:
        """Start watching. Workers are forked before this, while the process has one thread less."""
        start_thread(self._thread)

    def watch(self, worker: WorkerHandle) -> None:
        """Watch one more worker."""
        self._new.append(worker)
        self._bell.ring()

    def stop(self) -> None:
        """End the thread. Only one thread may call this at a time."""
        self._is_stopping = True
        if self._is_closed:
            return
        self._bell.ring()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._is_closed = True
        self._bell.close()

    def _run(self) -> None:
        workers: list[WorkerHandle] = []  # those that are watched
        while not self._is_stopping:
            if not attempt(self._watch, workers):
                sleep(RETRY_S)  # the machine may lack memory or descriptors

    def _watch(self, workers: list[WorkerHandle]) -> None:
        if self._bell.fd < 0:
            self._reopen(workers)
        poll, owners = self._register(workers)
        while not self._is_stopping:
            while self._new:  # before it sleeps, since somebody may have closed the bell that was rung
                workers.append(self._new.popleft())
                _add(workers[-1], poll, owners)
            is_lost = False
            for ready, events in poll.poll():
                worker = owners.get(ready)
                if events & select.POLLNVAL:
                    is_lost = True
                elif ready == self._bell.fd:
                    self._bell.hush()
                elif worker is None:  # it has just ended
                    continue
                elif ready == worker.sentinel:
                    if not worker.is_watched:  # somebody's file has its number
                        is_lost = True
                        continue
                    self._report(worker)
                    workers.remove(worker)
                    _remove(poll, owners, [fd for fd, owner in owners.items() if owner is worker])
                elif not (worker.link and worker.link.serve()) or events & select.POLLHUP:
                    _remove(poll, owners, [ready])
            if is_lost or self._bell.fd < 0:
                self._reopen(workers)
                poll, owners = self._register(workers)

    def _reopen(self, workers: list[WorkerHandle]) -> None:
        """Open new descriptors after somebody has closed those in use; the bell last, whose loss is noticed."""
        while self._new:
            workers.append(self._new.popleft())
        while lost := [worker for worker in workers if not worker.is_watched]:  # again: one may get another's number
            for worker in lost:
                worker.reopen()
        self._bell = _Bell()

    def _register(self, workers: list[WorkerHandle]) -> tuple[select.poll, dict[int, WorkerHandle]]:
        """Return what polls for all that is watched, and whose descriptors these are."""
        poll = select.poll()
        poll.register(self._bell.fd, select.POLLIN)
        owners: dict[int, WorkerHandle] = {}
        for worker in workers:
            _add(worker, poll, owners)
        return poll, owners


def _add(worker: WorkerHandle, poll: select.poll, owners: dict[int, WorkerHandle]) -> None:
    sentinel = worker.sentinel
    if sentinel is None:  # a pool that ended has waited for it, and released it
        return
    poll.register(sentinel, select.POLLIN)
    owners[sentinel] = worker
    if worker.link is not None and worker.link.serve():
        poll.register(worker.link.fd, select.POLLIN)
        owners[worker.link.fd] = worker


def _remove(poll: select.poll, owners: dict[int, WorkerHandle], fds: list[int]) -> None:
    for fd in fds:
        poll.unregister(fd)
        del owners[fd]
