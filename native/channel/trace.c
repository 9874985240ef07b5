/* What workers record for a timeline, while the parent wants it. When it does not, a task costs two loads and branches.
 *
 * Each place has a ring of events of its own, which its worker alone writes: the newest overwrite the oldest, so recording
 * never waits for whoever reads. `n_events` grows after an event is complete. A reader copies, then looks at `n_events` once
 * more: what may have been overwritten meanwhile is lost and counted.
 *
 * The words of an event are stored releasing and loaded acquiring. So a reader that finds a word of event n + PP_EVENTS where
 * it wanted event n also finds an `n_events` of at least n + PP_EVENTS afterwards. A killed worker leaves at most an
 * incomplete event that is not counted; its successor writes that anew.
 */
#include "native.h"

#define MASK (PP_EVENTS - 1)

/* Reading the run delay takes 2-6 us, and a task that lasted less than this was hardly preempted. */
#define LOOK_AFTER_NS 200000

static uint64_t now_ns(void) { return (uint64_t)pp_now_ns(); }

static uint64_t tags_of(pp_event_kind_t kind, unsigned status, unsigned n_threads, uint32_t index) {
    return (uint64_t)kind << PP_TAGS_KIND_AT | (uint64_t)(status & 0xf) << PP_TAGS_STATUS_AT |
           (uint64_t)(n_threads & 0xffff) << PP_TAGS_THREADS_AT | index;
}

static void record(pp_worker_t *e, const uint64_t words[PP_EVENT_WORDS]) {
    uint64_t n = pp_load_relaxed(&e->own->n_events);
    pp_event_t *event = pp_segment_events(e->segment, e->n_worker) + (n & MASK);
    for (unsigned i = 0; i < PP_EVENT_WORDS; i++)
        pp_store_release(&event->words[i], words[i]);
    pp_store_release(&e->own->n_events, n + 1);
}

void pp_trace_put(pp_shared_t *shared, uint64_t sequence) {
    pp_store_relaxed(&shared->put_ns[sequence & (PP_SLOTS - 1)], now_ns());   /* before the slot is READY */
}

void pp_trace_wait(pp_worker_t *e) {
    if (e->trace.has_waited)
        return;   /* it was woken, and others were faster: one wait goes on */
    e->trace.has_waited = e->trace.is_stale = true;
    e->trace.slept_ns = 0;
    e->trace.waits_ns = pp_is_traced(e->shared) ? now_ns() : 0;
    pp_store_relaxed(&e->own->since_ns, e->trace.waits_ns);
}

static void end_wait(pp_worker_t *e, uint64_t now) {
    const pp_trace_t *t = &e->trace;
    uint64_t delay = t->slept_ns ? pp_run_delay_ns() : 0;   /* that of waking is not the next task's */
    record(e, (uint64_t[]){t->waits_ns, now, t->slept_ns, 0, tags_of(PP_EVENT_WAIT, 0, 0, 0), delay});
}

void pp_trace_begin_task(pp_worker_t *e) {
    bool has_waited = e->trace.has_waited;
    e->trace.has_waited = e->trace.is_stale = false;
    e->trace.begun_ns = 0;
    if (!pp_is_traced(e->shared)) {
        pp_store_relaxed(&e->own->since_ns, 0);
        return;
    }
    uint64_t now = now_ns();
    if (has_waited) {
        end_wait(e, now);
        now = e->trace.slept_ns ? now_ns() : now;   /* the look took its time */
    }
    e->trace.begun_ns = now;
    e->trace.is_stale = true;
    pp_store_relaxed(&e->own->since_ns, now);
}

/* Before the outcome is sent: whoever has a result finds the event of its task, too. */
void pp_trace_end(pp_worker_t *e, unsigned status) {
    const pp_trace_t *t = &e->trace;
    uint64_t now = now_ns(), put_ns = t->begun_ns ? t->put_ns : 0;
    uint64_t delay = now - t->begun_ns > LOOK_AFTER_NS ? pp_run_delay_ns() : 0;
    uint64_t tags = tags_of(PP_EVENT_TASK, status, 0, pp_load_relaxed(&e->own->index));
    record(e, (uint64_t[]){t->begun_ns, now, put_ns, pp_load_relaxed(&e->own->job), tags, delay});
    pp_store_release(&e->own->since_ns, PP_TASK_RECORDED);
    e->trace.is_stale = true;
}

/* A task whose end was recorded is not going on, though its worker still holds it until the outcome was sent. */
pp_present_t pp_trace_present(const pp_worker_slot_t *worker) {
    bool holds = pp_load_acquire(&worker->holds), is_asleep = pp_load_seq_cst(&worker->park) == PP_ASLEEP;
    if (holds && pp_load_acquire(&worker->since_ns) != PP_TASK_RECORDED)
        return PP_PRESENT_TASK;
    return !holds && is_asleep ? PP_PRESENT_SLEEPS : PP_PRESENT_LOOKS;
}

void pp_trace_close(pp_worker_t *e) {
    if (e->trace.has_waited && pp_is_traced(e->shared))
        end_wait(e, now_ns());
    e->trace.has_waited = false;
}

void pp_trace_budget(pp_worker_t *e) {
    unsigned n_threads = pp_budget_lent(&e->segment->budget);
    uint64_t now = now_ns();
    if (n_threads)
        record(e, (uint64_t[]){now, now, 0, 0, tags_of(PP_EVENT_BUDGET, 0, n_threads, 0), 0});
}

static uint64_t oldest_of(uint64_t n_events) { return n_events >= PP_EVENTS ? n_events - PP_EVENTS + 1 : 0; }

/* Copies at most n_max events from number `from` on; returns the number to go on from. n_lost: events that are gone. The
 * worker may be writing the oldest of the ring, so that counts as gone. */
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
    uint64_t whole = oldest < first ? first : oldest < end ? oldest : end;   /* from there on nothing was overwritten */
    for (uint64_t k = whole; k < end; k++)
        for (unsigned i = 0; i < PP_EVENT_WORDS; i++)
            out[k - whole][i] = out[k - first][i];
    *n_lost = whole - (from < whole ? from : whole);
    *n = (unsigned)(end - whole);
    return end;
}
