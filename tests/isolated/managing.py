"""Managers and shared memory of multiprocessing, used by tasks."""

import pathlib
from multiprocessing import Manager, shared_memory

from probe import TIMEOUT_S, ComposablePool, main


def add(numbers, lock, item):
    with lock:
        numbers.append(item)
    return len(numbers)


def make(manager_list, item):
    manager_list[0].append(item)
    return manager_list[0]


def fill(name, byte):
    memory = shared_memory.SharedMemory(name=name)
    memory.buf[:4] = bytes([byte]) * 4
    memory.close()
    return True


def write(memory):
    memory.buf[:4] = b"here"
    memory.close()


def proxies(kind):
    with Manager() as manager, ComposablePool(2, kind=kind) as pool:
        numbers, lock = manager.list(), manager.Lock()
        pool.starmap(add, [(numbers, lock, i) for i in range(8)], 1)
        assert sorted(numbers) == list(range(8))
        event = manager.Event()
        pool.apply(event.set)
        assert event.is_set()
        nested = manager.list([manager.list()])
        assert list(pool.apply(make, (nested, 5))) == [5]
        pool.close()  # `terminate` would interrupt proxies while they disconnect, and the manager would complain
        pool.join(timeout=TIMEOUT_S)


def shared_memory_is_the_makers(kind):
    memory = shared_memory.SharedMemory(create=True, size=4096)
    path = pathlib.Path("/dev/shm", memory.name.lstrip("/"))
    try:
        pool = ComposablePool(2, kind=kind)
        assert pool.apply(fill, (memory.name, 7)) and bytes(memory.buf[:4]) == b"\x07" * 4
        if kind != "thread":  # in threads it is the caller's own object, which the task would close
            pool.apply(write, (memory,))
        pool.close()
        pool.join(timeout=TIMEOUT_S)
        assert path.exists() and bytes(memory.buf[:4]) in (b"here", b"\x07" * 4)
    finally:
        memory.close()
        memory.unlink()
    assert not path.exists()


if __name__ == "__main__":
    main({"proxies": proxies, "shared_memory_is_the_makers": shared_memory_is_the_makers})
