/* Channel, continued: what waiting threads need of Python (`pp_hooks_t`), and waiting itself for Python code. Which thread
 * leads, what it takes, and when it sleeps is in native/channel/waiting.c.
 */
#include "python.h"

#include <stddef.h>

#define HEARTBEAT_NS 200000000   /* see prepare_sleep */

static pp_channel_t *channel_of(pp_parent_t *parent) { return (pp_channel_t *)((char *)parent - offsetof(pp_channel_t, parent)); }

static int put_backlog(pp_parent_t *parent, bool is_nested, int64_t until_ns) {
    pp_channel_t *self = channel_of(parent);
    if (!is_nested)
        pp_note_feeding(self);
    int is_whole = pp_channel_put_waiting(self, until_ns);
    if (!is_nested)
        pp_note_feeding(NULL);
    return is_whole;
}

static int take_and_deliver(pp_parent_t *parent, unsigned worker, const pp_frame_t *frame, pp_batch_t *batch) {
    return pp_channel_take_one(channel_of(parent), worker, frame, batch);
}

static void drop_cached(pp_batch_t *batch) { Py_XDECREF(batch->cached); }

static bool is_met(const void *awaited) {
    pp_job_t *job = (pp_job_t *)(uintptr_t)awaited;
    if (pp_load_seq_cst(&job->done))
        return true;
    return job->kind == PP_JOB_STREAM && (pp_load_seq_cst(&job->settled) || pp_job_has_next(job));
}

static bool is_over(pp_parent_t *parent) { return pp_channel_is_closed(channel_of(parent)); }

/* A handler may wait for a thread that itself waits for a result, so the caller pauses its lead. */
static int run_handlers(pp_parent_t *parent, _Atomic uint32_t *word) {
    if (!pp_is_main_thread())
        return 0;
    pp_sleep_on(word);
    if (word == NULL)
        return 0;
    pp_lead_pause(parent);
    return PyErr_CheckSignals();
}

/* A signal that another thread takes, or that comes between the last check and the sleep, wakes nobody. For Ctrl-C
 * interrupts.c closes that gap. For other signals the main thread wakes every HEARTBEAT_NS to check. */
static int64_t prepare_sleep(int64_t deadline_ns) {
    if (!pp_is_main_thread())
        return deadline_ns;
    pp_watch_interrupts();
    int64_t next_ns = pp_now_ns() + HEARTBEAT_NS;
    return deadline_ns < 0 || next_ns < deadline_ns ? next_ns : deadline_ns;
}

static void *let_go_of_gil(pp_parent_t *parent) {
    (void)parent;
    return PyEval_SaveThread();
}

static void take_gil_back(pp_parent_t *parent, void *state) {
    (void)parent;
    PyEval_RestoreThread(state);
}

const pp_hooks_t pp_channel_hooks = {
    .put = put_backlog,
    .take = take_and_deliver,
    .end_batch = drop_cached,
    .is_met = is_met,
    .is_closed = is_over,
    .run_handlers = run_handlers,
    .prepare_sleep = prepare_sleep,
    .let_go = let_go_of_gil,
    .take_back = take_gil_back,
};

PyDoc_STRVAR(feed_doc, "feed()\n\n"
                                     "Puts what waits while there is room, unless another thread is putting. For the\n"
                                     "background thread: it tries again if it was refused a task while no worker will tell\n"
                                     "when there is room.");
static PyObject *channel_feed(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (pp_swap_seq_cst(&self->must_retry, 0))
        pp_store_seq_cst(&self->parent.must_feed, 1);
    return pp_feed(&self->parent, -1) < 0 ? NULL : Py_NewRef(Py_None);
}

/* True: the call's outcome is there; NULL with an exception. A pool decides all outcomes before it closes its channel, so the
 * caller checks once more. A callback that has ended the pool may still run: the outcome of its call is there nevertheless,
 * and nothing is left that this thread could sleep on. */
static PyObject *outcome_of_closed(pp_job_t *job) {
    return is_met(job) || pp_load_seq_cst(&job->settled) ? Py_NewRef(Py_True) : pp_channel_raise_closed();
}

PyDoc_STRVAR(wait_doc,
    "wait(job, timeout_s=None) -> bool\n\n"
    "Waits until a call is done, or until a stream has its next result or has ended. False after timeout_s, even if other\n"
    "results or calls arrive meanwhile. Runs signal handlers, and raises what they raise. Any thread may call it. It may\n"
    "also be called within another wait of the same thread, by a signal handler or by code that unpickling runs.");
static PyObject *channel_wait(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
    if (n < 1 || n > 2 || !PyObject_TypeCheck(args[0], self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "wait takes a Job, and perhaps a timeout");
        return NULL;
    }
    pp_job_t *job = (pp_job_t *)args[0];
    int64_t deadline_ns;
    if (pp_deadline_of(n == 2 ? args[1] : Py_None, &deadline_ns) < 0)
        return NULL;
    if (is_met(job))
        Py_RETURN_TRUE;
    if (!pp_channel_enter(self))
        return outcome_of_closed(job);
    pp_channel_t *outer = pp_lead_begin(self);
    pp_waited_t found = pp_wait_for(&self->parent, job, deadline_ns);
    pp_lead_end(outer);
    pp_channel_leave(self);
    if (found == PP_WAIT_CLOSED)
        return outcome_of_closed(job);
    return found == PP_WAIT_FAILED ? NULL : PyBool_FromLong(found == PP_WAIT_MET);
}

PyDoc_STRVAR(next_doc,
    "next(job, timeout_s=None) -> (status, value, index), None at the stream's end, or False after timeout_s\n\n"
    "Returns the next result of a stream, and the index of its task. -1: it is the failure of the whole stream.");
static PyObject *channel_next(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
    for (;;) {
        PyObject *met = channel_wait(self, args, n);
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

PyDoc_STRVAR(wait_background_doc,
    "wait_background(timeout_s=None)\n\n"
    "Sleeps until the background thread has something to do: it was notified, something happened to a worker, or results\n"
    "must be taken while no other thread waits for one.");
static PyObject *channel_wait_background(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
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

PyDoc_STRVAR(take_doc, "take_results()\n\nTakes and delivers available results, unless another thread is doing so.");
static PyObject *channel_take_results(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_channel_t *outer = pp_lead_begin(self);
    int failed = pp_channel_deliver_postponed(self) < 0 || pp_take_results(&self->parent) < 0;
    pp_lead_end(outer);
    return failed ? NULL : Py_NewRef(Py_None);
}

GUARDED_QUIET(channel_feed, Py_None)
GUARDED(channel_take_results)

PyMethodDef pp_hooks_methods[] = {
    METHOD("feed", channel_feed, METH_NOARGS, feed_doc),
    {"wait", (PyCFunction)(void *)channel_wait, METH_FASTCALL, wait_doc},
    {"next", (PyCFunction)(void *)channel_next, METH_FASTCALL, next_doc},
    METHOD("take_results", channel_take_results, METH_NOARGS, take_doc),
    {"wait_background", (PyCFunction)(void *)channel_wait_background, METH_FASTCALL, wait_background_doc},
    {0},
};
