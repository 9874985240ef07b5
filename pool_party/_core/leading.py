"""Who takes results out of the channel.

One thread at a time is the *leader*: it takes results, settles jobs, runs callbacks and handles workers' events. A
thread that waits for a result leads if nobody does, so a round trip needs no other thread. When it has what it wants,
the thread that has waited longest leads, else the background thread, which sleeps in the channel all the while.
"""

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import Any

from pool_party import _native
from pool_party._core.results import Ticket

PUMP_DONE, PUMP_TIMEOUT, PUMP_EVENT, PUMP_ROOM = range(4)  # mirrors native/python/results.c


class Leading:
    """The lead over a channel. `lock` guards `leader`, the followers, and what the scheduler keeps of jobs."""

    def __init__(
        self,
        channel: _native.Channel,
        jobs: dict[int, Any],
        on_event: Callable[[], object],
        on_room: Callable[[], object],
        check: Callable[[], object],
    ) -> None:
        self.lock = threading.RLock()
        self.leader: object = None  # a thread's ident, or the lock that a follower waits on
        self._channel = channel
        self._jobs = jobs
        self._on_event = on_event  # something happened to a worker
        self._on_room = on_room  # tasks that were refused may be put
        self._check = check  # raises if waiting is in vain
        self._followers: deque[Any] = deque()

    def wait(self, job: Ticket, timeout: float | None) -> bool:
        """Waits until the job is done, as leader if nobody leads; False after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + max(0.0, timeout)
        me = get_ident()
        is_nested = self.leader == me  # called by foreign code that we, the leader, run
        try:
            while not job.done and not (is_nested and job.settled):  # settled: in its own callback
                self._check()
                left = None if deadline is None else max(0.0, deadline - monotonic())
                if is_nested or self.try_lead(me):
                    if not self.lead(job, left):
                        return False
                elif not self._follow(job, me, left):
                    return False
            return True
        finally:
            if not is_nested and self.leader == me:
                self.step_down()

    def try_lead(self, me: int) -> bool:
        """Makes the calling thread the leader if nobody is; whether it leads."""
        with self.lock:
            if self.leader is None:
                self.leader = me
                self._channel.lead()
            return self.leader == me

    def lead(self, job: Ticket | None, timeout: float | None) -> bool:
        """As leader: takes results until the job is done, or without a job until there are none."""
        while True:
            code = self._channel.pump(self._jobs, job, timeout)
            if code == PUMP_EVENT:
                self._on_event()
            elif code == PUMP_ROOM:
                self._on_room()
            else:
                return code == PUMP_DONE

    def _follow(self, job: Ticket, me: int, timeout: float | None) -> bool:
        """Waits for the job or for the lead. False after `timeout` seconds without either."""
        waiter = threading.Lock()
        waiter.acquire()
        with self.lock:
            if job.done or self.leader is None:
                return True
            job.waiters.append(waiter)
            self._followers.append(waiter)
        try:
            limit_s = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            return _native.allow_interrupts(waiter.acquire, True, limit_s)
        finally:
            with self.lock:
                if waiter in job.waiters:
                    job.waiters.remove(waiter)
                if waiter in self._followers:
                    self._followers.remove(waiter)
                if self.leader is waiter:
                    self.leader = me

    def step_down(self) -> None:
        """Hands the lead to the thread that has waited longest, else to the background thread."""
        with self.lock:
            if self._followers:
                waiter = self._followers.popleft()
                self.leader = waiter
                _release(waiter)
            else:
                self.leader = None
                self._channel.step_down()

    def open(self, ticket: Ticket) -> None:
        """Ends a ticket's wait."""
        with self.lock:
            ticket.done = True
            self.wake(ticket)

    def wake(self, job: Ticket) -> None:
        """Wakes who waits for a job that is done. The caller holds the lock."""
        for waiter in job.waiters:
            _release(waiter)
        if self.leader is not None and self.leader != get_ident():
            self._channel.announce()  # it may be the leader that waits for this job, asleep in the channel

    def is_mine(self) -> bool:
        """Whether the calling thread leads."""
        return self.leader == get_ident()

    def forget(self) -> None:
        """We are in a forked child: another thread may have held the lock, or led, at that moment."""
        self.lock = threading.RLock()
        self.leader = None


def _release(waiter: Any) -> None:
    """Wakes a follower, who may have been woken already for another reason."""
    if waiter.locked():
        waiter.release()
