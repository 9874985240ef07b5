"""The gate between processes: never too many tokens are out, and a dead holder's tokens come back."""

import contextlib
import fcntl
import itertools
import os
import random
import struct
import sys
import tempfile
import threading

from probe import TIMEOUT_S, expect, gates, main, signal

from pool_party._native import Gate


class Sum:
    """The number of tokens that all processes hold, in a file that one process changes at a time."""

    def __init__(self, path, limit):
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._limit = limit

    def add(self, n):
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        total = sum(struct.unpack("i", os.pread(self._fd, 4, 0) or bytes(4))) + n
        assert 0 <= total <= self._limit, f"{total} tokens of {self._limit}"
        os.pwrite(self._fd, struct.pack("i", total), 0)
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


def take_turns(gate, total, seed, n_rounds=150):
    """Acquire and release at random, also nested, and count the held tokens."""
    rng = random.Random(seed)
    for _ in range(n_rounds):
        wanted = rng.randint(1, gate.n_tokens + 2)
        granted = gate.acquire(wanted)
        assert granted == min(wanted, gate.n_tokens) == gate.held
        total.add(granted)
        if rng.random() < 0.2:
            assert gate.acquire(rng.randint(1, 9)) == granted
            gate.release()
        total.add(-granted)
        gate.release()
        assert gate.held == 0


def fork(fn, *args):
    """Run a function in a child. Return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        fn(*args)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def reap(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(seed, n_processes=4, n_tokens=3):
    gate, seed = Gate(n_tokens), int(seed)
    with tempfile.NamedTemporaryFile() as file:
        pids = [fork(take_turns, gate, Sum(file.name, n_tokens), seed + i) for i in range(n_processes)]
        assert [reap(pid) for pid in pids] == [0] * n_processes
    assert (gate.n_free, gate.n_waiting, gate.n_recovered) == (n_tokens, 0, 0)
    assert gate.n_acquired == 150 * n_processes


def unrelated(name, path, seed):
    """One of several programs that share only the machine-wide gate of this name."""
    gate = Gate.machine(3, name)
    take_turns(gate, Sum(path, 3), int(seed))
    assert gate.n_recovered == 0


def hold(name, n):
    """Hold tokens until this process is killed."""
    gate = Gate.machine(2, name)
    print(gate.acquire(int(n)), flush=True)
    signal.pause()


def hold_and_tell(gate, n, pipe):
    assert gate.acquire(n) == n
    os.write(pipe, b"x")
    signal.pause()


def churn(gate, pipe):
    os.write(pipe, b"x")
    while True:
        gate.acquire(2)
        gate.release()


def kills(n_kills, seed=20261120):
    """Kill holders, every other one at a random instruction. `forget` must get every token back at once."""
    gate, rng = Gate(2), random.Random(seed)
    reader, writer = os.pipe()
    for i in range(int(n_kills)):
        calm = i % 2 == 0
        pid = fork(hold_and_tell, gate, 1 + i // 2 % 2, writer) if calm else fork(churn, gate, writer)
        assert os.read(reader, 1) == b"x"
        for _ in range(0 if calm else rng.randrange(3000)):
            pass
        os.kill(pid, signal.SIGKILL)
        assert reap(pid) == -signal.SIGKILL
        n_rows = gate.forget(pid)
        assert n_rows == 1 if calm else n_rows <= 1
        assert (gate.acquire(2), gate.forget(pid)) == (2, 0)
        gate.release()
        assert (gate.n_free, gate.n_waiting) == (2, 0), i
    print("ok")


def killed_while_it_waits():
    """A dead waiter at the head of the line must not delay anyone."""
    gate = Gate(2)
    gate.acquire(1)
    pid = fork(gate.acquire, 2)
    gates.wait_until(lambda: gate.n_waiting == 1, "the child waits")
    other = fork(gate.acquire, 1)
    gates.wait_until(lambda: gate.n_waiting == 2, "the other waits behind it")
    os.kill(pid, signal.SIGKILL)
    assert reap(pid) == -signal.SIGKILL
    assert reap(other) == 0  # it gets its token without our help, and exits with it
    gate.forget(other)
    assert (gate.n_free, gate.n_waiting) == (1, 0)


def killed_with_the_mutex():
    """A holder is killed inside the table. The next user repairs it."""
    gate = Gate(2)
    reader, writer = os.pipe()

    def lock():
        gate.acquire(2)
        gate._lock()
        os.write(writer, b"x")
        signal.pause()

    for n in range(1, 4):
        pid = fork(lock)
        os.read(reader, 1)
        os.kill(pid, signal.SIGKILL)
        assert reap(pid) == -signal.SIGKILL
        assert gate.acquire(2) == 2
        gate.release()
        assert (gate.n_free, gate.n_waiting, gate.n_recovered) == (2, 0, 2 * n)


def forked_while_holding():
    """The child must have none of its parent's tokens."""
    gate = Gate(2)
    gate.acquire(2)
    gate.acquire(1)

    def child():
        assert gate.held == 0
        expect(RuntimeError, gate.release)
        assert gate.acquire(1) == 1  # this waits
        gate.release()

    pid = fork(child)
    gates.wait_until(lambda: gate.n_waiting == 1, "the child waits")
    gate.release()
    assert (gate.held, gate.n_free) == (2, 0)
    gate.release()
    assert reap(pid) == 0
    assert (gate.held, gate.n_free, gate.n_waits, gate.n_recovered) == (0, 2, 1, 0)


def thread_that_ends():
    """A thread ends with tokens while its process lives on. Waiters get them."""
    gate = Gate(2)
    thread = threading.Thread(target=gate.acquire, args=(2,))
    thread.start()
    thread.join()
    assert gate.acquire(1) == 1
    assert gate.n_recovered == 1
    gate.release()


def interrupted():
    """Ctrl-C ends a wait, and leaves nothing behind."""
    gate = Gate(1)
    release = threading.Event()

    def hold_until():
        gate.acquire()
        release.wait(TIMEOUT_S)
        gate.release()

    def interrupt():
        gates.wait_until(lambda: gate.n_waiting == 1, "the main thread waits")
        os.kill(os.getpid(), signal.SIGINT)

    holder, other = threading.Thread(target=hold_until), threading.Thread(target=interrupt)
    holder.start()
    gates.wait_until(lambda: gate.n_free == 0, "the other thread holds")
    other.start()
    expect(KeyboardInterrupt, gate.acquire)
    assert (gate.n_waiting, gate.held) == (0, 0)
    release.set()
    assert gate.acquire() == 1
    gate.release()
    holder.join()
    other.join()


def covered_threads():
    """Other threads of a process pass while one holds tokens for all of them, and hold none themselves."""
    gate = Gate(2)
    assert gate.acquire(1, True) == 1
    for call in [gates.call_in_thread(hold_once, gate, n) for n in (1, 2, 2)]:
        assert call.result(TIMEOUT_S) <= 2
    assert (gate.held, gate.n_free) == (1, 1)
    gate.release()
    assert (gate.n_free, gate.n_waiting, gate.n_recovered) == (2, 0, 0)


def hold_once(gate, n=1):
    granted = gate.acquire(n)
    gate.release()
    return granted


def covered_while_it_waits():
    """A thread waits behind its own process's hold, which is granted meanwhile."""
    gate = Gate(2)
    reader, writer = os.pipe()
    other = fork(hold_and_tell, gate, 2, writer)
    assert os.read(reader, 1) == b"x"
    done = threading.Event()

    def task():
        gate.acquire(2, True)
        assert done.wait(TIMEOUT_S), "the other thread waits for tokens of its own process"
        gate.release()

    holder = gates.call_in_thread(task)
    gates.wait_until(lambda: gate.n_waiting == 1, "the task waits")
    region = gates.call_in_thread(hold_once, gate)
    gates.wait_until(lambda: gate.n_waiting == 2, "the region waits")
    os.kill(other, signal.SIGKILL)
    assert reap(other) == -signal.SIGKILL
    assert region.result(TIMEOUT_S) == 1
    done.set()
    holder.result(TIMEOUT_S)
    assert (gate.n_free, gate.n_waiting) == (2, 0)


def covered_descendants():
    """A child and a grandchild pass while their ancestor holds tokens for them. Another process does not."""
    gate = Gate(2)
    stranger = fork_stranger(gate)
    gate.acquire(2, True)

    def child():
        assert gate.acquire(2) == 2
        gate.release()
        assert reap(fork(hold_once, gate)) == 0

    assert reap(fork(child)) == 0
    os.write(stranger, b"x")
    gates.wait_until(lambda: gate.n_waiting == 1, "the stranger waits")
    gate.release()
    gates.wait_until(lambda: (gate.n_free, gate.n_waiting) == (2, 0), "the stranger has come and gone")


def fork_stranger(gate):
    """Fork a process that no longer descends from this one once its parent is gone. Return what lets it acquire."""
    reader, writer = os.pipe()

    def stranger():
        os.read(reader, 1)
        gate.acquire(1)
        gate.release()

    assert reap(fork(lambda: fork(stranger) and None)) == 0
    return writer


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


def stopped():
    """A stopped process neither holds tokens nor keeps its place in the line.

    When continued it runs on, and gives nothing back twice.
    """
    gate = Gate(2)
    told, teller = os.pipe()
    let_go, letter = os.pipe()

    def child():
        gate.acquire(2)
        os.write(teller, b"x")
        os.read(let_go, 1)
        gate.release()

    holder = fork(child)
    assert os.read(told, 1) == b"x"
    waiter = fork(child)
    gates.wait_until(lambda: gate.n_waiting == 1, "the other child waits")
    stop(holder)
    stop(waiter)
    assert gate.acquire(2) == 2  # past both
    os.kill(holder, signal.SIGCONT)
    os.kill(waiter, signal.SIGCONT)
    assert os.read(told, 1) == b"x"  # the waiter continues without tokens
    os.write(letter, b"xx")
    assert (reap(holder), reap(waiter)) == (0, 0)
    assert (gate.held, gate.n_free, gate.n_waiting) == (2, 0, 0)
    gate.release()
    assert (gate.n_free, gate.n_recovered) == (2, 0)


def stopped_with_the_mutex(name):
    """Nobody waits for ever for a stopped process's mutex. All is well again when it continues or dies."""
    gate = Gate.machine(2, name)
    reader, writer = os.pipe()

    def lock():
        gate._lock()
        os.write(writer, b"x")
        signal.pause()

    gate.acquire(1)
    pid = fork(lock)
    os.read(reader, 1)
    stop(pid)
    gate.release()  # in time, although without the mutex
    expect(TimeoutError, gate.acquire)
    error = expect(TimeoutError, Gate.machine, 2, name)
    assert error.filename == Gate.machine_path(name) and "stopped" in error.strerror
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    assert gate.acquire(2) == 2
    gate.release()
    assert (gate.n_free, gate.n_waiting) == (2, 0)


def damaged():
    """Whatever its counts say, a gate must neither crash nor make anyone wait for ever."""
    mark = 0x3A5C
    gate = Gate(mark)
    at = os.pread(gate.fd, 4096, 0).index(struct.pack("II", mark, mark))
    others = itertools.cycle(itertools.product((0, mark, (1 << 32) - 1), (0, 7)))
    rows = (0, 1, 2, 4096, 1 << 31, (1 << 32) - 2, (1 << 32) - 1)
    for n_tokens, n_rows in itertools.product((mark, 0, (1 << 32) - 1), rows):
        n_free, n_waiting = next(others)
        os.pwrite(gate.fd, struct.pack("IIII", n_tokens, n_free, n_waiting, n_rows), at)
        gate.acquire(5)
        gate.forget(1)
        gate.release()
        gate.acquire(5)
        os.pwrite(gate.fd, struct.pack("IIII", n_tokens, n_free, n_waiting, n_rows), at)
        gate.release()
    os.pwrite(gate.fd, struct.pack("IIII", mark, 0, 0, 0), at)
    gate.acquire(5)
    gate.release()
    assert (gate.n_tokens, gate.n_free, gate.n_waiting) == (mark, mark, 0)


def overwrite(fd, rng, start, end, n):
    os.pwrite(fd, rng.randbytes(n), rng.randrange(start, end - n))


def use_damaged(name, seed):
    """Damage the file while it is unused, and while three threads use it. All three must get their tokens."""
    rng = random.Random(seed)
    fd = os.open(Gate.machine_path(name), os.O_RDWR)
    size = os.fstat(fd).st_size
    for _ in range(rng.randint(1, 8)):
        overwrite(fd, rng, 0, rng.choice((1024, size)), rng.randint(1, 16))
    try:
        gate = Gate.machine(2, name)
    except OSError as error:
        assert isinstance(error, TimeoutError) or "Invalid" in str(error), error
        return
    calls = [gates.call_in_thread(hold_once, gate, rng.randint(1, 3)) for _ in range(3)]
    for _ in range(3):
        overwrite(fd, rng, 104, size, 4)  # not the mutex, which one of these threads may hold
    for call in calls:
        with contextlib.suppress(TimeoutError):
            call.result(TIMEOUT_S)


def random_damage(name, n_rounds=100, seed=11):
    """After bytes are overwritten at random, the gate works or raises a clear error in time."""
    rng = random.Random(int(seed))
    for i in range(int(n_rounds)):
        hold_once(Gate.machine(2, name))
        status = reap(fork(use_damaged, name, rng.random()))
        assert status == 0, (i, status)
        os.unlink(Gate.machine_path(name))
    print("ok")


SCENARIOS = {
    f.__name__: f
    for f in (
        forked,
        unrelated,
        hold,
        kills,
        killed_while_it_waits,
        killed_with_the_mutex,
        forked_while_holding,
        thread_that_ends,
        interrupted,
        covered_threads,
        covered_while_it_waits,
        covered_descendants,
        stopped,
        stopped_with_the_mutex,
        damaged,
        random_damage,
    )
}

if __name__ == "__main__":
    main(SCENARIOS)
