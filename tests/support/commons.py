"""Tasks and values for test_common.py that every kind of worker can import."""

import collections
import itertools
import multiprocessing
import os
import pickle
import signal
import zlib

import tasks

import pool_party

kept = []  # what this worker has kept of earlier tasks


class Buffer:
    """A value whose data is sent beside the pickle, as an array's is."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Buffer, (pickle.PickleBuffer(self.data),)


class Plain:
    """A value that needs pickle."""

    def __init__(self, *parts):
        self.parts = parts


def first_and_size(value):
    """Follow the first parts of a nested value down to its data."""
    while not isinstance(value, (bytes, str, Buffer)):
        value = value.parts[0] if isinstance(value, Plain) else value[0]
    data = value.data if isinstance(value, Buffer) else value
    return data[0], len(data)


def pass_gate_with(path, value):
    tasks.pass_gate(path)
    return first_and_size(value)


def add_one(buffer):
    """Write to the argument. Return what was there before."""
    before = buffer.data[0]
    buffer.data[0] = before + 1
    return before


def keep(buffer):
    """Keep the argument beyond its task. Return the first bytes of all that this worker has kept."""
    kept.append(buffer)
    return [buffer.data[0] for buffer in kept]


def look_at_kept(_):
    found = [(buffer.data[0], buffer.data[-1]) for buffer in kept]
    kept.clear()
    return found


def are_one(pair):
    return pair[0] is pair[-1]


def kill_worker(value, dies):
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return first_and_size(value)


def nest(blob, start_method):
    """Run a task in a pool inside a worker. The inner workers may be forked with what this worker holds."""
    with pool_party.ComposablePool(1, kind="process", context=multiprocessing.get_context(start_method)) as inner:
        return inner.map(first_and_size, [bytes(len(blob))] * 2, 1)[1]


def fork_and_read(buffer):
    """Return what a forked child sees of this worker's argument after the worker has written to its own copy."""
    reader, writer = os.pipe()
    go_reader, go_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go_reader, 1)
        os.write(writer, bytes([buffer.data[0]]))
        os._exit(0)
    buffer.data[0] = 9
    os.write(go_writer, b".")
    seen = os.read(reader, 1)[0]
    os.waitpid(pid, 0)
    for fd in (reader, writer, go_reader, go_writer):
        os.close(fd)
    return seen


def describe(value, numbers=None):
    """Describe a value's shape, with a number for each object in it."""
    numbers = {} if numbers is None else numbers
    if isinstance(value, (list, tuple)):
        found = type(value).__name__, [describe(part, numbers) for part in value]
    elif isinstance(value, Buffer):
        found = "buffer", len(value.data), value.data[0], numbers.setdefault(id(value), len(numbers))
    elif isinstance(value, (bytes, str)):
        found = type(value).__name__, len(value), value[0], numbers.setdefault(id(value), len(numbers))
    else:
        found = value
    return found


class Numbers(list):
    """A list of another type, which can be referred to weakly."""


class Counted:
    """A value that counts how often it is pickled."""

    n_pickled = 0

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts)

    def __reduce__(self):
        self.n_pickled += 1
        return Counted, (self.parts,)


class Numbered:
    """Arrives as a list that begins with another number each time."""

    numbers = itertools.count()

    def __init__(self, parts):
        self.parts = parts

    def __reduce__(self):
        return numbered, (self.parts,)


def numbered(parts):
    return [next(Numbered.numbers), *parts]


class Particular:
    """An object without a `__dict__` that raises another error if somebody asks for it."""

    __slots__ = ("items",)

    def __init__(self, items):
        self.items = items

    def __getattr__(self, name):
        raise RuntimeError(name) if name == "__dict__" else AttributeError(name)

    def __len__(self):
        return len(self.items)


def change(value, _):
    """Change an object. Return how often it was changed before, in this copy."""
    if isinstance(value, (list, collections.deque)):
        value.append("changed")
        return sum(item == "changed" for item in value) - 1
    if isinstance(value, dict):
        value[f"changed {len(value)}"] = 1
        return sum(str(key).startswith("changed") for key in value) - 1
    if isinstance(value, set):
        value.add(f"changed {len(value)}")
        return sum(item.startswith("changed") for item in value) - 1
    if isinstance(value, Plain):
        value.n_changes = getattr(value, "n_changes", -1) + 1
        return value.n_changes
    raise TypeError(type(value))


def content(value, i):
    """Return a few parts of an object, and a hash of it all."""
    parts = value.parts[0] if isinstance(value, Plain) else value
    parts = parts.items() if isinstance(parts, dict) else sorted(parts) if isinstance(parts, set) else parts
    described = [repr(part) if not isinstance(part, Buffer) else len(part.data) for part in parts]
    return type(value).__name__, len(described), i, zlib.crc32(repr(described).encode())


def length(value, _):
    return len(value)


def length_of(value):
    while isinstance(value, tuple) and len(value) == 3:
        value = value[0]
    return len(value)


def first(value, _):
    return value.parts[0]


def first_item(value):
    return value[0]


def change_part(value, _):
    """Change a part of an object. Return how often it was changed."""
    part = value[0].parts[0] if isinstance(value[0], Plain) else value[0]
    part.append("changed")
    return len(part) - 1


def send_through(value, i):
    value[0].send(i)
    return len(value[1])


def call_with_length(value, function):
    return function(len(value))


def shape(value):
    """Describe a value so that two descriptions are equal if all objects in them are, identities included."""
    numbers, found = {}, []
    todo = [value]
    while todo:
        value = todo.pop()
        if type(value) in (int, float, type(None)):
            found.append(repr(value))
            continue
        is_new = id(value) not in numbers
        found.append((type(value).__name__, numbers.setdefault(id(value), len(numbers))))
        if not is_new:
            continue
        if isinstance(value, (str, bytes)):
            found.append(hash_of(value))
        elif isinstance(value, dict):
            todo += [part for item in value.items() for part in item]
        elif isinstance(value, (set, frozenset)):
            todo += sorted(value)
        elif isinstance(value, (list, tuple, collections.deque)):
            todo += value
        elif isinstance(value, Plain):
            todo += value.parts
        elif isinstance(value, Buffer):
            found.append(len(value.data))
    return len(found), zlib.crc32(repr(found).encode())


def hash_of(value):
    return zlib.crc32(value.encode() if isinstance(value, str) else value)
