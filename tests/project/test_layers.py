"""Imports point one way: each module of pool_party imports only modules of lower layers and of its own part of its
layer.

All import statements count, even those inside functions. Two things are not seen: names that `pool_party.__getattr__`
resolves, for which `_HOMES` is read instead, and modules that `_workers/interp/worker.py` imports by name into a fresh
interpreter.
"""

import ast
import graphlib
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import pool_party

LAYERS = (  # from the top; a row has the parts of one layer, which do not import each other
    ("_cli", "__main__"),
    ("_running",),
    ("_measuring",),
    ("__init__",),
    ("_patching",),
    ("_integrations",),
    ("_default",),
    ("_executor",),
    ("_pool",),
    ("_config",),
    ("_core.engine",),
    ("_core",),
    ("_cluster",),
    ("_workers",),
    ("_budget", "_observe"),
    ("_wire",),
    ("_ground.broken",),
    ("_ground",),  # every layer may import it, and `_ground.broken`
    ("_native",),
)
ONLY_FOR_TYPES = {  # upward imports under TYPE_CHECKING
    ("_core.results", "_core.engine"): "a call is waited for by its engine",
    ("_core.futures", "_core.engine"): "as above",
    ("_core.streams", "_core.engine"): "as above",
    ("_core.following", "_core.engine"): "as above",
    ("_core.watching", "_core.engine"): "pools are told of as engines",
    ("_cluster.distant", "_config"): "a session opens its pool with a pool's arguments",
    ("_workers.base", "_config"): "workers are started with the pool's arguments",
    ("_cluster.node.session", "_core.results"): "a task of a session is a call of the pool that the session was given",
    ("_observe.trace", "_workers.base"): "a trace names workers",
    ("_workers.base", "_cluster.broker"): "the set-up of workers on other machines names what reaches them",
}
WHEN_CALLED = {  # upward imports inside a function
    ("_ground.errors", "_ground.broken"): "importing it takes long, and errors that need it are seldom",
}

ROOT = pathlib.Path(pool_party.__file__).parent
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}


class Import(NamedTuple):
    """An import: its module, and whether it is under TYPE_CHECKING or inside a function."""

    target: str
    is_for_types: bool
    is_when_called: bool


def resolve(module: str, name: str) -> str:
    """Return the module that `from module import name` needs, without the package's name."""
    inner = module.removeprefix("pool_party").removeprefix(".")
    joined = f"{inner}.{name}".removeprefix(".")
    if joined in MODULES or joined == "_native" or f"{joined}.__init__" in MODULES:
        return joined
    return inner or pool_party._HOMES.get(name, "__init__")


def imports_in(node: ast.AST, is_for_types: bool = False, is_when_called: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            if (child.module or "").split(".")[0] == "pool_party":
                for alias in child.names:
                    yield Import(resolve(child.module, alias.name), is_for_types, is_when_called)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                if alias.name.split(".")[0] == "pool_party":
                    yield Import(resolve(*alias.name.rpartition(".")[::2]), is_for_types, is_when_called)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for branch, is_for_checkers in ((child.body, True), (child.orelse, is_for_types)):
                yield from imports_in(ast.Module(branch, []), is_for_checkers, is_when_called)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(child, is_for_types, is_when_called or is_function)


def place_of(module: str) -> tuple[int, str]:
    """Return a module's layer, counted from the top, and its part of the layer: the longest matching prefix."""
    parts = {part: n for n, row in enumerate(LAYERS) for part in row if f"{module}.".startswith(f"{part}.")}
    assert parts, f"{module} is in none of the layers: add it to the table"
    part = max(parts, key=len)
    return parts[part], part


def is_allowed(module: str, found: Import) -> bool:
    (layer, part), (other_layer, other_part) = place_of(module), place_of(found.target)
    return (
        other_layer > layer
        or other_part == part
        or (found.is_for_types and (module, found.target) in ONLY_FOR_TYPES)
        or (found.is_when_called and (module, found.target) in WHEN_CALLED)
    )


def violations(module: str, source: str) -> list[str]:
    imports = imports_in(ast.parse(source))
    return [f"{module} imports {found.target}" for found in imports if not is_allowed(module, found)]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module):
    assert violations(module, MODULES[module].read_text()) == []


def test_no_module_imports_itself_by_way_of_others():
    """Imports for types do not count, nor do those inside functions that the table lists."""
    graph = {
        module: {
            found.target
            for found in imports_in(ast.parse(path.read_text()))
            if not found.is_for_types and (module, found.target) not in WHEN_CALLED
        }
        for module, path in MODULES.items()
    }
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("_wire.codec", "from pool_party._core.engine import Engine"),
        ("_wire.codec", "import pool_party._budget.plan"),
        (
            "_wire.codec",
            "def f():\n    class C:\n        def g(self):\n            from pool_party._workers import loop",
        ),
        ("_wire.codec", "from pool_party import ComposablePool"),
        ("_wire.codec", "if TYPE_CHECKING:\n    from pool_party._workers.base import Worker"),
        ("_core.results", "from pool_party._core.engine import Engine"),
        ("_core.results", "if TYPE_CHECKING:\n    pass\nelse:\n    from pool_party._core.engine import Engine"),
        ("_ground.errors", "from pool_party._ground.broken import WorkerLost"),
        ("_ground.log", "from pool_party._core import watching"),
        ("_ground.broken", "from pool_party._wire import codec"),
        ("_pool", "from pool_party._executor import ComposableExecutor"),
        ("_budget.plan", "from pool_party._observe import trace"),
        ("_workers.loop", "try:\n    from pool_party import _config\nexcept ImportError:\n    pass"),
    ],
)
def test_an_import_that_points_the_other_way_is_found(module, source):
    assert len(violations(module, source)) == 1


def test_the_table_has_nothing_to_spare():
    found = {
        (module, target) for module, path in MODULES.items() for target, *_ in imports_in(ast.parse(path.read_text()))
    }
    exceptions = {*ONLY_FOR_TYPES, *WHEN_CALLED}
    assert exceptions <= found
    assert all(place_of(module)[0] > place_of(target)[0] for module, target in exceptions)  # all point upwards
    assert {place_of(module)[1] for module in MODULES} >= {part for row in LAYERS for part in row} - {"_native"}
