/* Channel, continued: results. The leader takes them out of the workers' rings, decodes their values and delivers them
 * to their calls. A dead worker's last results are taken before its slot is emptied.
 */
#include "python.h"

typedef struct {
    uint64_t job;
    uint32_t index;
    uint16_t status;
    bool is_in_block;
    unsigned worker;
    pp_blockref_t block;
    PyObject *payload;     /* or the value itself, by reference; NULL if it is in a block */
} result_t;

typedef struct pp_postponed {   /* a result whose value the background thread will decode */
    struct pp_postponed *next;
    result_t result;
    PyObject *job;
} postponed_t;

/* Takes a result out of a ring. If there is no memory for its payload, payload is NULL and the exception that is set
 * becomes the task's outcome. A block is marked as retained, so that it stays even if its worker is reaped during
 * decoding. */
static void take_result(pp_channel_t *self, unsigned worker, const pp_frame_t *frame, result_t *r) {
    *r = (result_t){.job = frame->job, .index = frame->index, .status = frame->status, .worker = worker};
    const void *data = frame + 1;
    if (self->by_reference) {
        r->payload = *(PyObject *const *)data;
    } else if (frame->where == PP_IN_BLOCK) {
        r->is_in_block = true;
        r->block = *(const pp_blockref_t *)data;
        pp_store_seq_cst(&pp_segment_flags(self->segment, 1 + worker)->in_use[r->block.id], PP_KEPT);
    } else {
        r->payload = PyBytes_FromStringAndSize(data, frame->size);
    }
    PP_ASSERT(pp_lead_is_mine(&self->parent));
    pp_parent_take(&self->parent, worker, frame);
    self->n_taken++;
}

static void drop_block(pp_channel_t *self, result_t *r) {
    if (r->is_in_block)
        pp_block_release(self->segment, 1 + r->worker, r->block.id);
    r->is_in_block = false;
}

/* The value, or NULL with an exception. The block then still exists, unless a part of what was decoded retains it. */
static PyObject *decode(pp_channel_t *self, result_t *r) {
    if (self->by_reference)
        return Py_XNewRef(r->payload);
    if (!r->is_in_block)
        return r->payload ? pp_decode_bytes(self->module, PyBytes_AS_STRING(r->payload), PyBytes_GET_SIZE(r->payload)) : NULL;
    bool is_kept = false;
    PyObject *value = pp_read_block(self->module, self->segment, 1 + r->worker, &r->block, PP_KEPT, &is_kept);
    r->is_in_block = !is_kept;
    return value;
}

/* Whether decoding its value may take long, because it runs a class's code or copies much memory. */
static bool is_slow(pp_channel_t *self, const result_t *r) {
    enum { PICKLE_START = 0x80 };   /* as in codec.c */
    if (self->by_reference || r->is_in_block)
        return r->is_in_block;
    return r->payload && PyBytes_GET_SIZE(r->payload) > 0 && (unsigned char)PyBytes_AS_STRING(r->payload)[0] == PICKLE_START;
}

/* The value, or NULL with an exception that is the task's outcome. In the main thread a signal handler may have
 * interrupted the unpickling. Then a second attempt succeeds. What the first one raised is returned in `first`, for the
 * caller to raise or to drop. */
static PyObject *decode_twice(pp_channel_t *self, result_t *r, PyObject **first) {
    PyObject *value = decode(self, r);
    if (value || !(r->payload || r->is_in_block) || !pp_is_main_thread())
        return value;
    *first = PyErr_GetRaisedException();
    return decode(self, r);
}

static int report_broken(pp_channel_t *self, PyObject *value) {
    int failed = PyList_Append(self->reports, value);
    pp_notify_all(self->segment->shared);
    return failed;
}

static inline bool is_intercepted(pp_job_t *job, int status) {
    uint32_t which = pp_load_seq_cst(&job->intercepts);
    return which != PP_INTERCEPT_NOTHING && (which == PP_INTERCEPT_ALL || status != PP_STATUS_OK);
}

/* Decodes and delivers a result. 0, or -1 with an exception that a signal handler raised meanwhile. */
static int decode_and_deliver(pp_channel_t *self, PyObject *job, result_t *r) {
    PyObject *first = NULL, *value;
    if (is_slow(self, r)) {
        uint64_t outer = pp_decode_begin(self);
        value = decode_twice(self, r, &first);
        pp_decode_end(outer);
    } else {
        value = decode_twice(self, r, &first);
    }
    bool is_interrupted = first && value;
    int status = r->status;
    if (value == NULL) {
        status = PP_STATUS_UNDECODABLE;
        value = PyErr_GetRaisedException();
    }
    int failed = 0;
    if (r->job == 0)
        failed = report_broken(self, value);
    else if (job && is_intercepted((pp_job_t *)job, status))
        failed = pp_channel_keep_back(self, job, r->index, status, value, r->worker);
    else if (job)
        pp_channel_deliver_outcome(self, (pp_job_t *)job, r->index, status, value);
    Py_DECREF(value);
    if (is_interrupted)
        PyErr_SetRaisedException(first);
    else
        Py_XDECREF(first);
    return is_interrupted || failed ? -1 : 0;
}

PyObject *pp_channel_look_up(pp_channel_t *self, uint64_t id) {
    PyObject *key = PyLong_FromUnsignedLongLong(id), *job = NULL;
    PP_LOCK(self);
    job = key ? Py_XNewRef(PyDict_GetItemWithError(self->calls, key)) : NULL;
    PP_UNLOCK(self);
    Py_XDECREF(key);
    return job;
}

/* The job of a result, or NULL if nobody waits for it any more. before: the job that was cached instead, for the caller
 * to drop once the result is delivered, or NULL. */
static inline PyObject *find_job(pp_channel_t *self, uint64_t id, pp_batch_t *batch, PyObject **before) {
    if (batch->cached == NULL || ((pp_job_t *)batch->cached)->id != id) {
        *before = batch->cached;
        batch->cached = pp_channel_look_up(self, id);
    }
    return batch->cached;
}

/* Leaves a result to the background thread. False: there is no memory for that. */
static bool postpone(pp_channel_t *self, PyObject *job, const result_t *r) {
    postponed_t *later = PyMem_Malloc(sizeof *later);
    if (later == NULL)
        return false;
    *later = (postponed_t){.result = *r, .job = Py_NewRef(job)};
    PP_LOCK(self);
    *(self->last_postponed ? &self->last_postponed->next : &self->first_postponed) = later;
    self->last_postponed = later;
    PP_UNLOCK(self);
    pp_parent_notify(&self->parent);
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

int pp_channel_deliver_postponed(pp_channel_t *self) {
    int failed = 0;
    for (postponed_t *later; !failed && (later = next_postponed(self)) != NULL;) {
        failed = decode_and_deliver(self, later->job, &later->result);
        drop_result(self, &later->result);
        Py_DECREF(later->job);
        PyMem_Free(later);
    }
    return failed;
}

/* Drops results without releasing their blocks, whose memory goes with the segment. */
void pp_channel_drop_postponed(pp_channel_t *self) {
    for (postponed_t *later; (later = next_postponed(self)) != NULL;) {
        Py_XDECREF(later->result.payload);
        Py_DECREF(later->job);
        PyMem_Free(later);
    }
}

/* Takes one result. Slow results of other calls than the one that is waited for alone are left to the background thread.
 * Returns 0, or -1 with an exception for the caller. */
int pp_channel_take_one(pp_channel_t *self, unsigned worker, const pp_frame_t *frame, pp_batch_t *batch) {
    result_t r;
    take_result(self, worker, frame, &r);
    batch->was_slow = batch->alone_for && is_slow(self, &r);   /* only then does anybody ask */
    PyObject *no_memory = r.payload || r.is_in_block ? NULL : PyErr_GetRaisedException();
    PyObject *before = NULL, *job = r.job ? find_job(self, r.job, batch, &before) : NULL;
    if (no_memory)
        PyErr_SetRaisedException(no_memory);
    int failed = 0;
    if (job && batch->was_slow && job != (const PyObject *)batch->alone_for && postpone(self, job, &r)) {
        Py_XDECREF(before);
        return 0;
    }
    if (job || r.job == 0)
        failed = decode_and_deliver(self, job, &r);
    else
        PyErr_Clear();
    drop_result(self, &r);
    Py_XDECREF(before);
    return failed;
}

/* ---- a worker has ended ---- */

PyDoc_STRVAR(reap_doc,
    "reap(worker) -> (job or None, index) or None\n\n"
    "Called after a worker's end. Takes its last results, and empties its slot. Returns the task that it had begun without\n"
    "an answer, if any; the job is None if nobody waits for it.");
static PyObject *channel_reap(pp_channel_t *self, PyObject *arg) {
    int worker = pp_channel_slot(self, arg);
    if (worker < 0)
        return NULL;
    pp_channel_t *outer = pp_lead_begin(self);
    bool is_nested = pp_lead_is_mine(&self->parent);
    PyObject *found = NULL;
    uint64_t id;
    uint32_t index;
    if (pp_take_last(&self->parent, (unsigned)worker) == 0) {
        bool had_begun = pp_parent_reap(&self->parent, (unsigned)worker, &id, &index);
        PyObject *job = had_begun ? pp_channel_look_up(self, id) : NULL;
        found = had_begun ? Py_BuildValue("(NI)", job ? job : Py_NewRef(Py_None), index) : Py_NewRef(Py_None);
    }
    if (!is_nested)
        pp_lead_release(&self->parent);
    pp_lead_end(outer);
    if (found && pp_channel_deliver_postponed(self) < 0)   /* what they name in shared memory goes with the worker's link */
        Py_CLEAR(found);
    return found;
}

PyDoc_STRVAR(take_reports_doc, "take_reports() -> list\n\n"
                                             "Returns what workers have reported of failed initializers.");
static PyObject *channel_take_reports(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    PyObject *reports = self->reports, *fresh = PyList_New(0);
    if (fresh == NULL)
        return NULL;
    self->reports = fresh;
    return reports;
}

GUARDED(channel_take_reports)
GUARDED(channel_reap)

PyMethodDef pp_results_methods[] = {
    METHOD("take_reports", channel_take_reports, METH_NOARGS, take_reports_doc),
    METHOD("reap", channel_reap, METH_O, reap_doc),
    {0},
};
