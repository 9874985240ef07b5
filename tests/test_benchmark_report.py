"""The benchmarks as programs: their shared code, the command that runs them, and the report that it writes.

Programs run in separate processes. The tests check what they write, never how fast anything was.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import gates
import pytest

from pool_party import ComposablePool, _options
from pool_party.cli import bench as _bench
from pool_party.cli import main as _cli

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
HAS_NUMPY = importlib.util.find_spec("numpy") is not None
METADATA = {"date": "2026-11-20T17:03:07+00:00", "cpu": "a CPU", "n_cpus_usable": 2, "n_cpus": 2, "is_quick": False}


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

SMALLEST = {
    "dispatch": ("--only", "start", "--peer", "pool_party thread"),
    "modes": ("--only", "fib", "--modes", "sequential", "pool_party-thread"),
    "wake_up": ("--peer", "thread, affinity"),
    "memory": ("--peer", "pool_party thread", "--workers", "1", "2"),
    "overhead": ("--only", "budget", "--peer", "thread None"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_case_runs(name, tmp_path):
    file = tmp_path / "figures.json"
    done = run(f"{name}.py", "--quick", "--json", str(file), *SMALLEST[name])
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["metadata"]["is_quick"] and found["metadata"]["taken_s"] >= 0
    subjects = {subject for section in found["sections"].values() for subject in section}
    assert any("thread" in subject for subject in subjects)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMPY, reason="needs NumPy")
def test_smallest_case_of_transfer_runs(tmp_path):
    file = tmp_path / "figures.json"
    arguments = ("--only", "bytes", "--peer", "pool_party thread", "--max-size", "16384")
    done = run("transfer.py", "--quick", "--json", str(file), *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"]["bytes"]
    assert not found["failures"]
    assert set(found["median_us"]) == {"pool_party thread", "pipe", "memcpy", "memcpy, new objects"}
    assert all(set(by_size) == {"1", "16384"} for by_size in found["median_us"].values())


@pytest.mark.slow
@pytest.mark.parametrize("section", ["rows", "script"])
def test_smallest_case_of_objects_runs(section, tmp_path):
    file = tmp_path / "figures.json"
    done = run("objects.py", "--quick", "--json", str(file), "--only", section, "--peer", "pool_party process")
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["sections"][section]["pool_party process"]["summary"]
    assert all(value >= 0 for value in figures.values())
    assert len(figures) == {"rows": 3, "script": 4}[section]


@pytest.mark.slow
@pytest.mark.parametrize("section", ["calls", "server", "stalls"])
def test_smallest_case_of_asyncio_runs(section, tmp_path):
    if section == "server":
        pytest.importorskip("aiohttp")
    file = tmp_path / "figures.json"
    peers = ("--peer", "pool_party thread", "--peer", "nothing", "--peer", "ThreadPoolExecutor")
    done = run("asyncio_calls.py", "--quick", "--json", str(file), "--only", section, *peers)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"][section]
    assert ("nothing is opened" if section == "stalls" else "ThreadPoolExecutor") in found
    figures = found["pool_party thread"]["summary"]
    assert all(value > 0 for value in figures.values())


@pytest.mark.slow
@pytest.mark.parametrize("section", ["tasks", "calls", "array", "nested"])
def test_smallest_case_of_clusters_runs(section, tmp_path):
    pytest.importorskip("distributed")
    file = tmp_path / "figures.json"
    done = run(
        "cluster.py", "--quick", "--json", str(file), "--only", section, "--peer", "process", "--peer", "Client.map"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"][section]
    assert {"Client.map", "pool_party, dask, process"} <= set(found)
    assert all(value > 0 for figures in found.values() for value in figures["summary"].values())


@pytest.mark.slow
def test_smallest_case_of_ranks_runs(tmp_path):
    pytest.importorskip("mpi4py")
    file = tmp_path / "figures.json"
    peers = ("--peer", "mpi, thread", "--peer", "MPIPoolExecutor", "--peer", "Client.map")
    done = run("cluster.py", "--quick", "--json", str(file), "--only", "tasks", *peers)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"]["tasks"]
    assert {"MPIPoolExecutor", "pool_party, mpi, thread"} <= set(found)
    assert all(value > 0 for figures in found.values() for value in figures["summary"].values())


@pytest.mark.slow
def test_smallest_case_of_many_machines_runs(tmp_path):
    file = tmp_path / "figures.json"
    cases = ("--nodes", "1", "20", "--workers", "2", "--task-ms", "1")
    done = run("cluster_size.py", "--quick", "--json", str(file), *cases)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"]["2 workers a node"]
    assert set(found) == {"1 node, 0 ms", "1 node, 1 ms", "20 nodes, 1 ms"}
    for subject in found.values():
        assert all(value > 0 for key, value in subject["summary"].items() if key != "task_ms")
        assert subject["summary"]["share"] <= subject["summary"]["share_of_bound"]


def test_simulated_nodes_answer_every_task(on_path, monkeypatch):
    from cluster_size_ways import Nodes, nothing

    nodes = Nodes(3, 2, 0.001, n_joined=1)
    monkeypatch.setattr(_options, "_transport_to", lambda *args: nodes)
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


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMPY, reason="needs NumPy")
def test_smallest_case_of_packing_runs(tmp_path):
    file = tmp_path / "figures.json"
    done = run("packing.py", "--quick", "--only", "contiguous", "--json", str(file))
    assert done.returncode == 0, done.stderr
    loads = json.loads(file.read_text())["loads"]
    assert [load["n_busy"] == 0 for load in loads.values()] == [True, False, False]
    for load in loads.values():
        assert all(figures["n_rounds"] > 0 for figures in load["layouts"]["contiguous"].values())


@pytest.mark.slow
def test_smallest_case_of_tracing_runs(tmp_path):
    file = tmp_path / "figures.json"
    done = run("tracing.py", "--quick", "--kinds", "thread", "--json", str(file))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert set(found["native"]) <= {"no trace", "a trace"}
    (figures,) = found["kinds"]["thread"]
    assert set(figures) == {"no trace", "a trace"}


@pytest.mark.slow
def test_smallest_case_of_the_profile_runs(tmp_path):
    file = tmp_path / "figures.json"
    done = run("profile_task.py", "--quick", "--only", "map", "--kinds", "thread", "--json", str(file))
    assert done.returncode == 0, done.stderr
    bounds, figures = json.loads(file.read_text())["sections"].values()
    assert all(bound["summary"]["ns per task"] > 0 for bound in bounds.values())
    assert figures["wall time"]["summary"]["ns per task"] > 0


SAMPLES = """
10/10
    7f01 [unknown]
    7f02 pp_encode
    7f03 next_argument
    7f04 channel_put_many
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


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMPY, reason="needs NumPy")
def test_smallest_case_of_cells_runs(tmp_path):
    file = tmp_path / "figures.json"
    arguments = ("--kinds", "thread", "--cells", "balanced-little", "--ways", "one-thread", "--workers", "1")
    done = run("cells.py", "--quick", "--json", str(file), *arguments)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(file.read_text())["results"]
    assert (row["way"], row["cell"], row["ratio"]) == ("one-thread", "balanced-little", 1.0)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMPY, reason="needs NumPy")
def test_smallest_case_of_scaling_runs(tmp_path):
    file = tmp_path / "figures.json"
    arguments = ("--kinds", "thread", "--cells", "balanced-little", "--ways", "one-thread", "--workers", "1")
    done = run("scaling.py", "--quick", "--json", str(file), *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    (point,) = found["points"]
    assert (point["way"], point["n_workers"]) == ("one-thread", 1)
    assert found["bounds"][0]["bound_s"] <= point["median_s"]


HAS_SCIENCE = all(importlib.util.find_spec(name) for name in ("numpy", "scipy", "pandas", "sklearn"))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SCIENCE, reason="needs NumPy, SciPy, pandas and scikit-learn")
def test_smallest_case_of_science_runs(tmp_path):
    file = tmp_path / "figures.json"
    done = run("science.py", "--quick", "--json", str(file), "--only", "transfer", "--peer", "pool_party thread")
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["sections"]["transfer"]["pool_party thread"]["summary"]["median_s"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("numpy", "joblib")), reason="needs joblib")
def test_smallest_case_of_libraries_runs(tmp_path):
    file = tmp_path / "figures.json"
    done = run("libraries.py", "--quick", "--json", str(file), "--only", "joblib", "--peer", "thread")
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"]["joblib"]
    assert set(found) == {"loky", "threading", "pool_party thread"}
    ours = found["pool_party thread"]["summary"]
    assert ours["to loky, low"] <= ours["to loky"] <= ours["to loky, high"] and ours["peak_bytes"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMPY, reason="needs NumPy")
def test_smallest_case_of_unmodified_programs_runs(tmp_path):
    file = tmp_path / "figures.json"
    arguments = ("--program", "eig", "--flavour", "threads", "--workers", "1")
    done = run("unmodified.py", "--quick", "--json", str(file), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(file.read_text())["sections"]["1 workers"]["eig, threads"]
    assert not row["failures"] and row["summary"]["to hand"] <= row["summary"]["to plain"]


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


def test_libraries_take_no_wrong_results(on_path):
    from libraries import check, sum_up
    from program import Runs

    def figures(value, rounds_s):
        workloads = {"qr": {"results": [1.0, value], "rounds_s": rounds_s}}
        return {"workloads": workloads, "open_s": 0.0, "threads": 3, "service_threads": 0, "running_threads": 2}

    runs = Runs()
    for way, value in {"loky": 2.0, "alike": 2.0 + 1e-12, "other": 2.001, "none": math.nan}.items():
        for round_s in (1.0, 2.0) if way == "alike" else (4.0, 4.0):
            runs.add(way, (figures(value, [round_s]), ""))
    check(runs, "loky")
    assert list(runs.figures) == ["loky", "alike"] and list(runs.failures) == ["other", "none"]
    sums = sum_up("scikit-learn", runs)["alike"]
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


def test_science_takes_no_wrong_results(on_path):
    from program import Runs
    from science import check

    def figures(value):
        return {"workloads": {"scipy": {"results": [[1.0, value]], "rounds_s": [1.0], "cpu_s": 1.0}}}

    runs = Runs()
    for way, value in {"serial": 2.0, "alike": 2.0 + 1e-12, "other": 2.001, "none": math.nan}.items():
        runs.add(way, (figures(value), ""))
    check(runs)
    assert list(runs.figures) == ["serial", "alike"] and list(runs.failures) == ["other", "none"]
    assert "results" not in runs.figures["alike"][0]["workloads"]["scipy"]


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


def test_histogram_counts_everything(on_path):
    from wake_up import EDGES_US, _histogram

    counts = _histogram([0.1, EDGES_US[0], EDGES_US[3], EDGES_US[3] + 0.01, 1e9])
    assert len(counts) == len(EDGES_US) - 1
    assert (counts[0], counts[3], counts[-1], sum(counts)) == (2, 2, 1, 5)


# ---- the command ----


@pytest.fixture
def fake_suite(on_path, monkeypatch, tmp_path):
    """Benchmarks that only write files (complete, partly failed, broken off), and the folder for their results."""
    import bench
    import suite

    text = 'import json, pathlib, sys\nplace = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])\n'
    write = f"place.write_text(json.dumps({{'metadata': {METADATA!r}, 'sections': {{'s': sys.argv[1]}}}}))\n"
    endings = {"good": write, "partly": write + "sys.exit(1)\n", "broken": write + "sys.exit(3)\n", "empty": "1 / 0\n"}
    monkeypatch.setattr(suite, "HERE", tmp_path)
    for name, ending in endings.items():
        (tmp_path / f"{name}.py").write_text(f'"""Is this {name}?"""\n{text}{ending}')
    table = {name: suite.Benchmark(name, 0.1, 0.1, ("new",), ("quick",)) for name in endings}
    monkeypatch.setattr(bench, "BENCHMARKS", table)
    results = tmp_path / "results"
    results.mkdir()
    return bench, results


def content(folder: Path, name: str) -> str:
    return json.loads((folder / f"{name}.json").read_text())["sections"]["s"]


def test_all_are_run_although_some_fail(fake_suite, capsys):
    bench, results = fake_suite
    for name in ("good", "broken", "empty"):
        (results / f"{name}.json").write_text(json.dumps({"metadata": METADATA, "sections": {"s": "old"}}))
    problems = bench._run_all(list(bench.BENCHMARKS.values()), results, is_quick=False)
    assert [content(results, name) for name in ("good", "partly", "broken", "empty")] == ["new", "new", "old", "old"]
    assert set(problems) == {"partly", "broken", "empty"}
    assert "exit status 3" in problems["broken"] and "former" in problems["broken"]
    assert {path.suffix for path in results.iterdir()} == {".json"}
    assert "2 of 4: partly" in capsys.readouterr().out


def test_parts_are_kept_where_there_was_nothing(fake_suite):
    bench, results = fake_suite
    problems = bench._run_all([bench.BENCHMARKS["broken"]], results, is_quick=True)
    assert content(results, "broken") == "quick"
    assert "first parts" in problems["broken"]


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

    assert _bench.run(Namespace(names=[], quick=False, report=False, list=True, results=None), tmp_path) == 1
    assert "make bench" in capsys.readouterr().err


def test_folders_are_named_after_the_cpus(on_path):
    from suite import default_folder, machine_name

    assert [machine_name(n) for n in (1, 2, 4, 16)] == ["one-core", "two-cores", "four-cores", "16-cores"]
    assert default_folder(is_quick=True) != default_folder(is_quick=False)


# ---- the report ----


def summaries(key: str, **figures: float) -> dict[str, dict]:
    return {name.replace("_in_", " "): {"summary": {key: value}, "is_bound": False} for name, value in figures.items()}


def cell(kind: str, way: str, name: str, ratio: float) -> dict:
    row = {"kind": kind, "n_workers": 2, "way": way, "cell": name, "median_s": 2 * ratio, "ratio": ratio}
    return row | {"best_per_stage_s": 1.5, "stages_s": [[2 * ratio]]}


def point(way: str, n_workers: int, **figures: object) -> dict:
    return {"kind": "thread", "way": way, "title": way, "n_workers": n_workers, "cell": CELLS[0]} | figures


CELLS = [f"{shape}-{much}" for shape in ("balanced", "unbalanced") for much in ("little", "much")]
CUT = {"kind": "thread", "n_workers": 2, "way": "default", "cell": CELLS[1], "failure": "> 9 s", "stages_s": []}
ORDER = {"pmo_us": 20.0, "pce": 1.1, "full_us": 130.0, "serial_share_us": 100.0}
WAKE_UP = {
    "summary": {"median_us": 60.0, "p90_us": 80.0, "p99_us": 90.0, "n_wake_ups": 4, "n_shared": 0},
    "workers": [{"median_us": 50.0}, {"median_us": 70.0}],
    "counts": [1, 3],
}
SWEEP = {"summary": {"pandas_s": 1.0, "all_s": 2.0, "bytes_per_worker": 50e6}}
PACKED = {"serial": 20.0, "ours": 12.5, "numpy": 21.0, "ratio": 1.6, "pieces_helped": 5}
FIGURES = {
    "dispatch": {
        "sections": {
            "throughput": summaries("median", pool_party_in_process=3e6, Pool=5e4, pool_party_in_interp=1e6)
            | {"loky": {"failure": "it | broke"}},
            "round-trip": summaries("median", pool_party_in_process=8.0, Pool=100.0, loky=40.0),
            "hostage": summaries("n_hostages", pool_party_in_process=0, pool_party_in_thread=3),
        }
    },
    "modes": {"sections": {"data_pass": summaries("median", **{"pool_party-process": 0.1, "subprocess": 0.3})}},
    "cells": {
        "results": [
            *(cell("thread", "dynamic", name, 0.8) for name in CELLS),
            cell("process", "dynamic", CELLS[0], 1.0),
            cell("process", "dynamic", CELLS[1], 1.2),
            CUT,
        ]
    },
    "scaling": {
        "points": [
            point("one-thread", 1, median_s=1.0),
            point("dynamic", 2, median_s=0.6),
            point("default", 2, failure="> 3 s"),
        ],
        "bounds": [{"kind": "thread", "cell": CELLS[0], "bound_s": 0.5}],
    },
    "overhead": {
        "sections": {
            "management": {"launch and join": [{"250": ORDER, "500": ORDER}], "Pool": [{"250": ORDER, "500": ORDER}]},
            "budget": {"thread None": [{"apply_ns": 900.0, "map_ns": 90.0, "has_numpy": True}]},
        }
    },
    "wake-up": {
        "edges_us": [10.0, 100.0, 1000.0],
        "sections": {"wake-up": {"pool_party thread": WAKE_UP, "no pool: processes": WAKE_UP | {"is_bound": True}}},
    },
    "memory": {
        "sections": {
            "memory": {
                f"pool_party {kind}": {
                    "summary": {"idle_bytes_per_worker": size, "numpy_bytes_per_worker": None, "pool_bytes": size}
                }
                for kind, size in (("interp", 2e6), ("process", 10e6))
            }
        }
    },
    "tracing": {
        "kinds": {"thread": [{way: {"map_ns": 90.0, "call_us": 9.0} for way in ("no trace", "a trace")}]},
    },
    "science": {
        "sections": {
            "sweep": {"serial": SWEEP, "pool_party interp": SWEEP, "joblib": {"failure": "no"}},
            "transfer": {
                "Pool": {"summary": {"median_s": 0.3, "best_s": 0.2, "first_s": 0.4}},
                "pool_party interp": {"summary": {"median_s": 0.02, "best_s": 0.01, "first_s": 0.03}},
            },
        }
    },
    "transfer": {
        "sections": {
            "bytes": {
                "median_us": {"Pool": {"1": 90.0, "524288": 1000.0}, "pool_party process": {"1": 9.0, "524288": 110.0}},
                "failures": {"loky": "broken"},
            }
        }
    },
    "packing": {
        "loads": {
            "idle": {
                "n_busy": 0,
                "layouts": {"face": {"65536": PACKED | {"ratio": 0.9}, "67108864": PACKED | {"bound": 1.9}}},
            },
            "busy": {"n_busy": 2, "layouts": {"face": {"67108864": PACKED | {"ratio": 0.99}}}},
        }
    },
    "cluster-size": {
        "sections": {
            "1 worker a node": {
                f"{n} nodes, 10 ms": {
                    "summary": {"n_nodes": n, "task_ms": 10.0, "tasks_per_s": 90.0 * n, "us_per_task": 20.0}
                    | {"bound_per_s": 100.0 * n, "share": 0.9}
                }
                for n in (1, 10)
            }
        }
    },
    "unheard-of": {"sections": {"new": summaries("rate", anything=12_345.6)}},
}


@pytest.fixture
def results(tmp_path):
    """A folder with figures of all benchmarks, of an unknown one, and with one file that is not JSON."""
    for name, figures in FIGURES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"metadata": METADATA} | figures))
    (tmp_path / "torn.json").write_text('{"metadata": {')
    return tmp_path


@pytest.fixture
def write_report(on_path, monkeypatch):
    """A function that writes the report without pictures."""
    from reporting import page

    monkeypatch.setattr(page, "can_draw", lambda: False)
    return page.write_report


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of all rows of all tables, by their first cell."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    cells = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return {first: others for first, *others in cells}


def test_report_has_all_parts(results, write_report):
    text = write_report(results).read_text()
    assert "cannot be shown" not in text
    assert "torn.json could not be read" in text
    assert "loky: it | broke" in text
    assert text.count("\n## ") == len(FIGURES) + 2  # and the sections for goals and runs
    rows = rows_of(text)
    assert rows["anything"] == ["12,300"]
    assert rows["balanced-little, pool_party, dynamic"] == ["-", "0.60"]
    assert rows["launch and join"][-1] == "1.30"


@pytest.mark.parametrize(
    ("ratio", "ratio_again", "verdict"), [(0.97, 1.0, "**no**"), (0.97, 0.96, "yes"), (0.98, 1.0, "yes")]
)
def test_packing_may_lose_what_serial_code_loses_to_itself(on_path, ratio, ratio_again, verdict):
    from reporting.found import Found
    from reporting.packing import packing_goals

    figures = PACKED | {"ratio": ratio, "ratio_again": ratio_again}
    found = Found({"packing": {"loads": {"busy": {"n_busy": 2, "layouts": {"face": {"65536": figures}}}}}})
    *_, goal = packing_goals(found)
    assert goal.verdict == verdict and f"serial against itself: lowest {ratio_again:.2f} x" in goal.result


def test_report_says_what_was_reached_and_what_was_not_measured(results, write_report):
    rows = rows_of(write_report(results).read_text())
    verdicts = {what: cells[-1] for what, cells in rows.items() if cells[-1] in ("yes", "**no**", "not measured")}
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
    assert {what: verdicts[what] for what in expected} == expected
    assert rows["`map(noop, range(n), chunksize=1)`, process"][1].startswith("60 x: 3,000,000")
    assert rows["`apply` round trip, process, median"][1] == "0.20 x: 8 us, loky 40 us"


def test_figures_of_another_shape_cost_only_their_part(results, write_report):
    broken = {"metadata": METADATA, "sections": {"wake-up": {"x": {"summary": {}}}}}
    (results / "wake-up.json").write_text(json.dumps(broken))
    text = write_report(results).read_text()
    assert text.count("cannot be shown") == 1
    assert "## Memory" in text


def test_report_of_nothing_is_an_error(on_path, tmp_path, capsys):
    import bench

    assert bench._report(tmp_path) == 1
    assert "run some benchmarks first" in capsys.readouterr().err


def test_parts_of_a_benchmark_are_put_together_until_it_is_run_as_a_whole(on_path, tmp_path):
    from reporting.found import load

    def write(name, *results):
        (tmp_path / f"{name}.json").write_text(json.dumps({"metadata": METADATA, "results": results}))

    write("cells-process", "a")
    write("cells-thread", "b")
    assert load(tmp_path).benchmarks["cells"]["results"] == ["a", "b"]
    write("cells", "c")
    assert load(tmp_path).benchmarks["cells"]["results"] == ["c"]


def test_figures_that_are_committed_can_be_read(on_path):
    from reporting.found import load

    for folder in (BENCHMARKS / "results").glob("*-core*"):
        found = load(folder)
        assert found.benchmarks and not found.unreadable


def test_pictures_are_small_and_always_the_same(on_path, results):
    pytest.importorskip("matplotlib")
    from reporting.page import write_report

    drawn = {"dispatch", "scaling", "wake-up", "cluster-size"}  # bars, curves, histograms
    for name in set(FIGURES) - drawn:
        (results / f"{name}.json").unlink()
    text = write_report(results).read_text()
    pictures = {path.name: path.read_bytes() for path in results.glob("*.svg")}
    assert set(pictures) == {f"{name}.svg" for name in drawn}
    assert all(f"]({name})" in text for name in pictures)
    assert all(len(picture) < 60_000 for picture in pictures.values())
    texts = {name: "|".join(ElementTree.fromstring(picture).itertext()) for name, picture in pictures.items()}
    assert "tasks of 10 ms" in texts["cluster-size.svg"]
    assert "3,000,000" in texts["dispatch.svg"] and "balanced-little" in texts["scaling.svg"]
    assert b"no pool" in pictures["wake-up.svg"] and b"pool_party, dynamic" in pictures["scaling.svg"]
    (results / "dispatch.json").unlink()
    (results / "wake-up.json").unlink()
    (results / "cluster-size.json").unlink()
    write_report(results)
    assert (results / "scaling.svg").read_bytes() == pictures["scaling.svg"]
