"""A process that describes the children of a test process whose test hangs, shortly before that ends itself.

`faulthandler` shows the threads of the test process alone, but what a pool waits for may be in a worker process. The
watch is no child of the test process, since tests count those. It ends when the pipe to it is closed.
"""

import contextlib
import os
import pathlib
import select
import shutil
import struct
import subprocess
import sys
import time

EARLIER_S = 10.0  # how long before the end
DEADLINE = struct.Struct("d")  # on the monotonic clock; 0: no test runs


class Watch:
    """The sending end, in the test process."""

    def __init__(self, stderr_fd):
        there, self._here = os.pipe()
        command = [sys.executable, "-I", __file__, str(os.getpid()), str(there)]
        subprocess.run(command, pass_fds=[there], stdout=stderr_fd, check=False)
        os.close(there)

    def expect_end(self, seconds):
        """Note that the test may take so many seconds, or that it has ended: None."""
        deadline = 0.0 if seconds is None else time.monotonic() + seconds - EARLIER_S
        with contextlib.suppress(OSError):
            os.write(self._here, DEADLINE.pack(deadline))


def read(path):
    try:
        return pathlib.Path(path).read_text(errors="replace").replace("\0", " ").strip()
    except OSError as error:
        return f"({error.strerror})"


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        for child in read(task / "children").split():
            if child.isdigit():
                found += [int(child), *descendants(int(child))]
    return found


def describe(pid):
    status = dict(line.split(":", 1) for line in read(f"/proc/{pid}/status").splitlines() if ":" in line)
    wanted = ("State", "PPid", "Threads", "SigPnd", "SigBlk", "SigCgt")
    print(f"--- {pid}: {read(f'/proc/{pid}/cmdline')[:300]}")
    print("   ", {name: status.get(name, "").strip() for name in wanted})
    for thread in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
        print("   ", thread.name, read(thread / "comm"), read(thread / "wchan"), read(thread / "syscall"))
    if spy := shutil.which(
        "py-spy", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    ):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([spy, "dump", "--pid", str(pid)], stderr=subprocess.STDOUT, timeout=5, check=False)


def main(pid, fd):
    if os.fork():
        return  # so that nobody's child goes on
    os.setsid()
    deadline = 0.0
    while True:
        left = None if deadline == 0 else max(0.0, deadline - time.monotonic())
        if select.select([fd], [], [], left)[0]:
            if not (more := os.read(fd, 4096)):
                return
            deadline = DEADLINE.unpack(more[-DEADLINE.size :])[0]  # each is written whole
        else:
            print(f"=== a test of process {pid} hangs; these are its children:", flush=True)
            for child in descendants(pid):
                describe(child)
                sys.stdout.flush()
            deadline = 0.0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
