"""Kills processes just after their fork; the fork server preloads this, with a folder in `DOOMED`."""

import os
import signal


def die_if_chosen(folder):
    for name in os.listdir(folder):
        try:
            os.rmdir(os.path.join(folder, name))
        except FileNotFoundError:  # another process's
            continue
        os.kill(os.getpid(), signal.SIGKILL)


if "DOOMED" in os.environ:
    os.register_at_fork(after_in_child=lambda: die_if_chosen(os.environ["DOOMED"]))
