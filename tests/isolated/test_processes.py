"""Worker processes beside other processes: what they inherit, what their tasks start, and what they leave."""

import pathlib

import fresh
import pytest

HERE = pathlib.Path(__file__).resolve().parent


def check(scenario, method):
    fresh.check(fresh.run([HERE / "processes.py", scenario, method]))


@pytest.mark.parametrize(
    "scenario",
    [
        "own_process_is_interrupted",
        "programs_of_tasks_are_interrupted",
        "system_calls_go_on",
        "forked_children_are_interrupted",
        "released_at_once",
        "idle_workers_end_by_themselves",
        "idle_workers_that_do_not_end",
    ],
)
def test_with_each_start_method(scenario, start_method):
    check(scenario, start_method)


@pytest.mark.parametrize("scenario", ["workers_outlive_the_server", "terminate_after_the_servers_death"])
def test_death_of_the_fork_server(scenario):
    check(scenario, "forkserver")


def test_process_objects_that_multiprocessing_did_not_make():
    check("own_context", "spawn")


def test_opening_with_few_descriptors_left(start_method):
    completed = fresh.run([HERE / "few_descriptors.py", start_method])
    assert completed.returncode == 0, completed  # a fork server without descriptors prints a traceback
