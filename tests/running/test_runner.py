"""Programs under `python -m pool_party`, compared with the same programs under plain Python."""

import json
import os
import pty
import py_compile
import re
import shlex
import signal
import subprocess
import sys
import zipfile

import fresh
import pytest
from runner_programs import (
    CHILDREN,
    DEFECTS,
    ENDS,
    LEFT_OPEN,
    LOKY,
    OPTIONS,
    POOLS,
    PROBE,
    REPORTED,
    REPORTED_CHILDREN,
    UNPATCHING,
    WAITING,
)

import pool_party
from pool_party._patching.settings import Settings
from pool_party._running import command, journal, options

RUNNER = ("-m", "pool_party")


def plain(options, arguments, cwd, stdin_text=None):
    with fresh.default_signals():
        done = subprocess.run(
            [sys.executable, *options, *arguments],
            input=stdin_text or "",
            capture_output=True,
            text=True,
            timeout=60,
            cwd=cwd,
            env=fresh.environment(),
        )
    return done.returncode, done.stdout, done.stderr


def compare(options, arguments, cwd, stdin_text=None):
    """Run a program plainly and under the runner, and check that nobody can tell which is which."""
    expected = plain(options, arguments, cwd, stdin_text)
    assert plain([*options, *RUNNER], arguments, cwd, stdin_text) == expected
    return expected


@pytest.fixture
def folder(tmp_path):
    """A folder with the probe in every form that a program can have."""
    (tmp_path / "app.py").write_text(PROBE)
    (tmp_path / "link.py").symlink_to("sub/app.py")
    for name in ("sub", "package", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "sub" / "app.py").write_text(PROBE)
    (tmp_path / "package" / "__init__.py").write_text("print('init', __import__('sys').argv)")
    (tmp_path / "package" / "__main__.py").write_text(PROBE)
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    py_compile.compile(str(tmp_path / "sub" / "app.py"), str(tmp_path / "sub" / "app.pyc"))
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\nprint(ascii('\xe9'))")
    (tmp_path / "bom.py").write_bytes("\ufeffprint(ascii('\u00e9'))".encode())
    (tmp_path / "wrong.py").write_text("def f(:\n    pass\n")
    return tmp_path


FORMS = {
    "file": ["app.py", "a", "-b"],
    "dotted": ["./app.py"],
    "below": ["sub/../sub/app.py"],
    "link": ["link.py"],
    "compiled": ["sub/app.pyc"],
    "directory": ["package", "a"],
    "zip": ["app.pyz", "a"],
    "module": ["-m", "app", "--kind", "fibre"],
    "package": ["-mpackage", "a"],
    "code": ["-c", PROBE, "a", "--help"],
    "stdin": ["-", "a"],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_program_sees_what_it_sees_under_plain_python(folder, form):
    status, out, _ = compare((), FORMS[form], folder, PROBE if form == "stdin" else None)
    assert status == 0 and out.rpartition("\nthe end")[1], out


@pytest.mark.parametrize(
    ("form", "option"),
    [
        *((form, option) for form in ("file", "directory", "module", "code") for option in ("-P", "-I", "-i")),
        *(("file", option) for option in ("-E", "-OO", "-Wdefault", "-u")),
    ],
)
def test_options_of_the_interpreter(folder, form, option):
    compare((option,), FORMS[form], folder)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["missing.py"], ["empty"], ["-m", "missing"], ["-m", "sub"], ["-m", "app.sub"], ["latin.py"], ["bom.py"]),
        *(["wrong.py"], ["-m", "wrong"], ["-c", "def f(:"], ["-c", "  print(1)\n  print(2)"], ["app.pyz/missing"]),
    ],
    ids=" ".join,
)
def test_programs_that_do_not_start(folder, arguments):
    compare((), arguments, folder)


@pytest.mark.parametrize(
    ("form", "end"),
    [
        *(("file", end) for end in ENDS),
        *(("module", end) for end in ("error", "raised", "status", "atexit", "context")),
    ],
)
def test_programs_end_as_under_plain_python(tmp_path, form, end):
    (tmp_path / "app.py").write_text(ENDS[end])
    (tmp_path / "other.py").write_text("x = 3")
    compare((), [*{"file": ["app.py"], "module": ["-m", "app"]}[form], "other.py"], tmp_path)


@pytest.mark.parametrize("how", ["pool", "open pool", "executor", "joblib"])
def test_what_a_program_leaves_in_globals_is_deallocated(tmp_path, kind, how):
    """Ended pools referred to the namespace of `__main__`: text in files that it had left open was lost."""
    if how == "joblib":
        pytest.importorskip("joblib")
    (tmp_path / "app.py").write_text(LEFT_OPEN)
    expected = plain(["-Wignore"], ["app.py", how], tmp_path)
    assert expected[0] == 0 and "written" in expected[1] and "deleted" in expected[1], expected
    status, out, err = plain(["-Wignore", *RUNNER, "--kind", kind], ["app.py", how], tmp_path)
    assert (status, sorted(out.splitlines()), err) == (0, sorted(expected[1].splitlines()), "")


def test_code_that_cannot_be_decoded(tmp_path):
    compare((), ["-c", b"print('\xff')"], tmp_path)


@pytest.mark.parametrize("end", ["error", "status", "raised"])
def test_the_prompt_follows(tmp_path, end):
    (tmp_path / "app.py").write_text(f"a = 5\n{ENDS[end]}")
    _, out, _ = compare(["-i"], ["app.py"], tmp_path, "print(a + 1, __name__)\nraise SystemExit(4)\n")
    assert "6 __main__" in out


def test_a_program_may_ask_for_the_prompt(tmp_path):
    """It follows at a terminal only."""
    (tmp_path / "app.py").write_text("import os\nos.environ['PYTHONINSPECT'] = '1'\na = 5\n1 / 0")
    compare((), ["app.py"], tmp_path, "print(a)\n")


AT_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def typed(arguments, lines, cwd, extra):
    """Run Python at a terminal of its own, and type a line at each prompt. Return its exit status and what is shown.

    Without `pty.fork`: interpreters of other tests' pools may be alive, and a child of them crashes (CPython 139759).
    """
    terminal, ends = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", AT_TERMINAL, *arguments],
        **dict.fromkeys(("stdin", "stdout", "stderr"), ends),
        cwd=cwd,
        env={**fresh.environment(), **extra},
        start_new_session=True,
    )
    os.close(ends)
    shown, left = b"", list(lines)
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
        if left and shown.endswith((b">>> ", b"... ")):
            os.write(terminal, left.pop(0).encode() + b"\n")
    os.close(terminal)
    return process.wait(), shown.decode()


@pytest.mark.hang_s(120)
@pytest.mark.parametrize("extra", [{"PYTHON_BASIC_REPL": "1"}, {}], ids=["basic", "default"])
@pytest.mark.parametrize("options", [(), ("-I",), ("-q", "-P")], ids=" ".join)
def test_programs_that_are_typed_at_a_terminal(tmp_path, options, extra):
    (tmp_path / "startup.py").write_text("started = 2\n1 / 0")
    extra = {"NO_COLOR": "1", "HOME": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "startup.py"), **extra}
    extra["TERM"] = "dumb"  # with others the prompt moves the cursor
    lines = ["import sys; print(sys.argv, sys.path, 'started' in globals())"]
    lines += ["1 / 0", "def f():", "    return __name__", ""]
    lines += ["f()", "raise SystemExit(4)"]
    expected = typed([*options, "-", "a"], lines, tmp_path, extra)
    assert expected[0] == 4 and "'__main__'" in expected[1], expected
    assert typed([*options, *RUNNER, "-", "a"], lines, tmp_path, extra) == expected


def test_the_command_runs_programs_as_well(tmp_path):
    """Its console script is a script whose only line exits with what `main` returns."""
    script = tmp_path / "bin" / "pool-party"
    script.parent.mkdir()
    script.write_text("import sys\nfrom pool_party._cli.main import main\nsys.exit(main())\n")
    for name in ("error", "status", "raised", "none"):
        (tmp_path / "app.py").write_text(ENDS[name])
        expected = plain((), ["app.py"], tmp_path)
        assert plain((), [script, "run", "app.py"], tmp_path) == expected
    (tmp_path / "app.py").write_text(PROBE)
    assert plain((), [script, "run", "app.py", "-m"], tmp_path) == plain((), ["app.py", "-m"], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "which program is to run? --help shows how it is named"),
        ("-p", "-p needs a value"),
        ("-p 0 x", "-p: '0' is not a whole number from 1 on"),
        ("--processes=two x", "--processes: 'two' is not a whole number from 1 on"),
        ("-f -1 x", "-f: '-1' is not a number above 0"),
        ("-finf x", "-f: 'inf' is not a number above 0"),
        ("--policy none x", "--policy: 'none' is not static, exclusive, counting or dynamic"),
        ("--kind fibre x", "--kind: 'fibre' is not process, thread, interp or auto"),
        ("--scope world x", "--scope: 'world' is not pool or machine"),
        ("--only a --except b x", "--only: 'a' is not "),
        ("--only multiprocessing --except joblib x", "--only and --except exclude each other"),
        ("--trace missing/file x", "--trace: there is no folder "),
        ("--report=xml x", "--report: 'xml' is not text or json"),
        ("--threads 2 x", "--threads is no option: --help shows them"),
        ("-m", "-m needs the name of a module"),
        ("-c", "-c needs code"),
        ("--", "which program is to run? --help shows how it is named"),
    ],
)
def test_wrong_options_are_told_in_one_line(capsys, arguments, message):
    assert command.main(arguments.split(), "runner") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith(f"runner: {message}")


@pytest.mark.parametrize(
    ("arguments", "program", "changes"),
    [
        ("app.py -p 4", ("file", "app.py", ["-p", "4"]), {}),
        ("-p 4 -f1.5 -- -m x", ("file", "-m", ["x"]), {"n_workers": 4, "oversubscription": 1.5}),
        ("--policy=static --kind thread -mx y", ("module", "x", ["y"]), {"policy": "static", "kind": "thread"}),
        ("--policy counting --scope machine - -", ("stdin", "-", ["-"]), {"policy": "counting", "scope": "machine"}),
        ("--only asyncio,joblib --only dask -c 1 2", ("code", "1", ["2"]), {"only": ("asyncio", "joblib", "dask")}),
        ("--except dask x", ("file", "x", []), {"excluded": ("dask",)}),
        ("--report x", ("file", "x", []), {}),
        ("--report json x", ("file", "x", []), {}),
    ],
)
def test_options_end_where_the_program_begins(arguments, program, changes):
    request = options.read(arguments.split())
    run = request.program
    assert (run.form, run.target, run.arguments) == program and request.settings == Settings()._replace(**changes)
    assert request.report == ({"--report x": "text", "--report json x": "json"}.get(arguments))


def test_help_and_version(capsys):
    assert command.main(["--version"], "runner") == command.main(["-h"], "runner") == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith(f"pool-party {pool_party.__version__}\nusage: runner [options] app.py")
    assert {*re.findall(r"--?[a-z]+", out)} >= {*options._READERS}


# ---- child processes ----


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def method(request):
    return request.param


@pytest.mark.parametrize(("form", "name"), [(["children.py"], "ignore"), (["-m", "children"], "x")])
def test_pools_of_children_are_replaced(tmp_path, method, form, name):
    """In all else the children, and their children, see what they see under plain Python."""
    (tmp_path / "children.py").write_text(CHILDREN)
    arguments = [*form, method, name]
    expected = plain((), arguments, tmp_path)
    assert expected[1].count("main__ False False 2 ") == 2 and expected[0] == 0, expected
    status, out, err = plain(RUNNER, arguments, tmp_path)
    assert (status, out.replace("main__ True True 2", "main__ False False 2"), err) == expected


def test_children_find_us_where_their_parent_did(tmp_path, method):
    """Nothing is installed here, and no path of the interpreter leads to the package."""
    (tmp_path / "children.py").write_text(CHILDREN)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(pool_party.__file__)))
    start = (
        f"import sys; sys.path.append({folder!r}); from pool_party._running import command; sys.path.pop(); "
        f"command.main(['children.py', {method!r}, 'x'], 'runner')"
    )
    done = fresh.run(["-I", "-S", "-c", start], cwd=tmp_path, options=())
    assert done.out.count("main__ True True 2 ") == 2 and done.returncode == 0 and done.err == "", done


def test_children_have_the_options(tmp_path):
    """The old tool's children had its defaults."""
    (tmp_path / "app.py").write_text(OPTIONS)
    status, out, err = plain([*RUNNER, "--kind", "thread", "-p", "3"], ["app.py"], tmp_path)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == ["fork (True, 3)", "forkserver (True, 3)", "spawn (True, 3)"]


def test_children_have_what_applies_when_they_start(tmp_path):
    (tmp_path / "app.py").write_text(UNPATCHING)
    assert plain([*RUNNER, "-p", "3"], ["app.py"], tmp_path) == (0, "3\n5\nnot ours\n", "")


def test_pools_in_workers_of_loky_are_replaced(tmp_path):
    pytest.importorskip("joblib")
    (tmp_path / "app.py").write_text(LOKY)
    assert plain(RUNNER, ["app.py"], tmp_path) == (0, "(True, 2)\n", "")


# ---- the report and traces ----


def test_the_report_counts_pools_and_tasks(tmp_path):
    (tmp_path / "app.py").write_text(REPORTED)
    expected = plain(["-Wignore"], ["app.py"], tmp_path)  # it may complain about pools that are left open
    status, out, err = plain(["-Wignore", *RUNNER, "--report=json"], ["app.py"], tmp_path)
    ends, _, text = err.rpartition("the end\n")
    assert (status, out) == expected[:2] and ends == "the end\n"  # the report is last, and a forked child writes none
    report = json.loads(text)
    assert report["program"] == "app.py" and report["cpus"] == pool_party.cpu_count()
    assert [(event["name"], event["caller"], event["n_workers"], event["times"]) for event in report["replaced"]][
        :3
    ] == [
        ("multiprocessing.pool.ThreadPool", "__main__", 3, 1),
        ("concurrent.futures.ThreadPoolExecutor", "__main__", 2, 1),
        ("multiprocessing.pool.ThreadPool", "__main__", 1, 1),
    ]
    (left_alone,) = report["left_alone"]
    assert left_alone["reason"] == "Its class Odd overrides the private _adjust_thread_count."
    assert report["parts_used"] == ["asyncio", "concurrent.futures", "multiprocessing"]
    assert (report["pools"], report["tasks"], report["failed"], report["lost"]) == (4, 12, 1, 0)
    assert report["library_threads"]["unlimited"] == report["workers"] * report["cpus"]


def test_the_report_for_people(tmp_path):
    (tmp_path / "app.py").write_text(REPORTED)
    err = plain(["-Wignore", *RUNNER, "--report", "--except", "asyncio"], ["app.py"], tmp_path)[2]
    assert "replaced 1 x multiprocessing.pool.ThreadPool, made in __main__: workers of kind thread, 3 each\n" in err
    assert "left alone 1 x concurrent.futures.ThreadPoolExecutor, made in __main__. Its class Odd overrides" in err
    assert "tasks: 11, of which 1 raised\n" in err and "asyncio" not in err


def test_the_report_of_a_program_without_pools(tmp_path):
    status, out, err = plain([*RUNNER, "--report"], ["-c", "1 / 0"], tmp_path)
    assert (status, out) == (1, "") and err.endswith(
        "division by zero\npool_party: -c (pid {pid}, CPUs: {cpus})\n  no pool was replaced\n".format(
            pid=re.search(r"pid (\d+)", err)[1], cpus=pool_party.cpu_count()
        )
    )


def test_the_report_has_the_figures_of_children(tmp_path):
    (tmp_path / "app.py").write_text(REPORTED_CHILDREN)
    status, out, err = plain(["-Wignore", *RUNNER, "--report=json"], ["app.py"], tmp_path)
    assert (status, out) == (0, ""), err
    report = json.loads(err)
    assert (report["pools"], report["tasks"], report["workers"]) == (1, 1, 1)  # of the process itself
    children = {child["name"]: child for child in report["children"] if child["name"] != "MainProcess"}
    forked = [child for child in report["children"] if child["name"] == "MainProcess"]
    (name,) = children.keys() - {"fork killed", "spawn killed", "forkserver none", "spawn odd"}
    assert "PoolWorker" in name
    for child in (*children.values(), *forked):
        assert child["tasks"] == (0 if child["name"] == "spawn odd" else 3), child
    for name in "fork killed", "spawn killed":
        assert (children[name]["end"], children[name]["pools"], children[name]["open"]) == ("killed", 2, 1)
        assert children[name]["workers"] == 5 and children[name]["library_threads"]["limited"] == 5
    assert sorted(child["end"] for child in forked) == ["ended", "runs"]
    assert {child["end"] for name, child in children.items() if "killed" not in name} == {"ended"}
    assert len(children["spawn odd"]["left_alone"]) == 1 and not children["spawn odd"]["replaced"]


def test_the_report_on_children_for_people(tmp_path):
    (tmp_path / "app.py").write_text(REPORTED_CHILDREN)
    err = plain(["-Wignore", *RUNNER, "--report"], ["app.py"], tmp_path)[2]
    assert "  child processes that asked for pools: 7\n" in err
    assert re.search(r"    pid \d+ \(spawn killed\) was killed, or left by os._exit: .*; pools open then: 1\n", err), (
        err
    )
    assert re.search(r"    pid \d+ \(MainProcess\) still runs: .*; pools open then: 0\n", err), err
    assert "    tasks: 18, of which 0 raised\n    workers: 18 started, 0 lost\n" in err


def test_a_journal_is_never_another_file(tmp_path):
    """A program may close all descriptors, and a later process may have the number of one that has ended."""
    address = journal.make()
    journal.append(address, {"a": 1})
    assert journal.read(address) == [{"a": 1}]
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, address[1])
    journal.append(address, {"a": 2})
    assert journal.read(address) is None and os.fstat(other).st_size == 0
    os.close(other), os.close(address[1])
    journal.append(address, {"a": 3})
    assert journal.read(address) is None
    full = journal.make()
    os.ftruncate(full[1], journal._MAX_BYTES)
    journal.append(full, {"a": 4})
    assert os.fstat(full[1]).st_size == journal._MAX_BYTES
    os.close(full[1])


def test_each_pool_has_a_trace(tmp_path):
    (tmp_path / "app.py").write_text("import os\nos.mkdir('below')\nos.chdir('below')\n" + REPORTED)
    assert plain(["-Wignore", *RUNNER, "--trace", "a.json"], ["app.py"], tmp_path)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a-2.json",
        "a-3.json",
        "a-4.json",
        "a.json",
        "app.py",
        "below",
    ]
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert sum(event["name"] == "abs" for event in events) == 8


# ---- what a program needs of us while it opens no pool ----

SLOW = set(
    "argparse ast asyncio concurrent.futures ctypes dataclasses inspect json logging multiprocessing pathlib pickle re "
    "signal socket subprocess tempfile threading typing".split()
)


def test_a_program_starts_with_few_modules(tmp_path):
    """Each costs every program under the runner some time; more than these 30 would not be worth it."""
    (tmp_path / "app.py").write_text("import sys\nprint(*sys.modules)")
    before = set(plain((), ["-m", "app"], tmp_path)[1].split())
    added = set(plain(RUNNER, ["app.py"], tmp_path)[1].split()) - before
    assert not added & SLOW and "pool_party._native" not in added
    assert len(added) <= 30


LOOKING = """
import ctypes, os
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
seen = getenv(b"OPENBLAS_THREAD_TIMEOUT"), os.environ.get("OPENBLAS_THREAD_TIMEOUT")
"""
NUMPY_LATER = """
import sys
try:
    import numpy
except ZeroDivisionError:
    import numpy_looks as numpy
import numpy_looks
print(numpy.seen, numpy_looks.seen)
"""


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("chosen", [None, "26"])
def test_openblas_finds_that_its_threads_spin_less(tmp_path, monkeypatch, chosen, fails):
    """Only while NumPy is imported, and not in `os.environ`. What the user has chosen stays."""
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", chosen)
    (tmp_path / "numpy_looks.py").write_text(LOOKING)
    (tmp_path / "numpy.py").write_text(LOOKING + ("1 / 0\n" if fails else ""))
    (tmp_path / "app.py").write_text(NUMPY_LATER)
    usual = (chosen and chosen.encode(), chosen)
    amid = usual if chosen or fails else (b"22", None)
    assert plain(RUNNER, ["app.py"], tmp_path) == (0, f"{amid} {usual}\n", "")


# ---- tools above and below ----

DOUBLED = "True [0, 2, 4]\n"


@pytest.mark.parametrize("form", ["file", "module", "code", "stdin", "directory", "zip"])
@pytest.mark.parametrize(
    ("kind", "start_method"),
    [("thread", "default"), ("interp", "default"), *(("process", name) for name in ("fork", "forkserver", "spawn"))],
)
def test_functions_of_the_program_run_in_all_kinds(tmp_path, kind, start_method, form):
    (tmp_path / "app.py").write_text(POOLS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(POOLS)
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", POOLS)
    arguments = {
        "file": ["app.py"],
        "module": ["-m", "app"],
        "code": ["-c", POOLS],
        "stdin": ["-"],
        "directory": ["package"],
        "zip": ["app.pyz"],
    }[form]
    stdin_text = POOLS if form == "stdin" else None
    done = plain(["-Wignore", *RUNNER, "--kind", kind], [*arguments, start_method], tmp_path, stdin_text)
    assert done == (0, DOUBLED, "")


TOOLS = {
    "pdb above": ("-m pool_party -m pdb -c continue -c quit app.py default", DOUBLED),
    "pdb below": ("-m pdb -c continue -c quit -m pool_party app.py default", DOUBLED),
    "breakpoints": (
        "-m pdb -c 'b app.py:4' -c c -c 'p sys.argv' -c q -m pool_party app.py default",
        "['app.py', 'default']\n",
    ),
    "cProfile above": ("-m pool_party -m cProfile -s name app.py default", DOUBLED),
    "cProfile below": ("-m cProfile -s name -m pool_party app.py default", DOUBLED),
    "coverage above": ("-m pool_party -m coverage run --parallel-mode app.py default", DOUBLED),
    "coverage below": ("-m coverage run --parallel-mode -m pool_party app.py default", DOUBLED),
    "pytest": ("-m pool_party -m pytest -q test_app.py", "1 passed"),
    "IPython": ("-m pool_party -m IPython --colors=NoColor app.py default", DOUBLED),
    "runpy": ("-m runpy pool_party app.py default", DOUBLED),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tools(tmp_path, monkeypatch, tool):
    command, expected = TOOLS[tool]
    words = shlex.split(command)
    for name in ("coverage", "IPython"):
        if name in words:
            pytest.importorskip(name)
    if "cProfile" in words and not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("without a GIL, cProfile of CPython 3.13 crashes in programs with threads")
    monkeypatch.setenv("IPYTHONDIR", f"{tmp_path / 'ipython'}")
    (tmp_path / "app.py").write_text(POOLS)
    (tmp_path / "test_app.py").write_text(
        "import multiprocessing, app\ndef test_it():\n    with multiprocessing.Pool(2) as pool:\n"
        "        assert pool.map(app.double, [1]) == [2] and 'pool_party' in type(pool).__mro__[1].__module__\n"
    )
    status, out, err = plain((), words, tmp_path)
    assert expected in out, (out, err)
    assert status == 0, err
    if "coverage" in words:
        assert list(tmp_path.glob(".coverage.*"))


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_of_the_old_tools(tmp_path, defect):
    options, text, expected = DEFECTS[defect]
    (tmp_path / "app.py").write_text(text)
    assert plain(["-Wignore", *RUNNER, *options.split()], ["app.py"], tmp_path) == (0, expected, "")


def test_threads_that_tasks_of_an_executor_start_are_waited_for(tmp_path):
    (tmp_path / "app.py").write_text(
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "def late():\n    threading.main_thread().join()\n    print('late', threading.current_thread().daemon)\n"
        "with ThreadPoolExecutor(1) as executor:\n"
        "    executor.submit(lambda: threading.Thread(target=late).start()).result()"
    )
    assert compare((), ["app.py"], tmp_path)[1] == "late False\n"


def test_names_that_were_imported_before_us(tmp_path, monkeypatch):
    """The old tool replaced names in modules, and missed whoever had them already."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins\nfrom concurrent.futures import ThreadPoolExecutor\nfrom multiprocessing import Pool\n"
        "builtins.early = ThreadPoolExecutor, Pool"
    )
    (tmp_path / "app.py").write_text(
        "if __name__ == '__main__':\n    for make in early:\n"
        "        print('pool_party' in type(make(1)).__mro__[1].__module__)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert plain(["-Wignore", *RUNNER], ["app.py"], tmp_path) == (0, "True\nTrue\n", "")


def test_ctrl_c_ends_a_program_that_waits_for_a_pool(tmp_path, kind):
    (tmp_path / "app.py").write_text(WAITING)
    process = fresh.start(["-m", "pool_party", "--kind", kind, "app.py"], stdin=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout.readline() == "the task runs\n"
    os.killpg(process.pid, signal.SIGINT)
    done = fresh.finish(process)
    assert done.returncode == -signal.SIGINT and done.err.endswith("\nKeyboardInterrupt\n"), done
    assert "_running/program.py" not in done.err and done.out == "the end\n"


def test_a_zip_file_may_run_us(tmp_path):
    (tmp_path / "app.py").write_text(POOLS)
    with zipfile.ZipFile(tmp_path / "runner.pyz", "w") as archive:
        archive.writestr(
            "__main__.py",
            "import sys\nfrom pool_party._cli.main import main\nif __name__ == '__main__':\n"
            "    sys.exit(main(['run', *sys.argv[1:]]))",
        )
    for start_method in ("fork", "forkserver", "spawn"):
        arguments = ["runner.pyz", "--kind", "process", "app.py", start_method]
        assert plain(["-Wignore"], arguments, tmp_path) == (0, DOUBLED, "")
