/* Channel, continued: the table of calls. Calls are admitted, outcomes delivered, calls finished, and threads wait for them.
 *
 * An outcome has one way back, whatever it is (a value, an error, a loss, a cancellation): `deliver` for a task, `settle`
 * for a whole call; `complete` once a call has its outcome; `finish` once its callbacks have run.
 *
 * Each step is one C function that runs no Python code of the pool's own. So a signal handler of Python's, which may raise
 * or use the pool, comes between two steps and never amid one. What is left in Python, feeding and the user's unpickling,
 * may be broken off at any instruction: the task then is where it was before, and the background thread goes on.
 */
#include "python.h"

#include <errno.h>

#define PATIENT_MIN 4u      /* tasks that wait, for each worker, from which on the leader lets results gather */
#define BATCH 256           /* results, at most, between two looks at the clock, at signals and at claims of the lead */
#define HEARTBEAT_NS 200000000   /* see pp_sleep_until */

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
    "Enters a call in the table, and what it wants put (None: nothing yet) in the backlog, or does neither; False: the table\n"
    "takes no more calls.");
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
    pp_store_seq_cst(&self->hub.must_feed, is_open && entry != Py_None ? 1 : pp_load_seq_cst(&self->hub.must_feed));
    return PyBool_FromLong(is_open);
}

const char pp_enqueue_doc[] = PyDoc_STR("enqueue(task)\n\nOne more task of an admitted stream.");
PyObject *pp_channel_enqueue(pp_channel_t *self, PyObject *entry) {
    PyObject *done = PyObject_CallOneArg(self->append, entry);
    if (done == NULL)
        return NULL;
    pp_channel_count(self, 1);
    pp_store_seq_cst(&self->hub.must_feed, 1);
    return done;
}

void pp_channel_count(pp_channel_t *self, unsigned n_tasks) {
    PP_LOCK(self);
    self->n_submitted += n_tasks;
    PP_UNLOCK(self);
}

/* Removes a call from the table; true if it was the last that a closed pool waited for. */
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

/* A closed pool has no calls left: once, tells the workers to end and the background thread to see to that. */
static void note_idle(pp_channel_t *self) {
    if (pp_swap_seq_cst(&self->is_idle, 1))
        return;
    pp_hub_stop(&self->hub, PP_DRAIN);
    pp_channel_open_ticket(self, self->idle);
    pp_hub_summon(&self->hub);
}

const char pp_close_calls_doc[] = PyDoc_STR("close_calls()\n\nTakes no more calls. Workers end, and `idle` is done, once none is left.");
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

const char pp_jobs_doc[] = PyDoc_STR("jobs() -> list\n\nThe calls in progress, oldest first.");
PyObject *pp_channel_jobs(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    return PyDict_Values(self->calls);
}

const char pp_counts_of_calls_doc[] = PyDoc_STR("call_counts() -> (n_submitted, n_pending, n_failed)\n\nTasks, at one moment.");
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

void pp_channel_open_ticket(pp_channel_t *self, pp_job_t *ticket) {
    pp_store_seq_cst(&ticket->settled, 1);
    pp_store_seq_cst(&ticket->done, 1);
    if (pp_channel_enter_late(self)) {
        pp_wake_waiters(&self->hub, ticket);
        pp_channel_leave(self);
    }
}

static void let_go(pp_job_t *job) {
    PyObject *function, *owner;
    Py_BEGIN_CRITICAL_SECTION(job);
    function = job->function;
    owner = job->owner;
    job->function = job->owner = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(function);
    Py_XDECREF(owner);   /* perhaps a pool that nobody else has: its finalizer runs here */
}

/* References to shared memory are retained for tasks on their way. Whoever puts drops those that have arrived: asks for it. */
static void unpin(pp_channel_t *self) {
    if (!pp_arena_has_pins(self->arena))
        return;
    pp_store_seq_cst(&self->hub.must_feed, 1);
    if (!pp_lead_is_mine(&self->hub))
        pp_hub_summon(&self->hub);
}

static void finish(pp_channel_t *self, pp_job_t *job) {
    Py_INCREF(job);
    bool is_last = remove_call(self, job);
    pp_channel_open_ticket(self, job);
    if (pp_channel_enter(self)) {
        if (is_last)
            note_idle(self);
        unpin(self);
        pp_channel_leave(self);
    }
    let_go(job);
    Py_DECREF(job);
}

/* Queues a call for the thread of callbacks; if there is none, the background thread starts it. */
static void defer(pp_channel_t *self, pp_job_t *job) {
    PP_LOCK(self);
    *(self->last_deferred ? &self->last_deferred->next_deferred : &self->first_deferred) = (pp_job_t *)Py_NewRef(job);
    self->last_deferred = job;
    PP_UNLOCK(self);
    pp_add_seq_cst(&self->deferred_bell, 1);
    pp_futex_wake(&self->deferred_bell, 1, UINT32_MAX);
    if (!pp_load_seq_cst(&self->has_runner))
        pp_hub_summon(&self->hub);
}

/* A call with callbacks stays in the table until they have run, so that a pool that is joined waits for them. */
static void complete(pp_channel_t *self, pp_job_t *job) {
    if (job->callbacks == PP_CALLBACKS_AFTER)
        pp_channel_open_ticket(self, job);
    if (job->callbacks == PP_CALLBACKS_NONE)
        finish(self, job);
    else
        defer(self, job);
}

void pp_channel_deliver_outcome(pp_channel_t *self, pp_job_t *job, uint32_t index, int status, PyObject *value) {
    if (status != PP_STATUS_OK)
        pp_add_seq_cst(&self->n_failed, 1);
    pp_delivery_t delivery = pp_job_deliver(job, index, status, value);
    if (delivery == PP_DELIVERED_LAST) {
        complete(self, job);
        if (job->kind == PP_JOB_STREAM)
            pp_wake_waiters(&self->hub, job);
    } else if (delivery == PP_DELIVERED_NEXT) {
        pp_wake_waiters(&self->hub, job);
    }
}

const char pp_deliver_doc[] = PyDoc_STR("deliver(job, index, status, value)\n\nThe outcome of a task.");
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

const char pp_refuse_doc[] = PyDoc_STR("refuse(task, error)\n\nA task that cannot be put: the error is its outcome, once.");
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

const char pp_skip_doc[] = PyDoc_STR("skip(job, error)\n\nThe task at the cursor of a map cannot be put: the error is its outcome.");
PyObject *pp_channel_skip(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    PyObject *error;
    if (!PyArg_ParseTuple(args, "O!O", self->module->job_type, &job, &error))
        return NULL;
    pp_channel_deliver_outcome(self, job, (uint32_t)job->cursor++, PP_STATUS_RAISED, error);
    Py_RETURN_NONE;
}

const char pp_settle_doc[] = PyDoc_STR("settle(job, status, value) -> bool\n\nThe outcome of a whole call; False if it had one.");
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
            pp_channel_count(self, job->id == 0);   /* one that could not even be admitted counts as submitted */
        }
        complete(self, job);
        pp_wake_waiters(&self->hub, job);
    }
    return PyBool_FromLong(is_first);
}

const char pp_end_input_doc[] = PyDoc_STR("end_input(job, n_tasks)\n\nThe input of a stream has ended.");
PyObject *pp_channel_end_input(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    Py_ssize_t n_tasks;
    if (!PyArg_ParseTuple(args, "O!n", self->module->job_type, &job, &n_tasks))
        return NULL;
    if (pp_job_end_input(job, n_tasks)) {
        complete(self, job);
        pp_wake_waiters(&self->hub, job);
    }
    Py_RETURN_NONE;
}

/* A task in the backlog is put under the same critical section: it is seen either there or in the channel. */
static bool withdraw(pp_channel_t *self, pp_job_t *job) {
    bool is_ours;
    Py_BEGIN_CRITICAL_SECTION(job);
    is_ours = !job->settled && (job->sequence < 0 || pp_channel_revoke(self, (uint64_t)job->sequence));
    if (is_ours)
        pp_job_settle_held(job, PP_STATUS_CANCELLED, Py_None);
    Py_END_CRITICAL_SECTION();
    return is_ours;
}

const char pp_cancel_doc[] = PyDoc_STR("cancel(job) -> bool\n\nTakes back a single call that no worker has begun.");
PyObject *pp_channel_cancel(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be cancelled");
        return NULL;
    }
    pp_job_t *job = (pp_job_t *)arg;
    if (!withdraw(self, job))
        Py_RETURN_FALSE;
    complete(self, job);
    pp_store_seq_cst(&self->hub.must_feed, 1);   /* its slot is free for another, and no worker will say so */
    pp_hub_summon(&self->hub);
    Py_RETURN_TRUE;
}

const char pp_open_doc[] = PyDoc_STR("open(ticket)\n\nSets an event, which is a Job that is never admitted: wakes whoever waits for it.");
PyObject *pp_channel_open(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "a ticket is a Job");
        return NULL;
    }
    pp_channel_open_ticket(self, (pp_job_t *)arg);
    Py_RETURN_NONE;
}

/* ---- callbacks ---- */

const char pp_next_deferred_doc[] = PyDoc_STR(
    "next_deferred() -> Job or None\n\nWaits for a call whose callbacks are to be run, by the calling thread; None: there will be none.");
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
    "A thread runs callbacks from now on, or no longer; True if there are some to be run by another one.");
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

const char pp_end_deferred_doc[] = PyDoc_STR("end_deferred()\n\nThere will be no more calls with callbacks.");
PyObject *pp_channel_end_deferred(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_store_seq_cst(&self->has_no_deferred, 1);
    pp_add_seq_cst(&self->deferred_bell, 1);
    pp_futex_wake(&self->deferred_bell, INT32_MAX, UINT32_MAX);
    Py_RETURN_NONE;
}

const char pp_finish_doc[] = PyDoc_STR("finish(job)\n\nA call's callbacks have run: it is done.");
PyObject *pp_channel_finish(pp_channel_t *self, PyObject *job) {
    if (!PyObject_TypeCheck(job, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be finished");
        return NULL;
    }
    finish(self, (pp_job_t *)job);
    Py_RETURN_NONE;
}

/* ---- taking results, as leader ---- */

typedef struct {
    uint64_t job;
    uint32_t index;
    uint16_t status;
    bool is_in_block;
    unsigned lane;
    pp_blockref_t block;
    PyObject *payload;     /* or the value, by reference; NULL if it is in a block */
} result_t;

typedef struct pp_postponed {   /* a result whose value the background thread is to make */
    struct pp_postponed *next;
    result_t result;
    PyObject *job;
} postponed_t;

typedef struct {
    Py_ssize_t n;
    int64_t deadline_ns;
} batch_t;

/* Without memory for the payload it is NULL, with an exception: that is the task's outcome, then. A block is marked as
 * kept, so that it stays even if its worker is reaped while it is decoded. */
static void take_result(pp_channel_t *self, unsigned lane, const pp_frame_t *frame, result_t *r) {
    *r = (result_t){.job = frame->job, .index = frame->index, .status = frame->status, .lane = lane};
    const void *data = frame + 1;
    if (self->by_reference) {
        r->payload = *(PyObject *const *)data;
    } else if (frame->where == PP_IN_BLOCK) {
        r->is_in_block = true;
        r->block = *(const pp_blockref_t *)data;
        pp_store_seq_cst(&pp_segment_flags(self->segment, 1 + lane)->in_use[r->block.id], PP_KEPT);
    } else {
        r->payload = PyBytes_FromStringAndSize(data, frame->size);
    }
    pp_hub_take(&self->hub, lane, frame);
    self->n_taken++;
}

static void drop_block(pp_channel_t *self, result_t *r) {
    if (r->is_in_block)
        pp_block_release(self->segment, 1 + r->lane, r->block.id);
    r->is_in_block = false;
}

/* The value, or NULL with an exception; the block is still there then, unless a part of what was made of it keeps it. */
static PyObject *decode(pp_channel_t *self, result_t *r) {
    if (self->by_reference)
        return Py_XNewRef(r->payload);
    if (!r->is_in_block)
        return r->payload ? pp_decode_bytes(self->module, PyBytes_AS_STRING(r->payload), PyBytes_GET_SIZE(r->payload)) : NULL;
    bool is_kept = false;
    PyObject *value = pp_read_block(self->module, self->segment, 1 + r->lane, &r->block, PP_KEPT, &is_kept);
    r->is_in_block = !is_kept;
    return value;
}

/* The value, or NULL with the exception that is the outcome of the task. In the main thread a signal handler may have broken
 * the unpickling off: a second try succeeds then, and what the handler raised is `interrupt`, for our caller. */
static PyObject *decode_twice(pp_channel_t *self, result_t *r, PyObject **interrupt) {
    PyObject *value = decode(self, r);
    if (value || !(r->payload || r->is_in_block) || !pp_is_main_thread())
        return value;
    PyObject *error = PyErr_GetRaisedException();
    if ((value = decode(self, r)) != NULL)
        *interrupt = error;
    else
        Py_DECREF(error);
    return value;
}

static int report_broken(pp_channel_t *self, PyObject *value) {
    int failed = PyList_Append(self->reports, value);
    pp_announce(self->segment->shared);
    return failed;
}

/* 0, or -1 with what a signal handler raised meanwhile. */
static int hand_over(pp_channel_t *self, PyObject *job, result_t *r) {
    PyObject *interrupt = NULL, *value = decode_twice(self, r, &interrupt);
    int status = r->status;
    if (value == NULL) {
        status = PP_STATUS_UNDECODABLE;
        value = PyErr_GetRaisedException();
    }
    int failed = 0;
    if (r->job == 0)
        failed = report_broken(self, value);
    else if (job)
        pp_channel_deliver_outcome(self, (pp_job_t *)job, r->index, status, value);
    Py_DECREF(value);
    if (interrupt)
        PyErr_SetRaisedException(interrupt);
    return interrupt || failed ? -1 : 0;
}

/* The job of a result, or NULL if nobody waits for it any more. */
static PyObject *find_job(pp_channel_t *self, uint64_t id, PyObject **cached) {
    if (*cached && ((pp_job_t *)*cached)->id == id)
        return *cached;
    PyObject *key = PyLong_FromUnsignedLongLong(id), *job = NULL;
    PP_LOCK(self);
    job = key ? Py_XNewRef(PyDict_GetItemWithError(self->calls, key)) : NULL;
    PP_UNLOCK(self);
    Py_XDECREF(key);
    Py_XSETREF(*cached, job);
    return job;
}

/* Whether its value is made by code that may take its time: that of a class, or a copy of much memory. */
static bool is_slow(pp_channel_t *self, const result_t *r) {
    enum { PICKLE_START = 0x80 };   /* as in codec.c */
    if (self->by_reference || r->is_in_block)
        return r->is_in_block;
    return r->payload && PyBytes_GET_SIZE(r->payload) > 0 && (unsigned char)PyBytes_AS_STRING(r->payload)[0] == PICKLE_START;
}

/* For the background thread. False: there is no memory for that. */
static bool postpone(pp_channel_t *self, PyObject *job, const result_t *r) {
    postponed_t *later = PyMem_Malloc(sizeof *later);
    if (later == NULL)
        return false;
    *later = (postponed_t){.result = *r, .job = Py_NewRef(job)};
    PP_LOCK(self);
    *(self->last_postponed ? &self->last_postponed->next : &self->first_postponed) = later;
    self->last_postponed = later;
    PP_UNLOCK(self);
    pp_hub_summon(&self->hub);
    return true;
}

static postponed_t *next_postponed(pp_channel_t *self) {
    PP_LOCK(self);
    postponed_t *first = self->first_postponed;
    if (first && (self->first_postponed = first->next) == NULL)
        self->last_postponed = NULL;
    PP_UNLOCK(self);
    return first;
}

static void drop_result(pp_channel_t *self, result_t *r) {
    drop_block(self, r);
    Py_XDECREF(r->payload);
}

static int deliver_postponed(pp_channel_t *self) {
    int failed = 0;
    for (postponed_t *later; !failed && (later = next_postponed(self)) != NULL;) {
        failed = hand_over(self, later->job, &later->result);
        drop_result(self, &later->result);
        Py_DECREF(later->job);
        PyMem_Free(later);
    }
    return failed;
}

/* The memory of blocks goes with the segment. */
void pp_channel_drop_postponed(pp_channel_t *self) {
    for (postponed_t *later; (later = next_postponed(self)) != NULL;) {
        Py_XDECREF(later->result.payload);
        Py_DECREF(later->job);
        PyMem_Free(later);
    }
}

/* Takes one result. `alone_for`: the caller waits for this call with a timeout, and leaves others' slow results to the background
 * thread; or NULL. Returns 0, or -1 with an exception for the caller. */
static int take_one(pp_channel_t *self, unsigned lane, const pp_frame_t *frame, PyObject **cached, const pp_job_t *alone_for) {
    result_t r;
    take_result(self, lane, frame, &r);
    PyObject *no_memory = PyErr_GetRaisedException();
    PyObject *job = r.job ? find_job(self, r.job, cached) : NULL;
    if (no_memory)
        PyErr_SetRaisedException(no_memory);
    if (job && alone_for && job != (const PyObject *)alone_for && is_slow(self, &r) && postpone(self, job, &r))
        return 0;
    int failed = 0;
    if (job || r.job == 0)
        failed = hand_over(self, job, &r);
    else
        PyErr_Clear();
    drop_result(self, &r);
    return failed;
}

static bool is_over(const batch_t *b) {
    return b->n >= BATCH || (b->deadline_ns >= 0 && pp_now_ns() >= b->deadline_ns);
}

/* A batch of results, from all workers in turn; their number, or -1. Code that unpickling runs may itself wait for a result, and hand
 * the lead over: then the batch ends. */
static Py_ssize_t take_batch(pp_channel_t *self, const pp_job_t *alone_for, int64_t deadline_ns) {
    batch_t b = {.deadline_ns = deadline_ns};
    PyObject *cached = NULL;
    int failed = 0;
    unsigned n_lanes = self->segment->shared->n_lanes;
    bool is_ended = false;
    for (unsigned i = 0; !failed && !is_ended && i < n_lanes; i++) {
        unsigned lane = self->next_lane;
        for (const pp_frame_t *f; !failed && !is_ended && (f = pp_hub_peek(&self->hub, lane)) != NULL;) {
            failed = take_one(self, lane, f, &cached, alone_for);
            b.n++;
            is_ended = is_over(&b) || !pp_lead_is_mine(&self->hub);
        }
        if (!is_ended)
            self->next_lane = (lane + 1) % n_lanes;
    }
    Py_XDECREF(cached);
    return failed ? -1 : b.n;
}

/* ---- feeding ---- */

/* Whoever finds that tasks wait to be put, and that nobody puts, does it. No request is lost between two threads: one stores
 * `must_feed`, then reads `feeder`; the other clears `feeder`, then reads `must_feed`; so one sees what the other stored. If an
 * exception breaks putting off, the background thread goes on. */
static bool is_feeding(pp_channel_t *self) { return pp_load_seq_cst(&self->hub.feeder) == pp_this_thread(); }

/* Code that pickling runs, or a signal handler amid it, may use the pool: the thread that puts then puts for itself, too. */
static int feed(pp_channel_t *self) {
    pp_hub_t *h = &self->hub;
    bool is_nested = is_feeding(self);
    for (uintptr_t nobody = 0; pp_load_seq_cst(&h->must_feed) && self->put_waiting; nobody = 0) {
        if (!is_nested && !pp_cas_seq_cst(&h->feeder, &nobody, pp_this_thread())) {
            if (pp_load_seq_cst(&h->leading.leader) == nobody)   /* who puts may wait amid that: it puts before it sleeps again */
                pp_hub_rouse_leader(h);
            return 0;
        }
        pp_store_seq_cst(&h->must_feed, 0);
        PyObject *put_waiting = Py_XNewRef(self->put_waiting), *done = put_waiting ? PyObject_CallNoArgs(put_waiting) : NULL;
        Py_XDECREF(put_waiting);
        if (done == NULL)
            pp_store_seq_cst(&h->must_feed, 1);
        if (!is_nested)
            pp_store_seq_cst(&h->feeder, 0);
        if (done == NULL) {
            pp_hub_summon(h);
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

const char pp_feed_doc[] = PyDoc_STR("feed()\n\nPuts what waits in the backlog while there is room, unless another thread is doing that.");
PyObject *pp_channel_feed(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (feed(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

const char pp_feed_again_doc[] = PyDoc_STR("feed_again()\n\nAs `feed`, though nobody has said that there is room.");
PyObject *pp_channel_feed_again(pp_channel_t *self, PyObject *ignored) {
    pp_store_seq_cst(&self->hub.must_feed, 1);
    return pp_channel_feed(self, ignored);
}

/* A thread that waits with a timeout does not put, since pickling other calls' arguments may take any time. */
static int feed_as_leader(pp_channel_t *self, bool is_timed) {
    pp_hub_t *h = &self->hub;
    if (pp_hub_take_room(h))
        pp_store_seq_cst(&h->must_feed, 1);
    if (!pp_hub_wants_feed(h))
        return 0;
    if (!is_timed || is_feeding(self))
        return feed(self);
    if (pp_load_seq_cst(&h->summons) == 0)
        pp_hub_summon(h);
    return 0;
}

/* ---- waiting ---- */

static bool is_met(pp_job_t *job) {
    if (pp_load_seq_cst(&job->done))
        return true;
    return job->kind == PP_JOB_STREAM && (pp_load_seq_cst(&job->settled) || pp_job_has_next(job));
}

/* A signal that another thread of the process takes, or that comes between the last look and the sleep, wakes nobody. For
 * Ctrl-C interrupts.c closes that gap; for all others the main thread looks now and then. */
static int64_t sleep_until(int64_t deadline_ns) {
    if (!pp_is_main_thread())
        return deadline_ns;
    int64_t next_ns = pp_now_ns() + HEARTBEAT_NS;
    return deadline_ns < 0 || next_ns < deadline_ns ? next_ns : deadline_ns;
}

static bool spin_for_news(pp_channel_t *self) {
    bool has_news, shares_gil = PP_HAS_GIL && self->by_reference;
    Py_BEGIN_ALLOW_THREADS
    pp_hub_let_go(&self->hub, true);
    has_news = pp_hub_spin(&self->hub);
    if (has_news && shares_gil)
        pp_hub_await_workers(&self->hub);
    pp_hub_let_go(&self->hub, false);
    Py_END_ALLOW_THREADS
    return has_news;
}

/* As leader. `before`: the bell before signals were last looked at: one that came since has changed it, and then nobody sleeps. */
static void wait_for_news(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns, uint32_t before) {
    bool patient = pp_hub_n_waiting(&self->hub) > PATIENT_MIN * self->segment->shared->n_lanes;
    if (!patient && spin_for_news(self))
        return;
    pp_watch_interrupts();
    pp_lead_for(&self->hub, job);   /* code that ran meanwhile may have waited for something else */
    if (is_met(job))
        return;
    Py_BEGIN_ALLOW_THREADS
    pp_hub_let_go(&self->hub, true);
    pp_hub_park(&self->hub, before, sleep_until(deadline_ns), patient);
    pp_hub_let_go(&self->hub, false);
    Py_END_ALLOW_THREADS
}

/* Takes what has come, or sleeps until something does; 0, or -1 with an exception. */
static int lead(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns, uint32_t before) {
    if (pp_lead_is_claimed(&self->hub)) {
        pp_lead_release(&self->hub);
        return 0;
    }
    bool is_timed = deadline_ns >= 0;
    pp_lead_for(&self->hub, job);
    Py_ssize_t n = take_batch(self, is_timed ? job : NULL, deadline_ns);
    if (n < 0 || feed_as_leader(self, is_timed) < 0)
        return -1;
    if (n == 0 && pp_lead_is_mine(&self->hub) && !is_met(job))
        wait_for_news(self, job, deadline_ns, before);
    return 0;
}

/* Signal handlers run before the caller is a follower: while one runs nobody must hand it the lead. */
static int follow(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns) {
    pp_waiter_t waiter = {0};
    pp_watch_interrupts();
    pp_sleep_on(&waiter.word);
    int failed = PyErr_CheckSignals();
    if (!failed && pp_follow_begin(&self->hub, &waiter, job)) {
        bool is_there = is_met(job);
        Py_BEGIN_ALLOW_THREADS
        if (!is_there)
            pp_follow_wait(&waiter, sleep_until(deadline_ns));
        pp_follow_end(&self->hub, &waiter);
        Py_END_ALLOW_THREADS
    }
    pp_sleep_on(NULL);
    return failed;
}

/* Runs the handlers of signals that have come; 0, or -1 with what one raised. A handler may wait for a thread that waits for a result:
 * so the caller does not lead meanwhile. From now on a Ctrl-C changes the bell. */
static int run_handlers(pp_channel_t *self, _Atomic uint32_t *bell, uint32_t *before) {
    *before = pp_load_seq_cst(bell);
    if (!pp_is_main_thread())
        return 0;
    pp_sleep_on(bell);
    pp_lead_pause(&self->hub);
    return PyErr_CheckSignals();
}

/* 1: the job is done, or a stream has something; 0: the deadline has passed; -1 with an exception. A thread that puts, and waits amid that,
 * has to lead: nobody else can put what it waits for. */
static int wait_for(pp_channel_t *self, pp_job_t *job, int64_t deadline_ns) {
    _Atomic uint32_t *bell = &self->segment->shared->bell;
    uint32_t before;
    int found = -2;
    for (bool has_looked = false; found == -2 && !is_met(job); has_looked = true) {
        if (pp_channel_is_closed(self)) {
            pp_channel_raise_closed();
            found = -1;
        } else if (has_looked && deadline_ns >= 0 && pp_now_ns() >= deadline_ns) {
            found = 0;
        } else if (run_handlers(self, bell, &before) < 0) {
            found = -1;
        } else if (!is_met(job)) {
            if (is_feeding(self) && !pp_lead_is_mine(&self->hub)) {
                Py_BEGIN_ALLOW_THREADS
                pp_lead_claim(&self->hub);
                Py_END_ALLOW_THREADS
            }
            int failed = pp_lead_try(&self->hub) ? lead(self, job, deadline_ns, before) : follow(self, job, deadline_ns);
            found = failed ? -1 : -2;
        }
    }
    pp_sleep_on(NULL);
    return found == -2 ? 1 : found;
}

const char pp_wait_doc[] = PyDoc_STR(
    "wait(job, timeout_s=None) -> bool\n\n"
    "Waits until a call is done, or a stream has its next result or is over; False after timeout_s, which other results and\n"
    "other calls do not lengthen. Runs signal handlers, and raises what they raise. For any thread, also for a handler, or for\n"
    "code that unpickling runs, inside another wait of the same thread.");
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
        return pp_channel_raise_closed();
    bool is_nested = pp_lead_is_mine(&self->hub);   /* in a signal handler, or in foreign code that unpickling runs */
    int found = wait_for(self, (pp_job_t *)args[0], deadline_ns);
    if (!is_nested)
        pp_lead_release(&self->hub);
    pp_channel_leave(self);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

const char pp_next_doc[] = PyDoc_STR(
    "next(job, timeout_s=None) -> (status, value), None at the stream's end, or False after timeout_s\n\n"
    "The next result of a stream.");
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
    "Sleeps until there is something to do for the background thread: it was summoned, something happened to a worker, or\n"
    "results must be taken and nobody waits for one.");
PyObject *pp_channel_wait_background(pp_channel_t *self, PyObject *const *args, Py_ssize_t n) {
    int64_t deadline_ns;
    if (pp_deadline_of(n ? args[0] : Py_None, &deadline_ns) < 0)
        return NULL;
    if (!pp_channel_enter(self))
        return pp_channel_raise_closed();
    Py_BEGIN_ALLOW_THREADS
    pp_hub_wait_background(&self->hub, deadline_ns);
    Py_END_ALLOW_THREADS
    pp_channel_leave(self);
    Py_RETURN_NONE;
}

const char pp_take_doc[] = PyDoc_STR("take_results()\n\nTakes and delivers the results that are there, unless another thread does.");
PyObject *pp_channel_take_results(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    bool is_nested = pp_lead_is_mine(&self->hub);
    Py_ssize_t n = deliver_postponed(self) < 0 ? -1 : 1;
    while (n > 0 && pp_lead_try(&self->hub) && !pp_lead_is_claimed(&self->hub)) {
        n = take_batch(self, NULL, -1);
        if (n >= 0 && feed_as_leader(self, false) < 0)
            n = -1;
    }
    if (!is_nested)
        pp_lead_release(&self->hub);
    if (n < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Code that decoding runs may have handed the lead over. */
static bool lead_again(pp_channel_t *self) {
    if (!pp_lead_is_mine(&self->hub)) {
        Py_BEGIN_ALLOW_THREADS
        pp_lead_claim(&self->hub);
        Py_END_ALLOW_THREADS
    }
    return true;
}

const char pp_reap_doc[] = PyDoc_STR(
    "reap(worker) -> (job or None, index) or None\n\n"
    "After a worker's end: takes its last results, and empties its slot. Returns the task that it had begun and not\n"
    "answered, if any; the job is None if nobody waits for that.");
PyObject *pp_channel_reap(pp_channel_t *self, PyObject *arg) {
    int lane = pp_channel_lane(self, arg);
    if (lane < 0)
        return NULL;
    bool is_nested = pp_lead_is_mine(&self->hub);
    Py_BEGIN_ALLOW_THREADS
    pp_lead_claim(&self->hub);
    Py_END_ALLOW_THREADS
    PyObject *cached = NULL, *found = NULL;
    int failed = 0;
    for (const pp_frame_t *f; !failed && lead_again(self) && (f = pp_hub_peek(&self->hub, (unsigned)lane)) != NULL;)
        failed = take_one(self, (unsigned)lane, f, &cached, NULL);
    uint64_t id;
    uint32_t index;
    if (!failed && !pp_hub_bury(&self->hub, (unsigned)lane, &id, &index))
        found = Py_NewRef(Py_None);
    else if (!failed)
        found = Py_BuildValue("(OI)", find_job(self, id, &cached) ? cached : Py_None, index);
    if (!is_nested)
        pp_lead_release(&self->hub);
    Py_XDECREF(cached);
    return found;
}

const char pp_take_reports_doc[] = PyDoc_STR("take_reports() -> list\n\nWhat workers have said of initializers that failed.");
PyObject *pp_channel_take_reports(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    PyObject *reports = self->reports, *fresh = PyList_New(0);
    if (fresh == NULL)
        return NULL;
    self->reports = fresh;
    return reports;
}
