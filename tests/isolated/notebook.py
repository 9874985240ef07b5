"""Runs a notebook with nbclient, and checks what its cells show: bars, log records and output of workers. Cells are
interrupted: what has a handle is not lost, and what has none and has not begun never begins."""

import asyncio
import pathlib
import sys
import tempfile

from nbclient import NotebookClient
from nbformat import v4

TIMEOUT_S = 100
PAUSE_S = 0.01  # between looks at what a cell shows
PROLOGUE = """
import logging
import pathlib
import sys
import time

from pool_party import ComposablePool
from tqdm import tqdm

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
path = pathlib.Path({path!r})

def work(n):
    sys.stdout.write(f"printed {{n}}\\n")  # in one piece, since threads share the stream
    logging.info("logged %s", n)
    for _ in tqdm(range(7), "epochs"):
        while not path.exists():
            time.sleep(0.01)
    return n

def hold(n):
    while not path.exists():
        time.sleep(0.01)
    return n

def mark(n):
    path.with_name("marked").touch()
"""
SHOW = """
with ComposablePool(2, kind={kind!r}, log=True, output="relay") as pool:
    values = pool.map(work, range(3), 1, progress=True)
values
"""
WAIT = """
pool = ComposablePool(2, kind={kind!r})
results = [pool.apply_async(hold, (n,)) for n in range(5)]
while not any(map(pool._engine.is_begun, results)):
    time.sleep(0.01)
print("begun")
[result.get() for result in results]
"""
TAKE = """
path.touch()
print([result.get() for result in results], pool.map(hold, range(3)), pool.statistics().n_pending)
pool.close()
pool.join()
"""
STOP = """
pool = ComposablePool(1, kind={kind!r})
running = pool.apply_async(hold, (1,))
while not pool._engine.is_begun(running):
    time.sleep(0.01)
print("begun")
pool.map(mark, range(50), 1)
"""
GO_ON = """
path.touch()
print(running.get(), pool.apply(hold, (2,)), pool.statistics().n_pending, path.with_name("marked").exists())
pool.close()
pool.join()
"""


def shown_by(cell, name):
    """What a cell has shown so far: "stdout", "stderr", "result", or the names of its errors."""
    if name == "errors":
        return [output.ename for output in cell.outputs if output.output_type == "error"]
    if name == "result":
        return [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == name)


class Notebook:
    """A notebook whose cells are run one by one."""

    def __init__(self, client):
        self._client = client

    async def run(self, source, then=None):
        """Run a cell, and call `then(cell)` meanwhile, which waits for what the cell shows. Return the cell."""
        cell = v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        n = len(self._client.nb.cells) - 1
        running = asyncio.create_task(self._client.async_execute_cell(cell, n))
        if then is not None:
            await asyncio.wait_for(then(cell), TIMEOUT_S)
        return await running

    async def interrupt(self):
        await self._client.km.interrupt_kernel()


async def wait_for(cell, text, stream):
    while text not in shown_by(cell, stream):
        await asyncio.sleep(PAUSE_S)


async def check(notebook, kind, path):
    async def let_pass(cell):
        await wait_for(cell, "epochs", "stderr")  # a task's own bar is shown while its loop goes on
        path.touch()

    async def interrupt(cell):
        await wait_for(cell, "begun", "stdout")
        await notebook.interrupt()

    cell = await notebook.run(SHOW.format(kind=kind), let_pass)
    assert "3/3" in shown_by(cell, "stderr"), cell
    assert shown_by(cell, "result") == ["[0, 1, 2]"] and not shown_by(cell, "errors"), cell
    for n in range(3):
        text = shown_by(cell, "stdout")
        assert text.count(f"printed {n}\n") == text.count(f"INFO logged {n}\n") == 1, cell
    path.unlink()
    interrupted = await notebook.run(WAIT.format(kind=kind), interrupt)
    assert shown_by(interrupted, "errors") == ["KeyboardInterrupt"], interrupted
    last = await notebook.run(TAKE)
    assert shown_by(last, "stdout") == "[0, 1, 2, 3, 4] [0, 1, 2] 0\n", last
    path.unlink()
    stopped = await notebook.run(STOP.format(kind=kind), interrupt)
    assert shown_by(stopped, "errors") == ["KeyboardInterrupt"], stopped
    last = await notebook.run(GO_ON)
    assert shown_by(last, "stdout") == "1 2 0 False\n", last
    path.unlink()


async def main(kinds):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "go-on")
        client = NotebookClient(v4.new_notebook(), timeout=TIMEOUT_S, allow_errors=True)
        async with client.async_setup_kernel():
            notebook = Notebook(client)
            await notebook.run(PROLOGUE.format(path=str(path)))
            for kind in kinds:
                await check(notebook, kind, path)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
