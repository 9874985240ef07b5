"""Find files with the same content, with a progress bar.

    python examples/duplicates.py [FOLDER] [--kind KIND] [--context METHOD] [--quick]

`imap_unordered` yields each result when it is there, whichever comes first, so that the bar moves evenly; each task
returns its file's path with the checksum, since the order says nothing. `chunksize` makes one task of several small
files.

Without FOLDER it looks through Python's standard library. It prints how many files there are more than once, the
largest of them, and whether a plain loop finds the same.
"""

import argparse
import hashlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from pool_party import ComposablePool


def checksum(path: Path) -> tuple[Path, str]:
    """Return a file's path and the SHA-256 of its content."""
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def progress(results: Iterable, total: int, width: int = 40) -> Iterator:
    """Pass results on, and draw a bar if a person is looking."""
    started_s = time.perf_counter()
    for done, result in enumerate(results, 1):
        yield result
        if sys.stderr.isatty():
            left_s = (time.perf_counter() - started_s) / done * (total - done)
            bar = "#" * (width * done // total)
            print(f"\r[{bar:<{width}}] {done}/{total}, {left_s:.0f} s left ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)


def group(checksums: Iterable[tuple[Path, str]]) -> list[list[Path]]:
    """Return the files that are there more than once: those with the same content together, the largest first."""
    paths = defaultdict(list)
    for path, value in checksums:
        paths[value].append(path)
    groups = [sorted(same) for same in paths.values() if len(same) > 1]
    return sorted(groups, key=lambda same: (-same[0].stat().st_size, same))


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path(os.__file__).parent)
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="process")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="no more than 200 files")
    args = parser.parse_args()
    paths = sorted(path for path in args.folder.rglob("*") if path.is_file() and not path.is_symlink())
    paths = paths[:200] if args.quick else paths

    started_s = time.perf_counter()
    with ComposablePool(kind=args.kind, context=args.context) as pool:
        groups = group(progress(pool.imap_unordered(checksum, paths, chunksize=16), len(paths)))
    pool_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    expected = group(map(checksum, paths))
    loop_s = time.perf_counter() - started_s

    print(f"{len(paths)} files, {len(groups)} of them more than once")
    for same in groups[:3]:
        print(f"{same[0].stat().st_size:>9} bytes: {', '.join(str(path.relative_to(args.folder)) for path in same)}")
    print(f"pool: {pool_s:.2f} s, its start included; plain loop: {loop_s:.2f} s, when all files have been read before")
    print(f"same as the plain loop: {'yes' if groups == expected else 'NO'}")
    return groups == expected


if __name__ == "__main__":
    sys.exit(not main())
