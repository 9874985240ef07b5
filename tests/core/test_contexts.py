"""The caller's context variables in tasks: `context=True` in threads, `propagate=` in every kind."""

import contextvars
import functools
import sys

import fresh
import gates
import pytest
import talking
from talking import request, tenant

from pool_party import ComposablePool, ThreadPool
from pool_party._core.contexts import choose_carrier

TIMEOUT_S = 60


@pytest.fixture
def in_context():
    """Run the test's calls in a context of its own, which ends with the test."""
    tokens = [request.set("mine"), tenant.set("me")]
    yield
    request.reset(tokens[0])
    tenant.reset(tokens[1])


def finish(pool):
    pool.close()
    pool.join(TIMEOUT_S)


def check_all_verbs(pool, expected):
    with pool:
        assert pool.apply(talking.get_variables) == expected
        assert pool.apply(talking.get_variables, (1,), {"x": 2}) == (1, 2, *expected)
        assert pool.apply(functools.partial(talking.get_variables, 1, x=3), (2,)) == (1, 2, 3, *expected)
        assert pool.map(talking.get_variables, [1, 2, 3], 2) == [(n, *expected) for n in (1, 2, 3)]
        assert pool.starmap(talking.get_variables, [(1, 2)]) == [(1, 2, *expected)]
        assert list(pool.imap(talking.get_variables, [1, 2], 2)) == [(n, *expected) for n in (1, 2)]
        assert list(pool.imap(talking.get_variables, iter([1]))) == [(1, *expected)]
        assert pool.submit(talking.get_variables).result(TIMEOUT_S) == expected


# ---- threads ----


def test_threads_run_in_a_copy_of_the_callers_context(in_context):
    check_all_verbs(ComposablePool(2, kind="thread", context=True), ("mine", "me"))


def test_pools_of_threads(in_context):
    check_all_verbs(ThreadPool(1, context=True), ("mine", "me"))


def test_each_task_has_a_copy_of_its_own(make_pool, in_context):
    pool = make_pool(1, kind="thread", context=True)
    assert pool.map(talking.set_and_get, ["a", "b", "c"], 3) == [("mine", x) for x in "abc"]
    assert request.get() == "mine"


def test_the_context_is_that_of_the_call(make_pool, gate, in_context):
    pool = make_pool(1, kind="thread", context=True)
    held = pool.apply_async(talking.log_after_gate, (gate.path, "later"))
    gate.wait_arrived()
    result = pool.apply_async(talking.get_variables)
    token = request.set("changed")
    gate.release()
    held.get(TIMEOUT_S)
    assert result.get(TIMEOUT_S) == ("mine", "me")
    request.reset(token)


def test_executors(make_executor, in_context):
    executor = make_executor(1, kind="thread", context=True)
    assert executor.submit(talking.get_variables).result(TIMEOUT_S) == ("mine", "me")
    assert list(executor.map(talking.get_variables, [1])) == [(1, "mine", "me")]


def test_one_call_of_threads_runs_in_a_copy(make_pool, make_executor, in_context):
    """`context=` is an option of calls, too. Alone it does not make the supervisor start."""
    pool = make_pool(2, kind="thread", context=False)
    check_all_verbs(pool.options(context=True), ("mine", "me"))
    pool = make_pool(2, kind="thread", context=False)
    assert pool.map(talking.get_variables, [1], context=True) == [(1, "mine", "me")]
    assert list(pool.imap(talking.get_variables, iter([1]), context=True)) == [(1, "mine", "me")]
    assert pool.apply(talking.get_variables) == (None, "nobody")
    assert pool._engine._supervisor is None
    assert pool.apply(talking.get_variables, timeout_s=TIMEOUT_S, context=True) == ("mine", "me")
    executor = make_executor(1, kind="thread", context=False)
    assert executor.options(context=True).submit(talking.get_variables).result(TIMEOUT_S) == ("mine", "me")
    assert list(executor.map(talking.get_variables, [1], context=True)) == [(1, "mine", "me")]


@pytest.mark.parametrize("how", [{"context": True}, {"propagate": [request]}])
def test_one_call_of_threads_runs_in_their_own_context(make_pool, in_context, how):
    pool = make_pool(1, kind="thread", **how)
    assert pool.apply(talking.get_variables, context=False) == (None, "nobody")
    assert pool.options(context=False).options(context=None).apply(talking.get_variables)[0] == "mine"


def test_one_call_of_another_kind_cannot_run_in_a_copy(make_pool, remote_kind):
    pool = make_pool(1, kind=remote_kind, propagate=[request])
    with pytest.raises(ValueError, match=f"context=True is for kind='thread', not '{remote_kind}'"):
        pool.options(context=True)
    with pytest.raises(TypeError, match="context must be True, False or None, not 'fork'"):
        pool.apply(talking.get_variables, context="fork")
    token = request.set("mine")
    assert pool.apply(talking.get_variables, context=False) == (None, "nobody")
    assert pool.apply(talking.get_variables) == ("mine", "nobody")
    request.reset(token)


def test_without_it_threads_have_a_context_of_their_own(make_pool, in_context):
    pool = make_pool(1, kind="thread", context=False)
    assert pool.apply(talking.get_variables) == (None, "nobody")


DEFAULT = """
import threading
import talking
from pool_party import ComposablePool

talking.request.set("mine")
found = []
thread = threading.Thread(target=lambda: found.append(talking.get_variables()))
thread.start()
thread.join()
with ComposablePool(1, kind="thread") as pool:
    assert [pool.apply(talking.get_variables)] == found, found
print(found[0][0])
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="the option is new in Python 3.14")
@pytest.mark.parametrize("value", ["0", "1"])
def test_the_default_is_that_of_threads(value):
    completed = fresh.run(["-c", DEFAULT], options=(*fresh.STRICT, "-X", f"thread_inherit_context={value}"))
    fresh.check(completed, "mine" if value == "1" else "None")


def test_the_default_here(make_pool, in_context):
    inherits = getattr(sys.flags, "thread_inherit_context", False)
    pool = make_pool(1, kind="thread")
    assert pool.apply(talking.get_variables) == (("mine", "me") if inherits else (None, "nobody"))


# ---- chosen variables ----


@pytest.mark.parametrize("variables", [[request, tenant], ["talking:request", "talking:tenant"]])
def test_chosen_variables(kind, in_context, variables):
    check_all_verbs(ComposablePool(2, kind=kind, context=False, propagate=variables), ("mine", "me"))


def test_processes_of_every_start_method(make_pool, context, in_context):
    pool = make_pool(1, kind="process", context=context, propagate=[request])
    assert pool.apply(talking.get_variables) == ("mine", "nobody" if context.get_start_method() != "fork" else "me")


def test_a_variable_without_a_value_has_none_in_the_task(make_pool, kind):
    pool = make_pool(1, kind=kind, context=False, propagate=[request])
    token = request.set("mine")
    assert pool.apply(talking.get_variables) == ("mine", "nobody")
    request.reset(token)
    assert pool.apply(talking.get_variables) == (None, "nobody")


def test_what_a_task_sets_stays_in_it(make_pool, kind, in_context):
    pool = make_pool(1, kind=kind, context=False, propagate=[request])
    assert pool.map(talking.set_and_get, ["a", "b"], 1) == [("mine", "a"), ("mine", "b")]
    assert request.get() == "mine"


def test_attributes_of_classes(make_pool, kind):
    pool = make_pool(1, kind=kind, context=False, propagate=["talking:Holder.variable"])
    contextvars.copy_context().run(lambda: check_held(pool))


def check_held(pool):
    talking.Holder.variable.set([1, 2])
    assert pool.apply(talking.get_held) == [1, 2]


def test_a_value_that_does_not_pickle_is_the_calls_error(make_pool, remote_kind):
    pool = make_pool(1, kind=remote_kind, propagate=[request])
    token = request.set(talking.Unpicklable())
    with pytest.raises(TypeError, match="never"):
        pool.apply(talking.get_variables)
    request.reset(token)
    assert pool.apply(talking.get_variables) == (None, "nobody")


def test_callers_in_different_contexts(make_pool, kind):
    pool = make_pool(2, kind=kind, context=False, propagate=[request])

    def call(value):
        request.set(value)
        return [pool.apply(talking.get_variables)[0] for _ in range(20)]

    threads = [gates.call_in_thread(call, str(n)) for n in range(4)]
    assert [thread.result(TIMEOUT_S) for thread in threads] == [[str(n)] * 20 for n in range(4)]


MAIN = """
import contextvars
from pool_party import ComposablePool

request = contextvars.ContextVar("request", default="nothing")

def work(n):
    return f"{n}-{request.get()}"

if __name__ == "__main__":
    for kind in ("thread", "process", "interp"):
        with ComposablePool(2, kind=kind, context=False, propagate=[request]) as pool:
            print(*pool.map(work, [1]))
            token = request.set(kind)
            print(*pool.map(work, [1, 2]), pool.apply(lambda: request.get()))
            request.reset(token)
"""
PRINTED = " ".join(f"1-nothing 1-{kind} 2-{kind} {kind}" for kind in ("thread", "process", "interp"))


@pytest.mark.parametrize("is_session", [False, True])
def test_variables_of_main(tmp_path, is_session):
    """Interpreters and workers of a session do not import the program's file, so they make the variable."""
    (tmp_path / "program.py").write_text(MAIN)
    args, text = (["-"], MAIN) if is_session else ([tmp_path / "program.py"], None)
    fresh.check(fresh.run(args, stdin_text=text), PRINTED)


# ---- wrong options ----


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        (request, TypeError, "must be a list"),
        ("talking:request", TypeError, "must be a list"),
        (["request"], ValueError, "'module:name', not 'request'"),
        (["talking:log"], ValueError, "no context variable 'log' in the module 'talking'"),
        ([3], TypeError, "not 3"),
        ([contextvars.ContextVar("local")], ValueError, "is not a global of a module"),
    ],
)
def test_wrong_variables(kind, variables, error, message):
    with pytest.raises(error, match=message):
        ComposablePool(1, kind=kind, propagate=variables)


def test_context_true_is_for_threads(remote_kind):
    with pytest.raises(ValueError, match=f"context=True is for kind='thread', not '{remote_kind}'"):
        ComposablePool(1, kind=remote_kind, context=True)


def test_pools_without_these_options_wrap_nothing(make_pool, remote_kind):
    assert make_pool(1, kind=remote_kind)._engine._carrier is None
    assert choose_carrier(remote_kind, None, ()) is None


def test_the_multiprocessing_context_stays_the_default(make_pool):
    import multiprocessing

    assert make_pool(1, kind="thread", context=True)._ctx is multiprocessing.get_context()
