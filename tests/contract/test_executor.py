"""ComposableExecutor is a concurrent.futures.Executor with real Futures."""

import asyncio
import concurrent.futures
import concurrent.futures.process
import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading

import gates
import pytest
import tasks

import pool_party

TIMEOUT_S = 30


@pytest.fixture
def executor(make_executor, kind):
    return make_executor(2, kind=kind)


# ---- construction ----------------------------------------------------------


def test_is_a_real_executor(executor):
    assert isinstance(executor, concurrent.futures.Executor)
    assert isinstance(executor.submit(tasks.square, 2), concurrent.futures.Future)


def test_max_workers(make_executor, kind):
    assert make_executor(3, kind=kind)._max_workers == 3
    assert make_executor(max_workers=2, kind=kind)._max_workers == 2
    assert make_executor(kind=kind)._max_workers >= 1


@pytest.mark.parametrize("max_workers", [0, -1])
def test_max_workers_must_be_positive(make_executor, kind, max_workers):
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        make_executor(max_workers, kind=kind)


def test_initializer_must_be_callable(make_executor, kind):
    with pytest.raises(TypeError, match="initializer must be a callable"):
        make_executor(1, 5, kind=kind)


def test_initializer_runs_before_tasks(make_executor, kind):
    executor = make_executor(1, tasks.set_greeting, ("hi",), kind=kind)
    assert executor.submit(tasks.get_greeting).result(TIMEOUT_S) == "hi"


def test_dropped_executor_finishes_what_was_submitted(kind):
    executor = pool_party.ComposableExecutor(2, kind=kind, max_tasks_per_child=1)
    futures = [executor.submit(tasks.square, x) for x in range(6)]
    del executor
    assert [future.result(TIMEOUT_S) for future in futures] == [x * x for x in range(6)]


def test_max_tasks_per_child(make_executor):
    executor = make_executor(1, max_tasks_per_child=2, kind="process")
    pids = [executor.submit(os.getpid).result(TIMEOUT_S) for _ in range(6)]
    assert len(set(pids)) == 3


def test_shutdown_while_a_worker_is_replaced(make_executor, kind, monkeypatch):
    executor = make_executor(1, max_tasks_per_child=1, kind=kind)
    workers = executor._engine._workers
    is_replacing, may_start = threading.Event(), threading.Event()
    worker_class = workers._worker_class

    def start_late(*args):
        is_replacing.set()
        assert may_start.wait(TIMEOUT_S)
        return worker_class(*args)

    monkeypatch.setattr(workers, "_worker_class", start_late)
    assert executor.submit(tasks.square, 3).result(TIMEOUT_S) == 9
    assert is_replacing.wait(TIMEOUT_S)
    shutdown = gates.call_in_thread(executor.shutdown)
    gates.wait_until(lambda: "state=CLOSE" in repr(executor), "it is being shut down")
    may_start.set()
    shutdown.result(TIMEOUT_S)
    assert not any(workers.slots) and not executor._engine._background.is_alive()


def test_context(make_executor, start_method, context):
    executor = make_executor(1, context=context, kind="process")
    name, _, _ = executor.submit(tasks.process_name).result(TIMEOUT_S)
    assert name.lower().startswith(start_method)


# ---- submit and its futures ------------------------------------------------


def test_submit(executor):
    assert executor.submit(tasks.multiply, 6, 7).result(TIMEOUT_S) == 42
    assert executor.submit(tasks.affine, 2, a=3, b=1).result(TIMEOUT_S) == 7
    assert executor.submit(lambda: "lambda").result(TIMEOUT_S) == "lambda"


def test_submit_passes_keywords_named_like_its_own(executor):
    assert executor.submit(tasks.echo, fn=1, self=2).result(TIMEOUT_S) == ((), {"fn": 1, "self": 2})


def test_error_of_a_task(executor, kind):
    future = executor.submit(tasks.raise_named, "ValueError", "wrong")
    with pytest.raises(ValueError, match="wrong"):
        future.result(TIMEOUT_S)
    error = future.exception(TIMEOUT_S)
    assert type(error) is ValueError
    if kind != "thread":
        assert "in raise_named" in str(error.__cause__)


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_base_exceptions_of_a_task(executor, name):
    future = executor.submit(tasks.raise_named, name, 3)
    assert type(future.exception(TIMEOUT_S)).__name__ == name
    assert executor.submit(tasks.square, 2).result(TIMEOUT_S) == 4


def test_result_times_out_with_the_builtin_error(executor, gate):
    future = executor.submit(tasks.pass_gate, gate.path, 1)
    gate.wait_arrived()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0)
    gate.release()
    assert future.result(TIMEOUT_S) == 1


def test_a_task_that_runs_is_running_and_cannot_be_cancelled(executor, gate):
    future = executor.submit(tasks.pass_gate, gate.path, 1)
    gate.wait_arrived()
    gates.wait_until(future.running, "the future is running")
    assert not future.cancel() and not future.cancelled() and not future.done()
    gate.release()
    assert future.result(TIMEOUT_S) == 1
    assert future.done() and not future.running()


def test_a_task_that_has_not_begun_can_be_cancelled(make_executor, kind, gate, tmp_path):
    executor = make_executor(1, kind=kind)
    log = str(tmp_path / "log")
    first = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    later = [executor.submit(tasks.log_line, log, f"ran {i}") for i in range(100)]
    assert not later[0].running()
    assert [future.cancel() for future in later[::2]] == [True] * 50
    assert all(future.cancelled() for future in later[::2])
    gate.release()
    first.result(TIMEOUT_S)
    assert [future.result(TIMEOUT_S) for future in later[1::2]] == [f"ran {i}" for i in range(1, 100, 2)]
    with open(log) as lines:
        assert lines.read().split("\n")[:-1] == [f"ran {i}" for i in range(1, 100, 2)]
    with pytest.raises(concurrent.futures.CancelledError):
        later[0].result(0)


def test_add_done_callback(executor):
    seen = queue.SimpleQueue()
    future = executor.submit(tasks.square, 3)
    future.add_done_callback(seen.put)
    assert seen.get(timeout=TIMEOUT_S) is future
    future.add_done_callback(seen.put)  # the future is done, so it is called at once
    assert seen.get(timeout=0) is future


def test_a_done_callback_is_called_at_once_if_the_future_is_done(executor):
    seen = []
    for _ in range(20):
        future = executor.submit(tasks.square, 3)
        future.result(TIMEOUT_S)
        future.add_done_callback(lambda future: seen.append((future.result(0), threading.get_ident())))
    assert seen == [(9, threading.get_ident())] * 20


def test_a_done_callback_is_called_at_once_if_the_future_was_cancelled(executor, gate):
    first = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    seen = []
    for _ in range(20):
        while not (future := executor.submit(tasks.square, 3)).cancel():
            pass  # another worker was faster
        future.add_done_callback(seen.append)
        assert seen.pop() is future
    gate.release()
    first.result(TIMEOUT_S)


def test_a_done_callback_that_raises_at_once_is_logged(executor, caplog):
    def fail(_):
        raise RuntimeError("from a done callback")

    future = executor.submit(tasks.square, 3)
    future.result(TIMEOUT_S)
    with caplog.at_level(logging.ERROR, logger="concurrent.futures"):
        future.add_done_callback(fail)
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError]


@pytest.mark.parametrize("is_error", [False, True], ids=["result", "exception"])
def test_the_user_may_settle_a_future(executor, gate, is_error):
    """As with the standard library's: the user's outcome counts, once, and the workers go on."""

    def settle(future):
        if is_error:
            future.set_exception(KeyError("mine"))
        else:
            future.set_result("mine")

    running = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    queued = [executor.submit(tasks.square, i) for i in range(5)]
    seen = queue.SimpleQueue()
    for future in (running, *queued):
        future.add_done_callback(seen.put)
    settle(running)
    with pytest.raises(concurrent.futures.InvalidStateError):
        settle(running)
    assert running.done() and not running.running() and not running.cancelled() and not running.cancel()
    assert concurrent.futures.wait([running], TIMEOUT_S).done == {running}
    gate.release()
    done, queued = executor.submit(tasks.square, 3), [executor.submit(tasks.square, i) for i in range(5)]
    for future in queued:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # a worker was faster
            settle(future)
    assert done.result(TIMEOUT_S) == 9
    with pytest.raises(concurrent.futures.InvalidStateError):
        settle(done)
    assert done.result() == 9
    with pytest.raises(TypeError, match="needs an exception, not 'text'"):
        queued[0].set_exception("text")
    assert isinstance(running.exception(TIMEOUT_S), KeyError) if is_error else running.result(TIMEOUT_S) == "mine"
    assert concurrent.futures.wait(queued, TIMEOUT_S).not_done == set()
    assert {seen.get(timeout=TIMEOUT_S) for _ in range(6)} > {running}


def test_no_exception_settles_a_future_with_none(executor, gate):
    future = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    future.set_exception(None)
    assert future.result(TIMEOUT_S) is future.exception(TIMEOUT_S) is None
    gate.release()


def test_repr_of_a_future_tells_its_state(executor, gate):
    running = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    assert "state=running" in repr(running)
    gate.release()
    running.result(TIMEOUT_S)
    done, failed = executor.submit(tasks.square, 3), executor.submit(tasks.square, "x")
    assert done.result(TIMEOUT_S) == 9
    assert repr(done).endswith("state=finished returned int>")
    assert isinstance(failed.exception(TIMEOUT_S), TypeError)
    assert repr(failed).endswith("state=finished raised TypeError>")


async def wrapped(future):
    return await asyncio.wrap_future(future)


def test_a_future_that_is_done_can_be_awaited_through_asyncio(executor):
    """Even if the thread that passes outcomes to futures has not come to this one yet."""
    for n in range(20):
        future = executor.submit(tasks.multiply, n, 2)
        assert future.result() == 2 * n
        assert asyncio.run(wrapped(future)) == 2 * n


def test_a_raising_done_callback_does_no_harm(executor, caplog):
    def fail(_):
        raise RuntimeError("from a done callback")

    with caplog.at_level(logging.ERROR, logger="concurrent.futures"):
        future = executor.submit(tasks.square, 3)
        future.add_done_callback(fail)
        gates.wait_until(lambda: caplog.records, "the error is logged")
    assert executor.submit(tasks.square, 4).result(TIMEOUT_S) == 16


def test_a_done_callback_may_submit(executor):
    answers = queue.SimpleQueue()

    def submit_next(future):
        value = future.result()
        if value < 1000:
            executor.submit(tasks.multiply, value, 2).add_done_callback(submit_next)
        else:
            answers.put(value)

    executor.submit(tasks.multiply, 1, 1).add_done_callback(submit_next)
    assert answers.get(timeout=TIMEOUT_S) == 1024


def test_unpicklable_argument_fails_its_own_future(make_executor, remote_kind):
    executor = make_executor(1, kind=remote_kind)
    with pytest.raises(TypeError, match="pickle"):
        executor.submit(tasks.identity, tasks.make_lock()).result(TIMEOUT_S)
    assert executor.submit(tasks.square, 2).result(TIMEOUT_S) == 4


# ---- wait and as_completed -------------------------------------------------


def test_wait_for_all(executor):
    futures = [executor.submit(tasks.square, i) for i in range(20)]
    done, not_done = concurrent.futures.wait(futures, TIMEOUT_S)
    assert done == set(futures) and not not_done


def test_wait_for_the_first(executor, gate):
    held = executor.submit(tasks.pass_gate, gate.path)
    quick = executor.submit(tasks.square, 2)
    done, not_done = concurrent.futures.wait([held, quick], TIMEOUT_S, return_when=concurrent.futures.FIRST_COMPLETED)
    assert done == {quick} and not_done == {held}
    gate.release()
    assert held.result(TIMEOUT_S) is None


def test_wait_for_the_first_error(executor, gate):
    held = executor.submit(tasks.pass_gate, gate.path)
    failing = executor.submit(tasks.raise_named, "ValueError")
    done, not_done = concurrent.futures.wait([held, failing], TIMEOUT_S, return_when=concurrent.futures.FIRST_EXCEPTION)
    assert done == {failing} and not_done == {held}
    gate.release()
    assert held.result(TIMEOUT_S) is None


def test_as_completed_yields_in_order_of_completion(executor, gate):
    held = executor.submit(tasks.pass_gate, gate.path)
    quick = [executor.submit(tasks.square, i) for i in range(5)]
    completed = concurrent.futures.as_completed([held, *quick], timeout=TIMEOUT_S)
    assert {next(completed) for _ in range(5)} == set(quick)
    gate.release()
    assert next(completed) is held


# ---- map -------------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_is_in_order(executor, chunksize):
    results = executor.map(tasks.square, range(50), chunksize=chunksize)
    assert iter(results) is results
    assert list(results) == [x * x for x in range(50)]


def test_map_of_several_iterables_stops_at_the_shortest(executor):
    assert list(executor.map(tasks.multiply, range(5), itertools.count(1))) == [0, 2, 6, 12, 20]
    assert list(executor.map(tasks.square, [])) == []


def test_map_starts_its_work_at_once(executor, gate):
    results = executor.map(functools.partial(tasks.pass_gate, gate.path), range(2))
    gate.wait_arrived(2)  # although nobody has asked for a result
    gate.release(2)
    assert list(results) == [0, 1]


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map_raises_in_the_place_of_the_item(executor, chunksize):
    results = executor.map(tasks.fail_if_odd, [0, 2, 4, 1, 6], chunksize=chunksize)
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(ValueError, match="odd 1"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_map_times_out_with_the_builtin_error(executor, gate):
    results = executor.map(functools.partial(tasks.pass_gate, gate.path), range(2), timeout=0.05)
    with pytest.raises(TimeoutError):
        next(results)
    gate.release(2)


@pytest.mark.parametrize("chunksize", [0, -1])
def test_map_chunksize_must_be_positive(executor, chunksize):
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        executor.map(tasks.square, [1], chunksize=chunksize)


def test_map_buffersize_bounds_the_read_ahead(executor):
    n_consumed = most_ahead = 0

    def source():
        nonlocal most_ahead
        for i in itertools.count():
            most_ahead = max(most_ahead, i + 1 - n_consumed)
            yield i

    results = executor.map(tasks.square, source(), buffersize=4)
    for i in range(300):
        assert next(results) == i * i
        n_consumed += 1
    results.close()
    assert most_ahead <= 4 + 2


@pytest.mark.parametrize(("buffersize", "error"), [(0, ValueError), (-1, ValueError), ("1", TypeError)])
def test_map_buffersize_must_be_a_positive_integer(executor, buffersize, error):
    with pytest.raises(error, match="buffersize"):
        executor.map(tasks.square, [1], buffersize=buffersize)


def test_closing_maps_iterator_cancels_what_has_not_begun(make_executor, kind, gate, tmp_path):
    executor = make_executor(1, kind=kind)
    log = str(tmp_path / "log")
    results = executor.map(tasks.identity, [0])
    assert next(results) == 0
    held = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    results = executor.map(functools.partial(tasks.log_line, log), range(100), timeout=0.01)
    with pytest.raises(TimeoutError):
        next(results)
    gate.release()
    held.result(TIMEOUT_S)
    executor.shutdown()
    assert not os.path.exists(log)


# ---- shutdown --------------------------------------------------------------


def test_submit_after_shutdown(executor):
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(tasks.square, 1)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.map(tasks.square, [1])
    executor.shutdown()


def test_shutdown_waits_for_what_was_submitted(executor):
    futures = [executor.submit(tasks.square, i) for i in range(100)]
    executor.shutdown(wait=True)
    assert [future.result(0) for future in futures] == [i * i for i in range(100)]


def test_shutdown_without_waiting(executor, gate):
    futures = [executor.submit(tasks.pass_gate, gate.path, i) for i in range(4)]
    gate.wait_arrived(2)
    executor.shutdown(wait=False)
    assert not any(future.done() for future in futures)
    gate.release(4)
    assert [future.result(TIMEOUT_S) for future in futures] == [0, 1, 2, 3]


def test_shutdown_cancels_what_has_not_begun(make_executor, kind, gate):
    executor = make_executor(1, kind=kind)
    running = executor.submit(tasks.pass_gate, gate.path, "ran")
    gate.wait_arrived()
    pending = [executor.submit(tasks.square, i) for i in range(100)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in pending)
    gate.release()
    assert running.result(TIMEOUT_S) == "ran"
    executor.shutdown(wait=True)


def test_with_waits(make_executor, kind):
    with make_executor(2, kind=kind) as executor:
        futures = [executor.submit(tasks.square, i) for i in range(50)]
    assert [future.result(0) for future in futures] == [i * i for i in range(50)]


# ---- failures ----------------------------------------------------------------


def test_failing_initializer_breaks_the_executor(make_executor, kind, tmp_path, caplog):
    log = str(tmp_path / "log")
    with caplog.at_level(logging.ERROR, logger="concurrent.futures"):
        executor = make_executor(2, tasks.failing_init, (log, "no such thing"), kind=kind)
        with pytest.raises(pool_party.InitializerFailed) as caught:
            executor.submit(tasks.square, 1).result(TIMEOUT_S)
        gates.wait_until(lambda: caplog.records, "the failure is logged")
    assert isinstance(caught.value, concurrent.futures.BrokenExecutor)
    assert type(caught.value.__cause__) is LookupError
    assert caught.value.__cause__.args == ("no such thing",)
    assert any(record.name == "concurrent.futures" for record in caplog.records)
    with pytest.raises(concurrent.futures.BrokenExecutor):
        executor.submit(tasks.square, 1).result(TIMEOUT_S)


def test_lost_worker_fails_its_own_future_alone(make_executor, context):
    executor = make_executor(2, context=context, kind="process")
    before = [executor.submit(tasks.square, i) for i in range(50)]
    lost = executor.submit(tasks.exit_now, 7)
    after = [executor.submit(tasks.square, i) for i in range(50)]
    with pytest.raises(pool_party.WorkerLost, match="7") as caught:
        lost.result(TIMEOUT_S)
    assert isinstance(caught.value, concurrent.futures.process.BrokenProcessPool)
    assert caught.value.exitcode == 7
    assert [future.result(TIMEOUT_S) for future in before + after] == [i * i for i in range(50)] * 2
    assert executor.submit(tasks.square, 3).result(TIMEOUT_S) == 9


def test_arguments_and_functions_that_cannot_be_meant(make_executor, kind):
    async def asynchronous():
        pass

    executor = make_executor(1, kind=kind)
    for call in executor.submit, executor.map:
        with pytest.raises(TypeError, match=r"asynchronous is asynchronous.*asyncio\.run"):
            call(asynchronous)
    with pytest.raises(TypeError, match="no argument 'processes': did you mean 'max_workers'"):
        make_executor(processes=1)


# ---- ending the workers ------------------------------------------------------


@pytest.mark.parametrize("verb", ["terminate_workers", "kill_workers"])
def test_ending_the_workers_cancels_what_waits_and_loses_what_runs(make_executor, kind, gate, verb):
    executor = make_executor(1, kind=kind)
    running = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    waiting = executor.submit(tasks.square, 3)
    getattr(executor, verb)()
    with pytest.raises(concurrent.futures.process.BrokenProcessPool, match=verb):
        running.result(TIMEOUT_S)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(tasks.square, 3)
    getattr(executor, verb)()  # again: nothing is left to do
    if kind != "process":
        gate.release()  # no C function is interrupted
    executor.shutdown()
    assert concurrent.futures.wait([running, waiting], TIMEOUT_S).not_done == set()


@pytest.mark.parametrize("verb", ["terminate_workers", "kill_workers"])
def test_workers_of_an_executor_that_was_shut_down_can_be_ended(make_executor, kind, gate, verb):
    executor = make_executor(1, kind=kind)
    running = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    executor.shutdown(wait=False)
    getattr(executor, verb)()
    with pytest.raises(pool_party.WorkerLost):
        running.result(TIMEOUT_S)
    if kind != "process":
        gate.release()


@pytest.mark.parametrize(("verb", "signal"), [("terminate_workers", signal.SIGTERM), ("kill_workers", signal.SIGKILL)])
def test_processes_get_the_signal_of_the_verb(make_executor, gate, verb, signal):
    executor = make_executor(1, kind="process")
    running = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    (worker,) = executor._engine.workers
    getattr(executor, verb)()
    executor.shutdown()
    assert worker.exitcode == -signal
    assert isinstance(running.exception(TIMEOUT_S), pool_party.WorkerLost)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="ProcessPoolExecutor has them since 3.14")
@pytest.mark.parametrize("verb", ["terminate_workers", "kill_workers"])
def test_ending_the_workers_is_seen_as_with_the_standard_library(make_executor, gate, other_gate, verb):
    def story(executor, gate):
        running = executor.submit(tasks.pass_gate, gate.path)
        gate.wait_arrived()
        waiting = [executor.submit(tasks.square, x) for x in range(8)]
        getattr(executor, verb)()
        with pytest.raises(RuntimeError) as refused:
            executor.submit(tasks.square, 3)
        is_broken = isinstance(running.exception(TIMEOUT_S), concurrent.futures.process.BrokenProcessPool)
        return (is_broken, waiting[-1].cancelled()), str(refused.value)

    with concurrent.futures.ProcessPoolExecutor(1) as peer:
        expected, _ = story(peer, gate)  # its words depend on whether it has noticed the death already
    assert story(make_executor(1, kind="process"), other_gate) == (
        expected,
        "cannot schedule new futures after shutdown",
    )


# ---- beside the standard library's ---------------------------------------------


def test_wait_and_as_completed_take_futures_of_all_kinds_and_the_standard_library(make_executor):
    executors = [make_executor(1, kind=kind) for kind in ("thread", "process", "interp")]
    with concurrent.futures.ThreadPoolExecutor(1) as peer:
        futures = [executor.submit(tasks.square, n) for n, executor in enumerate([*executors, peer])]
        assert sorted(f.result() for f in concurrent.futures.as_completed(futures, TIMEOUT_S)) == [0, 1, 4, 9]
        assert concurrent.futures.wait(futures, TIMEOUT_S).not_done == set()
    assert all(isinstance(executor, concurrent.futures.Executor) for executor in executors)
    assert all(isinstance(future, concurrent.futures.Future) for future in futures)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="executors of the standard library have it since 3.14")
def test_map_with_a_buffersize_reads_as_far_ahead_as_the_standard_library(executor):
    def read_ahead(executor, buffersize):
        read = []
        results = executor.map(tasks.square, (read.append(x) or x for x in range(20)), buffersize=buffersize)
        seen = [len(read)]
        for _ in zip(range(3), results, strict=False):
            seen.append(len(read))
        return seen, list(results)

    for buffersize in (1, 3, 20, 40, None):
        with concurrent.futures.ThreadPoolExecutor(1) as peer:
            assert read_ahead(executor, buffersize) == read_ahead(peer, buffersize)


@pytest.mark.parametrize("remote_kind", ["process", "interp"])
def test_a_result_that_does_not_pickle_raises_what_the_standard_library_raises(make_executor, remote_kind):
    context = multiprocessing.get_context("forkserver")  # a fork beside threads could block the child
    with concurrent.futures.ProcessPoolExecutor(1, context) as peer:
        expected = peer.submit(tasks.make_lock).exception(TIMEOUT_S)
    found = make_executor(1, kind=remote_kind).submit(tasks.make_lock).exception(TIMEOUT_S)
    assert type(found) is type(expected) and str(found) == str(expected)


# ---- asyncio ---------------------------------------------------------------


def test_asyncio_run_in_executor(executor):
    async def main():
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(executor, tasks.square, i) for i in range(20)]
        return await asyncio.wait_for(asyncio.gather(*calls), TIMEOUT_S)

    assert asyncio.run(main()) == [i * i for i in range(20)]


def test_asyncio_sees_the_error_of_a_task(executor):
    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="wrong"):
            await loop.run_in_executor(executor, tasks.raise_named, "ValueError", "wrong")

    asyncio.run(main())


def test_asyncio_goes_on_while_a_task_runs_and_can_give_it_up(executor, gate):
    async def main():
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(executor, tasks.pass_gate, gate.path, "held")
        await asyncio.to_thread(gate.wait_arrived)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(call), 0.01)
        gate.release()
        return await asyncio.wait_for(call, TIMEOUT_S)

    assert asyncio.run(main()) == "held"


# ---- as dask uses an executor ----------------------------------------------


def test_as_a_scheduler_of_a_task_graph(executor):
    """dask.local keeps `_max_workers` tasks in flight, and done callbacks fill a queue."""
    graph = {f"sum-{i}": (f"sum-{i - 1}", i) for i in range(1, 30)} | {"sum-0": (None, 0)}
    finished, done = {}, queue.Queue()
    waiting = dict(graph)
    n_running = 0

    def submit_ready():
        nonlocal n_running
        for key, (before, value) in list(waiting.items()):
            if n_running >= executor._max_workers:
                return
            if before is None or before in finished:
                del waiting[key]
                future = executor.submit(lambda a, b: a + b, finished.get(before, 0), value)
                future.add_done_callback(functools.partial(lambda key, f: done.put((key, f)), key))
                n_running += 1

    while len(finished) < len(graph):
        submit_ready()
        key, future = done.get(timeout=TIMEOUT_S)
        finished[key] = future.result()
        n_running -= 1
    assert finished["sum-29"] == sum(range(30))


def test_is_used_from_many_threads(executor):
    def use(seed):
        for i in range(20):
            assert executor.submit(tasks.multiply, seed, i).result(TIMEOUT_S) == seed * i
            assert list(executor.map(tasks.square, (seed, i))) == [seed**2, i**2]

    for call in [gates.call_in_thread(use, seed) for seed in range(8)]:
        call.result(60)
    assert threading.active_count() < 200
