"""Which limit of the system a failure has met, for the messages of errors.

The system says "Resource temporarily unavailable", or "Cannot allocate memory", for several limits. Here the one that
is used up is looked for, after the failure.
"""

import errno
import itertools
import os
import resource

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTORS = 16  # guess: fewer than these left mean that they were too few; opening a pool needs some at once
_BYTES = 64 << 20  # the same of memory; the stack of a thread has 8 MB
_PIDS = 2  # the same of threads
STATIC_TLS = "glibc.rtld.optional_static_tls"
_NO_THREAD = "can't start new thread"  # the text of CPython's RuntimeError


def explain(error: BaseException) -> str:
    """Return a sentence that names the limit that is used up, and begins with "; "; empty if none is known to be.

    Looking takes some milliseconds.
    """
    number = error.errno if isinstance(error, OSError) else None
    is_thread = number == errno.EAGAIN or _NO_THREAD in str(error)
    is_other = isinstance(error, (MemoryError, EOFError, ConnectionError))  # the latter two: the fork server has met it
    if not (is_thread or is_other or number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)):
        return ""
    return _first(_near()) or (_first(_near_of_threads()) if is_thread else "")


def name_limit(error: BaseException) -> None:
    """Add to an error's message which limit is used up. Its type stays. It never raises."""
    try:
        sentence = explain(error)
    except Exception:  # no memory, or no descriptor, is left for looking
        return
    if not sentence or getattr(error, "_names_limit", False):
        return
    if isinstance(error, OSError):
        error.strerror = f"{error.strerror}{sentence}"
    else:
        error.args = (f"{str(error) or type(error).__name__}{sentence}",)
    error._names_limit = True  # type: ignore[attr-defined]


def near_limit() -> str:
    """Return such a sentence about descriptors, mappings or memory, whatever has failed. It never raises."""
    try:
        return _first(_near())
    except Exception:  # as above
        return ""


def _first(sentences: "Iterator[str]") -> str:
    return "".join(f"; {sentence}" for sentence in itertools.islice(sentences, 1))


def describe() -> "Iterator[str]":
    """Yield lines about the limits of this process that many workers may reach."""
    n, most = _native.count_mappings()
    yield f"{n:,} of {most:,} memory mappings (vm.max_map_count), which workers of kind 'interp' share"
    for name, what in (("RLIMIT_NOFILE", "descriptors"), ("RLIMIT_NPROC", "threads and processes of this user")):
        most, _ = resource.getrlimit(getattr(resource, name))
        yield f"{'any number' if most == resource.RLIM_INFINITY else f'{most:,}'} of {what} ({name})"
    tunables = dict(text.partition("=")[::2] for text in os.environ.get("GLIBC_TUNABLES", "").split(":"))
    n_tls = tunables.get(STATIC_TLS, "512 (the default)")
    yield f"{n_tls} bytes of static TLS for libraries that are loaded late ({STATIC_TLS} in GLIBC_TUNABLES)"


def no_room() -> str:
    """Say that this process has too many memory mappings for another interpreter or copy, and what to do."""
    n, most = _native.count_mappings()
    return (
        f"this process has {n:,} of the {most:,} memory mappings that vm.max_map_count allows: raise it (sysctl "
        f"vm.max_map_count={2 * most}), or use fewer workers, or kind='process'"
    )


def _near() -> "Iterator[str]":
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        n = len(os.listdir("/proc/self/fd"))
        if n + _DESCRIPTORS > most:
            yield f"this process has {n} of the {most} descriptors that RLIMIT_NOFILE (ulimit -n) allows: raise it"
    except OSError as error:
        if error.errno == errno.EMFILE:
            yield f"this process has all {most} descriptors that RLIMIT_NOFILE (ulimit -n) allows: raise it"
    n, most = _native.count_mappings()
    if n + _native.MAPPINGS_KEPT > most > 0:
        yield no_room()
    for name, field in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        most, _ = resource.getrlimit(getattr(resource, name))
        n = _of_status(field)
        if most != resource.RLIM_INFINITY and n + _BYTES > most:
            option = "-v" if name == "RLIMIT_AS" else "-d"
            yield (
                f"this process has {n >> 20:,} of the {most >> 20:,} MB of address space that {name} (ulimit {option}) "
                "allows: raise it, or use fewer workers"
            )


def _of_status(field: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field):
                return int(line.split()[1]) << 10
    return 0


def _near_of_threads() -> "Iterator[str]":
    for folder in _groups():
        try:
            with open(f"{folder}/pids.current") as current, open(f"{folder}/pids.max") as maximum:
                n, limit = int(current.read()), maximum.read().strip()
        except (OSError, ValueError):
            continue
        if limit.isdigit() and n + _PIDS > int(limit):
            yield f"the control group has {n} of the {limit} threads and processes that pids.max allows: raise it"
            return
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY:
        yield (
            f"RLIMIT_NPROC (ulimit -u) allows this user {most:,} threads and processes: raise it, or use fewer workers"
        )


def _groups() -> "Iterator[str]":
    """Yield the folder of this process's control group, and those above it."""
    try:
        with open("/proc/self/cgroup") as groups:
            paths = [line.rstrip("\n").split(":", 2) for line in groups]
    except OSError:
        return
    for _, controllers, path in paths:
        if controllers and "pids" not in controllers.split(","):
            continue
        root = "/sys/fs/cgroup/pids" if controllers else "/sys/fs/cgroup"
        while path != "/":
            yield root + path
            path = os.path.dirname(path)
        yield root
