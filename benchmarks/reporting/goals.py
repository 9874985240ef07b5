"""The goals of the design, compared with the measured figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tables import duration, number, ratio, table

from reporting.found import Found, Json, measured

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Goal:
    """A row: the goal, the measured figure (None: not measured), and whether it is good enough."""

    what: str
    goal: str
    result: str | None = None
    is_reached: bool = False

    @property
    def verdict(self) -> str:
        """Whether it was reached, in a word."""
        if self.result is None:
            return NOT_MEASURED
        return "yes" if self.is_reached else "**no**"


def judge(
    what: str,
    goal: str,
    pair: tuple[float | None, float | None],
    peer: str,
    write: Callable[[float], str],
    is_enough: Callable[[float], bool],
) -> Goal:
    """Return the row for our figure divided by a peer's; it says if either was not measured."""
    ours, theirs = pair
    if ours is None or not theirs:
        return Goal(what, goal)
    quotient = ours / theirs
    return Goal(what, goal, f"{ratio(quotient)}: {write(ours)}, {peer} {write(theirs)}", is_enough(quotient))


def _us(value: float) -> str:
    return duration(value / 1e6)


def _fastest(found: Found, benchmark: str, section: str, peers: Sequence[str]) -> tuple[str, float | None]:
    """Return the peer with the shortest time, and that time; None if no peer was measured."""
    times = {peer: value for peer in peers if (value := found.figure(benchmark, section, peer)) is not None}
    return min(times.items(), key=lambda item: item[1]) if times else (peers[0], None)


# ---- dispatch.py ----

_KIND_OF = {
    "thread": ("ThreadPool", "ThreadPoolExecutor"),
    "interp": ("InterpreterPoolExecutor",),
    "process": ("Pool", "Pool, fork", "ProcessPoolExecutor", "loky", "joblib"),
}


def _throughput(found: Found) -> Iterator[Goal]:
    for kind, least, peer in (
        ("process", 15, "Pool"),
        ("interp", 40, "InterpreterPoolExecutor"),
        ("thread", 1, "ThreadPool"),
    ):
        ours, theirs = (found.figure("dispatch", "throughput", name) for name in (f"pool_party {kind}", peer))
        yield judge(
            f"`map(noop, range(n), chunksize=1)`, {kind}",
            f">= {least} x {peer}",
            (ours, theirs),
            peer,
            lambda value: f"{number(value)} tasks/s",
            lambda quotient, least=least: quotient >= least,
        )


def _hostages(found: Found) -> Goal:
    what, goal = "1,000 tasks, one of which takes 1 s", "nobody waits for it"
    counts = {
        subject: sums["summary"]["n_hostages"]
        for subject, sums in measured(found.section("dispatch", "hostage"))
        if subject.startswith("pool_party")
    }
    if not counts:
        return Goal(what, goal)
    held = ", ".join(f"{subject.removeprefix('pool_party ')} {count:.0f}" for subject, count in counts.items())
    return Goal(what, goal, f"tasks that waited over 0.5 s: {held}", not any(counts.values()))


def _round_trips(found: Found) -> Iterator[Goal]:
    for kind, peers in _KIND_OF.items():
        own = found.figure("dispatch", "round-trip", f"pool_party {kind}")
        best, best_us = _fastest(found, "dispatch", "round-trip", peers)
        what, goal = f"`apply` round trip, {kind}, median", "<= 0.1 x the best other"
        yield judge(what, goal, (own, best_us), best, _us, lambda quotient: quotient <= 0.1)


def _starts(found: Found) -> Iterator[Goal]:
    for own, most, peer in (
        ("interp", 0.25, "InterpreterPoolExecutor"),
        ("process", 1, "Pool"),
        ("process, fork", 1, "Pool, fork"),
    ):
        ours, theirs = (found.figure("dispatch", "start", name) for name in (f"pool_party {own}", peer))
        what, goal = f"start to first result, {own}", f"<= {most} x {peer}"
        yield judge(what, goal, (ours, theirs), peer, duration, lambda quotient, most=most: quotient <= most)


# ---- memory.py, cells.py, modes.py ----


def _memory(found: Found) -> Iterator[Goal]:
    peer = "pool_party process"
    for key, what in (("pool_bytes", "an idle pool of two"), ("idle_bytes_per_worker", "each further idle worker")):
        ours, theirs = (found.figure("memory", "memory", name, key) for name in ("pool_party interp", peer))
        yield judge(
            f"memory (PSS), interp, {what}",
            "<= 0.25 x a process",
            (ours, theirs),
            peer,
            lambda value: f"{value / 1e6:.1f} MB",
            lambda quotient: quotient <= 0.25,
        )


def _cell_ratios(found: Found, kind: str, shape: str) -> dict[str, float]:
    """Return the ratio of the dynamic policy to the best fixed way in cells of a shape, with a worker per CPU."""
    rows: Sequence[Json] = found.benchmarks.get("cells", {}).get("results", [])
    fewest = min((row["n_workers"] for row in rows), default=0)
    return {
        row["cell"].removeprefix(f"{shape}-"): row["ratio"]
        for row in rows
        if (row["kind"], row["way"], row["n_workers"]) == (kind, "dynamic", fewest)
        and row["cell"].startswith(f"{shape}-")
        and row.get("ratio") == row.get("ratio")  # NaN: no fixed way to compare with
        and "ratio" in row
    }


def _cells(found: Found) -> Iterator[Goal]:
    for shape, most in (("balanced", 1.03), ("unbalanced", 0.85)):
        for kind in ("thread", "process", "interp"):
            what, goal = f"nested parallelism, {shape}, dynamic, {kind}", f"<= {most} x the best fixed way"
            ratios = _cell_ratios(found, kind, shape)
            if len(ratios) < 2:
                yield Goal(what, goal)
                continue
            text = ", ".join(f"{cell} inner work {value:.2f} x" for cell, value in ratios.items())
            yield Goal(what, goal, text, max(ratios.values()) <= most)


def _data_pass(found: Found) -> Iterator[Goal]:
    best, best_s = _fastest(found, "modes", "data_pass", ("subprocess", "InterpreterPoolExecutor"))
    for kind in ("process", "interp"):
        own_s = found.figure("modes", "data_pass", f"pool_party-{kind}")
        what = f"`data_pass`: lists of 65,536 floats as results, {kind}"
        goal = "<= 0.5 x the faster of `Pool` (`subprocess`) and `InterpreterPoolExecutor`"
        yield judge(what, goal, (own_s, best_s), best, duration, lambda quotient: quotient <= 0.5)


def goals(found: Found) -> list[Goal]:
    """Return all rows of the design's table of figures, and further goals."""
    from reporting.packing import packing_goals
    from reporting.transfers import transfer_goals

    return [
        *_throughput(found),
        _hostages(found),
        *_round_trips(found),
        *_starts(found),
        *transfer_goals(found),
        *_memory(found),
        *_cells(found),
        *_data_pass(found),
        *packing_goals(found),
    ]


def format_goals(found: Found) -> str:
    """Return the rows as a table of Markdown."""
    rows = [[row.what, row.goal, row.result or NOT_MEASURED, row.verdict] for row in goals(found)]
    return table(["what", "goal", "measured", "reached"], rows, is_text=True)
