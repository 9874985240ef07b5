/* Channel, continued: the table of calls. It admits calls, delivers outcomes, finishes calls and runs their callbacks.
 *
 * Every outcome (a value, an error, a loss, a cancellation) takes the same path: `deliver` for a task or `settle` for a
 * whole call; `complete` once a call has its outcome; `finish` once its callbacks have run.
 *
 * Each step is one C function that runs no Python code of the pool's. A Python signal handler, which may raise or use
 * the pool, therefore runs between two steps, never within one. The parts that remain in Python, feeding and the user's
 * unpickling, may be interrupted at any instruction: then the task is where it was before, and the background thread
 * continues.
 */
#include "python.h"

/* ---- the table ---- */

static int insert(pp_channel_t *self, pp_job_t *job, PyObject *entry) {
    job->id = ++self->last_job_id;
    PyObject *key = PyLong_FromUnsignedLongLong(job->id);
    int failed = key ? PyDict_SetItem(self->calls, key, (PyObject *)job) : -1;
    if (!failed && entry != Py_None) {
        PyObject *done = PyObject_CallOneArg(self->append, entry);
        if (done == NULL && PyDict_DelItem(self->calls, key) < 0)
            PyErr_WriteUnraisable((PyObject *)self);
        failed = done ? 0 : -1;
        Py_XDECREF(done);
    }
    if (failed)
        job->id = 0;
    Py_XDECREF(key);
    pp_job_rouse_reader(job);
    return failed;
}

const char pp_admit_doc[] = PyDoc_STR(
    "admit(job, entry, n_tasks) -> bool\n\n"
    "Enters a call in the table, and its tasks (None: none yet) in the backlog, or does neither. False: the table takes no\n"
    "more calls.");
PyObject *pp_channel_admit(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    PyObject *entry;
    unsigned long long n_tasks;
    if (!PyArg_ParseTuple(args, "O!OK", self->module->job_type, &job, &entry, &n_tasks))
        return NULL;
    int failed = 0;
    bool is_open;
    PP_LOCK(self);
    if ((is_open = !self->is_closing))
        failed = insert(self, job, entry);
    if (is_open && !failed)
        self->n_submitted += n_tasks;
    PP_UNLOCK(self);
    if (failed)
        return NULL;
    pp_store_seq_cst(&self->parent.must_feed, is_open && entry != Py_None ? 1 : pp_load_seq_cst(&self->parent.must_feed));
    return PyBool_FromLong(is_open);
}

static PyObject *append(pp_channel_t *self, PyObject *task) {
    PyObject *done = PyObject_CallOneArg(self->append, task);
    if (done)
        pp_store_seq_cst(&self->parent.must_feed, 1);
    return done;
}

static bool is_task(pp_channel_t *self, PyObject *entry) {
    if (PyObject_TypeCheck(entry, self->module->task_type))
        return true;
    PyErr_SetString(PyExc_TypeError, "only a Task can be enqueued");
    return false;
}

const char pp_enqueue_doc[] = PyDoc_STR("enqueue(task)\n\nAdds a new task of an admitted stream to the backlog.");
PyObject *pp_channel_enqueue(pp_channel_t *self, PyObject *entry) {
    if (!is_task(self, entry))
        return NULL;
    pp_channel_count(self, 1);   /* first: another thread may put it, and its result may come, at once */
    return append(self, entry);
}

const char pp_enqueue_again_doc[] = PyDoc_STR("enqueue_again(task)\n\n"
                                              "Adds a task of an admitted call to the backlog that was submitted before.");
PyObject *pp_channel_enqueue_again(pp_channel_t *self, PyObject *entry) {
    if (!is_task(self, entry))
        return NULL;
    pp_job_t *job = ((pp_pending_t *)entry)->job;
    Py_BEGIN_CRITICAL_SECTION(job);
    job->sequence = -1;   /* of a single call: its task is no longer in the channel */
    Py_END_CRITICAL_SECTION();
    return append(self, entry);
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

const char pp_close_calls_doc[] = PyDoc_STR("close_calls()\n\n"
                                            "Accepts no more calls. Once none is left, workers end, and `idle` is done.");
PyObject *pp_channel_close_calls(pp_channel_t *self, PyObject *ignored) {
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

const char pp_jobs_doc[] = PyDoc_STR("jobs() -> list\n\nReturns the calls in progress, oldest first.");
PyObject *pp_channel_jobs(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    return PyDict_Values(self->calls);
}

const char pp_counts_of_calls_doc[] = PyDoc_STR("call_counts() -> (n_submitted, n_pending, n_failed)\n\n"
                                                "Returns counts of tasks, all taken at the same moment.");
PyObject *pp_channel_call_counts(pp_channel_t *self, PyObject *ignored) {
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
    PyObject *function, *owner, *memo, *commons, *preludes;
    Py_BEGIN_CRITICAL_SECTION(job);
    function = job->function;
    owner = job->owner;
    memo = job->memo;
    commons = job->commons;
    preludes = job->preludes;
    job->function = job->owner = job->memo = job->commons = job->preludes = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(function);
    Py_XDECREF(memo);
    Py_XDECREF(commons);
    Py_XDECREF(preludes);
    Py_XDECREF(owner);   /* may be the last reference to a pool, whose finalizer then runs here */
}

/* References to shared memory are retained for tasks on their way. The thread that puts drops those of tasks that have
 * arrived. This requests it. */
static void unpin(pp_channel_t *self) {
    if (!pp_arena_has_pins(self->arena))
        return;
    pp_store_seq_cst(&self->parent.must_feed, 1);
    if (!pp_lead_is_mine(&self->parent))
        pp_parent_notify(&self->parent);
}

static void finish(pp_channel_t *self, pp_job_t *job) {
    Py_INCREF(job);
    bool is_last = remove_call(self, job);
    pp_channel_set_event(self, job);
    if (pp_channel_enter(self)) {
        if (is_last)
            note_idle(self);
        unpin(self);
        pp_channel_leave(self);
    }
    let_go(job);
    Py_DECREF(job);
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
 * pool waits for them. */
static void complete(pp_channel_t *self, pp_job_t *job) {
    if (job->callbacks == PP_CALLBACKS_AFTER)
        pp_channel_set_event(self, job);
    if (job->callbacks == PP_CALLBACKS_NONE)
        finish(self, job);
    else
        defer(self, job);
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
    } else if (delivery == PP_DELIVERED_NEXT) {
        pp_wake_waiters(&self->parent, job);
    }
}

const char pp_deliver_doc[] = PyDoc_STR("deliver(job, index, status, value)\n\nStores the outcome of a task.");
PyObject *pp_channel_deliver(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    unsigned index;
    int status;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "O!IiO", self->module->job_type, &job, &index, &status, &value))
        return NULL;
    pp_channel_deliver_outcome(self, job, index, status, value);
    Py_RETURN_NONE;
}

const char pp_refuse_doc[] = PyDoc_STR("refuse(task, error)\n\n"
                                       "Makes the error the outcome of a task that cannot be put, unless it has an outcome.");
PyObject *pp_channel_refuse(pp_channel_t *self, PyObject *args) {
    pp_pending_t *pending;
    PyObject *error;
    if (!PyArg_ParseTuple(args, "O!O", self->module->task_type, &pending, &error))
        return NULL;
    if (!pending->is_put) {
        pending->is_put = true;
        pp_channel_deliver_outcome(self, pending->job, pending->index, PP_STATUS_RAISED, error);
    }
    Py_RETURN_NONE;
}

const char pp_skip_doc[] = PyDoc_STR("skip(job, error)\n\n"
                                     "Makes the error the outcome of the task at a map's cursor, which cannot be put.");
PyObject *pp_channel_skip(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    PyObject *error;
    if (!PyArg_ParseTuple(args, "O!O", self->module->job_type, &job, &error))
        return NULL;
    pp_channel_deliver_outcome(self, job, (uint32_t)job->cursor++, PP_STATUS_RAISED, error);
    Py_RETURN_NONE;
}

const char pp_settle_doc[] = PyDoc_STR("settle(job, status, value) -> bool\n\n"
                                       "Stores the outcome of a whole call. False if it already had one.");
PyObject *pp_channel_settle(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    int status;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "O!iO", self->module->job_type, &job, &status, &value))
        return NULL;
    bool is_first = pp_job_settle(job, status, value);
    if (is_first) {
        if (status != PP_STATUS_OK) {
            pp_add_seq_cst(&self->n_failed, 1);
            pp_channel_count(self, job->id == 0);   /* a call that could not be admitted still counts as submitted */
        }
        complete(self, job);
        pp_wake_waiters(&self->parent, job);
    }
    return PyBool_FromLong(is_first);
}

const char pp_end_input_doc[] = PyDoc_STR("end_input(job, n_tasks, error=None)\n\n"
                                          "Notes that the input of a stream has ended after n_tasks tasks. error: what it raised;\n"
                                          "the consumer gets it after the outcomes of all tasks.");
PyObject *pp_channel_end_input(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    Py_ssize_t n_tasks;
    PyObject *error = Py_None;
    if (!PyArg_ParseTuple(args, "O!n|O", self->module->job_type, &job, &n_tasks, &error))
        return NULL;
    if (error != Py_None)
        pp_add_seq_cst(&self->n_failed, 1);
    if (pp_job_end_input(job, n_tasks, error == Py_None ? NULL : error)) {
        complete(self, job);
        pp_wake_waiters(&self->parent, job);
    }
    Py_RETURN_NONE;
}

/* Cancels a call that no worker has begun. A task in the backlog is put under the same critical section, so it is seen
 * either there or in the channel. */
static bool withdraw(pp_channel_t *self, pp_job_t *job) {
    bool is_ours;
    Py_BEGIN_CRITICAL_SECTION(job);
    is_ours = !job->settled && (job->sequence < 0 || pp_channel_revoke(self, (uint64_t)job->sequence));
    if (is_ours)
        pp_job_settle_held(job, PP_STATUS_CANCELLED, Py_None);
    Py_END_CRITICAL_SECTION();
    return is_ours;
}

const char pp_cancel_doc[] = PyDoc_STR("cancel(job) -> bool\n\n"
    "Cancels a single call that no worker has begun, or a map. Tasks of a map that workers have begun go on. Returns False\n"
    "if it is too late.");
PyObject *pp_channel_cancel(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be cancelled");
        return NULL;
    }
    pp_job_t *job = (pp_job_t *)arg;
    if (!withdraw(self, job))
        Py_RETURN_FALSE;
    if (job->kind == PP_JOB_MAP)
        pp_channel_revoke_all(self, job->id);
    complete(self, job);
    pp_store_seq_cst(&self->parent.must_feed, 1);   /* its slot is free for another task, and no worker will notify of that */
    pp_parent_notify(&self->parent);
    Py_RETURN_TRUE;
}

const char pp_set_doc[] = PyDoc_STR("set(event)\n\n"
                                    "Sets an event (a Job that is never admitted), and wakes all threads that wait for it.");
PyObject *pp_channel_set(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "an event is a Job");
        return NULL;
    }
    pp_channel_set_event(self, (pp_job_t *)arg);
    Py_RETURN_NONE;
}

/* ---- callbacks ---- */

const char pp_next_deferred_doc[] = PyDoc_STR(
    "next_deferred() -> Job or None\n\nWaits for a call whose callbacks the calling thread must run. None: no more will come.");
PyObject *pp_channel_next_deferred(pp_channel_t *self, PyObject *ignored) {
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

const char pp_run_deferred_doc[] = PyDoc_STR(
    "run_deferred(on) -> bool\n\n"
    "Notes that the calling thread runs callbacks from now on, or no longer. True if another thread must run some.");
PyObject *pp_channel_run_deferred(pp_channel_t *self, PyObject *on) {
    int is_on = PyObject_IsTrue(on);
    if (is_on < 0)
        return NULL;
    pp_store_seq_cst(&self->has_runner, (uint32_t)is_on);
    PP_LOCK(self);
    bool has_work = self->first_deferred != NULL;
    PP_UNLOCK(self);
    return PyBool_FromLong(has_work && !is_on);
}

const char pp_worker_deferred_doc[] = PyDoc_STR("end_deferred()\n\nNotes that no more calls with callbacks will come.");
PyObject *pp_channel_end_deferred(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_store_seq_cst(&self->has_no_deferred, 1);
    pp_add_seq_cst(&self->deferred_bell, 1);
    pp_futex_wake(&self->deferred_bell, INT32_MAX, UINT32_MAX);
    Py_RETURN_NONE;
}

const char pp_finish_doc[] = PyDoc_STR("finish(job)\n\nMarks a call as done, after its callbacks have run.");
PyObject *pp_channel_finish(pp_channel_t *self, PyObject *job) {
    if (!PyObject_TypeCheck(job, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be finished");
        return NULL;
    }
    finish(self, (pp_job_t *)job);
    Py_RETURN_NONE;
}
