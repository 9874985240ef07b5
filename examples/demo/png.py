"""A writer of PNG files, as small as the format allows: 8-bit RGB, no filter, one zlib stream."""

import zlib
from pathlib import Path

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB_8_BIT = bytes((8, 2, 0, 0, 0))  # bit depth, colour type, compression, filter, interlace


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return len(data).to_bytes(4) + name + data + checksum.to_bytes(4)


def encode_png(width: int, height: int, pixels: bytes) -> bytes:
    """Return a PNG file for `pixels`: rows from the top, three bytes (red, green, blue) each.

    Raises:
        ValueError: `pixels` is not exactly 3 * width * height bytes long.
    """
    row_bytes = 3 * width
    if len(pixels) != row_bytes * height:
        expected = row_bytes * height
        raise ValueError(f"{width} x {height} pixels are {expected} bytes, got {len(pixels)}")
    rows = (pixels[start : start + row_bytes] for start in range(0, len(pixels), row_bytes))
    unfiltered = b"".join(b"\0" + row for row in rows)
    header = width.to_bytes(4) + height.to_bytes(4) + _RGB_8_BIT
    return b"".join(
        (
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(unfiltered, 9)),
            _chunk(b"IEND", b""),
        )
    )


def write_png(path: Path, width: int, height: int, pixels: bytes) -> None:
    """Write `pixels` to `path` as a PNG file (see `encode_png`), replacing an existing file."""
    path.write_bytes(encode_png(width, height, pixels))
