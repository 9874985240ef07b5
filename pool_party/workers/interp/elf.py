"""Reads which libraries an ELF file needs, from a few hundred bytes of the file."""

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LOAD, _DYNAMIC = 1, 2  # types of program headers
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29  # tags of dynamic entries
_IDENT = b"\x7fELF\x02"  # 64-bit; a file of another byte order could not have been loaded


class Dynamic:
    """The dynamic section of a file. It is empty if the file is no ELF file.

    name: the library's own name (SONAME), or empty. needed: names of libraries that it needs. folders: where it looks
    for them.
    """

    def __init__(self, file: str) -> None:
        self.name = ""
        self.needed: list[str] = []
        self.folders: list[str] = []
        self._strings_at = 0
        self._strings = b""
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._read(fd, os.path.dirname(os.path.realpath(file)))
        finally:
            os.close(fd)

    def _read(self, fd: int, origin: str) -> None:
        header = os.pread(fd, 64, 0)
        if len(header) < 64 or not header.startswith(_IDENT):
            return
        at, size, count = struct.unpack_from("=32xQ14xHH", header)
        segments = list(
            struct.iter_unpack("=IIQQQQQQ", os.pread(fd, size * count, at))
        )  # type, flags, offset, vaddr, _, size
        loads = [(vaddr, length, offset) for kind, _, offset, vaddr, _, length, *_ in segments if kind == _LOAD]
        dynamic = [os.pread(fd, length, offset) for kind, _, offset, _, _, length, *_ in segments if kind == _DYNAMIC]
        if not dynamic:
            return
        entries = list(struct.iter_unpack("=qQ", dynamic[0]))
        values = dict(entries)
        table = values.get(_STRTAB, 0)
        for vaddr, length, offset in loads:
            if vaddr <= table < vaddr + length:
                self._strings_at = table - vaddr + offset
        self._strings = os.pread(fd, values.get(_STRSZ, 0), self._strings_at)
        self.needed = [self._text(value) for tag, value in entries if tag == _NEEDED]
        if _SONAME in values:
            self.name = self._text(values[_SONAME])
        path = values.get(_RUNPATH, values.get(_RPATH))
        if path is not None:
            self.folders = [
                folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in self._text(path).split(":")
            ]

    def _text(self, start: int) -> str:
        return os.fsdecode(self._strings[start : self._strings.index(b"\0", start)])

    def rename(self, fd: int, names: "Mapping[str, str]") -> None:
        """Rename libraries in a copy of the file, which `fd` refers to.

        Raises: ValueError if a new name is too long, or if the file stores the old one in a way that cannot be changed.
        """
        strings = self._strings
        for old, new in names.items():
            before, after = os.fsencode(old), os.fsencode(new)
            whole = b"\0" + before + b"\0"  # a whole string: the tail of a longer one must not change
            if not old or len(after) > len(before) or whole not in strings:
                raise ValueError(f"the name {old!r} cannot be changed to {new!r}")
            strings = strings.replace(whole, b"\0" + after.ljust(len(before), b"\0") + b"\0")
        if strings != self._strings:
            os.pwrite(fd, strings, self._strings_at)
