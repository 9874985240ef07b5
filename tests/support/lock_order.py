"""Records in which order threads take locks, and finds orders in which two threads may wait for each other for ever.

A lock is known by the line that makes it. The lock that CPython holds while it imports a module is one, too: a thread
that imports waits for another that is amid the same import. Orders among those alone are CPython's concern.

`record` must be called before the modules are imported whose locks are to be seen. `python -m pytest -p lock_order`
records a whole run, and says at its end what it has found.
"""

import _frozen_importlib
import builtins
import sys
import threading

HERE = "/pool_party/"


class Lock:
    """A lock that notes what else its thread holds when it is taken."""

    def __init__(self, lock, name):
        self._lock, self._name = lock, name

    def acquire(self, blocking=True, timeout=-1):
        if blocking:
            note(self._name)
        is_taken = self._lock.acquire(blocking, timeout)
        if is_taken:
            held().append(self._name)
        return is_taken

    def release(self):
        self._lock.release()
        forget(self._name)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exc_info):
        self.release()

    def __getattr__(self, name):
        return getattr(self._lock, name)


_own = threading.local()
_orders = {}  # (lock, lock that was taken while it was held) -> where, first


def held():
    if not hasattr(_own, "held"):
        _own.held = []
    return _own.held


def note(name):
    for other in held():
        if other != name and (other, name) not in _orders:
            _orders[other, name] = stack(sys._getframe(2))


def stack(frame):
    """Return a text on the innermost calls. Unlike `traceback`, it imports nothing."""
    lines = []
    while frame is not None and len(lines) < 14:
        if frame.f_code.co_filename != __file__:
            lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}\n")
        frame = frame.f_back
    return "".join(lines)


def forget(name):
    names = held()
    for at in reversed(range(len(names))):
        if names[at] == name:
            del names[at]
            return


def making(make):
    """Return a function that makes the same locks, and records those of the package's code."""

    def made(*args):
        frame = sys._getframe(1)
        path, lock = frame.f_code.co_filename, make(*args)
        return Lock(lock, f"{path.rpartition(HERE)[2]}:{frame.f_lineno}") if HERE in path else lock

    return made


def record():
    """Record from now on."""
    threading.Lock, threading.RLock = making(threading.Lock), making(threading.RLock)
    from pool_party import _native

    _native.Guard = making(_native.Guard)
    module_lock = _frozen_importlib._ModuleLock
    acquire, release, import_ = module_lock.acquire, module_lock.release, builtins.__import__

    def acquire_noted(self):
        note(f"import {self.name}")
        is_taken = acquire(self)
        held().append(f"import {self.name}")
        return is_taken

    def release_noted(self):
        release(self)
        forget(f"import {self.name}")

    def import_noted(name, globals=None, locals=None, fromlist=(), level=0):
        module = import_(name, globals, locals, fromlist, level)
        if any(not lock.startswith("import ") for lock in held()):  # it had been imported, but it need not have been
            full = module.__name__ if fromlist else name
            for imported in (full, *(f"{full}.{part}" for part in fromlist or ())):
                if imported in sys.modules:
                    note(f"import {imported}")
        return module

    module_lock.acquire, module_lock.release, builtins.__import__ = acquire_noted, release_noted, import_noted


def cycles():
    """Return the sets of locks that are taken in no single order, and for each order among them where that is."""
    after = {}
    for first, second in _orders.copy():
        after.setdefault(first, set()).add(second)
    reached = {lock: _reach(after, lock) for lock in after}
    found = {frozenset(other for other in seen if lock in reached.get(other, ())) for lock, seen in reached.items()}
    return [
        {order: where for order, where in _orders.copy().items() if set(order) <= locks}
        for locks in found
        if any(not lock.startswith("import ") for lock in locks)
    ]


def _reach(after, lock):
    seen, waiting = set(), [lock]
    while waiting:
        for other in after.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def report():
    """Return the text on all cycles, which is empty if there are none."""
    return "\n".join(
        f"{first}, then {second}:\n{where}" for orders in cycles() for (first, second), where in orders.items()
    )


def pytest_configure(config):
    record()


def pytest_unconfigure(config):
    print(f"{len(_orders)} orders of locks\n{report() or 'no two contradict each other'}")
