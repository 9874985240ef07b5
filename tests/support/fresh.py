"""Run Python programs in fresh processes, with a time-out that shows where they hang."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pool_party

TESTS = pathlib.Path(__file__).resolve().parents[1]
# Warnings are errors in them as well, except for the warning about intended forks (see conftest.py).
STRICT = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
# Signals that a shell ignores for background commands, as nohup does. A program would inherit that.
IGNORED_BY_SHELLS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class Completed(str):
    """A program's exit status and output. pytest shows the message of an assertion whole only if it is a string."""

    def __new__(cls, returncode, out, err):
        self = super().__new__(cls, f"exit status {returncode}\n--- stdout\n{out}\n--- stderr\n{err}")
        self.returncode, self.out, self.err = returncode, out, err
        return self


def environment():
    """An environment in which programs import the pool_party under test, and the tests' own modules."""
    package = pathlib.Path(pool_party.__file__).resolve().parents[1]
    paths = [*map(str, (TESTS / "isolated", TESTS / "support", package)), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextlib.contextmanager
def default_signals():
    """Give programs that are started here default signal handling, as under a terminal, even if the tests ignore
    signals.

    Handled signals are reset to their default by `exec`, but ignored ones would stay ignored.
    """
    ignored = [number for number in IGNORED_BY_SHELLS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _do_nothing)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def _do_nothing(number, frame):
    """A handler for the moment of a start. Afterwards the tests ignore the signal again."""


def start(args, *, stdin=subprocess.DEVNULL, cwd=None, options=STRICT, extra=None, wrapper=()):
    """Start Python in a process group of its own, with default signals, as a terminal does.

    extra: additional environment variables. wrapper: a command that runs the command which follows it.
    """
    with default_signals():
        return subprocess.Popen(
            [*wrapper, sys.executable, *options, *map(str, args)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**environment(), **(extra or {})},
            start_new_session=True,
        )


def finish(process, *, stdin_text=None, timeout=60.0):
    """Wait for a process of `start`. If it hangs, kill it with its whole group."""
    try:
        out, err = process.communicate(stdin_text, timeout=timeout)
    except subprocess.TimeoutExpired:
        out, err = end(process)
        raise AssertionError(f"hung for {timeout} s\n--- stdout\n{out}\n--- stderr\n{err}") from None
    except BaseException:
        end(process)
        raise
    return Completed(process.returncode, out, err)


def end(process):
    """Kill a process of `start` and its whole group. Return what it had written."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()


def run(args, *, stdin_text=None, timeout=60.0, cwd=None, options=STRICT):
    stdin = subprocess.DEVNULL if stdin_text is None else subprocess.PIPE
    process = start(args, stdin=stdin, cwd=cwd, options=options)
    return finish(process, stdin_text=stdin_text, timeout=timeout)


def check(completed, out=None):
    """Check that the program succeeded without messages, and that it printed exactly `out`, if given."""
    assert completed.returncode == 0 and completed.err == "", completed
    if out is not None:
        assert completed.out.split() == out.split(), completed
    return completed
