"""progress=: bars, callables and the user's own objects show how far a call is, in every kind."""

import io
import logging
import sys
import threading
import types

import gates
import pytest
import tasks

import pool_party
from pool_party._observe import progress as displays

N = 20
VERBS = {
    "map": lambda pool, xs, progress: pool.map(tasks.square, xs, progress=progress),
    "map in chunks": lambda pool, xs, progress: pool.map(tasks.square, xs, chunksize=3, progress=progress),
    "starmap": lambda pool, xs, progress: pool.starmap(tasks.multiply, [(x, x) for x in xs], progress=progress),
    "imap": lambda pool, xs, progress: list(pool.imap(tasks.square, xs, progress=progress)),
    "imap in chunks": lambda pool, xs, progress: list(pool.imap(tasks.square, xs, 3, progress=progress)),
    "imap of an iterator": lambda pool, xs, progress: list(pool.imap(tasks.square, iter(xs), 3, progress=progress)),
    "imap ahead": lambda pool, xs, progress: list(pool.imap(tasks.square, xs, buffersize=4, progress=progress)),
    "imap_unordered": lambda pool, xs, progress: sorted(pool.imap_unordered(tasks.square, xs, 3, progress=progress)),
}
OF_EXECUTORS = {
    "map": lambda executor, xs, progress: list(executor.map(tasks.square, xs, progress=progress)),
    "map in chunks": lambda executor, xs, progress: list(
        executor.map(tasks.square, xs, chunksize=3, progress=progress)
    ),
    "map of an iterator": lambda executor, xs, progress: list(
        executor.map(tasks.square, iter(xs), chunksize=3, buffersize=2, progress=progress)
    ),
}


class Recorder:
    """A callable that keeps what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, done, total):
        self.calls.append((done, total))

    def check(self, n, has_total=True):
        """Check that counts rise from 0 to n, and that the last call has the total."""
        counts = [done for done, _ in self.calls]
        assert counts[0] == 0 and counts == sorted(counts)
        assert self.calls[-1] == (n, n)
        assert {total for _, total in self.calls[:-1]} <= {n if has_total else None}


def n_followers():
    return sum(thread.name == "pool_party-progress" for thread in threading.enumerate())


@pytest.fixture
def executor(make_executor, kind):
    return make_executor(2, kind=kind)


# ---- verbs -----------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_callable_of_a_pool(pool, verb):
    recorder = Recorder()
    assert VERBS[verb](pool, range(N), recorder) == [x * x for x in range(N)]
    recorder.check(N, has_total=verb != "imap of an iterator")
    assert n_followers() == 0


@pytest.mark.parametrize("verb", OF_EXECUTORS)
def test_a_callable_of_an_executor(executor, verb):
    recorder = Recorder()
    assert OF_EXECUTORS[verb](executor, range(N), recorder) == [x * x for x in range(N)]
    recorder.check(N, has_total=verb != "map of an iterator")
    assert n_followers() == 0


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_input(pool, verb):
    recorder = Recorder()
    assert VERBS[verb](pool, [], recorder) == []
    recorder.check(0, has_total=verb != "imap of an iterator")


class Unsure(list):
    """An iterable that does not know its length, as a tqdm over a generator."""

    def __len__(self):
        raise TypeError("there is no length")


def test_an_input_without_a_length_that_it_promises(pool, make_executor, kind):
    recorder = Recorder()
    executor = make_executor(2, kind=kind)
    for take in (pool.imap, executor.map):
        assert list(take(tasks.square, Unsure(range(N)), buffersize=3, progress=recorder)) == [x * x for x in range(N)]
        assert recorder.calls[-1] == (N, N)
    assert list(pool.imap(tasks.square, Unsure(range(N)))) == [x * x for x in range(N)]


def test_counts_are_shown_while_tasks_run(make_pool, kind, gate):
    recorder = Recorder()
    pool = make_pool(2, kind=kind)
    result = gates.call_in_thread(pool.map, tasks.pass_gate, [gate.path] * 3, 1, progress=recorder)
    gate.wait_arrived(2)
    gate.release()
    gate.wait_arrived()
    gates.wait_until(lambda: (1, 3) in recorder.calls, "one of three was shown")
    gate.release(2)
    result.result()
    recorder.check(3)


def test_counts_of_futures_are_shown_while_the_first_one_runs(make_executor, kind, gate):
    recorder = Recorder()
    executor = make_executor(2, kind=kind)
    results = executor.map(tasks.pass_gate_if, [gate.path] * 3, [0] * 3, range(3), progress=recorder)
    taken = gates.call_in_thread(list, results)
    gate.wait_arrived()
    gates.wait_until(lambda: (2, 3) in recorder.calls, "two of three were shown")
    gate.release()
    assert taken.result() == [0, 1, 2]
    recorder.check(3)


def test_failures_count(pool):
    recorder = Recorder()
    with pytest.raises(ValueError, match="wrong"):
        pool.starmap(tasks.raise_named, [("ValueError", "wrong")] * 4, 1, progress=recorder)
    recorder.check(4)


def test_tasks_that_did_not_run_do_not_count(make_pool, kind, gate):
    recorder = Recorder()
    pool = make_pool(1, kind=kind)
    result = gates.call_in_thread(pool.map, tasks.pass_gate, [gate.path] * 3, 1, progress=recorder)
    gate.wait_arrived()
    ended = gates.call_in_thread(pool.terminate)
    with pytest.raises(pool_party.PoolTerminated):
        result.result()
    gate.close()
    ended.result()
    assert recorder.calls == [(0, 3)]


def test_a_failure_ends_the_map_of_an_executor(executor):
    recorder = Recorder()
    with pytest.raises(ValueError, match="wrong"):
        list(executor.map(tasks.raise_named, ["ValueError"] * 4, ["wrong"] * 4, progress=recorder))
    assert recorder.calls[0] == (0, 4) and n_followers() == 0


def test_dropped_iterators_stop_showing(make_pool, make_executor, kind, gate):
    iterators = [
        make_pool(1, kind=kind).imap(tasks.pass_gate, [gate.path] * 2, progress=Recorder()),
        make_executor(1, kind=kind).map(tasks.pass_gate, [gate.path] * 2, progress=Recorder()),
    ]
    gate.wait_arrived(2)
    iterators.append(make_executor(1, kind=kind).map(abs, range(2), progress=Recorder()))
    next(iterators[-1])  # this one has begun
    assert n_followers() == 3
    del iterators
    gates.wait_until(lambda: n_followers() == 0, "no thread is left")
    gate.close()


# ---- callables -------------------------------------------------------------


@pytest.mark.parametrize("verb", ["map", "imap", "imap_unordered"])
def test_an_exception_of_a_callable_is_logged_and_costs_no_result(pool, verb, caplog):
    calls = []

    def fail(done, total):
        calls.append(done)
        raise ZeroDivisionError("a callable's own")

    with caplog.at_level(logging.ERROR, "pool_party"):
        assert VERBS[verb](pool, range(N), fail) == [x * x for x in range(N)]
    assert calls == [0]
    assert [record.getMessage() for record in caplog.records] == [
        "showing progress failed; the call goes on without it"
    ]
    assert "a callable's own" in caplog.text


def test_a_callable_may_use_the_pool(pool):
    seen = []
    result = gates.call_in_thread(
        pool.map, tasks.square, range(N), progress=lambda done, total: seen.append(pool.apply(abs, (-done,)))
    )
    assert result.result() == [x * x for x in range(N)] and seen[-1] == N


@pytest.mark.parametrize("wrong", [3, "bar", Recorder, (1, 2), [], object()])
def test_other_values_are_refused_before_anything_runs(pool, wrong):
    before = pool.statistics().n_submitted
    for verb in VERBS.values():
        with pytest.raises((TypeError, ValueError), match="progress must be"):
            verb(pool, range(3), wrong)
    assert pool.statistics().n_submitted == before


@pytest.mark.parametrize("nothing", [None, False])
def test_nothing_is_shown(pool, nothing, capsys):
    assert pool.map(tasks.square, range(3), progress=nothing) == [0, 1, 4]
    assert capsys.readouterr().err == ""


# ---- bars ------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def replace_stderr(monkeypatch, is_terminal):
    """Tests do it themselves: pytest replaces standard error after the fixtures."""
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.mark.parametrize("verb", VERBS)
def test_a_bar_of_tqdm(pool, verb, monkeypatch):
    pytest.importorskip("tqdm")
    terminal = replace_stderr(monkeypatch, True)
    assert VERBS[verb](pool, range(N), True) == [x * x for x in range(N)]
    assert f"{N}/{N}" in terminal.getvalue() and terminal.getvalue().endswith("\n")


def test_a_line_on_a_terminal_without_tqdm(pool, monkeypatch):
    terminal = replace_stderr(monkeypatch, True)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    pool.map(tasks.square, range(2000), progress=True)
    list(pool.imap(tasks.square, iter(range(3)), progress=True))
    assert terminal.getvalue().startswith("\r0 of 2,000 items done\x1b[K\r")
    assert terminal.getvalue().endswith("\r3 of 3 items done\x1b[K\n")


def test_silence_without_a_terminal(pool, monkeypatch):
    no_terminal = replace_stderr(monkeypatch, False)
    monkeypatch.setattr(displays, "LINE_S", 0.0)
    pool.map(tasks.square, range(N), progress=True)
    assert no_terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    assert pool.map(tasks.square, range(3), progress=True) == [0, 1, 4]


def test_lines_on_request(pool, monkeypatch):
    no_terminal = replace_stderr(monkeypatch, False)
    pool.map(tasks.square, range(N), progress="lines")
    assert no_terminal.getvalue() == ""  # it took less than 30 s
    monkeypatch.setattr(displays, "LINE_S", 0.0)
    pool.map(tasks.square, range(N), progress="lines")
    lines = no_terminal.getvalue().splitlines()
    assert lines[0].startswith(f"pool_party: 0 of {N} items done after ")
    assert lines[-1].startswith(f"pool_party: {N} of {N} items done after ")


def test_a_bar_in_a_notebook(pool, monkeypatch):
    no_terminal = replace_stderr(monkeypatch, False)
    pytest.importorskip("tqdm")
    shell = types.SimpleNamespace(kernel=None, config={})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    pool.map(tasks.square, range(N), progress=True)
    assert f"{N}/{N}" in no_terminal.getvalue()


def test_a_tqdm_of_the_users(pool):
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=2 * N, file=io.StringIO()) as bar:
        for verb in ("map", "imap of an iterator"):
            VERBS[verb](pool, range(N), bar)
        assert (bar.n, bar.total) == (2 * N, 2 * N)
    with tqdm.tqdm(file=io.StringIO()) as bar:
        VERBS["map"](pool, range(N), bar)
        assert (bar.n, bar.total) == (N, N)


def test_a_task_of_rich(pool):
    rich_progress, console = pytest.importorskip("rich.progress"), pytest.importorskip("rich.console")
    with rich_progress.Progress(console=console.Console(file=io.StringIO())) as progress:
        ids = progress.add_task("own total", total=2 * N), progress.add_task("none", total=None)
        for verb in ("map", "imap of an iterator"):
            VERBS[verb](pool, range(N), (progress, ids[0]))
        VERBS["map"](pool, range(N), (progress, ids[1]))
        assert [(task.completed, task.total) for task in progress.tasks] == [(2 * N, 2 * N), (N, N)]
