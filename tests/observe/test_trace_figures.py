"""Figures and pictures as pure functions of made-up events."""

import itertools

import properties
import pytest

from pool_party import _native
from pool_party._native import EVENT_BUDGET, EVENT_TASK, EVENT_WAIT
from pool_party._observe import assemble, chrome, delays, metrics, timeline
from pool_party._observe.assemble import Life, Present
from pool_party._observe.delays import Delay, Look
from pool_party._observe.events import PREEMPTED, TASK, WAIT, WAKE_UP, Budget, Mark, Span, Trace

US, MS = 1000, 1_000_000


def task(worker, start, end, **args):
    return Span(TASK, worker, start, end, "f", args)


# ---- metrics ---------------------------------------------------------------

SPANS = [
    task(0, 10 * MS, 50 * MS, queued_us=10_000.0),
    task(1, 12 * MS, 42 * MS),
    task(1, 45 * MS, 75 * MS),
    Span(WAIT, 0, 50 * MS, 75 * MS),
    Span(WAKE_UP, 0, 9 * MS, 10 * MS),
    Span(PREEMPTED, 1, 40 * MS, 42 * MS),
    Span(PREEMPTED, 1, 43 * MS, 45 * MS, "", {"between_tasks": True}),
]


def test_metrics_by_hand():
    assert metrics.busy_ns(SPANS) == {0: 40 * MS, 1: 60 * MS}
    assert metrics.preempted_ns(SPANS) == {1: 2 * MS}
    assert metrics.parallel_time_ns(SPANS) == 75 * MS  # from the moment that the first task was put
    assert metrics.management_overhead_ns(SPANS) == 15 * MS
    assert metrics.utilisation(SPANS, 2) == pytest.approx(100 / 150)
    assert metrics.imbalance(SPANS, 2) == pytest.approx(1.2)
    assert metrics.imbalance(SPANS, 4) == pytest.approx(2.4)
    assert metrics.computational_expansion(SPANS, [40 * MS, 40 * MS]) == pytest.approx(1.25)
    assert metrics.wake_ups_ns(SPANS) == [MS]


def test_metrics_of_nothing():
    summary = metrics.summarize(Trace(0, 0, 2))
    assert summary.n_tasks == summary.parallel_time_s == summary.utilisation == summary.wake_up_p99_s == 0
    assert summary.imbalance == 1
    with pytest.raises(ValueError, match="parts alone"):
        metrics.computational_expansion([], [1])
    with pytest.raises(ValueError, match="parts alone"):
        metrics.computational_expansion(SPANS, [])


def test_percentiles_are_nearest_ranks():
    values = list(range(1, 101))
    assert [metrics.percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert metrics.percentile([7], 50) == 7


def make_spans(rng, n_workers):
    """Random tasks and waits of some workers, without overlap, with preempted parts."""
    spans = []
    for worker in range(n_workers):
        now = rng.randrange(100)
        for _ in range(rng.randrange(8)):
            start = now + rng.randrange(50)
            now = start + rng.randrange(1, 200)
            kind = rng.choice((TASK, WAIT))
            args = {"queued_us": rng.randrange(start + 1) / 1000} if kind == TASK and rng.random() < 0.5 else {}
            spans.append(Span(kind, worker, start, now, "", args))
            if kind == TASK and rng.random() < 0.3:
                spans.append(Span(PREEMPTED, worker, start, rng.randrange(start, now) + 1))
    return spans


@properties.check(200)
def test_metrics_keep_their_bounds(rng):
    n_workers = rng.randrange(1, 6)
    spans = make_spans(rng, n_workers)
    busy = metrics.busy_ns(spans)
    whole = metrics.parallel_time_ns(spans)
    assert sum(busy.values()) == sum(span.duration_ns for span in spans if span.kind == TASK)
    assert 0 <= metrics.management_overhead_ns(spans) <= whole
    assert 0 <= metrics.utilisation(spans, n_workers) <= 1
    assert 1 <= metrics.imbalance(spans, n_workers) <= n_workers + 1e-9
    assert all(lost <= busy[worker] for worker, lost in metrics.preempted_ns(spans).items())
    if busy:
        alone = list(busy.values())
        assert metrics.computational_expansion(spans, alone) == pytest.approx(1)
        assert metrics.computational_expansion(spans, [2 * ns for ns in alone]) == pytest.approx(0.5)


# ---- preemption ------------------------------------------------------------


def test_what_comes_between_looks():
    looks = [Look(3 * MS, 2 * MS), Look(0, 0), Look(MS, 500 * US), Look(4 * MS, 2 * MS + 1)]
    assert list(delays.between(looks)) == [Delay(0, MS, 500 * US), Delay(MS, 3 * MS, 1500 * US)]
    assert list(delays.between([Look(5, 10**9)])) == []


def test_delays_come_first_between_tasks_and_then_at_their_ends():
    gaps, tasks = [(100, 130)], [(0, 100), (130, 200)]
    assert list(delays.place([Delay(50, 190, 100)], gaps, tasks)) == [(None, 100, 130), (1, 130, 190), (0, 90, 100)]


@properties.check(200)
def test_placed_delays_stay_inside(rng):
    cuts = sorted(rng.sample(range(10_000), 2 * rng.randrange(1, 10)))
    tasks = list(itertools.batched(cuts, 2))
    gaps = [(a[1], b[0]) for a, b in itertools.pairwise(tasks)]
    times = sorted(rng.sample(range(10_000), rng.randrange(2, 12)))
    given = [Delay(a, b, rng.randrange(2 * (b - a))) for a, b in itertools.pairwise(times)]
    parts = list(delays.place(given, gaps, tasks))
    for n, start, end in parts:
        around = [tasks[n]] if n is not None else gaps
        assert any(a <= start < end <= b for a, b in around)
    ordered = sorted((start, end) for _, start, end in parts)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))
    assert sum(end - start for start, end in ordered) <= sum(delay.delay_ns for delay in given)


def test_no_delay_of_what_does_not_exist():
    assert delays.read_delay(0, 0) is None


# ---- from events to spans --------------------------------------------------

START = 1000 * MS


def tags(kind, index=0, status=0, n_threads=0):
    at = _native.TAGS_KIND_AT, _native.TAGS_STATUS_AT, _native.TAGS_THREADS_AT
    return kind << at[0] | status << at[1] | n_threads << at[2] | index


def spans_of(*events, last=None, looks=()):
    life = Life(0, 1, "worker", list(events), list(looks), last)
    return assemble.spans_of([life], {1: "f"}, START)


def test_a_wait_that_a_task_ends():
    wait = (START, START + 9 * MS, 8 * MS, 0, tags(EVENT_WAIT), 0)
    event = (START + 9 * MS + US, START + 20 * MS, START + 8 * MS, 1, tags(EVENT_TASK, 3), 0)
    first, waking, second = spans_of(wait, event)
    assert first == Span(WAIT, 0, START, START + 9 * MS, "", {"asleep_us": 8000.0})
    assert waking == Span(WAKE_UP, 0, START + 8 * MS, START + 9 * MS)
    assert second[:5] == (TASK, 0, START + 9 * MS + US, START + 20 * MS, "f")
    assert second.args == {"call": 1, "task": 3, "queued_us": 1001.0, "wake_up_us": 1001.0}


def test_what_began_before_the_trace_is_cut():
    wait = (0, START + MS, 0, 0, tags(EVENT_WAIT), 0)
    event = (START - 5, START + 2 * MS, START - 9, 1, tags(EVENT_TASK), 0)
    assert [(span.kind, span.start_ns) for span in spans_of(wait)] == [(WAIT, START)]
    (cut,) = spans_of(event)
    assert cut.start_ns == START and cut.args == {"call": 1, "task": 0, "began_before": True}
    assert spans_of((0, START - 1, 0, 1, tags(EVENT_TASK), 0)) == []


def test_a_put_of_an_earlier_trace_is_no_put():
    (span,) = spans_of((START + MS, START + 2 * MS, START - 1, 1, tags(EVENT_TASK), 0))
    assert "queued_us" not in span.args


def test_the_last_state_is_shown_unless_its_end_was_recorded():
    event = (START, START + MS, 0, 1, tags(EVENT_TASK, 4), 0)
    now = START + 5 * MS

    def kinds(last):
        return [(span.kind, span.start_ns, span.end_ns) for span in spans_of(event, last=last)[1:]]

    assert kinds(Present(now, _native.PRESENT_TASK, START + 2 * MS, 1, 5)) == [(TASK, START + 2 * MS, now)]
    assert kinds(Present(now, _native.PRESENT_SLEEPS, 0, 1, 4)) == [(WAIT, START + MS, now)]
    assert kinds(Present(now, _native.PRESENT_TASK, START, 1, 4)) == []
    assert kinds(Present(START, _native.PRESENT_SLEEPS, START, 1, 4)) == []
    (lost,) = spans_of(last=Present(now, _native.PRESENT_TASK, START, 1, 5, is_dead=True))
    assert lost.args["status"] == "worker lost"


def test_the_delay_of_waking_is_not_the_next_tasks():
    wait = (START, START + 10 * MS, 5 * MS, 0, tags(EVENT_WAIT), 3 * MS)
    event = (START + 10 * MS, START + 20 * MS, START + 6 * MS, 1, tags(EVENT_TASK), 4 * MS)
    spans = spans_of(wait, event, looks=[Look(START, 0)])
    assert [span[2:4] for span in spans if span.kind == PREEMPTED] == [(START + 19 * MS, START + 20 * MS)]
    assert [span.args["preempted_us"] for span in spans if span.kind == TASK] == [1000.0]


def test_shared_budgets_are_everyones():
    events = [
        (START + 3, START + 3, 0, 0, tags(EVENT_BUDGET, n_threads=4), 0),
        (START + 5, START + 5, 0, 0, tags(EVENT_BUDGET, n_threads=4), 0),
        (START - 5, START - 5, 0, 0, tags(EVENT_BUDGET, n_threads=9), 0),
    ]
    lives = [Life(0, 1, "worker", events)]
    budgets = assemble.budgets_of(lives, [Budget(1, START + 1, 2)], 2, START)
    assert budgets == [Budget(1, START + 1, 2), Budget(0, START + 3, 4), Budget(1, START + 3, 4)]


# ---- files and pictures ----------------------------------------------------


def test_a_file_tells_the_whole_trace(tmp_path):
    spans = [span._replace(name="") if span.kind != TASK else span for span in SPANS]
    marks = [Mark(1, 20 * MS + 7, "worker started", {"pid": 5}), Mark(None, 3, "dropped")]
    trace = Trace(1, 80 * MS, 2, spans, marks, [Budget(0, 12_345_678_901_234_567, 3)], 12, {"kind": "thread", "pid": 9})
    chrome.write(trace, tmp_path / "trace.json")
    again = chrome.read(tmp_path / "trace.json")
    assert (again.start_ns, again.end_ns, again.n_workers, again.n_dropped) == (1, 80 * MS, 2, 12)
    assert again.spans == spans and again.marks == marks and again.about == trace.about
    assert again.budgets == [Budget(0, pytest.approx(12_345_678_901_234_567, abs=8), 3)]


def test_names_are_quoted(tmp_path):
    trace = Trace(0, 1, 1, [Span(TASK, 0, 0, 1, 'f"<\\\u20ac>')], about={"kind": "thread"})
    chrome.write(trace, tmp_path / "trace.json")
    assert chrome.read(tmp_path / "trace.json").spans[0].name == 'f"<\\\u20ac>'


def test_columns_by_hand():
    trace = Trace(0, 100, 1, [task(0, 0, 50), Span(PREEMPTED, 0, 40, 50), Span(WAIT, 0, 55, 100)])
    assert timeline.columns(trace, 4, 0, 100) == [[(1, 0, 0), (0.6, 0.4, 0), (0, 0, 0.8), (0, 0, 1)]]
    assert timeline.columns(Trace(0, 0, 2), 3, 0, 0) == [[(0, 0, 0)] * 3] * 2


@properties.check(60)
def test_columns_add_up(rng):
    n_workers, n_columns = rng.randrange(1, 4), rng.randrange(1, 40)
    spans = make_spans(rng, n_workers)
    end_ns = max([1, *(span.end_ns for span in spans)])
    rows = timeline.columns(Trace(0, end_ns, n_workers, spans), n_columns, 0, end_ns)
    assert [len(row) for row in rows] == [n_columns] * n_workers
    assert all(0 <= sum(column) <= 1.005 for row in rows for column in row)
    shown = [sum(column[n] for row in rows for column in row) * end_ns / n_columns for n in range(3)]
    total = [sum(span.duration_ns for span in spans if span.kind == kind) for kind in timeline.STACK]
    total[0] -= total[1]
    assert shown == pytest.approx(total, abs=0.001 * n_workers * end_ns + 1)


@pytest.mark.parametrize(
    "span_ns, ticks",
    [
        (95 * MS, ["0 ms", "10 ms"]),
        (2_000_000_000, ["0 ms", "200 ms"]),
        (25_000_000_000, ["0 s", "5 s"]),
        (9, ["0 ns", "1 ns"]),
    ],
)
def test_ticks_are_round(span_ns, ticks):
    items = list(timeline._axis(0, span_ns, 1))
    texts = [item.text for item in items if isinstance(item, timeline.Text)]
    assert texts[:2] == ticks
    assert 3 <= len(texts) <= 11


def test_a_picture_of_what_is_left():
    trace = Trace(0, 100 * MS, 2, SPANS, n_dropped=5, about={"kind": "thread"})
    assert timeline.shown_ns(trace) == (10 * MS, 100 * MS)
    assert "5 older events dropped" in timeline.to_svg(timeline.draw(trace))


def test_a_picture_as_png(tmp_path):
    pytest.importorskip("matplotlib")
    timeline.save(Trace(0, 100 * MS, 2, SPANS), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
