"""Tasks whose loops show how far they are, for test_bars.py."""

import os

import tasks

import pool_party

kept = []


def loop(path, n, desc="loop"):
    """Pass a gate in each step of a loop."""
    for _ in pool_party.progress(range(n), desc):
        tasks.pass_gate(path)
    return n


def loop_in_loops(path, depth):
    """Pass a gate inside loops of two steps each. Each name has the number of those around it."""
    if depth == 0:
        tasks.pass_gate(path)
        return
    for _ in pool_party.progress(iter(range(2)), f"{depth} left"):
        loop_in_loops(path, depth - 1)


def leave_loops(path):
    """Leave one loop by a break and one by an exception, keep a third one alive, and pass a gate after that."""
    for _ in pool_party.progress(range(9), "break"):
        break
    try:
        for _ in pool_party.progress(range(9), "exception"):
            raise LookupError
    except LookupError:
        pass
    kept.append(iter(pool_party.progress(range(9), "kept")))
    next(kept[-1])
    tasks.pass_gate(path)


def continue_kept(path):
    """Continue the loop of an earlier task, and pass a gate."""
    next(kept[-1])
    tasks.pass_gate(path)
    return list(kept.pop())


def is_unchanged(n=0):
    """Whether a loop runs over the iterable itself."""
    items = range(3)
    return pool_party.progress(items, "unseen") is items


def fork_in_loop(path):
    """Fork a child inside a loop, which goes on with it, and pass a gate after its end."""
    for _ in pool_party.progress(range(3), "forks"):
        pid = os.fork()
        if pid == 0:
            break
        os.waitpid(pid, 0)
        tasks.pass_gate(path)
    else:
        return
    list(pool_party.progress(range(1000), "of the child"))
    os._exit(0)


def die_in_loop(path):
    """Die in a loop, at the gate, when the test releases it."""
    for _ in pool_party.progress(range(3), "dies"):
        tasks.pass_gate(path)
        os._exit(1)


def die_or_loop(path, dies):
    """Die in a loop, or go through one."""
    return die_in_loop(path) if dies else loop(path, 3)


def loop_in_loops_once(path):
    """Pass a gate in a loop of one step."""
    return loop(path, 1, "once")
