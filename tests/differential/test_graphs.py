"""Programs of composed definitions: all objects in a worker are as in a forked child, also after changes in a session.

Run it far longer by hand: `python -c "$(cat compare_graphs.py)" compare_graphs.py interp 0 1000 6`, and without `-c`.
"""

import os

import fresh
import pytest

pytestmark = pytest.mark.slow

PROGRAM = os.path.join(os.path.dirname(__file__), "compare_graphs.py")
KINDS = ["interp", "process-fork", "process-forkserver", "process-spawn"]


def check(completed, n):
    lines = fresh.check(completed).out.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"{n} programs, "), completed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["script", "module", "command"])
def test_objects_are_as_in_the_program(kind, how):
    if how == "command":
        with open(PROGRAM) as file:
            completed = fresh.run(["-c", file.read(), PROGRAM, kind, "0", "8", "0"])
    else:
        args = [PROGRAM] if how == "script" else ["-m", "compare_graphs"]
        completed = fresh.run([*args, kind, "0", "8", "0"], cwd=os.path.dirname(PROGRAM))
    check(completed, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_changes_in_a_session_reach_workers(kind):
    with open(PROGRAM) as file:
        check(fresh.run(["-c", file.read(), PROGRAM, kind, "40", "46", "5"]), 6)
