/* What a thread of the parent does while it waits. It leads or follows (leading.c). The leader takes results for all, and
 * puts the backlog, if no other thread does. What this needs of the layer above, such as decoding a result or pickling an
 * argument, are `pp_hooks_t`.
 */
#include "native.h"

#define CLOCK_EVERY 16      /* with a deadline: results, or a slow one, between readings of the clock, which take as long as a fast result */

/* ---- feeding ---- */

/* A thread that finds something in the backlog, and no thread that puts it, puts it. No request is lost between two
 * threads: one stores `must_feed` and then reads `feeder`; the other clears `feeder` and then reads `must_feed`. So at
 * least one of them sees the other's store. If an exception interrupts putting, or a thread leaves tasks that it has no
 * time to pickle, the background thread continues. */
static bool is_feeding(pp_parent_t *parent) { return pp_load_seq_cst(&parent->feeder) == pp_this_thread(); }

/* Code that pickling runs, or a signal handler during it, may use the pool. The thread that is putting then also puts
 * the new tasks. until_ns: a time to stop; then only tasks are put that need no pickling. -1: none. */
int pp_feed(pp_parent_t *parent, int64_t until_ns) {
    bool is_nested = is_feeding(parent);
    for (uintptr_t nobody = 0; pp_load_seq_cst(&parent->must_feed); nobody = 0) {
        if (!is_nested && !pp_cas_seq_cst(&parent->feeder, &nobody, pp_this_thread())) {
            /* the leader is waiting within its put: it puts before it sleeps again */
            if (pp_load_seq_cst(&parent->leading.leader) == nobody)
                pp_parent_wake_leader(parent);
            return 0;
        }
        pp_store_seq_cst(&parent->must_feed, 0);
        PP_ASSERT(PP_PEEK(&parent->feeder) == pp_this_thread());
        int is_whole = parent->hooks->put(parent, is_nested, until_ns);
        if (is_whole != true)
            pp_store_seq_cst(&parent->must_feed, 1);
        pp_store_seq_cst(&parent->must_pickle, until_ns >= 0 && is_whole != true);
        if (!is_nested)
            pp_store_seq_cst(&parent->feeder, 0);
        if (is_whole != true) {
            pp_parent_notify(parent);
            return is_whole;
        }
    }
    return 0;
}

/* A thread that waits with a timeout puts nothing that must be pickled, since that may take any time. Once it has left
 * such a task to the background thread, it tries again only after that one. But if code that pickling runs waits, no
 * other thread can put the task that it waits for. */
static int feed_as_leader(pp_parent_t *parent, int64_t deadline_ns) {
    if (pp_parent_take_room(parent))
        pp_store_seq_cst(&parent->must_feed, 1);
    if (!pp_parent_wants_feed(parent))
        return 0;
    if (deadline_ns < 0 || is_feeding(parent))
        return pp_feed(parent, -1);
    return pp_load_seq_cst(&parent->must_pickle) ? 0 : pp_feed(parent, deadline_ns);
}

/* ---- taking results ---- */

static bool is_batch_over(const pp_batch_t *b) {
    if (b->n >= PP_BATCH)
        return true;
    return b->deadline_ns >= 0 && (b->was_slow || b->n % CLOCK_EVERY == 0) && pp_now_ns() >= b->deadline_ns;
}

/* Takes a batch of results from all workers in turn. Returns their number, or -1. Code that decoding runs may itself
 * wait for a result and hand over the lead, which ends the batch. alone_for: what the caller waits for with a deadline. */
static int take_batch(pp_parent_t *parent, const void *alone_for, int64_t deadline_ns) {
    pp_batch_t b = {.alone_for = alone_for, .deadline_ns = deadline_ns};
    int failed = 0;
    unsigned n_workers = parent->segment->n_workers;
    bool is_ended = false;
    for (unsigned i = 0; !failed && !is_ended && i < n_workers; i++) {
        unsigned worker = pp_parent_next_reply(parent, pp_load_relaxed(&parent->next_worker));
        if (worker == n_workers)
            break;
        pp_store_relaxed(&parent->next_worker, worker);
        for (const pp_frame_t *f; !failed && !is_ended && (f = pp_parent_peek(parent, worker)) != NULL;) {
            failed = parent->hooks->take(parent, worker, f, &b);
            b.n++;
            is_ended = is_batch_over(&b) || !pp_lead_is_mine(parent);
        }
        if (!is_ended)
            pp_store_relaxed(&parent->next_worker, (worker + 1) % n_workers);
    }
    parent->hooks->end_batch(&b);
    return failed ? -1 : (int)b.n;
}

int pp_take_results(pp_parent_t *parent) {
    bool is_nested = pp_lead_is_mine(parent);
    int n = 1;
    while (n > 0 && pp_lead_try(parent) && !pp_lead_is_claimed(parent)) {
        n = take_batch(parent, NULL, -1);
        if (n >= 0 && feed_as_leader(parent, -1) < 0)
            n = -1;
    }
    if (!is_nested)
        pp_lead_release(parent);
    return n < 0 ? -1 : 0;
}

/* Makes the caller the leader, whoever leads now. */
static void claim_lead(pp_parent_t *parent) {
    if (pp_lead_is_mine(parent))
        return;
    void *state = parent->hooks->let_go(parent);
    pp_lead_claim(parent);
    parent->hooks->take_back(parent, state);
}

int pp_take_last(pp_parent_t *parent, unsigned worker) {
    pp_batch_t b = {.deadline_ns = -1};
    int failed = 0;
    claim_lead(parent);
    for (const pp_frame_t *f; !failed && (f = pp_parent_peek(parent, worker)) != NULL;) {
        failed = parent->hooks->take(parent, worker, f, &b);
        claim_lead(parent);   /* again: code that decoding has run may have handed it over */
    }
    parent->hooks->end_batch(&b);
    claim_lead(parent);   /* what it drops may have run code, too */
    return failed;
}

/* ---- waiting ---- */

static bool spin_as_leader(pp_parent_t *parent) {
    PP_ASSERT(PP_PEEK(&parent->leading.leader) == pp_this_thread());
    void *state = parent->hooks->let_go(parent);
    pp_parent_let_go(parent, true);
    bool has_work = pp_parent_spin(parent);
    if (has_work && parent->shares_gil)
        pp_parent_await_workers(parent);
    pp_parent_let_go(parent, false);
    parent->hooks->take_back(parent, state);
    return has_work;
}

/* Sleeps, as leader. before: the bell as it was before the last check for signals. A Ctrl-C since then has changed it,
 * which prevents the sleep. */
static void wait_as_leader(pp_parent_t *parent, const void *awaited, int64_t deadline_ns, uint32_t before) {
    bool patient = pp_parent_n_waiting(parent) > (uint64_t)PP_PATIENT_MIN * parent->segment->n_workers;
    if (!patient && spin_as_leader(parent))
        return;
    deadline_ns = parent->hooks->prepare_sleep(deadline_ns);
    pp_lead_for(parent, awaited);   /* code that ran meanwhile may have waited for something else */
    if (parent->hooks->is_met(awaited))
        return;
    PP_ASSERT(PP_PEEK(&parent->leading.leader) == pp_this_thread());
    void *state = parent->hooks->let_go(parent);
    pp_parent_let_go(parent, true);
    pp_parent_park(parent, before, deadline_ns, patient);
    pp_parent_let_go(parent, false);
    parent->hooks->take_back(parent, state);
}

/* Takes the results that have come, or sleeps until something happens. 0 or -1. */
static int lead(pp_parent_t *parent, const void *awaited, int64_t deadline_ns, uint32_t before) {
    if (pp_lead_is_claimed(parent)) {
        pp_lead_release(parent);
        return 0;
    }
    pp_lead_for(parent, awaited);
    int n = take_batch(parent, deadline_ns >= 0 ? awaited : NULL, deadline_ns);
    if (n < 0 || feed_as_leader(parent, deadline_ns) < 0)
        return -1;
    if (n == 0 && pp_lead_is_mine(parent) && !parent->hooks->is_met(awaited))
        wait_as_leader(parent, awaited, deadline_ns, before);
    return 0;
}

/* Waits as a follower. Signal handlers run before the caller is listed, because nobody must hand it the lead while one
 * runs. */
static int follow(pp_parent_t *parent, const void *awaited, int64_t deadline_ns) {
    pp_waiter_t waiter = {0};
    deadline_ns = parent->hooks->prepare_sleep(deadline_ns);
    int failed = parent->hooks->run_handlers(parent, &waiter.word);
    if (!failed && pp_follow_begin(parent, &waiter, awaited)) {
        bool is_there = parent->hooks->is_met(awaited);
        void *state = parent->hooks->let_go(parent);
        if (!is_there)
            pp_follow_wait(&waiter, deadline_ns);
        pp_follow_end(parent, &waiter);
        parent->hooks->take_back(parent, state);
    }
    parent->hooks->run_handlers(parent, NULL);
    return failed;
}

/* A thread that waits while it is putting must lead, because no other thread can put the task that it waits for. */
static int lead_or_follow(pp_parent_t *parent, const void *awaited, int64_t deadline_ns, uint32_t before) {
    if (is_feeding(parent))
        claim_lead(parent);
    return pp_lead_try(parent) ? lead(parent, awaited, deadline_ns, before) : follow(parent, awaited, deadline_ns);
}

/* Handlers of signals run before each look, and may wait for a thread that itself waits for a result: run_handlers pauses
 * the lead. */
pp_waited_t pp_wait_for(pp_parent_t *parent, const void *awaited, int64_t deadline_ns) {
    _Atomic uint32_t *bell = &parent->segment->shared->bell;
    pp_waited_t found = PP_WAIT_GOES_ON;
    bool is_nested = pp_lead_is_mine(parent);   /* called by a signal handler, or by other code that decoding runs */
    for (bool has_looked = false; found == PP_WAIT_GOES_ON && !parent->hooks->is_met(awaited); has_looked = true) {
        if (parent->hooks->is_closed(parent)) {
            found = PP_WAIT_CLOSED;
            break;
        }
        if (has_looked && deadline_ns >= 0 && pp_now_ns() >= deadline_ns) {
            found = PP_WAIT_TIMED_OUT;
            break;
        }
        uint32_t before = pp_load_seq_cst(bell);
        bool has_failed = parent->hooks->run_handlers(parent, bell) < 0;
        if (!has_failed && !parent->hooks->is_met(awaited))
            has_failed = lead_or_follow(parent, awaited, deadline_ns, before) < 0;
        if (has_failed)
            found = PP_WAIT_FAILED;
    }
    parent->hooks->run_handlers(parent, NULL);
    if (!is_nested)
        pp_lead_release(parent);
    return found == PP_WAIT_GOES_ON ? PP_WAIT_MET : found;
}
