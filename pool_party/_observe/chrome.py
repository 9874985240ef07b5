"""Traces as files in Chrome's Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

It uses the object form: complete events (X) for spans, instants (i) for marks, counters (C) for budgets, metadata (M)
for names, and facts about the whole trace under `otherData`. Times in it are microseconds. Each worker slot is a
"thread" of the pool's process, whatever its kind and however often the worker was replaced.
"""

import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pool_party._observe.events import KINDS, TASK, Budget, Mark, Span, Trace

_LINES_AT_ONCE = 1000


def _us(ns: int) -> str:
    """Format nanoseconds exactly: a float has too few digits on a machine that has been up for months."""
    return f"{ns // 1000}.{ns % 1000:03d}"


@lru_cache(maxsize=1000)
def _quote(text: str) -> str:
    return json.dumps(text)


def _span(span: Span, pid: int) -> str:
    kind, worker, start_ns, end_ns, name, args = span
    return (
        f'{{"name":{_quote(name or kind)},"cat":"{kind}","ph":"X","ts":{_us(start_ns)},"dur":{_us(end_ns - start_ns)},'
        f'"pid":{pid},"tid":{worker + 1},"args":{json.dumps(dict(args)) if args else "{}"}}}'
    )


def _mark(mark: Mark, pid: int) -> str:
    scope, tid = ("p", 0) if mark.worker is None else ("t", mark.worker + 1)
    return (
        f'{{"name":{json.dumps(mark.name)},"cat":"worker","ph":"i","ts":{_us(mark.at_ns)},"s":"{scope}",'
        f'"pid":{pid},"tid":{tid},"args":{json.dumps(dict(mark.args))}}}'
    )


def _budget(budget: Budget, pid: int) -> str:
    return (
        f'{{"name":"threads of worker {budget.worker + 1}","cat":"budget","ph":"C","ts":{_us(budget.at_ns)},'
        f'"pid":{pid},"tid":{budget.worker + 1},"args":{{"n_threads":{budget.n_threads}}}}}'
    )


def _names(trace: Trace, pid: int) -> Iterator[str]:
    def name(what: str, tid: int, args: dict[str, Any]) -> str:
        return json.dumps({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    kind = trace.about.get("kind", "")
    yield name("process_name", 0, {"name": f"pool_party pool: {trace.n_workers} x {kind}"})
    for n in range(trace.n_workers):
        yield name("thread_name", n + 1, {"name": f"worker {n + 1}"})
        yield name("thread_sort_index", n + 1, {"sort_index": n + 1})


def lines(trace: Trace) -> Iterator[str]:
    """Yield the file's text in pieces."""
    pid = trace.about.get("pid", 1)
    other = {**trace.about, "start_ns": trace.start_ns, "end_ns": trace.end_ns}
    other |= {"n_workers": trace.n_workers, "n_dropped": trace.n_dropped}
    yield f'{{"displayTimeUnit":"ns","otherData":{json.dumps(other)},"traceEvents":[\n'
    separator = ""
    for events, write in ((trace.spans, _span), (trace.marks, _mark), (trace.budgets, _budget)):
        for event in events:
            yield separator + write(event, pid)  # type: ignore[arg-type]  # each writer fits its events
            separator = ",\n"
    for line in _names(trace, pid):
        yield separator + line
        separator = ",\n"
    yield "\n]}\n"


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace. Raises: OSError."""
    with open(path, "w", encoding="ascii") as file:
        block: list[str] = []
        for line in lines(trace):
            block.append(line)
            if len(block) == _LINES_AT_ONCE:
                file.write("".join(block))
                block.clear()
        file.write("".join(block))


def _ns(us: float) -> int:
    return round(us * 1000)


def _of(events: Iterable[dict[str, Any]], phase: str) -> Iterator[dict[str, Any]]:
    return (event for event in events if event.get("ph") == phase)


def parse(data: Any) -> Trace:
    """Make a trace from a file's JSON data. Raises: ValueError if pool_party did not write it."""
    try:
        other, events = dict(data["otherData"]), data["traceEvents"]
        spans = []
        for event in _of(events, "X"):
            if event["cat"] in KINDS:
                start, name = _ns(event["ts"]), event["name"] if event["cat"] == TASK else ""
                end = start + _ns(event["dur"])
                spans.append(Span(event["cat"], event["tid"] - 1, start, end, name, event["args"]))
        marks = [
            Mark(event["tid"] - 1 if event["s"] == "t" else None, _ns(event["ts"]), event["name"], event["args"])
            for event in _of(events, "i")
        ]
        budgets = [Budget(e["tid"] - 1, _ns(e["ts"]), e["args"]["n_threads"]) for e in _of(events, "C")]
        whole = (other.pop("start_ns"), other.pop("end_ns"), other.pop("n_workers"))
        return Trace(*whole, spans, marks, budgets, other.pop("n_dropped"), other)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a trace that pool_party wrote: {type(error).__name__}: {error}") from None


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a trace from its file. Raises: OSError; ValueError if it is not a trace."""
    with open(path, encoding="utf-8") as file:
        return parse(json.load(file))
