"""Every public name documents its parameters, units, errors and guarantees, which the site shows."""

import inspect
import pathlib
import re

import pytest

import pool_party
from pool_party import AsyncResult, IMapIterator, MapResult, Policy, PoolFuture
from pool_party._budget.policies import State
from pool_party._observe.trace import Tracing

RETURNED = [Tracing, State]  # by public functions, or passed to those of users
NAMES = {name: getattr(pool_party, name) for name in pool_party.__all__ if name != "__version__"}
NAMES["map"] = pool_party.map  # not in `__all__`, as it would hide the built-in one
PUBLIC = [*NAMES.values(), *RETURNED]
ERRORS = [thing for thing in PUBLIC if inspect.isclass(thing) and issubclass(thing, BaseException)]
OTHERS = [thing for thing in PUBLIC if thing not in ERRORS]
NOT_CALLED = {
    AsyncResult,
    MapResult,
    IMapIterator,
    PoolFuture,
    Tracing,
    Policy,
    pool_party.DefaultExecutor,
}  # users get these, but never make one
INTERNAL = {"run_callbacks", "error"}  # methods for other layers and, of a trace, for the engine
INTERNAL |= {name for name in vars(Tracing) if name.startswith("note_")} | {"start", "finish"}

SECTION = re.compile(r"^(Args|Returns|Raises|Guarantees):\n((?:(?:[ ]+.*)?\n?)*)", re.M)
PARAMETER = re.compile(r"^    (\*{0,2}\w+): (.*(?:\n {8}.*)*)", re.M)
# The unit that the description of a number must name.
UNITS = {
    "timeout": "seconds",
    "chunksize": "items",
    "buffersize": "items|tasks",
    "limit": "number of tasks",
    "max_events": "events",
    "processes": "number of workers",
    "max_workers": "number of workers",
    "maxtasksperchild": "number of tasks",
    "max_tasks_per_child": "number of tasks",
    "threads_per_worker": "number of threads",
    "oversubscription": "threads for each CPU",
    "n_threads": "number of threads",
    "waited_s": "seconds",
    "idle_bytes": "bytes",
}


def sections_of(thing):
    return {match[1]: match[2] for match in SECTION.finditer(inspect.getdoc(thing) or "")}


def parameters_of(thing):
    signature = inspect.signature(thing)
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return {stars.get(p.kind, "") + p.name: p for p in signature.parameters.values() if p.name != "self"}


def described(thing):
    return dict(PARAMETER.findall(sections_of(thing).get("Args", "")))


def methods_of(cls):
    return [
        member
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_") and name not in INTERNAL
    ]


METHODS = [method for cls in OTHERS if inspect.isclass(cls) for method in methods_of(cls)]
CALLABLES = [thing for thing in OTHERS if thing not in NOT_CALLED] + [pool_party.WorkerLost] + METHODS


def name_of(thing):
    return thing.__qualname__


@pytest.mark.parametrize("thing", CALLABLES, ids=name_of)
def test_every_parameter_is_described(thing):
    assert list(described(thing)) == list(parameters_of(thing))


@pytest.mark.parametrize("thing", CALLABLES, ids=name_of)
def test_every_parameter_has_a_type(thing):
    function = thing.__init__ if inspect.isclass(thing) and not issubclass(thing, tuple) else thing
    parameters = parameters_of(function)
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters.values())


@pytest.mark.parametrize("thing", CALLABLES, ids=name_of)
def test_numbers_have_units(thing):
    for name, text in described(thing).items():
        assert re.search(UNITS.get(name, ""), " ".join(text.split())), f"{name}: {text}"


@pytest.mark.parametrize("thing", METHODS, ids=name_of)
def test_methods_tell_results_errors_and_whether_they_block(thing):
    sections, text = sections_of(thing), inspect.getdoc(thing)
    if inspect.signature(thing).return_annotation not in (None, "None"):
        assert "Returns" in sections
    assert "Raises" in sections or "never raises" in text
    assert re.search(r"\bblocks?\b", text, re.I)


@pytest.mark.parametrize("thing", OTHERS, ids=name_of)
def test_public_names_tell_guarantees(thing):
    sections = sections_of(thing)
    assert "Guarantees" in sections
    if not (inspect.isclass(thing) and issubclass(thing, tuple)) and thing is not pool_party.Statistics:
        assert "Raises" in sections
        assert re.search(r"threads?\b", sections["Guarantees"])


@pytest.mark.parametrize("error", ERRORS, ids=name_of)
def test_errors_tell_what_else_they_are(error):
    """Moved programs catch what the standard library raised."""
    text = inspect.getdoc(error)
    assert all(base.__name__ in text for base in error.__bases__ if base is not pool_party.PoolPartyError)


def test_the_reference_has_every_public_name():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
    shown = set(re.findall(r"\.\. auto\w+:: ([\w.]+)", page))
    expected = {f"pool_party.{name}" for name in NAMES} | {f"{thing.__module__}.{thing.__name__}" for thing in RETURNED}
    assert shown == expected
