"""Starts the demonstration: `python examples/demo`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # the folder in which the package `demo` is, not its own

    from demo.command import main

    sys.exit(main())
