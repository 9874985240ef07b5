"""Results and futures in asyncio: `await`, `amap`, cancellation, and that nothing blocks the loop."""

import asyncio
import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import random
import sys
import threading
import time
import weakref

import gates
import pytest
import tasks

from pool_party import ComposableExecutor, ComposablePool, PoolClosed, PoolTerminated, WorkerLost, _native
from pool_party._core import awaiting
from pool_party._core.engine import Engine

TIMEOUT_S = 60
N = 20


def run(main):
    """Run a coroutine, which may take so long."""

    async def limited():
        return await asyncio.wait_for(main, TIMEOUT_S)

    return asyncio.run(limited())


@pytest.fixture
def executor(make_executor, kind):
    return make_executor(2, kind=kind)


@pytest.fixture(params=["pool", "executor"])
def submit(request):
    """`submit(fn, *args)` of a pool and of an executor, each of two workers."""
    if request.param == "executor":
        return request.getfixturevalue("executor").submit
    pool = request.getfixturevalue("make_pool")(2, kind=request.getfixturevalue("kind"))
    return lambda fn, *args: pool.apply_async(fn, args)


async def arrived(gate, n=1):
    """Wait until tasks are at the gate, and what was made before awaits its result: the former may be so at once."""
    await turn()
    return await asyncio.to_thread(gate.wait_arrived, n)


async def turn(n=5):
    """Let the loop do what is due."""
    for _ in range(n):
        await asyncio.sleep(0)


# ---- awaiting --------------------------------------------------------------


def test_every_verb_that_returns_a_result_can_be_awaited(pool, executor):
    async def main():
        assert await pool.apply_async(tasks.square, (3,)) == 9
        assert await pool.map_async(tasks.square, range(N)) == [x * x for x in range(N)]
        assert await pool.map_async(tasks.square, []) == []
        assert await pool.starmap_async(tasks.multiply, [(2, 3), (4, 5)]) == [6, 20]
        assert await executor.submit(tasks.square, 4) == 16
        assert await pool.submit(tasks.square, 5) == 25

    run(main())


def test_a_result_is_awaited_before_and_after_it_is_there_and_again(submit, kind):
    async def main():
        result = submit(tasks.square, 3)
        assert [await result, await result] == [9, 9]
        done = submit(tasks.square, 4)
        await asyncio.to_thread(lambda: getattr(done, "get", None) or done.result)
        assert await done == 16

    run(main())


def test_an_error_of_a_task_is_raised(submit, kind):
    async def main():
        with pytest.raises(ValueError, match="wrong"):
            await submit(tasks.raise_named, "ValueError", "wrong")
        with pytest.raises(RuntimeError, match="StopIteration"):  # as from any coroutine
            await submit(tasks.raise_named, "StopIteration", "x")

    run(main())


def test_tools_of_asyncio_take_results(submit, kind):
    async def main():
        results = [submit(tasks.square, x) for x in range(N)]
        assert await asyncio.gather(*results) == [x * x for x in range(N)]
        assert sorted([await x for x in asyncio.as_completed(results)]) == [x * x for x in range(N)]
        assert await asyncio.wait_for(submit(tasks.square, 5), TIMEOUT_S) == 25
        assert await asyncio.shield(submit(tasks.square, 6)) == 36
        assert await asyncio.ensure_future(submit(tasks.square, 7)) == 49
        async with asyncio.TaskGroup() as group:
            grouped = [group.create_task(submit(tasks.square, x).outcome()) for x in range(N)]
        assert [task.result() for task in grouped] == [x * x for x in range(N)]

    run(main())


def test_a_failure_in_a_task_group_withdraws_what_waits(submit, kind, gate):
    async def main():
        held = [submit(tasks.pass_gate, gate.path) for _ in range(2)]
        await arrived(gate, 2)
        waiting = submit(tasks.square, 1)

        async def fail():
            raise ValueError("wrong")

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(waiting.outcome())
                group.create_task(fail())
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.release(2)
        await asyncio.gather(*held)

    run(main())


def test_a_callback_runs_before_its_result_is_awaited(pool):
    async def main():
        seen = []
        result = pool.apply_async(tasks.square, (3,), callback=seen.append)
        assert await result == 9
        assert seen == [9] and result.ready()

    run(main())


def test_a_callback_may_run_a_loop(pool):
    """It runs in the thread that would tell the loop of outcomes."""
    seen = concurrent.futures.Future()

    def await_both(value):
        async def main():
            return await pool.apply_async(tasks.square, (value,)), await result

        seen.set_result(asyncio.run(main()))

    result = pool.map_async(tasks.square, [3], callback=lambda values: await_both(values[0]))
    assert seen.result(TIMEOUT_S) == (81, [9])


def test_a_result_is_ready_once_it_was_awaited(pool, executor):
    async def main():
        for x in range(N):
            result, future = pool.apply_async(tasks.square, (x,)), executor.submit(tasks.square, x)
            await result
            await future
            assert result.ready() and result.successful() and future.done()

    run(main())


def test_a_lost_worker_is_an_error(make_pool):
    pool = make_pool(1, kind="process")

    async def main():
        with pytest.raises(WorkerLost):
            await pool.apply_async(os._exit, (1,))
        assert await pool.apply_async(tasks.square, (2,)) == 4

    run(main())


def test_the_end_of_the_pool_ends_the_wait(kind, make_pool, gate):
    pool = make_pool(1, kind=kind)

    async def main():
        results = [asyncio.ensure_future(pool.apply_async(tasks.pass_gate, (gate.path,))) for _ in range(3)]
        await arrived(gate)
        await pool.aterminate()
        for result in results:
            with pytest.raises(PoolTerminated):
                await result

    run(main())


def test_futures_are_those_of_the_standard_library(executor):
    async def main():
        future = executor.submit(tasks.square, 3)
        assert isinstance(executor, concurrent.futures.Executor) and isinstance(future, concurrent.futures.Future)
        assert await asyncio.wrap_future(future) == 9
        assert await asyncio.get_running_loop().run_in_executor(executor, tasks.square, 4) == 16

    run(main())


def test_outside_a_loop_there_is_an_error(submit, kind, gate):
    result = submit(tasks.pass_gate, gate.path)
    with pytest.raises(RuntimeError, match="no running event loop"):
        result.outcome().send(None)
    gate.release()


# ---- as with the executors of the standard library ---------------------------


async def story(executor, as_awaitable, gate):
    """What a program sees of an executor of one worker: values, errors, cancellations."""
    seen = []

    async def note(awaitable):
        try:
            seen.append(await awaitable)
        except BaseException as error:
            seen.append((type(error).__name__, str(error)))

    await note(as_awaitable(executor.submit(tasks.square, 3)))
    await note(as_awaitable(executor.submit(tasks.raise_named, "KeyError", "x")))
    held = executor.submit(tasks.pass_gate, gate.path, "passed")
    await arrived(gate)
    queued = [executor.submit(tasks.square, x) for x in range(8)]  # a process pool takes some of them ahead
    queued[-1].cancel()
    await note(as_awaitable(queued[-1]))
    waiting = asyncio.ensure_future(note(as_awaitable(queued[-2])))
    await turn()
    waiting.cancel()
    await waiting
    seen.append(queued[-2].cancelled())
    running = asyncio.ensure_future(note(as_awaitable(held)))
    await turn()
    running.cancel()
    await running
    seen.append(held.cancelled())
    gate.release()
    seen.append(await asyncio.to_thread(held.result))
    seen.append(await asyncio.gather(*map(as_awaitable, queued[:-2])))
    await note(asyncio.wait_for(as_awaitable(executor.submit(tasks.square, 9)), TIMEOUT_S))
    return seen


@pytest.mark.parametrize("peer", ["thread", "process"])
def test_a_program_sees_what_it_sees_with_the_standard_library(peer, kind, make_executor, gate, other_gate):
    if peer == "thread":
        executor = concurrent.futures.ThreadPoolExecutor(1)
    else:  # a fork beside threads and interpreters could crash or block the child
        executor = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"))
    with executor:
        expected = run(story(executor, asyncio.wrap_future, gate))
    ours = make_executor(1, kind=kind)
    assert run(story(ours, lambda future: future, other_gate)) == expected
    assert run(story(ours, asyncio.wrap_future, other_gate)) == expected


# ---- wake-ups --------------------------------------------------------------


def test_results_that_come_while_the_loop_is_busy_share_one_wake_up(pool, gate, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        results = [pool.apply_async(tasks.pass_gate, (gate.path, x)) for x in range(N)]
        waiting = asyncio.gather(*results)
        await turn()
        n_wakeups = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def count(*args, **kwargs):
            nonlocal n_wakeups
            n_wakeups += 1
            return call_soon_threadsafe(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        gate.release(N)  # and the loop is busy until the last one has told it
        gates.wait_until(lambda: not any(result.awaiters for result in results), "all have told the loop")
        assert n_wakeups == 1
        assert await waiting == list(range(N))

    run(main())


def test_no_thread_waits_for_a_result(pool, gate):
    async def main():
        waiting = [asyncio.ensure_future(pool.apply_async(tasks.pass_gate, (gate.path, x))) for x in range(100)]
        await arrived(gate)
        before = {thread.name for thread in threading.enumerate()}
        await turn()
        gate.release(100)
        assert await asyncio.gather(*waiting) == list(range(100))
        new = {thread.name for thread in threading.enumerate()} - before
        assert new <= {"pool_party-callbacks"}

    run(main())


def test_a_call_that_is_never_awaited_has_no_callbacks(pool):
    result = pool.apply_async(tasks.square, (3,))
    assert result.get(TIMEOUT_S) == 9
    assert result.callbacks == _native.CALLBACKS_NONE and "_awaiters" not in result.__dict__


def test_of_a_call_that_is_decided_a_watch_is_refused(pool):
    result = pool.apply_async(tasks.square, (3,))
    result.get(TIMEOUT_S)
    assert not result.watch() and not result.add_awaiter(pytest.fail) and not result.awaiters


# ---- cancelling ------------------------------------------------------------


async def cancel(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelling_withdraws_what_no_worker_has_begun(submit, kind, gate, tmp_path):
    async def main():
        held = [submit(tasks.pass_gate, gate.path) for _ in range(2)]
        await arrived(gate, 2)
        results = [submit(os.mkdir, str(tmp_path / str(x))) for x in range(3)]
        waiting = [asyncio.ensure_future(result) for result in results]
        await turn()
        await cancel(waiting[1])
        gate.release(2)
        await asyncio.gather(*held, waiting[0], waiting[2])
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["0", "2"]
        with pytest.raises(concurrent.futures.CancelledError):
            (getattr(results[1], "get", None) or results[1].result)(TIMEOUT_S)

    run(main())


def test_cancelling_withdraws_what_no_worker_has_begun_of_a_map(kind, make_pool, gate):
    pool = make_pool(2, kind=kind)

    async def main():
        failures = []
        result = pool.map_async(tasks.pass_gate, [gate.path] * 5000, 1, error_callback=failures.append)
        waiting = asyncio.ensure_future(result)
        await arrived(gate, 2)
        await cancel(waiting)
        gate.release(2)
        assert await pool.apply_async(tasks.square, (3,)) == 9
        await asyncio.to_thread(result.wait)
        assert [type(error) for error in failures] == [concurrent.futures.CancelledError]
        with pytest.raises(concurrent.futures.CancelledError):
            result.get(TIMEOUT_S)
        pool.close()
        await pool.ajoin()
        with pytest.raises(AssertionError):  # nobody else came
            gate.wait_arrived(1, timeout=0)

    run(main())


def test_a_running_task_is_abandoned(submit, kind, gate):
    async def main():
        result = submit(tasks.pass_gate, gate.path, "passed")
        waiting = asyncio.ensure_future(result)
        await arrived(gate)
        await cancel(waiting)
        gate.release()
        assert await result == "passed"

    run(main())


def test_a_cancellation_waits_for_a_running_task(submit, kind, gate):
    async def main():
        result = submit(tasks.pass_gate, gate.path, "passed")
        waiting = asyncio.ensure_future(result.outcome(on_cancel="wait"))
        await arrived(gate)
        for _ in range(3):  # one more changes nothing
            waiting.cancel()
            await turn()
            assert not waiting.done()
        gate.release()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await result == "passed"

    run(main())


def test_a_cancellation_waits_for_the_running_tasks_of_a_map(kind, make_pool, gate, other_gate):
    pool = make_pool(2, kind=kind)

    async def main():
        result = pool.map_async(tasks.pass_gate, [gate.path] * 8, 1)
        waiting = asyncio.ensure_future(result.outcome(on_cancel="wait"))
        await arrived(gate, 2)
        waiting.cancel()
        await turn()
        gate.release()
        after = asyncio.ensure_future(pool.apply_async(tasks.pass_gate, (other_gate.path,)))
        await arrived(other_gate)  # by the worker that was let go, so the others of the map were withdrawn
        assert not waiting.done()
        gate.release()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other_gate.release()
        await after

    run(main())


@pytest.mark.parametrize("kind", ["process"])
def test_a_cancellation_kills_the_worker_of_this_task_alone(submit, kind, gate, other_gate):
    async def main():
        other = submit(tasks.pass_gate, other_gate.path, "other")
        await arrived(other_gate)
        result = submit(tasks.pass_gate, gate.path)
        waiting = asyncio.ensure_future(result.outcome(on_cancel="kill"))
        (pid,) = await arrived(gate)
        await cancel(waiting)
        with pytest.raises(WorkerLost) as lost:
            await result
        assert (lost.value.pid, lost.value.exitcode) == (pid, -9)
        assert await submit(tasks.square, 3) == 9  # by the one in its place
        other_gate.release()
        assert await other == "other"

    run(main())


def test_a_cancellation_kills_with_every_start_method(make_pool, context, gate):
    pool = make_pool(1, kind="process", context=context)

    async def main():
        waiting = asyncio.ensure_future(pool.apply_async(tasks.pass_gate, (gate.path,)).outcome(on_cancel="kill"))
        await arrived(gate)
        await cancel(waiting)
        assert await pool.apply_async(tasks.square, (3,)) == 9
        assert pool.statistics().n_workers_lost == 1

    run(main())


def test_a_cancellation_kills_the_workers_of_a_map(make_pool, gate):
    pool = make_pool(2, kind="process")

    async def main():
        result = pool.map_async(tasks.pass_gate, [gate.path] * 100, 1)
        waiting = asyncio.ensure_future(result.outcome(on_cancel="kill"))
        pids = await arrived(gate, 2)
        await cancel(waiting)
        assert set(pids).isdisjoint(worker.pid for worker in pool._pool)
        assert await pool.map_async(tasks.square, range(N)) == [x * x for x in range(N)]

    run(main())


@pytest.mark.parametrize("kind", ["process"])
def test_a_task_that_is_to_be_killed_and_waits_is_withdrawn(submit, kind, gate):
    async def main():
        held = [submit(tasks.pass_gate, gate.path, "held") for _ in range(2)]
        await arrived(gate, 2)
        waiting = asyncio.ensure_future(submit(tasks.square, 3).outcome(on_cancel="kill"))
        await turn()
        await cancel(waiting)
        gate.release(2)
        assert await asyncio.gather(*held) == ["held", "held"]

    run(main())


def test_only_processes_can_be_killed(pool, kind):
    async def main():
        if kind != "process":
            with pytest.raises(ValueError, match="process"):
                await pool.map_async(tasks.square, range(1000)).outcome(on_cancel="kill")
            with pytest.raises(ValueError, match="process"):
                pool.amap(tasks.square, range(3), on_cancel="kill")
        with pytest.raises(ValueError, match="'leave'"):
            pool.amap(tasks.square, range(3), on_cancel="leave")

    run(main())


def test_only_the_last_awaiter_that_is_cancelled_withdraws(submit, kind, gate):
    async def main():
        held = [submit(tasks.pass_gate, gate.path) for _ in range(2)]
        await arrived(gate, 2)
        result = submit(tasks.square, 3)
        first, second = asyncio.ensure_future(result.outcome()), asyncio.ensure_future(result.outcome())
        await turn()
        await cancel(first)
        gate.release(2)
        assert await second == 9
        await asyncio.gather(*held)

    run(main())


def test_a_shielded_result_is_not_withdrawn(submit, kind, gate):
    async def main():
        held = [submit(tasks.pass_gate, gate.path) for _ in range(2)]
        await arrived(gate, 2)
        inner = asyncio.ensure_future(submit(tasks.square, 3))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(inner), 0)
        waiting = asyncio.ensure_future(asyncio.shield(inner))
        await turn()
        await cancel(waiting)
        gate.release(2)
        assert await inner == 9
        await asyncio.gather(*held)

    run(main())


def test_a_process_that_does_something_else_by_now_is_not_killed(make_pool, gate):
    """The worker may end the task and begin another one between the look and the signal."""
    pool = make_pool(1, kind="process")
    result = pool.apply_async(tasks.pass_gate, (gate.path, "passed"))
    (pid,) = gate.wait_arrived()
    (worker,) = pool._pool
    worker.kill_if(lambda: False)
    gate.release()
    assert result.get(TIMEOUT_S) == "passed"
    assert pool.apply(os.getpid) == pid


# ---- amap ------------------------------------------------------------------


async def numbers(n):
    for x in range(n):
        yield x
        await asyncio.sleep(0)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("make", [range, numbers])
@pytest.mark.parametrize("limit", [1, 3, None])
def test_amap(pool, make, ordered, limit):
    async def main():
        found = [y async for y in pool.amap(tasks.square, make(N), limit=limit, ordered=ordered)]
        assert (found if ordered else sorted(found)) == [x * x for x in range(N)]
        assert [y async for y in pool.amap(tasks.square, make(0), limit=limit, ordered=ordered)] == []

    run(main())


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_amap_begins_no_more_than_its_limit(pool, ordered, is_async):
    n_read = n_taken = most = 0

    def note():
        nonlocal n_read, most
        n_read += 1
        most = max(most, n_read - n_taken)

    def read():
        for x in range(N):
            note()
            yield x

    async def aread():
        for x in range(N):
            note()
            yield x

    async def main():
        nonlocal n_taken
        async for _ in pool.amap(tasks.square, aread() if is_async else read(), limit=4, ordered=ordered):
            assert n_read - n_taken <= 5
            n_taken += 1
            await turn(3)
        assert n_taken == n_read == N and most <= 5  # the one that the loop's body has was taken

    run(main())


def test_amap_gives_results_while_its_input_waits(pool):
    async def main():
        more = asyncio.Event()

        async def slow():
            yield 1
            await more.wait()
            yield 2

        found = []
        async for y in pool.amap(tasks.square, slow()):
            found.append(y)
            more.set()
        assert found == [1, 4]

    run(main())


def test_amap_without_order_gives_what_comes_first(pool, gate):
    async def main():
        results = pool.amap(lambda x: tasks.pass_gate_if(gate.path, 0, x), range(5), ordered=False)
        found = [await anext(results) for _ in range(4)]
        gate.release()
        assert sorted(found) == [1, 2, 3, 4] and [y async for y in results] == [0]

    path = gate.path  # a lambda goes by value with what it names
    run(main())
    assert path


def test_amap_ends_with_the_first_failure_and_withdraws_the_rest(kind, make_pool, gate):
    pool = make_pool(2, kind=kind)

    async def main():
        held = pool.apply_async(tasks.pass_gate, (gate.path,))
        await arrived(gate)
        found = []
        with pytest.raises(ValueError, match="invalid literal"):
            async for y in pool.amap(int, ["1", "2", "x", *["3"] * 100], limit=50):
                found.append(y)
        assert found == [1, 2]
        gate.release()
        await held
        await until_idle(pool)

    run(main())


async def until_idle(pool):
    await asyncio.to_thread(gates.wait_until, lambda: pool.statistics().n_pending == 0, "idle")


def test_amap_ends_when_its_input_is_cancelled(pool):
    async def main():
        async def cancelled():
            yield 1
            raise asyncio.CancelledError

        found = []
        with pytest.raises(asyncio.CancelledError):
            async for y in pool.amap(tasks.square, cancelled()):
                found.append(y)
        assert found == [1]

    run(main())


@pytest.mark.parametrize("is_async", [True, False])
def test_amap_raises_what_its_input_raises_after_the_results_before_it(pool, is_async):
    def bad():
        yield from range(3)
        raise KeyError("input")

    async def abad():
        for x in bad():
            yield x

    async def main():
        found = []
        with pytest.raises(KeyError, match="input"):
            async for y in pool.amap(tasks.square, abad() if is_async else bad()):
                found.append(y)
        assert found == [0, 1, 4]

    run(main())


@pytest.mark.parametrize("ending", ["aclose", "break", "cancel"])
def test_the_end_of_amap_withdraws_what_waits_and_closes_the_input(kind, make_pool, gate, ending):
    pool = make_pool(2, kind=kind)

    async def main():
        closed = asyncio.Event()

        async def endless():
            try:
                while True:
                    yield gate.path
            finally:
                closed.set()

        async def consume(results):
            async for _ in results:
                break

        results = pool.amap(tasks.pass_gate, endless(), limit=10, ordered=False)
        consumer = asyncio.ensure_future(consume(results))
        await arrived(gate, 2)
        if ending == "cancel":
            await cancel(consumer)
        else:
            gate.release()
            await consumer
            await arrived(gate)
            if ending == "aclose":
                await results.aclose()
            del results, consumer
            gc.collect()
        await closed.wait()
        gate.release(2)
        await until_idle(pool)
        with pytest.raises(AssertionError):
            gate.wait_arrived(1, timeout=0)

    run(main())


def test_amap_waits_for_or_kills_what_runs(make_pool, gate):
    pool = make_pool(2, kind="process")

    async def main():
        for on_cancel in ("wait", "kill"):
            results = pool.amap(tasks.pass_gate, [gate.path] * 5, on_cancel=on_cancel)
            consumer = asyncio.ensure_future(anext(results))
            pids = await arrived(gate, 2)
            consumer.cancel()
            await turn()
            if on_cancel == "wait":
                assert not consumer.done()
                gate.release(2)
            with pytest.raises(asyncio.CancelledError):
                await consumer
            if on_cancel == "kill":
                assert set(pids).isdisjoint(worker.pid for worker in pool._pool)

    run(main())


def test_amap_says_at_once_what_is_wrong(pool):
    for args, kwargs, error in [
        ((None, []), {}, TypeError),
        ((tasks.square, 3), {}, TypeError),
        ((tasks.square, []), {"limit": 0}, ValueError),
    ]:
        with pytest.raises(error):
            pool.amap(*args, **kwargs)


def test_amap_of_a_closed_pool(make_pool, kind):
    pool = make_pool(1, kind=kind)

    async def main():
        results = pool.amap(tasks.square, range(3), limit=1)
        assert await anext(results) == 0
        pool.close()
        with pytest.raises(PoolClosed):
            while True:
                await anext(results)
        with pytest.raises(PoolClosed):
            pool.amap(tasks.square, [])

    run(main())


# ---- opening and ending ------------------------------------------------------


@pytest.fixture
def nothing_blocks(monkeypatch):
    """What blocks in the core fails in a thread that runs a loop."""

    def forbid(owner, name):
        function = getattr(owner, name)

        def checked(*args, **kwargs):
            assert asyncio._get_running_loop() is None, f"{name} was called in the thread of a loop"
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, checked)

    for name in ("open", "wait", "next", "join", "terminate", "end"):
        forbid(Engine, name)
    forbid(_native, "call_apart")  # it waits for another thread, as starting a thread by it does


def test_opening_using_and_ending_a_pool_blocks_nothing(kind, nothing_blocks, gate):
    async def main():
        async with ComposablePool.aopen(2, kind=kind) as pool:
            assert await pool.map_async(tasks.square, range(N)) == [x * x for x in range(N)]
            assert [y async for y in pool.amap(tasks.square, numbers(N))] == [x * x for x in range(N)]
            held = asyncio.ensure_future(pool.apply_async(tasks.pass_gate, (gate.path,)).outcome(on_cancel="wait"))
            await arrived(gate)
            held.cancel()
            await turn()
            gate.release()
            with contextlib.suppress(asyncio.CancelledError):
                await held
        await pool.ajoin()
        assert "state=TERMINATE" in repr(pool)

    run(main())


def test_opening_using_and_ending_an_executor_blocks_nothing(kind, nothing_blocks, gate):
    async def main():
        async with ComposableExecutor.aopen(2, kind=kind) as executor:
            held = executor.submit(tasks.pass_gate, gate.path, "passed")
            await arrived(gate)
            ending = asyncio.ensure_future(executor.ashutdown())
            await turn()
            assert not ending.done()
            gate.release()
            await ending
            assert held.result() == "passed"
        with pytest.raises(PoolClosed):
            executor.submit(tasks.square, 1)

    run(main())


def test_no_turn_of_the_loop_takes_long(kind, monkeypatch):
    """A turn's CPU time is at most 5 ms. Its duration says nothing, since a busy machine makes any thread wait.

    The best of several attempts counts: the first one imports modules, and a virtual machine may count time in which it
    did not run.
    """
    turns_s = []
    run_handle = asyncio.Handle._run

    def timed(handle):
        begin_s = time.thread_time()
        run_handle(handle)
        turns_s.append(time.thread_time() - begin_s)

    async def main():
        monkeypatch.setattr(asyncio.Handle, "_run", timed)
        async with ComposablePool.aopen(2, kind=kind) as pool:
            assert await pool.map_async(tasks.square, range(N)) == [x * x for x in range(N)]
            assert [y async for y in pool.amap(tasks.square, numbers(N))] == [x * x for x in range(N)]
        await pool.ajoin()
        async with ComposableExecutor.aopen(2, kind=kind) as executor:
            assert await executor.submit(tasks.square, 3) == 9

    for _ in range(20):
        turns_s.clear()
        run(main())
        if max(turns_s) < 0.005:
            break
    else:
        pytest.fail(f"a turn took {max(turns_s)} s")


def test_the_loop_goes_on_while_a_pool_is_joined(kind, make_pool, gate):
    pool = make_pool(1, kind=kind)

    async def main():
        result = pool.apply_async(tasks.pass_gate, (gate.path,))
        await arrived(gate)
        pool.close()
        joining = asyncio.ensure_future(pool.ajoin())
        await turn(100)
        assert not joining.done() and not result.ready()
        gate.release()
        await joining
        with pytest.raises(ValueError, match="still running"):
            await make_pool(1, kind=kind).ajoin()

    run(main())


def test_async_with_a_pool_that_is_open(kind, make_pool):
    pool = make_pool(1, kind=kind)

    async def main():
        async with pool as same:
            assert same is pool and await pool.apply_async(tasks.square, (3,)) == 9
        with pytest.raises(PoolClosed):
            async with pool:
                pass

    run(main())


def test_an_error_of_opening_is_raised(kind):
    async def main():
        with pytest.raises(ValueError, match="at least 1"):
            await ComposablePool.aopen(0, kind=kind)

    run(main())


def test_a_pool_whose_opener_is_cancelled_is_ended(kind, monkeypatch):
    opened = []
    release, may_end = threading.Event(), threading.Event()

    class Slow(ComposablePool):
        def __init__(self, *args, **kwargs):
            release.wait(TIMEOUT_S)
            super().__init__(*args, **kwargs)
            opened.append(weakref.ref(self._engine))

        def terminate(self):
            super().terminate()
            may_end.set()

    async def main():
        opening = asyncio.ensure_future(Slow.aopen(1, kind=kind)._open())
        await turn()
        opening.cancel()
        await turn()
        assert not opening.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert may_end.is_set() and len(opened) == 1

    run(main())


# ---- loops -----------------------------------------------------------------


def test_several_loops_use_a_pool_at_the_same_time(pool):
    async def main(n):
        calls = [pool.apply_async(tasks.multiply, (n, x)) for x in range(N)]
        mapped = [y async for y in pool.amap(tasks.square, range(N), limit=5)]
        return await asyncio.gather(*calls), mapped

    threads = [gates.call_in_thread(lambda n=n: asyncio.run(main(n))) for n in range(5)]
    for n, thread in enumerate(threads):
        assert thread.result(TIMEOUT_S) == ([n * x for x in range(N)], [x * x for x in range(N)])


def test_a_result_is_awaited_in_two_loops(pool, gate):
    result = pool.apply_async(tasks.pass_gate, (gate.path, "passed"))

    async def main():
        return await result

    threads = [gates.call_in_thread(lambda: asyncio.run(main())) for _ in range(2)]
    gates.wait_until(lambda: len(result.awaiters) == 2, "both await it")
    gate.release()
    assert [thread.result(TIMEOUT_S) for thread in threads] == ["passed", "passed"]


def test_a_loop_is_closed_while_tasks_run(submit, kind, gate):
    loop = asyncio.new_event_loop()
    result = submit(tasks.pass_gate, gate.path, "passed")
    waiting = loop.create_task(result.outcome())
    loop.run_until_complete(turn())
    loop.close()
    gate.wait_arrived()
    gate.release()
    assert (getattr(result, "get", None) or result.result)(TIMEOUT_S) == "passed"
    waiting.get_coro().close()
    waiting._log_destroy_pending = False  # the loop was closed on purpose

    async def again():
        return await submit(tasks.square, 3), await result

    assert run(again()) == (9, "passed")


def test_a_loop_that_has_awaited_is_not_kept(pool):
    loop = asyncio.new_event_loop()
    reference = weakref.ref(loop)
    loop.run_until_complete(pool.apply_async(tasks.square, (3,)).outcome())
    loop.close()
    del loop
    # the thread that told the loop may still be leaving its function
    gates.wait_until(lambda: gc.collect() is None or reference() is None, "the loop is released")


# ---- other libraries ---------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio_and_trio_use_a_pool_through_their_threads(pool, backend):
    anyio = pytest.importorskip("anyio")
    if backend == "trio":
        pytest.importorskip("trio")

    async def main():
        found = {}

        async def one(x):
            found[x] = await anyio.to_thread.run_sync(pool.apply, tasks.square, (x,))

        async with anyio.create_task_group() as group:
            for x in range(N):
                group.start_soon(one, x)
        return found

    assert anyio.run(main, backend=backend) == {x: x * x for x in range(N)}


def test_trio_uses_a_pool_through_its_threads(pool):
    trio = pytest.importorskip("trio")

    async def main():
        return await trio.to_thread.run_sync(pool.map, tasks.square, range(N))

    assert trio.run(main) == [x * x for x in range(N)]


def test_a_call_may_be_done_between_two_looks_at_it():
    class Flips:
        has_parts = False
        n_looks = 0

        @property
        def engine(self):
            return self

        def cancel(self, call):
            return False

        @property
        def done(self):
            self.n_looks += 1
            return self.n_looks > 2

    run(awaiting.give_up([Flips()], "wait"))


# ---- at random ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_awaits_cancels_and_kills(kind, make_pool, seed):
    """Whatever else is cancelled and killed, a call that is not has its own value."""
    chance = random.Random(seed)
    pool = make_pool(3, kind=kind)
    ways = ["abandon", "wait", "kill"] if kind == "process" else ["abandon", "wait"]

    async def one(n):
        on_cancel = chance.choice(ways)
        result = pool.apply_async(tasks.square, (n,)) if n % 5 else pool.map_async(tasks.square, range(n), 1)
        task = asyncio.ensure_future(result.outcome(on_cancel=on_cancel))
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        is_cancelled = chance.random() < 0.4 and task.cancel()
        try:
            assert await task == (n * n if n % 5 else [x * x for x in range(n)])
        except asyncio.CancelledError:
            assert is_cancelled
            return on_cancel
        return None

    async def stream(n):
        results = pool.amap(tasks.square, numbers(n), limit=chance.randrange(1, 9), on_cancel=chance.choice(ways))
        async with contextlib.aclosing(results):
            found = []
            async for y in results:
                found.append(y)
                if len(found) > n // 2 and n % 2:
                    break
        assert found == [x * x for x in range(len(found))]

    async def main():
        async with asyncio.TaskGroup() as group:
            ended = [group.create_task(one(n)) for n in range(60)]
            for n in range(10, 16):
                group.create_task(stream(n))
        assert await pool.map_async(tasks.square, range(N)) == [x * x for x in range(N)]
        await until_idle(pool)
        n_kills = sum(task.result() == "kill" for task in ended)
        assert pool.statistics().n_workers_lost <= 3 * n_kills + 3 * 9

    run(main())


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_what_ends_iterations_is_an_error_in_asyncio(pool, error):
    """Neither ends `amap` as if its input were over, nor raises TypeError where it is set as a future's exception."""

    async def iterate():
        return [x async for x in pool.amap(raise_this, [error("over")])]

    async def wait_for():
        return await pool.apply_async(raise_this, (error("over"),))

    async def in_future():
        return await asyncio.wait_for(asyncio.wrap_future(pool.submit(raise_this, error("over"))), 60)

    # asyncio of CPython 3.12.1 waits for ever for a future that raises StopIteration (CPython issue 112182).
    ways = (iterate, wait_for, in_future) if sys.version_info >= (3, 13) else (iterate, wait_for)
    for how in ways:
        with pytest.raises((RuntimeError, StopAsyncIteration)) as caught:
            asyncio.run(how())
        assert "over" in (str(caught.value), str(caught.value.__cause__))


def raise_this(error):
    raise error


def test_an_executor_of_threads_is_a_default_executor():
    """asyncio takes only instances of the standard library's class."""

    async def main():
        executor = ComposableExecutor(2, kind="thread")
        assert type(executor.options(retries=1)) is type(executor) and isinstance(executor, ComposableExecutor)
        asyncio.get_running_loop().set_default_executor(executor)
        assert await asyncio.to_thread(pow, 2, 5) == 32
        assert await asyncio.get_running_loop().run_in_executor(None, pow, 2, 6) == 64
        assert executor.statistics().n_completed == 2
        return executor

    executor = asyncio.run(main())  # which shuts it down
    with pytest.raises(PoolClosed):
        executor.submit(pow, 2, 3)
    assert repr(executor).startswith("<ComposableExecutor kind=thread")
