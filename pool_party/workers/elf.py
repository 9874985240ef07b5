"""Which libraries an ELF file needs, and where it says to look for them. Reads a few hundred bytes of the file."""

import os
import struct

_LOAD, _DYNAMIC = 1, 2  # types of program headers
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29  # tags of dynamic entries
_IDENT = b"\x7fELF\x02"  # 64-bit; the byte order is this machine's, or the file could not be loaded


def read_needed(file: str) -> "tuple[list[str], list[str]]":
    """The names of the libraries that `file` needs, and the folders that it names for them; none if it is no ELF."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_needed(fd, os.path.dirname(os.path.realpath(file)))
    finally:
        os.close(fd)


def _read_needed(fd: int, origin: str) -> "tuple[list[str], list[str]]":
    header = os.pread(fd, 64, 0)
    if len(header) < 64 or not header.startswith(_IDENT):
        return [], []
    at, size, count = struct.unpack_from("=32xQ14xHH", header)
    segments = list(
        struct.iter_unpack("=IIQQQQQQ", os.pread(fd, size * count, at))
    )  # type, flags, offset, vaddr, _, size
    loads = [(vaddr, length, offset) for kind, _, offset, vaddr, _, length, *_ in segments if kind == _LOAD]
    dynamic = [os.pread(fd, length, offset) for kind, _, offset, _, _, length, *_ in segments if kind == _DYNAMIC]
    if not dynamic:
        return [], []
    entries = list(struct.iter_unpack("=qQ", dynamic[0]))
    values = dict(entries)
    table = values.get(_STRTAB, 0)
    offset = next((table - vaddr + offset for vaddr, length, offset in loads if vaddr <= table < vaddr + length), 0)
    strings = os.pread(fd, values.get(_STRSZ, 0), offset)

    def text(start: int) -> str:
        return os.fsdecode(strings[start : strings.index(b"\0", start)])

    needed = [text(value) for tag, value in entries if tag == _NEEDED]
    path = values.get(_RUNPATH, values.get(_RPATH))
    folders = text(path).split(":") if path is not None else []
    return needed, [folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders]
