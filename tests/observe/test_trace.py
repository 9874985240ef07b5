"""Traces: what workers of every kind did, as a file that Perfetto opens, and pictures of it."""

import json
import os
import sys
import threading
from multiprocessing.pool import MaybeEncodingError

import fresh
import gates
import pytest
import tasks

from pool_party import PoolClosed, PoolPartyError, _native
from pool_party._cli.main import main
from pool_party._ground.quoting import call_each_star, name_of
from pool_party._observe import chrome, metrics, timeline
from pool_party._observe.assemble import _kind_in, _n_threads_in
from pool_party._observe.events import PREEMPTED, TASK, WAIT, WAKE_UP
from pool_party._observe.trace import _EVENT, Tracing

MS = 1_000_000  # in ns

# ---- the rules of the format -----------------------------------------------


def check_format(path):
    """Check a file against the part of the Trace Event Format that we use. Return its events."""
    data = json.loads(path.read_bytes())
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    for event in data["traceEvents"]:
        check_event(event)
    check_nesting([event for event in data["traceEvents"] if event["ph"] == "X"])
    return data["traceEvents"]


def check_event(event):
    assert isinstance(event["name"], str) and event["name"]
    assert type(event["pid"]) is int and type(event["tid"]) is int
    assert event["ph"] in "XiCM"
    assert isinstance(event["args"], dict)
    if event["ph"] != "M":
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        assert isinstance(event["cat"], str)
    if event["ph"] == "X":
        assert event["dur"] >= 0
    if event["ph"] == "i":
        assert event["s"] in ("g", "p", "t")
    if event["ph"] == "C":
        assert all(isinstance(value, int | float) for value in event["args"].values())
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name", "thread_sort_index")


def check_nesting(spans):
    """Check that complete events of a thread contain each other or do not overlap."""
    by_thread = {}
    for event in sorted(spans, key=lambda event: (event["ts"], -event["dur"])):
        ends = by_thread.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"] + 1e-3:
            ends.pop()
        assert not ends or event["ts"] + event["dur"] <= ends[-1] + 2e-3, event
        ends.append(event["ts"] + event["dur"])


def read(path):
    """Read a trace, after checking its file."""
    check_format(path)
    return chrome.read(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def numbers(trace, name=None):
    """Return the sorted numbers of the tasks of one function, or of all."""
    return sorted(task.args["task"] for task in trace.of(TASK) if name in (None, task.name))


def wait_asleep(pool):
    """Wait until both workers sleep."""
    channel = pool._engine._channel
    gates.wait_until(lambda: all(channel.present(n)[1] == _native.PRESENT_SLEEPS for n in range(2)), "asleep")


# ---- what is recorded ------------------------------------------------------


def test_each_task_of_a_map_is_there_once(pool, path):
    with pool.trace(path):
        pool.map(tasks.square, range(500), chunksize=1)
    trace = read(path)
    assert numbers(trace) == list(range(500))
    assert {task.name for task in trace.of(TASK)} == {"square"}
    assert len({task.args["call"] for task in trace.of(TASK)}) == 1
    assert trace.n_dropped == 0
    assert all(trace.start_ns <= span.start_ns <= span.end_ns <= trace.end_ns for span in trace.spans)
    assert all(0 <= span.worker < trace.n_workers for span in trace.spans)
    assert all(task.args["queued_us"] >= 0 for task in trace.of(TASK))


def test_chunks_are_tasks_and_calls_have_their_functions_names(pool, path):
    with pool.trace(path):
        pool.map(tasks.square, range(100), chunksize=10)
        assert list(pool.imap(tasks.identity, iter(range(10)), chunksize=5)) == list(range(10))
        pool.apply(tasks.Adder(1).add, (1,))
    trace = read(path)
    assert numbers(trace, "square") == list(range(10))
    assert numbers(trace, "identity") == [0, 1]
    assert numbers(trace, "Adder.add") == [0]


def test_an_executor_is_traced(make_executor, kind, path):
    executor = make_executor(2, kind=kind)
    with executor.trace(path):
        assert list(executor.map(tasks.square, range(20))) == [x * x for x in range(20)]
        executor.submit(tasks.identity, 1).result()
    assert sorted(task.name for task in read(path).of(TASK)) == ["identity"] + 20 * ["square"]


def test_waiting_and_waking_are_recorded(pool, path, gate):
    with pool.trace(path):
        pool.map(tasks.square, range(8), chunksize=1)
        wait_asleep(pool)
        held = [pool.apply_async(tasks.pass_gate, (gate.path,)) for _ in range(2)]
        gate.wait_arrived(2)
        gate.release(2)
        [result.get() for result in held]
    trace = read(path)
    held = [task for task in trace.of(TASK) if task.name == "pass_gate"]
    assert {task.worker for task in held} == {0, 1}
    assert {wait.worker for wait in trace.of(WAIT)} == {0, 1}
    waking = [task for task in trace.of(TASK) if "wake_up_us" in task.args]
    assert waking and len(trace.of(WAKE_UP)) == len(waking)
    assert all(0 < task.args["wake_up_us"] <= task.args["queued_us"] for task in waking)
    starts = {(span.worker, span.end_ns) for span in trace.of(WAKE_UP)}
    assert starts <= {(span.worker, span.end_ns) for span in trace.of(WAIT)}


def test_failures_are_told(pool, path):
    with pool.trace(path), pytest.raises(ValueError):
        pool.apply(tasks.raise_named, ("ValueError", "no"))
    (task,) = read(path).of(TASK)
    assert task.args["status"] == "raised"


def test_a_result_that_does_not_pickle_is_one_task(make_pool, path):
    pool = make_pool(1, kind="process")
    with pool.trace(path), pytest.raises(MaybeEncodingError, match="lock"):
        pool.apply(tasks.make_lock)
    (task,) = read(path).of(TASK)
    assert task.args["status"] == "result does not pickle"


def test_tasks_that_a_trace_cuts_off(pool, path, gate, other_gate):
    before = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    with pool.trace(path):
        after = pool.apply_async(tasks.pass_gate, (other_gate.path,))
        other_gate.wait_arrived()
        gate.release()
        before.get()
    other_gate.release()
    after.get()
    trace = read(path)
    first, second = sorted(trace.of(TASK), key=lambda task: task.args["call"])
    assert first.args["began_before"] and "unfinished" not in first.args and first.start_ns == trace.start_ns
    assert second.args["unfinished"] and "began_before" not in second.args and second.name == "pass_gate"


def test_workers_that_sleep_all_the_time_wait(pool, path):
    pool.map(tasks.square, range(4), chunksize=1)
    wait_asleep(pool)
    with pool.trace(path):
        pass
    trace = read(path)
    assert {span[:3] for span in trace.spans} == {(WAIT, n, trace.start_ns) for n in range(2)}


def test_a_pool_is_traced_again_and_again(pool, tmp_path):
    for n in range(3):
        path = tmp_path / f"{n}.json"
        with pool.trace(path):
            pool.map(tasks.square, range(10 * n), chunksize=1)
        assert numbers(read(path)) == list(range(10 * n))


def test_two_pools_at_once(make_pool, kind, tmp_path):
    pools = [make_pool(1, kind=kind), make_pool(1, kind=kind)]
    with pools[0].trace(tmp_path / "0.json"), pools[1].trace(tmp_path / "1.json"):
        for n, pool in enumerate(pools):
            pool.map(tasks.square, range(n + 1), chunksize=1)
    assert [len(read(tmp_path / f"{n}.json").of(TASK)) for n in range(2)] == [1, 2]


def test_nested_pools(pool, path, tmp_path):
    paths = [str(tmp_path / f"{n}.json") for n in range(3)]
    with pool.trace(path):
        assert pool.map(tasks.trace_inside, paths, chunksize=1) == [30] * 3
    outer = read(path)
    assert numbers(outer, "trace_inside") == [0, 1, 2]
    for around in outer.of(TASK):
        inner = chrome.read(paths[around.args["task"]])
        assert numbers(inner) == list(range(5))
        assert around.start_ns <= inner.start_ns < inner.end_ns <= around.end_ns, "one clock for all"


# ---- workers that come and go ----------------------------------------------


def test_replaced_workers_keep_their_row(make_pool, kind, path):
    pool = make_pool(2, maxtasksperchild=2, kind=kind)
    with pool.trace(path):
        pool.map(tasks.square, range(12), chunksize=1)
        gates.wait_until(lambda: pool.statistics().n_workers_started >= 7, "replaced")
    trace = read(path)
    assert numbers(trace) == list(range(12))
    assert {task.worker for task in trace.of(TASK)} <= {0, 1}
    marks = [mark.name for mark in trace.marks]
    assert marks.count("worker started") >= 4 and marks.count("worker ended") >= 4
    assert "worker lost" not in marks


def test_workers_that_are_noted_late(make_pool, kind, path, monkeypatch):
    """A worker may have run its tasks before the thread that started it goes on."""
    pool = make_pool(1, maxtasksperchild=2, kind=kind)
    workers, channel = pool._engine._workers, pool._engine._channel
    with pool.trace(path) as tracing:
        result = pool.map_async(tasks.square, range(6), chunksize=1)
        enrol = workers._enrol

        def enrol_late(worker):
            gates.wait_until(lambda: channel.n_done(0) == 2 or result.ready(), "its tasks are done")
            with tracing._lock:
                tracing._look()
            enrol(worker)

        monkeypatch.setattr(workers, "_enrol", enrol_late)
        result.get()
    assert numbers(read(path)) == list(range(6))


def test_nothing_is_read_after_the_end(make_pool, path):
    """The thread that looks may have been about to, and its passes are being read then."""
    pool = make_pool(1, kind="thread")
    with pool.trace(path) as tracing:
        pool.apply(tasks.square, (3,))
    before = list(map(list, tracing._passes))
    with tracing._lock:
        tracing._look()
    assert list(map(list, tracing._passes)) == before


def test_a_killed_worker(make_pool, path, gate):
    pool = make_pool(2, kind="process")
    with pool.trace(path):
        pool.map(tasks.square, range(10), chunksize=1)
        held = pool.apply_async(tasks.pass_gate, (gate.path,))
        (pid,) = gate.wait_arrived()
        os.kill(pid, 9)
        with pytest.raises(PoolPartyError):
            held.get()
        pool.map(tasks.identity, range(10), chunksize=1)
    trace = read(path)
    assert numbers(trace, "square") == numbers(trace, "identity") == list(range(10))
    (lost,) = [task for task in trace.of(TASK) if task.name == "pass_gate"]
    assert lost.args["status"] == "worker lost"
    (mark,) = [mark for mark in trace.marks if mark.name == "worker lost"]
    assert (mark.args["pid"], mark.args["exitcode"], mark.worker) == (pid, -9, lost.worker)


# ---- budgets and preemption ------------------------------------------------


def test_budgets_are_counters(make_pool, kind, path):
    pool = make_pool(2, kind=kind, threads_per_worker=3, oversubscription=8)
    with pool.trace(path):
        pool.map(tasks.square, range(4), chunksize=1)
    trace = read(path)
    assert {(budget.worker, budget.n_threads) for budget in trace.budgets} == {(0, 3), (1, 3)}
    counters = [event for event in check_format(path) if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"threads of worker 1", "threads of worker 2"}


def test_lent_threads_are_seen(make_pool, kind, path, gate, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    pool = make_pool(2, kind=kind, policy="dynamic")
    with pool.trace(path) as tracing:
        both = [pool.apply_async(tasks.pass_gate, (gate.path,)) for _ in range(2)]
        gate.wait_arrived(2)
        gate.release(1)
        gates.wait_until(lambda: 4 in seen_budgets(tracing), "lent")
        gate.release(1)
        [result.get() for result in both]
    budgets = [budget.n_threads for budget in read(path).budgets]
    assert 2 in budgets and 4 in budgets


def seen_budgets(tracing):
    """The budgets that a trace has recorded so far."""
    with tracing._lock:
        blocks = [block for blocks in tracing._passes for _, block in blocks]
        tags = [event[4] for block in blocks for event in _EVENT.iter_unpack(block)]
        shared = {_n_threads_in(word) for word in tags if _kind_in(word) == _native.EVENT_BUDGET}
        return shared | {budget.n_threads for budget in tracing._grants}


def test_a_worker_without_a_cpu_is_preempted(make_pool, remote_kind, path):
    """Two workers compute, pinned to the same CPU. (Threads would wait for the GIL instead.)"""
    cpu = min(os.sched_getaffinity(0))
    pool = make_pool(2, kind=remote_kind, initializer=os.sched_setaffinity, initargs=(0, {cpu}))
    with pool.trace(path) as tracing:
        while not any(life.looks and life.looks[-1].delay_ns > life.looks[0].delay_ns + MS for life in tracing._lives):
            pool.map(tasks.spin, [0.01] * 2, chunksize=1)
    trace = read(path)
    preempted = trace.of(PREEMPTED)
    assert preempted
    total = sum(task.args.get("preempted_us", 0) for task in trace.of(TASK))
    inside = [span for span in preempted if "between_tasks" not in span.args]
    assert total == pytest.approx(sum(span.duration_ns for span in inside) / 1000)


# ---- too many events ---------------------------------------------------------


def test_the_newest_are_kept_and_the_others_counted(pool, path):
    with pool.trace(path, max_events=100):
        pool.map(tasks.square, range(1000), chunksize=1)
        pool.apply(tasks.identity, (1,))
    trace = read(path)
    n_tasks = len(trace.of(TASK))
    assert n_tasks + len(trace.of(WAIT)) <= 100 + 4  # spans that begin or end outside: at most two of each worker
    assert trace.n_dropped >= 1001 - n_tasks
    assert numbers(trace, "identity") == [0]
    assert any(str(trace.n_dropped) in mark.name for mark in trace.marks)


def test_a_full_ring_holds_nobody_up(make_pool, kind, path, monkeypatch):
    """Nobody reads while the tasks run, so workers overwrite the oldest events."""
    monkeypatch.setattr(Tracing, "_run", lambda self: None)
    pool = make_pool(1, kind=kind)
    shared = pool._engine._channel.fd
    pool.map(tasks.square, range(2_000), chunksize=1)
    n_blocks = os.fstat(shared).st_blocks
    with pool.trace(path, max_events=1000):
        pool.map(tasks.square, range(70_000), chunksize=1)
    trace = read(path)
    assert os.fstat(shared).st_blocks - n_blocks < (1 << 20) // 512, "the ring's memory was not given back"
    assert trace.n_dropped + len(trace.of(TASK)) >= 70_000
    assert numbers(trace)[-1] == 69_999


# ---- beginning and end -----------------------------------------------------


@pytest.mark.parametrize("end", ["terminate", "join", "with"])
def test_the_file_is_written_when_the_pool_ends(make_pool, kind, path, end):
    pool = make_pool(2, kind=kind)
    tracing = pool.trace(path)
    pool.map(tasks.square, range(10), chunksize=1)
    assert tracing.is_running
    if end == "with":
        with pool:
            pass
    elif end == "join":
        pool.close()
        pool.join()
    else:
        pool.terminate()
    assert not tracing.is_running
    assert numbers(read(path)) == list(range(10))
    tracing.stop()  # a second call does nothing


def test_the_file_of_a_closed_pool_is_written_without_a_join(make_pool, kind, path):
    pool = make_pool(2, kind=kind)
    tracing = pool.trace(path)
    pool.map(tasks.square, range(10), chunksize=1)
    pool.close()
    gates.wait_until(lambda: path.stat().st_size and not tracing.is_running, "written")
    pool.join()
    assert numbers(read(path)) == list(range(10))


def test_the_file_of_an_executor_is_written_at_its_shutdown(make_executor, kind, path):
    executor = make_executor(2, kind=kind)
    executor.trace(path)
    executor.submit(tasks.square, 2)
    executor.shutdown()
    assert numbers(read(path)) == [0]


def test_tasks_that_terminate_stops_are_in_the_file(make_pool, kind, path, gate):
    pool = make_pool(1, kind=kind)
    pool.trace(path)
    pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    if kind != "process":
        gate.close()  # it is in a C function, which `terminate` does not end
    pool.terminate()
    assert numbers(read(path), "pass_gate") == [0]


def test_one_trace_at_a_time(pool, path, tmp_path):
    with pool.trace(path) as tracing:
        assert tracing.path == str(path)
        with pytest.raises(PoolPartyError, match=r"being traced already, to .*trace\.json"):
            pool.trace(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


class Asked(os.PathLike):
    """A path that does something at the moment when it is asked for."""

    def __init__(self, path, then):
        self.path, self.then = path, then

    def __fspath__(self):
        self.then()
        return str(self.path)


def test_a_trace_that_begins_while_another_one_does(pool, path, tmp_path):
    begun = []
    with pytest.raises(PoolPartyError, match="traced already"):
        pool.trace(Asked(path, lambda: begun.append(pool.trace(tmp_path / "first.json"))))
    pool.apply(tasks.square, (2,))
    begun[0].stop()
    assert len(read(tmp_path / "first.json").of(TASK)) == 1


def test_a_trace_that_begins_as_the_pool_ends(make_pool, kind, path):
    pool = make_pool(2, kind=kind)

    with pytest.raises(PoolClosed):
        pool.trace(Asked(path, lambda: end(pool)))


def test_a_trace_that_the_pools_end_finishes_before_it_has_begun(make_pool, kind, path, monkeypatch):
    pool, start = make_pool(2, kind=kind), Tracing.start

    def end_and_start(*args):
        end(pool)
        start(*args)

    monkeypatch.setattr(Tracing, "start", end_and_start)
    pool.trace(path).stop()
    assert read(path).of(TASK) == []


def end(pool):
    pool.terminate()
    pool.join(30)


def test_closed_pools_and_bad_arguments(make_pool, kind, path, tmp_path):
    pool = make_pool(1, kind=kind)
    with pytest.raises(ValueError, match="max_events must be 1 or more, not 0"):
        pool.trace(path, max_events=0)
    with pytest.raises(FileNotFoundError):
        pool.trace(tmp_path / "missing" / "trace.json")
    with pool.trace(path):
        pass  # the refused traces left nothing behind
    pool.close()
    with pytest.raises(ValueError, match="Pool not running"):
        pool.trace(path)


def test_a_path_that_cannot_be_written_at_the_end_does_not_stop_the_pool(make_pool, kind, tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.mkdir()
    pool = make_pool(1, kind=kind)
    pool.trace(folder / "trace.json")
    pool.apply(tasks.square, (1,))
    (folder / "trace.json").unlink()
    folder.rmdir()
    pool.terminate()
    pool.join()
    gates.wait_until(lambda: "the trace could not be written" in caplog.text, "logged")


def test_stop_in_several_threads(pool, path):
    tracing = pool.trace(path)
    pool.map(tasks.square, range(10), chunksize=1)
    threads = [threading.Thread(target=tracing.stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(read(path)) == list(range(10))


def test_an_exception_ends_the_trace_as_well(pool, path):
    with pytest.raises(ZeroDivisionError), pool.trace(path):
        pool.apply(tasks.square, (1,))
        _ = 1 / 0
    assert numbers(read(path)) == [0]


def test_names_of_functions():
    assert name_of(tasks.Adder.make) == "Adder.make"
    assert name_of(tasks.Adder(1)) == "Adder"
    assert name_of(call_each_star, (tasks.square, [])) == "square"
    assert len(name_of(type("x" * 1000, (), {}))) == 200


# ---- in fresh processes ----------------------------------------------------

PROGRAM = fresh.TESTS / "isolated" / "tracing.py"


def test_the_file_of_a_forgotten_pool_is_written_at_exit(kind, path):
    fresh.check(fresh.run([PROGRAM, "at_exit", kind, path], options=()), "")
    assert numbers(read(path)) == list(range(10))


def test_the_file_of_a_forgotten_executor_is_written_at_exit(path):
    fresh.check(fresh.run([PROGRAM, "at_exit_of_an_executor", "interp", path], options=()), "")
    assert len(read(path).of(TASK)) == 10


def test_a_forked_child_leaves_the_trace_alone(path):
    fresh.check(fresh.run([PROGRAM, "in_a_forked_child", path]), "")
    assert numbers(read(path)) == list(range(10))


def test_a_trace_amid_random_kills(path):
    fresh.check(fresh.run([PROGRAM, "amid_random_kills", path]), "")
    check_format(path)


# ---- `pool-party timeline` -------------------------------------------------


@pytest.fixture
def traced(pool, path):
    with pool.trace(path):
        pool.map(tasks.square, range(50), chunksize=1)
    return path


def test_timeline_draws_an_svg(traced, capsys):
    from xml.etree import ElementTree

    assert main(["timeline", str(traced)]) == 0
    svg = ElementTree.parse(traced.with_suffix(".svg"))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"worker 1", "worker 2", "in a task", "preempted", "waiting"} <= set(texts)
    assert "50 tasks" in texts[0]
    out = capsys.readouterr().out
    assert "utilisation" in out and str(traced.with_suffix(".svg")) in out


def test_timeline_without_matplotlib(traced, tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.patches"):  # the submodules may be loaded already
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["timeline", str(traced), "-o", str(tmp_path / "picture.png")]) == 2
    assert "a PNG needs matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "picture.png").exists()


def test_timeline_of_what_is_no_trace(tmp_path, capsys):
    path = tmp_path / "file.json"
    assert main(["timeline", str(path)]) == 2
    assert "No such file" in capsys.readouterr().err
    for text in ("{", "[]", '{"traceEvents": []}', '{"otherData": {}, "traceEvents": []}'):
        path.write_text(text)
        assert main(["timeline", str(path)]) == 2
        assert capsys.readouterr().err.startswith("pool-party: ")


def test_timeline_knows_two_formats(traced, capsys):
    assert main(["timeline", str(traced), "-o", "picture.gif"]) == 2
    assert "a picture is a .svg or a .png" in capsys.readouterr().err


def test_metrics_of_a_real_trace(traced):
    trace = read(traced)
    summary = metrics.summarize(trace)
    assert summary.n_tasks == 50
    assert 0 < summary.utilisation <= 1 <= summary.imbalance <= 2
    assert summary.management_overhead_s == pytest.approx(summary.parallel_time_s - summary.longest_worker_s)
    assert timeline.describe(trace).startswith("tasks")
