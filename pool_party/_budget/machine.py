"""This process among the programs that share the CPUs of the machine: for pools with `scope="machine"`.

The threads of the machine are divided among the programs that have work, by max-min fairness: see `programs.divide`.
A program tells at once that it wants more, and after 5 ms that it wants less: a gap between two tasks is not told. It
rings the bells of the others then. A thread, the looker, waits for this program's bell, and reads what the others want.
While this program has work it looks every 0.1 s as well, since nobody rings for a program that was killed.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from time import monotonic

from pool_party import _native
from pool_party._budget.programs import Table, TableRemoved, divide, path_of_table
from pool_party._ground.log import log_exception
from pool_party._ground.threads import PoolThread, start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._budget.enforcer import Enforcer

LESS_S = 0.005  # how long a program wants less before it tells so
LOOK_S = 0.1  # between two looks for programs that were killed, while this one has work
KEEP_S = 0.5  # between two checks, while there is work, that no task has closed the table's descriptor
TABLE = ""  # the name of the table, other than the usual one in tests


class _Work:
    """What one pool of this process does."""

    def __init__(self) -> None:
        self.n_active = self.n_wanted = self.n_threads = 0
        self.others: dict[int, int] = {}  # row -> threads that another program wanted when the pool last took its part


class Presence:
    """This program in the table, while it has pools with `scope="machine"`. Thread-safe."""

    def __init__(self) -> None:
        self._table = _table()
        self._cpus = _cpus()  # that threads of this program may use when they open pools
        self._row = self._claim()
        self._lock = _native.Guard()  # guards what follows
        self._pools: dict[Enforcer, _Work] = {}
        self._told = 0  # the threads that others see as wanted
        self._less_at: float | None = None  # since when this program wants less than that
        self._wakes_at = 0.0  # when the looker will look next, if no bell rings before
        self._is_over = threading.Event()
        self._looker = PoolThread(self._look_after, "pool_party-looker", None)
        try:
            start_thread(self._looker)
        except BaseException:
            self._table.free(self._row)
            raise

    def add(self, pool: Enforcer) -> None:
        """Add a pool that opens."""
        with self._lock:
            self._pools[pool] = _Work()
            self._cpus |= _cpus()
            self._table.set_cpus(self._row, self._cpus)
            self._tell_pools()

    def remove(self, pool: Enforcer) -> bool:
        """Remove a pool that closes. Return whether it was the last: then the program is in the table no more."""
        with self._lock:
            self._pools.pop(pool, None)
            self._tell_pools()
            if self._pools:
                self._tell_wanted()
                return False
            self._is_over.set()
            self._table.ring(self._row)
        if self._looker is not threading.current_thread():
            while self._looker.is_alive():  # another program that has taken a lost row may have reset its bell
                self._table.ring(self._row)
                self._looker.join(LOOK_S)
        self._table.free(self._row)
        return True

    def share(self, pool: Enforcer, n_active: int, n_wanted: int) -> int:
        """Note the active workers of a pool and the threads that they could use.

        Return how many threads this program may use now. While it has no work: if it had some.
        """
        with self._lock:
            work = self._pools.get(pool) or _Work()
            work.n_active, work.n_wanted = n_active, n_wanted
            wanted = self._tell_wanted()
            self._table.set(self._row, n_active=sum(work.n_active for work in self._pools.values()))
            table, row = self._table, self._row
        n_all = pool.plan.n_threads
        try:
            every = dict(table.wanted(row))
        except OSError:  # the looker logs it
            return n_all
        if row not in every:  # another program has the row, until the looker has taken another one
            return n_all
        work.others = {n: threads for n, threads in every.items() if n != row}
        every[row] = wanted or n_all
        return dict(zip(every, divide(list(every.values()), n_all), strict=True))[row]

    def note(self, pool: Enforcer, n_threads: int) -> None:
        """Note how many threads the active workers of a pool may use now."""
        with self._lock:
            if (work := self._pools.get(pool)) is not None:
                work.n_threads = n_threads
            self._table.set(self._row, n_threads=sum(work.n_threads for work in self._pools.values()))

    def _wanted(self) -> int:
        """Return the threads that this program could use. Called with the lock."""
        most = max((pool.plan.n_threads for pool in self._pools), default=0)
        return min(most, sum(work.n_wanted for work in self._pools.values()))

    def _tell_wanted(self) -> int:
        """Tell what this program wants, and wake the looker if it would come too late. Called with the lock."""
        wanted = self._wanted()
        if self._tell(wanted) < self._wakes_at:
            self._table.ring(self._row)
        return wanted

    def _tell(self, wanted: int) -> float:
        """Tell others what this program wants, unless it is less and has not been for long. Called with the lock.

        Return when the looker has to look.
        """
        now = monotonic()
        if wanted < self._told:
            self._less_at = now if self._less_at is None else self._less_at
            if now < self._less_at + LESS_S:
                return self._less_at + LESS_S
        self._less_at = None
        if wanted != self._told:
            self._told = wanted
            self._table.set(self._row, n_wanted=wanted)
            self._table.ring_others(self._row)
        return now + LOOK_S if wanted else math.inf

    def _claim(self) -> int:
        return self._table.claim(self._cpus, " ".join(sys.orig_argv))

    def _tell_pools(self) -> None:
        n_workers = sum(len(pool.plan.own) for pool in self._pools)
        self._table.set(self._row, n_pools=len(self._pools), n_workers=n_workers)

    # ---- the looker ----

    def _look_after(self) -> None:
        rung, kept_at, has_failed = 0, -math.inf, False
        while not self._is_over.is_set():
            try:
                if monotonic() >= kept_at + KEEP_S:
                    kept_at = monotonic()
                    rung = rung if self._keep_row() else 0
                self._note_counts()
                self._wake_pools()
                has_failed = False
            except TableRemoved:
                kept_at = -math.inf
            except Exception:
                if not has_failed:  # log it once, rather than each time
                    log_exception("the programs that share this machine cannot be seen; until they can, none counts")
                has_failed = True
            rung = self._rest(rung)

    def _rest(self, rung: int) -> int:
        """Wait until there may be something to do. Return the word of the bell, which was `rung` at the last return."""
        with self._lock:
            if self._is_over.is_set():
                return rung
            self._wakes_at = self._tell(self._wanted())
        timeout_s = None if self._wakes_at == math.inf else max(0.0, self._wakes_at - monotonic())
        return self._table.wait_ring(self._row, rung, timeout_s)

    def _keep_row(self) -> bool:
        """Lock the row again, since a task may have closed the descriptor. Return False if it is another row now.

        If the file was removed, programs that have started since are in a new one, and this one goes there.
        """
        with self._lock:
            is_current = self._table.is_current()
            if is_current and self._table.keep(self._row):
                return True
            if not is_current:
                self._table.free(self._row)
                self._table = _table()
            self._row = self._claim()
            self._told = 0
            self._tell_pools()
            return False

    def _wake_pools(self) -> None:
        """Wake the pools whose part depends on what other programs wanted and want no more, or the reverse.

        It is not enough to compare with the last look: a pool may have seen what lasted only between two of them.
        """
        now = dict(self._table.wanted(self._row))
        now.pop(self._row, None)
        with self._lock:
            pools = [pool for pool, work in self._pools.items() if work.others != now]
        for pool in pools:
            pool.reconsider()

    def _note_counts(self) -> None:
        with self._lock:
            counts = [pool.task_counts() for pool in self._pools]
            n_done, n_pending = sum(done for done, _ in counts), sum(pending for _, pending in counts)
            self._table.set(self._row, n_done=n_done, n_pending=n_pending)


def _cpus() -> int:
    return sum(1 << cpu for cpu in os.sched_getaffinity(0))


_opening = _native.Guard()  # guards what follows
_present: Presence | None = None
_tables: dict[tuple[int, str], Table] = {}  # by process and path; never closed: see programs.py


def _table() -> Table:
    path = path_of_table(TABLE)
    table = _tables.get((os.getpid(), path))
    if table is None or not table.is_current():
        table = _tables[os.getpid(), path] = Table(path)
    return table


def join(pool: Enforcer) -> Presence:
    """Add a pool that opens to those that share the machine's CPUs.

    Raises: OSError, as `Table` does.
    """
    global _present
    with _opening:
        if _present is None:
            _present = Presence()
        _present.add(pool)
        return _present


def leave(pool: Enforcer) -> None:
    """Remove a pool that closes."""
    global _present
    with _opening:
        if _present is not None and _present.remove(pool):
            _present = None


def _forget() -> None:
    """Forget the parent's row and pools, in a forked child."""
    global _opening, _present
    _opening = _native.Guard()
    _present = None


os.register_at_fork(after_in_child=_forget)
