/* What workers record for a timeline while the parent wants it. Otherwise a task costs two extra loads and branches.
 *
 * Each worker slot has its own ring of events, which only its worker writes. The newest events overwrite the oldest, so
 * recording never waits for a reader. `n_events` grows after an event is complete. A reader copies events, and then
 * reads `n_events` again: events that may have been overwritten meanwhile are lost, and counted.
 *
 * The words of an event are stored with release and loaded with acquire. So a reader that finds a word of event n +
 * PP_EVENTS in place of event n also sees `n_events` of at least n + PP_EVENTS afterwards. A killed worker leaves at
 * most one incomplete event that is not counted; its successor overwrites it.
 */
#include "native.h"

#define MASK (PP_EVENTS - 1)

/* Reading the run delay takes 2 to 6 us. A task shorter than this was hardly preempted. */
#define LOOK_AFTER_NS 200000

static uint64_t now_ns(void) { return (uint64_t)pp_now_ns(); }

static uint64_t tags_of(pp_event_kind_t kind, unsigned status, unsigned n_threads, uint32_t index) {
    return (uint64_t)kind << PP_TAGS_KIND_AT | (uint64_t)(status & 0xf) << PP_TAGS_STATUS_AT |
           (uint64_t)(n_threads & 0xffff) << PP_TAGS_THREADS_AT | index;
}

static void record(pp_worker_t *worker, const uint64_t words[PP_EVENT_WORDS]) {
    uint64_t n = pp_load_relaxed(&worker->own->n_events);
    pp_event_t *event = pp_segment_events(worker->segment, worker->n_worker) + (n & MASK);
    for (unsigned i = 0; i < PP_EVENT_WORDS; i++)
        pp_store_release(&event->words[i], words[i]);
    pp_store_release(&worker->own->n_events, n + 1);
}

void pp_trace_put(pp_shared_t *shared, uint64_t sequence) {
    pp_store_relaxed(&shared->put_ns[sequence & (PP_SLOTS - 1)], now_ns());   /* before the slot is READY */
}

void pp_trace_wait(pp_worker_t *worker) {
    if (worker->trace.has_waited)
        return;   /* it was woken, but other workers took the tasks: the wait goes on */
    worker->trace.has_waited = worker->trace.is_stale = true;
    worker->trace.slept_ns = 0;
    worker->trace.waits_ns = pp_is_traced(worker->shared) ? now_ns() : 0;
    pp_store_relaxed(&worker->own->since_ns, worker->trace.waits_ns);
}

static void end_wait(pp_worker_t *worker, uint64_t now) {
    const pp_trace_t *t = &worker->trace;
    uint64_t delay = t->slept_ns ? pp_run_delay_ns() : 0;   /* the delay of waking up does not belong to the next task */
    record(worker, (uint64_t[]){t->waits_ns, now, t->slept_ns, 0, tags_of(PP_EVENT_WAIT, 0, 0, 0), delay});
}

void pp_trace_begin_task(pp_worker_t *worker) {
    bool has_waited = worker->trace.has_waited;
    worker->trace.has_waited = worker->trace.is_stale = false;
    worker->trace.begun_ns = 0;
    if (!pp_is_traced(worker->shared)) {
        pp_store_relaxed(&worker->own->since_ns, 0);
        return;
    }
    uint64_t now = now_ns();
    if (has_waited) {
        end_wait(worker, now);
        now = worker->trace.slept_ns ? now_ns() : now;   /* reading the delay took time */
    }
    worker->trace.begun_ns = now;
    worker->trace.is_stale = true;
    pp_store_relaxed(&worker->own->since_ns, now);
}

/* Records before the outcome is sent, so that the event of a task whose result is there is there as well. */
void pp_trace_end(pp_worker_t *worker, unsigned status) {
    const pp_trace_t *t = &worker->trace;
    uint64_t now = now_ns(), put_ns = t->begun_ns ? t->put_ns : 0;
    uint64_t delay = now - t->begun_ns > LOOK_AFTER_NS ? pp_run_delay_ns() : 0;
    uint64_t tags = tags_of(PP_EVENT_TASK, status, 0, pp_load_relaxed(&worker->own->index));
    record(worker, (uint64_t[]){t->begun_ns, now, put_ns, pp_load_relaxed(&worker->own->job), tags, delay});
    pp_store_release(&worker->own->since_ns, PP_TASK_RECORDED);
    worker->trace.is_stale = true;
}

/* A task whose end has been recorded counts as over, although its worker holds it until the outcome is sent. */
pp_present_t pp_trace_present(const pp_worker_slot_t *worker_slot) {
    bool holds = pp_load_acquire(&worker_slot->holds), is_asleep = pp_load_seq_cst(&worker_slot->park) == PP_ASLEEP;
    if (holds && pp_load_acquire(&worker_slot->since_ns) != PP_TASK_RECORDED)
        return PP_PRESENT_TASK;
    return !holds && is_asleep ? PP_PRESENT_SLEEPS : PP_PRESENT_LOOKS;
}

void pp_trace_close(pp_worker_t *worker) {
    if (worker->trace.has_waited && pp_is_traced(worker->shared))
        end_wait(worker, now_ns());
    worker->trace.has_waited = false;
}

void pp_trace_budget(pp_worker_t *worker) {
    unsigned n_threads = pp_budget_lent(&worker->segment->budget);
    uint64_t now = now_ns();
    if (n_threads)
        record(worker, (uint64_t[]){now, now, 0, 0, tags_of(PP_EVENT_BUDGET, 0, n_threads, 0), 0});
}

static uint64_t oldest_of(uint64_t n_events) { return n_events >= PP_EVENTS ? n_events - PP_EVENTS + 1 : 0; }

/* Copies at most n_max events from number `from` on, and returns the number to continue from. n_lost: overwritten
 * events. The oldest event in the ring counts as lost, since the worker may be overwriting it. */
uint64_t pp_trace_read(pp_segment_t *s, unsigned worker, uint64_t from, uint64_t (*out)[PP_EVENT_WORDS], unsigned n_max,
                       uint64_t *n_lost, unsigned *n) {
    _Atomic uint64_t *n_events = &pp_segment_worker(s, worker)->n_events;
    const pp_event_t *events = pp_segment_events(s, worker);
    uint64_t end = pp_load_acquire(n_events), oldest = oldest_of(end), first = from > oldest ? from : oldest;
    if (end - first > n_max)
        end = first + n_max;
    for (uint64_t k = first; k < end; k++)
        for (unsigned i = 0; i < PP_EVENT_WORDS; i++)
            out[k - first][i] = pp_load_acquire(&events[k & MASK].words[i]);
    oldest = oldest_of(pp_load_acquire(n_events));
    uint64_t whole = oldest < first ? first : oldest < end ? oldest : end;   /* nothing from here on was overwritten */
    for (uint64_t k = whole; k < end; k++)
        for (unsigned i = 0; i < PP_EVENT_WORDS; i++)
            out[k - whole][i] = out[k - first][i];
    *n_lost = whole - (from < whole ? from : whole);
    *n = (unsigned)(end - whole);
    return end;
}
