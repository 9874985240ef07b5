"""Reads which libraries an ELF file needs, and changes names and symbols in a copy of the file."""

import mmap
import os
import struct

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LOAD, _DYNAMIC, _TLS = 1, 2, 7  # types of program headers
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = (
    1,
    4,
    5,
    6,
    10,
    14,
    15,
    29,
)  # dynamic entries
_GNU_HASH = 0x6FFFFEF5  # the same
_FLAGS, _STATIC_TLS = 30, 16  # the same, and one of its bits
_INIT, _INIT_ARRAY, _FINI, _FINI_ARRAY = 12, 25, 13, 26  # the same, of constructors and destructors
_POSTPONED = 0x60505000  # makes these tags ones that the linker ignores; native/interp/imports.c knows them
_ENTRY = 16  # bytes of an entry
_SYMBOL = 24  # bytes of a symbol, the fifth of which is its binding and type
_WEAK, _UNIQUE = 2, 10  # bindings of symbols
_IDENT = b"\x7fELF\x02"  # 64-bit; a file of another byte order could not have been loaded


class Dynamic:
    """The dynamic section of a file. It is empty if the file is no ELF file.

    name: the library's own name (SONAME), or empty. needed: names of libraries that it needs. folders: where it looks
    for them. static_tls_bytes: what it takes of the C library's block for thread-local variables, whose size is fixed.
    """

    def __init__(self, file: str) -> None:
        self.name = ""
        self.needed: list[str] = []
        self.folders: list[str] = []
        self.static_tls_bytes = 0
        self._strings_at = 0
        self._strings = b""
        self._entries: dict[int, int] = {}  # tag -> value, of which some are addresses
        self._tags_at: dict[int, int] = {}  # tag -> where in the file it is
        self._loads: list[tuple[int, int, int]] = []  # address, length and offset in the file, of each segment
        _native.occupy_standard()
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
        )  # type, flags, offset, vaddr, _, size in the file, size in memory
        self._loads = [(vaddr, length, offset) for kind, _, offset, vaddr, _, length, *_ in segments if kind == _LOAD]
        dynamic = [(offset, length) for kind, _, offset, _, _, length, *_ in segments if kind == _DYNAMIC]
        if not dynamic:
            return
        at, length = dynamic[0]
        entries = list(struct.iter_unpack("=qQ", os.pread(fd, length, at)))
        self._entries = values = dict(entries)
        if values.get(_FLAGS, 0) & _STATIC_TLS:
            self.static_tls_bytes = sum(length for kind, *_, length, _ in segments if kind == _TLS)
        self._tags_at = {tag: at + n * _ENTRY for n, (tag, _) in enumerate(entries)}
        self._strings_at = self._offset(_STRTAB)
        self._strings = os.pread(fd, values.get(_STRSZ, 0), self._strings_at)
        self.needed = [self._text(value) for tag, value in entries if tag == _NEEDED]
        if _SONAME in values:
            self.name = self._text(values[_SONAME])
        path = values.get(_RUNPATH, values.get(_RPATH))
        if path is not None:
            self.folders = [
                folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in self._text(path).split(":")
            ]

    def _offset(self, tag: int) -> int:
        """Return where in the file the table is whose address an entry gives; 0 if there is none."""
        address = self._entries.get(tag, 0)
        return next((address - vaddr + at for vaddr, length, at in self._loads if vaddr <= address < vaddr + length), 0)

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

    def give_name(self, fd: int, name: str) -> None:
        """Give a library without a name one, in a copy that `fd` refers to.

        It takes the place of the list of folders, which a copy does not need.

        Raises: ValueError if there is no such list, or it is too short.
        """
        tag = _RUNPATH if _RUNPATH in self._tags_at else _RPATH
        start = self._entries.get(tag, 0)
        if tag not in self._tags_at or len(name) > len(self._text(start)):
            raise ValueError("other libraries could not find it, since it has no name, and no place for one")
        string = os.fsencode(name) + b"\0"
        self._strings = self._strings[:start] + string + self._strings[start + len(string) :]
        os.pwrite(fd, string, self._strings_at + start)
        os.pwrite(fd, struct.pack("=q", _SONAME), self._tags_at[tag])

    def replace(self, fd: int, texts: "Mapping[bytes, bytes]") -> None:
        """Replace texts in a copy that `fd` refers to, wherever they are, by others of the same length."""
        with mmap.mmap(fd, 0) as data:
            for old, new in texts.items():
                at = data.find(old)
                while at >= 0:
                    data[at : at + len(old)] = new
                    at = data.find(old, at)

    def postpone_constructors(self, fd: int) -> None:
        """Make the linker call no constructors and destructors of the library, in a copy that `fd` refers to.

        The loader calls them, once the copy is bound to what it shall call, and before it is unloaded.
        """
        for tag in (_INIT, _INIT_ARRAY, _FINI, _FINI_ARRAY):
            if tag in self._tags_at:
                os.pwrite(fd, struct.pack("=q", tag | _POSTPONED), self._tags_at[tag])

    def make_unique_symbols_ordinary(self, fd: int) -> None:
        """Make symbols that are unique in a process unique in their library, in a copy that `fd` refers to.

        The compiler makes static variables of templates and of inline functions unique. All copies would use those of
        one, which the linker would never unload.
        """
        at = self._offset(_SYMTAB)
        infos = os.pread(fd, self._count_symbols(fd) * _SYMBOL, at)[4::_SYMBOL]
        if max(infos, default=0) >> 4 < _UNIQUE:
            return  # as in most files; this is much faster than the loop
        for n, info in enumerate(infos):
            if info >> 4 == _UNIQUE:
                os.pwrite(fd, bytes([_WEAK << 4 | info & 15]), at + n * _SYMBOL + 4)

    def _count_symbols(self, fd: int) -> int:
        """Return the number of symbols. Only hash tables tell: in GNU's, the last symbol ends the last chain."""
        if at := self._offset(_HASH):
            return int(struct.unpack("=4xI", os.pread(fd, 8, at))[0])
        at = self._offset(_GNU_HASH)
        if not at:
            return 0
        n_buckets, first, n_words, _ = struct.unpack("=4I", os.pread(fd, 16, at))
        at += 16 + 8 * n_words
        last = max(struct.unpack(f"={n_buckets}I", os.pread(fd, 4 * n_buckets, at)))
        at += 4 * n_buckets
        while last >= first and not struct.unpack("=I", os.pread(fd, 4, at + 4 * (last - first)))[0] & 1:
            last += 1
        return int(last) + 1
