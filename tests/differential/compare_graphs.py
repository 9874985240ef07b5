# ruff: noqa: E402  # the modules are beside this file
"""Runs programs of `graphs` as `__main__`: `compare_graphs.py KIND FIRST LAST N_CHANGES`, or with `-c`.

Each program is described in a forked child, which has its true objects, and in a worker of the kind. So is it after
each change. Prints what differs, and the number of programs and calls.
"""

import itertools as _itertools
import os
import pickle
import sys
import traceback

_here = os.path.dirname(os.path.abspath(sys.argv[0] if sys.argv[0] != "-c" else sys.argv[1]))
sys.path.insert(0, _here)

import graphs as _graphs
import walk as _walk

from pool_party import ComposablePool as _ComposablePool

_own = {*globals()}


def _names():
    return [name for name in globals() if name not in _own and name[:1] != "_"]


def _run(text):
    exec(compile(text, "<cell>", "exec"), globals())


def _steps(seed, n_changes):
    """Run a program, then its changes one after the other, and yield the text before each description."""
    for name in _names():
        del globals()[name]
    program = _graphs.Program(seed)
    text = program.text
    for _ in range(1 + n_changes):
        try:
            _run(text)
        except Exception:
            break  # for example, a change has deleted what another one needs
        _run(_graphs.look_at(_names()))
        yield text
        text = program.change()


def _in_child(function, *args):
    """Return the reader of what a forked child writes."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.close(reading)
            with open(writing, "wb") as file:
                function(file, *args)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    return open(reading, "rb")


def _describe(file):
    pickle.dump(look(), file)  # noqa: F821  # which `_run` has made


def _describe_all(file, seeds, n_changes):
    """Describe all objects of each program, in a child, as a description evaluates annotations."""
    for seed in seeds:
        found = []
        for _ in _steps(seed, n_changes):
            with _in_child(_describe) as child:
                found.append(pickle.load(child))
            os.wait()
        pickle.dump(found, file)
        file.flush()


def _called(pool):
    try:
        return pool.apply(look)  # noqa: F821  # which `_run` has made
    except Exception as error:
        notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("pool_party: in ")]
        return f"{error!r} {notes} {error.__cause__}"


def _compare(kind, seed, expected, n_changes):
    kind, _, method = kind.partition("-")
    steps = _steps(seed, n_changes)
    cells = [next(steps)]  # before the pool, since workers that are forked keep what a script has set by then
    with _ComposablePool(1, kind=kind, context=method or None) as pool:
        for description in expected:
            if difference := _walk.differences(description, _called(pool)):
                text = "\n# next cell\n".join(cells)
                print(f"DIFFERENT {kind} {method} {seed}\n{text}\n{difference}\n", flush=True)
                break
            cells += _itertools.islice(steps, 1)
    return len(cells)


def _main(kind, first, last, n_changes):
    seeds = range(int(first), int(last))
    with _in_child(_describe_all, seeds, int(n_changes)) as child:  # before there are any workers
        n = [_compare(kind, seed, pickle.load(child), int(n_changes)) for seed in seeds]
    print(f"{len(n)} programs, {sum(n)} calls", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[-4:])
