"""Measures which packages with extension modules work in interpreter workers, and writes docs/packages.md.

    python tests/science/packages.py                         # installs all that uses/ names, and measures them
    python tests/science/packages.py --only polars h5py      # these, into the table that is there
    python tests/science/packages.py --only h5py --refused   # although interpreters refuse it
    python tests/science/packages.py --no-install            # in the environment as it is

Each package has a use in uses/, whose result in the main interpreter is what interpreters have to return. The use
runs in one interpreter, in two and four at once, in five pools one after another, and in two interpreters after uses of
other packages and beside the main interpreter. Each measurement is a process of its own, so a crash, also at the end of
the process, costs only its package's row. What a package leaves is the growth of the process's private memory by the
last three of the five pools, for each of their six interpreters. A busy machine needs a larger --timeout.

Exits with 1 if a package that is copied by default does not work.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor

import measured
import uses

from pool_party._ground.errors import describe_exit
from pool_party._workers.interp.known import PACKAGES

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# distribution -> the packages that `extensions` has to name, if their name is not the distribution's
NAMES = {
    "scikit_learn": ["sklearn"],
    "scikit_image": ["skimage"],
    "pywavelets": ["pywt"],
    "pillow": ["PIL"],
    "opencv_python_headless": ["cv2"],
    "pyyaml": ["yaml"],
    "protobuf": ["google"],
    "rpds_py": ["rpds"],
    "pyzmq": ["zmq"],
    "pynacl": ["nacl"],
    "greenlet": ["greenlet", "sqlalchemy"],
    "grpcio": ["grpc"],
    "lightgbm": ["lightgbm", "sklearn"],
    "hdbscan": ["hdbscan", "sklearn"],
    "faiss_cpu": ["faiss"],
    "python_flint": ["flint"],
    "biopython": ["Bio"],
    "pyerfa": ["erfa"],
    "pyogrio": ["pyogrio", "shapely"],
    "pymongo": ["bson", "pymongo"],
    "zope_interface": ["zope"],
    "levenshtein": ["Levenshtein"],
    "cython": ["Cython"],
    "python_snappy": ["snappy", "cramjam"],
    "argon2_cffi": ["argon2"],
    "pycryptodome": ["Crypto"],
    "psycopg2_binary": ["psycopg2"],
    "psycopg_binary": ["psycopg", "psycopg_binary"],
}
_COMPANIONS = {
    "greenlet": ["sqlalchemy"],
    "lightgbm": ["scikit-learn"],
    "fastparquet": ["pandas"],
    "pyogrio": ["shapely"],
    "psycopg_binary": ["psycopg"],
}
ALL = list(uses.ALL)
BEFORE = ("numpy", "orjson", "pillow", "lxml", "regex", "msgpack", "cffi")  # run before others, some at a time


# ---- in the measuring process ----


def use(name):
    """Return the result of a package's use as text."""
    return repr(uses.ALL[name]())


def loaded(name):
    """Return which of a package's extension modules are loaded: without them, it may still work, in pure Python."""
    packages = NAMES.get(name, [name])
    modules = [module for module in list(sys.modules.values()) if str(getattr(module, "__file__", "")).endswith(".so")]
    return sorted(module.__name__ for module in modules if module.__name__.partition(".")[0] in packages)


def use_after(others, name):
    """Return the result of a use after those of other packages."""
    for other in others:
        use(other)
    return use(name)


def allow_all():
    """Make this interpreter import what it would refuse: an initializer."""
    from pool_party._workers.interp import known

    known.REFUSED.clear()


def private_kb():
    """Return the private memory of this process."""
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE))


def say(**what):
    print("MEASURED", json.dumps(what), flush=True)


def measure(stage, name, extensions, is_refused):
    """Run a stage of the measurement in this process, and print what it finds."""
    import packages  # workers need this module by name

    from pool_party import InterpreterPool

    options = {"initializer": packages.allow_all} if is_refused else {}
    if stage == "main":
        say(result=use(name), modules=loaded(name))
        return
    if stage == "beside":
        others = [other for other in random.Random(name).sample(BEFORE, 3) if other != name]
        named = [package for other in others for package in NAMES.get(other, [other])]
        with InterpreterPool(2, extensions=[*(extensions or ()), *named], **options) as pool:
            calls = [pool.apply_async(packages.use_after, (others, name)) for _ in range(2)]
            say(step="beside", results=[use(name), *(call.get() for call in calls)])
        pool.join()
        return
    memory = []
    for n, step in [(1, "one"), (2, "two at once"), (4, "four at once"), *[(2, "five pools")] * 5]:
        with InterpreterPool(n, extensions=extensions, **options) as pool:
            say(step=step, results=pool.map(packages.use, [name] * n, 1), modules=pool.apply(packages.loaded, (name,)))
        pool.join()
        memory.append(private_kb())
    say(left_mb=(memory[-1] - memory[-4]) / 6 / 1024)


# ---- in the program ----


def run_stage(python, stage, name, extensions, options):
    """Run a stage in a fresh process. Return what it printed, and None or what went wrong."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    terms = json.dumps([stage, name, extensions, options.refused])
    command = [python, "-c", f"import packages; packages.measure(*packages.json.loads({terms!r}))"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            out, errors = process.communicate(timeout=options.timeout)
            raised = [line for line in errors.splitlines() if re.match(r"\S*(Error|Exception)\b", line)]
            what = raised[-1][:200] if raised and process.returncode > 0 else describe_exit(process.returncode)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            what = f"no end within {options.timeout:.0f} s"
    found = [json.loads(line.removeprefix("MEASURED ")) for line in out.splitlines() if line.startswith("MEASURED ")]
    last = next((entry["step"] for entry in reversed(found) if "step" in entry), "start")
    return found, f"{stage} after {last}: {what}" if process.returncode else None


def judge(python, name, options):
    """Measure a package. Return its row: how it loads ("default", "extensions", "no", None if unknown) and why not."""
    try:
        version = run([python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))"])
    except subprocess.CalledProcessError:
        return {"version": None, "how": None, "why": "it could not be installed"}
    row = {"version": version, "how": None, "why": ""}
    expected, error = run_stage(python, "main", name, None, options)
    if error:
        return {**row, "why": f"fails in the main interpreter: {error}"}
    errors = []
    for extensions, how in ((None, "default"), (NAMES.get(name, [name]), "extensions")):
        found, error = run_stage(python, "pools", name, extensions, options)
        if error is None:
            beside, error = run_stage(python, "beside", name, extensions, options)
            results = {result for entry in [*found, *beside] for result in entry.get("results", ())}
            missing = set(expected[0]["modules"]).difference(found[0].get("modules", ()))
            if error is None and missing:
                error = f"works without its extension modules: {', '.join(sorted(missing))}"[:300]
            if error is None and results != {expected[0]["result"]}:
                error = f"other results than the main interpreter's: {sorted(results)[:2]}"[:300]
        if error is None:
            row["left_mb"] = round(max(0.0, found[-1]["left_mb"]), 2)
            return {**row, "how": how, "why": "".join(f"by default: {each}" for each in errors)}
        errors.append(error)
    return {**row, "how": "no", "why": "by default: {}; with `extensions=`: {}".format(*errors)}


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install(folder, names):
    """Install the newest versions of these, and of those that run before others: ten at a time, or one by one."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--upgrade"]
    pip.append("--only-binary=:all:")
    wanted = [each for name in (*names, *BEFORE) for each in (name, *_COMPANIONS.get(name, ()))]
    for at in range(0, len(wanted), 10):
        if subprocess.run([*pip, *wanted[at : at + 10]]).returncode:
            for each in wanted[at : at + 10]:
                subprocess.run([*pip, each])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALL, metavar="NAME", help="these packages")
    parser.add_argument("--refused", action="store_true", help="measure packages although interpreters refuse them")
    folder = ROOT / "build" / "packages" / f"{sys.version_info[0]}.{sys.version_info[1]}"
    parser.add_argument("--venv", type=pathlib.Path, default=folder, help="the environment")
    parser.add_argument("--no-install", action="store_true", help="take the environment as it is")
    parser.add_argument("--dry", action="store_true", help="do not write the table")
    parser.add_argument("--jobs", type=int, default=1, help="packages at a time")
    parser.add_argument("--timeout", type=float, default=400, metavar="S", help="limit for each process")
    options = parser.parse_args()
    names = options.only or ALL
    if not options.no_install:
        install(options.venv, names)
    python = str(options.venv / "bin" / "python")
    version = run([python, "-c", "import platform; print(platform.python_version())"])
    rows = measured.read(version)
    with ThreadPoolExecutor(options.jobs) as executor:
        for name, row in zip(names, executor.map(lambda name: judge(python, name, options), names), strict=True):
            rows[name] = row
            print(name, *row.values(), flush=True)
            if not options.dry:
                measured.write(version, rows)
    failed = [n for n in names if rows[n]["how"] == "no" and set(NAMES.get(n, [n])) <= set(PACKAGES)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
