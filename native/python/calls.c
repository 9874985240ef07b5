/* Channel, continued: the table of calls. It admits calls, delivers outcomes, finishes calls and runs their callbacks.
 *
 * Every outcome (a value, an error, a loss, a cancellation) takes the same path: `deliver` for a task or `settle` for a
 * whole call; `complete` once a call has its outcome; `finish` once its callbacks have run.
 *
 * Each step is one C function that runs no Python code of the pool's. A Python signal handler, which may raise or use
 * the pool, therefore runs between two steps, never within one. Nor do finalizers: a step drops the user's objects last,
 * when the table is consistent and whoever must be woken was woken, since a finalizer may use the pool and wait for its
 * end. What runs the user's code, pickling and unpickling, may be interrupted there: then the task is where it was before,
 * and the background thread continues.
 */
#include "python.h"

/* ---- the table ---- */

/* Enters a call in the table, and what it wants put in the backlog, or does neither. entry: NULL, if there is nothing yet. 1; 0:
 * the table takes no more calls; -1: an exception. */
static int admit(pp_channel_t *self, pp_job_t *job, pp_entry_t *entry) {
    int admitted = 0;
    if (entry)
        pp_entry_tell(entry);
    PP_LOCK(self);
    if (!self->is_closing) {
        job->id = ++self->last_job_id;
        PyObject *key = PyLong_FromUnsignedLongLong(job->id);
        admitted = key && PyDict_SetItem(self->calls, key, (PyObject *)job) == 0 ? 1 : -1;
        Py_XDECREF(key);
    }
    if (admitted < 0)
        job->id = 0;
    if (admitted > 0 && entry) {
        pp_backlog_append(self, entry);
        self->n_submitted += (uint64_t)job->length;
    }
    PP_UNLOCK(self);
    if (admitted > 0) {
        pp_job_wake_reader(job);
        if (entry)
            pp_store_seq_cst(&self->parent.must_feed, 1);
    }
    return admitted;
}

PyDoc_STRVAR(admit_doc,
    "admit(job) -> bool\n\n"
    "Enters a call in the table whose tasks `enqueue` adds one by one. False: the table takes no more calls.");
static PyObject *channel_admit(pp_channel_t *self, PyObject *job) {
    if (!PyObject_TypeCheck(job, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be admitted");
        return NULL;
    }
    int admitted = admit(self, (pp_job_t *)job, NULL);
    return admitted < 0 ? NULL : PyBool_FromLong(admitted);
}

static pp_entry_t *as_entry(pp_channel_t *self, PyObject *object) {
    if (PyObject_TypeCheck(object, self->module->entry_type) && !((pp_entry_t *)object)->waits)
        return (pp_entry_t *)object;
    PyErr_SetString(PyExc_TypeError, "only an Entry can be put, once");
    return NULL;
}

PyDoc_STRVAR(submit_doc,
    "submit(entry) -> bool\n\n"
    "Enters a call in the table, together with what it wants put, and begins to put that. False: the table takes no more calls.\n"
    "After an exception, what was not put is withdrawn.");
static PyObject *channel_submit(pp_channel_t *self, PyObject *object) {
    pp_entry_t *entry = as_entry(self, object);
    if (entry == NULL)
        return NULL;
    pp_job_t *job = entry->job;
    pp_store_seq_cst(&job->submitter, pp_this_thread());
    int admitted = admit(self, job, entry);
    int failed = admitted > 0 ? pp_feed(&self->parent, -1) : 0;
    pp_store_seq_cst(&job->submitter, 0);
    if (failed) {
        PyObject *error = PyErr_GetRaisedException();
        pp_channel_settle_call(self, job, PP_STATUS_RAISED, error);
        PyErr_SetRaisedException(error);
    }
    return failed || admitted < 0 ? NULL : PyBool_FromLong(admitted);
}

static PyObject *enqueue(pp_channel_t *self, pp_entry_t *entry) {
    PP_LOCK(self);
    pp_backlog_append(self, entry);
    PP_UNLOCK(self);
    pp_store_seq_cst(&self->parent.must_feed, 1);
    return pp_feed(&self->parent, -1) < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(enqueue_doc, "enqueue(entry)\n\nAdds a new task of an admitted call to what waits, and begins to put it.");
static PyObject *channel_enqueue(pp_channel_t *self, PyObject *object) {
    pp_entry_t *entry = as_entry(self, object);
    if (entry == NULL)
        return NULL;
    pp_channel_count(self, 1);   /* first: another thread may put it, and its result may come, at once */
    return enqueue(self, entry);
}

PyDoc_STRVAR(enqueue_again_doc, "enqueue_again(entry)\n\nAs `enqueue`, for a task that was submitted before.");
static PyObject *channel_enqueue_again(pp_channel_t *self, PyObject *object) {
    pp_entry_t *entry = as_entry(self, object);
    if (entry == NULL)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(entry->job);
    entry->job->sequence = -1;   /* of a single call: its task is no longer in the channel */
    Py_END_CRITICAL_SECTION();
    return enqueue(self, entry);
}

void pp_channel_count(pp_channel_t *self, unsigned n_tasks) {
    PP_LOCK(self);
    self->n_submitted += n_tasks;
    PP_UNLOCK(self);
}

/* Removes a call from the table. True: it was the last that a closed pool waited for. */
static bool remove_call(pp_channel_t *self, pp_job_t *job) {
    PyObject *key = PyLong_FromUnsignedLongLong(job->id);
    bool is_last;
    PP_LOCK(self);
    if (key && PyDict_GetItemWithError(self->calls, key) == (PyObject *)job && PyDict_DelItem(self->calls, key) < 0)
        PyErr_WriteUnraisable((PyObject *)self);
    is_last = self->is_closing && PyDict_GET_SIZE(self->calls) == 0;
    PP_UNLOCK(self);
    Py_XDECREF(key);
    return is_last;
}

/* Called when a closed pool has no calls left: tells the workers to end, once, and the background thread to reap them.
 * `idle` is set first, so that a thread that notices a worker's end knows the reason and starts no other worker. */
static void note_idle(pp_channel_t *self) {
    if (pp_swap_seq_cst(&self->is_idle, 1))
        return;
    pp_channel_set_event(self, self->idle);
    pp_parent_stop(&self->parent, PP_DRAIN);
    pp_parent_notify(&self->parent);
}

PyDoc_STRVAR(close_calls_doc, "close_calls()\n\n"
                                            "Accepts no more calls. Once none is left, workers end, and `idle` is done.");
static PyObject *channel_close_calls(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    bool is_empty;
    PP_LOCK(self);
    self->is_closing = true;
    is_empty = PyDict_GET_SIZE(self->calls) == 0;
    PP_UNLOCK(self);
    if (is_empty && pp_channel_enter(self)) {
        note_idle(self);
        pp_channel_leave(self);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(jobs_doc, "jobs() -> list\n\nReturns the calls in progress, oldest first.");
static PyObject *channel_jobs(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    return PyDict_Values(self->calls);
}

PyDoc_STRVAR(counts_of_calls_doc, "call_counts() -> (n_submitted, n_pending, n_failed)\n\n"
                                                "Returns counts of tasks, all taken at the same moment.");
static PyObject *channel_call_counts(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    Py_ssize_t at = 0, n_pending = 0;
    PyObject *job;
    PP_LOCK(self);
    while (PyDict_Next(self->calls, &at, NULL, &job))
        n_pending += ((pp_job_t *)job)->remaining;
    unsigned long long n_submitted = self->n_submitted;
    PP_UNLOCK(self);
    return Py_BuildValue("KnK", n_submitted, n_pending, (unsigned long long)pp_load_relaxed(&self->n_failed));
}

/* ---- outcomes ---- */

void pp_channel_set_event(pp_channel_t *self, pp_job_t *event) {
    pp_store_seq_cst(&event->settled, 1);
    pp_store_seq_cst(&event->done, 1);
    if (pp_channel_enter_late(self)) {
        pp_wake_waiters(&self->parent, event);
        pp_channel_leave(self);
    }
}

static void let_go(pp_job_t *job) {
    PyObject *function, *owner, *called, *items, *memo, *commons, *preludes;
    Py_BEGIN_CRITICAL_SECTION(job);
    function = job->function;
    owner = job->owner;
    called = job->called;
    items = job->items;
    memo = job->memo;
    commons = job->commons;
    preludes = job->preludes;
    job->function = job->owner = job->called = job->items = job->memo = job->commons = job->preludes = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(function);
    Py_XDECREF(called);
    Py_XDECREF(items);
    Py_XDECREF(memo);
    Py_XDECREF(commons);
    Py_XDECREF(preludes);
    Py_XDECREF(owner);   /* may be the last reference to a pool, whose finalizer then runs here */
}

/* References to shared memory are retained for tasks on their way. The thread that puts drops those of tasks that have
 * arrived. This requests it. */
static void request_unpin(pp_channel_t *self) {
    if (!pp_arena_has_pins(self->arena))
        return;
    pp_store_seq_cst(&self->parent.must_feed, 1);
    if (!pp_lead_is_mine(&self->parent))
        pp_parent_notify(&self->parent);
}

/* Takes a call out of the table, and wakes whoever waits for that. `let_go` must follow, as the last thing. */
static void conclude(pp_channel_t *self, pp_job_t *job) {
    bool is_last = remove_call(self, job);
    pp_channel_set_event(self, job);
    if (pp_channel_enter(self)) {
        if (is_last)
            note_idle(self);
        request_unpin(self);
        pp_channel_leave(self);
    }
}

/* Queues a call for the callback thread. If there is none, the background thread starts it. */
static void defer(pp_channel_t *self, pp_job_t *job) {
    PP_LOCK(self);
    *(self->last_deferred ? &self->last_deferred->next_deferred : &self->first_deferred) = (pp_job_t *)Py_NewRef(job);
    self->last_deferred = job;
    PP_UNLOCK(self);
    pp_add_seq_cst(&self->deferred_bell, 1);
    pp_futex_wake(&self->deferred_bell, 1, UINT32_MAX);
    if (!pp_load_seq_cst(&self->has_runner))
        pp_parent_notify(&self->parent);
}

/* Ends a call whose outcome is decided. A call with callbacks stays in the table until they have run, so that joining a
 * pool waits for them. `let_go_of_done` must follow, as the last thing. */
static void complete(pp_channel_t *self, pp_job_t *job) {
    if (job->callbacks == PP_CALLBACKS_AFTER)
        pp_channel_set_event(self, job);
    if (job->callbacks == PP_CALLBACKS_NONE)
        conclude(self, job);
    else
        defer(self, job);
}

static void let_go_of_done(pp_job_t *job) {
    if (job->callbacks == PP_CALLBACKS_NONE)
        let_go(job);
}

void pp_channel_deliver_outcome(pp_channel_t *self, pp_job_t *job, uint32_t index, int status, PyObject *value) {
    bool has_failed = status != PP_STATUS_OK;
    if (has_failed)
        pp_add_seq_cst(&self->n_failed, 1);   /* before anybody can see the outcome */
    pp_delivery_t delivery = pp_job_deliver(job, index, status, value);
    if (delivery == PP_DELIVERED_LATE && has_failed)
        pp_add_seq_cst(&self->n_failed, -1);
    if (delivery == PP_DELIVERED_LAST) {
        complete(self, job);
        if (job->kind == PP_JOB_STREAM)
            pp_wake_waiters(&self->parent, job);
        let_go_of_done(job);
    } else if (delivery == PP_DELIVERED_NEXT) {
        pp_wake_waiters(&self->parent, job);
    }
}

PyDoc_STRVAR(deliver_doc, "deliver(job, index, status, value)\n\nStores the outcome of a task.");
static PyObject *channel_deliver(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    unsigned index;
    int status;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "O!IiO", self->module->job_type, &job, &index, &status, &value))
        return NULL;
    pp_channel_deliver_outcome(self, job, index, status, value);
    Py_RETURN_NONE;
}

bool pp_channel_settle_call(pp_channel_t *self, pp_job_t *job, int status, PyObject *value) {
    PyObject *replaced;
    bool is_first = pp_job_settle(job, status, value, &replaced);
    if (is_first) {
        if (status != PP_STATUS_OK) {
            pp_add_seq_cst(&self->n_failed, 1);
            pp_channel_count(self, job->id == 0);   /* a call that could not be admitted still counts as submitted */
        }
        complete(self, job);
        pp_wake_waiters(&self->parent, job);
        let_go_of_done(job);
    }
    Py_XDECREF(replaced);
    return is_first;
}

PyDoc_STRVAR(settle_doc, "settle(job, status, value) -> bool\n\n"
                                       "Stores the outcome of a whole call. False if it already had one.");
static PyObject *channel_settle(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    int status;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "O!iO", self->module->job_type, &job, &status, &value))
        return NULL;
    return PyBool_FromLong(pp_channel_settle_call(self, job, status, value));
}

PyDoc_STRVAR(end_input_doc, "end_input(job, n_tasks, n_missing=0, error=None)\n\n"
                                          "Notes that the input of a call has ended after n_tasks tasks, of which the last has\n"
                                          "n_missing items less than the others. error: what it raised; the call's user gets it\n"
                                          "after the outcomes of all tasks.");
static PyObject *channel_end_input(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    Py_ssize_t n_tasks, n_missing = 0;
    PyObject *error = Py_None;
    if (!PyArg_ParseTuple(args, "O!n|nO", self->module->job_type, &job, &n_tasks, &n_missing, &error))
        return NULL;
    if (error != Py_None)
        pp_add_seq_cst(&self->n_failed, 1);
    if (pp_job_end_input(job, n_tasks, n_missing, error == Py_None ? NULL : error)) {
        complete(self, job);
        pp_wake_waiters(&self->parent, job);
        let_go_of_done(job);
    }
    Py_RETURN_NONE;
}

/* Cancels a call that no worker has begun. A task in the backlog is put under the same critical section, so it is seen
 * either there or in the channel: then it is moved to `slot`. */
static bool withdraw(pp_channel_t *self, pp_job_t *job, pp_slot_t *slot, bool *has_slot, PyObject **replaced) {
    bool is_ours;
    Py_BEGIN_CRITICAL_SECTION(job);
    *has_slot = job->sequence >= 0;
    is_ours = !job->settled && (!*has_slot || pp_parent_revoke(&self->parent, (uint64_t)job->sequence, slot));
    if (is_ours)
        pp_job_settle_held(job, PP_STATUS_CANCELLED, Py_None, replaced);
    Py_END_CRITICAL_SECTION();
    pp_job_wake_reader(job);
    return is_ours;
}

PyDoc_STRVAR(cancel_doc, "cancel(job) -> bool\n\n"
    "Cancels a single call that no worker has begun, or a map. Tasks of a map that workers have begun go on. Returns False\n"
    "if it is too late.");
static PyObject *channel_cancel(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be cancelled");
        return NULL;
    }
    pp_job_t *job = (pp_job_t *)arg;
    pp_slot_t slot;
    bool has_slot;
    PyObject *replaced, *held;
    if (!withdraw(self, job, &slot, &has_slot, &replaced))
        Py_RETURN_FALSE;
    held = job->kind == PP_JOB_MAP ? pp_channel_revoke_all(self, job->id) : NULL;
    complete(self, job);
    pp_store_seq_cst(&self->parent.must_feed, 1);   /* its slot is free for another task, and no worker will notify of that */
    pp_parent_notify(&self->parent);
    if (has_slot)
        pp_channel_drop_slot(self, &slot);
    Py_XDECREF(held);
    Py_XDECREF(replaced);
    let_go_of_done(job);
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(set_doc, "set(event)\n\n"
                                    "Sets an event (a Job that is never admitted), and wakes all threads that wait for it.");
static PyObject *channel_set(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "an event is a Job");
        return NULL;
    }
    pp_channel_set_event(self, (pp_job_t *)arg);
    Py_RETURN_NONE;
}

/* ---- callbacks ---- */

PyDoc_STRVAR(next_deferred_doc,
    "next_deferred() -> Job or None\n\nWaits for a call whose callbacks the calling thread must run. None: no more will come.");
static PyObject *channel_next_deferred(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    for (;;) {
        uint32_t seen = pp_load_seq_cst(&self->deferred_bell);
        PP_LOCK(self);
        pp_job_t *job = self->first_deferred;
        if (job) {
            self->first_deferred = job->next_deferred;
            job->next_deferred = NULL;
            if (self->first_deferred == NULL)
                self->last_deferred = NULL;
        }
        PP_UNLOCK(self);
        if (job)
            return (PyObject *)job;
        if (pp_load_seq_cst(&self->has_no_deferred))
            Py_RETURN_NONE;
        Py_BEGIN_ALLOW_THREADS
        pp_futex_wait(&self->deferred_bell, seen, -1, UINT32_MAX);
        Py_END_ALLOW_THREADS
    }
}

PyDoc_STRVAR(run_deferred_doc,
    "run_deferred(on) -> bool\n\n"
    "Notes that the calling thread runs callbacks from now on, or no longer. True if another thread must run some.");
static PyObject *channel_run_deferred(pp_channel_t *self, PyObject *on) {
    int is_on = PyObject_IsTrue(on);
    if (is_on < 0)
        return NULL;
    pp_store_seq_cst(&self->has_runner, (uint32_t)is_on);
    PP_LOCK(self);
    bool has_work = self->first_deferred != NULL;
    PP_UNLOCK(self);
    return PyBool_FromLong(has_work && !is_on);
}

PyDoc_STRVAR(worker_deferred_doc, "end_deferred()\n\nNotes that no more calls with callbacks will come.");
static PyObject *channel_end_deferred(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_store_seq_cst(&self->has_no_deferred, 1);
    pp_add_seq_cst(&self->deferred_bell, 1);
    pp_futex_wake(&self->deferred_bell, INT32_MAX, UINT32_MAX);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(finish_doc, "finish(job)\n\nMarks a call as done, after its callbacks have run.");
static PyObject *channel_finish(pp_channel_t *self, PyObject *job) {
    if (!PyObject_TypeCheck(job, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be finished");
        return NULL;
    }
    conclude(self, (pp_job_t *)job);
    let_go((pp_job_t *)job);
    Py_RETURN_NONE;
}

GUARDED_QUIET(channel_admit, Py_False)
GUARDED_QUIET(channel_submit, Py_False)
GUARDED_QUIET(channel_enqueue, Py_None)
GUARDED_QUIET(channel_enqueue_again, Py_None)
GUARDED_QUIET(channel_deliver, Py_None)
GUARDED_QUIET(channel_settle, Py_False)
GUARDED_QUIET(channel_end_input, Py_None)
GUARDED_QUIET(channel_cancel, Py_False)

PyMethodDef pp_calls_methods[] = {
    METHOD("admit", channel_admit, METH_O, admit_doc),
    METHOD("submit", channel_submit, METH_O, submit_doc),
    METHOD("enqueue", channel_enqueue, METH_O, enqueue_doc),
    METHOD("enqueue_again", channel_enqueue_again, METH_O, enqueue_again_doc),
    METHOD("deliver", channel_deliver, METH_VARARGS, deliver_doc),
    METHOD("settle", channel_settle, METH_VARARGS, settle_doc),
    METHOD("end_input", channel_end_input, METH_VARARGS, end_input_doc),
    METHOD("cancel", channel_cancel, METH_O, cancel_doc),
    {"finish", (PyCFunction)(void *)channel_finish, METH_O, finish_doc},
    {"set", (PyCFunction)(void *)channel_set, METH_O, set_doc},
    {"close_calls", (PyCFunction)(void *)channel_close_calls, METH_NOARGS, close_calls_doc},
    {"jobs", (PyCFunction)(void *)channel_jobs, METH_NOARGS, jobs_doc},
    {"call_counts", (PyCFunction)(void *)channel_call_counts, METH_NOARGS, counts_of_calls_doc},
    {"next_deferred", (PyCFunction)(void *)channel_next_deferred, METH_NOARGS, next_deferred_doc},
    {"end_deferred", (PyCFunction)(void *)channel_end_deferred, METH_NOARGS, worker_deferred_doc},
    {"run_deferred", (PyCFunction)(void *)channel_run_deferred, METH_O, run_deferred_doc},
    {0},
};
