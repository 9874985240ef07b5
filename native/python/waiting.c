/* Channel, continued: waiting. A thread that waits for a call leads or follows (native/channel/leading.c). The leader
 * also puts the backlog, if no other thread does. At the end of the file: what the background thread waits for.
 */
#include "python.h"

#define PATIENT_MIN 4u      /* waiting tasks per worker above which the leader lets results gather */
#define HEARTBEAT_NS 200000000   /* see sleep_until */

/* ---- feeding ---- */

/* A thread that finds tasks in the backlog, and no thread that puts them, puts them. No request is lost between two
 * threads: one stores `must_feed` and then reads `feeder`; the other clears `feeder` and then reads `must_feed`. So at
 * least one of them sees the other's store. If an exception interrupts putting, or a thread leaves tasks that it has no
 * time to pickle, the background thread continues. */
static bool is_feeding(pp_channel_t *self) { return pp_load_seq_cst(&self->parent.feeder) == pp_this_thread(); }

/* Whether the backlog was put as far as there is room; -1 with an exception. The arguments are those of `feed`. */
static int put_backlog(pp_channel_t *self, bool is_nested, int64_t until_ns) {
    if (!is_nested && until_ns < 0 && pp_channel_put_plain(self))
        return true;
    PyObject *put_waiting = pp_channel_put_waiting(self);
    if (put_waiting == NULL)
        return true;   /* the pool has ended meanwhile */
    PyObject *until = PyLong_FromLongLong(until_ns), *nested = is_nested ? Py_True : Py_False;
    PyObject *is_whole = until ? PyObject_CallFunctionObjArgs(put_waiting, nested, until, NULL) : NULL;
    Py_XDECREF(until);
    Py_DECREF(put_waiting);
    Py_XDECREF(is_whole);   /* a bool */
    return is_whole ? is_whole == Py_True : -1;
}

/* Code that pickling runs, or a signal handler during it, may use the pool. The thread that is putting then also puts
 * the new tasks. until_ns: a time to stop; then only tasks are put that need no pickling. -1: none. */
static int feed(pp_channel_t *self, int64_t until_ns) {
    pp_parent_t *h = &self->parent;
    bool is_nested = is_feeding(self);
    for (uintptr_t nobody = 0; pp_load_seq_cst(&h->must_feed) && self->put_waiting; nobody = 0) {
        if (!is_nested && !pp_cas_seq_cst(&h->feeder, &nobody, pp_this_thread())) {
            if (pp_load_seq_cst(&h->leading.leader) == nobody)   /* the leader is waiting within its put: it puts before it sleeps again */
                pp_parent_rouse_leader(h);
            return 0;
        }
        pp_store_seq_cst(&h->must_feed, 0);
        int is_whole = put_backlog(self, is_nested, until_ns);
        if (is_whole != true)
            pp_store_seq_cst(&h->must_feed, 1);
        pp_store_seq_cst(&h->must_pickle, until_ns >= 0 && is_whole != true);
        if (!is_nested)
            pp_store_seq_cst(&h->feeder, 0);
        if (is_whole != true) {
            pp_parent_notify(h);
            return is_whole;
        }
    }
    return 0;
}

const char pp_feed_doc[] = PyDoc_STR("feed()\n\n"
                                     "Puts the tasks in the backlog while there is room, unless another thread is putting\n"
                                     "them.");
PyObject *pp_channel_feed(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (feed(self, -1) < 0)
        return NULL;
    Py_RETURN_NONE;
}

const char pp_feed_again_doc[] = PyDoc_STR("feed_again()\n\nLike `feed`, but tries even if no worker has notified of room.");
PyObject *pp_channel_feed_again(pp_channel_t *self, PyObject *ignored) {
    pp_store_seq_cst(&self->parent.must_feed, 1);
    return pp_channel_feed(self, ignored);
}

/* A thread that waits with a timeout puts nothing that must be pickled, since that may take any time. Once it has left
 * such a task to the background thread, it tries again only after that one. But if code that pickling runs waits, no
 * other thread can put the task that it waits for. */
static int feed_as_leader(pp_channel_t *self, int64_t deadline_ns) {
    pp_parent_t *h = &self->parent;
    if (pp_parent_take_room(h))
        pp_store_seq_cst(&h->must_feed, 1);
    if (!pp_parent_wants_feed(h))
        return 0;
    if (deadline_ns < 0 || is_feeding(self))
        return feed(self, -1);
    return pp_load_seq_cst(&h->must_pickle) ? 0 : feed(self, deadline_ns);
}

/* ---- waiting ---- */

static bool is_met(pp_job_t *job) {
    if (pp_load_seq_cst(&job->done))
        return true;
    return job->kind == PP_JOB_STREAM && (pp_load_seq_cst(&job->settled) || pp_job_has_next(job));
}

/* A signal that another thread takes, or that comes between the last check and the sleep, wakes nobody. For Ctrl-C
 * interrupts.c closes that gap. For other signals the main thread wakes every HEARTBEAT_NS to check. */
static int64_t sleep_until(int64_t deadline_ns) {
    if (!pp_is_main_thread())
        return deadline_ns;
    int64_t next_ns = pp_now_ns() + HEARTBEAT_NS;
    return deadline_ns < 0 || next_ns < deadline_ns ? next_ns : deadline_ns;
}

static bool spin_for_news(pp_channel_t *self) {
    bool has_news, shares_gil = PP_HAS_GIL && self->by_reference;
    Py_BEGIN_ALLOW_THREADS
    pp_parent_let_go(&self->parent, true);
    has_news = pp_parent_spin(&self->parent);
    if (has_news && shares_gil)
        pp_parent_await_workers(&self->parent);
    pp_parent_let_go(&self->parent, false);
    Py_END_ALLOW_THREADS
    return has_news;
}

/* Sleeps, as leader. before: the bell as it was before the last check for signals. A Ctrl-C since then has changed it,
 * which prevents the sleep. */
static void wait_for_news(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns, uint32_t before) {
    bool patient = pp_parent_n_waiting(&self->parent) > PATIENT_MIN * self->segment->n_workers;
    if (!patient && spin_for_news(self))
        return;
    pp_watch_interrupts();
    pp_lead_for(&self->parent, job);   /* code that ran meanwhile may have waited for something else */
    if (is_met(job))
        return;
    Py_BEGIN_ALLOW_THREADS
    pp_parent_let_go(&self->parent, true);
    pp_parent_park(&self->parent, before, sleep_until(deadline_ns), patient);
    pp_parent_let_go(&self->parent, false);
    Py_END_ALLOW_THREADS
}

/* Takes the results that have come, or sleeps until something happens. 0, or -1 with an exception. */
static int lead(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns, uint32_t before) {
    if (pp_lead_is_claimed(&self->parent)) {
        pp_lead_release(&self->parent);
        return 0;
    }
    bool is_timed = deadline_ns >= 0;
    pp_lead_for(&self->parent, job);
    Py_ssize_t n = pp_channel_take_batch(self, is_timed ? job : NULL, deadline_ns);
    if (n < 0 || feed_as_leader(self, deadline_ns) < 0)
        return -1;
    if (n == 0 && pp_lead_is_mine(&self->parent) && !is_met(job))
        wait_for_news(self, job, deadline_ns, before);
    return 0;
}

/* Waits as a follower. Signal handlers run before the caller is listed, because nobody must hand it the lead while one
 * runs. */
static int follow(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns) {
    pp_waiter_t waiter = {0};
    pp_watch_interrupts();
    pp_sleep_on(&waiter.word);
    int failed = PyErr_CheckSignals();
    if (!failed && pp_follow_begin(&self->parent, &waiter, job)) {
        bool is_there = is_met(job);
        Py_BEGIN_ALLOW_THREADS
        if (!is_there)
            pp_follow_wait(&waiter, sleep_until(deadline_ns));
        pp_follow_end(&self->parent, &waiter);
        Py_END_ALLOW_THREADS
    }
    pp_sleep_on(NULL);
    return failed;
}

/* Runs the handlers of pending signals. 0, or -1 with what one raised. A handler may wait for a thread that itself
 * waits for a result, so the caller pauses its lead. From here on Ctrl-C changes the bell. */
static int run_handlers(pp_channel_t *self, _Atomic uint32_t *bell, uint32_t *before) {
    *before = pp_load_seq_cst(bell);
    if (!pp_is_main_thread())
        return 0;
    pp_sleep_on(bell);
    pp_lead_pause(&self->parent);
    return PyErr_CheckSignals();
}

/* The result of a wait that finds the channel closed: 1, or -1 with an exception. A pool decides all outcomes before it
 * closes its channel, so the caller checks once more. A callback that has ended the pool may still run: the outcome of
 * its call is there nevertheless, and nothing is left that this thread could sleep on. */
static int outcome_of_closed(pp_job_t *job) {
    if (is_met(job) || pp_load_seq_cst(&job->settled))
        return 1;
    pp_channel_raise_closed();
    return -1;
}

/* 1: the job is done, or a stream has a result; 0: the deadline has passed; -1: an exception. A thread that waits while
 * it is putting must lead, because no other thread can put the task that it waits for. */
static int wait_for(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns) {
    _Atomic uint32_t *bell = &self->segment->shared->bell;
    uint32_t before;
    int found = -2;
    for (bool has_looked = false; found == -2 && !is_met(job); has_looked = true) {
        if (pp_channel_is_closed(self)) {
            found = outcome_of_closed(job);
        } else if (has_looked && deadline_ns >= 0 && pp_now_ns() >= deadline_ns) {
            found = 0;
        } else if (run_handlers(self, bell, &before) < 0) {
            found = -1;
        } else if (!is_met(job)) {
            if (is_feeding(self) && !pp_lead_is_mine(&self->parent)) {
                Py_BEGIN_ALLOW_THREADS
                pp_lead_claim(&self->parent);
                Py_END_ALLOW_THREADS
            }
            int failed = pp_lead_try(&self->parent) ? lead(self, job, deadline_ns, before) : follow(self, job, deadline_ns);
            found = failed ? -1 : -2;
        }
    }
    pp_sleep_on(NULL);
    return found == -2 ? 1 : found;
}

const char pp_wait_doc[] = PyDoc_STR(
    "wait(job, timeout_s=None) -> bool\n\n"
    "Waits until a call is done, or until a stream has its next result or has ended. False after timeout_s, even if other\n"
    "results or calls arrive meanwhile. Runs signal handlers, and raises what they raise. Any thread may call it. It may\n"
    "also be called within another wait of the same thread, by a signal handler or by code that unpickling runs.");
PyObject *pp_channel_wait(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
    if (n < 1 || n > 2 || !PyObject_TypeCheck(args[0], self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "wait takes a Job, and perhaps a timeout");
        return NULL;
    }
    int64_t deadline_ns;
    if (pp_deadline_of(n == 2 ? args[1] : Py_None, &deadline_ns) < 0)
        return NULL;
    if (is_met((pp_job_t *)args[0]))
        Py_RETURN_TRUE;
    if (!pp_channel_enter(self))
        return outcome_of_closed((pp_job_t *)args[0]) < 0 ? NULL : Py_NewRef(Py_True);
    bool is_nested = pp_lead_is_mine(&self->parent);   /* called by a signal handler, or by other code that unpickling runs */
    int found = wait_for(self, (pp_job_t *)args[0], deadline_ns);
    if (!is_nested)
        pp_lead_release(&self->parent);
    pp_channel_leave(self);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

const char pp_next_doc[] = PyDoc_STR(
    "next(job, timeout_s=None) -> (status, value, index), None at the stream's end, or False after timeout_s\n\n"
    "Returns the next result of a stream, and the index of its task. -1: it is the failure of the whole stream.");
PyObject *pp_channel_next(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
    for (;;) {
        PyObject *met = pp_channel_wait(self, args, n);
        if (met == NULL || met == Py_False)
            return met;
        Py_DECREF(met);
        pp_job_t *job = (pp_job_t *)args[0];
        bool is_over = pp_load_seq_cst(&job->settled);
        PyObject *outcome = pp_job_pop(job);
        if (outcome == NULL && !PyErr_Occurred() && is_over)
            outcome = pp_job_pop_failure(job);
        if (outcome || PyErr_Occurred())
            return outcome;
        if (is_over)
            Py_RETURN_NONE;
    }
}

/* ---- the background thread ---- */

const char pp_wait_background_doc[] = PyDoc_STR(
    "wait_background(timeout_s=None)\n\n"
    "Sleeps until the background thread has something to do: it was notified, something happened to a worker, or results\n"
    "must be taken while no other thread waits for one.");
PyObject *pp_channel_wait_background(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
    int64_t deadline_ns;
    if (pp_deadline_of(n ? args[0] : Py_None, &deadline_ns) < 0)
        return NULL;
    if (!pp_channel_enter(self))
        return pp_channel_raise_closed();
    Py_BEGIN_ALLOW_THREADS
    pp_parent_wait_background(&self->parent, deadline_ns);
    Py_END_ALLOW_THREADS
    pp_channel_leave(self);
    Py_RETURN_NONE;
}

const char pp_take_doc[] = PyDoc_STR("take_results()\n\nTakes and delivers available results, unless another thread is doing so.");
PyObject *pp_channel_take_results(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    bool is_nested = pp_lead_is_mine(&self->parent);
    Py_ssize_t n = pp_channel_deliver_postponed(self) < 0 ? -1 : 1;
    while (n > 0 && pp_lead_try(&self->parent) && !pp_lead_is_claimed(&self->parent)) {
        n = pp_channel_take_batch(self, NULL, -1);
        if (n >= 0 && feed_as_leader(self, -1) < 0)
            n = -1;
    }
    if (!is_nested)
        pp_lead_release(&self->parent);
    if (n < 0)
        return NULL;
    Py_RETURN_NONE;
}
