"""Values and exceptions go with the last reference to them, and need no garbage collection, as with the standard pools.

A large result would else stay in memory for as long as the program makes few objects. The oracle is
`ThreadPoolExecutor`, which passes each of these ways that it has.
"""

import asyncio
import contextlib
import gc
import sysconfig
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed, wait

import gates
import pytest
import tasks

pytestmark = pytest.mark.skipif(
    sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a thread that sleeps drops no references"
)


@pytest.fixture(autouse=True)
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def values_of_wait(executor, function):
    futures = [executor.submit(function, number) for number in range(3)]
    wait(futures)
    try:
        return [future.result() for future in futures]
    finally:
        del futures  # its exceptions refer to this frame


OF_EXECUTORS = {
    "submit": lambda executor, function: [executor.submit(function, 1).result()],
    "map": lambda executor, function: list(executor.map(function, [1, 2])),
    "wait": values_of_wait,
    "as_completed": lambda executor, function: [
        future.result() for future in as_completed([executor.submit(function, number) for number in range(3)])
    ],
}
OF_POOLS = {
    "apply": lambda pool, function: [pool.apply(function, (1,))],
    "apply_async": lambda pool, function: [pool.apply_async(function, (1,)).get()],
    "callbacks": lambda pool, function: [
        pool.apply_async(function, (1,), callback=id, error_callback=id).get(),
    ],
    "map": lambda pool, function: pool.map(function, [1, 2], 1),
    "chunks": lambda pool, function: pool.map(function, [1, 2], 2),
    "starmap": lambda pool, function: pool.starmap(function, [(1,), (2,)], 1),
    "map_async": lambda pool, function: pool.map_async(function, [1, 2], 1).get(),
    "imap": lambda pool, function: list(pool.imap(function, [1, 2])),
    "imap_unordered": lambda pool, function: list(pool.imap_unordered(function, [1, 2], 2)),
    "submit": OF_EXECUTORS["submit"],
}


async def awaited(pool, function):
    return [await pool.apply_async(function, (1,))]


async def awaited_map(pool, function):
    return await pool.map_async(function, [1, 2], 1)


async def awaited_future(pool, function):
    return [await pool.submit(function, 1)]


async def run_in_executor(pool, function):
    return [await asyncio.get_running_loop().run_in_executor(pool, function, 1)]


async def amap(pool, function):
    return [value async for value in pool.amap(function, [1, 2])]


OF_LOOPS = {way.__name__: way for way in (awaited, awaited_map, awaited_future, run_in_executor, amap)}


def names_of(values):
    return [weakref.ref(value) for value in values]


def error_of(way, pool):
    try:
        way(pool, tasks.raise_plain)
    except tasks.PlainError as error:
        return [weakref.ref(error)]
    pytest.fail("it raises")


def check_gone(references, what):
    assert references
    gates.wait_until(lambda: not any(reference() for reference in references), f"nobody has the {what}")


@pytest.mark.parametrize("way", OF_POOLS.values(), ids=OF_POOLS)
def test_pools(way, pool):
    check_gone(names_of(way(pool, tasks.Adder)), "values")
    check_gone(error_of(way, pool), "exception")


@pytest.mark.parametrize("way", OF_EXECUTORS.values(), ids=OF_EXECUTORS)
def test_executors(way, kind, make_executor):
    executor = make_executor(2, kind=kind)
    check_gone(names_of(way(executor, tasks.Adder)), "values")
    check_gone(error_of(way, executor), "exception")


@pytest.mark.parametrize("way", OF_EXECUTORS.values(), ids=OF_EXECUTORS)
def test_the_oracle(way):
    with ThreadPoolExecutor(2) as executor:
        check_gone(names_of(way(executor, tasks.Adder)), "values")
        check_gone(error_of(way, executor), "exception")


@pytest.mark.parametrize("way", OF_LOOPS.values(), ids=OF_LOOPS)
def test_event_loops(way, pool):
    async def main():
        references = names_of(await way(pool, tasks.Adder))
        try:
            await way(pool, tasks.raise_plain)
        except tasks.PlainError as error:
            references.append(weakref.ref(error))
        while any(reference() for reference in references):
            await asyncio.sleep(0.001)
        return references

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert len(loop.run_until_complete(asyncio.wait_for(main(), 30))) >= 2


def test_a_generator_keeps_no_value_that_it_has_given(pool):
    """`amap` once kept the value that it had given last until the next one was asked for."""

    async def main():
        values = pool.amap(tasks.Adder, [1, 2])
        reference = weakref.ref(await anext(values))
        while reference():
            await asyncio.sleep(0.001)
        await values.aclose()

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(main(), 30))
