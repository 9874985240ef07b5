"""Compiles and runs profile_native.c: what two threads need to signal each other, at least."""

import os
import shutil
import subprocess
from pathlib import Path

SWAP = "compare-and-swap of a word of one's own"
HAND_OVER = "a cache line to another core that spins"
WAKE = "waking a thread that sleeps on a futex"


def compile_native(folder: str) -> Path | None:
    """Return the program, which is put into a folder. None: there is no C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    program, source = Path(folder) / "program", Path(__file__).with_name("profile_native.c")
    subprocess.run([compiler, "-std=c11", "-O2", "-pthread", source, "-o", program], check=True)
    return program


def run_native(program: Path, n_rounds: int) -> dict[str, float]:
    """Return the times in ns by SWAP, HAND_OVER and WAKE, each the best of so many rounds."""
    printed = subprocess.run([program, str(n_rounds)], check=True, capture_output=True, text=True).stdout
    return dict(zip((SWAP, HAND_OVER, WAKE), map(float, printed.split()), strict=True))
