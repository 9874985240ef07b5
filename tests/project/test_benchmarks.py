"""The benchmarks under pyperformance: each is complete, and its tasks return the same in every kind of worker."""

import sys
import tomllib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = [line.split("\t")[0] for line in (BENCHMARKS / "MANIFEST").read_text().splitlines() if line.endswith("<local>")]


@pytest.fixture
def workloads(monkeypatch):
    """The table of workloads. Workers that are started from now on can import it as well."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from party_workloads import WORKLOADS

    return WORKLOADS


def test_manifest_lists_what_is_there(workloads):
    assert set(NAMES) == set(workloads) == {path.name.removeprefix("bm_") for path in BENCHMARKS.glob("bm_*")}


@pytest.mark.parametrize("name", NAMES)
def test_benchmark_is_complete(name):
    folder = BENCHMARKS / f"bm_{name}"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["pyperformance"]["name"] == name
    assert f'main("{name}")' in (folder / "run_benchmark.py").read_text()
    assert (folder / (folder / "requirements.txt").read_text().strip()).is_file()


def test_tasks_return_the_same_in_every_kind(kind, workloads, make_pool):
    pool = make_pool(2, kind=kind)
    for workload in workloads.values():
        arguments = workload.arguments("tiny")
        assert pool.map(workload.task, arguments, chunksize=1) == list(map(workload.task, arguments)), workload.name


def test_results_are_right(workloads):
    results = {name: workload.task(workload.tiny[1]) for name, workload in workloads.items()}
    assert results["fib"] == 89
    assert results["fib2"] == (89, 177)
    assert results["nbody"] == 20
    assert results["nbody_no_share"] == pytest.approx([-0.169075164, -0.169075164], abs=1e-4)
    assert len(set(results["raytrace"])) > 10
    assert results["data_pass"] == [1000.0] * 256
    assert results["balance"] == results["nbody_no_share"][:1] * 256


# ---- the share of time during which the GIL is held ----


@pytest.fixture
def sampler(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gil_sampler

    if not gil_sampler.is_available():
        pytest.skip("this Python does not tell where the flag of its GIL is, or has none")
    return gil_sampler


def test_the_gils_flag_is_found(sampler, make_pool):
    address = sampler.flag_address()
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        assert int.from_bytes(memory.read(4), sys.byteorder) in (0, 1)  # reading releases the GIL
    pool = make_pool(1, kind="interp", policy=None)
    assert pool.apply(sampler.is_released_at_last, (address,))  # this thread only waits meanwhile


def test_the_share_is_one_of_all_looks(sampler):
    ran = []
    assert 0 <= sampler.held_share(lambda: ran.append(sum(range(1_000_000)))) <= 1
    assert ran == [499999500000]
