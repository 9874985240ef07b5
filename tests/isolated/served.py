"""A web application whose handler computes in pools of the standard library; test_tools.py has it served."""

import hashlib
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

N_AT_ONCE = int(os.environ.get("AT_ONCE", "1"))

executor = ThreadPoolExecutor(2)  # made before the server forks, and used afterwards
together = threading.Barrier(N_AT_ONCE)


def work(n):
    return hashlib.sha256(b"%d" % n * 100_000).hexdigest()[:8]


def compute(path):
    if path == "/processes":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            values = pool.map(work, range(4))
            pool.close()  # with `terminate`, plain Python hangs: its workers have the server's handler of SIGTERM
            pool.join()
            return pool, values
    if path == "/together":
        together.wait(60)  # for the other requests, which other threads of this server handle
    return executor, list(executor.map(work, range(4)))


def application(environ, start_response):
    pool, values = compute(environ["PATH_INFO"])
    answer = f"{os.getpid()} {'pool_party' in type(pool).__mro__[1].__module__} {' '.join(values)}\n"
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer.encode()]
