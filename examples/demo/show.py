"""The demonstration itself: renders the picture with every kind of worker, then solves problems."""

import platform
import sys
from collections.abc import Iterator

from demo.conclusions import conclusions
from demo.next_steps import next_steps
from demo.plan import Plan
from demo.png import write_png
from demo.pools import ALONE, KindUnavailable, open_pool
from demo.progress import Progress
from demo.raytrace import Tile, cut_in_tiles, paste, render_tile
from demo.sweep import run_sweep
from demo.terminal import can_show, draw
from pool_party._measuring.meter import Meter, Usage, memory_measure
from pool_party._measuring.table import format_mb, format_table


def _render(plan: Plan, kind: str, progress: Progress) -> tuple[bytes, Usage]:
    """Render the picture with one kind of worker. Return its pixels and what they cost."""
    size = plan.width_px, plan.height_px
    jobs = [(*size, tile) for tile in cut_in_tiles(*size, plan.tile_px)]
    picture = bytearray(3 * plan.width_px * plan.height_px)
    progress.start(kind, len(jobs))

    def collect(tiles: Iterator[tuple[Tile, bytes]]) -> None:
        for tile, pixels in tiles:
            paste(picture, plan.width_px, tile, pixels)
            progress.advance()
        meter.sample()

    with Meter() as meter:
        if kind == ALONE:
            collect(map(render_tile, jobs))
        else:
            with open_pool(kind, plan.n_workers) as pool:
                collect(pool.imap_unordered(render_tile, jobs))
    progress.finish(f"{meter.usage.wall_s:.2f} s")
    return bytes(picture), meter.usage


def _render_all(plan: Plan) -> tuple[dict[str, bytes], dict[str, Usage]]:
    pictures: dict[str, bytes] = {}
    usages: dict[str, Usage] = {}
    progress = Progress()
    for kind in (ALONE, *plan.kinds):
        try:
            pictures[kind], usages[kind] = _render(plan, kind, progress)
        except KindUnavailable as reason:
            progress.finish(f"not on this Python: {reason}")
    return pictures, usages


def _table(pictures: dict[str, bytes], usages: dict[str, Usage]) -> str:
    headings = (
        "workers",
        "wall time",
        "speed-up",
        "CPU use",
        f"peak {memory_measure() or 'memory'}",
        "picture",
    )
    alone_s = usages[ALONE].wall_s
    rows = [
        (
            kind,
            f"{usage.wall_s:.2f} s",
            f"{alone_s / usage.wall_s:.2f} x",
            f"{usage.cores:.2f} cores",
            format_mb(usage.peak_bytes),
            "same" if pictures[kind] == pictures[ALONE] else "DIFFERENT",
        )
        for kind, usage in usages.items()
    ]
    return format_table(headings, rows)


def _intro(plan: Plan) -> str:
    """Return two lines that announce the work, the workers and the Python version."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"pool_party: the same work with {plan.n_workers} workers of each kind, on {python}.\n"
        f"A ray-traced picture of {plan.width_px} x {plan.height_px} pixels in pure Python, "
        f"one task per tile:"
    )


def run_plan(plan: Plan) -> int:
    """Run the demonstration and print it. Return 0, or 1 if two kinds gave different results."""
    print(_intro(plan), flush=True)
    pictures, usages = _render_all(plan)
    write_png(plan.output, plan.width_px, plan.height_px, pictures[ALONE])
    print(f"\n{_table(pictures, usages)}\n", flush=True)

    outcome = run_sweep(plan)
    print("What this shows:")
    for sentence in conclusions(plan.n_workers, usages, outcome.rates):
        print(f"  - {sentence}")
    if can_show(sys.stdout):
        print("", *draw(plan.width_px, plan.height_px, pictures[ALONE]), sep="\n")
    print("", *next_steps(plan.output), sep="\n")
    is_same = all(picture == pictures[ALONE] for picture in pictures.values())
    if is_same and outcome.is_same:
        return 0
    print("demo: the kinds disagree, which must never happen", file=sys.stderr)
    return 1
