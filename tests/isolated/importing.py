"""An import finds its module, whatever pools do in another thread meanwhile.

HOW     what they do while the import asks one finder after the other
"""

import sys

from probe import TIMEOUT_S, ComposablePool, main, tasks

import pool_party


class Between:
    """A finder that finds nothing, and does something amid the import of "late"."""

    def __init__(self, act):
        self.act = act

    def find_spec(self, name, path=None, target=None):
        if name == "late":
            self.act()


def import_amid(act, folder):
    sys.path.insert(0, folder)
    last = sys.meta_path[-1]  # the one that looks into folders
    sys.meta_path.insert(len(sys.meta_path) - 1, Between(act))
    assert sys.meta_path[-1] is last
    import late

    assert late.VALUE == 1
    print("ok")


def open_pool():
    pool = ComposablePool(1, kind="thread")
    assert pool.apply(tasks.square, (3,)) == 9
    return pool


def end(pool):
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


def the_last_pool_ends(folder):
    end(open_pool())  # the next end imports nothing, which would wait for the lock of imports
    pool = open_pool()
    import_amid(lambda: end(pool), folder)


def patches_are_undone(folder):
    pool_party.patch()
    import_amid(pool_party.unpatch, folder)


main({"the_last_pool_ends": the_last_pool_ends, "patches_are_undone": patches_are_undone})
