"""What an extension module starts and leaves behind may go on when its interpreter has ended.

check FOLDER HOW     `staying` is in the folder (tests/native/staying.c), and HOW is what it begins
"""

import ctypes
import os
import sys

import foreign
from probe import TIMEOUT_S, ComposablePool, count_copies, main, signal

from pool_party import _native

SLEEP = ("sleeps", "python", "elsewhere", "c++")
LEAVE_NOTHING = ("nothing", "ends", "forks", "takes back")


def run(says, how, *args):
    with ComposablePool(1, kind="interp", extensions=["staying"]) as pool:
        assert pool.apply(foreign.begin, ("staying", how, *args))
        assert count_copies() > 0
        if how in (*SLEEP, "spins"):
            assert os.read(says, 1) == b"b"
    pool.join(timeout=TIMEOUT_S)
    return count_copies()


def go_on(folder, how, wake, says, word):
    """Make what was left behind continue."""
    word.value = 1
    if how == "refers":
        ctypes.CDLL(os.path.join(folder, "libshared_starter.so")).call_registered()
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
    go_on(folder, how, wake, says, word)
    if n_stay:
        assert os.read(says, 1) == b"w"
    causes = _native.staying()
    assert len(causes) == n_stay, causes
    assert how != "refers" or causes[0].endswith("libshared_starter.so"), causes
    print("ok")


if __name__ == "__main__":
    main({"check": check})
