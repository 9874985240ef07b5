"""Task functions and values that every kind of worker can import.

Workers inherit the parent's sys.path, so this plain module is the same in threads, processes and interpreters. It
imports only what loads in an interpreter with its own GIL. Tasks that need numpy import it themselves.
"""

import atexit
import contextvars
import math
import os
import select
import signal
import sys
import threading
import time

# ---- plain functions -------------------------------------------------------


def square(x):
    return x * x


def multiply(x, y):
    return x * y


def echo(*args, **kwargs):
    return (args, kwargs) if kwargs else args


def identity(x):
    return x


def affine(x, *, a=1, b=0):
    return a * x + b


class Adder:
    """A callable object with a bound method, a class method and a static one."""

    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return x + self.n

    def add(self, x):
        return x + self.n

    @classmethod
    def make(cls, n):
        return cls(n).n

    @staticmethod
    def twice(x):
        return 2 * x


def is_close(x, y):
    """Call a C function with keywords, which no other task here does."""
    return math.isclose(x, y, rel_tol=1e-9)


# ---- where am I? -----------------------------------------------------------


def place():
    """Process and interpreter of the caller. If they are equal, objects are passed by reference."""
    return os.getpid(), id(sys.modules)


def worker_ident(_=None):
    """Identity of the worker that runs this: process, interpreter and thread."""
    return (*place(), threading.get_ident())


def process_name():
    import multiprocessing

    process = multiprocessing.current_process()
    return process.name, process._identity, process.daemon


# ---- gates: the only way in which tests hold a task ----------------------------

GATE_BACKSTOP_S = 60.0


def pass_gate(path, value=None):
    """Report this worker's pid at the gate `path`, wait until it may pass, and return `value`."""
    write_all(path + ".arrived", f"{os.getpid()}\n".encode())
    try:
        fd = os.open(path + ".pass", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:  # the gate was removed: nobody holds us any more
        return value
    try:
        deadline = time.monotonic() + GATE_BACKSTOP_S
        while True:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"nobody opened the gate {path}")
            try:
                os.read(fd, 1)  # b"" if the gate was closed for good
            except BlockingIOError:  # another worker took the pass
                continue
            return value
    finally:
        os.close(fd)


class HeldAtItsEnd(Exception):
    """An exception that stands at a gate while it is destroyed."""

    def __del__(self):
        pass_gate(self.args[0])


def raise_from_one_that_is_held(path):
    """Only the ValueError travels: its cause stays here, and goes with it."""
    raise ValueError from HeldAtItsEnd(path)


def run_on_after_a_destructor(path):
    HeldAtItsEnd(path)
    while True:
        pass


def pass_gate_then_raise(path, message):
    pass_gate(path)
    raise ValueError(message)


def pass_gate_if(path, key, x):
    """`x`, held at the gate only if `x == key`."""
    return pass_gate(path, x) if x == key else x


def write_all(path, data):
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no reader: there is no gate
        return
    try:
        os.write(fd, data)
    except BrokenPipeError:  # the gate was closed just now
        pass
    finally:
        os.close(fd)


def read_module(path, arrived):
    """Read a module's file as `import` does, and never end.

    `path` is a FIFO, whose opening waits for a writer.
    """
    from importlib.machinery import SourceFileLoader

    loader = SourceFileLoader("module", path)
    write_all(arrived, b"reading\n")
    loader.get_data(path)
    while True:
        pass


def log_line(path, text):
    """Append a line, atomically, for tests that count what ran."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)
    return text


def log_and_maybe_fail(path, bad, x):
    log_line(path, x)
    if x in bad:
        raise ValueError(f"bad item {x}")
    return x


# ---- errors ----------------------------------------------------------------


class PlainError(Exception):
    pass


def raise_plain(_=None):
    raise PlainError


class OddInitError(Exception):
    """An error that pickles but does not unpickle: args has one value, and __init__ needs two."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


class KeywordError(Exception):
    """An error that needs a keyword argument, and pickles because its __reduce__ says how."""

    def __init__(self, message, *, code):
        super().__init__(message)
        self.code = code

    def __reduce__(self):
        return _make_keyword_error, (self.args[0], self.code)


def _make_keyword_error(message, code):
    return KeywordError(message, code=code)


class AttributeCarryingError(Exception):
    """An error with attributes beside args."""

    def __init__(self, message):
        super().__init__(message)
        self.payload = {"a": [1, 2, 3]}


class UnpicklableError(Exception):
    """An exception that cannot be pickled at all."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("this exception refuses to be pickled")


def raise_error(error):
    raise error


class WithoutNotes(Exception):
    """An exception that takes no notes."""

    def add_note(self, note):
        raise RuntimeError("no")


class WithoutRepr(ValueError):
    def __repr__(self):
        raise RuntimeError("no")


class Shaped:
    """It looks like an array."""

    shape, dtype = (1000, 3), "float64"


def fail_at(n, item, *more):
    if item == n:
        raise ValueError(f"bad {item}")
    return item * 2


def die_at(n, item):
    if item == n:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 2


def unpicklable_at(n, item):
    return sys._getframe() if item == n else item


def map_there(call):
    """Map a function in a pool of this task's own."""
    from pool_party import ComposablePool

    fn, item = call
    with ComposablePool(1, kind="thread") as pool:
        return pool.starmap(fn, [(item, item)])


def raise_named(name, *args):
    raise {
        "ValueError": ValueError,
        "PlainError": PlainError,
        "OddInitError": OddInitError,
        "UnpicklableError": UnpicklableError,
        "AttributeCarryingError": AttributeCarryingError,
        "SystemExit": SystemExit,
        "KeyboardInterrupt": KeyboardInterrupt,
        "GeneratorExit": GeneratorExit,
        "StopIteration": StopIteration,
        "TimeoutError": TimeoutError,
    }[name](*args)


def raise_keyword_error(message, code):
    raise KeywordError(message, code=code)


def raise_with_note(message, note):
    error = ValueError(message)
    error.add_note(note)
    raise error


def raise_chained():
    try:
        raise KeyError("inner cause")
    except KeyError as inner:
        raise ValueError("outer error") from inner


def raise_group():
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def raise_large(n):
    raise ValueError("x" * n)


def fail_if_odd(x):
    if x % 2:
        raise ValueError(f"odd {x}")
    return x


# ---- values that do not travel ---------------------------------------------


def make_lock(_=None):
    return threading.Lock()


class ExplodesElsewhere:
    """A value that pickles anywhere, but unpickles only in the process that made it."""

    def __init__(self, text="explodes elsewhere"):
        self.text = text

    def __repr__(self):
        return f"<ExplodesElsewhere {self.text!r}>"

    def __reduce__(self):
        return _load_where_made, (self.text, place())


def _load_where_made(text, made_at):
    if place() != made_at:
        raise RuntimeError(f"cannot be loaded here: {text}")
    return ExplodesElsewhere(text)


class BombResult:
    """A value whose unpickling raises SystemExit."""

    def __reduce__(self):
        return sys.exit, (5,)


def make_exploding(text="explodes elsewhere"):
    return ExplodesElsewhere(text)


class ExplodingError(Exception):
    """An exception that pickles anywhere and unpickles only where it was made."""

    def __reduce__(self):
        return _load_error_where_made, (self.args, place())


def _load_error_where_made(args, made_at):
    if place() != made_at:
        raise RuntimeError("this exception cannot be loaded here")
    return ExplodingError(*args)


def raise_exploding(text):
    raise ExplodingError(text)


class HeldWhenLoaded:
    """An argument whose unpickling stops at a gate, so that its worker is reading."""

    def __init__(self, gate_path, ballast=b""):
        self.gate_path = gate_path
        self.ballast = ballast

    def __reduce__(self):
        return pass_gate, (self.gate_path, self.ballast)


class HeldWhenPickled:
    """A result whose pickling stops at a gate, so that its worker is writing."""

    def __init__(self, gate_path, ballast=b""):
        self.gate_path = gate_path
        self.ballast = ballast

    def __reduce__(self):
        pass_gate(self.gate_path)
        return bytes, (self.ballast,)


def make_held_when_pickled(gate_path, n_bytes):
    return HeldWhenPickled(gate_path, bytes(n_bytes))


# ---- data ------------------------------------------------------------------


class Blob:
    """A value with one out-of-band buffer, as numpy arrays have."""

    def __init__(self, data):
        self.data = data if isinstance(data, bytearray) else bytearray(data)

    def __reduce_ex__(self, protocol):
        import pickle

        if protocol >= 5:
            return Blob._restore, (pickle.PickleBuffer(self.data),)
        return Blob, (bytes(self.data),)

    @staticmethod
    def _restore(buffer):
        blob = Blob.__new__(Blob)
        blob.data = buffer  # the buffer itself, which is writable if the sender's was
        return blob

    def __eq__(self, other):
        return isinstance(other, Blob) and bytes(self.data) == bytes(other.data)

    __hash__ = None


class OddFloat(float):
    """These four classes resemble types that are sent without pickle."""


class OddInt(int):
    pass


class OddList(list):
    pass


class OddTuple(tuple):
    pass


class Tracked:
    """A value that can be weakly referenced."""

    def __init__(self, value=None):
        self.value = value


class Node:
    """A node of a linked structure, which may be cyclic."""

    def __init__(self, name):
        self.name = name
        self.links = []


def make_cycle():
    a, b = Node("a"), Node("b")
    a.links.append(b)
    b.links.append(a)
    return a


def is_cycle_kept(node):
    return node.links[0].links[0] is node


def are_same_object(pair):
    return pair[0] is pair[1]


def pattern(n_bytes, seed=0):
    """`n_bytes` bytes that differ from every shifted, truncated or mixed copy of them."""
    unit = b"".join((i * 2654435761 + seed & 0xFFFFFFFF).to_bytes(4, "little") for i in range(1021))
    return (unit * (n_bytes // len(unit) + 1))[:n_bytes]


class OddDict(dict):
    pass


def make_odd_dict(items):
    return OddDict(enumerate(items))


kept_values = {}


def keep_and_return(value, number):
    kept_values.setdefault(len(value), []).append(value)
    return value


def intern_and_keep(text):
    text = sys.intern(text)
    kept_values["interned"] = text
    return text, sys.intern(text[:1] + text[1:]) is text


def take_kept(n_bytes):
    return kept_values.pop(n_bytes, [])


def make_pattern(n_bytes, seed=0):
    return pattern(n_bytes, seed)


def make_blob(n_bytes, seed=0):
    return Blob(pattern(n_bytes, seed))


def checksum(data):
    import zlib

    return len(data), zlib.crc32(data)


def blob_checksum(blob):
    return checksum(blob.data)


def overwrite_blob(blob):
    """Write into an argument's buffer in place, and return its content."""
    view = memoryview(blob.data)
    view[0] = (view[0] + 1) % 256
    view[-1] = (view[-1] + 1) % 256
    return checksum(view)


def raise_lookup_error(*args):
    raise LookupError(*args)


def overwrite_item(view):
    """Replace one number of the view, and return the view."""
    view[3] = 77
    return view


def total(view):
    return sum(memoryview(view))


def checksum_kwargs(*, data, extra):
    return checksum(data), extra


# ---- state of a worker -----------------------------------------------------

counter = 0
greeting = None
_local = threading.local()
_variable = contextvars.ContextVar("_variable", default=0)


def count_up(_=None):
    """Count up a global of this worker's module, and return the count."""
    global counter
    counter += 1
    return counter


def count_up_local(_=None):
    _local.n = getattr(_local, "n", 0) + 1
    return _local.n


def count_up_contextvar(_=None):
    _variable.set(_variable.get() + 1)
    return _variable.get()


def set_greeting(text):
    global greeting
    greeting = text


def get_greeting(_=None):
    return greeting


def get_greeting_and_pid():
    return greeting, os.getpid()


def set_local(value):
    _local.value = value


def get_local(_=None):
    return getattr(_local, "value", None)


def set_decimal_precision(n):
    import decimal

    decimal.getcontext().prec = n


def get_decimal_precision(_=None):
    import decimal

    return decimal.getcontext().prec


def worker_token(_=None):
    """A value unique to this worker. Addresses and thread ids may be reused."""
    if not hasattr(_local, "token"):
        _local.token = os.urandom(8)
    return _local.token


def log_init(path, *args):
    """An initializer that logs the worker in which it ran."""
    log_line(path, f"{worker_ident()} {args!r}")


def spin_if_first(gate_path):
    """An initializer that spins in Python code for ever in the first worker."""
    try:
        os.close(os.open(gate_path + ".first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    spin_forever(gate_path)


def failing_init(path, message):
    log_line(path, os.getpid())
    raise LookupError(message)


def exiting_init(path, code):
    log_line(path, os.getpid())
    os._exit(code)


# ---- faults ----------------------------------------------------------------


def exit_now(code):
    os._exit(code)


def kill_self(signum=signal.SIGKILL):
    os.kill(os.getpid(), signum)


def segfault():
    import ctypes
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def stay_forever(gate_path):
    """Report at the gate, and never return."""
    write_all(gate_path + ".arrived", f"{os.getpid()}\n".encode())
    while True:
        time.sleep(3600)


def spin(cpu_s):
    """Compute for the given CPU time of this thread, in seconds."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def trace_inside(path):
    """Trace a pool inside a task."""
    from pool_party import ComposablePool

    with ComposablePool(2, kind="thread") as pool, pool.trace(path):
        return sum(pool.map(square, range(5), chunksize=1))


def burn(n):
    total = 0
    for i in range(n):
        total += i * i
    return total


def burn_and_square(x):
    """Compute for some 100 us, so that a worker killed at a random moment is probably in this task."""
    burn(1_000)
    return x * x


def nested_map(kind, n):
    """A sum of squares, computed by a pool made inside this worker."""
    from pool_party import ComposablePool

    with ComposablePool(2, kind=kind) as pool:
        return sum(pool.map(square, range(n)))


def run_child_process(x):
    """The result of a child process of this worker."""
    import multiprocessing

    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.Process(target=_send_square, args=(sender, x))
    child.start()
    sender.close()
    answer = receiver.recv()
    child.join()
    receiver.close()
    return answer


def _send_square(sender, x):
    sender.send(x * x)
    sender.close()


def processor_without_programs():
    """Return the processor's name, in an interpreter that can start no programs any more."""
    import platform
    import subprocess

    subprocess.check_output = None
    return platform.processor()


def spin_until_interrupted(gate_path, log_path):
    """Log the name of the exception that ends this, as a task does that cleans up."""
    try:
        spin_forever(gate_path)
    except BaseException as error:
        log_line(log_path, type(error).__name__)
        raise


def spin_through_interrupts(gate_path, log_path):
    while True:
        try:
            spin_until_interrupted(gate_path, log_path)
        except KeyboardInterrupt:
            pass


def spin_forever(gate_path):
    """Report at the gate, and compute for ever."""
    write_all(gate_path + ".arrived", f"{os.getpid()}\n".encode())
    while True:
        pass


def note_attempt(path):
    """Count an attempt in a file, and return how many there were."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, b".")
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def fail_at_first(path, n_failures, how, value=None):
    """Fail in the first attempts ("raise", "die" or "spin"), and then return `value`. `path` counts the attempts."""
    attempt = note_attempt(path)
    if attempt <= n_failures:
        fail(how, f"attempt {attempt}")
    return value


def fail_at_first_star(args):
    return fail_at_first(*args)


def fail(how, message):
    if how == "raise":
        raise ValueError(message)
    if how == "die":
        os._exit(5)
    while how == "spin":
        pass


def follow_script(path, script):
    """Do what the script says for this attempt: fail, or return its number. `path` counts the attempts."""
    attempt = note_attempt(path)
    fail(script[min(attempt, len(script)) - 1], f"attempt {attempt}")
    return attempt


def ignore_sigterm(gate_path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spin_forever(gate_path)


def spin_if(key, gate_path, x):
    """`x`, or compute for ever if `x == key`."""
    if x == key:
        spin_forever(gate_path)
    return x


def exit_now_if_3(x):
    if x == 3:
        os._exit(9)
    return x


def forget_a_pool(kind):
    """Leave a running pool in this worker's module globals."""
    import warnings

    from pool_party import ComposablePool

    warnings.simplefilter("ignore", ResourceWarning)
    pool = ComposablePool(2, kind=kind)
    forgotten_pools.append(pool)
    return pool.map(square, [1, 2])


forgotten_pools = []


def break_descriptions():
    """Make this worker unable to describe exceptions from now on."""
    from pool_party._workers import loop

    def fail(value):
        raise MemoryError(value)

    loop.safe_repr = fail


def native_module_id(_):
    """The identity of this interpreter's native module."""
    from pool_party import _native

    return id(_native)


# ---- budgets ---------------------------------------------------------------


def limit_now(_=None):
    """How many threads libraries with one count per process may use in this worker; 0: not limited."""
    from pool_party import _native

    return _native.process_limit()


initial_limit = threading.local()  # each worker's, in its own thread


def remember_limit():
    """An initializer that stores the present limit."""
    initial_limit.value = limit_now()


def remembered_limit(_=None):
    return initial_limit.value


def limit_at_gate(path):
    """The limit when this task begins and, after the gate, the limit then."""
    before = limit_now()
    pass_gate(path)
    return before, limit_now()


def limit_reaches(path, wanted):
    """Report at the gate, and wait within this task until the limit is as wanted."""
    write_all(path + ".arrived", f"{os.getpid()}\n".encode())
    deadline = time.monotonic() + GATE_BACKSTOP_S
    while limit_now() != wanted and time.monotonic() < deadline:
        os.sched_yield()
    return limit_now()


def surroundings(_=None):
    """This worker's environment for libraries, the CPUs that it is pinned to, and the CPU count for a pool in it."""
    import pool_party

    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: os.environ.get(name) for name in names}, os.sched_getaffinity(0), pool_party.cpu_count()


def set_threads(library, n):
    """Set the number of threads of a library by its own function, as a user does."""
    import ctypes

    ctypes.CFUNCTYPE(None, ctypes.c_long)(library.setter)(n)  # some take a long, so the whole register is set


def openblas_count(_=None):
    """The count that NumPy's OpenBLAS reports."""
    import numpy  # noqa: F401

    from pool_party import _native
    from pool_party._budget import libraries

    return [_native.call_getter(found.getter) for found in libraries.find() if found.name == "openblas"]


def blas_counts(_=None):
    """The counts of the OpenBLAS that this task would use: the interpreter's own, or the process's."""
    return own_blas() or openblas_count()


def count_if_imported(name):
    """`openblas_count`, after checking that the module was imported before this task."""
    assert name in sys.modules, f"{name} is not imported"
    return openblas_count()


def call_of_module(name):
    """The result of a module's function `count`, if the module is imported."""
    return sys.modules[name].count()


def is_imported(*names):
    """Whether all modules are imported. For a star task, or a task with a single name."""
    return all(name in sys.modules for name in names)


def nested_pool(kind):
    """The number of CPUs that a pool in this worker counts on, and the budgets of its workers."""
    from pool_party import ComposablePool

    with ComposablePool(kind=kind, policy="static") as pool:  # "dynamic" may lend a CPU while only one worker is there
        return pool._processes, pool.statistics().n_threads


def nested_limit(path, wanted):
    """The limit of a lone task in a nested pool that lends, once it is as wanted."""
    from pool_party import ComposablePool, _native

    _native.pretend_running(0)  # so that other programs do not matter

    with ComposablePool(2, kind="thread", policy="dynamic") as pool:
        return pool.apply(limit_reaches, (path, wanted))


def mask_at_gate(path):
    """The CPUs that this worker is pinned to, read after the gate."""
    pass_gate(path)
    return os.sched_getaffinity(0)


def limit_then_reaches(path, first, then):
    """Within one task: wait until the limit is `first`, report at the gate, and wait until it is `then`."""
    deadline = time.monotonic() + GATE_BACKSTOP_S
    while limit_now() != first and time.monotonic() < deadline:
        os.sched_yield()
    return limit_reaches(path, then)


def linear_algebra(seed):
    """The relative errors of GEMM, Cholesky, QR and a linear solve, each large enough for several threads."""
    import numpy as np

    rng = np.random.default_rng(seed)
    a = rng.standard_normal((220, 180))
    square = a @ a.T + 220 * np.eye(220)
    q, r = np.linalg.qr(a)
    lower = np.linalg.cholesky(square)
    b = rng.standard_normal(220)
    reference = np.einsum("ij,kj->ik", a, a) + 220 * np.eye(220)
    errors = (
        abs(square - reference).max() / abs(reference).max(),
        abs(q @ r - a).max(),
        abs(lower @ lower.T - square).max() / abs(square).max(),
        abs(square @ np.linalg.solve(square, b) - b).max(),
    )
    return float(max(errors))


def own_blas(_=None):
    """How many threads each OpenBLAS copy of this interpreter may use now."""
    import numpy  # noqa: F401

    from pool_party._workers.interp import extensions

    return sorted(extensions.own_threads().values())


def own_blas_at_gate(path):
    """Like `own_blas`, after one parallel region and the gate.

    There are more threads than CPUs, so a region may take seconds beside other load: its threads spin for each other.
    """
    import numpy as np

    square = np.ones((300, 300))
    assert (square @ square)[0, 0] == 300
    pass_gate(path)
    return own_blas()


def own_blas_reaches(path, wanted):
    """Stand at the gate with others, and wait until this interpreter's only OpenBLAS may use the wanted number of
    threads.
    """
    own_blas()
    write_all(path + ".arrived", f"{os.getpid()}\n".encode())
    deadline = time.monotonic() + GATE_BACKSTOP_S
    while own_blas() != [wanted] and time.monotonic() < deadline:
        os.sched_yield()
    return own_blas()[0]


def masks_of_blas_threads(_=None):
    """This worker's CPUs, and those of each thread that libraries have started in it."""
    linear_algebra(0)
    own = threading.get_native_id()
    comm = "/proc/self/task/{}/comm"
    with open(comm.format(own)) as file:
        name = file.read()
    others = []
    for thread in map(int, os.listdir("/proc/self/task")):
        with open(comm.format(thread)) as file:
            if file.read() == name and thread != own:
                others.append(tuple(sorted(os.sched_getaffinity(thread))))
    return tuple(sorted(os.sched_getaffinity(0))), others


def thread_id(_=None):
    return threading.get_native_id()


def hold_tokens(path):
    """Take all tokens of this worker's gate, and wait at the test's gate."""
    from pool_party._budget import limiter

    limiter._extra.gate.acquire(1000)
    pass_gate(path)


def places_of_modules(top):
    """The origins of a package's modules, as recorded in their specs and in their packages."""
    import sys

    found = {}
    for name, module in list(sys.modules.items()):
        package, _, own_name = name.rpartition(".")
        if name.partition(".")[0] != top:
            continue
        assert not package or getattr(sys.modules[package], own_name) is module, name
        spec, path = module.__spec__, getattr(module, "__path__", None)
        loader = type(spec.loader).__name__.replace("_Loader", "ExtensionFileLoader")
        found[name] = (spec.name, spec.origin, module.__file__, module.__package__, spec.cached, loader, path)
    return found


# ---- the default executor --------------------------------------------------


def nest(depth, x, kind):
    """Add the squares below `x`, by maps and calls inside maps. kind: "" for the built-in `map`."""
    if depth == 0:
        return x * x
    args = [depth - 1] * 3, range(x, x + 3), [kind] * 3
    if not kind:
        return sum(map(nest, *args)) + x
    import pool_party

    return sum(pool_party.map(nest, *args, kind=kind)) + pool_party.default_executor(kind).submit(identity, x).result()


def play(program, kind):
    """Run a random program of `test_default.py`: a tuple of a verb and its parts. kind: "" for no executor."""
    verb, *parts = program
    if verb == "value":
        return parts[0]
    if verb == "fail":
        raise ValueError(parts[0])
    if verb == "catch":
        try:
            return play(parts[0], kind)
        except ValueError as error:
            return str(error)
    return (verb, (_play_plainly if not kind else _play_in_executor)(verb, parts, kind))


def _play_plainly(verb, parts, kind):
    if verb == "as_completed":
        return sorted(repr(play(("catch", part), kind)) for part in parts)
    return [play(part, kind) for part in parts]


def _play_in_executor(verb, parts, kind):
    import concurrent.futures

    import pool_party

    executor = pool_party.default_executor(kind)
    kinds = [kind] * len(parts)
    if verb == "map":
        return pool_party.map(play, parts, kinds, kind=kind)
    if verb == "ahead":
        return list(executor.map(play, parts, kinds, buffersize=2))
    if verb == "submit":
        return [future.result() for future in [executor.submit(play, part, kind) for part in parts]]
    futures = [executor.submit(play, ("catch", part), kind) for part in parts]
    return sorted(repr(future.result()) for future in concurrent.futures.as_completed(futures))


def use_executor(executor, x):
    """Use an executor that was passed to the task. Return also where its calls run."""
    return executor.kind, executor.submit(square, x).result(), executor.submit(worker_ident).result() == worker_ident()


def fail_until(n, path):
    """Fail before the n-th attempt, and return its number."""
    attempt = note_attempt(path)
    if attempt < n:
        raise LookupError(f"attempt {attempt}")
    return attempt


_kept = []


def name_of_memory(buffer, *_):
    """Return what tells shared memory from other memory, wherever it is open."""
    from pool_party import _native

    return _native.name_shared(buffer)


def keep(value):
    """Be an initializer that keeps its argument."""
    _kept[:] = [value]


def name_of_kept_memory():
    return name_of_memory(_kept[0])


def add_in_place(array, x):
    array += x


def hold_up(has_begun, may_end):
    """Wait in a function in C until a descriptor can be read from."""
    os.write(has_begun, b"x")
    os.read(may_end, 1)


def hold_up_the_end(is_ending, may_end):
    """Make the end of this interpreter wait, once its modules are cleared, until a descriptor can be read from."""

    class HoldUp:
        def __del__(self, write=os.write, read=os.read):
            write(is_ending, b"x")
            read(may_end, 1)

    globals()["_hold_up"] = HoldUp()


def end_when_told(has_begun, may_end):
    """Run until this is interrupted. Then wait until a descriptor can be read from, and end some time after that."""
    os.write(has_begun, b"x")
    try:
        while True:
            time.sleep(0.001)
    finally:
        os.read(may_end, 1)
        for _ in range(3_000_000):
            pass


def leave_a_thread(may_end, says):
    """Start a thread that writes once a descriptor can be read from."""

    def work():
        os.read(may_end, 1)
        os.write(says, b"x")

    threading.Thread(target=work).start()


def arguments_and_path():
    return sys.argv, sys.path


def register_exits(says):
    """Register functions with atexit, and one that is taken back."""
    for text in (b"b", b"a"):
        atexit.register(os.write, says, text)
    atexit.register(print, "not this")
    atexit.unregister(print)
