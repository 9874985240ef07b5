"""A Dask cluster of real processes on this machine, for tests."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import fresh
import gates

START_S = 60.0


class Cluster:
    """A scheduler, and Dask workers of one thread each.

    folder: for the scheduler's file. options: further arguments of all programs. nanny: whether each worker has one.
    """

    def __init__(self, folder, n_workers=2, options=(), nanny=False):
        self._folder = pathlib.Path(folder)
        self._options = [*options, "--no-dashboard"]
        self._nanny = nanny
        self.file = self._folder / "scheduler.json"
        self.workers = []
        self.scheduler = self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", self.file
        )
        try:
            self.address = gates.wait_until(self._read_address, "the scheduler listens", START_S)
            for _ in range(n_workers):
                self.add_worker()
        except BaseException:
            self.close()
            raise

    def _start(self, program, *args):
        with open(self._folder / "log", "ab") as log, fresh.default_signals():
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{program}", *map(str, args), *self._options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                env=_environment(),
                start_new_session=True,
            )

    def _read_address(self):
        assert self.scheduler.poll() is None, (self._folder / "log").read_text()
        try:
            return json.loads(self.file.read_text())["address"]
        except (OSError, ValueError):
            return None

    def add_worker(self):
        nanny = [] if self._nanny else ["--no-nanny"]
        self.workers.append(self._start("dask_worker", self.address, "--nthreads", "1", "--host", "127.0.0.1", *nanny))
        return self.workers[-1]

    def wait_for_workers(self, client):
        client.wait_for_workers(len(self.workers), timeout=START_S)

    def close(self):
        for process in (*self.workers, self.scheduler):
            process.send_signal(signal.SIGCONT)
            fresh.end(process)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def _environment():
    """An environment in which Dask workers import the module of their tests, too, whose functions they run."""
    environment = fresh.environment()
    paths = (str(fresh.TESTS / "cluster"), environment["PYTHONPATH"])
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def make_certificate(folder):
    """Make a certificate, which is its own authority. Return its path and the key's, or None without openssl."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        return None
    return certificate, key
