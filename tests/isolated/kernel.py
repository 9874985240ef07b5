"""Runs the cells of a notebook in a kernel that is started by a command line, and prints what they show.

python kernel.py FOLDER WORD ...    the words after `python` that start the module ipykernel_launcher
"""

import json
import os
import pathlib
import sys

CELLS = (
    """
import asyncio, multiprocessing, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

def double(x):
    return 2 * x
""",
    """
with multiprocessing.get_context("fork").Pool(2) as pool:
    print("ours:", "pool_party" in type(pool).__mro__[1].__module__)
    values = pool.map(double, range(5))
values
""",
    """
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
    print(list(executor.map(double, range(3))))
executor = ThreadPoolExecutor(2)
[executor.submit(double, n).result() for n in range(3)]
""",
    "await asyncio.gather(*(asyncio.to_thread(double, n) for n in range(9)))",
    "executor.submit(lambda: 1 / 0).result()",
    "import signal; signal.raise_signal(signal.SIGINT)",
    "print(executor.submit(double, 21).result(), sys.argv[1:2], __name__)",
)


def main(folder, *words):
    spec = pathlib.Path(folder, "kernels", "tested")
    spec.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, *words, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "tested", "language": "python"}))
    os.environ["JUPYTER_PATH"] = folder
    from nbclient import NotebookClient
    from nbformat import v4

    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in CELLS])
    NotebookClient(notebook, timeout=100, kernel_name="tested", allow_errors=True).execute()
    for cell in notebook.cells:
        for output in cell.outputs:
            print(output.get("text") or output.get("ename") or output.data["text/plain"])


if __name__ == "__main__":
    main(*sys.argv[1:])
