"""`pool-party doctor`: shows CPUs, limits, libraries, each kind's and policy's budgets, and interpreters' packages."""

import argparse
import importlib
import platform
from collections.abc import Iterable, Iterator

from pool_party._budget import libraries, plan, policies, topology
from pool_party._budget.split import WorkerBudget
from pool_party._cli import packages, values
from pool_party._ground import limits
from pool_party._measuring.table import format_table

_KINDS = ("process", "thread", "interp")
_USUAL = ("numpy", "scipy.linalg")  # modules that load a BLAS in most programs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pool-party doctor`."""
    parser.add_argument(
        "--workers", type=values.positive, metavar="N", help="workers of a pool; default: as many as usable CPUs"
    )
    parser.add_argument(
        "--import",
        dest="modules",
        default=",".join(_USUAL),
        metavar="A,B",
        help="modules whose libraries to look at, if they are installed; default: %(default)s",
    )
    parser.add_argument(
        "--check-extensions",
        nargs="?",
        const="",
        metavar="A,B",
        help="import these packages in an interpreter worker, some seconds each; default: those that are listed",
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="look at the workers of a Dask cluster instead: tcp://host:8786, or a file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what it finds. Return 1 if there is something to warn of, else 0."""
    if arguments.cluster is not None:
        return _run_cluster(arguments.cluster)
    n_workers = arguments.workers or topology.cpu_count()
    print(f"Python {platform.python_version()} ({platform.python_implementation()}), Linux {platform.release()}")
    _print("CPUs", describe_cpus(topology.read()))
    _print("Limits", limits.describe())
    missing = list(_import(filter(None, arguments.modules.split(","))))
    loaded = libraries.find()
    _print("Libraries with threads of their own", [*describe_libraries(loaded), *missing])
    _print(f"What each of {n_workers} workers gets", [describe_plans(n_workers)])
    names = arguments.check_extensions
    checked = None if names is None else [name.strip() for name in names.split(",") if name.strip()]
    in_interpreters = list(packages.describe(checked))
    _print('Packages with extension modules in workers of kind "interp"', in_interpreters)
    warnings = [text for library in loaded for text in libraries.warnings_for(library, loaded)]
    if warnings:
        _print("Warnings", sorted(set(warnings)))
    return 1 if warnings or any("failed: " in line for line in in_interpreters) else 0


def _run_cluster(address: str) -> int:
    from pool_party._cli import clusters

    try:
        lines, problems = clusters.check(address)
    except ImportError as error:
        print(f"--cluster needs Dask: pip install composable-pool[dask] ({error})")
        return 1
    except OSError as error:
        print(f"the scheduler at {address} does not answer: {error}")
        return 1
    _print(f"Workers of {address}", lines)
    if problems:
        _print("Warnings", problems)
    return int(bool(problems))


def _print(title: str, lines: Iterable[str]) -> None:
    print(f"\n{title}")
    for line in lines:
        print(line if line.startswith(" ") else f"  {line}")


def _import(modules: Iterable[str]) -> Iterator[str]:
    for name in modules:
        try:
            importlib.import_module(name.strip())
        except ImportError as error:
            yield f"{name.strip()} cannot be imported: {error}"


def describe_cpus(machine: topology.Topology) -> Iterator[str]:
    """Yield lines about the machine and the part of it that this process may use."""
    cpus = machine.cpus
    counts = [(len({getattr(cpu, what) for cpu in cpus}), what) for what in ("package", "node", "cache", "core")]
    names = {"package": "package", "node": "NUMA node", "cache": "last-level cache", "core": "core"}
    parts = ", ".join(f"{n} {names[what]}{'s' if n != 1 else ''}" for n, what in counts)
    yield f"{len(cpus)} in {parts}"
    yield f"this process may run on {len(machine.allowed)}: {format_cpus(machine.allowed)}"
    if machine.quota is None:
        yield "no quota of a control group"
    else:
        yield f"a control group's quota of {machine.quota:g} CPUs"
    yield f"a pool counts on {topology.cpu_count()}"


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPU numbers as ranges, such as 0-3,8."""
    ranges: list[list[int]] = []
    for n in sorted(cpus):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def describe_libraries(loaded: Iterable[libraries.Library]) -> Iterator[str]:
    """Yield a table of the libraries and the threads that they would use now."""
    from pool_party import _native

    rows = [
        (
            library.name,
            library.version or "-",
            library.threading_layer or "-",
            str(_native.call_getter(library.getter)),
            str(library.n_threads_max or "-"),
            library.scope,
            "yes" if library.callback else "no",
        )
        for library in loaded
    ]
    if rows:
        yield format_table(("library", "version", "threads by", "now", "at most", "set per", "regions gated"), rows)
        for library in loaded:
            yield f"{library.name}: {library.path}"
    else:
        yield "none is loaded"


def describe_plans(n_workers: int) -> str:
    """Return a table of the budgets that each kind and policy would give."""
    rows = []
    for kind in _KINDS:
        for name in policies.NAMES:
            if policies.for_kind(name, kind) != name:
                continue
            made = plan.make_plan(kind, n_workers, name)
            assert made is not None
            masks = {made.mask(n) for n in range(n_workers)}
            kept_on = "all" if masks == {()} else _format_masks(made)
            rows.append((kind, name, _format_budgets(made.own), kept_on, "its own" if made.has_own_blas else "shared"))
    return format_table(("kind", "policy", "threads", "kept on CPUs", "OpenBLAS"), rows)


def _format_budgets(shares: Iterable[WorkerBudget]) -> str:
    budgets = [share.n_threads for share in shares]
    if len(set(budgets)) == 1:
        return str(budgets[0])
    most = max(budgets)
    return f"{most} ({budgets.count(most)} workers), {min(budgets)}"


def _format_masks(made: plan.Plan) -> str:
    masks = [format_cpus(made.mask(n)) for n in range(min(4, len(made.own)))]
    return " | ".join(masks) + (" | ..." if len(made.own) > 4 else "")
