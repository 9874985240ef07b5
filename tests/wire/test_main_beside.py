"""Objects of `__main__` together with shared memory, connections and registered reducers, in every kind."""

import textwrap
import zipfile

import fresh
import pytest

METHODS = ("process-fork", "process-forkserver", "process-spawn")
ANYWHERE = ("thread", "interp", *METHODS)
HEAD = """
import multiprocessing, sys
from pool_party import ComposablePool, share
from multiprocessing.reduction import ForkingPickler
def make_pool(**options):
    kind, _, method = SUBJECT.partition("-")
    return ComposablePool(2, kind=kind, context=method or None, **options)
"""


def script(tmp_path, subject, definitions, body):
    body = textwrap.indent(textwrap.dedent(body), "    ")
    text = f"SUBJECT = {subject!r}{HEAD}{textwrap.dedent(definitions)}\nif __name__ == '__main__':\n{body}\n"
    path = tmp_path / "app.py"
    path.write_text(text)
    return fresh.check(fresh.run([path], cwd=tmp_path)).out


def session(subject, text):
    """Run text with `-c`, where no worker has the definitions."""
    return fresh.check(fresh.run(["-c", f"SUBJECT = {subject!r}{HEAD}{textwrap.dedent(text)}"])).out


# ---- connections ----

SPEAKER = """
    class Speaker:
        def __init__(self, conn):
            self.conn = conn
        def say(self, text):
            self.conn.send(text)
            self.conn.close()

    class Complaint(Exception):
        pass

    def open_speaker(text):
        mine, theirs = multiprocessing.Pipe()
        Speaker(mine).say(text)
        return Speaker(theirs)

    def complain(text):
        raise Complaint(open_speaker(text))
"""


@pytest.mark.parametrize("subject", ANYWHERE)
def test_an_object_of_the_script_holds_a_connection(tmp_path, subject):
    body = """
        with make_pool() as p:
            mine, theirs = multiprocessing.Pipe()
            p.apply(Speaker.say, (Speaker(theirs), "there"))
            print(mine.recv(), p.apply(open_speaker, ("back",)).conn.recv())
            mine, theirs = multiprocessing.Pipe()
            p.apply(lambda speaker: speaker.say("lambda"), (Speaker(theirs),))
            print(mine.recv())
            try:
                p.apply(complain, ("in an error",))
            except Complaint as complaint:
                print(complaint.args[0].conn.recv())
    """
    assert script(tmp_path, subject, SPEAKER, body) == "there back\nlambda\nin an error\n"


@pytest.mark.parametrize("subject", ("thread", "interp", "process-fork"))
def test_a_function_reads_a_global_connection_in_each_worker(tmp_path, subject):
    definitions = """
        mine, theirs = multiprocessing.Pipe()
        def say(i):
            theirs.send(i)
            return i
    """
    body = """
        with make_pool() as p:
            p.map(say, range(8), 1)
        theirs.send(8)
        print(sorted(mine.recv() for _ in range(9)))
    """
    assert script(tmp_path, subject, definitions, body) == f"{list(range(9))}\n"


@pytest.mark.parametrize("subject", METHODS)
def test_no_descriptor_goes_to_a_process_as_a_global(tmp_path, subject):
    definitions = """
        def say(i):
            return theirs.send(i) if i else None
    """
    body = """
        with make_pool() as p:
            p.apply(abs, (1,))
            mine, theirs = multiprocessing.Pipe()
            try:
                p.apply(say, (1,))
            except TypeError as error:
                print("file descriptors travel" in str(error), "'theirs'" in str(error))
            print(p.apply(abs, (-1,)))
    """
    assert script(tmp_path, subject, definitions, body) == "True True\n1\n"


@pytest.mark.parametrize("subject", ANYWHERE)
def test_an_initializer_gets_a_connection(tmp_path, subject):
    definitions = """
        import functools
        def begin(*conns):
            for conn in conns:
                conn.send("begun")
    """
    body = """
        mine, theirs = multiprocessing.Pipe()
        with make_pool(initializer=functools.partial(begin, theirs), initargs=(theirs,)) as p:
            print([mine.recv() for _ in range(4)])
        theirs.send("open")
        print(mine.recv())
    """
    assert script(tmp_path, subject, definitions, body) == f"{['begun'] * 4}\nopen\n"


@pytest.mark.parametrize("subject", ANYWHERE)
def test_functions_that_hold_a_connection(tmp_path, subject):
    definitions = """
        import collections, functools
        from functools import reduce
        def send(conn, *args):
            conn.send(args)
            return args
        def sender(conn): return lambda *args: send(conn, *args)
        def default(conn): return lambda *args, conn=conn: send(conn, *args)
        class Sender:
            def __init__(self, conn): self.conn = conn
            def send(self, *args): return send(self.conn, *args)
        class Slotted:
            __slots__ = ("conns",)
            def __init__(self, conn): self.conns = collections.deque([conn, self])
            def send(self, *args): return send(self.conns[0], *args)
        class Deep:
            def __init__(self, conn): self.parts = reduce(lambda inner, _: {"inner": [inner]}, range(30), conn)
            def send(self, *args): return send(reduce(lambda outer, _: outer["inner"][0], range(30), self.parts), *args)
    """
    body = """
        mine, theirs = multiprocessing.Pipe()
        with make_pool() as p:
            methods = [cls(theirs).send for cls in (Sender, Slotted, Deep)]
            for function in functools.partial(send, theirs), sender(theirs), default(theirs), *methods:
                assert p.map(function, range(8), 1) == p.map(function, range(8)) == [(i,) for i in range(8)]
                assert p.starmap(function, [(i, 1) for i in range(8)], 1) == [(i, 1) for i in range(8)]
                received = sorted(mine.recv() for _ in range(24))
                assert received == sorted([(i,) for i in range(8)] * 2 + [(i, 1) for i in range(8)])
        theirs.send("open")
        print(mine.recv())
    """
    assert script(tmp_path, subject, definitions, body) == "open\n"


@pytest.mark.parametrize("subject", ("interp", *METHODS))
def test_what_does_not_pickle_is_no_error_where_others_have_its_letters(tmp_path, subject):
    definitions = """
        import threading
        def abc(x): return x
    """
    body = """
        lock = threading.Lock()
        a = m = ab = lambda: lock
        with make_pool() as p:
            p.apply(abs, (1,))
            b = c = i = bc = lambda: lock
            print(p.map(abc, range(3)), p.apply(lambda x: abc(x), ("main",)))
    """
    assert script(tmp_path, subject, definitions, body) == "[0, 1, 2] main\n"


@pytest.mark.parametrize("subject", ("interp", *METHODS))
def test_what_does_not_pickle_is_no_error_where_data_has_its_name(tmp_path, subject):
    definitions = """
        import threading
        class Box:
            def __init__(self, data): self.data = data
        def get_data(box): return box.data
    """
    body = """
        with make_pool() as p:
            p.apply(abs, (1,))
            lock = threading.Lock()
            secret = lambda: lock
            print(p.map(get_data, [Box(b"secret. secret\\n")] * 2))
    """
    assert script(tmp_path, subject, definitions, body) == "[b'secret. secret\\n', b'secret. secret\\n']\n"


# ---- shared memory ----


@pytest.mark.parametrize("subject", ANYWHERE)
def test_functions_of_the_script_write_to_a_global_that_is_shared(tmp_path, subject):
    definitions = """
        def put(i):
            early[i] = late[i] = i + 1
    """
    body = """
        early = share(bytes(4))
        with make_pool() as p:
            p.apply(abs, (1,))
            late = share(bytes(4))
            p.map(put, range(4), 1)
            p.map(lambda i: late.__setitem__(i, late[i] + 10), range(2), 1)
            print(list(early), list(late))
    """
    assert script(tmp_path, subject, definitions, body) == "[1, 2, 3, 4] [11, 12, 3, 4]\n"


@pytest.mark.parametrize("subject", ["thread", "interp", "process-fork"])
def test_definitions_hold_shared_memory(tmp_path, subject):
    definitions = """
        class Store:
            cells = share(bytes(4))
            def __init__(self, i): self.i = i
            def fill(self): Store.cells[self.i] = self.i + 1
        def put(i, cells=Store.cells):
            cells[i] += 10
    """
    body = """
        with make_pool() as p:
            p.map(Store.fill, map(Store, range(4)), 1)
            p.map(put, range(2), 1)
            print(list(Store.cells))
    """
    assert script(tmp_path, subject, definitions, body) == "[11, 12, 3, 4]\n"


@pytest.mark.parametrize("subject", ["interp", "process-fork", "process-forkserver"])
def test_shared_memory_of_a_session_is_the_newest_and_lives_until_it_arrives(subject):
    text = """
        with make_pool() as p:
            cells = share(b"1111")
            def put(i):
                cells[i] = 50
                return bytes(cells)
            print(p.apply(put, (0,)))
            first, cells = cells, share(b"2222")
            print(p.apply(put, (1,)), bytes(first), bytes(cells))
            del first
            jobs = [p.apply_async(lambda i=i: bytes(cells)[i:]) for i in range(3)]
            cells = share(b"3333")
            print([job.get() for job in jobs], p.apply(put, (2,)), bytes(cells))
    """
    assert session(subject, text) == ("b'2111'\nb'2222' b'2111' b'2222'\n[b'2222', b'222', b'22'] b'3323' b'3323'\n")


@pytest.mark.parametrize("subject", ["interp", "process-fork", "process-forkserver"])
def test_a_task_returns_a_function_over_shared_memory_of_its_own(tmp_path, subject):
    definitions = """
        def make():
            global cells
            cells = share(b"abcd")
            return lambda i: cells[i]
    """
    body = """
        with make_pool() as p:
            get = p.apply(make)
        print(get(0), get(3))
    """
    assert script(tmp_path, subject, definitions, body) == "97 100\n"


# ---- registered reducers ----


@pytest.mark.parametrize("subject", ANYWHERE)
def test_a_reducer_of_the_script(tmp_path, subject):
    definitions = """
        class Registered:
            def __init__(self, number): self.number = number
            def __reduce_ex__(self, protocol): raise TypeError("the registered reducer was not asked")
        def restore(number): return Registered(number)
        ForkingPickler.register(Registered, lambda self: (restore, (self.number + 1,)))
        def number_of(registered): return registered.number
    """
    body = """
        with make_pool() as p:
            first, second = p.apply(number_of, (Registered(1),)), p.apply(lambda r: r.number, (Registered(1),))
            print(first, second)
    """
    assert script(tmp_path, subject, definitions, body) == ("1 1\n" if subject == "thread" else "2 2\n")


@pytest.mark.parametrize("subject", ANYWHERE)
def test_a_reducer_for_a_global_that_a_function_reads(tmp_path, subject):
    """Of types that are registered with ForkingPickler, or with copyreg: a worker that lacks the global gets it so."""
    text = """
        import copyreg
        class Registered:
            def __init__(self, number): self.number = number
            def __reduce_ex__(self, protocol): raise TypeError("the registered reducer was not asked")
        class Other(Registered): pass
        def restore(cls, number): return cls(number)
        def reduce(self): return restore, (type(self), self.number + 1)
        ForkingPickler.register(Registered, reduce)
        copyreg.pickle(Other, reduce)
        def numbers(_): return inner.number, other.number
        if __name__ == "__main__":
            with make_pool() as p:
                inner, other = Registered(1), Other(1)
                print(set(p.map(numbers, range(4), 1)), p.apply(lambda: (inner.number, other.number)))
    """
    expected = "(1, 1)" if subject == "thread" else "(2, 2)"
    assert session(subject, text) == f"{{{expected}}} {expected}\n"


# ---- programs in archives ----


@pytest.mark.parametrize("subject", ANYWHERE)
def test_a_program_in_a_zip_file(tmp_path, subject):
    body = """
        with make_pool() as p:
            print(p.map(work, range(3)), p.map(beside.triple, range(3)))
    """
    text = HEAD + "import beside\ndef work(n):\n    return beside.triple(n)\n"
    body = textwrap.indent(textwrap.dedent(body), "    ")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", f"SUBJECT = {subject!r}{text}\nif __name__ == '__main__':\n{body}\n")
        archive.writestr("beside.py", "def triple(n):\n    return 3 * n\n")
    fresh.check(fresh.run([tmp_path / "app.pyz"], cwd=tmp_path), "[0, 3, 6] [0, 3, 6]")


def test_interpreters_of_a_program_that_pyinstaller_has_frozen():
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "frozen_program.py"]))
