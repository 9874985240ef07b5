"""What an extension module starts and leaves behind may go on when its interpreter has ended.

check FOLDER HOW     `staying` is in the folder (tests/native/staying.c), and HOW is what it begins
"""

import ctypes
import os
import sys

import foreign
from probe import TIMEOUT_S, ComposablePool, main, signal

SLEEP = ("sleeps", "python", "elsewhere", "c++")
LEAVE_NOTHING = ("nothing", "ends", "forks")


def count_copies():
    """Count the private copies of the module that are loaded."""
    with open("/proc/self/maps") as maps:
        return len({line.split()[4] for line in maps if "/memfd:staying" in line})


def run(says, how, *args):
    with ComposablePool(1, kind="interp", extensions=["staying"]) as pool:
        assert pool.apply(foreign.begin, ("staying", how, *args))
        assert count_copies() > 0
        if how in (*SLEEP, "spins"):
            assert os.read(says, 1) == b"b"
    pool.join(timeout=TIMEOUT_S)
    return count_copies()


def go_on(how, wake, says, word):
    """Make what was left behind continue."""
    word.value = 1
    if how == "begins":
        assert os.read(says, 1) == b"b"
    if how == "handles":
        os.kill(os.getpid(), signal.SIGUSR1)
    if how == "forks" and os.fork() == 0:
        os._exit(0)
    if how in (*SLEEP, "begins"):
        os.write(wake, b"w")


def check(folder, how):
    sys.path.insert(0, folder)
    (wakes, wake), (says, say) = os.pipe(), os.pipe()
    word = ctypes.c_int(0)
    there = wakes, say, ctypes.addressof(word)
    n_stay = run(says, how, *there)
    assert n_stay == (how not in LEAVE_NOTHING), n_stay
    if how == "ends":
        assert os.read(says, 1) == b"e"  # by a destructor
    for _ in range(3):  # the next interpreters have copies of their own, which do not stay
        assert run(says, "nothing", *there) == n_stay
    go_on(how, wake, says, word)
    if n_stay:
        assert os.read(says, 1) == b"w"
    print("ok")


if __name__ == "__main__":
    main({"check": check})
