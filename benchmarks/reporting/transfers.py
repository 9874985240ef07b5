"""Transfers by size, and packing: their part of the report, and their goals."""

from collections.abc import Iterator

from reporting.found import Found
from reporting.goals import Goal


def transfer_goals(found: Found) -> Iterator[Goal]:
    yield from ()


def packing_goals(found: Found) -> Iterator[Goal]:
    yield from ()
