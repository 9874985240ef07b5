"""Which CPUs there are and how many of them count, on machines made of files."""

import os
import sys
import threading

import fresh
import machines
import properties
import pytest

from pool_party._budget import topology
from pool_party._budget.topology import Cpu, Topology, cpu_count, current, read

V2 = ("cgroup2", "/", "/sys/fs/cgroup", "rw,nsdelegate")
V1 = ("cgroup", "/", "/sys/fs/cgroup/cpu,cpuacct", "rw,cpu,cpuacct")
UNIFIED = ("cgroup2", "/", "/sys/fs/cgroup/unified", "rw")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Machines of two sockets with SMT, by name: (root, CPUs, distance between siblings, cores of a socket)."""
    made = {}

    def make(name):
        if name not in made:
            n_cores, numbering, distance = {
                "44 cores a socket": (44, "apart", 88),
                "22 cores a socket": (22, "apart", 44),
                "siblings adjacent": (22, "adjacent", 1),
                "sockets alternating": (22, "alternating", 44),
            }[name]
            root = machines.write_machine(tmp_path_factory.mktemp("server"), 2, n_cores, 2, numbering=numbering)
            made[name] = (root, 4 * n_cores, distance, n_cores)
        return made[name]

    return make


@pytest.fixture
def no_overrides(monkeypatch):
    monkeypatch.delenv("POOL_PARTY_CPU_COUNT", raising=False)
    monkeypatch.delenv("PYTHON_CPU_COUNT", raising=False)
    monkeypatch.delitem(sys._xoptions, "cpu_count", raising=False)
    return monkeypatch


def pairs_of(numbers):
    return list(zip(numbers[::2], numbers[1::2], strict=True))


# ---- CPUs ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["44 cores a socket", "22 cores a socket", "siblings adjacent", "sockets alternating"])
def test_two_sockets_with_siblings(servers, name):
    root, n_cpus, distance, n_cores = servers(name)
    machine = read(root, range(n_cpus))
    assert sorted(machine.allowed) == list(range(n_cpus))
    assert machine.n_cpus == n_cpus and machine.usable == machine.allowed and machine.quota is None
    assert all(second - first == distance for first, second in pairs_of(machine.allowed))
    assert machine.cores == tuple(pairs_of(machine.allowed))
    assert [cpu.package for cpu in machine.cpus] == [0] * 2 * n_cores + [1] * 2 * n_cores
    assert [cpu.node for cpu in machine.cpus] == [cpu.package for cpu in machine.cpus]
    assert len({cpu.core for cpu in machine.cpus}) == 2 * n_cores
    assert len({cpu.cache for cpu in machine.cpus}) == 2


def test_caches_order_the_cores_of_a_package(tmp_path):
    root = machines.write_machine(tmp_path, 1, 6, 2, cores_per_cache=3)
    machine = read(root, range(12))
    assert machine.allowed == (0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11)
    assert [cpu.cache for cpu in machine.cpus] == [0] * 6 + [3] * 6


def test_instruction_caches_do_not_count(tmp_path):
    root = machines.write_machine(tmp_path, 1, 2, 1)
    index = "sys/devices/system/cpu/cpu0/cache/index9"
    machines.write(tmp_path, {f"{index}/level": 4, f"{index}/type": "Instruction", f"{index}/shared_cpu_list": 0})
    assert {cpu.cache for cpu in read(root, [0, 1]).cpus} == {0}


def test_single_core(tmp_path):
    root = machines.write_machine(tmp_path, 1, 1, 1)
    assert read(root, [0]) == Topology((Cpu(0, core=0, package=0, cache=0, node=0),), (0,), None)


def test_without_any_information_each_cpu_is_a_core(tmp_path):
    machine = read(str(tmp_path), {5, 2, 7})
    assert machine.allowed == (2, 5, 7)
    assert machine.cores == ((2,), (5,), (7,))
    assert machine.cpus[0] == Cpu(2, core=2, package=0, cache=2, node=0)
    assert machine.quota is None


def test_without_caches_and_nodes(tmp_path):
    files = {"sys/devices/system/cpu/online": "0-3"}
    for n in range(4):
        files[f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list"] = f"{n % 2},{n % 2 + 2}"
        files[f"sys/devices/system/cpu/cpu{n}/topology/physical_package_id"] = "-1"  # as on some ARM machines
    machine = read(machines.write(tmp_path, files), range(4))
    assert machine.cores == ((0, 2), (1, 3))
    assert {(cpu.package, cpu.node) for cpu in machine.cpus} == {(0, 0)}


@pytest.mark.parametrize("junk", ["", "x", "3-", "-3", "1-2-3", "0x1", "\x00", ",,"])
def test_odd_files_are_taken_for_missing_ones(tmp_path, junk):
    files = {
        f"sys/devices/system/cpu/{name}": junk
        for name in ("online", "cpu0/topology/core_cpus_list", "cpu0/topology/physical_package_id", "cpu0/cache/index3")
    }
    root = machines.write(tmp_path, files | {"sys/devices/system/node/node0/cpulist": junk, "proc/self/cgroup": junk})
    machines.write(tmp_path, {"proc/self/mountinfo": junk, "sys/fs/cgroup/cpu.max": junk})
    machine = read(root, [0, 1])
    assert machine.cores == ((0,), (1,))
    assert machine.quota is None


def test_contradictory_files_keep_siblings_together(tmp_path):
    """The files say that a core's siblings are on two nodes, and have a cache each."""
    root = machines.write_machine(tmp_path, 2, 2, 2)
    machines.write(tmp_path, {"sys/devices/system/node/node1/cpulist": "2-7"})
    for n in (0, 4):
        machines.write(tmp_path, {f"sys/devices/system/cpu/cpu{n}/cache/index1/shared_cpu_list": n})
    machine = read(root, range(8))
    assert machine.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert machine.allowed == (0, 4, 1, 5, 2, 6, 3, 7)


def test_offline_cpus_are_left_out(tmp_path):
    root = machines.write_machine(tmp_path, 1, 4, 2, offline=(1, 6, 3, 7))
    machine = read(root, {0, 2, 4, 5})
    assert [cpu.n for cpu in machine.cpus] == [0, 4, 2, 5]
    assert machine.cores == ((0, 4), (2,), (5,))


def test_mask_is_believed_before_the_list_of_online_cpus(tmp_path):
    """lxcfs shows CPUs 0 and 1 to a container that runs on 40 and 41."""
    root = machines.write(tmp_path, {"sys/devices/system/cpu/online": "0-1"})
    machine = read(root, {40, 41})
    assert machine.allowed == (40, 41)
    assert len(machine.cpus) == 4


def test_mask_that_cuts_a_core(servers):
    root = servers("22 cores a socket")[0]
    machine = read(root, {0, 44, 1, 46, 23})
    assert machine.allowed == (0, 44, 1, 46, 23)
    assert machine.cores == ((0, 44), (1,), (46,), (23,))
    assert len(machine.cpus) == 88


def test_empty_mask_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no CPU is allowed"):
        read(str(tmp_path), ())


def test_topology_cannot_be_changed(tmp_path):
    machine = read(str(tmp_path), [0])
    with pytest.raises(AttributeError):
        machine.quota = 1.0
    assert hash(machine) == hash(read(str(tmp_path), [0]))


# ---- which CPUs to use -----------------------------------------------------


def with_quota(machine, quota):
    return Topology(machine.cpus, machine.allowed, quota)


@pytest.mark.parametrize(
    ("quota", "n_cpus"), [(None, 4), (0.1, 1), (0.99, 1), (1.0, 1), (1.99, 1), (2.0, 2), (3.5, 3), (4.0, 4), (64.0, 4)]
)
def test_quota_is_rounded_down_but_never_to_nothing(tmp_path, quota, n_cpus):
    machine = with_quota(read(str(tmp_path), range(4)), quota)
    assert machine.n_cpus == n_cpus
    assert machine.usable == tuple(range(n_cpus))


def test_cut_takes_whole_cores(servers):
    machine = read(servers("22 cores a socket")[0], range(88))
    assert with_quota(machine, 4.0).usable == (0, 44, 1, 45)
    assert with_quota(machine, 5.9).usable == (0, 44, 1, 45, 2)


def test_cut_takes_whole_cores_before_those_cut_by_the_mask(servers):
    machine = read(servers("22 cores a socket")[0], {0, 1, 45, 2, 46})
    assert with_quota(machine, 4.0).usable == (1, 45, 2, 46)
    assert with_quota(machine, 3.0).usable == (1, 45, 2)
    assert with_quota(machine, 5.0).usable == machine.allowed


@properties.check(n_runs=100)
def test_choice_is_a_part_of_the_allowed_in_their_order(rng):
    cpus = tuple(Cpu(n, n // 2, 0, 0, 0) for n in range(rng.randint(1, 20)))
    allowed = tuple(cpu.n for cpu in cpus if rng.random() < 0.7) or (0,)
    machine = Topology(cpus, allowed, None)
    count = rng.randint(0, 22)
    chosen = machine.choose(count)
    assert len(chosen) == min(count, len(allowed))
    assert chosen == tuple(n for n in allowed if n in chosen)
    assert tuple(n for core in machine.cores for n in core) == allowed


# ---- quotas ----------------------------------------------------------------


def quota_of(tmp_path, cgroup, mounts, files):
    given = {"proc/self/cgroup": cgroup} if cgroup is not None else {}
    given |= {"proc/self/mountinfo": machines.mountinfo(*mounts)} if mounts is not None else {}
    return read(machines.write(tmp_path, given | files), range(8)).quota


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("250000 100000", 2.5), ("50000 100000", 0.5)])
@pytest.mark.parametrize("mounts", [[V2], None], ids=["mounts", "no mounts"])
def test_quota_of_version_2(tmp_path, text, quota, mounts):
    assert quota_of(tmp_path, "0::/a", mounts, {"sys/fs/cgroup/a/cpu.max": text}) == quota


@pytest.mark.parametrize(
    "own, parent, quota", [("max", "3", 3.0), ("4", "3", 3.0), ("2", "3", 2.0), ("max", "max", None)]
)
def test_least_quota_of_nested_groups_of_version_2(tmp_path, own, parent, quota):
    files = {
        "sys/fs/cgroup/user.slice/cpu.max": f"{parent}{'00000' if parent != 'max' else ''} 100000",
        "sys/fs/cgroup/user.slice/some/where/cpu.max": f"{own}{'00000' if own != 'max' else ''} 100000",
    }
    assert quota_of(tmp_path, "0::/user.slice/some/where", [V2], files) == quota


def test_groups_beside_and_below_do_not_count(tmp_path):
    files = {f"sys/fs/cgroup/{path}/cpu.max": "100000 100000" for path in ("a/b/c", "a/x", "ab")}
    files["sys/fs/cgroup/a/b/cpu.max"] = "300000 100000"
    assert quota_of(tmp_path, "0::/a/b", [V2], files) == 3.0


@pytest.mark.parametrize(("quota_us", "quota"), [(-1, None), (150000, 1.5), (0, None)])
@pytest.mark.parametrize("mounts", [[V1], None], ids=["mounts", "no mounts"])
def test_quota_of_version_1(tmp_path, quota_us, quota, mounts):
    group = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {f"{group}/cpu.cfs_quota_us": quota_us, f"{group}/cpu.cfs_period_us": 100000}
    assert quota_of(tmp_path, "5:memory:/elsewhere\n4:cpuacct,cpu:/job\n1:name=systemd:/x", mounts, files) == quota


def test_least_quota_of_nested_groups_of_version_1(tmp_path):
    files = {}
    for group, quota_us in [("", -1), ("/a", 200000), ("/a/b", 400000)]:
        files[f"sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_quota_us"] = quota_us
        files[f"sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_period_us"] = 100000
    assert quota_of(tmp_path, "4:cpu,cpuacct:/a/b", [V1], files) == 2.0


def test_both_versions_at_once(tmp_path):
    files = {
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": 300000,
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": 100000,
        "sys/fs/cgroup/unified/b/cpu.max": "200000 100000",
    }
    assert quota_of(tmp_path, "4:cpu,cpuacct:/a\n0::/b", [V1, UNIFIED], files) == 2.0
    (tmp_path / "sys/fs/cgroup/unified/b/cpu.max").unlink()
    assert quota_of(tmp_path, "4:cpu,cpuacct:/a\n0::/b", [V1, UNIFIED], files={}) == 3.0


def test_container_with_a_namespace_of_its_own(tmp_path):
    assert quota_of(tmp_path, "0::/", [V2], {"sys/fs/cgroup/cpu.max": "200000 100000"}) == 2.0


def test_container_that_sees_the_host_s_path(tmp_path):
    """The mount's root is the container's group, with which the path begins."""
    mounts = [("cgroup", "/docker/1f", "/sys/fs/cgroup/cpu", "rw,cpu")]
    files = {}
    for group, quota_us in [("", 400000), ("/inner", 300000), ("/docker/1f", 100000)]:
        files[f"sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us"] = quota_us
        files[f"sys/fs/cgroup/cpu{group}/cpu.cfs_period_us"] = 100000
    assert quota_of(tmp_path, "3:cpu:/docker/1f/inner", mounts, files) == 3.0
    assert quota_of(tmp_path, "3:cpu:/docker/1f", mounts, {}) == 4.0


@pytest.mark.parametrize("path", ["/kubepods/pod1/2a", "/../../other", "/gone (deleted)"])
@pytest.mark.parametrize("mounts", [[V2], None], ids=["mounts", "no mounts"])
def test_path_that_does_not_exist_below_the_mount(tmp_path, path, mounts):
    assert quota_of(tmp_path, f"0::{path}", mounts, {"sys/fs/cgroup/cpu.max": "200000 100000"}) == 2.0


def test_another_group_mounted_here(tmp_path):
    """It limits other groups, as long as our own is mounted as well."""
    mounts = [("cgroup2", "/theirs", "/mnt/theirs", "rw"), V2]
    files = {"mnt/theirs/cpu.max": "100000 100000", "sys/fs/cgroup/ours/cpu.max": "200000 100000"}
    assert quota_of(tmp_path, "0::/ours", mounts, files) == 2.0


def test_mount_point_with_a_space(tmp_path):
    mounts = [("cgroup2", "/", r"/mnt/control\040groups", "rw")]
    assert quota_of(tmp_path, "0::/", mounts, {"mnt/control groups/cpu.max": "200000 100000"}) == 2.0


def test_path_with_a_colon(tmp_path):
    assert quota_of(tmp_path, "0::/a:b", [V2], {"sys/fs/cgroup/a:b/cpu.max": "200000 100000"}) == 2.0


def test_root_group_without_proc(tmp_path):
    assert quota_of(tmp_path, None, None, {"sys/fs/cgroup/cpu.max": "200000 100000"}) == 2.0


# ---- this machine ----------------------------------------------------------


def test_this_machine():
    machine = read()
    assert set(machine.allowed) == os.sched_getaffinity(0)
    assert machine == current()
    assert 1 <= machine.n_cpus == len(machine.usable) <= len(machine.allowed)


def test_mask_is_that_of_the_calling_thread(no_overrides):
    seen = []

    def narrow():
        one = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {one})
        seen.extend([cpu_count(), current().allowed == read().allowed == (one,)])

    before = cpu_count()
    thread = threading.Thread(target=narrow)
    thread.start()
    thread.join()
    assert seen == [1, True]
    assert cpu_count() == before


def test_quota_counts_and_is_read_anew(no_overrides, tmp_path):
    no_overrides.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    no_overrides.setattr(topology, "_known_groups", lambda: (str(tmp_path),))
    assert cpu_count() == 8
    for limit, count in [("300000 100000", 3), ("max 100000", 8), ("10000 100000", 1)]:
        machines.write(tmp_path, {"cpu.max": limit})
        assert cpu_count() == current().n_cpus == count


def test_a_cpu_that_comes_later(no_overrides):
    no_overrides.setattr(os, "sched_getaffinity", lambda _: {0, 99999})
    assert current().allowed == (0, 99999)
    assert current().cpus[-1] == Cpu(99999, core=99999, package=0, cache=99999, node=0)


# ---- overrides -------------------------------------------------------------


def test_overrides_in_their_order(no_overrides):
    plain = cpu_count()
    no_overrides.setenv("PYTHON_CPU_COUNT", "77")
    assert cpu_count() == 77
    no_overrides.setitem(sys._xoptions, "cpu_count", "78")
    assert cpu_count() == 78
    no_overrides.setenv("POOL_PARTY_CPU_COUNT", "79")
    assert cpu_count() == 79
    no_overrides.delenv("POOL_PARTY_CPU_COUNT")
    no_overrides.setitem(sys._xoptions, "cpu_count", "default")
    assert cpu_count() == plain


def test_default_and_empty_overrides_say_nothing(no_overrides):
    plain = cpu_count()
    no_overrides.setenv("POOL_PARTY_CPU_COUNT", "")
    for value in ("", "default"):
        no_overrides.setenv("PYTHON_CPU_COUNT", value)
        assert cpu_count() == plain


@pytest.mark.parametrize("name", ["POOL_PARTY_CPU_COUNT", "PYTHON_CPU_COUNT"])
@pytest.mark.parametrize("value", ["0", "-1", "2.5", "many", " "])
def test_bad_override_is_named(no_overrides, name, value):
    no_overrides.setenv(name, value)
    with pytest.raises(ValueError, match=rf"^{name} must be a positive number of CPUs, not '{value}'"):
        cpu_count()


def test_default_is_python_s_word_alone(no_overrides):
    no_overrides.setenv("POOL_PARTY_CPU_COUNT", "default")
    with pytest.raises(ValueError, match="POOL_PARTY_CPU_COUNT"):
        cpu_count()


def test_bad_option_is_named(no_overrides):
    no_overrides.setitem(sys._xoptions, "cpu_count", True)
    with pytest.raises(ValueError, match="-X cpu_count must be a positive number of CPUs, not True"):
        cpu_count()


SHOW = "from pool_party._budget.topology import cpu_count; print(cpu_count())"


def test_python_s_own_override_at_its_start(no_overrides):
    no_overrides.setenv("PYTHON_CPU_COUNT", "77")
    fresh.check(fresh.run(["-c", SHOW]), "77")
    fresh.check(fresh.run(["-X", "cpu_count=78", "-c", SHOW]), "78")


def test_python_that_ignores_its_environment(no_overrides, monkeypatch):
    """-E ignores PYTHON's variables, but not ours."""
    monkeypatch.chdir(fresh.TESTS.parent)  # with -E the module is found through the working directory
    plain = cpu_count()
    no_overrides.setenv("PYTHON_CPU_COUNT", "77")
    fresh.check(fresh.run(["-E", "-c", SHOW]), str(plain))
    no_overrides.setenv("POOL_PARTY_CPU_COUNT", "79")
    fresh.check(fresh.run(["-E", "-c", SHOW]), "79")


def test_import_is_light():
    code = (
        "import pool_party._budget.topology; print({'pathlib', 'subprocess', 'threading', 'pickle'} & set(sys.modules))"
    )
    fresh.check(
        fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(fresh.TESTS.parent)!r}); {code}"]), "set()"
    )
