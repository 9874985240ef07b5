"""Figures of a trace: pure functions of its spans.

PMO and PCE are defined by Castaldo and Whaley, "Minimizing Startup Costs for Performance-Critical Threading" (on ATLAS;
IPDPS 2009), section I-A. In their terms a worker is a core. The full parallel time (FPT) is that of the whole problem
on all cores. The per-core time (PCT) is how long one core computes, without any management. The partitioned serial time
(PST) is how long one core's part takes alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pool_party._observe.events import PREEMPTED, TASK, WAKE_UP, Span, Trace


def _by_worker(spans: Iterable[Span], kind: str) -> dict[int, int]:
    total: dict[int, int] = {}
    for span in spans:
        if span.kind == kind and "between_tasks" not in span.args:
            total[span.worker] = total.get(span.worker, 0) + span.duration_ns
    return total


def busy_ns(spans: Iterable[Span]) -> dict[int, int]:
    """Return, for each worker that had a task, its time in tasks: its PCT."""
    return _by_worker(spans, TASK)


def preempted_ns(spans: Iterable[Span]) -> dict[int, int]:
    """Return, for each worker, the part of its time in tasks in which it had no CPU."""
    return _by_worker(spans, PREEMPTED)


def _handed_out_ns(task: Span) -> float:
    queued_us: float = task.args.get("queued_us", 0.0)
    return task.start_ns - queued_us * 1000


def parallel_time_ns(spans: Iterable[Span]) -> float:
    """FPT: from the moment that the first task was put, as far as that was traced, to the end of the last task."""
    tasks = [span for span in spans if span.kind == TASK]
    if not tasks:
        return 0.0
    return max(task.end_ns for task in tasks) - min(map(_handed_out_ns, tasks))


def management_overhead_ns(spans: Iterable[Span]) -> float:
    """PMO = FPT - max(PCT): the time that the problem took beyond the computing of the longest worker."""
    spans = list(spans)
    return parallel_time_ns(spans) - max(busy_ns(spans).values(), default=0)


def computational_expansion(spans: Iterable[Span], serial_ns: Sequence[float]) -> float:
    """PCE = mean(PCT) / mean(PST): how much longer workers compute than their parts take alone.

    serial_ns: for each worker, the time of its part computed alone. Raises: ValueError if it is empty or there is no
    task.
    """
    busy = busy_ns(spans)
    if not busy or not serial_ns or fmean(serial_ns) <= 0:
        raise ValueError("the expansion is that of a problem that workers computed, to the time of its parts alone")
    return fmean(busy.values()) / fmean(serial_ns)


def utilisation(spans: Iterable[Span], n_workers: int) -> float:
    """sum(PCT) / (n_workers * FPT), from 0 to 1: the share of all workers' time that was spent in tasks."""
    spans = list(spans)
    all_ns = n_workers * parallel_time_ns(spans)
    return sum(busy_ns(spans).values()) / all_ns if all_ns > 0 else 0.0


def imbalance(spans: Iterable[Span], n_workers: int) -> float:
    """max(PCT) / mean(PCT) over all workers: 1 if all computed equally long, n_workers if one did everything."""
    busy = busy_ns(spans)
    total = sum(busy.values())
    return max(busy.values()) * n_workers / total if total else 1.0


def wake_ups_ns(spans: Iterable[Span]) -> list[int]:
    """Return, for each task that a worker was waiting for, the time from put to begin, shortest first."""
    return sorted(span.duration_ns for span in spans if span.kind == WAKE_UP)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` % of the ordered values do not exceed (nearest rank); 0 if there is
    none.
    """
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


@dataclass(frozen=True)
class Summary:
    """The figures of a whole trace.

    Times are in seconds, shares from 0 to 1. preempted: the share of the time in tasks.
    """

    n_tasks: int
    parallel_time_s: float
    longest_worker_s: float
    management_overhead_s: float
    utilisation: float
    imbalance: float
    preempted: float
    wake_up_median_s: float
    wake_up_p99_s: float


def summarize(trace: Trace) -> Summary:
    """Compute the figures of a trace."""
    spans = trace.spans
    busy, wake_ups = busy_ns(spans), wake_ups_ns(spans)
    total = sum(busy.values())
    return Summary(
        n_tasks=len(trace.of(TASK)),
        parallel_time_s=parallel_time_ns(spans) / 1e9,
        longest_worker_s=max(busy.values(), default=0) / 1e9,
        management_overhead_s=management_overhead_ns(spans) / 1e9,
        utilisation=utilisation(spans, trace.n_workers),
        imbalance=imbalance(spans, trace.n_workers),
        preempted=sum(preempted_ns(spans).values()) / total if total else 0.0,
        wake_up_median_s=percentile(wake_ups, 50) / 1e9,
        wake_up_p99_s=percentile(wake_ups, 99) / 1e9,
    )
