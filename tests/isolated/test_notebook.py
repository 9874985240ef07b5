"""A notebook that nbclient runs shows bars, logs and output of workers, and survives the interruption of a cell."""

import pathlib

import fresh
import pytest


@pytest.mark.slow
@pytest.mark.hang_s(300)
def test_a_notebook(kind):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("tqdm")
    completed = fresh.run([pathlib.Path(__file__).with_name("notebook.py"), kind], options=(), timeout=200)
    assert completed.returncode == 0, completed
