"""Tasks that log and print, for the tests of `log=True` and `output="relay"`."""

import contextvars
import logging
import os
import sys

import tasks

LOGGER = "pool_party_tests.relayed"


def log(message, level=logging.INFO, **extra):
    logging.getLogger(LOGGER).log(level, message, extra=extra or None)
    return os.getpid()


def log_many(n, first=0):
    for i in range(first, first + n):
        log(str(i))


def log_with_path(n):
    log("x", path="-")


def log_levels(names):
    """Log at each level to each logger."""
    for name in names:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger(name).log(level, logging.getLevelName(level))


def log_error(text):
    try:
        raise LookupError(text)
    except LookupError:
        logging.getLogger(LOGGER).exception("caught %s", text, stack_info=True)


class Unpicklable:
    """A value that does not pickle, and whose repr is fixed."""

    def __reduce__(self):
        raise TypeError("never")

    def __repr__(self):
        return "an unpicklable one"


class Unloadable:
    """A value that pickles, and cannot be unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def log_extras():
    log("extras", a_set={1, 2}, unpicklable=Unpicklable(), unloadable=Unloadable())


def log_from_a_thread(message):
    import threading

    thread = threading.Thread(target=log, args=(message,))
    thread.start()
    thread.join()


def log_after_gate(gate_path, message):
    tasks.pass_gate(gate_path)
    log(message)


def log_in_inner_pool(kind, message):
    from pool_party import ComposablePool

    with ComposablePool(1, kind=kind, log=True) as pool:
        pool.apply(log, (message,))
        pool.close()
        pool.join()


def log_in_forked_child(message):
    """Fork a child that logs, as some libraries do."""
    pid = os.fork()
    if pid == 0:
        log(message)
        os._exit(0)
    os.waitpid(pid, 0)


def be_patient():
    """Wait without limit for a parent that does not read."""
    from pool_party._workers import relaying

    relaying.PATIENCE_S = 1e9


def log_and_count(path, n, size):
    """Log n records of this size in characters, and note in a file how many calls have begun, and have ended."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for i in range(1, n + 1):
        os.pwrite(file, i.to_bytes(8, sys.byteorder), 0)
        log("x" * size, path=path)
        os.pwrite(file, i.to_bytes(8, sys.byteorder), 8)
    os.close(file)


def counts_in(path):
    """Return what `log_and_count` has noted: calls that have begun, and calls that have ended."""
    with open(path, "rb") as file:
        data = file.read().ljust(16, b"\0")
    return int.from_bytes(data[:8], sys.byteorder), int.from_bytes(data[8:], sys.byteorder)


def write_out(*texts):
    for text in texts:
        sys.stdout.write(text)


def write_err(text):
    sys.stderr.write(text)


def write_bytes(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def describe_stdout():
    return sys.stdout.fileno(), sys.stdout.isatty(), sys.stdout.encoding


# ---- context variables ----

request = contextvars.ContextVar("request")
tenant = contextvars.ContextVar("tenant", default="nobody")


class Holder:
    variable = contextvars.ContextVar("held", default=None)


def get_variables(*args, **kwargs):
    return (*args, *kwargs.values(), request.get(None), tenant.get())


def get_held():
    return Holder.variable.get()


def set_and_get(value):
    """Set the variable for this task alone."""
    before = request.get(None)
    request.set(value)
    return before, request.get()


# ---- memory ----

MiB = 1 << 20
_held = []


def hold(n_mib):
    """Keep this much more memory, and return the worker's pid."""
    _held.append(b"x" * (n_mib * MiB))
    return os.getpid()


def use_for_a_moment(n_mib):
    len(b"x" * (n_mib * MiB))
    return os.getpid()


def hold_at_gate(gate_path, n_mib):
    hold(n_mib)
    tasks.pass_gate(gate_path)


def private_mib():
    from pool_party._workers import memory_limits

    return memory_limits.private_bytes() // MiB
