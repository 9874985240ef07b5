/* Channel, continued: results. The leader takes them out of the workers' rings, decodes their values and delivers them
 * to their calls. A dead worker's last results are taken before its slot is emptied.
 */
#include "python.h"

#define BATCH 256           /* most results between two checks for signals and for claims of the lead */
#define CLOCK_EVERY 16      /* with a deadline: results, or a slow one, between readings of the clock, which take as long as a fast result */

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

typedef struct {
    Py_ssize_t n;
    int64_t deadline_ns;
    bool was_slow;          /* whether the newest result was */
} batch_t;

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

/* The value, or NULL with an exception that is the task's outcome. In the main thread a signal handler may have
 * interrupted the unpickling. Then a second attempt succeeds, and the handler's exception is returned in `interrupt`,
 * for the caller. */
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
    pp_notify_all(self->segment->shared);
    return failed;
}

static inline bool is_intercepted(pp_job_t *job, int status) {
    uint32_t which = pp_load_seq_cst(&job->intercepts);
    return which != PP_INTERCEPT_NOTHING && (which == PP_INTERCEPT_ALL || status != PP_STATUS_OK);
}

/* Decodes and delivers a result. 0, or -1 with an exception that a signal handler raised meanwhile. */
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
    else if (job && is_intercepted((pp_job_t *)job, status))
        failed = pp_channel_keep_back(self, job, r->index, status, value, r->worker);
    else if (job)
        pp_channel_deliver_outcome(self, (pp_job_t *)job, r->index, status, value);
    Py_DECREF(value);
    if (interrupt)
        PyErr_SetRaisedException(interrupt);
    return interrupt || failed ? -1 : 0;
}

PyObject *pp_channel_look_up(pp_channel_t *self, uint64_t id) {
    PyObject *key = PyLong_FromUnsignedLongLong(id), *job = NULL;
    PP_LOCK(self);
    job = key ? Py_XNewRef(PyDict_GetItemWithError(self->calls, key)) : NULL;
    PP_UNLOCK(self);
    Py_XDECREF(key);
    return job;
}

static PyObject *look_up_job(pp_channel_t *self, uint64_t id, PyObject **cached) {
    PyObject *job = pp_channel_look_up(self, id);
    Py_XSETREF(*cached, job);
    return job;
}

/* The job of a result, or NULL if nobody waits for it any more. */
static inline PyObject *find_job(pp_channel_t *self, uint64_t id, PyObject **cached) {
    return *cached && ((pp_job_t *)*cached)->id == id ? *cached : look_up_job(self, id, cached);
}

/* Whether decoding its value may take long, because it runs a class's code or copies much memory. */
static bool is_slow(pp_channel_t *self, const result_t *r) {
    enum { PICKLE_START = 0x80 };   /* as in codec.c */
    if (self->by_reference || r->is_in_block)
        return r->is_in_block;
    return r->payload && PyBytes_GET_SIZE(r->payload) > 0 && (unsigned char)PyBytes_AS_STRING(r->payload)[0] == PICKLE_START;
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
        failed = hand_over(self, later->job, &later->result);
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

/* Takes one result. alone_for: the call for which the caller waits with a timeout; slow results of other calls are then
 * left to the background thread. NULL: all are decoded here. Returns 0, or -1 with an exception for the caller. */
static int take_one(pp_channel_t *self, unsigned worker, const pp_frame_t *frame, PyObject **cached, const pp_job_t *alone_for,
                    bool *was_slow) {
    result_t r;
    take_result(self, worker, frame, &r);
    *was_slow = alone_for && is_slow(self, &r);   /* only then does anybody ask */
    PyObject *no_memory = r.payload || r.is_in_block ? NULL : PyErr_GetRaisedException();
    PyObject *job = r.job ? find_job(self, r.job, cached) : NULL;
    if (no_memory)
        PyErr_SetRaisedException(no_memory);
    if (job && *was_slow && job != (const PyObject *)alone_for && postpone(self, job, &r))
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
    if (b->n >= BATCH)
        return true;
    return b->deadline_ns >= 0 && (b->was_slow || b->n % CLOCK_EVERY == 0) && pp_now_ns() >= b->deadline_ns;
}

/* Takes a batch of results from all workers in turn. Returns their number, or -1. Code that unpickling runs may itself
 * wait for a result and hand over the lead, which ends the batch. */
Py_ssize_t pp_channel_take_batch(pp_channel_t *self, const pp_job_t *alone_for, int64_t deadline_ns) {
    batch_t b = {.deadline_ns = deadline_ns};
    PyObject *cached = NULL;
    int failed = 0;
    unsigned n_workers = self->segment->n_workers;
    bool is_ended = false;
    for (unsigned i = 0; !failed && !is_ended && i < n_workers; i++) {
        unsigned worker = pp_parent_next_reply(&self->parent, self->next_worker);
        if (worker == n_workers)
            break;
        self->next_worker = worker;
        for (const pp_frame_t *f; !failed && !is_ended && (f = pp_parent_peek(&self->parent, worker)) != NULL;) {
            failed = take_one(self, worker, f, &cached, alone_for, &b.was_slow);
            b.n++;
            is_ended = is_over(&b) || !pp_lead_is_mine(&self->parent);
        }
        if (!is_ended)
            self->next_worker = (worker + 1) % n_workers;
    }
    Py_XDECREF(cached);
    return failed ? -1 : b.n;
}

/* ---- a worker has ended ---- */

/* Reclaims the lead, which code run by decoding may have handed over. */
static bool lead_again(pp_channel_t *self) {
    if (!pp_lead_is_mine(&self->parent)) {
        Py_BEGIN_ALLOW_THREADS
        pp_lead_claim(&self->parent);
        Py_END_ALLOW_THREADS
    }
    return true;
}

const char pp_reap_doc[] = PyDoc_STR(
    "reap(worker) -> (job or None, index) or None\n\n"
    "Called after a worker's end. Takes its last results, and empties its slot. Returns the task that it had begun without\n"
    "an answer, if any; the job is None if nobody waits for it.");
PyObject *pp_channel_reap(pp_channel_t *self, PyObject *arg) {
    int worker = pp_channel_slot(self, arg);
    if (worker < 0)
        return NULL;
    bool is_nested = pp_lead_is_mine(&self->parent);
    Py_BEGIN_ALLOW_THREADS
    pp_lead_claim(&self->parent);
    Py_END_ALLOW_THREADS
    PyObject *cached = NULL, *found = NULL;
    int failed = 0;
    bool was_slow;
    for (const pp_frame_t *f; !failed && lead_again(self) && (f = pp_parent_peek(&self->parent, (unsigned)worker)) != NULL;)
        failed = take_one(self, (unsigned)worker, f, &cached, NULL, &was_slow);
    uint64_t id;
    uint32_t index;
    if (!failed && !pp_parent_reap(&self->parent, (unsigned)worker, &id, &index))
        found = Py_NewRef(Py_None);
    else if (!failed)
        found = Py_BuildValue("(OI)", find_job(self, id, &cached) ? cached : Py_None, index);
    if (!is_nested)
        pp_lead_release(&self->parent);
    Py_XDECREF(cached);
    return found;
}

const char pp_take_reports_doc[] = PyDoc_STR("take_reports() -> list\n\n"
                                             "Returns what workers have reported of failed initializers.");
PyObject *pp_channel_take_reports(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    PyObject *reports = self->reports, *fresh = PyList_New(0);
    if (fresh == NULL)
        return NULL;
    self->reports = fresh;
    return reports;
}
