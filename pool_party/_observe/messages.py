"""The messages in which workers send log records and output to the parent, and the part of them that fits one packet.

Both sides import this module, so it imports little. A packet is a header and a part of a message. A socket of type
SOCK_SEQPACKET delivers packets whole and in the order in which they were sent.
"""

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

RECORD, STDOUT, STDERR, MARK = range(4)  # what a message is; only the parent sends marks, to itself
PART_MAX = 32_768  # bytes of a message in one packet; a socket takes 208 KB unless it is told otherwise
MORE = 1  # flags: further parts of this message follow;
UNCOUNTED = 2  # its sender is a child that a task has forked, which does not count what it begins to send

HEADER = struct.Struct("=BBIIQ")  # what it is, flags, the life of its worker, the sender's pid, the message's number
PACKET_MAX = HEADER.size + PART_MAX


def packets(what: int, flags: int, life: int, pid: int, number: int, data: bytes) -> "Iterator[bytes]":
    """Split a message into packets."""
    for at in range(0, len(data), PART_MAX) or (0,):
        more = MORE if at + PART_MAX < len(data) else 0
        yield HEADER.pack(what, flags | more, life, pid, number) + data[at : at + PART_MAX]


def encode_record(fields: "dict[str, Any]") -> bytes:
    """Pickle the fields of a log record. One that does not pickle is replaced by its repr."""
    import pickle

    plain, others = {}, {}
    for name, value in fields.items():
        if value is None or type(value) in (str, int, float, bool):
            plain[name] = value
            continue
        try:
            others[name] = pickle.dumps(value, 5)
        except Exception:
            plain[name] = _repr_of(value)
    return pickle.dumps((plain, others), 5)


def decode_record(data: bytes) -> "dict[str, Any]":
    """Return the fields of a log record. One that cannot be unpickled is replaced by the error's text."""
    import pickle

    fields, others = pickle.loads(data)
    for name, value in others.items():
        try:
            fields[name] = pickle.loads(value)
        except Exception as error:
            fields[name] = f"<it could not be unpickled: {error!r}>"
    return fields  # type: ignore[no-any-return]


def _repr_of(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} object whose repr raised {type(error).__name__}>"
