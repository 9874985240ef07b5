"""The command `pool-party` itself: its version and its interrupted output. Subcommands have tests of their own."""

import os
import subprocess
import sys

import fresh
import pytest

import pool_party
from pool_party._cli import main as _cli
from pool_party._cli import output

ENDED_BY_SIGPIPE = 141  # the status that shells report


def test_version(capsys):
    with pytest.raises(SystemExit) as exit:
        _cli.main(["--version"])
    assert not exit.value.code
    assert capsys.readouterr().out == f"pool-party {pool_party.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("doctor --workers 0", "'0' is not a whole number from 1 on"),
        ("doctor --workers two", "'two' is not a whole number from 1 on"),
        ("doctor --workers -1", "'-1' is not a whole number from 1 on"),
    ],
)
def test_wrong_values_are_told_in_words(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit:
        _cli.main(arguments.split())
    assert exit.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(message)


def run_unread(arguments, buffered):
    """Run the command with a standard output whose reader is gone. Return its status and what it wrote to stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, *fresh.STRICT, "-m", "pool_party._cli.main", *arguments]
    environment = {**fresh.environment(), "PYTHONUNBUFFERED": "" if buffered else "1"}
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", ["--help", "--version", "doctor --import=", "bench --list"])
def test_unread_output_ends_a_command_quietly(arguments):
    assert run_unread(arguments.split(), buffered=True) == (ENDED_BY_SIGPIPE, "")


@pytest.mark.parametrize("arguments", ["doctor --import=", "bench --list"])
def test_unread_output_ends_a_command_where_it_prints(arguments):
    assert run_unread(arguments.split(), buffered=False) == (ENDED_BY_SIGPIPE, "")


def test_broken_pipes_of_others_are_errors():
    def command():
        raise BrokenPipeError("a worker's")

    with pytest.raises(BrokenPipeError, match="a worker's"):
        output.run(command)
