"""Worker processes and the signals, servers and children around them: `python processes.py scenario start-method`."""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.util
import os
import subprocess
import tempfile
import time
from multiprocessing import connection, forkserver, resource_tracker

from probe import TIMEOUT_S, ComposablePool, expect, gates, is_gone, main, open_fds, signal, tasks, worker_pids

from pool_party import WorkerLost
from pool_party._core import workers as core_workers


def make_pool(method, n=2, **kwargs):
    return ComposablePool(n, kind="process", context=multiprocessing.get_context(method), **kwargs)


def make_path(name):
    return os.path.join(tempfile.mkdtemp(), name)


@contextlib.contextmanager
def ctrl_c():
    """Send SIGINT to this process and all its children, as the terminal does. Here a KeyboardInterrupt ends it."""
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(TIMEOUT_S)
    except KeyboardInterrupt:
        yield
    else:
        raise AssertionError("Ctrl-C did not arrive")


# ---- a process of the program's own ----------------------------------------


def wait_for_interrupt(sender):
    try:
        sender.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        time.sleep(TIMEOUT_S)
    except KeyboardInterrupt:
        os._exit(42)


def own_process_is_interrupted(method):
    """The program's own process reacts to Ctrl-C, although a pool was first to start the helpers of such processes."""
    with make_pool(method) as pool:
        assert pool.apply(tasks.square, (2,)) == 4
        receiver, sender = multiprocessing.Pipe(False)
        process = multiprocessing.get_context(method).Process(target=wait_for_interrupt, args=(sender,))
        process.start()
        assert not receiver.recv(), "SIGINT is blocked there"
        os.kill(process.pid, signal.SIGINT)
        process.join(TIMEOUT_S)
        assert process.exitcode == 42, process.exitcode
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


# ---- a worker's end ---------------------------------------------------------


def at_exit(function, *args):
    multiprocessing.util.Finalize(None, function, args, exitpriority=0)


def leave_a_file(path):
    time.sleep(0.02)  # a signal that comes meanwhile would break it off
    with open(path, "x"):
        pass


def idle_workers_end_by_themselves(method):
    """The end of a pool does not break off what libraries do at a process's exit, if it has no task."""
    for _ in range(3):
        path = make_path("left")
        with make_pool(method, 1) as pool:
            pool.apply(at_exit, (leave_a_file, path))
        assert os.path.exists(path)


def stay(ignored):
    if ignored:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(TIMEOUT_S)


def idle_workers_that_do_not_end(method):
    """They are terminated after a moment, and killed if they ignore that."""
    core_workers.GRACE_S, core_workers.KILL_AFTER_S = 0.1, 0.3
    for ignored in (False, True):
        with make_pool(method, 1) as pool:
            pool.apply(at_exit, (stay, ignored))
            (worker,) = pool._engine._workers.slots
        assert worker.exitcode == -(signal.SIGKILL if ignored else signal.SIGTERM), worker.exitcode


# ---- children of tasks -----------------------------------------------------


def run_program(path):
    program = subprocess.Popen(["sleep", str(2 * TIMEOUT_S)])
    with open(path + ".new", "w") as file:
        file.write(str(program.pid))
    os.rename(path + ".new", path)
    return program.wait()


def programs_of_tasks_are_interrupted(method):
    """Ctrl-C ends the programs, but neither the worker nor its task."""
    path = make_path("pid")
    with make_pool(method, 1) as pool:
        pids = worker_pids(pool)
        result = pool.apply_async(run_program, (path,))
        gates.wait_until(lambda: os.path.exists(path), "the program runs")
        with ctrl_c():
            assert result.get(TIMEOUT_S) == -signal.SIGINT
        assert pool.apply(tasks.square, (3,)) == 9 and worker_pids(pool) == pids


def read_in_c(gate_path):
    """Read one byte from the gate's pipe by a system call that is not repeated if a signal interrupts it."""
    with open(gate_path + ".pass", "rb", 0) as file, open(gate_path + ".arrived", "wb", 0) as arrived:
        arrived.write(b"%d\n" % os.getpid())
        return ctypes.CDLL(None, use_errno=True).read(file.fileno(), ctypes.create_string_buffer(1), 1)


def is_waiting(pid):
    """Whether its main thread is in a read."""
    with open(f"/proc/{pid}/syscall") as file:
        return file.read().split()[0] == "0"


def system_calls_go_on(method):
    with gates.Gate(make_path("gate")) as gate, make_pool(method, 1) as pool:
        result = pool.apply_async(read_in_c, (gate.path,))
        (pid,) = gate.wait_arrived()
        gates.wait_until(lambda: is_waiting(pid), "the task reads")
        with ctrl_c():
            gate.release()
            assert result.get(TIMEOUT_S) == 1


def fork_and_report(is_own):
    """The exit status of a child that gets SIGINT: 42 after KeyboardInterrupt, 43 from the task's own handler."""
    if is_own:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(43))
    pid = os.fork()
    if pid == 0:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            os._exit(42)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked_children_are_interrupted(method):
    with make_pool(method, 1) as pool:
        assert pool.apply(fork_and_report, (False,)) == 42
        assert pool.apply(fork_and_report, (True,)) == 43


# ---- a dead fork server ----------------------------------------------------


def kill_server(workers):
    """Kill the fork server, and wait until `multiprocessing` takes all its children for dead."""
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    for worker in workers:
        assert connection.wait([worker.process.sentinel], TIMEOUT_S) and not worker.process.is_alive()


def workers_outlive_the_server(method):
    with gates.Gate(make_path("gate")) as gate, make_pool(method) as pool:
        results = [pool.apply_async(tasks.pass_gate, (gate.path, i)) for i in range(2)]
        pids = gate.wait_arrived(2)
        kill_server(pool._pool)
        assert all(worker.is_alive() and worker.exitcode is None for worker in pool._pool)
        assert not any(worker.join(0) for worker in pool._pool)
        gate.release(2)
        assert [result.get(TIMEOUT_S) for result in results] == [0, 1]
        assert pool.map(tasks.square, range(50), 1) == [x * x for x in range(50)]
        assert sorted(worker_pids(pool)) == sorted(pids) and pool.statistics().n_workers_lost == 0
        killed = pool.apply_async(tasks.pass_gate, (gate.path,))
        (pid,) = gate.wait_arrived()
        next(worker for worker in pool._pool if worker.pid == pid).kill()
        assert expect(WorkerLost, killed.get, TIMEOUT_S).pid == pid and is_gone(pid)
        assert pool.map(tasks.square, range(50), 1) == [x * x for x in range(50)]


def terminate_after_the_servers_death(method):
    with gates.Gate(make_path("gate")) as gate, make_pool(method) as pool:
        pool.map_async(tasks.pass_gate, [gate.path] * 2, 1)
        pids = gate.wait_arrived(2)
        workers = list(pool._pool)  # keep them: a Process that is collected takes its worker with it
        kill_server(workers)
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)
        assert all(map(is_gone, pids)), workers


# ---- what a worker leaves --------------------------------------------------


def n_descriptors():
    return sum("pidfd" in target or target.startswith("pipe:") for target in open_fds())


def released_at_once(method):
    if method == "forkserver":
        forkserver.ensure_running()  # it stays, with the resource tracker
    elif method == "spawn":
        resource_tracker.ensure_running()
    before = n_descriptors()
    pool = make_pool(method, 3)
    workers = list(pool._pool)
    pids, names = worker_pids(pool), [worker.name for worker in workers]
    assert pool.map(tasks.square, range(3)) == [0, 1, 4]
    for worker in workers:
        worker.release()  # too early: nothing happens
        assert worker.is_alive() and worker.exitcode is None
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    for worker in workers:
        worker.release()
        worker.release()
    assert n_descriptors() == before, open_fds()
    assert [worker.pid for worker in workers] == pids and [worker.name for worker in workers] == names
    for worker in workers:
        assert worker.exitcode == 0 and not worker.is_alive() and worker.join() and worker.sentinel is None
        worker.terminate()
        worker.kill()


# ---- other process classes -------------------------------------------------


class OwnProcess:
    """A process object with the attributes that `multiprocessing` documents, and nothing else."""

    def __init__(self, **kwargs):
        self._inner = multiprocessing.get_context("spawn").Process(**kwargs)
        for name in ("start", "join", "is_alive", "terminate", "kill", "close"):
            setattr(self, name, getattr(self._inner, name))

    name = property(lambda self: self._inner.name, lambda self, name: setattr(self._inner, "name", name))
    pid = property(lambda self: self._inner.pid)
    sentinel = property(lambda self: self._inner.sentinel)
    exitcode = property(lambda self: self._inner.exitcode)


class OwnContext(multiprocessing.context.BaseContext):
    _name = "own"
    Process = OwnProcess


def own_context(method):
    with ComposablePool(2, kind="process", context=OwnContext()) as pool:
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
        error = expect(WorkerLost, pool.apply, tasks.exit_now, (7,))
        assert error.exitcode == 7, error
    pool.join(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main(globals())
