"""Runs cells with `log=True` and `output="relay"` in a Jupyter kernel: prints what each of them shows."""

import subprocess

from jupyter_client.manager import KernelManager

TIMEOUT_S = 100
PROLOGUE = """
import logging
import sys

from pool_party import ComposablePool

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)

def work(text):
    print("printed", text)
    logging.info("logged %s", text)
"""
CELL = """
with ComposablePool(1, kind={kind!r}, log=True, output="relay") as pool:
    pool.apply(work, ({text!r},))
"""
TWO_CELLS = (
    'pool = ComposablePool(1, kind="process", log=True, output="relay")',
    'pool.apply(work, ("later",)); pool.close(); pool.join()',
)


def run(kernel, cell):
    """Return what a cell shows."""
    shown = []

    def show(message):
        if message["msg_type"] == "stream":
            shown.append(message["content"]["text"])
        elif message["msg_type"] == "error":
            shown.append("\n".join(message["content"]["traceback"]))

    kernel.execute_interactive(cell, output_hook=show, timeout=TIMEOUT_S)
    return "".join(shown)


if __name__ == "__main__":
    manager = KernelManager()
    manager.start_kernel(stderr=subprocess.DEVNULL)
    kernel = manager.client()
    kernel.start_channels()
    try:
        kernel.wait_for_ready(timeout=TIMEOUT_S)
        cells = [PROLOGUE, *(CELL.format(kind=kind, text=kind) for kind in ("process", "interp")), *TWO_CELLS]
        for cell in cells:
            print(*run(kernel, cell).splitlines(), sep=", ")
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
