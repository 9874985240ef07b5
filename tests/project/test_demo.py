"""The demonstration: its picture, its file, its figures and its words."""

import io
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from demo import command as _command
from demo import pools, show, sweep, terminal
from demo.conclusions import conclusions
from demo.next_steps import _PAGES, next_steps
from demo.plan import default_n_workers, make_plan
from demo.png import encode_png
from demo.raytrace import Tile, cut_in_tiles, paste, render_tile

from pool_party._measuring.meter import Usage

ROOT = Path(__file__).resolve().parents[2]
SIZE = WIDTH, HEIGHT = 32, 18
CRC_OF_PICTURE = 2889200509  # of the pixels of a picture of that size; the same on every machine


def render(edge: int) -> bytes:
    """Render the picture in tiles of the given edge, the last tile first."""
    picture = bytearray(3 * WIDTH * HEIGHT)
    for tile in reversed(cut_in_tiles(*SIZE, edge)):
        paste(picture, WIDTH, *render_tile((*SIZE, tile)))
    return bytes(picture)


def read_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and data of the chunks of a PNG file, checking their lengths and checksums."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    position = 8
    while position < len(png):
        length = int.from_bytes(png[position : position + 4])
        body = png[position + 4 : position + 8 + length]
        checksum = png[position + 8 + length : position + 12 + length]
        assert zlib.crc32(body) == int.from_bytes(checksum)
        yield body[:4], body[4:]
        position += 12 + length
    assert position == len(png)


def decode_png(png: bytes) -> tuple[int, int, bytes]:
    """Return width, height and pixels of a PNG file that uses no filter."""
    chunks = dict(read_chunks(png))
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    header = chunks[b"IHDR"]
    assert header[8:] == bytes((8, 2, 0, 0, 0))
    width, height = int.from_bytes(header[:4]), int.from_bytes(header[4:8])
    rows = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 3 * width
    assert len(rows) == stride * height
    assert not any(rows[::stride])
    pixels = b"".join(rows[start + 1 : start + stride] for start in range(0, len(rows), stride))
    return width, height, pixels


def demo(*arguments: str, output: Path) -> int:
    """Run the command in this process, with a picture that takes almost no time."""
    command = ["--quick", "--size", f"{WIDTH}x{HEIGHT}", "--workers", "2"]
    return _command.main([*command, "--output", str(output), *arguments])


# ---- picture


def test_png_round_trip() -> None:
    pixels = bytes(range(5 * 3 * 3))
    assert decode_png(encode_png(5, 3, pixels)) == (5, 3, pixels)


def test_png_of_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="5 x 3 pixels are 45 bytes, got 44"):
        encode_png(5, 3, bytes(44))


@pytest.mark.parametrize("edge", [1, 5, 7, 18, 100])
def test_tiles_cover_every_pixel_once(edge: int) -> None:
    def pixels_of(tile: Tile) -> list[tuple[int, int]]:
        left, top, right, bottom = tile
        return [(x, y) for y in range(top, bottom) for x in range(left, right)]

    covered = [pixel for tile in cut_in_tiles(*SIZE, edge) for pixel in pixels_of(tile)]
    assert sorted(covered) == [(x, y) for x in range(WIDTH) for y in range(HEIGHT)]


def test_tiles_make_the_whole_picture() -> None:
    _, whole = render_tile((*SIZE, (0, 0, WIDTH, HEIGHT)))
    assert render(5) == render(7) == whole


def test_picture_is_the_same_everywhere() -> None:
    assert zlib.crc32(render(8)) == CRC_OF_PICTURE


# ---- text


def usages(**wall_s: float) -> dict[str, Usage]:
    """Return what each kind cost: its wall time, one core, and increasing memory."""
    return {
        kind: Usage(taken_s, taken_s, 20_000_000 + 10_000_000 * number)
        for number, (kind, taken_s) in enumerate(wall_s.items())
    }


def test_conclusions_follow_the_figures() -> None:
    said = " ".join(
        conclusions(
            2,
            usages(sequential=2.0, thread=2.1, interp=1.02, process=1.0),
            {"sequential": {9: 100.0}, "thread": {9: 190.0}, "process": {9: 110.0}},
        )
    )
    assert "2 threads ran the pure Python 0.95 x as fast as none" in said
    assert 'For pure Python, take kind="interp"' in said  # as fast as process, with less memory
    assert "process 30 MB" in said
    assert 'For these NumPy problems, take kind="thread"' in said


def test_conclusions_do_not_praise_what_gained_nothing() -> None:
    slow = usages(sequential=1.0, thread=1.0, process=1.1)
    said = " ".join(conclusions(2, slow, {"sequential": {9: 1.0}, "process": {9: 1.0}}))
    assert "No kind gained much on pure Python" in said
    assert "No kind gained much on these NumPy problems" in said


def test_conclusions_of_one_worker_alone() -> None:
    assert len(conclusions(2, usages(sequential=1.0), {})) == 1


def test_conclusions_mention_a_busy_machine() -> None:
    busy = {"sequential": Usage(1.0, 1.0, None), "process": Usage(0.5, 1.0, None, 1.5)}
    n_cpus = os.cpu_count() or 1
    assert "Other programs kept 1.0 cores busy" in conclusions(n_cpus, busy, {})[-1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tutorial.md").touch()
    (tmp_path / "Makefile").touch()
    return tmp_path


def test_it_ends_with_the_picture_and_three_pages(tmp_path: Path) -> None:
    said = list(next_steps(tmp_path / "x.png", checkout=tmp_path, site="https://there", version=(3, 14), has_gil=True))
    assert said[0] == f"The picture: file://{tmp_path}/x.png"
    assert [line.split()[-1] for line in said if "https://" in line] == [
        *("https://there/tutorial.html", "https://there/howto/choose-a-kind.html", "https://there/migrating.html")
    ]
    assert "3.14" not in " ".join(said)


def test_pages_of_a_checkout_are_files(checkout: Path) -> None:
    said = " ".join(next_steps(Path("x.png"), checkout=checkout, site="https://there"))
    assert str(checkout / "docs" / "tutorial.md") in said
    assert "https://there/tutorial.html" not in said


def test_the_pages_are_there() -> None:
    docs = ROOT / "docs"
    if (docs / "conf.py").is_file():  # the documentation's sources are there
        assert [page for _, page in _PAGES if not (docs / f"{page}.md").is_file()] == []


def test_a_copy_without_documentation_names_none(tmp_path: Path) -> None:
    assert len(list(next_steps(Path("x.png"), checkout=tmp_path, site="", version=(3, 15), has_gil=True))) == 1


@pytest.mark.parametrize(("version", "has_gil", "name"), [((3, 12), True, "3.12"), ((3, 14), False, "3.14t")])
def test_it_says_how_to_get_a_python_that_loads_numpy(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, version: tuple[int, int], has_gil: bool, name: str
) -> None:
    options = {"site": "", "version": version, "has_gil": has_gil}
    said = " ".join(next_steps(Path("x.png"), checkout=checkout, **options))
    assert f"this is {name}." in said
    assert "uv python install 3.14" in said
    assert "pyenv install 3.14" in said
    assert "make demo PYTHON=3.14" in said
    installed = " ".join(next_steps(Path("x.png"), checkout=tmp_path_factory.mktemp("site-packages"), **options))
    assert "make demo" not in installed
    assert installed.endswith("examples/demo")


# ---- command


def test_plan() -> None:
    assert 1 <= default_n_workers() <= 8
    plan = make_plan(Path("x.png"), 2)
    assert len(cut_in_tiles(plan.width_px, plan.height_px, plan.tile_px)) > 100
    assert make_plan(Path("x.png"), 2, quick=True).width_px < plan.width_px
    assert make_plan(Path("x.png"), 2, with_numpy=False).sweep == ()


def test_demo_saves_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "picture.png"
    assert demo("--kinds", "sequential", "--skip-numpy", output=output) == 0
    assert decode_png(output.read_bytes()) == (*SIZE, render(8))
    printed = capsys.readouterr().out
    assert re.search(r"^  sequential .* 1\.00 x .* same$", printed, re.MULTILINE)
    assert "\r" not in printed  # standard output is not a terminal here


def test_demo_fails_if_pictures_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def render_wrong(plan: Any, kind: str, progress: Any) -> tuple[bytes, Usage]:
        pixel = bytes([kind == "thread"])
        return pixel * (3 * WIDTH * HEIGHT), Usage(1.0, 1.0, None)

    monkeypatch.setattr(show, "_render", render_wrong)
    assert demo("--kinds", "thread", "--skip-numpy", output=tmp_path / "x.png") == 1
    captured = capsys.readouterr()
    assert "DIFFERENT" in captured.out
    assert "disagree" in captured.err


def test_demo_goes_on_without_a_kind_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("no such thing")

    monkeypatch.setattr(pools, "ComposablePool", refuse)
    assert demo("--kinds", "interp", "--skip-numpy", output=tmp_path / "x.png") == 0
    assert "not on this Python: no such thing" in capsys.readouterr().out


def test_sweep_tries_whether_workers_can_load_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def apply(self, task: Any) -> NoReturn:
            raise ImportError("no")

    @contextmanager
    def open_fake(kind: str, n_workers: int) -> Iterator[Pool]:
        yield Pool()

    monkeypatch.setattr(sweep, "open_pool", open_fake)
    assert sweep._why_not("interp").startswith("not on this Python")
    assert sweep._why_not("process").startswith("not here")


COLOURS = re.compile("\x1b\\[38;5;(\\d+);48;5;(\\d+)m\u2580")
RED, BLUE, WHITE = b"\xff\0\0", b"\0\0\xff", b"\xff" * 3


def test_a_terminal_shows_two_pixels_in_a_character() -> None:
    (line,) = terminal.draw(2, 2, RED + WHITE + BLUE + bytes(3))
    assert COLOURS.findall(line) == [("196", "21"), ("231", "16")]
    assert line.endswith("\x1b[0m")


@pytest.mark.parametrize("size", [(1, 1), (320, 180), (3, 500), (500, 3)])
def test_a_terminal_shows_pictures_of_any_size(size: tuple[int, int]) -> None:
    width, height = size
    lines = list(terminal.draw(width, height, RED * (width * height)))
    assert lines and all(COLOURS.findall(line) == [("196", "196")] * min(width, 64) for line in lines)


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_shown"),
    [
        ({"TERM": "xterm-256color"}, True, True),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True, True),
        ({"TERM": "xterm-256color"}, False, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_only_a_terminal_with_colours_shows_the_picture(
    environment: dict[str, str], is_terminal: bool, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(stream.buffer, "isatty", lambda: is_terminal, raising=False)
    assert terminal.can_show(stream) is is_shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workers 0", "'0' is not a whole number from 1 on"),
        ("--workers two", "'two' is not a whole number from 1 on"),
        ("--size 640", "'640' is not a size such as 640x480"),
        ("--size 640x", "'640x' is not a size such as 640x480"),
        ("--kinds fibre", "fibre: no such kind of workers"),
    ],
)
def test_wrong_values_are_told_in_words(capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        _command.main(arguments.split())
    assert exit_.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(message)


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--kinds", "fibre"], ["--size", "10"], ["--size", "0x4"]])
def test_demo_refuses_nonsense(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        demo(*arguments, output=tmp_path / "x.png")
    assert exit_.value.code == 2


def test_demo_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert demo(output=tmp_path / "nowhere" / "x.png") == 2


@pytest.mark.slow
def test_demo_with_all_kinds(tmp_path: Path) -> None:
    output = tmp_path / "picture.png"
    command = [sys.executable, str(ROOT / "examples" / "demo"), "--quick", "--workers", "2"]
    options = ["--size", f"{WIDTH}x{HEIGHT}", "--skip-numpy", "--output", str(output)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    n_missing = done.stdout.count("not on this Python")
    assert done.stdout.count("same\n") + n_missing == 4
    assert output.is_file()
