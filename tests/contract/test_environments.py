"""Pools in unusual environments: without standard streams, as daemons, in containers, after a change of the user."""

import errno
import os
import pathlib
import sys
import types

import fresh
import pytest
from isolated import environments

from pool_party import ComposablePool, PoolPartyError, _native

PROGRAM = pathlib.Path(environments.__file__)
KINDS = ("thread", "interp", "fork", "forkserver", "spawn")
WITHOUT_STREAMS = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")


# All kinds on one interpreter, and on the others those that differ most.
@pytest.mark.parametrize(
    "kind",
    ["interp", "forkserver", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("thread", "fork", "spawn"))],
)
@pytest.mark.parametrize("environment", environments.ENVIRONMENTS)
def test_everything_works_in(environment, kind, tmp_path):
    path = tmp_path / "result"
    path.touch()
    path.chmod(0o666)
    wrapper = WITHOUT_STREAMS if environment == "closed before the start" else ()
    process = fresh.start([str(PROGRAM), environment, kind, str(path)], wrapper=wrapper)
    completed = fresh.finish(process, timeout=300)
    if completed.returncode == environments.CANNOT:
        pytest.skip("this machine cannot make the environment")
    text = path.read_text()
    assert text == "fine" and completed.returncode == 0, f"{text}\n{completed}"


@pytest.mark.parametrize("who", ["task", "program"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_descriptors_are_closed_by_a(who, kind):
    completed = fresh.run([PROGRAM.with_name("closing.py"), kind, who], timeout=300)
    assert completed.returncode == 0, completed


@pytest.mark.parametrize("kind", KINDS)
def test_sockets_that_a_library_has_replaced_do_no_harm(kind):
    """As after `gevent.monkey.patch_all(thread=False)`. A fork server read from sockets that do not block."""
    fresh.check(fresh.run([PROGRAM.with_name("green.py"), kind], timeout=110), "True True")


@pytest.mark.parametrize(
    ("module", "question", "advice"),
    [
        ("gevent.monkey", "is_module_patched", "gevent.monkey.patch_all(thread=False)"),
        ("eventlet.patcher", "is_monkey_patched", "eventlet.monkey_patch(thread=False, select=False)"),
    ],
)
def test_a_pool_says_what_to_do_where_threads_are_greenlets(module, question, advice, kind, monkeypatch):
    is_patched = [True]
    patcher = types.SimpleNamespace(**{question: lambda name: is_patched[0]})
    monkeypatch.setitem(sys.modules, module, patcher)
    with pytest.raises(PoolPartyError) as raised:
        ComposablePool(1, kind=kind)
    assert f"({advice})" in str(raised.value)
    is_patched[0] = False
    with ComposablePool(1, kind=kind) as pool:
        assert pool.apply(abs, (-1,)) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the root folder")
def test_a_pool_of_interpreters_says_that_none_can_be_made():
    completed = fresh.run([PROGRAM.with_name("unreadable.py")], timeout=110)
    assert completed.returncode == 0 and completed.out.count("no worker can be made") == 3, completed
    assert "RLIMIT" not in completed.out, completed


def test_a_pool_says_what_refuses_its_shared_memory(kind, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(_native, "Channel", refuse)
    with pytest.raises(PermissionError, match="the system refuses memfd_create"):
        ComposablePool(1, kind=kind)
