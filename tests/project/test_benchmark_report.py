"""The benchmarks as programs: their shared code, the command that runs them, and the document that it writes.

Programs run in separate processes. The tests check what they write, never how fast anything was.
"""

import importlib.util
import json
import math
import os
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import gates
import pytest

from pool_party import ComposablePool, _config
from pool_party._cli import bench as _bench
from pool_party._cli import main as _cli

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
METADATA = {"date": "2026-11-20T17:03:07+00:00", "cpu": "a CPU", "n_cpus_usable": 2, "n_cpus": 2, "is_quick": False}
METADATA |= {"n_workers": 2, "kernel": "6", "python": "CPython", "has_gil": True, "start_method": "fork"}
METADATA |= {"versions": {}, "load_average_before": [0.5, 0.5, 0.5], "commit": "0123456789"}


@pytest.fixture
def on_path(monkeypatch):
    """Make the benchmarks' modules importable here, even `fresh`, a name that the tests use as well."""
    monkeypatch.delitem(sys.modules, "fresh", raising=False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    sys.modules.pop("fresh", None)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


# ---- each program with its smallest case ----

CELL = "--kinds thread --cells balanced-little --ways one-thread --workers 1"
ASYNCIO = "--peer 'pool_party thread' --peer nothing --peer ThreadPoolExecutor"
DASK = "--peer process --peer Client.map"
OF_DASK = ("pool_party, dask, process", "Client.map")
SMALLEST = {  # rows of the tables that a program shows
    "dispatch --only start --peer 'pool_party thread'": ("pool_party thread",),
    "modes --only fib --modes sequential pool_party-thread": ("sequential", "pool_party-thread"),
    "wake_up --peer 'thread, affinity'": ("pool_party thread, affinity",),
    "memory --workers 1 2 --peer 'pool_party thread'": ("pool_party thread",),
    "overhead --only budget --peer 'thread None'": ("thread, None",),
    "transfer --only bytes --max-size 16384 --peer 'pool_party thread'": ("pool_party thread", "pipe", "memcpy"),
    "objects --only rows --peer 'pool_party process'": ("pool_party process",),
    "objects --only script --peer 'pool_party process'": ("pool_party process",),
    f"asyncio_calls --only calls {ASYNCIO}": ("pool_party thread", "ThreadPoolExecutor"),
    f"asyncio_calls --only server {ASYNCIO}": ("pool_party thread", "ThreadPoolExecutor"),
    f"asyncio_calls --only stalls {ASYNCIO}": ("pool_party thread", "nothing is opened"),
    f"cluster --only tasks {DASK}": OF_DASK,
    f"cluster --only calls {DASK}": OF_DASK,
    f"cluster --only array {DASK}": OF_DASK,
    f"cluster --only nested {DASK}": OF_DASK,
    "cluster --only tasks --peer 'mpi, thread' --peer MPIPool": ("MPIPoolExecutor", "pool_party, mpi, thread"),
    "cluster_size --nodes 1 20 --workers 2 --task-ms 1": ("1 node, 0 ms", "1 node, 1 ms", "20 nodes, 1 ms"),
    "packing --only contiguous": ("contiguous", "contiguous, serial again, times as fast"),
    "tracing --kinds thread": ("thread, no trace", "thread, a trace"),
    "profile_task --only map --kinds thread": ("wall time",),
    f"cells {CELL}": ("ThreadPool, one BLAS thread",),
    f"scaling {CELL}": ("balanced-little: ThreadPool, one BLAS thread",),
    "science --only transfer --peer 'pool_party thread'": ("pool_party thread",),
    "libraries --only joblib --peer thread": ("loky", "threading", "pool_party thread"),
    "unmodified --program eig --flavour threads --workers 1": ("eig, threads",),
    "sharing": ('scope="machine"', "the budget is lower"),
}
NEEDS = {"server": "aiohttp", "MPI": "mpi4py", "transfer": "numpy", "packing": "numpy"}  # besides those in suite.py


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of all rows of all tables, by their first cell."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    cells = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return {first: others for first, *others in cells}


@pytest.mark.slow
@pytest.mark.parametrize("command", SMALLEST)
def test_smallest_case_runs(command, on_path, tmp_path):
    from suite import BENCHMARKS

    program, *arguments = shlex.split(command)
    for module in (*BENCHMARKS[program.replace("_", "-")].needs, *(NEEDS[text] for text in NEEDS if text in command)):
        pytest.importorskip(module)
    file = tmp_path / "figures.json"
    done = run(f"{program}.py", "--quick", "--json", str(file), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["metadata"]["is_quick"] and found["metadata"]["taken_s"] >= 0
    assert set(found) > {"metadata", "text"}
    text = "\n".join(found["text"])
    assert text in done.stdout and "not measured" not in text
    tables = rows_of(text)
    for row in SMALLEST[command]:
        assert any(digit in cell for cell in tables[row] for digit in "123456789"), tables[row]


def test_simulated_nodes_answer_every_task(on_path, monkeypatch):
    from cluster_size_ways import Nodes, nothing

    nodes = Nodes(3, 2, 0.001, n_joined=1)
    monkeypatch.setattr(_config, "_transport_to", lambda *args: nodes)
    with ComposablePool(1, kind="dask") as pool:
        nodes.join_others()
        assert pool.map(nothing, range(100), 1) == [None] * 100
        results = [pool.apply_async(nothing) for _ in range(50)]
        results = [result for result in results if not result.cancel()]
        assert [result.get(30) for result in results] == [None] * len(results)
        assert pool.statistics().n_workers == 6


def test_bounds_of_simulated_nodes(on_path):
    """Workers, tasks under way, or the ceiling: the lowest bounds the rate."""
    from cluster_size import sum_up
    from program import Runs

    runs = Runs()
    cases = [(1, 0.0), (2, 10.0), (100, 10.0), (1000, 100.0)]
    for case, rate in zip(("1 node, 0 ms", "2 nodes, 10 ms", "100 nodes, 10 ms"), (5000.0, 100.0, 2500.0), strict=True):
        runs.add(case, ({"tasks_per_s": rate}, ""))
    runs.add("1000 nodes, 100 ms", ({"tasks_per_s": 502.0}, ""))
    sums = sum_up(1, cases, runs, n_slots=100)
    assert [found["ideal_per_s"] for found in sums.values()] == [5000, 200, 5000, 5000]
    assert [round(found["bound_per_s"]) for found in sums.values()] == [5000, 200, 5000, 996]
    assert [round(found["share_of_bound"], 2) for found in sums.values()] == [1, 0.5, 0.5, 0.5]


SAMPLES = """
10/10
    7f01 [unknown]
    7f02 pp_encode
    7f03 next_argument
    7f04 put_map
    7f05 _start

10/11
    7f11 pp_pause
    7f12 pp_worker_wait
    7f13 serve
    7f14 worker_serve

10/11
    7f21 _start

10/10
    7f31 PyList_New
"""


def test_a_sample_belongs_to_the_innermost_step_and_to_the_side_of_its_thread(on_path):
    from profile_steps import PYTHON, count_steps, read_samples

    counts = count_steps(read_samples(SAMPLES.splitlines()), parent=10)
    assert counts == {
        ("parent", "encode the argument"): 1,
        ("parent", PYTHON): 1,
        ("worker", "wait for a task"): 1,
        ("worker", PYTHON): 1,
    }


def test_unmodified_programs_take_no_wrong_results(on_path):
    from program import Runs
    from unmodified import check, sum_up
    from unmodified_ways import OURS, PLAIN

    runs = Runs()
    for way, text, wall_s in ((PLAIN, "6", 4.0), (OURS, "6", 2.0), ("1 thread", "6", 1.0), ("2 workers", "7", 0.5)):
        runs.add(way, ({"output": text, "wall_s": wall_s}, ""))
    check(runs)
    assert list(runs.failures) == ["2 workers"]
    row = sum_up(runs.figures)
    assert (row["to plain"], row["to hand"], row["best"]) == (2.0, 0.5, "1 thread")


@pytest.mark.slow
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("sklearn", "joblib")), reason="needs scikit-learn"
)
def test_five_estimators_have_the_threads_that_they_should_have(on_path):
    from fresh import begin, end

    figures, failure = end(begin("libraries_ways", ["scikit-learn", "pool_party thread", 2, "quick"]), 600)
    assert figures is not None, failure
    assert len(figures["workloads"]) == 5 and all(found["results"] for found in figures["workloads"].values())
    assert figures["threads"] <= 2 + len(os.sched_getaffinity(0))


def test_wrong_results_are_failures(on_path):
    from program import Runs, check_results

    runs = Runs()
    for way, value in {"serial": 2.0, "alike": 2.0 + 1e-12, "other": 2.001, "none": math.nan}.items():
        runs.add(way, ({"workloads": {"fit": {"results": [[1.0, value]], "rounds_s": [1.0]}}}, ""))
    check_results(runs, "serial")
    assert list(runs.figures) == ["serial", "alike"] and list(runs.failures) == ["other", "none"]
    assert "results" not in runs.figures["alike"][0]["workloads"]["fit"]


def test_libraries_are_compared_within_a_round(on_path):
    from libraries import sum_up
    from program import Runs

    def figures(round_s):
        workloads = {"qr": {"rounds_s": [round_s]}}
        return {"workloads": workloads, "open_s": 0.0, "threads": 3, "service_threads": 0, "running_threads": 2}

    runs = Runs()
    for way, times_s in {"loky": (4.0, 4.0), "ours": (1.0, 2.0)}.items():
        for round_s in times_s:
            runs.add(way, (figures(round_s), ""))
    sums = sum_up("scikit-learn", runs)["ours"]
    assert (sums["to loky"], sums["to loky, low"], sums["to loky, high"]) == (0.375, 0.25, 0.5)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="the system learns the names of threads from 3.14 on")
def test_the_sampler_counts_threads_and_processes(on_path):
    from libraries_ways import ThreadSampler

    is_over = threading.Event()
    with ThreadSampler() as sampler:
        for name in ("one", "two", "pool_party-feed"):
            threading.Thread(target=is_over.wait, name=name).start()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            gates.wait_until(lambda: sampler.peaks()["threads"] == 3, "two threads and a process are counted")
            child.communicate(b"\n")
        is_over.set()
    assert sampler.peaks()["service_threads"] == 1


# ---- code that the programs share ----


def options(path: Path | None = None):
    from argparse import Namespace

    return Namespace(json=path, quick=True)


def test_subjects_are_measured_in_turns_and_failed_ones_once(on_path, capsys):
    from program import gather

    asked = []

    def measure(subject):
        asked.append(subject)
        return (None, "broken") if subject == "b" else ({"n": len(asked)}, "")

    runs = gather("letters", ["a", "b", "c"], 3, measure)
    assert asked == ["a", "b", "c", "c", "a", "a", "c"]
    assert runs.figures == {"a": [{"n": 1}, {"n": 5}, {"n": 6}], "c": [{"n": 3}, {"n": 4}, {"n": 7}]}
    assert runs.failures == {"b": "broken"}
    assert capsys.readouterr().err.splitlines()[-1] == "letters: round 3 of 3"


def test_record_is_a_whole_file_after_every_part(on_path, tmp_path):
    from program import Record

    path = tmp_path / "figures.json"
    record = Record("What?", 2, options(path))
    record.put_section("one", {"a": 1})
    assert json.loads(path.read_text())["sections"] == {"one": {"a": 1}}
    record.put_section("two", {"b": 2})
    found = json.loads(path.read_text())
    assert found["sections"] == {"one": {"a": 1}, "two": {"b": 2}}
    assert found["metadata"]["is_quick"] and len(found["metadata"]["load_average_after"]) == 3
    record.show("a table", "", "and more")
    record.put("n", 3)
    assert json.loads(path.read_text())["text"] == ["a table", "", "and more", ""]
    assert list(tmp_path.iterdir()) == [path]


def test_sizes_of_pools_reach_twice_the_cpus(on_path):
    from scaling import default_numbers

    assert default_numbers(1) == [1, 2]
    assert default_numbers(2) == [1, 2, 3, 4]
    assert default_numbers(16) == [1, 2, 4, 8, 16, 24, 32]
    assert default_numbers(44)[-3:] == [44, 66, 88]


def test_time_that_was_cut_keeps_the_cells_before(on_path, monkeypatch):
    import scaling

    answers = iter([({"x": [1.0, 3.0]}, "time is up"), ({"z": [4.0]}, "")])
    asked = []
    monkeypatch.setattr(scaling, "begin", lambda module, arguments, *_: asked.append(arguments[4:]))
    monkeypatch.setattr(scaling, "end", lambda *_: next(answers))
    curves = scaling._Curves("thread", ["x", "y", "z"], "quick")
    curves.measure("one-thread", 2)
    assert [[text.partition("=")[0] for text in texts] for texts in asked] == [["x", "y", "z"], ["z"]]
    points = {point["cell"]: point for point in curves.points()}
    assert points["x"]["median_s"] == 2.0 and points["z"]["median_s"] == 4.0
    assert points["y"]["failure"] == "> 60.0 s"


# ---- the command ----


@pytest.fixture
def fake_suite(on_path, monkeypatch, tmp_path):
    """Benchmarks that only write files (complete, partly failed, broken off), and the folder for their results."""
    import bench
    import document
    import suite

    text = 'import json, pathlib, sys\nplace = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])\n'
    write = f"place.write_text(json.dumps({{'metadata': {METADATA!r}, 'text': [f'| it is | {{sys.argv[1]}} |']}}))\n"
    endings = {"good": write, "partly": write + "sys.exit(1)\n", "broken": write + "sys.exit(3)\n", "empty": "1 / 0\n"}
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "_DOCUMENT", tmp_path / "performance.md")
    for name, ending in endings.items():
        (tmp_path / f"{name}.py").write_text(f'"""Is this {name}?"""\n{text}{ending}')
    table = {name: suite.Benchmark(name, 0.1, 0.1, ("new",), ("quick",)) for name in endings}
    monkeypatch.setattr(bench, "BENCHMARKS", table)
    monkeypatch.setattr(document, "BENCHMARKS", table)
    results = tmp_path / "results"
    results.mkdir()
    return bench, results


def content(folder: Path, name: str) -> str:
    return json.loads((folder / f"{name}.json").read_text())["text"][0].split()[-2]


def test_all_are_run_although_some_fail(fake_suite, capsys):
    bench, results = fake_suite
    (results / "empty.json").write_text("figures of a run before")
    problems = bench._run_all(list(bench.BENCHMARKS.values()), results, is_quick=False)
    assert [content(results, name) for name in ("good", "partly", "broken")] == ["new", "new", "new"]
    assert set(problems) == {"partly", "broken", "empty"}
    assert "exit status 3" in problems["broken"] and "first parts" in problems["broken"]
    assert "no figures" in problems["empty"] and not (results / "empty.json").exists()
    assert "2 of 4: partly" in capsys.readouterr().out


@pytest.fixture
def at_commit(on_path, monkeypatch):
    """Return what makes a checkout seem to be at a commit."""
    import metadata

    return lambda commit: monkeypatch.setattr(metadata, "current_commit", lambda: commit)


def test_a_run_of_all_writes_the_document(fake_suite, at_commit, tmp_path):
    bench, results = fake_suite
    at_commit(METADATA["commit"])
    assert bench.main([]) == 1  # as some failed
    assert content(results / METADATA["commit"], "good") == "new"
    text = (tmp_path / "performance.md").read_text()
    assert text.count("| it is | new |") == 3 and "Not in this run: empty." in text


def test_a_run_of_some_leaves_the_document_to_whoever_asks_for_it(fake_suite, at_commit, tmp_path):
    bench, _ = fake_suite
    at_commit(METADATA["commit"])
    assert bench.main(["good"]) == 0
    assert not (tmp_path / "performance.md").exists()
    assert bench.main(["--document"]) == 0
    assert (tmp_path / "performance.md").read_text().count("| it is | new |") == 1


@pytest.mark.parametrize(("commit", "why"), [("0123456789+", "uncommitted changes"), ("", "not in git")])
def test_what_no_commit_has_is_not_measured(fake_suite, at_commit, commit, why, tmp_path, capsys):
    bench, results = fake_suite
    at_commit(commit)
    assert bench.main([]) == 2
    assert bench.main(["good"]) == 2
    refused = capsys.readouterr().err.splitlines()
    assert len(refused) == 2 and why in refused[0] and "add --quick" in refused[0]
    assert not list(results.iterdir()) and not (tmp_path / "performance.md").exists()


def test_a_quick_run_leaves_the_document_alone(fake_suite, at_commit, tmp_path, capsys):
    bench, results = fake_suite
    at_commit("0123456789+")
    assert bench.main(["--quick", "good"]) == 0
    assert bench.main(["--quick"]) == 1
    assert not [*tmp_path.rglob("performance.md")]
    at_commit(METADATA["commit"])
    assert bench.main(["--quick"]) == 1
    assert [*tmp_path.rglob("performance.md")] == [results / "0123456789-quick" / "performance.md"]


def test_the_commit_says_whether_there_are_changes(on_path, monkeypatch, tmp_path):
    import metadata

    def git(*arguments):
        done = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *arguments], cwd=tmp_path, check=True)
        return done.returncode

    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(metadata, "_ROOT", tmp_path)
    assert metadata.current_commit() == ""  # another pool_party is installed than this one
    (tmp_path / "pool_party").mkdir()
    (tmp_path / "pool_party" / "__init__.py").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").touch()
    spec = importlib.util.spec_from_file_location("pool_party", tmp_path / "pool_party" / "__init__.py")
    monkeypatch.setattr(metadata.importlib.util, "find_spec", lambda name: spec)
    git("init", "-q")
    assert metadata.current_commit() == ""
    git("add", ".")
    git("commit", "-qm", "all")
    commit = metadata.current_commit()
    assert len(commit) == 10 and not commit.endswith("+")
    (tmp_path / "docs" / "performance.md").write_text("the document of this commit")
    assert metadata.current_commit() == commit
    (tmp_path / "new.py").touch()
    assert metadata.current_commit() == f"{commit}+"


def test_what_needs_a_package_that_is_missing_is_left_out(fake_suite, capsys):
    bench, results = fake_suite
    benchmark = replace(bench.BENCHMARKS["good"], needs=("json", "no_such_package"))
    assert bench._run_all([benchmark], results, is_quick=True) == {}
    assert "not installed: no_such_package" in capsys.readouterr().out
    assert not list(results.iterdir())


def test_one_that_hangs_is_ended(fake_suite, tmp_path):
    bench, _ = fake_suite
    (tmp_path / "good.py").write_text("import time\ntime.sleep(1000)\n")
    process = subprocess.Popen([sys.executable, str(tmp_path / "good.py")], stderr=subprocess.DEVNULL)
    assert bench._wait(process, 0.01) is None
    assert process.poll() is not None


def test_list_names_every_benchmark_with_its_question_and_time(on_path, capsys):
    import bench

    assert bench.main(["--list"]) == 0
    text = capsys.readouterr().out
    for name, benchmark in bench.BENCHMARKS.items():
        assert name in text and benchmark.question in text and benchmark.question.endswith("?")
    assert {"dispatch", "modes", "cells", "scaling", "overhead", "wake-up", "memory"} <= set(bench.BENCHMARKS)


def test_unknown_names_are_refused(on_path, capsys):
    import bench

    with pytest.raises(SystemExit):
        bench.main(["dispatch", "dispitch"])
    assert "no benchmark dispitch" in capsys.readouterr().err


def test_command_forwards_to_the_checkout(capfd):
    assert _cli.main(["bench", "--list"]) == 0
    assert "dispatch" in capfd.readouterr().out


def test_command_without_a_checkout_says_what_to_do(tmp_path, capsys):
    from argparse import Namespace

    assert _bench.run(Namespace(names=[], quick=False, document=False, list=True), tmp_path) == 1
    assert "make bench" in capsys.readouterr().err


# ---- the document ----


def summaries(key: str, **figures: float) -> dict[str, dict]:
    return {name.replace("_in_", " "): {"summary": {key: value}} for name, value in figures.items()}


def cell(kind: str, way: str, name: str, ratio: float) -> dict:
    return {"kind": kind, "n_workers": 2, "way": way, "cell": name, "median_s": 2 * ratio, "ratio": ratio}


CELLS = [f"{shape}-{much}" for shape in ("balanced", "unbalanced") for much in ("little", "much")]
PACKED = {"serial": 20.0, "ours": 12.5, "ratio": 1.6}
FIGURES = {
    "dispatch": {
        "sections": {
            "throughput": summaries("median", pool_party_in_process=3e6, Pool=5e4, pool_party_in_interp=1e6)
            | {"loky": {"failure": "it broke"}},
            "round-trip": summaries("median", pool_party_in_process=8.0, Pool=100.0, loky=40.0),
            "hostage": summaries("n_hostages", pool_party_in_process=0, pool_party_in_thread=3),
        }
    },
    "modes": {"sections": {"data_pass": summaries("median", **{"pool_party-process": 0.1, "subprocess": 0.3})}},
    "cells": {
        "results": [
            *(cell("thread", "dynamic", name, 0.8) for name in CELLS),
            cell("process", "default", CELLS[2], 2.0),
            cell("process", "dynamic", CELLS[2], 0.8),
            {"kind": "process", "n_workers": 2, "way": "joblib", "cell": CELLS[2], "failure": "> 9 s"},
            cell("process", "dynamic", CELLS[0], 1.0),
            cell("process", "dynamic", CELLS[1], 1.2),
            cell("interp", "dynamic", CELLS[0], 1.0),
            cell("interp", "dynamic", CELLS[1], math.nan),
            {"kind": "interp", "n_workers": 2, "way": "dynamic", "cell": CELLS[2], "failure": "> 9 s"},
        ]
    },
    "memory": {
        "sections": {"memory": summaries("idle_bytes_per_worker", pool_party_in_interp=2e6, pool_party_in_process=10e6)}
    },
    "transfer": {
        "sections": {
            "bytes": {"median_us": {"Pool": {"524288": 1000.0}, "pool_party process": {"524288": 110.0}}},
            "ndarray": {"median_us": {"loky": {"67108864": 3e5}, "pool_party interp": {"67108864": 2e4}}},
        }
    },
    "packing": {
        "loads": {
            "idle": {"n_busy": 0, "layouts": {"face": {"65536": PACKED | {"ratio": 0.9}, "67108864": PACKED}}},
            "busy": {"n_busy": 2, "layouts": {"face": {"67108864": PACKED | {"ratio": 0.99}}}},
        }
    },
}


@pytest.fixture
def results(tmp_path):
    """A folder with figures of some benchmarks."""
    folder = tmp_path / "results"
    folder.mkdir()
    for name, figures in FIGURES.items():
        write_figures(folder, name, figures)
    return folder


def write_figures(folder: Path, name: str, figures: dict, **metadata) -> None:
    found = {"metadata": METADATA | metadata, "text": [f"| {name} | 12,300 |"]} | figures
    (folder / f"{name}.json").write_text(json.dumps(found))


def test_document_has_the_run_and_the_texts_of_all_benchmarks(on_path, results, tmp_path):
    from document import MARK, read_figures, write_document

    failure = "- not measured: loky: exit status 1: /home/anybody/pool_party/loky.py is missing, 1/2 of it"
    write_figures(results, "modes", {"text": [failure]}, date="2026-11-21T00:10:00+00:00")
    document = tmp_path / "performance.md"
    document.write_text(f"# How to read this\n\n{MARK}\nwhat an earlier run found\n")
    write_document(read_figures(results), document)
    text = document.read_text()
    assert text.startswith(f"# How to read this\n\n{MARK}\n## The run\n") and "earlier" not in text
    machine = "a CPU, 2 usable CPUs of 2, Linux 6, CPython"
    assert f"Commit 0123456789, 2026-11-20 to 2026-11-21: {machine}. " in text
    assert text.count(machine) == 1  # for all of them
    assert text.count("\n## ") == len(FIGURES) + 2  # and the sections for the run and the goals
    assert "## What does it cost to hand out a task? (`benchmarks/dispatch.py`)" in text
    assert rows_of(text)["dispatch"] == ["12,300"]
    assert "Not in this run: " in text and "not a measurement" not in text
    assert "loky: exit status 1: loky.py is missing, 1/2 of it" in text
    svg = (tmp_path / "pictures" / "figures.svg").read_text()
    assert "pictures/figures.svg" in text and ">8 us<" in svg and ">1.60 s<" in svg and "pool_party, process" in svg


def test_document_of_a_quick_run_says_so(on_path, tmp_path):
    from document import read_figures, write_document

    write_figures(tmp_path, "memory", FIGURES["memory"], is_quick=True)
    write_document(read_figures(tmp_path), tmp_path / "new.md")
    text = (tmp_path / "new.md").read_text()
    assert text.startswith("# Performance\n") and "not a measurement" in text
    assert "Commit 0123456789, 2026-11-20: a CPU" in text
    assert "figures.svg" not in text and not (tmp_path / "pictures").exists()  # nothing to draw


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"commit": "0123456789+"}, "uncommitted changes"),
        ({"commit": ""}, "uncommitted changes"),
        ({"commit": "9876543210"}, "not all figures"),
        ({"cpu": "another CPU"}, "not all figures"),
        ({"python": "PyPy"}, "not all figures"),
    ],
)
def test_figures_of_several_runs_make_no_document(on_path, results, metadata, why):
    from document import read_figures

    write_figures(results, "memory", FIGURES["memory"], **metadata)
    with pytest.raises(ValueError, match=why):
        read_figures(results)


@pytest.mark.parametrize(
    ("ratio", "ratio_again", "verdict"), [(0.97, 1.0, "**no**"), (0.97, 0.96, "yes"), (0.98, 1.0, "yes")]
)
def test_packing_may_lose_what_serial_code_loses_to_itself(on_path, ratio, ratio_again, verdict):
    from goals import format_goals

    figures = PACKED | {"ratio": ratio, "ratio_again": ratio_again}
    text = format_goals({"packing": {"loads": {"busy": {"n_busy": 2, "layouts": {"face": {"65536": figures}}}}}})
    *_, result, found = rows_of(text)["packing at every size and load"]
    assert found == verdict and f"serial against itself: lowest {ratio_again:.2f} x" in result


def test_goals_say_what_was_reached_and_what_was_not_measured(on_path):
    from goals import format_goals

    rows = rows_of(format_goals(FIGURES))
    expected = {
        "`map(noop, range(n), chunksize=1)`, process": "yes",
        "`map(noop, range(n), chunksize=1)`, interp": "not measured",
        "1,000 tasks, one of which takes 1 s": "**no**",
        "`apply` round trip, process, median": "**no**",
        "start to first result, interp": "not measured",
        "memory (PSS), interp, each further idle worker": "yes",
        "nested parallelism, unbalanced, dynamic, thread": "yes",
        "nested parallelism, balanced, dynamic, process": "**no**",
        "nested parallelism, balanced, dynamic, interp": "not measured",
        "`data_pass`: lists of 65,536 floats as results, process": "yes",
        "64 MB ndarray there and back, interp": "yes",
        "packing 64 MB, other cores idle": "yes",
        "packing at every size and load": "**no**",
        "0.5 MB of `bytes` there and back, process": "**no**",
        "0.5 MB of `bytes` there and back, interp": "not measured",
    }
    assert {what: rows[what][-1] for what in expected} == expected
    assert rows["`map(noop, range(n), chunksize=1)`, process"][1].startswith("60 x: 3,000,000")
    assert rows["`apply` round trip, process, median"][1] == "0.20 x: 8 us, loky 40 us"


def test_the_committed_document_has_a_place_for_a_run(on_path):
    from document import MARK

    assert (ROOT / "docs" / "performance.md").read_text().count(f"\n{MARK}\n## ") == 1


def test_document_of_nothing_is_an_error(on_path, tmp_path, capsys):
    import bench

    assert bench._document(tmp_path, tmp_path / "performance.md") == 1
    assert "run some benchmarks first" in capsys.readouterr().err
