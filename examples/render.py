"""Render a picture in tiles, which arrive in any order.

    python examples/render.py [--kind KIND] [--context METHOD] [--output FILE] [--quick]

A picture is cut into squares, and each square is one task. `imap_unordered` takes the same arguments as the built-in
`map` and yields each tile as soon as a worker has finished it, so the plain loop and the pool share all other code.

It prints how long both took, whether they made the same picture, and writes that picture as a PNG file. The ray
tracer, which is in the folder `demo` beside this file, is plain Python: threads gain nothing here, since they share
one GIL. Interpreters and processes have a GIL each.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from demo.png import write_png
from demo.raytrace import cut_in_tiles, paste, render_tile

from pool_party import ComposablePool


def render(map_tiles: Callable[..., Iterable], width: int, height: int) -> tuple[bytes, float]:
    """Render the picture by `map_tiles(function, tasks)`; return its pixels and the seconds that it took."""
    started_s = time.perf_counter()
    picture = bytearray(3 * width * height)
    tasks = [(width, height, tile) for tile in cut_in_tiles(width, height, edge=16)]
    for tile, pixels in map_tiles(render_tile, tasks):
        paste(picture, width, tile, pixels)
    return bytes(picture), time.perf_counter() - started_s


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="interp")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--output", type=Path, default=Path("render.png"))
    parser.add_argument("--quick", action="store_true", help="a very small picture")
    return parser.parse_args()


def main() -> bool:
    args = parse_arguments()
    width, height = (32, 18) if args.quick else (320, 180)
    expected, loop_s = render(map, width, height)
    with ComposablePool(kind=args.kind, context=args.context) as pool:
        picture, pool_s = render(pool.imap_unordered, width, height)
    is_same = picture == expected
    print(f"{width} x {height} pixels, workers of kind {args.kind!r}")
    print(f"plain loop: {loop_s:.2f} s")
    print(f"pool:       {pool_s:.2f} s, {loop_s / pool_s:.2f} times as fast")
    print(f"same picture: {'yes' if is_same else 'NO'}")
    write_png(args.output, width, height, picture)
    return is_same


if __name__ == "__main__":
    sys.exit(not main())
