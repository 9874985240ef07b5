/* Channel, continued: taking results and storing them in their Jobs.
 *
 * The scheduler sees to it that one thread at a time, the leader, does this. Unpickling may run Python code of the user,
 * which may wait for another result and so come back here: a frame is taken before its value is decoded.
 */
#include "python.h"

#include <errno.h>

#define PATIENT_MIN 4u   /* tasks waiting per worker from which on results may gather for a moment */

enum { PUMP_DONE, PUMP_TIMEOUT, PUMP_EVENT, PUMP_ROOM };   /* mirrored in _scheduler.py */

typedef struct {
    uint64_t job;
    uint32_t index;
    uint16_t status;
    bool is_in_block;
    unsigned lane;
    pp_blockref_t block;
    PyObject *payload;     /* or the value, by reference; NULL if it is in a block */
} result_t;

/* Without memory for the payload it is NULL, with an exception: that is the task's outcome, then. A block is marked as
 * kept, so that it stays even if its worker is buried while it is decoded. */
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

static int deliver(pp_channel_t *self, PyObject *job, const result_t *r, unsigned status, PyObject *value) {
    PyObject *index = PyLong_FromUnsignedLong(r->index), *code = PyLong_FromUnsignedLong(status);
    PyObject *args[] = {job, index, code, value};
    PyObject *done = index && code ? PyObject_VectorcallMethod(self->module->deliver, args, 4, NULL) : NULL;
    Py_XDECREF(index);
    Py_XDECREF(code);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The value did not unpickle: that is this task's outcome. What is no Exception (Ctrl-C) also goes on to our caller. */
static int deliver_undecodable(pp_channel_t *self, PyObject *job, const result_t *r) {
    PyObject *error = PyErr_GetRaisedException();
    int failed = deliver(self, job, r, PP_STATUS_BROKEN_INIT + 1, error);
    if (failed || PyObject_IsInstance(error, PyExc_Exception)) {
        Py_DECREF(error);
        return failed;
    }
    PyErr_SetRaisedException(error);
    return -1;
}

static void drop_block(pp_channel_t *self, result_t *r) {
    if (r->is_in_block)
        pp_block_release(self->segment, 1 + r->lane, r->block.id);
    r->is_in_block = false;
}

/* The value, or NULL with an exception. */
static PyObject *decode(pp_channel_t *self, result_t *r) {
    if (self->by_reference)
        return Py_XNewRef(r->payload);
    if (!r->is_in_block)
        return r->payload ? pp_decode_bytes(self->module, PyBytes_AS_STRING(r->payload), PyBytes_GET_SIZE(r->payload)) : NULL;
    bool is_kept = false;
    PyObject *value = pp_read_block(self->module, self->segment, 1 + r->lane, &r->block, PP_KEPT, &is_kept);
    r->is_in_block = !is_kept;
    drop_block(self, r);
    return value;
}

static int hand_over(pp_channel_t *self, PyObject *job, result_t *r) {
    PyObject *value = decode(self, r);
    if (value == NULL)
        return deliver_undecodable(self, job, r);
    pp_job_t *store = (pp_job_t *)job;
    if (r->status != PP_STATUS_OK || store->results == NULL) {
        int failed = deliver(self, job, r, r->status, value);
        Py_DECREF(value);
        return failed;
    }
    bool last;
    if (!pp_job_store(store, r->index, value, &last) || !last)
        return 0;
    PyObject *done = PyObject_CallMethodNoArgs(job, self->module->complete);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The job of a result, or NULL if nobody waits for it any more. */
static PyObject *find_job(PyObject *jobs, uint64_t id, PyObject **cached) {
    if (*cached && ((pp_job_t *)*cached)->id == id)
        return *cached;
    PyObject *key = PyLong_FromUnsignedLongLong(id), *job = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (key)
        PyDict_GetItemRef(jobs, key, &job);
#else
    job = key ? Py_XNewRef(PyDict_GetItemWithError(jobs, key)) : NULL;
#endif
    Py_XDECREF(key);
    Py_XSETREF(*cached, job);
    return job;
}

static Py_ssize_t take_all(pp_channel_t *self, PyObject *jobs) {
    PyObject *cached = NULL;
    Py_ssize_t n = 0;
    int failed = 0;
    for (unsigned lane = 0; !failed && lane < self->segment->shared->n_lanes; lane++)
        for (const pp_frame_t *f; !failed && (f = pp_hub_peek(&self->hub, lane)) != NULL; n++) {
            result_t r;
            take_result(self, lane, f, &r);
            PyObject *error = PyErr_GetRaisedException();
            PyObject *job = find_job(jobs, r.job, &cached);
            if (error && job)
                PyErr_SetRaisedException(error);
            else
                Py_XDECREF(error);
            failed = job ? hand_over(self, job, &r) : PyErr_Occurred() ? -1 : 0;
            drop_block(self, &r);
            Py_XDECREF(r.payload);
        }
    Py_XDECREF(cached);
    return failed ? -1 : n;
}

/* 0 or -1 with what a signal handler raised. A signal that comes while we spin interrupts no system call: so handlers run
 * before we park, too. */
static int wait_for_news(pp_channel_t *self, int64_t deadline_ns) {
    bool patient = pp_hub_n_waiting(&self->hub) > PATIENT_MIN * self->segment->shared->n_lanes;
    bool has_news = false;
    int error = 0;
    bool shares_gil = PP_HAS_GIL && self->by_reference;
    if (!patient) {
        Py_BEGIN_ALLOW_THREADS
        pp_hub_let_go(&self->hub, true);
        has_news = pp_hub_spin(&self->hub);
        if (has_news && shares_gil)
            pp_hub_await_workers(&self->hub);
        pp_hub_let_go(&self->hub, false);
        Py_END_ALLOW_THREADS
    }
    if (has_news)
        return 0;
    _Atomic uint32_t *bell = &self->segment->shared->bell;
    uint32_t before = pp_load_seq_cst(bell);
    pp_watch_interrupts();
    pp_sleep_on(bell);   /* a Ctrl-C that comes after the next line changes it, and then nobody sleeps */
    if (pp_check_signals() < 0) {
        pp_sleep_on(NULL);
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    pp_hub_let_go(&self->hub, true);
    error = pp_hub_park(&self->hub, before, deadline_ns, patient);
    pp_hub_let_go(&self->hub, false);
    Py_END_ALLOW_THREADS
    pp_sleep_on(NULL);
    return error == EINTR ? pp_check_signals() : 0;
}

const char pp_take_doc[] = PyDoc_STR("take(jobs)\n\nTakes the results that are there, and leaves all other news for `pump`.");
PyObject *pp_channel_take(pp_channel_t *self, PyObject *jobs) {
    if (!PyDict_Check(jobs)) {
        PyErr_SetString(PyExc_TypeError, "jobs is a dict");
        return NULL;
    }
    if (take_all(self, jobs) < 0)
        return NULL;
    Py_RETURN_NONE;
}

const char pp_pump_doc[] = PyDoc_STR(
             "pump(jobs, job=None, timeout_s=None) -> int\n\n"
             "Takes results and stores or delivers them, as leader. Returns 0 when `job` is done (without a job:\n"
             "when no result is there), 1 after timeout_s, 2 when something happened to a worker, 3 when there is room\n"
             "for tasks that were refused. Raises what a signal handler or a delivery raised.");
PyObject *pp_channel_pump(pp_channel_t *self, PyObject *args) {
    PyObject *jobs, *job = Py_None, *timeout = Py_None;
    if (!PyArg_ParseTuple(args, "O!|OO", &PyDict_Type, &jobs, &job, &timeout))
        return NULL;
    if (job != Py_None && !PyObject_TypeCheck(job, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "pump waits for a Job");
        return NULL;
    }
    int64_t deadline_ns;
    if (pp_deadline_of(timeout, &deadline_ns) < 0)
        return NULL;
    for (;;) {
        Py_ssize_t n = take_all(self, jobs);
        if (n < 0)
            return NULL;
        if (job != Py_None && ((pp_job_t *)job)->done)
            return PyLong_FromLong(PUMP_DONE);
        if (pp_load_seq_cst(&self->segment->shared->events))
            return PyLong_FromLong(PUMP_EVENT);
        if (pp_hub_take_room(&self->hub))
            return PyLong_FromLong(PUMP_ROOM);
        if (n > 0 && pp_check_signals() < 0)
            return NULL;
        if (n > 0)
            continue;
        if (job == Py_None)
            return PyLong_FromLong(PUMP_DONE);
        if (wait_for_news(self, deadline_ns) < 0)
            return NULL;
        if (deadline_ns >= 0 && !pp_hub_has_news(&self->hub) && pp_now_ns() >= deadline_ns)
            return PyLong_FromLong(PUMP_TIMEOUT);
    }
}
