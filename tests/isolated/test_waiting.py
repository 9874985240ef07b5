"""A thread that the end of a pool needs never waits for it, whatever runs there: tasks, callbacks, finalizers."""

import pathlib
import sysconfig

import fresh
import pytest

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ("thread", "process", "interp")


def check(case, kind, out=None):
    # Children are forked on purpose, and pools are left to their finalizers.
    options = ("-W", "ignore::DeprecationWarning", "-W", "ignore::ResourceWarning")
    fresh.check(fresh.run([HERE / "waiting.py", case, kind], options=options), out)


@pytest.mark.parametrize("where", ["background", "supervisor", "callbacks", "lock"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_finalizer_in_a_thread_of_the_pool_does_not_wait(kind, where):
    check(where, kind, "refused elsewhere")


@pytest.mark.parametrize("kind", KINDS)
def test_a_finalizer_amid_a_step_of_threading_does_not_wait(kind):
    check("starting", kind, "refused here")


def test_a_finalizer_in_the_balancer_does_not_wait():
    check("balancer", "process", "refused elsewhere")


def test_the_owner_of_a_pool_goes_with_its_last_task():
    # Without a GIL the thread that made an object may end it: it made the bound method, which refers to the owner.
    is_free = sysconfig.get_config_var("Py_GIL_DISABLED")
    check("bound_method", "thread", None if is_free else "refused elsewhere " * 3)


def test_the_owner_of_a_pool_goes_with_a_call_that_is_cancelled():
    check("cancelled", "thread", "ended here")


def test_a_task_ends_its_own_pool():
    names = ("join", "ajoin", "shutdown", "ashutdown", "__exit__", "__aexit__")
    check("task", "thread", "".join(f"{name} refused " for name in names))


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_of_imap_ends_the_pool(kind):
    check("inputs", kind, "refused")


@pytest.mark.parametrize("kind", ["process", "interp"])
@pytest.mark.parametrize("case", ["pickling", "unpickling"])
def test_pickling_of_a_call_ends_its_pool(case, kind):
    check(case, kind, "refused")


def test_tasks_of_two_pools_wait_for_each_others_pools():
    check("cross", "thread", "refused")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_ends_pools_that_it_has_opened(kind):
    check("nested", kind, "ended")


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_forked_child_is_told_whose_pool_it_is(kind):
    check("child", kind)


# ---- a storm of finalizers ----


def storm(kinds, first, n_programs, timeout):
    completed = fresh.run([HERE / "finalizing.py", kinds, first, n_programs], options=("-W", "ignore"), timeout=timeout)
    assert completed.returncode == 0 and completed.err == "" and "finalizers" in completed.out, completed


@pytest.mark.hang_s(400)
@pytest.mark.parametrize("kinds", ["thread", "process", "interp", "thread,process,interp"])
def test_finalizers_use_pools_at_any_moment(kinds):
    storm(kinds, 1, 20 if kinds == "thread" else 5, 300)


@pytest.mark.slow
@pytest.mark.hang_s(2000)
@pytest.mark.parametrize("kinds", ["thread", "thread,process,interp"])
def test_finalizers_use_pools_at_any_moment_for_long(kinds):
    storm(kinds, 1000, 500 if kinds == "thread" else 100, 1900)
