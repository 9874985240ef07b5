"""Makes pool_party importable for the benchmarks that pyperformance starts, since it is not on PyPI."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent


def _is_built() -> bool:
    try:
        return importlib.util.find_spec("pool_party._native") is not None
    except ModuleNotFoundError:
        return False


def make_importable() -> None:
    """Let this process and its child processes import pool_party and the modules beside this one.

    If this Python has pool_party installed, that is used. Otherwise it is the checkout around this file, whose
    extension tools/setup-env builds in place for this Python, unless that has been done.

    Raises:
        subprocess.CalledProcessError: if it could not be built; the reason is on stderr.
    """
    additions = [str(_HERE)]
    if not _is_built():
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        setup = [_ROOT / "tools" / "setup-env"]
        subprocess.run(setup, env=environment | {"PYTHON": sys.executable}, stdout=subprocess.DEVNULL, check=True)
        additions.append(str(_ROOT))
        importlib.invalidate_caches()
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path in additions:
        if path not in inherited:
            inherited.append(path)
        if path not in sys.path:
            sys.path.append(path)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, inherited))
