"""The oracle, which decides the allowed observations of tasks and calls from their requests and the pool's history.

A *chunk* is the work that one worker gets at a time: a list of (ident, deed). It has exactly one outcome: its values,
or one error.
"""

import multiprocessing.pool
import pickle
from concurrent.futures import CancelledError

import duties
import tasks

import pool_party
from pool_party import PoolTerminated, WorkerLost


class Violation(AssertionError):
    """The pool did something that is never allowed."""


class World:
    """Actions on a pool so far that may affect outcomes. Threads only ever increase the numbers."""

    def __init__(self, kind):
        self.kind = kind
        self.n_kills = 0  # signals to workers, from outside or by doomed tasks; these may hit a successor
        self.is_closing = False  # close, shutdown or terminate may have begun
        self.is_closed = False  # one of them has returned
        self.is_terminating = False
        self.n_blamed = 0  # chunks whose outcome only a kill from outside explains

    def blame_kill(self, error):
        self.n_blamed += 1
        if self.n_blamed > self.n_kills:
            raise Violation(f"{self.n_blamed} tasks were lost by {self.n_kills} kills: {error!r}")


# ---- one task --------------------------------------------------------------


def may_be_value(deed, kind):
    name = deed[0]
    return name not in ("fail", "die") and (kind == "thread" or name not in ("lock", "explode"))


def is_value(ident, deed, value):
    """Return whether a value is the one that the task must return."""
    name = deed[0]
    if name == "value":
        return value == duties.value(ident, *deed[1:])
    if name == "pid":
        return isinstance(value, tuple) and value[0] == ident and isinstance(value[1], int)
    if name == "lock":
        return isinstance(value, list) and value[0] == ident
    if name == "explode":
        return isinstance(value, tasks.ExplodesElsewhere) and value.text == ident
    return value == ident


def is_own_error(ident, deed, error, kind):
    """Return whether an error is the task's own."""
    name, is_remote = deed[0], kind != "thread"
    if name == "fail":
        if is_remote and deed[1] == "UnpicklableError":
            return isinstance(error, (pool_party.RemoteError, multiprocessing.pool.MaybeEncodingError))
        if is_remote and deed[1] == "OddInitError":
            return isinstance(error, pool_party.RemoteError)
        return type(error).__name__ == deed[1] and (deed[1] == "OddInitError" or error.args == (ident,))
    if is_remote and name == "lock":
        return isinstance(error, (multiprocessing.pool.MaybeEncodingError, TypeError, pickle.PicklingError))
    if is_remote and name == "explode":
        return isinstance(error, pool_party.RemoteError)
    return False


def is_own_death(chunk, error):
    """Return whether a task of the chunk may have killed its worker."""
    return isinstance(error, WorkerLost) and any(deed[0] == "die" for _, deed in chunk)


# ---- one chunk -------------------------------------------------------------


def check_values(chunk, values, kind):
    if len(values) != len(chunk):
        raise Violation(f"{len(values)} results of {len(chunk)} tasks: {chunk}")
    for (ident, deed), value in zip(chunk, values, strict=True):
        if not may_be_value(deed, kind):
            raise Violation(f"task {ident} {deed} cannot return, but gave {value!r}"[:400])
        if not is_value(ident, deed, value):
            raise Violation(f"task {ident} {deed} gave {value!r}"[:400])


def explains(chunk, error, kind):
    """Return whether the chunk's own tasks explain the error. The first task that fails ends the chunk.

    A result that does not travel fails the chunk after all its tasks have run.
    """
    if is_own_death(chunk, error):
        return True
    for ident, deed in chunk:
        if is_own_error(ident, deed, error, kind):
            return True
        if deed[0] in ("fail", "die"):
            return False
    return False


def check_fate(error, world, is_cancelled):
    """Check that an error that no task explains has its cause in an action on the pool."""
    if isinstance(error, PoolTerminated):
        if not world.is_terminating:
            raise Violation("PoolTerminated though nobody terminated the pool") from error
    elif isinstance(error, CancelledError):
        if not is_cancelled:
            raise Violation("CancelledError though nobody cancelled the call") from error
    elif isinstance(error, WorkerLost):
        if world.kind != "process":
            raise Violation(f"a worker of kind {world.kind} cannot be lost") from error
        world.blame_kill(error)
    else:
        raise Violation(f"an error that nothing explains: {error!r}") from error


# ---- whole calls -----------------------------------------------------------


def check_whole(call, outcome, world):
    """Check the outcome of a call with one answer: apply_async, submit, map_async, starmap_async."""
    success, result = outcome
    if success:
        values = result if call.is_list else [result]
        check_values([task for chunk in call.chunks for task in chunk], values, world.kind)
    elif not any(explains(chunk, result, world.kind) for chunk in call.chunks):
        check_fate(result, world, call.is_cancelled)


class Stream:
    """The outcomes of imap, imap_unordered and Executor.map, in the order of their arrival."""

    def __init__(self, chunks, ordered, ends_at_error):
        self._ordered, self._ends_at_error = ordered, ends_at_error
        self._left = dict(enumerate(chunks))  # chunks without an outcome
        self._begun = {}  # values received of each incomplete chunk
        self._unknown = []  # errors of imap_unordered that do not name their task
        self.is_over = False

    def take_value(self, value, world):
        key = next(iter(self._left), None) if self._ordered else self._find(value)
        if key is None:
            raise Violation(f"a result too many: {value!r}"[:400])
        values = self._begun.setdefault(key, [])
        values.append(value)
        check_values(self._left[key][: len(values)], values, world.kind)
        if len(values) == len(self._left[key]):
            del self._left[key], self._begun[key]

    def _find(self, value):
        """Find the chunk to which imap_unordered's next value belongs. The values of one chunk come together."""
        if self._begun:
            return next(iter(self._begun))
        return next((key for key, chunk in self._left.items() if is_value(*chunk[0], value)), None)

    def take_error(self, error, world):
        if self._begun:
            raise Violation(f"an error amid the results of one chunk: {error!r}") from error
        if isinstance(error, PoolTerminated):
            check_fate(error, world, False)
            self.is_over = True
        elif self._ordered:
            self._take_ordered_error(error, world)
        else:
            self._unknown.append(error)

    def _take_ordered_error(self, error, world):
        key = next(iter(self._left), None)
        if key is None:
            raise Violation(f"an error too many: {error!r}") from error
        if not explains(self._left.pop(key), error, world.kind):
            check_fate(error, world, False)
        self.is_over |= self._ends_at_error

    def end(self, world):
        """Record that the iterator is exhausted."""
        if not self.is_over and len(self._left) != len(self._unknown):
            raise Violation(f"{len(self._left)} chunks left, but {len(self._unknown)} errors came: {self._left}"[:600])
        self.is_over = True
        self._match(world)

    def _match(self, world):
        """Assign each error of imap_unordered to a chunk that explains it. Others are blamed on a kill."""
        owners = {}  # chunk -> error
        for n, error in enumerate(self._unknown):
            if not self._give(n, owners, set(), world):
                check_fate(error, world, False)
        self._unknown.clear()

    def _give(self, n, owners, tried, world):
        """Find a chunk for the n-th error. Others may have to move to another chunk."""
        for key, chunk in self._left.items():
            if key not in tried and explains(chunk, self._unknown[n], world.kind):
                tried.add(key)
                if key not in owners or self._give(owners[key], owners, tried, world):
                    owners[key] = n
                    return True
        return False
