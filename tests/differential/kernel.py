"""Runs all sessions, cell by cell, in one Jupyter kernel: `python kernel.py PROLOGUE` prints their output as JSON."""

import json
import subprocess
import sys

import sessions
from jupyter_client.manager import KernelManager

TIMEOUT_S = 100


def run(kernel, cells):
    """Return what the cells print, including errors as a notebook shows them."""
    shown = []

    def show(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            shown.append(content["text"])
        elif message["msg_type"] == "error":
            shown.append("\n".join(content["traceback"]))

    for cell in cells:
        kernel.execute_interactive(cell, output_hook=show, timeout=TIMEOUT_S)
    return "".join(shown)


def main(prologue):
    manager = KernelManager()
    manager.start_kernel(stderr=subprocess.DEVNULL)
    kernel = manager.client()
    kernel.start_channels()
    try:
        kernel.wait_for_ready(timeout=TIMEOUT_S)
        shown = {name: run(kernel, [prologue, *cells, "end()"]) for name, cells in sessions.SESSIONS.items()}
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    print(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
