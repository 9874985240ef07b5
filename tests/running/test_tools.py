"""Servers and tools that run programs, under `python -m pool_party` and plain: what comes out is the same."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import threading

import fresh
import pytest

RUNNER = ("-m", "pool_party")


class Client(http.client.HTTPConnection):
    """A connection to a server that listens at a path."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


class Server:
    """gunicorn in a process of its own, which serves tests/isolated/served.py."""

    def __init__(self, process, path):
        self.process = process
        self._path = path
        self.log = ""

    def wait_for(self, text):
        """Read the log until a line has the text. Return the line."""
        while text not in (line := self.process.stderr.readline()):
            assert line, self.log
            self.log += line
        self.log += line
        return line

    def ask(self, path):
        """Return the pid that has answered, whether its pool was ours, and the answer."""
        client = Client(self._path)
        client.request("GET", path)
        response = client.getresponse()
        text = response.read().decode()
        client.close()
        assert response.status == 200, (text, self.end())
        pid, is_ours, answer = text.split(" ", 2)
        return int(pid), is_ours == "True", answer

    def ask_at_once(self, path, n):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.ask(path))) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def end(self):
        """End it as an operator does. Return its exit status, and the rest of its log."""
        self.process.send_signal(signal.SIGTERM)
        done = fresh.finish(self.process)
        return done.returncode, done.err


@contextlib.contextmanager
def serving(tmp_path, runner, *options, n_at_once=1):
    path = pathlib.Path(tmp_path, "runner" if runner else "plain")
    arguments = [
        *runner,
        "-m",
        "gunicorn",
        "--bind",
        f"unix:{path}",
        "--no-control-socket",
        *options,
        "served:application",
    ]
    process = fresh.start(arguments, cwd=tmp_path, options=("-Wignore",), extra={"AT_ONCE": str(n_at_once)})
    try:
        server = Server(process, path)
        server.wait_for("Booting worker")
        yield server
    finally:
        fresh.end(process)


@pytest.mark.hang_s(200)
@pytest.mark.parametrize("kind", ["process", "thread", "interp"])
@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_a_web_server_whose_handler_computes(tmp_path, worker, kind):
    pytest.importorskip("gunicorn")
    threads = 3 if worker == "gthread" else 1
    options = ("--workers", "1", "--worker-class", worker, "--threads", str(threads))
    answers = []
    for runner in (), (*RUNNER, "--kind", kind):
        with serving(tmp_path, runner, *options, n_at_once=threads) as server:
            found = [server.ask("/threads"), server.ask("/processes"), *server.ask_at_once("/together", threads)]
            assert {is_ours for _, is_ours, _ in found} == {bool(runner)}
            os.kill(found[0][0], signal.SIGKILL)
            server.wait_for("Booting worker")
            assert server.ask("/threads")[0] != found[0][0]
            answers.append([answer for *_, answer in found])
            status, _ = server.end()
            assert status == 0
    assert answers[0] == answers[1]


def test_the_report_of_a_web_server(tmp_path):
    """Its workers are forked, and end by a signal that they handle."""
    pytest.importorskip("gunicorn")
    with serving(tmp_path, (*RUNNER, "--report=json"), "--workers", "1") as server:
        pid, *_ = server.ask("/threads")
        status, log = server.end()
    report = json.loads(log.splitlines()[-1])
    (child,) = report["children"]
    assert status == 0 and (child["pid"], child["end"], child["tasks"]) == (pid, "ended", 4)
    assert report["pools"] == 0 and [event["caller"] for event in child["replaced"]] == ["served"]


@pytest.mark.hang_s(300)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "thread", "interp"])
def test_the_kernel_of_a_notebook(tmp_path, kind):
    for name in "nbclient", "ipykernel":
        pytest.importorskip(name)
    program = fresh.TESTS / "isolated" / "kernel.py"
    plain, ours = (
        fresh.run([program, tmp_path, *words], options=(), timeout=200) for words in ((), (*RUNNER, "--kind", kind))
    )
    assert plain.returncode == ours.returncode == 0, (plain, ours)
    assert plain.out.count("ours: False") == 1 and ours.out.count("ours: True") == 1
    assert ours.out.replace("ours: True", "ours: False") == plain.out
    assert "[0, 2, 4, 6, 8]" in plain.out and "KeyboardInterrupt" in plain.out and "42" in plain.out


TESTS = """\
import asyncio, multiprocessing, os
from concurrent.futures import ThreadPoolExecutor
import pytest

def double(x):
    return 2 * x

@pytest.mark.parametrize("n", range(4))
def test_pools(n):
    with multiprocessing.Pool(2) as pool, ThreadPoolExecutor(2) as executor:
        assert pool.map(double, range(n)) == list(executor.map(double, range(n)))

def test_failure():
    with multiprocessing.Pool(1) as pool:
        pool.map(int, ["x"])
"""


@pytest.mark.hang_s(200)
@pytest.mark.parametrize(
    "options", [pytest.param("", id="one process"), pytest.param("-n 2", id="xdist", marks=pytest.mark.slow)]
)
def test_pytest(tmp_path, options):
    """Workers of xdist are programs of their own, which the runner does not follow; they work as under plain Python."""
    (tmp_path / "test_app.py").write_text(TESTS)
    outcomes = []
    for runner in (), RUNNER:
        arguments = [*runner, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options.split(), "test_app.py"]
        done = fresh.run(arguments, cwd=tmp_path, options=(), timeout=100)
        outcomes.append((done.returncode, sorted(re.findall(r"^(?:PASSED|FAILED) .*", done.out, re.M))))
    assert outcomes[0] == outcomes[1] and outcomes[0][0] == 1 and len(outcomes[0][1]) == 5, outcomes
