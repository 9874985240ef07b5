"""Measures what packages do to a process that has several interpreters with copies of them: effects.json.

    python tests/science/effects.py h5py rasterio      # these, in the environment as it is
    python tests/science/effects.py                    # all that are installed
    python tests/science/effects.py --writers h5py     # only two writers to one file

For each package, in a process of its own (uses/ has the uses, writers.py the writers):

- "locks": which functions its copies call to lock files, in the use and in the writers' tasks.
- "callbacks": the libraries that all interpreters share and whose data leads to a copy when its interpreter ends; and
  functions of such libraries that the copies can call and that register something, by their names ("may").
- "threads": threads that are left when two pools have ended, of three; of those of the first one, some serve them all.
- "mappings": lines of /proc/self/maps that another interpreter adds by the use.
- "orders": the use in main, in pools that start and end in several orders, and in main after the last end.
- "writers": what two workers have written to one file at the same time, and what was there.

Exits with 1 if a process of a package that is copied by default, or of the standard library, ended early, or if its
results were not always the same.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys

import packages
import uses
import writers

HERE = pathlib.Path(__file__).resolve().parent
EFFECTS = HERE / "effects.json"  # measured.py reads it
_REGISTERING = re.compile(
    r"(set|install|add|register|push)\w*(callback|handler|hook|logger|logfunc|plugin|errorproc)", re.IGNORECASE
)


def read():
    """Return {package: {what: value}}."""
    return json.loads(EFFECTS.read_text()) if EFFECTS.exists() else {}


# ---- in the measuring process ----


def count_mappings():
    return len(pathlib.Path("/proc/self/maps").read_text().splitlines())


def count_threads():
    return len(os.listdir("/proc/self/task"))


def use_and_count(name):
    """Return a use's result, the mappings that it has added, and the files of which there are copies now."""
    from pool_party._workers.interp import extensions

    before = count_mappings()
    return packages.use(name), count_mappings() - before, sorted({*extensions.copied(), *extensions._own})


def symbols(file, *kind):
    """Return the names of dynamic symbols of a file."""
    done = subprocess.run(["nm", "-D", *kind, file], capture_output=True, text=True, check=False)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.strip()}


def registering(copied):
    """Yield "library: function" for what copies can call to register something in a library that is shared."""
    wanted = {name for file in copied for name in symbols(file, "--undefined-only") if _REGISTERING.search(name)}
    loaded = {line.split(maxsplit=5)[-1].strip() for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    for library in sorted(file for file in loaded if ".libs/" in file and file not in copied):
        for name in sorted(wanted & symbols(library, "--defined-only")):
            yield f"{os.path.basename(library).partition('-')[0]}: {name}"


def measure(name, extensions):
    """Print what a package does, as it is found out."""
    from pool_party import InterpreterPool, _native

    def open_pool(n=1):
        return InterpreterPool(n, extensions=extensions)

    def end(pool):
        pool.close()
        pool.join(timeout=120)

    packages.say(version=importlib.metadata.version(name))
    results = {packages.use(name)}
    threads = []
    for _ in range(3):
        pool = open_pool()
        result, mappings, copied = pool.apply(use_and_count, (name,))
        results.add(result)
        packages.say(mappings=mappings, may=sorted(registering(copied)))
        end(pool)
        results.add(packages.use(name))
        threads.append(count_threads())
    packages.say(threads=threads[-1] - threads[0])
    for ends in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):  # pools overlap, and the main interpreter uses it between their ends
        pools = [open_pool() for _ in range(3)]
        results.update(call.get(300) for call in [pool.apply_async(packages.use, (name,)) for pool in pools])
        for n in ends:
            end(pools[n])
            results.add(packages.use(name))
    packages.say(orders="right" if len(results) == 1 else f"wrong: {sorted(results)[:3]}"[:300])
    n_process, n_file, _ = _native.copies_locks()
    packages.say(
        locks=[*["fcntl"] * bool(n_process), *["flock"] * bool(n_file)], callbacks=sorted({*_native.staying()})
    )


def write_twice(name, extensions):
    """Print what two writers have done, in interpreters and in processes."""
    from pool_party import InterpreterPool, ProcessPool, _native

    found = {}
    for kind, pool in (
        ("interp", InterpreterPool(2, extensions=extensions)),
        ("process", ProcessPool(2, context="spawn")),
    ):
        with pool:
            found[kind] = writers.run(name, pool)
        pool.join(timeout=120)
    n_process, n_file, _ = _native.copies_locks()
    packages.say(writers=found, writers_lock=[*["fcntl"] * bool(n_process), *["flock"] * bool(n_file)])


# ---- in the program ----


def is_default(name):
    """Return whether a package is copied by default."""
    return set(packages.NAMES.get(name, [name])) <= set(packages.PACKAGES)


def is_wrong(row):
    """Return whether a process ended early, or had other results than the main interpreter's."""
    return row.get("orders", "right") != "right" or any(what.endswith(" ended") for what in row)


def judge(name, what, timeout_s):
    """Return what a process has found, or how it ended."""
    extensions = None if is_default(name) else packages.NAMES.get(name, [name])
    code = f"import effects; effects.{what}({name!r}, {extensions!r})"
    environment = {**os.environ, "PYTHONPATH": f"{packages.ROOT}{os.pathsep}{HERE}"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=timeout_s
        )
        out, end = done.stdout, "" if done.returncode == 0 else packages.describe_exit(done.returncode)
        errors = done.stderr.strip().splitlines()
        end = f"{end}: {errors[-1][:200]}" if end and errors else end
    except subprocess.TimeoutExpired as error:
        out, end = (error.stdout or b"").decode(), f"no end within {timeout_s:.0f} s"
    row = {}
    for line in out.splitlines():
        if line.startswith("MEASURED "):
            row.update(json.loads(line.removeprefix("MEASURED ")))
    return {**row, **({f"{what} ended": end} if end else {})}


def is_installed(name):
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages as in uses/ and writers.py")
    parser.add_argument("--writers", action="store_true", help="only the writers")
    parser.add_argument("--timeout", type=float, default=400, metavar="S", help="limit for each process")
    options = parser.parse_args()
    known = [name for name in (*uses.ALL, *writers.ALL) if name in writers.STANDARD or is_installed(name)]
    failed = []
    for name in options.names or dict.fromkeys(known):
        rows = read()
        row = rows.get(name, {})
        if name in uses.ALL and not options.writers:
            row = {**judge(name, "measure", options.timeout), **{k: row[k] for k in row if k.startswith("writers")}}
        if name in writers.ALL:
            row = {
                **{k: row[k] for k in row if not k.startswith("write")},
                **judge(name, "write_twice", options.timeout),
            }
        rows[name] = row
        EFFECTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        print(name, row, flush=True)
        if (is_default(name) or name in writers.STANDARD) and is_wrong(row):
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
