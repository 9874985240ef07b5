"""The goals of the design, and whether the measured figures reach them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from program import KINDS
from tables import duration, megabytes, number, ratio, size_text, table, us

NOT_MEASURED = "not measured"
_64_MB = str(1 << 26)
_SPEED_UP, _LOSS = 1.6, 0.98  # of packing, times serial code

type Json = dict[str, Any]
type Found = Mapping[str, Json]  # what each benchmark has written, by its name
type _Row = list[str]  # what, the goal, what was measured, whether that reaches it


def _row(what: str, goal: str, measured: str = NOT_MEASURED, is_reached: bool | None = None) -> _Row:
    verdict = NOT_MEASURED if is_reached is None else "yes" if is_reached else "**no**"
    return [what, goal, measured, verdict]


# ---- our figure, divided by that of a peer ----


@dataclass(frozen=True, slots=True)
class Ratio:
    """A goal for our figure, divided by the lowest of the peers': at least `limit` for rates, at most that for others.

    `section` is where the figures are: a benchmark and its section. `key` is the figure's name, or a size in bytes.
    """

    what: str
    goal: str
    limit: float
    section: tuple[str, str]
    own: str
    peers: Sequence[str]
    write: Callable[[float], str]
    key: str = "median"
    is_rate: bool = False

    def _figure(self, found: Found, subject: str) -> float | None:
        benchmark, name = self.section
        section = found.get(benchmark, {}).get("sections", {}).get(name, {})
        figures = section.get("median_us", {}).get(subject) or section.get(subject, {}).get("summary", {})
        value: float | None = figures.get(self.key)
        return value

    def judge(self, found: Found) -> _Row:
        """Return the row of the table."""
        own = self._figure(found, self.own)
        peers = {value: peer for peer in self.peers if (value := self._figure(found, peer))}
        if own is None or not peers:
            return _row(self.what, self.goal)
        least = min(peers)
        quotient = own / least
        text = f"{ratio(quotient)}: {self.write(own)}, {peers[least]} {self.write(least)}"
        return _row(self.what, self.goal, text, quotient >= self.limit if self.is_rate else quotient <= self.limit)


def _rate(value: float) -> str:
    return f"{number(value)} tasks/s"


def _throughput(kind: str, limit: float, peer: str) -> Ratio:
    what, goal = f"`map(noop, range(n), chunksize=1)`, {kind}", f">= {limit} x {peer}"
    return Ratio(what, goal, limit, ("dispatch", "throughput"), f"pool_party {kind}", (peer,), _rate, is_rate=True)


def _round_trip(kind: str, *peers: str) -> Ratio:
    what, goal = f"`apply` round trip, {kind}, median", "<= 0.1 x the best other"
    return Ratio(what, goal, 0.1, ("dispatch", "round-trip"), f"pool_party {kind}", peers, us)


def _start(kind: str, limit: float, peer: str) -> Ratio:
    what, goal = f"start to first result, {kind}", f"<= {limit} x {peer}"
    return Ratio(what, goal, limit, ("dispatch", "start"), f"pool_party {kind}", (peer,), duration)


def _transfer(what: str, section: str, size: str, kind: str, times: int, peers: Sequence[str]) -> Ratio:
    goal = f"<= 1/{times} x {peers[0] if len(peers) == 1 else f'the faster of {" and ".join(peers)}'}"
    own = f"pool_party {kind}"
    return Ratio(f"{what} there and back, {kind}", goal, 1 / times, ("transfer", section), own, peers, us, size)


def _memory(what: str, key: str) -> Ratio:
    what, goal, place = f"memory (PSS), interp, {what}", "<= 0.25 x a process", ("memory", "memory")
    return Ratio(what, goal, 0.25, place, "pool_party interp", ("pool_party process",), megabytes, key)


def _data_pass(kind: str) -> Ratio:
    what = f"`data_pass`: lists of 65,536 floats as results, {kind}"
    goal = "<= 0.5 x the faster of `Pool` (`subprocess`) and `InterpreterPoolExecutor`"
    peers = ("subprocess", "InterpreterPoolExecutor")
    return Ratio(what, goal, 0.5, ("modes", "data_pass"), f"pool_party-{kind}", peers, duration)


_RATIOS = (
    _throughput("process", 15, "Pool"),
    _throughput("interp", 40, "InterpreterPoolExecutor"),
    _throughput("thread", 1, "ThreadPool"),
    _round_trip("thread", "ThreadPool", "ThreadPoolExecutor"),
    _round_trip("interp", "InterpreterPoolExecutor"),
    _round_trip("process", "Pool", "Pool, fork", "ProcessPoolExecutor", "loky", "joblib"),
    _start("interp", 0.25, "InterpreterPoolExecutor"),
    _start("process", 1, "Pool"),
    _start("process, fork", 1, "Pool, fork"),
    _transfer("0.5 MB of `bytes`", "bytes", str(1 << 19), "process", 10, ("Pool",)),
    _transfer("0.5 MB of `bytes`", "bytes", str(1 << 19), "interp", 5, ("InterpreterPoolExecutor",)),
    _transfer("64 MB ndarray", "ndarray", _64_MB, "process", 10, ("Pool", "loky")),
    _transfer("64 MB ndarray", "ndarray", _64_MB, "interp", 10, ("Pool", "loky")),
    _memory("an idle pool of two", "pool_bytes"),
    _memory("each further idle worker", "idle_bytes_per_worker"),
    _data_pass("process"),
    _data_pass("interp"),
)


# ---- others ----


def _hostages(found: Found) -> _Row:
    what, goal = "1,000 tasks, one of which takes 1 s", "nobody waits for it"
    section = found.get("dispatch", {}).get("sections", {}).get("hostage", {})
    counts = {
        subject.removeprefix("pool_party "): sums["summary"]["n_hostages"]
        for subject, sums in section.items()
        if subject.startswith("pool_party") and "summary" in sums
    }
    if not counts:
        return _row(what, goal)
    held = ", ".join(f"{kind} {count:.0f}" for kind, count in counts.items())
    return _row(what, goal, f"tasks that waited over 0.5 s: {held}", not any(counts.values()))


def _cells(found: Found) -> Iterator[_Row]:
    """Yield the time of the dynamic policy, divided by that of the best fixed way, for the fewest workers."""
    rows: Sequence[Json] = found.get("cells", {}).get("results", [])
    fewest = min((row["n_workers"] for row in rows), default=0)
    for shape, most in (("balanced", 1.03), ("unbalanced", 0.85)):
        for kind in KINDS:
            what, goal = f"nested parallelism, {shape}, dynamic, {kind}", f"<= {most} x the best fixed way"
            ratios = {
                row["cell"].removeprefix(f"{shape}-"): row["ratio"]
                for row in rows
                if (row["kind"], row["way"], row["n_workers"]) == (kind, "dynamic", fewest)
                and row["cell"].startswith(f"{shape}-")
                and row.get("ratio", 0) > 0  # neither a failure nor NaN: there was a fixed way to compare with
            }
            text = ", ".join(f"{cell} inner work {value:.2f} x" for cell, value in ratios.items())
            yield _row(what, goal, text, max(ratios.values()) <= most) if len(ratios) == 2 else _row(what, goal)


def _packing(found: Found) -> Iterator[_Row]:
    """Yield the goals of packing: faster if cores are idle, never slower if they are not.

    Code that is measured twice differs by the machine's noise. What serial code loses to itself, ours may lose, too.
    """
    loads: Json = found.get("packing", {}).get("loads", {})
    cases = {
        (name, layout, int(size)): figures
        for name, load in loads.items()
        for layout, by_size in load["layouts"].items()
        for size, figures in by_size.items()
    }
    idle = {
        layout: figures
        for (name, layout, size), figures in cases.items()
        if str(size) == _64_MB and not loads[name]["n_busy"]
    }
    text = ", ".join(
        f"{layout} {figures['ratio']:.2f} x" + (f" (bound {figures['bound']:.2f} x)" if "bound" in figures else "")
        for layout, figures in idle.items()
    )
    what, goal = "packing 64 MB, other cores idle", f">= {_SPEED_UP} x serial"
    yield _row(what, goal, text, min(f["ratio"] for f in idle.values()) >= _SPEED_UP) if idle else _row(what, goal)
    what, goal = "packing at every size and load", f">= {_LOSS} x serial"
    if not cases:
        yield _row(what, goal)
        return
    name, layout, size = worst = min(cases, key=lambda case: cases[case]["ratio"])
    ratios, again = ([f[key] for f in cases.values() if key in f] for key in ("ratio", "ratio_again"))
    n_missed, n_noisy = (sum(value < _LOSS for value in values) for values in (ratios, again))
    lowest = cases[worst]["ratio"]
    text = f"lowest {lowest:.2f} x ({layout}, {size_text(size)}, {name}); {n_missed} of {len(ratios)} below"
    if again:
        text += f"; serial against itself: lowest {min(again):.2f} x, {n_noisy} of {len(again)} below"
    yield _row(what, goal, text, lowest >= min([_LOSS, *again]))


def format_goals(found: Found) -> str:
    """Return all goals as a table."""
    rows = [*(goal.judge(found) for goal in _RATIOS), _hostages(found), *_cells(found), *_packing(found)]
    return table(["what", "goal", "measured", "reached"], rows, is_text=True)
