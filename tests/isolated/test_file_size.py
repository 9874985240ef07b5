"""Pools under a file size limit (`ulimit -f`): they work within it, or say what prevents that."""

import pathlib

import fresh

PROGRAM = pathlib.Path(__file__).resolve().parent / "file_size.py"


def check(scenario, kind):
    fresh.check(fresh.run([PROGRAM, scenario, kind]))


def test_a_pool_has_room_for_more_than_fits_at_once(kind):
    check("works", kind)


def test_values_that_never_fit_are_errors(remote_kind):
    check("too_large_values", remote_kind)


def test_no_room_for_a_pool(kind):
    check("too_small_for_a_pool", kind)
