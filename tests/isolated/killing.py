"""Worker processes that die: one task is lost and nothing else, and nothing hangs."""

import concurrent.futures.process
import contextlib
import multiprocessing
import os
import random
import tempfile
import threading
from multiprocessing import forkserver, util

import doomed
from probe import TIMEOUT_S, ComposablePool, expect, gates, main, signal, tasks, worker_pids

from pool_party import InitializerFailed, WorkerLost

MiB = 1 << 20


def make_pool(method, n=2, **kwargs):
    context = None if method == "default" else multiprocessing.get_context(method)
    return ComposablePool(n, context=context, kind="process", **kwargs)


def make_gate():
    return gates.Gate(os.path.join(tempfile.mkdtemp(), "gate"))


def check_lost(error, pid=None, exitcode=-signal.SIGKILL, word="SIGKILL"):
    assert isinstance(error, concurrent.futures.process.BrokenProcessPool)
    assert error.exitcode == exitcode, error.exitcode
    assert pid is None or error.pid == pid, (error.pid, pid)
    assert str(error.pid) in str(error) and word in str(error), str(error)


def check_works(pool, n=100):
    assert pool.map(tasks.square, range(n), 1) == [x * x for x in range(n)]


def check_replaced(pool, n_lost, n_workers=2):
    gates.wait_until(lambda: pool.statistics().n_workers_lost == n_lost, f"{n_lost} lost")
    gates.wait_until(lambda: sum(worker.is_alive() for worker in pool._pool) == n_workers, "replaced")
    assert pool.statistics().n_workers == n_workers
    assert pool.statistics().n_pending == 0


def running(method):
    with make_gate() as gate, make_pool(method) as pool:
        before = [pool.apply_async(tasks.square, (i,)) for i in range(50)]
        held = pool.apply_async(tasks.pass_gate, (gate.path,))
        after = [pool.apply_async(tasks.square, (i,)) for i in range(50)]
        (pid,) = gate.wait_arrived()
        os.kill(pid, signal.SIGKILL)
        check_lost(expect(WorkerLost, held.get, TIMEOUT_S), pid)
        assert [r.get(TIMEOUT_S) for r in before + after] == [i * i for i in range(50)] * 2
        check_works(pool)
        check_replaced(pool, 1)


def die_while_starting(method, n):
    """The next `n` workers are killed before they have read what they are to do.

    Parent and children agree on who dies by files: whoever can remove one is killed.
    """
    folder = tempfile.mkdtemp()
    for i in range(n):
        os.mkdir(os.path.join(folder, str(i)))
    if method == "spawn":
        spawn = util.spawnv_passfds

        def spawn_and_kill(path, args, fds):
            pid = spawn(path, args, fds)
            if any("spawn_main" in str(arg) for arg in args) and os.listdir(folder):
                os.rmdir(os.path.join(folder, os.listdir(folder)[0]))
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return pid

        util.spawnv_passfds = spawn_and_kill
    elif method == "fork":
        os.register_at_fork(after_in_child=lambda: doomed.die_if_chosen(folder))
    else:
        os.environ["DOOMED"] = folder
        multiprocessing.set_forkserver_preload(["doomed"])


def starting(method):
    """A worker that dies while it starts is replaced, also if it is the first."""
    die_while_starting(method, 1)
    with make_pool(method) as pool:
        check_works(pool)
        gates.wait_until(lambda: pool.statistics().n_workers_lost == 1, "one is lost")
        check_replaced(pool, 1)
    assert not zombies(), zombies()


def all_while_starting(method):
    die_while_starting(method, 100)
    with contextlib.closing(make_pool(method)) as pool:  # as its own context it raises, if all have died by then
        error = expect(InitializerFailed, lambda: pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S))
        assert "ended before their initializer had run" in str(error) and "SIGKILL" in str(error), error
        assert isinstance(error.__cause__, WorkerLost), error
    pool.join(timeout=TIMEOUT_S)
    assert not zombies(), zombies()


def each_asks_itself_to_end(method):
    """An initializer that always sends itself a signal which may also come from outside."""
    number = signal.SIGTERM if method == "fork" else signal.SIGHUP
    with contextlib.closing(make_pool(method, 1, initializer=signal.raise_signal, initargs=(number,))) as pool:
        error = expect(InitializerFailed, lambda: pool.apply_async(tasks.square, (2,)).get(3 * TIMEOUT_S))
        assert "ended before their initializer had run" in str(error) and number.name in str(error), error
    pool.join(timeout=TIMEOUT_S)
    assert not zombies(), zombies()


def zombies():
    """This process's dead children that nobody has waited for."""
    states = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
            state, parent = stat.read().rpartition(")")[2].split()[:2]
            states += [pid] if state == "Z" and int(parent) == os.getpid() else []
    return states


def fork_servers_while_starting(method):
    """A fork server that dies just when it is to make a worker is replaced by another."""
    assert method == "forkserver"
    connect, n_left = forkserver._forkserver.connect_to_new_process, iter(range(2))

    def kill_and_connect(fds):
        forkserver.ensure_running()
        pid = forkserver._forkserver._forkserver_pid
        if next(n_left, None) is None:
            return connect(fds)
        os.kill(pid, signal.SIGSTOP)  # it takes the request, as far as its queue goes, and never answers
        killer = threading.Timer(0.01, os.kill, (pid, signal.SIGKILL))
        killer.start()
        try:
            return connect(fds)
        finally:
            killer.join()
            with contextlib.suppress(ChildProcessError):  # whoever asked for a server has found it dead already
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    forkserver.connect_to_new_process = kill_and_connect
    with make_pool(method) as pool:
        check_works(pool)


def running_with_all_others_queued_behind(method):
    """The only worker dies with a full queue. Its successor does the rest."""
    with make_gate() as gate, make_pool(method, 1) as pool:
        held = pool.apply_async(tasks.pass_gate, (gate.path,))
        queued = [pool.apply_async(tasks.square, (i,)) for i in range(200)]
        large = pool.apply_async(tasks.checksum, (bytes(4 * MiB),))
        (pid,) = gate.wait_arrived()
        os.kill(pid, signal.SIGKILL)
        check_lost(expect(WorkerLost, held.get, TIMEOUT_S), pid)
        assert [r.get(TIMEOUT_S) for r in queued] == [i * i for i in range(200)]
        assert large.get(TIMEOUT_S)[0] == 4 * MiB
        check_replaced(pool, 1, 1)


def running_in_map(method):
    """map raises WorkerLost after the rest has run. imap continues after the lost item."""
    with make_gate() as gate, make_pool(method) as pool:
        held = gates.call_in_thread(pool.starmap, tasks.pass_gate_if, [(gate.path, 0, x) for x in range(50)], 1)
        (pid,) = gate.wait_arrived()
        os.kill(pid, signal.SIGKILL)
        check_lost(expect(WorkerLost, held.result, TIMEOUT_S), pid)
        iterator = pool.imap(tasks.exit_now_if_3, range(10))
        assert [iterator.next(TIMEOUT_S) for _ in range(3)] == [0, 1, 2]
        check_lost(expect(WorkerLost, iterator.next, TIMEOUT_S), None, 9, "9")
        assert [iterator.next(TIMEOUT_S) for _ in range(6)] == [4, 5, 6, 7, 8, 9]
        unordered, n_lost = [], 0
        iterator = pool.imap_unordered(tasks.exit_now_if_3, range(10))
        for _ in range(10):
            try:
                unordered.append(iterator.next(TIMEOUT_S))
            except WorkerLost:
                n_lost += 1
        assert (sorted(unordered), n_lost) == ([0, 1, 2, 4, 5, 6, 7, 8, 9], 1)
        check_replaced(pool, 3)


def idle(method):
    """No task was running, so none is lost, although tasks are submitted before the death is noticed."""
    with make_pool(method) as pool:
        check_works(pool)
        for n_dead in (1, 2):
            lost_before = pool.statistics().n_workers_lost
            for pid in worker_pids(pool)[:n_dead]:
                os.kill(pid, signal.SIGKILL)
            results = [pool.apply_async(tasks.square, (i,)) for i in range(100)]
            assert [r.get(TIMEOUT_S) for r in results] == [i * i for i in range(100)]
            check_replaced(pool, lost_before + n_dead)
        assert pool.statistics().n_failed == 0


def reading(method):
    """The worker dies while it unpickles an argument."""
    with make_gate() as gate, make_pool(method) as pool:
        argument = tasks.HeldWhenLoaded(gate.path, bytes(8 * MiB))
        held = pool.apply_async(tasks.identity, (argument,))
        others = [pool.apply_async(tasks.square, (i,)) for i in range(50)]
        (pid,) = gate.wait_arrived()
        os.kill(pid, signal.SIGKILL)
        check_lost(expect(WorkerLost, held.get, TIMEOUT_S), pid)
        assert [r.get(TIMEOUT_S) for r in others] == [i * i for i in range(50)]
        check_replaced(pool, 1)


def writing(method):
    """The worker dies while it pickles a result."""
    with make_gate() as gate, make_pool(method) as pool:
        held = pool.apply_async(tasks.make_held_when_pickled, (gate.path, 8 * MiB))
        others = [pool.apply_async(tasks.square, (i,)) for i in range(50)]
        (pid,) = gate.wait_arrived()
        os.kill(pid, signal.SIGKILL)
        check_lost(expect(WorkerLost, held.get, TIMEOUT_S), pid)
        assert [r.get(TIMEOUT_S) for r in others] == [i * i for i in range(50)]
        check_replaced(pool, 1)


def amid_large_messages(method):
    """Workers are killed at random moments of large messages both ways. Each call has its value or WorkerLost."""
    rng = random.Random(7)
    data = tasks.pattern(6 * MiB)
    blob = tasks.make_blob(3 * MiB)
    with make_pool(method) as pool:
        for _ in range(15):
            calls = []
            for _ in range(2):
                calls.append((pool.apply_async(tasks.identity, (data,)), data))
                calls.append((pool.apply_async(tasks.identity, (blob,)), blob))
            calls[0][0].wait(rng.uniform(0, 0.02))  # the random moment is intended
            with contextlib.suppress(ProcessLookupError):  # it was killed before, and is not replaced yet
                os.kill(rng.choice(worker_pids(pool)), signal.SIGKILL)
            n_lost = 0
            for result, expected in calls:
                try:
                    assert result.get(TIMEOUT_S) == expected
                except WorkerLost:
                    n_lost += 1
            assert n_lost <= 1, n_lost
        check_works(pool)


def in_initializer(method):
    """A worker is killed once in its initializer. It is replaced, and nothing is lost."""
    with make_gate() as gate:
        made = gates.call_in_thread(make_pool, method, initializer=tasks.pass_gate, initargs=(gate.path,))
        pids = gate.wait_arrived(2)
        os.kill(pids[0], signal.SIGKILL)
        gate.wait_arrived(1)
        gate.release(3)
        with made.result(TIMEOUT_S) as pool:
            check_works(pool)


def os_exit(method):
    with make_pool(method) as pool:
        for code in (0, 1, 7):
            error = expect(WorkerLost, pool.apply_async(tasks.exit_now, (code,)).get, TIMEOUT_S)
            check_lost(error, None, code, str(code))
        check_works(pool)
        check_replaced(pool, 3)


def segfault(method):
    with make_pool(method) as pool:
        error = expect(WorkerLost, pool.apply_async(tasks.segfault).get, TIMEOUT_S)
        check_lost(error, None, -signal.SIGSEGV, "SIGSEGV")
        check_works(pool)


def other_signals(method):
    with make_pool(method) as pool:
        for signum in (signal.SIGTERM, signal.SIGABRT, signal.SIGBUS):
            result = pool.apply_async(tasks.kill_self, (signum,))
            check_lost(expect(WorkerLost, result.get, TIMEOUT_S), None, -signum, signum.name)
        check_works(pool)


def many_in_a_row(method):
    """A pool survives many times more deaths than it has workers."""
    with make_pool(method) as pool:
        results = [pool.apply_async(tasks.exit_now if i % 5 == 0 else tasks.square, (i,)) for i in range(100)]
        for i, result in enumerate(results):
            if i % 5 == 0:
                expect(WorkerLost, result.get, TIMEOUT_S)
            else:
                assert result.get(TIMEOUT_S) == i * i
        check_replaced(pool, 20)


def while_closing(method):
    """A worker that dies after close() is replaced as long as there is work."""
    with make_gate() as gate, make_pool(method, 1) as pool:
        held = pool.apply_async(tasks.pass_gate, (gate.path,))
        queued = pool.map_async(tasks.square, range(20), 1)
        (pid,) = gate.wait_arrived()
        pool.close()
        os.kill(pid, signal.SIGKILL)
        expect(WorkerLost, held.get, TIMEOUT_S)
        assert queued.get(TIMEOUT_S) == [x * x for x in range(20)]
        pool.join(timeout=TIMEOUT_S)


def error_callback(method):
    with make_pool(method) as pool:
        errors = []
        result = pool.apply_async(tasks.exit_now, (3,), error_callback=errors.append)
        error = expect(WorkerLost, result.get, TIMEOUT_S)
        assert errors == [error]


if __name__ == "__main__":
    main(globals())
