"""Received and shared memory: it is released with its values, whoever dies, and a forked child has its own."""

import ctypes
import gc
import os
import signal
import tempfile
import threading

import psutil
from probe import TIMEOUT_S, ComposablePool, expect, gates, is_gone, main, open_fds, resources, tasks

from pool_party import WorkerLost, share

MiB = 1 << 20
FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", int)  # gives back what the allocator keeps; glibc's only
kept = []


def file_mb():
    """Return the memory of this process's memfds, in MB."""
    n_bytes, seen = 0, set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{fd}")
            if "memfd:" in os.readlink(f"/proc/self/fd/{fd}") and status.st_ino not in seen:
                seen.add(status.st_ino)
                n_bytes += status.st_blocks * 512
        except FileNotFoundError:
            pass
    return n_bytes / MiB


def keep(blob):
    kept.append(blob)
    return tasks.checksum(blob.data)


def keep_and_die(blob):
    kept.append(blob)
    os.kill(os.getpid(), signal.SIGKILL)


def results_that_are_kept(kind):
    """Results stay until they are dropped, whatever happens to the workers. Then memory and mappings go as well."""
    with ComposablePool(2, kind=kind, maxtasksperchild=3) as pool:
        pairs = [(2 * MiB + i, i) for i in range(12)]
        results = pool.starmap(tasks.make_blob, pairs, 1)
        for _ in range(3):
            assert pool.starmap(tasks.make_blob, [(2 * MiB, 99)] * 12, 1) == [tasks.make_blob(2 * MiB, 99)] * 12
        assert results == [tasks.make_blob(*pair) for pair in pairs]
    pool.join(timeout=TIMEOUT_S)
    del pool
    gc.collect()
    assert results == [tasks.make_blob(*pair) for pair in pairs]
    assert file_mb() < 12 * 3 + 2, f"{file_mb()} MB for 24 MB of results"
    del results
    gc.collect()
    assert not any("memfd:pool_party" in target for target in open_fds())


def arguments_of_dead_workers(kind):
    """Workers keep what they got, and die. Never is more memory in use than that of two arguments."""
    blob = tasks.make_blob(8 * MiB, 1)
    with ComposablePool(1, kind=kind) as pool:
        for _ in range(12):
            assert pool.apply(keep, (blob,)) == tasks.checksum(blob.data)
            expect(WorkerLost, pool.apply, keep_and_die, (blob,))
        assert file_mb() < 4 * 16 + 10, f"{file_mb()} MB"  # a block of 16 MB holds 8 MB and a header


def results_in_a_forked_child(kind):
    """A child's copy stays as it was at the fork, and so does the parent's."""
    with ComposablePool(2, kind=kind) as pool:
        result = pool.apply(tasks.make_blob, (4 * MiB, 5))
        expected = bytes(result.data)
        to_child, to_parent = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(to_child[0], 1)
            right = bytes(result.data) == expected
            memoryview(result.data)[:] = bytes(4 * MiB)
            os.write(to_parent[1], b"1" if right else b"0")
            os.read(to_child[0], 1)
            os._exit(0)
        other = [pool.apply(tasks.make_blob, (4 * MiB, seed)) for seed in range(3)]
        mine = bytes(result.data)
        del result
        gc.collect()
        other += [pool.apply(tasks.make_blob, (4 * MiB, seed)) for seed in range(3)]  # these would reuse its block
        os.write(to_child[1], b"1")
        assert os.read(to_parent[0], 1) == b"1" and mine == expected
        os.write(to_child[1], b"1")
        assert os.waitpid(pid, 0)[1] == 0
        assert [bytes(blob.data) for blob in other] == [tasks.pattern(4 * MiB, seed) for seed in (0, 1, 2)] * 2


def pss_mb():
    """This process's memory and its part of shared memory. The pool's file counts once, whoever maps it."""
    with open("/proc/self/smaps_rollup") as file:
        private = sum(int(line.split()[1]) for line in file if line.startswith("Pss_Anon:")) / 1024
    return private + file_mb()


def write_to(blob):
    before, view, zeros = pss_mb(), memoryview(blob.data), bytes(MiB)  # in pieces: an allocator may keep large buffers
    for at in range(0, len(view), MiB):
        view[at : at + MiB] = zeros
    gc.collect()
    return pss_mb() - before


def results_that_are_written_to(kind):
    """Results are written in place, while the pool lives and later, by any thread."""
    with ComposablePool(2, kind=kind) as pool:
        first, second = pool.starmap(tasks.make_blob, [(32 * MiB, i) for i in range(2)], 1)
        grown = [write_to(first)]
    pool.join(timeout=TIMEOUT_S)
    grown.append(write_to(second))
    assert all(mb < 8 for mb in grown), f"{grown} MB more than the results"
    assert not any(first.data) and not any(second.data)


def arguments_that_are_written_to(kind):
    with ComposablePool(1, kind=kind) as pool:
        blob = tasks.make_blob(32 * MiB, 1)
        pool.apply(write_to, (tasks.make_blob(32 * MiB, 1),))  # import what it needs
        grown = pool.apply(write_to, (blob,))
        assert grown < 8, f"{grown} MB more than the argument"
        assert blob == tasks.make_blob(32 * MiB, 1)
        assert pool.apply(tasks.checksum, (blob.data,)) == tasks.checksum(blob.data)


def written_to_while_children_are_forked(kind):
    """Nothing that other threads write at that moment is lost, and no child sees what was written later."""
    with ComposablePool(2, kind=kind) as pool:
        blobs = [pool.apply(tasks.make_blob, (4 * MiB, 0)) for _ in range(8)]
        for blob in blobs[:4]:
            fork_beside_a_writer(blob.data)
    pool.join(timeout=TIMEOUT_S)
    for blob in blobs[4:]:
        fork_beside_a_writer(blob.data)


def fork_beside_a_writer(data):
    address, n_written, stopped = ctypes.addressof(ctypes.c_char.from_buffer(data)), 0, threading.Event()

    def write():
        nonlocal n_written
        while not stopped.is_set():
            ctypes.memset(address, (n_written + 1) % 256, len(data))  # memset needs no GIL
            n_written += 1

    thread = threading.Thread(target=write)
    thread.start()
    gates.wait_until(lambda: n_written > 2, "it writes")
    to_child, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = bytes(data)
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        os._exit(bytes(data) != seen)
    os.read(to_parent[0], 1)
    at_fork = n_written
    gates.wait_until(lambda: n_written > at_fork + 2, "it goes on")
    stopped.set()
    thread.join()
    assert bytes(data) == bytes([n_written % 256]) * len(data), "a write was lost"
    os.write(to_child[1], b"1")
    assert os.waitpid(pid, 0)[1] == 0, "the child saw the parent's writes"
    for fd in (*to_child, *to_parent):
        os.close(fd)


def many_results_are_kept(kind):
    """Results are kept all at once, each in its own block."""
    with ComposablePool(2, kind=kind) as pool:
        results = pool.starmap(tasks.make_blob, [(2 * MiB, i % 7) for i in range(40)], 1)
        assert all(bytes(blob.data) == tasks.pattern(2 * MiB, i % 7) for i, blob in enumerate(results))


def blocks_of_all_sizes(kind):
    """Each block begins with a page, is released separately, and becomes the child's own after a fork."""
    sizes = [1000 << i for i in range(13)]
    with ComposablePool(2, kind=kind) as pool:
        results = pool.map(tasks.make_blob, sizes, 1)
        assert pool.map(tasks.identity, results, 1) == results == list(map(tasks.make_blob, sizes))
        if kind == "process" and (pid := os.fork()) == 0:
            os._exit(0)
        elif kind == "process":
            os.waitpid(pid, 0)
        results += pool.map(tasks.make_blob, [3 * MiB, 5000] * 5, 1)
        assert pool.apply(len, (bytes(80 * MiB),)) == 80 * MiB
        del results[: len(sizes)]
        wait_until_given_back(pool, 5 * 3)
    pool.join(timeout=TIMEOUT_S)
    assert results == list(map(tasks.make_blob, [3 * MiB, 5000] * 5))


def n_shares_held(pool):
    """How many shared objects this process has, once the workers have run something.

    Without a GIL, a worker that sleeps drops no references.
    """
    pool.map(sum, [b""] * 8, 1)
    return sum("pool_party_share" in target for target in open_fds())


def shared_memory_is_freed(kind):
    before = resources()
    with ComposablePool(2, kind=kind) as pool:
        for i in range(10):
            shared = share(bytes(MiB) + bytes([i]))
            assert pool.map(sum, [shared] * 4, 1) == [i] * 4
            returned = pool.apply(share, (bytes([i]) * MiB,))
            assert returned[5] == i
        del shared, returned
        gc.collect()
        gates.wait_until(lambda pool=pool: n_shares_held(pool) <= 2, "shared memory goes")
    pool.join(timeout=TIMEOUT_S)
    del pool
    gc.collect()
    gates.wait_until(lambda: resources()["memfds mapped"] <= before["memfds mapped"], "mappings go")
    assert not any("pool_party_share" in target for target in open_fds())


def bytes_that_never_arrive(kind):
    """Arguments of pools that are terminated, and results that nobody waits for.

    An ended interpreter leaves memory of CPython's own, so they are compared with pools whose arguments are small.
    """
    grown_small = grown_by_pools(kind, b"")
    grown_large = grown_by_pools(kind, tasks.pattern(MiB))
    assert grown_large < grown_small + 100, f"{grown_large}, {grown_small} MB"  # each pool had some 60 MB on the way


def grown_by_pools(kind, blob):
    """Return by how many MB this process has grown between the first and the eighth pool that was terminated."""
    sizes = []
    for _ in range(8):
        with ComposablePool(2, kind=kind) as pool:
            results = [pool.apply_async(tasks.identity, (blob,)) for _ in range(200)]
            results[3].get(TIMEOUT_S)
        pool.join(timeout=TIMEOUT_S)
        del pool, results
        gc.collect()
        TRIM(0)
        sizes.append(psutil.Process().memory_info().rss / MiB)
    return sizes[-1] - sizes[0]


class Wait:
    """A result that stops the receiver until the worker waits or is dead. Results after it are received later."""

    def __reduce__(self):
        return _wait, (os.getpid(),)


def _wait(pid):
    gates.wait_until(lambda: is_gone(pid) or waits(pid), "the worker waits or is dead")


def waits(pid):
    """Whether the main thread is in a futex call."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            return file.read().split()[0] == str(FUTEX)
    except OSError:
        return False


def share_some():
    return share(bytes(range(250)))


def worker_dies_in_the_next_task(kind):
    """What it shared in the previous task has arrived by then."""
    with ComposablePool(1, kind=kind) as pool, gates.Gate(os.path.join(tempfile.mkdtemp(), "gate")) as gate:
        for _ in range(5):
            held = pool.apply_async(tasks.pass_gate, (gate.path,))
            gate.wait_arrived()
            waiting = pool.apply_async(Wait)
            shared = pool.apply_async(share_some)
            killed = pool.apply_async(tasks.kill_self)
            gate.release()
            assert held.get(TIMEOUT_S) is waiting.get(TIMEOUT_S) is None
            assert bytes(shared.get(TIMEOUT_S)) == bytes(range(250))
            expect(WorkerLost, killed.get, TIMEOUT_S)
        assert pool.statistics().n_workers_lost == 5


def worker_dies_with_a_handle(kind):
    with ComposablePool(1, kind=kind) as pool:
        shared = share(bytes(MiB))
        for _ in range(3):
            expect(WorkerLost, pool.apply_async(die, (shared,)).get, TIMEOUT_S)
        assert pool.apply(len, (shared,)) == MiB
        del shared
        gc.collect()
        gates.wait_until(lambda: n_shares_held(pool) == 0, "it goes")


IDLE_MB = 64 + 6  # what a pool may keep, its rings and tables, and a few pages


def wait_until_given_back(pool, living_mb=0):
    gates.wait_until(lambda: file_mb() <= IDLE_MB + living_mb, f"{file_mb()} MB go", timeout=5)
    gates.wait_until(lambda: pool.statistics().idle_bytes <= 64 * MiB, "the figure says so", timeout=5)


def idle_after_results(kind):
    """Memory is given back once nobody needs it, although the workers sleep."""
    with ComposablePool(2, kind=kind) as pool:
        results = pool.starmap(tasks.make_blob, [(32 * MiB, i) for i in range(12)], 1)
        assert file_mb() >= 12 * 32
        del results[4:]
        wait_until_given_back(pool, 4 * 32)
        assert results == [tasks.make_blob(32 * MiB, i) for i in range(4)]
        del results
        wait_until_given_back(pool)
        assert pool.starmap(tasks.make_blob, [(3 * MiB, i) for i in range(4)], 1) == [
            tasks.make_blob(3 * MiB, i) for i in range(4)
        ]


def idle_after_arguments(kind):
    with ComposablePool(2, kind=kind) as pool:
        blob = tasks.make_blob(128 * MiB, 1)
        assert pool.apply(tasks.checksum, (blob.data,)) == tasks.checksum(blob.data)
        wait_until_given_back(pool)
        assert pool.apply(tasks.checksum, (bytes(96 * MiB),)) == tasks.checksum(bytes(96 * MiB))
        wait_until_given_back(pool)


def idle_after_a_fork(kind):
    with ComposablePool(2, kind=kind) as pool:
        results = pool.starmap(tasks.make_blob, [(32 * MiB, i) for i in range(6)], 1)
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        wait_until_given_back(pool)
        assert results == [tasks.make_blob(32 * MiB, i) for i in range(6)]


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(
        {
            "results_that_are_kept": results_that_are_kept,
            "results_that_are_written_to": results_that_are_written_to,
            "arguments_that_are_written_to": arguments_that_are_written_to,
            "written_to_while_children_are_forked": written_to_while_children_are_forked,
            "idle_after_results": idle_after_results,
            "idle_after_arguments": idle_after_arguments,
            "idle_after_a_fork": idle_after_a_fork,
            "arguments_of_dead_workers": arguments_of_dead_workers,
            "results_in_a_forked_child": results_in_a_forked_child,
            "blocks_of_all_sizes": blocks_of_all_sizes,
            "many_results_are_kept": many_results_are_kept,
            "shared_memory_is_freed": shared_memory_is_freed,
            "bytes_that_never_arrive": bytes_that_never_arrive,
            "worker_dies_with_a_handle": worker_dies_with_a_handle,
            "worker_dies_in_the_next_task": worker_dies_in_the_next_task,
        },
        hang_s=90,
    )
