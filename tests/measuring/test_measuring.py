"""The meter, which measures a piece of work, and the tables that show figures."""

import os
import subprocess
import sys
from typing import NoReturn

import pytest

from pool_party._measuring import meter as _meter
from pool_party._measuring.meter import Meter
from pool_party._measuring.table import format_mb, format_table


def test_meter_counts_the_cpu_time_of_this_process() -> None:
    with Meter() as meter:
        sum(range(1_000_000))
    usage = meter.usage
    assert 0 < usage.cpu_s <= usage.wall_s * (os.cpu_count() or 1) + 0.1
    assert usage.cores == usage.cpu_s / usage.wall_s
    assert usage.peak_bytes is not None and usage.peak_bytes > 1e6


def test_meter_counts_the_cpu_time_of_a_child_that_has_ended() -> None:
    with Meter() as meter:
        subprocess.run([sys.executable, "-Sc", "sum(range(3_000_000))"], check=True)
    assert meter.usage.cpu_s > 0.01


def test_process_tree_with_and_without_lists_of_children() -> None:
    child_code = "import os; pid = os.fork(); os.write(1, b'%d\\n' % pid); os.read(0, 1)"
    with subprocess.Popen([sys.executable, "-Sc", child_code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = max(int(child.stdout.readline()) for _ in range(2))
        assert _meter.process_tree(child.pid) == [child.pid, grandchild]
        assert _meter._children_from_scan({child.pid}) == {grandchild}
        assert child.pid in _meter.process_tree(os.getpid())
        child.communicate(b"xx")


def test_memory_falls_back_to_rss(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> NoReturn:
        raise FileNotFoundError(pid)

    monkeypatch.setattr(_meter, "_pss_bytes", refuse)
    assert _meter.memory_measure() == "RSS"
    assert _meter.memory_bytes([os.getpid()], "RSS") > 1e6
    monkeypatch.setattr(_meter, "_rss_bytes", refuse)
    assert _meter.memory_measure() == ""
    with Meter() as meter:
        pass
    assert meter.usage.peak_bytes is None
    assert format_mb(None) == "-"


def test_table_is_aligned() -> None:
    assert format_table(["a", "bb"], [["long", "1"], ["x", "22222"]]).splitlines() == [
        "  a         bb",
        "  ----   -----",
        "  long       1",
        "  x      22222",
    ]
