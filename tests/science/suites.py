"""Runs a suite in a fresh process, continues after tests that crash or hang, and keeps each worker's reports."""

import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

import sdists

INSIDE = pathlib.Path(__file__).resolve().with_name("inside.py")
MAX_FAULTS = 20
GOOD = (0, 1, 5)  # pytest's exit status: all passed, some failed, none collected (all had been run before)


@dataclass
class Seen:
    """The reports of one worker."""

    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)  # test: outcome, text
    seconds: dict[str, float] = field(default_factory=dict)
    running: str | None = None
    status: int | None = None  # pytest's, once it has ended
    output: str = ""
    printed: str = ""  # what its process printed outside pytest
    _rest: bytes = b""

    def read(self, data):
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            what, *values = json.loads(line)
            if what == "start":
                [self.running] = values
            elif what == "end":
                test, outcome, text, self.seconds[test] = values
                self.outcomes[test] = outcome, text
                self.running = None
            else:
                self.status, self.output = values

    def begin(self):
        self.running, self.status, self.output, self._rest = None, None, "", b""

    def fail_running(self, text):
        """Note that the process ended during the running test."""
        if self.running is not None:
            self.outcomes[self.running] = "failed", text

    def count(self, outcome):
        return sum(its == outcome for its, _ in self.outcomes.values())

    def failures(self):
        return {test: text for test, (outcome, text) in self.outcomes.items() if outcome == "failed"}


def run_suite(suite, kind, n, timeout_s, options=(), only=None, left_out=()):
    """Run a suite in n workers at the same time.

    suite: a module, and a file or folder below it; or DISTRIBUTION:FOLDER, with tests of its sdist.
    Returns what each has Seen, and a list of problems besides the tests: crashes and tests without an end, after which
    the suite continued, and what ended it early. What the process printed outside pytest is in `printed` of the first.
    """
    seen, faults = [Seen() for _ in range(n)], []
    root = str(sdists.unpack(suite.partition(":")[0])) if ":" in suite else None
    while True:
        for one in seen:
            one.begin()
        job = {"suite": suite.replace(":", "/"), "root": root}
        job |= {"kind": kind, "only": only, "left_out": list(left_out), "options": list(options)}
        fault = _run_once(job, seen, timeout_s)
        if fault is None:
            return seen, faults
        culprits = [one.running for one in seen if one.running]
        faults.append(f"{fault} in {culprits}" if culprits else fault)
        if not culprits or len(faults) == MAX_FAULTS:
            faults.append("the suite was not finished")
            return seen, faults
        for one in seen:
            one.fail_running(fault)


def _run_once(job, seen, timeout_s):
    """Run the rest of a suite. Return how the process ended, if not well."""
    pipes = [os.pipe() for _ in seen]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        job |= {"pipes": [write for _, write in pipes], "done": [list(one.outcomes) for one in seen]}
        path = pathlib.Path(folder, "job.json")
        path.write_text(json.dumps(job))
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", INSIDE, path],
            pass_fds=job["pipes"],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            cwd=pathlib.Path(job["root"], job["suite"].partition("/")[0]) if job["root"] else folder,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # names of tests contain the order of sets
            start_new_session=True,
        )
        for _, write in pipes:
            os.close(write)
        try:
            in_time = _listen({read: one for (read, _), one in zip(pipes, seen, strict=True)}, timeout_s)
            if in_time:
                process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for read, _ in pipes:
                os.close(read)
        errors.seek(0)
        printed = errors.read()[-2000:]
        seen[0].printed += printed
    if not in_time:
        return f"no end within {timeout_s} s"
    if process.returncode:
        return f"exit status {process.returncode}: {printed}"
    if not all(one.status in GOOD for one in seen):
        return f"pytest ended with {[one.status for one in seen]}: {''.join(one.output for one in seen)}"
    return None


def _listen(seen, timeout_s):
    """Read from the pipes {fd: Seen} to their end. False if a test takes longer than timeout_s."""
    with selectors.DefaultSelector() as selector:
        for pipe in seen:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(timeout_s)
            if not ready:
                return False
            for key, _ in ready:
                if data := os.read(key.fd, 1 << 16):
                    seen[key.fd].read(data)
                else:
                    selector.unregister(key.fd)
    return True
