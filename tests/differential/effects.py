"""Effects of a call on its caller's objects and their identity. Each function examines a pool."""

import builtins
import copyreg
import gc
import weakref

N = 6


class Counted:
    """Counts in the caller how often it is reduced, and with which protocols."""

    n_reduced = 0
    protocols = set()  # noqa: RUF012 # shared by all instances

    def __reduce_ex__(self, protocol):
        Counted.n_reduced += 1
        Counted.protocols.add(protocol)
        return Counted, ()


class Remembers:
    def __init__(self):
        self.n_states = 0

    def __getstate__(self):
        self.n_states += 1
        return vars(self).copy()


class Registered:
    pass


def _reduce_registered(value):
    value.was_reduced = True
    return list, ((1, 2),)


copyreg.pickle(Registered, _reduce_registered)


class Plain:
    pass


_seen = []


def identity(value):
    return value


def change(value):
    value.append("changed")
    return value


def first_seen(value):
    """Return the number of the first call that gave this worker the same object."""
    for number, other in enumerate(_seen):
        if other is value:
            return number
    _seen.append(value)
    return len(_seen) - 1


def first_seen_of_two(value, other):
    return first_seen(value), first_seen(other)


def forget():
    _seen.clear()


_result = ["the same"]


def same_result(_):
    return _result


def fail(value):
    raise KeyError(value)


def fail_at_three(value):
    if value == 3:
        raise KeyError(value)
    return value


def raise_at_three():
    for i in range(N):
        if i == 3:
            raise ZeroDivisionError("the input")
        yield i


def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__, error.args


def reduced(pool):
    """Each value must be reduced once."""
    counts = []
    for call in (
        lambda: pool.apply(identity, (Counted(),)),
        lambda: pool.map(identity, [Counted() for _ in range(N)], 2),
        lambda: pool.starmap(identity, [(Counted(),) for _ in range(N)]),
        lambda: list(pool.imap(identity, [Counted() for _ in range(N)])),
        lambda: list(pool.imap_unordered(identity, iter([Counted() for _ in range(N)]), 2)),
        lambda: pool.map(identity, [Counted()] * N, N),
        lambda: pool.map(identity, [Counted()] * N, 1),
        lambda: pool.apply(identity, kwds={"value": Counted()}),
        lambda: pool.apply(identity, ([Counted(), {"key": Counted()}],)),
    ):
        Counted.n_reduced = 0
        call()
        counts.append(Counted.n_reduced)
    return counts, sorted(Counted.protocols)


def states(pool):
    value = Remembers()
    back = pool.apply(identity, (value,))
    return value.n_states, back.n_states, pool.map(identity, [value] * 3, 3)[2].n_states, value.n_states


def registered(pool):
    value = Registered()
    return pool.apply(identity, ([value],)), vars(value)


def changed_arguments(pool):
    value = [1]
    values = [[i] for i in range(3)]
    return pool.apply(change, (value,)), value, pool.map(change, values), values, pool.apply(change, ([],)), value


def iterators(pool):
    """An input must be read to its end, once and in order, and not after it has failed."""
    read, observed = [], []

    def inputs():
        for i in range(N):
            read.append(i)
            yield i

    for call in (
        lambda: pool.map(identity, inputs()),
        lambda: pool.starmap(identity, ((i,) for i in inputs())),
        lambda: list(pool.imap(identity, inputs())),
        lambda: sorted(pool.imap_unordered(identity, inputs(), 2)),
        lambda: pool.map(identity, []),
        lambda: list(pool.imap(identity, [])),
    ):
        read.clear()
        observed.append((call(), read.copy()))
    return observed


def failing_inputs(pool):
    return [
        error_of(lambda: pool.map(identity, raise_at_three())),
        error_of(lambda: pool.starmap(identity, ((i,) for i in raise_at_three()))),
        error_of(lambda: list(pool.imap(identity, raise_at_three()))),
        error_of(lambda: list(pool.imap_unordered(identity, raise_at_three(), 1))),
        error_of(lambda: pool.map(identity, 5)),
        error_of(lambda: pool.imap(identity, [1], 0)),
        error_of(lambda: pool.apply(identity, (), {"no": 1})),
    ]


def bad_arguments(pool):
    return [
        error_of(lambda: list(pool.imap(identity, 5))),
        error_of(lambda: pool.starmap(identity, [5])),
        error_of(lambda: pool.map(identity, [1], 0)),
        error_of(lambda: pool.apply(identity, 5)),
        error_of(lambda: pool.apply(5)),
    ]


def results_of_failures(pool):
    """Return the results of a call with a failing item. An iterator continues after it."""
    found = []
    for iterator in (pool.imap(fail_at_three, range(N)), pool.imap(fail_at_three, range(N), 1)):
        for _ in range(N + 2):
            try:
                found.append(iterator.next())
            except StopIteration:
                found.append("end")
            except KeyError as error:
                found.append(repr(error))
    asked = pool.map_async(fail_at_three, range(N))
    asked.wait()
    return found, asked.ready(), asked.successful(), error_of(asked.get), error_of(asked.get)


def between_arguments(pool):
    """One object as several arguments, in several items of a chunk, and in several calls."""
    value, observed = ["shared"], []
    for call in (
        lambda: pool.starmap(first_seen_of_two, [(value, value)] * 4, 2),
        lambda: pool.map(first_seen, [value] * 4, 4),
        lambda: pool.map(first_seen, [value] * 4, 2),
        lambda: pool.map(first_seen, [value] * 4, 1),
        lambda: list(pool.imap(first_seen, [value] * 4, 2)),
        lambda: [pool.apply(first_seen, (value,)) for _ in range(3)],
        lambda: pool.apply(first_seen_of_two, (value,), {"other": value}),
    ):
        pool.apply(forget)
        observed.append(call())
    return observed


def between_results(pool):
    """One object as the result of several items."""
    observed = []
    for results in (
        pool.map(same_result, range(4), 4),
        pool.map(same_result, range(4), 2),
        list(pool.imap(same_result, range(4), 2)),
        pool.map(identity, [_result] * 4, 4),
    ):
        observed.append([[a is b for a in results] for b in results])
    return observed


def results_again(pool):
    """A result must be the same object each time, also in a callback. So must an error."""
    given = []
    done = pool.apply_async(identity, ([1],), callback=given.append)
    mapped = pool.map_async(identity, [1, 2], callback=given.append)
    failed = pool.apply_async(fail, (1,), error_callback=given.append)
    first, second, third = done.get(), mapped.get(), None
    try:
        failed.get()
    except KeyError as error:
        third = error
    again = error_of(failed.get)
    return first is done.get() is given[0], second is mapped.get() is given[1], third is given[2], again, len(given)


class Lines(list):
    """A list of another type."""


def large(container=list):
    """Return a value whose pickle is large, so that tasks of a call share it."""
    return container([str(i), "-" * 500] for i in range(600))


def change_part(values, _=None):
    """Change a large value. Return how many changes it has had, and whether its parts are the ones named beside it."""
    value, *beside = values if isinstance(values, tuple) else (values,)
    value[0].append("changed")
    inner = beside[0]["inner"] if beside and isinstance(beside[0], dict) else value
    return len(value[0]) - 2, type(value).__name__, [part is value[1] for part in beside], inner is value


def changed_large_arguments(pool):
    """Large objects that all tasks of a call name, and that tasks change."""
    observed = []
    for make in (large, lambda: large(Lines)):
        value = make()
        for chunk in (1, 2, 3):
            observed.append(pool.map(change_part, [value] * N, chunk))
            observed.append(pool.map(change_part, [(value, value[1])] * N, chunk))
            observed.append(pool.starmap(change_part, [((value, {"inner": value}), i) for i in range(N)], chunk))
            observed.append(list(pool.imap(change_part, [value] * N, chunk)))
        value.append(value)  # recursive
        observed.append(pool.starmap(change_part, [((value, value[1], value[2]), i) for i in range(N)], 1))
        observed.append(len(value[0]))
    return observed


def length_of_first(value):
    return len(value[0])


def changed_between_items(pool):
    """An input that changes one large object before each item."""

    def inputs():
        value = large()
        for _ in range(N):
            value[0].append("changed")
            yield value

    return list(pool.imap(length_of_first, inputs()))


class Costly(Counted):
    def __reduce_ex__(self, protocol):
        Counted.n_reduced += 1
        return list, (large(),)


def reduced_large(pool):
    """A large object must be reduced at most once for each chunk that names it."""
    counts = []
    for chunk in (1, 2):
        Counted.n_reduced = 0
        pool.map(length_of_first, [Costly()] * N, chunk)
        counts.append(Counted.n_reduced <= N // chunk)
    return counts


def types_of_results(pool):
    results = (
        pool.map(identity, range(2)),
        pool.starmap(identity, [(1,)]),
        pool.apply_async(identity, (1,)).get(5),
        iter(pool.imap(identity, [1])) is not None,
    )
    return [type(result).__name__ for result in results]


def let_go(pool):
    """No object that was sent or received may be kept once a call is over."""
    references = _send_and_receive(pool)
    pool.apply(abs, (1,))
    gc.collect()
    return [reference() for reference in references]


def _send_and_receive(pool):
    values = [Plain() for _ in range(N)]
    pool.map(identity, values)
    pool.apply(identity, (values[0],))
    list(pool.imap(identity, values))
    error_of(lambda: pool.map(fail, values[:1]))
    return [weakref.ref(value) for value in (*values, pool.apply(Plain))]


def leave(name):
    raise getattr(builtins, name)(name)


def tasks_that_leave(pool):
    """Return the outcomes of tasks that raise a BaseException, once the pool's only worker has run a later task."""
    names = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
    results = [pool.apply_async(leave, (name,)) for name in names]
    pool.apply(abs, (1,))
    return [result.ready() and _raised(result) for result in results]


def _raised(result):
    try:
        return result.get()
    except BaseException as error:
        return type(error).__name__, error.args


EFFECTS = (
    reduced,
    states,
    registered,
    changed_arguments,
    changed_large_arguments,
    changed_between_items,
    reduced_large,
    iterators,
    failing_inputs,
    bad_arguments,
    results_of_failures,
    between_arguments,
    between_results,
    results_again,
    types_of_results,
    let_go,
    tasks_that_leave,
)
