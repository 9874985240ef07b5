"""Runs random programs with the standard library's pool and with ours, `python differential.py kind`.

Both must give the same results wherever the standard library defines the result. A program is a list of statements on
one pool. Each statement yields a line with its result: the value, or the type and the arguments of the error, and the
callbacks that were called, with their arguments. The programs leave out statements with random results in the standard
library (which of several errors arrives first), statements that make it hang (SystemExit, raising callbacks), and
intended differences (docs/migrating.md).
"""

import argparse
import multiprocessing
import multiprocessing.pool
import os
import time

import tasks
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from watch import Journal, Watchdog

from pool_party import ComposablePool

KINDS = ("thread", "process", "interp")
STEP_S = 60
watchdog = None

# ---- random input ----------------------------------------------------------

NUMBERS = st.lists(st.integers(-3, 9), max_size=12)
GOOD = st.one_of(
    NUMBERS.map(lambda xs: [abs(x) * 2 for x in xs]), st.lists(st.sampled_from(["a", "b" * 50_000]), max_size=4)
)
ONE_ODD = NUMBERS.map(lambda xs: [2 * x for x in xs] + [7] + [2] * (len(xs) // 2))  # one failure: errors do not race
FUNCTIONS = st.sampled_from(["identity", "fail_if_odd", "make_lock"])
CHUNKS = st.sampled_from([None, 1, 2, 5])
SHAPES = st.sampled_from(["list", "tuple", "generator", "failing generator", "range"])
CALLBACKS = st.booleans()
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6)
WRONG_USES = st.sampled_from(["map None", "map 3", "imap 3", "imap chunk 0", "pickle", "join", "args"])
ERRORS = st.sampled_from(["ValueError", "PlainError", "AttributeCarryingError", "StopIteration"])

STATEMENTS = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from([1, 2, "x", None]), st.sampled_from(["identity", "fail_if_odd"])),
    st.tuples(st.just("apply_async"), st.sampled_from([1, 2, (), "lock"]), FUNCTIONS, CALLBACKS),
    st.tuples(st.just("keywords"), st.integers(0, 3), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("map"), ONE_ODD | GOOD, SHAPES, CHUNKS),
    st.tuples(st.just("map_async"), ONE_ODD | GOOD, SHAPES, CHUNKS, CALLBACKS),
    st.tuples(st.just("starmap"), PAIRS, SHAPES, CHUNKS),
    st.tuples(st.just("starmap_async"), st.lists(st.sampled_from([(1, 2)]), max_size=3), SHAPES, CHUNKS, CALLBACKS),
    st.tuples(st.just("starmap_odd"), st.sampled_from([[1, 2], [(1,)], [(1, 2, 3)], ["ab"]])),
    st.tuples(st.just("imap"), ONE_ODD | GOOD, SHAPES, st.sampled_from([1, 1, 2, 5])),
    st.tuples(st.just("imap_unordered"), ONE_ODD | GOOD, SHAPES, st.sampled_from([1, 1, 2])),
    st.tuples(st.just("not ready")),
    st.tuples(st.just("time out"), st.sampled_from(["get", "next", "wait"])),
    st.tuples(st.just("wrong use"), WRONG_USES),
    st.tuples(st.just("raise"), ERRORS),
)  # fmt: skip
ENDINGS = st.sampled_from(["close", "terminate", "with", "close twice", "close, terminate", "terminate, close"])

# ---- running programs ------------------------------------------------------


def shaped(items, shape):
    """Return the input in the shape that the program uses."""
    if shape == "generator":
        return iter(items)
    if shape == "failing generator":
        return _failing(items)
    if shape == "range":
        return range(0, 2 * len(items), 2)
    return tuple(items) if shape == "tuple" else items


def _failing(items):
    yield from items
    raise LookupError("the input failed")


def seen(function, *args, **kwargs):
    """Return a value or an error in a form that can be compared."""
    try:
        return "value", plain(function(*args, **kwargs))
    except Exception as error:
        return error_seen(error)


def error_seen(error):
    if isinstance(error, multiprocessing.pool.MaybeEncodingError):
        return "error", "MaybeEncodingError"
    if isinstance(error, ValueError):  # our errors are subclasses of it, with longer messages
        return "error", "ValueError", str(error) if type(error) is ValueError and "odd" in str(error) else ""
    args = () if isinstance(error, (TypeError, multiprocessing.TimeoutError)) else plain(error.args)
    return "error", type(error).__name__, args


def plain(value):
    return "a lock" if hasattr(value, "acquire") else value


def with_callbacks(start, *args, wanted):
    """Start a call, wait for it, and return the callbacks that were called. They run before get returns."""
    calls = []
    callbacks = {
        "callback": lambda value: calls.append(("callback", plain(value))),
        "error_callback": lambda error: calls.append(("error_callback", error_seen(error))),
    }
    try:
        result = start(*args, **(callbacks if wanted else {}))
    except Exception as error:
        return "at once", error_seen(error)
    outcome = seen(result.get)
    return outcome, result.ready(), result.successful(), calls


def iterate(iterator, chunk):
    """Return the items of an iterator. After an error in a chunk of several the standard library yields no more."""
    outcomes = []
    while True:
        outcome = seen(next, iterator)
        outcomes.append(outcome)
        if outcome[:2] == ("error", "StopIteration") or (outcome[0] == "error" and chunk > 1):
            return outcomes


def run_statement(pool, statement, hold):
    verb, *args = statement
    if verb == "apply":
        return seen(pool.apply, getattr(tasks, args[1]), (args[0],))
    if verb == "apply_async":
        argument = tasks.make_lock() if args[0] == "lock" else args[0]
        return with_callbacks(pool.apply_async, getattr(tasks, args[1]), (argument,), wanted=args[2])
    if verb == "keywords":
        return seen(pool.apply, tasks.affine, (args[0],), {args[1]: 5})
    if verb in ("map", "map_async", "starmap", "starmap_async"):
        function = (
            tasks.multiply if verb.startswith("star") else tasks.fail_if_odd if all_numbers(args[0]) else tasks.identity
        )
        shape = "list" if verb.startswith("star") and args[1] == "range" else args[1]
        call = function, shaped(args[0], shape), args[2]
        return (
            with_callbacks(getattr(pool, verb), *call, wanted=args[3])
            if "async" in verb
            else seen(getattr(pool, verb), *call)
        )
    if verb == "starmap_odd":
        return seen(pool.starmap, tasks.multiply, args[0])
    if verb in ("imap", "imap_unordered"):
        return run_iterator(pool, verb, *args)
    if verb == "raise":
        return seen(pool.apply, tasks.raise_named, (args[0], "a message")) if args[0] != "StopIteration" else (
            with_callbacks(pool.apply_async, tasks.raise_named, (args[0], 3), wanted=True))  # fmt: skip
    if verb == "not ready":
        with hold() as path:
            result = pool.apply_async(tasks.pass_gate, (path, 5))
            early = result.ready(), seen(result.successful), result.wait(0.001), result.ready()
        return early, result.get(), result.successful()
    if verb == "time out":
        return run_timed(pool, hold, args[0])
    return run_wrong(pool, args[0])


def all_numbers(items):
    return all(isinstance(x, int) for x in items)


def run_iterator(pool, verb, items, shape, chunk):
    function = tasks.fail_if_odd if all_numbers(items) else tasks.identity
    source = shaped(items, shape)
    if shape == "failing generator" and chunk > 1:
        source = shaped(items, "generator")  # with larger chunks the place of the error depends on the chunk size
    outcomes = iterate(getattr(pool, verb)(function, source, chunk), chunk)
    if verb == "imap":
        return outcomes
    has_failed = any(outcome[0] == "error" for outcome in outcomes[:-1])
    return (
        "an error" if chunk > 1 and (has_failed or outcomes[-1][1] != "StopIteration") else sorted(map(repr, outcomes))
    )


def run_timed(pool, hold, how):
    with hold() as path:
        if how == "next":
            iterator = pool.imap(tasks.pass_gate, [path])
            early = seen(iterator.next, 0.001)
        else:
            result = pool.apply_async(tasks.pass_gate, (path, 5))
            early = seen(getattr(result, how), 0.001)
    return early, seen(next, iterator) if how == "next" else seen(result.get)


def run_wrong(pool, what):
    if what == "map None":
        return seen(pool.map, abs, None)
    if what == "map 3":
        return seen(pool.map_async, abs, 3)
    if what == "imap 3":
        return seen(pool.imap, abs, 3)[:2]
    if what == "imap chunk 0":
        return seen(pool.imap, abs, [1], 0)
    if what == "pickle":
        return seen(pool.__reduce__)[:2]
    if what == "args":
        return seen(pool.apply, abs, (1, 2))
    return seen(pool.join)


def end(pool, how):
    lines = []
    if how == "with":
        with pool:
            pass
    else:
        for verb in how.replace(" twice", ", close").split(", "):
            lines.append(seen(getattr(pool, verb)))
    lines.append(seen(pool.join))
    lines.append(seen(pool.join))
    for verb in ("map", "imap", "starmap_async"):
        lines.append(seen(getattr(pool, verb), abs, [1]))
    lines.append(seen(pool.apply_async, abs, (1,)))
    lines.append(seen(pool.__enter__))
    return lines


def transcript(pool, statements, ending):
    """Return everything that a program sees, line by line, each with its statement."""
    import gates

    def hold():
        return _Held(gates.Gate(os.path.join(tasks_folder, f"gate-{time.monotonic_ns()}")))

    lines = [(statement, run_statement(pool, statement, hold)) for statement in statements]
    lines.append((ending, end(pool, ending)))
    return lines


class _Held:
    def __init__(self, gate):
        self._gate = gate

    def __enter__(self):
        return self._gate.path

    def __exit__(self, *exc_info):
        self._gate.close()


tasks_folder = None


def reference(kind):
    return multiprocessing.pool.ThreadPool(2) if kind == "thread" else multiprocessing.get_context("fork").Pool(2)


def check(kind, statements, ending):
    watchdog.allow(STEP_S, f"{statements} {ending}")
    theirs = transcript(reference(kind), statements, ending)
    ours = transcript(ComposablePool(2, kind=kind, context="fork" if kind == "process" else None), statements, ending)
    for (statement, expected), (_, got) in zip(theirs, ours, strict=True):
        if expected != got:
            note(f"{statement}:\n  multiprocessing: {expected!r}\n  pool_party:      {got!r}"[:2_000])
            raise AssertionError(f"{statement} differs: multiprocessing {expected!r}, pool_party {got!r}"[:1_500])


def main():
    global watchdog, tasks_folder
    import tempfile

    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--examples", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument(
        "--profile", choices=("fixed", "random"), default=os.environ.get("POOL_PARTY_MODEL_PROFILE", "fixed")
    )
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    watchdog = Watchdog(Journal())
    is_random = options.profile == "random"
    deadline = time.monotonic() + options.seconds
    number = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    with tempfile.TemporaryDirectory(prefix="pool-party-model-") as tasks_folder:
        while True:
            test = given(st.lists(STATEMENTS, min_size=1, max_size=8), ENDINGS)(
                lambda statements, ending: check(options.kind, statements, ending)
            )
            if is_random:
                print(f"seed {number}", flush=True)
                test = seed(number)(test)
            settings(
                max_examples=options.examples, deadline=None, database=None, derandomize=not is_random, print_blob=True,
                report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )(test)()  # fmt: skip
            number += 1
            if not is_random or time.monotonic() > deadline:
                break
    watchdog.rest()


if __name__ == "__main__":
    main()
