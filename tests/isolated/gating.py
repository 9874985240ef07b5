"""The gate between processes: never too many tokens out, and a dead holder's come back."""

import fcntl
import os
import random
import struct
import sys
import tempfile
import threading

from probe import TIMEOUT_S, expect, gates, main, signal

from pool_party._native import Gate


class Sum:
    """What all processes hold together, in a file that one of them changes at a time."""

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
    """Acquire and release at random, nested too, and count what is held."""
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
    """Run it in a child; its pid."""
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
    """One of several programs that only share the machine's gate of that name."""
    gate = Gate.machine(3, name)
    take_turns(gate, Sum(path, 3), int(seed))
    assert gate.n_recovered == 0


def hold(name, n):
    """Hold tokens until killed."""
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
    """SIGKILL holders, every other one at whatever instruction: `forget` has every token back at once."""
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
    """A dead waiter at the head of the line holds up nobody."""
    gate = Gate(2)
    gate.acquire(1)
    pid = fork(gate.acquire, 2)
    gates.wait_until(lambda: gate.n_waiting == 1, "the child waits")
    other = fork(gate.acquire, 1)
    gates.wait_until(lambda: gate.n_waiting == 2, "the other waits behind it")
    os.kill(pid, signal.SIGKILL)
    assert reap(pid) == -signal.SIGKILL
    assert reap(other) == 0  # it gets its token without a word from us, and exits with it
    gate.forget(other)
    assert (gate.n_free, gate.n_waiting) == (1, 0)


def killed_with_the_mutex():
    """Killed inside the table: who comes next puts it right."""
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
    """The child has none of its parent's tokens."""
    gate = Gate(2)
    gate.acquire(2)
    gate.acquire(1)

    def child():
        assert gate.held == 0
        expect(RuntimeError, gate.release)
        assert gate.acquire(1) == 1  # waits
        gate.release()

    pid = fork(child)
    gates.wait_until(lambda: gate.n_waiting == 1, "the child waits")
    gate.release()
    assert (gate.held, gate.n_free) == (2, 0)
    gate.release()
    assert reap(pid) == 0
    assert (gate.held, gate.n_free, gate.n_waits, gate.n_recovered) == (0, 2, 1, 0)


def thread_that_ends():
    """A thread that ends with tokens in a process that lives on: whoever waits gets them."""
    gate = Gate(2)
    thread = threading.Thread(target=gate.acquire, args=(2,))
    thread.start()
    thread.join()
    assert gate.acquire(1) == 1
    assert gate.n_recovered == 1
    gate.release()


def interrupted():
    """Ctrl-C ends a wait and leaves nothing behind."""
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
    )
}

if __name__ == "__main__":
    main(SCENARIOS)
