"""Programs that share the CPUs of the machine: the table of them, pools with `scope="machine"`, and `pool-party top`.

Programs run in fresh processes, each test with a table of its own. They pretend to have eight CPUs, and that nothing
else runs.
"""

import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import types

import fresh
import gates
import pytest

from pool_party import ComposablePool, WorkerBudget, _native
from pool_party._budget import machine, policies, programs
from pool_party._cli import main as cli
from pool_party._cli import top

N_CPUS = 8
CPUS = {"POOL_PARTY_CPU_COUNT": str(N_CPUS)}


@pytest.fixture
def path():
    """The path of a table that is not there yet."""
    path = programs.path_of_table(f"test-{os.getpid()}-{random.getrandbits(32)}")
    yield path
    if os.path.lexists(path):
        os.unlink(path)


@pytest.fixture
def table(path):
    """The name of this table, which pools of this process use meanwhile."""
    machine.TABLE = path.partition(f"-{os.geteuid()}-")[2].partition("-")[2]
    assert programs.path_of_table(machine.TABLE) == path
    yield machine.TABLE
    machine.TABLE = ""


# ---- dividing ----


@pytest.mark.parametrize(
    ("wanted", "n_threads", "expected"),
    [
        ([8], 8, [8]),
        ([8, 8], 8, [4, 4]),
        ([5, 5], 5, [2, 3]),
        ([16, 2, 16], 16, [7, 2, 7]),
        ([0, 3], 2, [0, 2]),
        ([1, 1, 1], 2, [1, 1, 1]),
        ([], 4, []),
    ],
)
def test_threads_are_divided_fairly(wanted, n_threads, expected):
    assert programs.divide(wanted, n_threads) == expected


def test_nobody_gets_more_than_another_who_wants_it():
    rng = random.Random(5)
    for _ in range(2000):
        wanted = [rng.choice((0, 1, rng.randint(1, 40))) for _ in range(rng.randint(1, 12))]
        n_threads = rng.randint(1, 40)
        parts = programs.divide(wanted, n_threads)
        assert all(bool(part) == bool(want) and part <= want for part, want in zip(parts, wanted, strict=True))
        assert sum(parts) == min(sum(wanted), max(n_threads, sum(want > 0 for want in wanted)))
        unmet = [part for part, want in zip(parts, wanted, strict=True) if part < want]
        assert not unmet or max(parts) - min(unmet) <= 1


def test_budgets_fit_into_a_programs_part():
    rng = random.Random(6)
    for _ in range(2000):
        awake = [rng.random() < 0.5 for _ in range(rng.randint(1, 9))]
        shares = [WorkerBudget(rng.randint(1, 9), (0,)) for _ in awake]
        n_threads = rng.randint(1, 20)
        fitted = [share.n_threads for share in policies.fit(shares, awake, n_threads)]
        active = [n for n, is_awake in zip(fitted, awake, strict=True) if is_awake]
        before = [share.n_threads for share, is_awake in zip(shares, awake, strict=True) if is_awake]
        assert min(fitted) >= 1 and sum(active) <= max(n_threads, len(active))
        assert sum(before) > n_threads or active == before


# ---- the table ----


HOLDER = """
import os, sys
from pool_party._budget import programs
table = programs.Table(sys.argv[1])
row = table.claim(1, "a holder")
table.set(row, n_wanted=3)
if "fork" in sys.argv and os.fork() == 0:
    input()
    os._exit(0)
print(row, flush=True)
input()
"""


def start(path, *words):
    process = fresh.start(["-c", HOLDER, path, *words], stdin=subprocess.PIPE)
    process.row = int(process.stdout.readline())
    return process


def test_a_program_that_dies_is_gone_at_once(path):
    table = programs.Table(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    process = start(path)
    (program,) = table.programs()
    assert (program.pid, program.n_wanted, program.cpus, program.command) == (process.pid, 3, 1, "a holder")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(table.programs()) == []
    other = start(path)
    assert [found.pid for found in table.programs()] == [other.pid] and other.row == process.row
    fresh.end(other)
    fresh.end(process)


def test_a_child_does_not_keep_the_row_of_its_parent(path):
    table = programs.Table(path)
    process = start(path, "fork")
    gates.wait_until(lambda: len(list(table.programs())) == 1, "it is there")
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert list(table.programs()) == []
    fresh.end(process)


def test_a_bell_wakes_who_waits_for_it(path):
    table = programs.Table(path)
    row = table.claim(1, "this one")
    other = start(path)
    assert table.wait_ring(row, 5, None) == 0  # it is not 5
    table.ring_others(row)
    assert table.wait_ring(row, 0, 0.0) == 0 and table.wait_ring(other.row, 0, None) == 1
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(table.wait_ring(row, 0, None)))
    waiter.start()
    table.ring(row)
    waiter.join()
    assert seen == [1]
    fresh.end(other)


@pytest.mark.parametrize("word", [b"1234", bytearray(3), "1234", memoryview(bytearray(8))[1:]])
def test_a_bell_is_an_aligned_word(word):
    for use in (lambda: _native.ring(word), lambda: _native.wait_ring(word, 0, 0.0)):
        with pytest.raises((TypeError, ValueError, BufferError)):
            use()


def make_bad(path, how):
    if how == "a link":
        os.symlink("/etc/passwd", path)
        return
    if how == "a folder":
        os.mkdir(path)
        return
    if how == "a pipe":
        os.mkfifo(path, 0o600)
        return
    programs.Table(path)
    if how == "open to others":
        os.chmod(path, 0o644)
    elif how == "another size":
        os.truncate(path, 100)
    elif how == "another header":
        with open(path, "r+b") as file:
            file.write(b"something")


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("a link", OSError, "symbolic links"),
        ("a folder", IsADirectoryError, "Is a directory"),
        ("a pipe", OSError, "damaged; remove the file if no program uses it"),
        ("open to others", PermissionError, "is not this user's alone"),
        ("another size", OSError, "damaged; remove the file if no program uses it"),
        ("another header", OSError, "damaged; remove the file if no program uses it"),
    ],
)
def test_a_file_that_is_no_table_is_refused(path, how, error, words):
    make_bad(path, how)
    try:
        with pytest.raises(error, match=words) as caught:
            programs.Table(path)
        assert caught.value.filename == path
    finally:
        if os.path.isdir(path):
            os.rmdir(path)


def test_what_stands_in_the_table_is_not_trusted(path):
    """Rows without a lock do not count, and numbers of the others are limited."""
    table = programs.Table(path)
    process = start(path)
    assert [found.pid for found in table.programs()] == [process.pid]
    rng = random.Random(7)
    with open(path, "r+b") as file:
        header = file.read(128)
        found = bytearray(rng.randbytes(os.stat(path).st_size))
        found[: len(header)] = header
        file.seek(0)
        file.write(found)
        file.seek(128 + 8 * process.row)
        file.write(process.pid.to_bytes(8, sys.byteorder))
    (program,) = table.programs()
    assert program.pid == process.pid and program.command.isprintable()
    assert max(program[1:6]) <= 1 << 16 and max(program[6:8]) <= 1 << 62
    fresh.end(process)


# ---- pools ----


POOL = """
import sys
import tasks
from pool_party import ComposablePool, _native
from pool_party._budget import machine

if __name__ == "__main__":
    machine.TABLE, kind, policy, n_workers, n_tasks, path, look_s = sys.argv[1:]
    machine.LOOK_S = float(look_s)
    _native.pretend_running(0)
    with ComposablePool(int(n_workers), kind=kind, policy=policy, scope="machine") as pool:
        pool.map(abs, range(100), 1)
        held = [pool.apply_async(tasks.pass_gate, (path,)) for _ in range(int(n_tasks))]
        for line in sys.stdin:
            print(max(pool.statistics().n_threads), flush=True)
"""


class Other:
    """Another program with a pool, some of whose tasks wait at a gate."""

    def __init__(self, tmp_path, table, kind, policy, n_workers, n_tasks, look_s=machine.LOOK_S):
        self.n_workers, self.n_tasks = n_workers, n_tasks
        self.gate = gates.Gate(tmp_path / f"gate-{random.getrandbits(32)}")
        program = tmp_path / "program.py"
        program.write_text(POOL)
        arguments = [program, table, kind, policy, n_workers, n_tasks, self.gate.path, look_s]
        self.process = fresh.start(arguments, stdin=subprocess.PIPE, extra=CPUS)
        if n_tasks:
            self.gate.wait_arrived(n_tasks)

    def most_threads(self):
        """Return the largest budget of its workers."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait_for(self, n_threads):
        gates.wait_until(lambda: self.most_threads() == n_threads, f"{n_threads} threads")

    def end(self):
        self.gate.close()
        fresh.end(self.process)


@pytest.fixture
def begin(tmp_path, table):
    """Return a function that starts other programs."""
    started = []

    def begin(*arguments):
        started.append(Other(tmp_path, table, *arguments))
        return started[-1]

    yield begin
    for other in started:
        other.end()


def test_programs_with_work_divide_the_machine(kind, begin):
    """Evenly, however many workers each has. A program that is killed, or that is done, leaves its part to the rest."""
    lone = begin(kind, "dynamic", 4, 1)
    lone.wait_for(8)
    crowd = begin(kind, "static", 8, 8)
    lone.wait_for(4)
    assert crowd.most_threads() == 1
    third = begin(kind, "dynamic", 2, 1)
    third.wait_for(3)
    lone.wait_for(2)
    os.kill(crowd.process.pid, signal.SIGKILL)
    third.wait_for(4)
    lone.wait_for(4)
    third.gate.release(1)
    lone.wait_for(8)
    third.wait_for(4)  # its workers' own budgets, while it has no work


def test_programs_tell_each_other(kind, begin):
    """Nobody has to look for what others want, but for a program that was killed."""
    never = 1e6
    lone = begin(kind, "dynamic", 2, 1, never)
    lone.wait_for(8)
    second = begin(kind, "dynamic", 2, 2, never)
    lone.wait_for(4)
    second.gate.release(2)
    lone.wait_for(8)
    begin(kind, "dynamic", 2, 1, never).wait_for(4)
    lone.wait_for(4)


class Fake:
    """In the place of a pool's enforcer."""

    plan = types.SimpleNamespace(n_threads=N_CPUS, own=(N_CPUS,))

    def __init__(self):
        self.woken = threading.Event()

    def reconsider(self):
        self.woken.set()

    def task_counts(self):
        return 0, 0


@pytest.fixture
def fake(table):
    """A pool of this process, which has no work, so that the looker sleeps until the bell rings."""
    fake = Fake()
    machine.join(fake)
    yield fake
    machine.leave(fake)
    assert machine._present is None


def test_what_lasted_only_between_two_looks_is_noticed(fake, path):
    """A pool has seen that another program rests, and has a larger part since. The looker was late, and has not."""
    presence = machine._present
    other = start(path)
    presence._table.ring(presence._row)
    assert fake.woken.wait(30)
    assert presence.share(fake, 0, 0) == N_CPUS - 3
    row = programs.Table(path)._rows[other.row]
    row[programs._WANTED] = 0
    assert presence.share(fake, 0, 0) == N_CPUS
    fake.woken.clear()
    row[programs._WANTED] = 3
    presence._table.ring(presence._row)
    assert fake.woken.wait(30)
    fresh.end(other)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other CPU")
def test_pools_may_use_different_cpus(table):
    """A program is shown with the CPUs of all its pools."""
    first, second, every = Fake(), Fake(), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(every)})
        presence = machine.join(first)
        assert presence._table._cpus_of(presence._row) == 1 << min(every)
        os.sched_setaffinity(0, every)
        machine.join(second)
        assert presence._table._cpus_of(presence._row) == sum(1 << cpu for cpu in every)
    finally:
        os.sched_setaffinity(0, every)
        machine.leave(first)
        machine.leave(second)


def test_a_table_that_is_removed_is_made_again(kind, begin, path):
    """As some systems do at a logout. Programs that have work go to the new one, where those are that start later."""
    lone = begin(kind, "dynamic", 2, 1)
    lone.wait_for(8)
    os.unlink(path)
    second = begin(kind, "dynamic", 2, 1)
    lone.wait_for(4)
    second.wait_for(4)
    second.gate.release(1)
    lone.wait_for(8)


def test_a_signal_while_an_opening_is_undone(table, monkeypatch):
    """The handler's exception comes when the program has left the table."""

    class Stopped(Exception):
        pass

    def stop(number, frame):
        raise Stopped

    def leave(pool, leave=machine.leave):
        os.kill(os.getpid(), signal.SIGUSR1)
        leave(pool)

    def refuse(*arguments):
        raise OSError("no process can be started")

    monkeypatch.setattr(machine, "leave", leave)
    monkeypatch.setattr("pool_party._workers.process._launch", refuse)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stopped):
            ComposablePool(1, kind="process", context="fork", scope="machine")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert machine._present is None
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_workers_with_budgets_of_their_own_give_up_some(kind, begin):
    first = begin(kind, "static", 2, 2)
    first.wait_for(4)
    second = begin(kind, "static", 2, 1)
    second.wait_for(4)
    first.wait_for(2)
    second.gate.release(1)
    first.wait_for(4)


@pytest.mark.slow
@pytest.mark.hang_s(600)
def test_programs_that_come_work_rest_and_die_at_random(begin, path):
    """After each step, every program with work has what a model says."""
    rng = random.Random(8)
    shapes = [("dynamic", 4, 1), ("static", 2, 2), ("static", 4, 1), ("dynamic", 2, 2), ("static", 8, 8)]
    wants = {"dynamic": lambda _: N_CPUS, "static": lambda shape: N_CPUS // shape[1] * shape[2]}
    alive = {}  # program -> its shape, while it has work
    for _ in range(16):
        step = rng.choice(["start", "start", "rest", "die"]) if alive else "start"
        if step == "start" and len(alive) < 5:
            shape = rng.choice(shapes)
            alive[begin(rng.choice(("thread", "process", "interp")), *shape)] = shape
        else:
            other = rng.choice(list(alive))
            del alive[other]
            if step == "rest":
                other.gate.release(other.n_tasks)
            else:
                os.kill(other.process.pid, signal.SIGKILL)
        rows = [program.pid for program in programs.Table(path).programs()]
        order = sorted(alive, key=lambda other: rows.index(other.process.pid))
        parts = programs.divide([wants[alive[other][0]](alive[other]) for other in order], N_CPUS)
        for other, part in zip(order, parts, strict=True):
            own = N_CPUS // other.n_workers
            most = -(-part // other.n_tasks)
            other.wait_for(max(1, most if alive[other][0] == "dynamic" else min(own, most)))


def test_a_pool_that_is_alone_changes_nothing(kind, table, path, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", str(N_CPUS))
    options = {"policy": "static", "scope": "machine"}  # "dynamic" lends the CPUs of a worker that begins late
    with ComposablePool(2, kind=kind, **options) as pool, ComposablePool(1, kind="thread", **options):
        assert pool.map(abs, [-1, -2]) == [1, 2]
        assert pool.statistics().n_threads == (4, 4)
        assert machine._present is not None and len(machine._present._pools) == 2
    pool.join()
    gates.wait_until(lambda: machine._present is None, "nothing is left")
    assert list(programs.Table(path).programs()) == []


def test_gated_pools_need_no_table(table, path):
    with ComposablePool(1, kind="process", policy="counting", scope="machine") as pool:
        assert pool.map(abs, [-1]) == [1]
    assert not os.path.exists(path)


def test_a_table_that_is_refused_refuses_the_pool(kind, table, path):
    make_bad(path, "open to others")
    with pytest.raises(PermissionError, match="is not this user's alone"):
        ComposablePool(1, kind=kind, scope="machine")


CLOSING = """
import os, sys
from pool_party import ComposablePool
from pool_party._budget import machine, programs

def close():  # in one step, since the thread that looks at the table may open another file at any time
    os.dup2(os.open("/dev/null", os.O_RDONLY), machine._present._table._fd)

machine.TABLE = sys.argv[1]
with ComposablePool(1, kind="thread", scope="machine") as pool:
    pool.apply(close)
    print("closed", flush=True)
    pool.apply(input)
print("ended")
"""


# The same, but the next task begins when a line comes.
CLOSING_IN_STEPS = CLOSING.replace("pool.apply(input)", "input(); pool.apply(input)")


def step(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_task_may_close_the_tables_descriptor(table, path):
    process = fresh.start(["-c", CLOSING, table], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "closed\n"
    other = programs.Table(path)
    gates.wait_until(lambda: [found.pid for found in other.programs()] == [process.pid], "it is in the table again")
    fresh.check(fresh.finish(process, stdin_text="\n"), "ended")
    assert list(other.programs()) == []


def test_a_table_may_be_closed_and_removed(table, path):
    """Its program goes to the one that others have made since."""
    code = CLOSING_IN_STEPS.replace("os.dup2", "os.unlink(sys.argv[2]); os.dup2")
    process = fresh.start(["-c", code, table, path], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "closed\n"
    other = programs.Table(path)
    step(process)
    gates.wait_until(lambda: [found.pid for found in other.programs()] == [process.pid], "it is in the new table")
    fresh.check(fresh.finish(process, stdin_text="\n"), "ended")
    assert list(other.programs()) == []


def test_the_row_may_be_anothers_then(table, path):
    """A program that has lost its row takes another one, and leaves that of the other program alone.

    It may have locked it again before the other program comes.
    """
    process = fresh.start(["-c", CLOSING_IN_STEPS, table], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "closed\n"
    other = start(path)
    table = programs.Table(path)
    assert other.pid in [found.pid for found in table.programs()]
    step(process)
    gates.wait_until(lambda: len(list(table.programs())) == 2, "both are there")
    fresh.check(fresh.finish(process, stdin_text="\n"), "ended")
    assert [found.pid for found in table.programs()] == [other.pid]
    fresh.end(other)


def test_the_row_may_have_been_anothers(table, path):
    """That program has ended, and nobody has the row."""
    process = fresh.start(["-c", CLOSING_IN_STEPS, table], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "closed\n"
    other = start(path)
    fresh.end(other)
    table = programs.Table(path)
    step(process)
    gates.wait_until(lambda: [found.pid for found in table.programs()] == [process.pid], "it is in the table again")
    fresh.check(fresh.finish(process, stdin_text="\n"), "ended")
    assert list(table.programs()) == []


NESTED = """
import os, sys
from pool_party import ComposablePool
from pool_party._budget import machine, programs

def inner(table):
    machine.TABLE = table
    with ComposablePool(1, kind="thread", scope="machine") as pool:
        pool.map(abs, [-1])
        return [found.pid for found in programs.Table(programs.path_of_table(table)).programs()]

if __name__ == "__main__":
    machine.TABLE = sys.argv[1]
    with ComposablePool(1, kind=sys.argv[2], scope="machine") as pool:
        print(set(pool.apply(inner, sys.argv[1:2])) <= {os.getpid()})
"""


def test_a_pool_inside_a_worker_is_no_program_of_its_own(remote_kind, table, tmp_path):
    (tmp_path / "program.py").write_text(NESTED)
    fresh.check(fresh.run([tmp_path / "program.py", table, remote_kind]), "True")


def test_the_runner_shares_the_machine(table, tmp_path):
    code = f"from pool_party._budget import machine; machine.TABLE = {table!r}\n"
    code += "from multiprocessing.pool import ThreadPool\n"
    code += "with ThreadPool(1) as pool: print(pool.map(abs, [-1]), machine._present is not None)"
    fresh.check(fresh.run(["-m", "pool_party", "--scope", "machine", "-c", code]), "[1] True")


# ---- pool-party top ----


def look(capsys, table, *options):
    assert cli.main(["top", "--once", "--interval", "0.1", "--table", table, *options]) == 0
    return capsys.readouterr().out


def test_top_shows_programs(begin, table, capsys, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", str(N_CPUS))
    assert "no program of this user" in look(capsys, table)
    other = begin("thread", "dynamic", 4, 1)
    other.wait_for(8)
    begin("thread", "static", 2, 0)

    def are_shown():
        found = json.loads(look(capsys, table, "--json"))
        now = [(program["pid"] == other.process.pid, program["active"], program["threads"]) for program in found]
        return found if now == [(True, 1, 8), (False, 0, 0)] else None

    found = gates.wait_until(are_shown, "both are shown")
    assert found[0]["workers"] == 4 and found[0]["done"] >= 100 and "program.py" in found[0]["command"]
    shown = look(capsys, table)
    assert shown.startswith("2 programs, 8 threads for 8 CPUs\n") and str(other.process.pid) in shown


def test_top_says_what_is_wrong(path, table, capsys):
    make_bad(path, "open to others")
    assert cli.main(["top", "--once", "--table", table]) == 2
    assert (
        capsys.readouterr().err == f"pool-party: {path}: the table of this user's programs is not this user's alone\n"
    )


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_top_refuses_an_interval(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["top", "--interval", text])
    assert f"{text!r} is not a number of seconds from 0.1 to 3600" in capsys.readouterr().err


def test_top_opens_the_table_once(begin, table, capsys):
    begin("thread", "static", 1, 1)
    looks = top._Looks(programs.path_of_table(table))
    n_descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert len(looks.next()) == 1
    assert len(os.listdir("/proc/self/fd")) == n_descriptors


def test_top_draws_until_q(table):
    terminal, ends = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pool_party._cli.main", "top", "--interval", "0.1", "--table", table],
        **dict.fromkeys(("stdin", "stdout", "stderr"), ends),
        env={**fresh.environment(), "TERM": "xterm"},
    )
    os.close(ends)
    shown = b""
    while b"q ends this." not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, b"q")
    assert process.wait() == 0 and b"no program of this user" in shown
    os.close(terminal)
