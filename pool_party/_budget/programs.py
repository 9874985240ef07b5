"""The programs of this user that share the CPUs of the machine: a table in shared memory, with a row for each program.

A program holds a lock on the bytes of its row, which the kernel releases when the program ends, however that happens.
So the rows of dead programs are free at once. These are POSIX record locks: a forked child does not inherit them, and
they are gone if the program closes any descriptor of the file, which is why a table is never closed.

Each row has a bell, a word that the other programs ring when they want another number of threads. Nobody rings for a
program that dies, so whoever waits for its bell looks from time to time, too.

Nothing read from the table is trusted: numbers are limited to what they can be, and a file that is no table, or that
others may write to, is refused. The file is for one user and one PID namespace, since process ids are valid in one
only.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence

from pool_party import _native
from pool_party._budget.split import THREADS_MAX
from pool_party._ground.records import NamedTuple

_MAGIC, _VERSION = 0x31736D6172676F72, 2
N_ROWS = 256
_WORD, _HEAD_WORDS, _ROW_WORDS = 8, 512, 64
_HEADER = (_MAGIC, _VERSION, N_ROWS, _ROW_WORDS)
_PIDS = slice(16, 16 + N_ROWS)  # words of the head: the program of each row, or 0
_HEAD_BYTES, _ROW_BYTES = _WORD * _HEAD_WORDS, _WORD * _ROW_WORDS
_SIZE = _HEAD_BYTES + _ROW_BYTES * N_ROWS
_FIELDS = ("n_pools", "n_workers", "n_active", "n_wanted", "n_threads", "n_done", "n_pending")  # words of a row
_WANTED = _FIELDS.index("n_wanted")
_LIMITS = (*[THREADS_MAX] * 5, 1 << 62, 1 << 62)
_BELL, _MASK, _COMMAND = slice(8, 9), slice(16, 32), slice(32, 64)  # words of a row; 1,024 CPUs, and 256 bytes
_LOCK = struct.Struct("hhqqi4x")  # `struct flock` of 64-bit Linux
_TRIES = 100  # others may create or remove the file meanwhile


class Program(NamedTuple):
    """A program at one moment.

    n_active: its workers that have work. n_wanted: the threads that these could use now. n_threads: those that they may
    use. n_done, n_pending: tasks. cpus: the CPUs that it may use, as bits.
    """

    pid: int
    n_pools: int
    n_workers: int
    n_active: int
    n_wanted: int
    n_threads: int
    n_done: int
    n_pending: int
    cpus: int
    command: str


class TableRemoved(OSError):
    """The table's file is there no more, so a table must be opened anew."""


def path_of_table(name: str = "") -> str:
    """Return the path of the table of this user's programs, or of another one that has a name, for tests."""
    try:
        namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        namespace = "0"
    return f"/dev/shm/pool_party-programs{_VERSION}-{os.geteuid()}-{namespace}{name and f'-{name}'}"


class Table:
    """The table in a file. Any thread may read it. Not after a fork: a child opens its own."""

    def __init__(self, path: str) -> None:
        """Open the table, which is made if it is not there.

        Raises: PermissionError for a file of another user, or one that others may use. OSError for a file that is no
        table, or if there is no memory for it.
        """
        self.path = path
        self._fd = _open(path)
        self._file = _identity(self._fd)
        words = memoryview(mmap.mmap(self._fd, _SIZE)).cast("Q")
        self._pids = words[_PIDS]
        self._rows = [words[at : at + _ROW_WORDS] for at in range(_HEAD_WORDS, len(words), _ROW_WORDS)]

    def programs(self) -> Iterator[Program]:
        """Yield the other programs that are alive, in the order of their rows."""
        for n, pid in self._alive():
            yield self._read(n, pid)

    def wanted(self, own: int) -> Iterator[tuple[int, int]]:
        """Yield the row and the wanted threads of each program that may use some of the CPUs of the caller's row.

        The caller's is among them, if it is still there. This reads little, since it is done every few milliseconds.
        """
        cpus = self._cpus_of(own)
        for n, _ in self._alive(own):
            if self._cpus_of(n) & cpus:
                yield n, min(self._rows[n][_WANTED], THREADS_MAX)

    def _alive(self, own: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the row and the id of each program that is alive. own: the caller's row."""
        self._reopen_if_closed()
        for n, pid in enumerate(self._pids.tolist()):
            if pid and (pid == os.getpid() if n == own else self._holder_of(n) == pid):
                yield n, pid

    def claim(self, cpus: int, command: str) -> int:
        """Lock a free row, and return its number. Once for each process.

        Raises: OSError if there is none, or no lock can be taken.
        """
        for n, row in enumerate(self._rows):
            if self._lock(n):
                row[:] = memoryview(bytes(_ROW_BYTES)).cast("Q")
                row[_MASK] = _words_of(cpus)
                row[_COMMAND] = memoryview(command.encode(errors="replace")[:256].ljust(256, b"\0")).cast("Q")
                self._pids[n] = os.getpid()
                return n
        raise OSError(errno.ENOSPC, f"{N_ROWS} programs share the CPUs of this machine already", self.path)

    def set_cpus(self, n: int, cpus: int) -> None:
        """Set the CPUs, as bits, that the program of a row may use. Nothing happens if another process has it."""
        if self._pids[n] == os.getpid():
            self._rows[n][_MASK] = _words_of(cpus)

    def is_current(self) -> bool:
        """Return whether the file is still there. If not, other programs may have made another one since."""
        return _identity(self.path) == self._file

    def keep(self, n: int) -> bool:
        """Lock the caller's row again if its lock is lost. Return False if another program has had the row meanwhile.

        Raises: TableRemoved if the table's descriptor is gone, and its file as well.
        """
        if not self._lock(n):
            return False
        if self._pids[n] == os.getpid():
            return True
        self._unlock(n)
        return False

    def _lock(self, n: int) -> bool:
        """Lock a row, or find that this process has locked it already. False: another one has."""
        self._reopen_if_closed()
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _ROW_BYTES, _start_of(n))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def set(self, n: int, **values: int) -> None:
        """Set numbers in a row that is locked. Nothing happens if another process has it meanwhile."""
        if self._pids[n] == os.getpid():
            for name, value in values.items():
                self._rows[n][_FIELDS.index(name)] = value

    def ring(self, n: int) -> None:
        """Ring the bell of a row, to wake the thread that waits for it."""
        _native.ring(self._rows[n][_BELL])

    def ring_others(self, own: int) -> None:
        """Ring the bells of all programs but the caller's."""
        for n, pid in enumerate(self._pids.tolist()):
            if pid and n != own:
                self.ring(n)

    def wait_ring(self, n: int, seen: int, timeout_s: float | None) -> int:
        """Wait until the bell of a row has rung since it was `seen`, or for a time. Return what to pass as `seen` next.

        It may return too early.
        """
        return _native.wait_ring(self._rows[n][_BELL], seen, timeout_s)

    def free(self, n: int) -> None:
        """Give a row back, unless another process has it meanwhile."""
        if self._pids[n] == os.getpid():
            self._pids[n] = 0
            if _identity(self._fd) == self._file:
                self._unlock(n)
            self.ring_others(n)

    def _unlock(self, n: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, _ROW_BYTES, _start_of(n))

    def _reopen_if_closed(self) -> None:
        """Open the file again if a task has closed its descriptor, with which all locks were lost.

        Raises: TableRemoved if the file is there no more.
        """
        if _identity(self._fd) != self._file:
            if not self.is_current():
                raise TableRemoved(errno.ESTALE, "the table of this user's programs was removed", self.path)
            self._fd = _open_existing(self.path)

    def _holder_of(self, n: int) -> int:
        """Return the id of the other process that has locked a row, or 0."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _start_of(n), _ROW_BYTES, 0)
        kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def _cpus_of(self, n: int) -> int:
        return int.from_bytes(self._rows[n][_MASK].tobytes(), "little")

    def _read(self, n: int, pid: int) -> Program:
        row = self._rows[n].tobytes()
        words = struct.unpack_from(f"{len(_FIELDS)}Q", row)
        numbers = [min(word, limit) for word, limit in zip(words, _LIMITS, strict=True)]
        command = row[_WORD * _COMMAND.start :].partition(b"\0")[0].decode(errors="replace")
        return Program._make((pid, *numbers, self._cpus_of(n), "".join(c if c.isprintable() else "?" for c in command)))


def _identity(file: int | str) -> tuple[int, int]:
    """Return which file a descriptor has or is at a path, or zeros if it is closed or there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _words_of(cpus: int) -> memoryview:
    return memoryview(cpus.to_bytes(1 << 14, "little")[:128]).cast("Q")


def _start_of(n: int) -> int:
    return _HEAD_BYTES + _ROW_BYTES * n


def divide(wanted: Sequence[int], n_threads: int) -> list[int]:
    """Divide threads among programs: nobody gets more than it wants, and what one does not want the others get.

    This is max-min fairness. Whoever wants some gets at least 1, so the parts may add up to more than there are.
    """
    parts = [0] * len(wanted)
    order = sorted((n for n in range(len(wanted)) if wanted[n]), key=lambda n: wanted[n])  # the sort is stable
    for at, n in enumerate(order):
        parts[n] = max(1, min(wanted[n], n_threads // (len(order) - at)))
        n_threads = max(0, n_threads - parts[n])
    return parts


# ---- the file ----


def _open(path: str) -> int:
    for _ in range(_TRIES):
        try:
            return _open_existing(path)
        except FileNotFoundError:
            pass
        try:
            return _create(path)
        except FileExistsError:
            pass
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


def _open_existing(path: str) -> int:
    _native.occupy_standard()
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the table of this user's programs is not this user's alone", path)
        is_table = stat.S_ISREG(status.st_mode) and status.st_size == _SIZE
        if not is_table or os.pread(fd, _WORD * len(_HEADER), 0) != struct.pack(f"{len(_HEADER)}Q", *_HEADER):
            what = "the table of this user's programs is damaged; remove the file if no program uses it"
            raise OSError(errno.EINVAL, what, path)
        os.posix_fallocate(fd, 0, _SIZE)  # a write to a page that /dev/shm lacks would end the program
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create(path: str) -> int:
    """Make the file. It gets its name when it is complete, so that nobody opens half of it."""
    _native.occupy_standard()
    fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, _SIZE)
        os.pwrite(fd, struct.pack(f"{len(_HEADER)}Q", *_HEADER), 0)
        _native.name_file(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd
