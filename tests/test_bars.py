"""pool_party.progress: loops inside tasks show how far they are, in every kind."""

import io
import sys

import gates
import looping
import pytest
import tasks
from test_progress import Terminal, replace_stderr

import pool_party
from pool_party.observe import progress as displays


class Recorder:
    """A callable that keeps what is shown: the counts of the call, and the bars of its tasks."""

    def __init__(self):
        self.counts, self.bars, self.numbers = [], [], set()

    def __call__(self, done, total):
        self.counts.append((done, total))

    def show_bars(self, bars):
        self.bars.append([(bar.desc, bar.done, bar.total) for bar in bars])
        self.numbers |= {(bar.worker, bar.number) for bar in bars}  # last, since tests wait for it

    def wait_for(self, *bars):
        gates.wait_until(lambda: self.bars and sorted(self.bars[-1]) == sorted(bars), f"{bars} is shown, {self.bars}")


def start(pool, function, *args, progress):
    return gates.call_in_thread(pool.starmap, function, list(args), 1, progress=progress)


def test_loops_of_two_workers(make_pool, kind, gate, other_gate):
    recorder = Recorder()
    result = start(
        make_pool(2, kind=kind), looping.loop, (gate.path, 2, "one"), (other_gate.path, 3, "ä" * 40), progress=recorder
    )
    gate.wait_arrived()
    other_gate.wait_arrived()
    recorder.wait_for(("one", 0, 2), ("ä" * 32, 0, 3))
    gate.release()
    gate.wait_arrived()
    recorder.wait_for(("one", 1, 2), ("ä" * 32, 0, 3))
    gate.release()
    other_gate.release()
    other_gate.wait_arrived()
    recorder.wait_for(("ä" * 32, 1, 3))
    other_gate.release(2)
    assert result.result() == [2, 3]
    assert recorder.bars[-1] == [] and recorder.counts[-1] == (2, 2)


@pytest.mark.parametrize("verb", ["imap", "executor", "executor, later"])
def test_other_verbs(make_pool, make_executor, kind, gate, verb):
    recorder = Recorder()
    if verb == "imap":
        pool = make_pool(1, kind=kind)
        results = pool.imap(looping.loop_in_loops_once, iter([gate.path]), progress=recorder)
    else:
        n = 1 if verb == "executor" else 2
        results = make_executor(1, kind=kind).map(
            looping.loop_in_loops_once, [gate.path] * n, buffersize=1, progress=recorder
        )
    taken = gates.call_in_thread(list, results)
    if verb == "executor, later":
        gate.wait_arrived()
        gate.release()
    gate.wait_arrived()
    recorder.wait_for(("once", 0, 1))
    gate.release()
    assert set(taken.result()) == {1}
    assert recorder.bars[-1] == []


def test_loops_in_loops(make_pool, kind, gate):
    recorder = Recorder()
    result = start(make_pool(1, kind=kind), looping.loop_in_loops, (gate.path, 5), progress=recorder)
    gate.wait_arrived()
    recorder.wait_for(*((f"{depth} left", 0, None) for depth in (5, 4, 3, 2)))  # the fifth is one too many
    assert [desc[0] for desc, _, _ in recorder.bars[-1]] == ["5", "4", "3", "2"]
    gate.release(2)
    gate.wait_arrived(2)
    recorder.wait_for(*((f"{depth} left", int(depth == 2), None) for depth in (5, 4, 3, 2)))
    gate.release(30)
    result.result()


def test_loops_that_are_left(make_pool, kind, gate):
    recorder = Recorder()
    pool = make_pool(1, kind=kind)
    result = start(pool, looping.leave_loops, (gate.path,), progress=recorder)
    gate.wait_arrived()
    recorder.wait_for(("kept", 0, 9))
    gate.release()
    result.result()
    other = Recorder()
    result = start(pool, looping.continue_kept, (gate.path,), progress=other)
    gate.wait_arrived()
    gates.wait_until(lambda: other.counts, "it is followed")
    gate.release()
    assert result.result() == [list(range(2, 9))]
    assert other.bars == [] and recorder.bars[-1] == []


def test_a_worker_that_dies(make_pool, context, gate, other_gate):
    recorder = Recorder()
    pool = make_pool(2, kind="process", context=context)
    result = start(pool, looping.die_or_loop, (gate.path, True), (other_gate.path, False), progress=recorder)
    gate.wait_arrived()
    other_gate.wait_arrived()
    recorder.wait_for(("dies", 0, 3), ("loop", 0, 3))
    gate.release()
    recorder.wait_for(("loop", 0, 3))
    other_gate.release(3)
    with pytest.raises(pool_party.WorkerLost):
        result.result()
    assert recorder.bars[-1] == []


def test_a_task_that_is_tried_again(make_pool, gate):
    """The bar of the first attempt is not that of the second one, which has the same task, in the same place."""
    recorder = Recorder()
    pool = make_pool(1, kind="process").options(retries=1)
    result = start(pool, looping.die_in_loop, (gate.path,), progress=recorder)
    gate.wait_arrived()
    recorder.wait_for(("dies", 0, 3))
    gate.release()
    gate.wait_arrived()
    gates.wait_until(lambda: len(recorder.numbers) == 2, "the second one is shown")
    assert recorder.bars[-1] == [("dies", 0, 3)]
    gate.release()
    with pytest.raises(pool_party.WorkerLost):
        result.result()


def test_a_child_that_a_task_forks(make_pool, gate):
    recorder = Recorder()
    result = start(make_pool(1, kind="process"), looping.fork_in_loop, (gate.path,), progress=recorder)
    gate.wait_arrived()
    gate.release()
    gate.wait_arrived()
    recorder.wait_for(("forks", 1, 3))
    gate.release(2)
    result.result()
    assert {desc for bars in recorder.bars for desc, _, _ in bars} == {"forks"}


def test_without_progress_loops_run_over_their_input(make_pool, kind):
    pool = make_pool(1, kind=kind)
    assert pool.apply(looping.is_unchanged)
    assert pool.map(looping.is_unchanged, range(2), progress=Recorder()) == [False, False]


def test_bars_of_other_calls_are_not_shown(make_pool, kind, gate):
    recorder = Recorder()
    pool = make_pool(2, kind=kind)
    result = start(pool, looping.loop, (gate.path, 2), progress=recorder)
    gate.wait_arrived()
    other = pool.apply_async(looping.loop, (gate.path, 1, "other"))
    gate.wait_arrived()
    recorder.wait_for(("loop", 0, 2))
    gate.release(3)
    assert (result.result(), other.get()) == ([2], 1)
    assert {desc for bars in recorder.bars for desc, _, _ in bars} == {"loop"}


def test_no_result_waits_for_a_bar(make_pool, kind, gate):
    shown, go_on = gates.threading.Event(), gates.threading.Event()
    recorder = Recorder()
    recorder.show_bars = lambda bars: (shown.set(), go_on.wait(30))
    results = make_pool(2, kind=kind).imap(looping.loop_in_loops_once, [gate.path] * 3, progress=recorder)
    gate.wait_arrived()
    assert shown.wait(30)
    gate.release(3)
    assert [next(results), next(results)] == [1, 1]
    go_on.set()
    assert next(results) == 1


def test_a_callable_without_bars(make_pool, kind, gate):
    counts = []
    result = start(make_pool(1, kind=kind), looping.loop, (gate.path, 2), progress=lambda *count: counts.append(count))
    gate.release(2)
    assert result.result() == [2] and counts[-1] == (1, 1)


# ---- displays --------------------------------------------------------------


def bars(*counts):
    return [displays.Bar(f"worker-{n + 1}", "epochs" * n, done, total, 4) for n, (done, total) in enumerate(counts)]


def show(watch):
    """Show two bars, then one of them further, then none."""
    watch.show(0, 2)
    watch.show_bars(bars((0, 10), (0, None)))
    watch.show_bars(bars((7, 10), (3, None)))
    watch.show(1)
    watch.show_bars(bars((8, 10)))
    watch.finish(2, True)


@pytest.fixture
def no_pauses(monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr(tqdm.tqdm, "__init__", eager(tqdm.tqdm.__init__))
    yield
    assert not tqdm.tqdm._instances


def eager(init):
    def make(self, *args, **kwargs):
        init(self, *args, **{"mininterval": 0, "miniters": 0, **kwargs})

    return make


def test_bars_of_tqdm(monkeypatch, no_pauses):
    terminal = replace_stderr(monkeypatch, True)
    show(displays.open_watch(True))
    text = terminal.getvalue()
    assert "worker-1:  70%" in text and "epochs: 3it" in text and "2/2" in text
    assert "\n\n" in text  # the third bar is on the third line


def test_bars_beside_a_tqdm_of_the_users(no_pauses):
    from tqdm import tqdm

    stream = io.StringIO()
    with tqdm(total=2, file=stream) as bar:
        show(displays.open_watch(bar))
    assert "worker-1:  70%" in stream.getvalue() and bar.n == 2


def test_tasks_of_rich():
    rich_progress, console = pytest.importorskip("rich.progress"), pytest.importorskip("rich.console")
    with rich_progress.Progress(console=console.Console(file=io.StringIO())) as progress:
        task = progress.add_task("all", total=2)
        watch = displays.open_watch((progress, task))
        watch.show_bars(bars((7, 10), (3, None)))
        assert [(t.description, t.completed, t.total) for t in progress.tasks[1:]] == [
            ("worker-1", 7, 10),
            ("epochs", 3, None),
        ]
        watch.finish(2, True)
        assert [t.id for t in progress.tasks] == [task]


def test_plain_lines(monkeypatch):
    stream = replace_stderr(monkeypatch, False)
    monkeypatch.setattr(displays, "LINE_S", 0.0)
    show(displays.open_watch("lines"))
    lines = [line.removeprefix("pool_party: ").partition(" after")[0] for line in stream.getvalue().splitlines()]
    assert "0 of 2 items done; worker-1: 7 of 10 items done; epochs: 3 items done" in lines
    assert lines[-1] == "2 of 2 items done"


def test_silence_without_a_terminal(monkeypatch):
    stream = replace_stderr(monkeypatch, False)
    monkeypatch.setattr(displays, "LINE_S", 0.0)
    assert displays.open_watch(True) is None
    assert stream.getvalue() == ""


def test_one_line_without_tqdm(monkeypatch):
    stream = replace_stderr(monkeypatch, True)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    show(displays.open_watch(True))
    assert "\r0 of 2 items done; worker-1: 7 of 10 items done; epochs: 3 items done\x1b[K" in stream.getvalue()
    assert stream.getvalue().endswith("\r2 of 2 items done\x1b[K\n")


def test_a_display_that_raises_ends_alone(make_pool, kind, gate, caplog):
    recorder = Recorder()
    recorder.show_bars = tasks.raise_lookup_error
    result = start(make_pool(1, kind=kind), looping.loop, (gate.path, 2), progress=recorder)
    gates.wait_until(lambda: caplog.records, "it is logged")
    gate.release(2)
    assert result.result() == [2] and len(caplog.records) == 1


# ---- outside tasks ---------------------------------------------------------


def test_outside_a_pool(monkeypatch):
    pytest.importorskip("tqdm")
    terminal = replace_stderr(monkeypatch, True)
    assert isinstance(terminal, Terminal)
    assert list(pool_party.progress(iter(range(4)), "alone", total=4)) == [0, 1, 2, 3]
    assert "alone: 100%" in terminal.getvalue() and "4/4" in terminal.getvalue()


@pytest.mark.parametrize("why", ["no terminal", "no stream", "no tqdm"])
def test_outside_a_pool_without_a_bar(monkeypatch, why):
    items = range(3)
    replace_stderr(monkeypatch, why == "no tqdm")
    if why == "no stream":
        monkeypatch.setattr(sys, "stderr", None)
    if why == "no tqdm":
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert pool_party.progress(items) is items


def test_in_an_initializer(make_pool, kind):
    """No call can show it."""
    pool = make_pool(1, initializer=looping.is_unchanged, kind=kind)
    assert pool.map(tasks.square, [2], progress=Recorder()) == [4]
