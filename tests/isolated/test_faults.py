"""Faults, each in a fresh process with a time-out: nothing hangs, and only one task is lost."""

import os
import pathlib
import signal
import sys
import sysconfig

import fresh
import gates
import pytest

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ("thread", "process", "interp")
METHODS = ("fork", "forkserver", "spawn")


def run(program, *args, **options):
    return fresh.run([HERE / program, *args], **options)


def check(program, *args, **options):
    return fresh.check(run(program, *args, **options))


# ---- workers that die ------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "fault", ["running", "idle", "reading", "writing", "in_initializer", "os_exit", "starting", "all_while_starting"]
)
def test_dead_worker(fault, method):
    check("killing.py", fault, method)


@pytest.mark.parametrize(
    "fault",
    [
        "running_with_all_others_queued_behind",
        "running_in_map",
        "amid_large_messages",
        "other_signals",
        "many_in_a_row",
        "while_closing",
        "error_callback",
    ],
)
def test_dead_worker_under_the_default_method(fault):
    check("killing.py", fault, "default")


def test_fork_servers_that_die_while_workers_start():
    check("killing.py", "fork_servers_while_starting", "forkserver")


def without_descriptors(case, kind):
    completed = run("no_descriptors.py", case, kind, options=("-W", "ignore::DeprecationWarning"))
    assert completed.returncode == 0, completed  # workers that cannot be started say so


def test_a_worker_dies_while_no_descriptor_is_left():
    without_descriptors("lost", "process")


def test_an_initializer_fails_while_no_descriptor_is_left(kind):
    without_descriptors("initializer", kind)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_every_worker_asks_itself_to_end(method):
    check("killing.py", "each_asks_itself_to_end", method)


def test_segfault():
    # Workers may report the crash on stderr, as faulthandler does.
    completed = run("killing.py", "segfault", "default")
    assert completed.returncode == 0, completed


def test_random_kills():
    check("stress_kill.py", "--tasks", 6_000, "--kills", 20, "--hang-s", 50)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
@pytest.mark.hang_s(600)
def test_two_hundred_random_kills_in_a_hundred_thousand_tasks(method):
    check("stress_kill.py", "--start-method", method, timeout=560)


# ---- Ctrl-C ----------------------------------------------------------------

INTERRUPTED_VERBS = {"map": 2, "apply": 1, "get": 1, "get with a time-out": 2, "imap": 2, "join": 1}  # tasks of each


def interrupt(how, verb, kind, gate):
    """Run the program until its tasks are at the gate, and then do what the terminal does on Ctrl-C."""
    process = fresh.start([HERE / "interrupting.py", how, verb, kind, gate.path])
    try:
        gate.wait_arrived(INTERRUPTED_VERBS[verb])  # all: an interrupted import would leave files open for -W error
        os.killpg(process.pid, signal.SIGINT)
        if how == "caught":
            line = process.stdout.readline()
            assert line == "caught\n", fresh.finish(process)
        gate.close()  # release what cannot be killed: threads and interpreters
    except BaseException:
        fresh.end(process)
        raise
    return finish_alone(process)


def finish_alone(process):
    """Finish a program that must leave no process of its session."""
    completed = fresh.finish(process)
    left = list(pids_of_session(process.pid))
    assert not left, f"processes left: {left}"
    return completed


def pids_of_session(session):
    """Return the live processes in the session of a finished process."""
    import probe

    gates.wait_until(lambda: not list(find(session, probe.is_gone)), "its session is empty", 10)
    return find(session, probe.is_gone)


def find(session, is_gone):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == session and not is_gone(int(name)):
                yield int(name)
        except ProcessLookupError:
            pass


def test_programs_react_to_signals_whoever_started_the_tests():
    """`( pytest & )` and nohup ignore signals. Then Ctrl-C would have no effect in all tests below."""
    numbers = fresh.IGNORED_BY_SHELLS
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        completed = fresh.run(["-c", "import pathlib; print(pathlib.Path('/proc/self/status').read_text())"])
        after = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    (ignored,) = (int(line.split()[1], 16) for line in completed.out.splitlines() if line.startswith("SigIgn:"))
    assert not [number.name for number in numbers if ignored >> number - 1 & 1]
    assert after == [signal.SIG_IGN] * len(numbers)


@pytest.mark.parametrize("verb", INTERRUPTED_VERBS)
def test_ctrl_c_is_one_keyboard_interrupt(kind, gate, verb):
    fresh.check(interrupt("caught", verb, kind, gate), "[0, 1, 4]")  # what follows "caught"


def test_uncaught_ctrl_c_prints_one_traceback(kind, gate):
    completed = interrupt("uncaught", "map", kind, gate)
    # Before 3.14 Python loses its note of an uncaught Ctrl-C if another interpreter runs code at the end.
    statuses = {-signal.SIGINT, 1} if kind == "interp" and sys.version_info < (3, 14) else {-signal.SIGINT}
    assert completed.returncode in statuses, completed
    assert completed.err.count("KeyboardInterrupt") == 1, completed
    assert completed.err.count("Traceback") == 1, completed


def interrupt_executor(gate, how, *args):
    """Send Ctrl-C while tasks of an executor run."""
    process = fresh.start([HERE / "interrupting.py", how, *args])
    try:
        gate.wait_arrived(1 if how == "swallowed" else 2)
        line = process.stdout.readline()
        assert line == "ready\n", fresh.finish(process)
        os.killpg(process.pid, signal.SIGINT)
    except BaseException:
        fresh.end(process)
        raise
    return finish_alone(process)


def error_of_interrupted(kind):
    return "KeyboardInterrupt" if kind == "process" else "SystemExit"


@pytest.mark.parametrize("where", ["within", "at the end"])
def test_ctrl_c_ends_an_executor_and_its_tasks(kind, gate, tmp_path, where):
    completed = interrupt_executor(gate, "left", kind, gate.path, tmp_path / "log", where)
    fresh.check(completed, " ".join([error_of_interrupted(kind)] * 2))


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_ends_an_executor_of_any_start_method(method, gate, tmp_path):
    completed = interrupt_executor(gate, "left", "process", gate.path, tmp_path / "log", "within", method)
    fresh.check(completed, "KeyboardInterrupt KeyboardInterrupt")


def test_uncaught_ctrl_c_ends_executors_without_a_block(kind, gate, tmp_path):
    completed = interrupt_executor(gate, "abandoned", kind, gate.path, tmp_path / "log")
    assert completed.err.count("KeyboardInterrupt") == completed.err.count("Traceback") == 1, completed
    assert completed.out in ("PoolTerminated\n", "KeyboardInterrupt\n"), completed
    assert (tmp_path / "log").read_text().split() == [error_of_interrupted(kind)] * 2


def test_ctrl_c_ends_tasks_that_go_on_after_it(gate, tmp_path):
    completed = interrupt_executor(gate, "swallowed", gate.path, tmp_path / "log")
    assert completed.returncode == -signal.SIGINT, completed


@pytest.mark.parametrize("verb", ["apply", "starmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_not_begun_goes_with_its_wait(kind, verb):
    check("interrupting.py", "withdrawn", verb, kind)


# Only each n-th place is tried, because starting an interpreter or a process takes long.
@pytest.mark.parametrize(("kind", "step"), [("thread", 1), ("process", 5), ("interp", 29)])
def test_ctrl_c_amid_the_pools_own_work(kind, step):
    check("interrupting.py", "at_each_place", kind, step)


@pytest.mark.parametrize(("kind", "step"), [("thread", 1), ("process", 3), ("interp", 11)])
def test_alarm_while_a_pool_opens(kind, step):
    check("interrupting.py", "at_each_place_of_an_opening", kind, step)


@pytest.mark.parametrize(("kind", "step"), [("thread", 3), ("process", 23), ("interp", 41)])
def test_ctrl_c_amid_a_pools_life(kind, step):
    # Warnings are no errors here: they concern a pool that nobody got hold of, or a file of an interrupted import.
    check("interrupting.py", "at_each_place_of_a_life", kind, step, options=("-W", "ignore::ResourceWarning"))


@pytest.mark.parametrize(("kind", "step"), [("thread", 1), ("process", 5), ("interp", 29)])
def test_alarm_amid_the_pools_own_work(kind, step):
    check("interrupting.py", "at_each_place", kind, step, "alarm")


@pytest.mark.parametrize(("kind", "step"), [("thread", 13), ("process", 61), ("interp", 97)])
def test_signal_handler_that_ends_the_pool(kind, step):
    check("interrupting.py", "ended_at_each_place", kind, step)


@pytest.mark.parametrize(("kind", "step"), [("thread", 5), ("process", 29), ("interp", 97)])
def test_signal_handler_that_ends_a_pool_which_is_looked_at(kind, step):
    check("interrupting.py", "ended_while_looked_at", kind, step)


# ---- fork ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fork", "fork_and_exit_normally"])
@pytest.mark.parametrize("kind", ["thread", "process", "interp"])
def test_fork_in_a_process_with_a_pool(kind, how):
    check("forking.py", how, kind)


@pytest.mark.parametrize("when", ["open", "task", "ending"])
def test_a_forked_child_has_no_interpreters(when):
    """CPython clears them there, and crashes if a thread of the parent was in one (CPython issue 139759)."""
    check("forking_amid.py", "check", when)


def test_a_fork_waits_for_interpreters_whose_tasks_were_interrupted():
    check("forking_amid.py", "at_once")


# ---- ends ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_while_the_program_s_end_waits_for_pools(kind):
    """CPython hangs or crashes if an interpreter outlives the main one."""
    completed = fresh.run([HERE / "interrupted_end.py", kind], options=("-W", "ignore::ResourceWarning"))
    assert completed.returncode == 0 and completed.out.split() == ["end", "interpreter"], completed
    assert "remaining" not in completed.err, completed


FORGOTTEN = (
    "idle",
    "never_used",
    "busy",
    "stuck",
    "in_a_cycle",
    "with_an_open_iterator",
    "closed_but_not_joined",
    "terminated_but_not_joined",
    "a_thread_waits",
    "daemon_threads_open_pools",
    "executor_idle",
    "sys_exit_in_with",
)


# The end of a program must wait for an interpreter inside a C function, a limit that docs/limits.md states.
FORGOTTEN_OF_KINDS = [(kind, how) for kind in KINDS for how in FORGOTTEN if (kind, how) != ("interp", "stuck")]


@pytest.mark.parametrize(("kind", "how"), FORGOTTEN_OF_KINDS)
def test_shutdown_with_a_forgotten_pool_is_quiet(kind, how, tmp_path, monkeypatch):
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    # With the default filters, which do not show the ResourceWarning of a forgotten pool.
    fresh.check(run("ending.py", how, kind, options=()), "")


@pytest.mark.skipif(sysconfig.get_config_var("Py_GIL_DISABLED"), reason="the finalizer is not called")
@pytest.mark.parametrize("kind", KINDS)
def test_a_finalizer_ends_a_forgotten_pool(kind):
    fresh.check(run("ending.py", "ended_by_a_finalizer", kind, options=()), "ended")


@pytest.mark.skipif(sysconfig.get_config_var("Py_GIL_DISABLED"), reason="nobody may look at a thread that runs")
@pytest.mark.parametrize("kind", ["thread", "interp"])
def test_a_worker_that_is_ended_amid_an_import_closes_the_file(kind, tmp_path):
    check("ending.py", "reading_a_module", kind, tmp_path / "module.py")


@pytest.mark.parametrize("kind", ["process", "interp"])
def test_the_end_of_a_pool_does_not_break_destructors_off(kind, tmp_path):
    check("ending.py", "while_a_task_is_cleared_away", kind, tmp_path / "gate")


@pytest.mark.parametrize("where", ["task", "initializer"])
@pytest.mark.parametrize("kind", ["thread", "interp"])
def test_an_interrupt_that_hits_a_destructor_is_not_lost(kind, where, tmp_path):
    check("ending.py", "amid_a_destructor", kind, tmp_path / "gate", where)


def test_pools_that_end_while_other_threads_use_them(kind):
    check("ending_amid.py", kind, "fork", 8, 3)


def test_shutdown_waits_for_an_executor(kind):
    fresh.check(run("ending.py", "executor_busy", kind, options=()), "last done 200 {332833500}")


def test_shutdown_after_calls_with_keywords_in_workers(kind):
    fresh.check(run("ending.py", "only_workers_pass_keywords", kind, options=()), "")


@pytest.mark.parametrize("method", METHODS)
def test_the_end_of_a_program_that_blocks_all_signals(method):
    check("ending.py", "with_blocked_signals", method)


def test_workers_die_with_their_parent(gate):
    import probe

    process = fresh.start([HERE / "ending.py", "parent_to_be_killed", "process", gate.path])
    try:
        gate.wait_arrived(2)
        pids = list(map(int, process.stdout.readline().split()))
        assert len(pids) == 3 and not any(map(probe.is_gone, pids))
        process.kill()
        process.wait(10)
        gates.wait_until(lambda: all(map(probe.is_gone, pids)), "workers are gone", 10)
        gates.wait_until(lambda: not list(find(process.pid, probe.is_gone)), "the session is empty", 10)
    finally:
        fresh.end(process)


# ---- starts ----------------------------------------------------------------


REPLACEMENTS = ("one_replacement_fails", "replacements_fail_for_a_while", "replacements_always_fail")


@pytest.mark.parametrize("how", ["one_is_held", "terminated", "forgotten", *REPLACEMENTS])
def test_worker_that_does_not_get_ready(kind, how):
    check("starting.py", how, kind, options=() if how == "forgotten" else fresh.STRICT)


# ---- nesting ---------------------------------------------------------------


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("how", ["nested", "forgotten_inside"])
def test_pool_inside_a_worker(outer, inner, how):
    check("nesting.py", how, outer, inner)


@pytest.mark.parametrize("outer", KINDS)
def test_pool_inside_an_executors_worker(outer):
    check("nesting.py", "nested_executor", outer, "thread")


# ---- many threads ----------------------------------------------------------


@pytest.mark.parametrize("how", ["eight_threads", "ended_under_eight_threads", "ten_pools_at_once"])
def test_pools_and_threads(kind, how):
    check("sharing.py", how, kind)


# ---- leaks -----------------------------------------------------------------

WAYS_TO_END = (
    "close_and_join",
    "with_block",
    "busy",
    "large_data",
    "errors",
    "replaced_workers",
    "executor",
    "bad_initializer",
)


# Three pools show what each one leaves; thirty show what is left occasionally.
several = pytest.mark.parametrize("n_pools", [3, pytest.param(30, marks=pytest.mark.slow)])


@several
@pytest.mark.parametrize("how", WAYS_TO_END)
def test_pools_leave_nothing(kind, how, n_pools):
    check("leaks.py", "check", how, kind, "default", n_pools, timeout=110)


@several
@pytest.mark.parametrize("how", ["never_joined", "forgotten"])
def test_pools_that_nobody_joined_leave_nothing(kind, how, n_pools):
    options = (*fresh.STRICT, "-W", "ignore::ResourceWarning")
    check("leaks.py", "check", how, kind, "default", n_pools, options=options, timeout=110)


@several
@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["close_and_join", "lost_workers"])
def test_process_pools_leave_nothing(method, how, n_pools):
    check("leaks.py", "check", how, "process", method, n_pools, timeout=110)


# ---- memory that values lie in ---------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        "results_that_are_kept",
        "results_that_are_written_to",
        "arguments_that_are_written_to",
        "many_results_are_kept",
        "shared_memory_is_freed",
        pytest.param(
            "bytes_that_never_arrive",
            marks=pytest.mark.skipif(
                bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
                reason="the allocator of free-threaded builds keeps some 200 MB, and more for each ended interpreter",
            ),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["process", "interp"])
def test_memory_goes_with_its_values(kind, how):
    check("memory.py", how, kind, timeout=100)


@pytest.mark.parametrize("kind", ["process", "interp"])
def test_memory_where_pages_are_larger(kind, pages_library):
    extra = {"LD_PRELOAD": str(pages_library), "POOL_PARTY_PAGE": "65536"}
    options = (*fresh.STRICT, "-W", "ignore::DeprecationWarning")  # of the fork, which is intended
    process = fresh.start([HERE / "memory.py", "blocks_of_all_sizes", kind], options=options, extra=extra)
    fresh.check(fresh.finish(process, timeout=100))


@pytest.mark.parametrize("how", ["idle_after_results", "idle_after_arguments"])
@pytest.mark.parametrize("kind", ["process", "interp"])
def test_an_idle_pool_gives_memory_back(kind, how):
    check("memory.py", how, kind, timeout=100)


@pytest.mark.parametrize(
    "how",
    [
        "arguments_of_dead_workers",
        "results_in_a_forked_child",
        "written_to_while_children_are_forked",
        "idle_after_a_fork",
        "worker_dies_with_a_handle",
        "worker_dies_in_the_next_task",
    ],
)
def test_memory_of_processes_that_die_or_fork(how):
    options = (*fresh.STRICT, "-W", "ignore::DeprecationWarning")  # of the fork, which is intended
    check("memory.py", how, "process", options=options, timeout=100)


# ---- idleness --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_idle_pool_uses_no_cpu(kind, policy):
    check("idling.py", "idle", kind, 5, policy)


@pytest.mark.slow
def test_idle_pool_with_a_gate_uses_no_cpu():
    check("idling.py", "idle", "process", 5, "exclusive")
