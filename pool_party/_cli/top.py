"""`pool-party top`: the programs of this user whose pools share the machine, as a table that is drawn again."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pool_party._budget.programs import Program, Table, path_of_table
from pool_party._budget.topology import cpu_count
from pool_party._cli import values
from pool_party._measuring.table import format_table

_HEADINGS = ("program", "pid", "pools", "workers", "active", "threads", "wanted", "waiting", "done", "tasks/s")
_COMMAND_CHARACTERS = 48
_NONE = 'no program of this user has a pool with scope="machine" open'
_REFUSED = 2
_QUIT = (ord("q"), ord("Q"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--once", action="store_true", help="look for one interval, print the table and end")
    add("--json", action="store_true", help="print a line of JSON for each look instead of a table")
    add("--interval", type=values.interval_s, default=1.0, metavar="S", help="seconds between looks; default: 1")
    add("--table", default="", help=argparse.SUPPRESS)  # another one, for tests


class _Looks:
    """Looks at the table, and what changed between two of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._table: Table | None = None
        self._before, self._at_s = self._look(), time.monotonic()

    def _look(self) -> dict[int, Program]:
        """Return the programs by their ids. None of them if there has been no table yet."""
        if self._table is None and os.path.lexists(self._path):
            self._table = Table(self._path)
        return {} if self._table is None else {program.pid: program for program in self._table.programs()}

    def next(self) -> list[dict[str, Any]]:
        """Return what each program does, those with most threads first."""
        now, at_s = self._look(), time.monotonic()
        passed_s, before = max(at_s - self._at_s, 1e-9), self._before
        self._before, self._at_s = now, at_s
        return [_describe(now[pid], before.get(pid), passed_s) for pid in sorted(now, key=lambda pid: _rank(now[pid]))]


def _rank(program: Program) -> tuple[int, int]:
    return -(program.n_threads if program.n_active else 0), program.pid


def _describe(program: Program, before: Program | None, passed_s: float) -> dict[str, Any]:
    is_active = program.n_active > 0
    return {
        "command": program.command,
        "pid": program.pid,
        "pools": program.n_pools,
        "workers": program.n_workers,
        "active": program.n_active,
        "threads": program.n_threads if is_active else 0,
        "wanted": program.n_wanted,
        "waiting": max(0, program.n_pending - program.n_active),
        "done": program.n_done,
        "tasks_per_s": round((program.n_done - before.n_done) / passed_s, 1) if before else 0.0,
    }


def _shortened(command: str) -> str:
    words = command.split(" ")
    text = " ".join([os.path.basename(words[0]), *words[1:]])
    return text if len(text) <= _COMMAND_CHARACTERS else f"{text[: _COMMAND_CHARACTERS - 3]}..."


def _format(programs: Sequence[Mapping[str, Any]]) -> str:
    n_threads = sum(program["threads"] for program in programs)
    head = f"{len(programs)} programs, {n_threads} threads for {cpu_count()} CPUs"
    if not programs:
        return f"{head}\n\n{_NONE}"
    keys = ("pid", "pools", "workers", "active", "threads", "wanted", "waiting", "done", "tasks_per_s")
    rows = [[_shortened(program["command"]), *(str(program[key]) for key in keys)] for program in programs]
    return f"{head}\n\n{format_table(_HEADINGS, rows)}"


def _draw_until_quit(looks: _Looks, interval_s: float) -> None:
    import curses

    def draw(screen: curses.window) -> None:
        curses.curs_set(0)
        screen.timeout(round(1000 * interval_s))
        while True:
            screen.erase()
            n_lines, n_columns = screen.getmaxyx()
            for at, line in enumerate([*_format(looks.next()).splitlines(), "", "q ends this."][:n_lines]):
                screen.addnstr(at, 0, line, n_columns - 1)
            screen.refresh()
            if screen.getch() in _QUIT:
                return

    curses.wrapper(draw)


def _print(programs: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    print(json.dumps(programs) if as_json else _format(programs), flush=True)


def run(arguments: argparse.Namespace, sleep: Callable[[float], object] = time.sleep) -> int:
    """Show the programs. Return the exit status of the command."""
    try:
        looks = _Looks(path_of_table(arguments.table))
    except OSError as error:
        print(f"pool-party: {error.filename}: {error.strerror}", file=sys.stderr)
        return _REFUSED
    if not arguments.once and not arguments.json and sys.stdout.isatty():
        try:
            _draw_until_quit(looks, arguments.interval)
        except KeyboardInterrupt:
            pass
        return 0
    while True:
        sleep(arguments.interval)
        _print(looks.next(), arguments.json)
        if arguments.once:
            return 0
