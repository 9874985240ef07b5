"""Runs a measurement in a process of its own, where it does not meet threads, settings or memory of another pool."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_HERE = Path(__file__).resolve().parent
_GRACE_S = 0.3  # resource trackers clean up after the processes that they serve have ended
TIME_IS_UP = "time is up"

type Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measuring process. Its output goes to files, as a pipe would stay open while any of its workers lives."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]

    def lines_of(self, file: IO[bytes]) -> list[str]:
        """Return what was written to one of the two files."""
        file.seek(0)
        return file.read().decode(errors="replace").strip().splitlines()


def begin(
    module: str, arguments: Sequence[object], environment: Mapping[str, str] | None = None, function: str = "main"
) -> Measurement:
    """Start `module.function()` in a process group of its own; `environment` replaces the caller's.

    Without a name for the function, the module's file runs as a script.
    """
    environment = os.environ if environment is None else environment
    search_path = [str(_HERE), *filter(None, [environment.get("PYTHONPATH")])]
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    program = ["-c", f"from {module} import {function}; {function}()"] if function else [_HERE / f"{module}.py"]
    process = subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        # An empty variable counts as unset. Otherwise each process would compile what it imports, as no program does.
        env={**environment, "PYTHONPATH": os.pathsep.join(search_path), "PYTHONDONTWRITEBYTECODE": ""},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    return Measurement(process, output, errors)


def end(measurement: Measurement, timeout_s: float) -> tuple[Figures | None, str]:
    """Wait for a measurement; return the figures that it printed as JSON, or None and what went wrong.

    A process that ended through SIGALRM, its own alarm, ran out of time; what it printed before that is returned, too.
    """
    process = measurement.process
    with measurement.output, measurement.errors:
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end_group(process)
            return None, f"no result after {timeout_s:.0f} s"
        except BaseException:  # Ctrl-C does not reach another process group
            _end_group(process)
            raise
        lines = measurement.lines_of(measurement.output)
        if process.returncode == 0 and lines:
            figures: Figures = json.loads(lines[-1])
            return figures, ""
        _end_group(process)
        if process.returncode == -signal.SIGALRM:
            return (json.loads(lines[-1]) if lines else None), TIME_IS_UP
        return None, [f"exit status {process.returncode}", *measurement.lines_of(measurement.errors)][-1]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all its child processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            time.sleep(_GRACE_S)
    process.wait()
