"""Find files with the same content, with a progress bar.

    python examples/duplicates.py [FOLDER] [--kind KIND] [--context METHOD] [--quick]

`imap_unordered` yields each result as soon as it is there, so that the bar moves evenly; each task returns its file's
path with the checksum, since the order says nothing. `chunksize` makes one task of several small files.

Without FOLDER it looks through the packages that are installed. It prints the largest files that occur more
than once, how long the pool and a plain loop took, and whether these found the same.
"""

import argparse
import hashlib
import sys
import sysconfig
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
    parser.add_argument("folder", type=Path, nargs="?", default=Path(sysconfig.get_path("purelib")))
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="thread")
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

    print(f"{len(paths)} files; {len(groups)} contents occur more than once")
    for same in groups[:3]:
        print(f"{same[0].stat().st_size:>9} bytes: {', '.join(str(path.relative_to(args.folder)) for path in same)}")
    print(f"pool: {pool_s:.2f} s, its start included; plain loop: {loop_s:.2f} s, when all files have been read before")
    print(f"same as the plain loop: {'yes' if groups == expected else 'NO'}")
    return groups == expected


if __name__ == "__main__":
    sys.exit(not main())
