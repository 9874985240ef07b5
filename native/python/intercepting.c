/* Channel, continued: what calls with options need (pool_party/_core/supervisor.py): which tasks run since when, and
 * outcomes that are looked at before they are delivered, because a failed task may be tried again.
 *
 * An attempt whose time is up still has an outcome, which must not become that of its task. To learn whether such an
 * outcome will come, the supervisor first calls `intercept` and then `task_of`. The worker sets `has_replied` before its
 * result can be seen, and the leader reads `intercepts` after it has seen the result. So a result either is intercepted,
 * or `task_of` no longer names its task.
 */
#include "python.h"

PyDoc_STRVAR(intercept_doc,
    "intercept(job, which)\n\n"
    "Has outcomes that workers send for a call kept for `take_intercepted`: those of failed tasks (INTERCEPT_FAILURES), or\n"
    "all (INTERCEPT_ALL).");
static PyObject *channel_intercept(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    unsigned which;
    if (!PyArg_ParseTuple(args, "O!I", self->module->job_type, &job, &which))
        return NULL;
    pp_swap_seq_cst(&job->intercepts, which);
    Py_RETURN_NONE;
}

/* Keeps an outcome for the background thread. 0, or -1 with an exception. */
int pp_channel_keep_back(pp_channel_t *self, PyObject *job, uint32_t index, int status, PyObject *value, unsigned worker) {
    PyObject *outcome = Py_BuildValue("(OIiOI)", job, index, status, value, worker);
    int failed = outcome ? PyList_Append(self->intercepted, outcome) : -1;
    Py_XDECREF(outcome);
    pp_parent_notify(&self->parent);
    return failed;
}

PyDoc_STRVAR(take_intercepted_doc,
    "take_intercepted() -> list of (job, index, status, value, worker)\n\n"
    "Returns the outcomes that were kept back, oldest first. Each must now be delivered, or its task be tried again.");
static PyObject *channel_take_intercepted(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    Py_ssize_t n = PyList_GET_SIZE(self->intercepted);
    PyObject *taken = PyList_GetSlice(self->intercepted, 0, n);
    if (taken && n && PyList_SetSlice(self->intercepted, 0, PyList_GET_SIZE(taken), NULL) < 0)
        Py_CLEAR(taken);
    return taken;
}

typedef struct {           /* what a worker holds */
    uint64_t job, begun_ns;
    uint32_t index;
    bool runs;             /* whether it has not answered */
} held_t;

/* One reading, of which parts may belong to different tasks. */
static held_t glance(pp_worker_slot_t *worker_slot) {
    held_t held = {.runs = pp_load_seq_cst(&worker_slot->holds) && !pp_load_seq_cst(&worker_slot->has_replied) &&
                           pp_load_seq_cst(&worker_slot->state) != PP_WORKER_EMPTY};
    held.job = pp_load_seq_cst(&worker_slot->job);
    held.index = pp_load_seq_cst(&worker_slot->index);
    held.begun_ns = pp_load_seq_cst(&worker_slot->begun_ns);
    return held;
}

static bool are_same(held_t one, held_t other) {
    return one.runs == other.runs && one.job == other.job && one.index == other.index && one.begun_ns == other.begun_ns;
}

/* Reads what a worker holds. Its fields belong together if two readings agree: no two timed tasks of a worker begin in
 * the same nanosecond, and no two tasks have the same call and index unless they are timed. */
static held_t read_held(pp_worker_slot_t *worker_slot) {
    held_t held = glance(worker_slot), again;
    while (!are_same(held, again = glance(worker_slot)))
        held = again;
    return held;
}

PyDoc_STRVAR(task_of_doc,
    "task_of(worker) -> (job_id, index, begun_ns, job or None) or None\n\n"
    "Returns the task that a worker runs and has not answered. begun_ns: when it began, on the monotonic clock, if it is\n"
    "timed; otherwise 0. The job is None if nobody waits for it any more.");
static PyObject *channel_task_of(pp_channel_t *self, PyObject *n) {
    int number = pp_channel_slot(self, n);
    if (number < 0)
        return NULL;
    pp_worker_slot_t *worker_slot = pp_segment_worker(self->segment, (unsigned)number);
    held_t held = read_held(worker_slot);
    if (!held.runs)
        Py_RETURN_NONE;
    PyObject *job = pp_channel_look_up(self, held.job);
    PyObject *task = Py_BuildValue("(KIKO)", (unsigned long long)held.job, held.index, (unsigned long long)held.begun_ns,
                                   job ? job : Py_None);
    Py_XDECREF(job);
    return task;
}

PyDoc_STRVAR(revoke_doc, "revoke(job)\n\n"
                                       "Takes back the tasks of a settled call that are in the channel and that no worker\n"
                                       "has claimed.");
static PyObject *channel_revoke_job(pp_channel_t *self, PyObject *job) {
    if (!PyObject_TypeCheck(job, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "only a Job can be revoked");
        return NULL;
    }
    PyObject *held = pp_channel_revoke_all(self, ((pp_job_t *)job)->id);
    pp_store_seq_cst(&self->parent.must_feed, 1);   /* there is room for other tasks, and no worker will notify of that */
    pp_parent_notify(&self->parent);
    Py_XDECREF(held);
    Py_RETURN_NONE;
}

GUARDED(channel_take_intercepted)
GUARDED_QUIET(channel_task_of, Py_None)
GUARDED_QUIET(channel_revoke_job, Py_None)

PyMethodDef pp_intercepting_methods[] = {
    METHOD("take_intercepted", channel_take_intercepted, METH_NOARGS, take_intercepted_doc),
    {"intercept", (PyCFunction)(void *)channel_intercept, METH_VARARGS, intercept_doc},
    METHOD("task_of", channel_task_of, METH_O, task_of_doc),
    METHOD("revoke", channel_revoke_job, METH_O, revoke_doc),
    {0},
};
