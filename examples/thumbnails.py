"""Make thumbnails of all pictures of a folder, and a contact sheet of them.

    python examples/thumbnails.py [FOLDER] [--output FILE] [--kind KIND] [--context METHOD] [--quick]

Only a path travels to the worker, and a small picture comes back: `imap` yields these in the order of the files.
Pillow lets other threads run while it decodes and shrinks, so threads are a good choice here.

Without FOLDER it draws some large pictures first. It prints how long a plain loop and the pool took and whether they
made the same thumbnails, and writes the contact sheet.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from pool_party import ComposablePool

try:
    from PIL import Image, ImageOps
except ImportError:
    print("Skipped: this example needs Pillow (pip install pillow)")
    sys.exit()

EDGE = 64  # pixels of a thumbnail's longer side


def make_thumbnail(path: Path) -> Image.Image:
    """Return a picture's copy that fits into a square of EDGE pixels."""
    with Image.open(path) as picture:
        return ImageOps.contain(picture.convert("RGB"), (EDGE, EDGE))


def draw_pictures(folder: Path, count: int, width: int) -> Path:
    """Save pictures of smaller and smaller parts of the Mandelbrot set; return the folder."""
    for n in range(count):
        half = 1.2 / 1.35**n
        box = (-0.7436 - half, 0.1318 - half, -0.7436 + half, 0.1318 + half)
        part = Image.effect_mandelbrot((200, 200), box, 100)
        ImageOps.colorize(part, "navy", "white", "orange").resize((width, width)).save(folder / f"{n:02}.jpg")
    return folder


def save_sheet(thumbnails: list[Image.Image], path: Path) -> None:
    """Write one picture with all thumbnails, four in a row."""
    sheet = Image.new("RGB", (4 * EDGE, (len(thumbnails) + 3) // 4 * EDGE), "white")
    for n, thumbnail in enumerate(thumbnails):
        sheet.paste(thumbnail, (n % 4 * EDGE, n // 4 * EDGE))
    sheet.save(path, optimize=True)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--output", type=Path, default=Path("thumbnails.png"))
    parser.add_argument("--kind", choices=("thread", "process"), default="thread")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="few and small pictures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as drawn:
        folder = args.folder or draw_pictures(Path(drawn), *((4, 150) if args.quick else (16, 3000)))
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in Image.registered_extensions())
        paths or parser.error(f"there are no pictures in {folder}")
        started_s = time.perf_counter()
        expected = [make_thumbnail(path).tobytes() for path in paths]
        loop_s, started_s = time.perf_counter() - started_s, time.perf_counter()
        with ComposablePool(kind=args.kind, context=args.context) as pool:
            thumbnails = list(pool.imap(make_thumbnail, paths))
        pool_s = time.perf_counter() - started_s
    is_same = [thumbnail.tobytes() for thumbnail in thumbnails] == expected
    print(f"{len(paths)} pictures; loop: {loop_s:.2f} s; pool: {pool_s:.2f} s, {loop_s / pool_s:.2f} times as fast")
    print(f"same thumbnails: {'yes' if is_same else 'NO'}")
    save_sheet(thumbnails, args.output)
    return is_same


if __name__ == "__main__":
    sys.exit(not main())
