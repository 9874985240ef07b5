"""Everything that a pool does, in one unusual environment: `python environments.py ENVIRONMENT KIND RESULT`.

KIND: thread, interp, fork, forkserver or spawn. What went wrong, or "fine", is written to the file RESULT, since there
may be no standard streams. The exit status is 77 if this machine cannot make the environment.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import traceback

TIMEOUT_S = 60
CANNOT = 77
N_FDS = 256  # descriptors above are not looked at
BIG = 3_000_000  # bytes
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 0x4000, 0x40000
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 4, 8, 36, 47
CAP_DAC_READ_SEARCH = 2


def libc():
    return ctypes.CDLL(None, use_errno=True)


def call(function, *args):
    """Call a function of the C library. If it is not permitted, the environment cannot be made."""
    if getattr(libc(), function)(*args) != 0:
        number = ctypes.get_errno()
        if number in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL):
            os._exit(CANNOT)
        raise OSError(number, f"{function}: {os.strerror(number)}")


# ---- environments ----


def closed(*fds):
    for fd in fds:
        os.close(fd)


def no_objects():
    sys.stdin = sys.stdout = sys.stderr = None


def closed_objects():
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def daemon():
    """Become a daemon, as of old: fork twice, and close all descriptors. The first process waits for it."""
    call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork():
        os.closerange(3, 1024)  # so that helpers of multiprocessing end
        failed = []
        with contextlib.suppress(ChildProcessError):
            while True:
                _, status = os.waitpid(-1, 0)
                if status:
                    failed.append(os.waitstatus_to_exitcode(status))
        if failed:
            os.write(2, f"exit codes {failed}\n".encode())
        os._exit(1 if failed else 0)
    os.setsid()
    if os.fork():
        os._exit(0)
    call("prctl", PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    os.chdir("/")
    os.closerange(0, 1024)


def daemon_after_a_pool(kind):
    with pool_of(kind) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
    daemon()


def removed_directory(path):
    folder = path + ".d"
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)


def own_mounts():
    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def no_proc():
    own_mounts()
    call("mount", b"tmpfs", b"/proc", b"tmpfs", 0, None)


def pid_namespace():
    """Continue as the first process of a namespace, whose /proc is that of another one."""
    call("unshare", CLONE_NEWPID)
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def other_user():
    """Become another user, who may read all files: the interpreter may lie in a folder of root's."""
    if os.geteuid() != 0:
        os._exit(CANNOT)
    call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    bit = 1 << CAP_DAC_READ_SEARCH
    call("capset", header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0))
    call("prctl", PR_CAP_AMBIENT, 2, CAP_DAC_READ_SEARCH, 0, 0)


def not_dumpable():
    """Nobody but root may look into this process, and it has no rights of root's."""
    other_user()
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def read_only_files():
    own_mounts()
    os.environ["TMPDIR"] = "/does/not/exist"
    for folder in (b"/var/tmp", b"/dev/shm", b"/run"):
        call("mount", b"tmpfs", folder, b"tmpfs", MS_RDONLY, None)


def no_home():
    for name in ("HOME", "USER", "LOGNAME", "TMPDIR", "PATH", "LANG"):
        os.environ.pop(name, None)


def no_shm():
    own_mounts()
    call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", MS_RDONLY, None)


def full_shm():
    own_mounts()
    call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4k")
    with contextlib.suppress(OSError), open("/dev/shm/full", "wb") as file:
        file.write(bytes(1 << 16))


ENVIRONMENTS = {
    "ordinary": lambda kind, path: None,
    "closed before the start": lambda kind, path: None,
    "closed": lambda kind, path: closed(0, 1, 2),
    "without stdin": lambda kind, path: closed(0),
    "without stdout": lambda kind, path: closed(1),
    "without stderr": lambda kind, path: closed(2),
    "stream objects None": lambda kind, path: no_objects(),
    "stream objects closed": lambda kind, path: closed_objects(),
    "daemon": lambda kind, path: daemon(),
    "daemon after a pool": lambda kind, path: daemon_after_a_pool(kind),
    "removed directory": lambda kind, path: removed_directory(path),
    "no /proc": lambda kind, path: no_proc(),
    "PID namespace": lambda kind, path: pid_namespace(),
    "other user": lambda kind, path: other_user(),
    "not dumpable": lambda kind, path: not_dumpable(),
    "few descriptors": lambda kind, path: few_descriptors(),
    "read-only files": lambda kind, path: read_only_files(),
    "no HOME": lambda kind, path: no_home(),
    "no /dev/shm": lambda kind, path: no_shm(),
    "full /dev/shm": lambda kind, path: full_shm(),
}


# ---- tasks ----


def square(x):
    return x * x


def length(data, *_):
    return len(data)


def total(array):
    return float(array.sum())


def ones(n):
    import numpy

    return numpy.ones(n)


def shared_ones(n):
    import numpy

    import pool_party

    return pool_party.share(numpy.ones(n))


def fill(view, value):
    view[0] = value
    return view


def say(x):
    with contextlib.suppress(ValueError, OSError):  # it may be closed
        print("printed", x)
    logging.getLogger("environments").warning("logged %s", x)
    return x


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def run_program(x):
    """A task may start programs, whose standard streams are those of the worker."""
    return subprocess.run([sys.executable, "-S", "-c", f"print({x}); raise SystemExit({x})"], check=False).returncode


def keep(*values):
    global kept
    kept = values


def kept_length(_):
    return [len(value) for value in kept]


def standard_streams():
    """Return whether each descriptor below 3 is open and something else than /dev/null."""
    null = os.stat("/dev/null")
    found = []
    for fd in range(3):
        try:
            status = os.fstat(fd)
        except OSError:
            found.append(False)
        else:
            found.append((status.st_dev, status.st_ino) != (null.st_dev, null.st_ino))
    return found


# ---- what is checked ----


def open_fds():
    found = set()
    for fd in range(N_FDS):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_GETFD)
            found.add(fd)
    return found


def pool_of(kind, **options):
    from pool_party import ComposablePool

    if kind in ("thread", "interp"):
        return ComposablePool(2, kind=kind, **options)
    return ComposablePool(2, kind="process", context=kind, **options)


def check(value, expected):
    assert value == expected, f"{value!r} instead of {expected!r}"


def exercise(kind, relays):
    import pool_party
    from pool_party._ground.broken import WorkerLost

    before = standard_streams()
    data = bytes(BIG)
    captured = 3
    options = {"log": True, "output": "relay"} if relays and kind != "thread" else {"log": True} if relays else {}
    with pool_of(
        kind, initializer=keep, initargs=(pool_party.share(data[:5000]), data), maxtasksperchild=40, **options
    ) as pool:
        check(pool.map(square, range(20), 1), [x * x for x in range(20)])
        check(pool.apply(length, (data,)), BIG)
        check(pool.starmap(length, [(data, i) for i in range(6)]), [BIG] * 6)
        check(pool.map(functools.partial(length, data), range(4)), [BIG] * 4)
        check(pool.map(lambda x: x + captured + len(data), range(3)), [BIG + 3, BIG + 4, BIG + 5])
        check(len(pool.apply(bytes, (BIG,))), BIG)
        check(pool.apply(kept_length, (0,)), [5000, BIG])
        view = pool_party.share(bytearray(5000))
        check(bytes(pool.apply(fill, (view, 7))[:2]), b"\x07\0")
        check(view[0], 7)
        check(pool.map(say, range(4)), [0, 1, 2, 3])
        has_numpy = kind != "interp" or os.path.exists("/proc/self/fd")
        if has_numpy:
            with contextlib.suppress(ImportError):
                arrays(pool)
        if kind != "interp":
            check(pool.apply(run_program, (5,)), 5)
        if kind not in ("thread", "interp"):
            for streams in pool.map(standard_streams_of, range(4), 1):
                assert all(was or not now for was, now in zip(before, streams, strict=True)), (before, streams)
            try:
                pool.apply(kill_myself)
            except WorkerLost:
                pass
            else:
                raise AssertionError("a killed worker's task has a result")
            check(pool.map(square, range(20), 1), [x * x for x in range(20)])
            check(pool.apply(kept_length, (0,)), [5000, BIG])
        now = standard_streams()
        assert now == before, f"{now!r} instead of {before!r}: {files_of_standard_streams()}"
    pool.join()


def files_of_standard_streams():
    with contextlib.suppress(OSError):
        return [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3) if os.path.lexists(f"/proc/self/fd/{fd}")]
    return "no /proc"


def standard_streams_of(_):
    return standard_streams()


def arrays(pool):
    import numpy

    import pool_party

    array = numpy.ones(100_000)
    check(pool.apply(total, (array,)), 100_000)
    check(pool.apply(total, (pool_party.share(array),)), 100_000)
    check(pool.apply(total, (pool_party.share(array)[10:20],)), 10)
    check(pool.apply(total, (pool_party.share(array, readonly=True),)), 100_000)
    check([float(a.sum()) for a in pool.map(ones, [10, 400_000])], [10, 400_000])
    check([float(a.sum()) for a in pool.map(shared_ones, [10, 400_000])], [10, 400_000])


def main(environment, kind, path):
    import pool_party  # noqa: F401  # a program that changes its user or closes everything has imported its modules

    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
    ENVIRONMENTS[environment](kind, path)
    logging.basicConfig(handlers=[logging.NullHandler()])
    failures = []
    fds = None
    for relays in (False, True, True):
        try:
            exercise(kind, relays)
        except BaseException:
            failures.append(f"relays={relays}: {traceback.format_exc()}")
            break
        if relays:
            keep()
            gc.collect()
            now = open_fds()
            if fds is not None and len(now) > len(fds):
                failures.append(f"left open: {sorted(now - fds)}")
            fds = now
    with open(path, "w") as file:
        file.write("\n".join(failures) or "fine")
    if failures:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
