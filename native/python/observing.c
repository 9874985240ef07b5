/* Channel, continued: budgets of workers, active workers, and the events that workers record for traces. */
#include "python.h"

#include <string.h>

enum { STAY_NS = 100000000 };   /* ns; guess: as in others.c */

/* ---- budgets ---- */

PyDoc_STRVAR(limit_doc, "limit(n_cpus, n_threads, lends)\n\n"
                                      "Limits this process's libraries while a worker of this channel is active in it: to\n"
                                      "n_threads, or, if it lends, to the CPUs divided by all active workers. n_threads 0:\n"
                                      "ends the limit.");
static PyObject *channel_limit(pp_channel_t *self, PyObject *args) {
    unsigned n_cpus, n_threads;
    int lends;
    if (!PyArg_ParseTuple(args, "IIp", &n_cpus, &n_threads, &lends))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (n_threads)
        pp_budget_open(&self->segment->budget, n_cpus, n_threads, lends);
    else
        pp_budget_close(&self->segment->budget);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *channel_lend(pp_channel_t *self, PyObject *arg) {
    unsigned long n_cpus = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (n_cpus > 0)
        pp_others_open(self->segment, (unsigned)n_cpus);
    else
        pp_others_close(self->segment);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *channel_grant(pp_channel_t *self, PyObject *args) {
    PyObject *n;
    unsigned n_threads;
    if (!PyArg_ParseTuple(args, "OI", &n, &n_threads))
        return NULL;
    int worker = pp_channel_slot(self, n);
    if (worker < 0)
        return NULL;
    _Atomic uint32_t *grant = &pp_segment_worker(self->segment, (unsigned)worker)->grant;
    if (pp_swap_seq_cst(grant, n_threads) != n_threads)
        pp_futex_wake(grant, INT32_MAX, UINT32_MAX);
    Py_BEGIN_ALLOW_THREADS
    pp_limits_changed();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *channel_watch(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_store_seq_cst(&self->segment->shared->is_watched, 1);
    Py_RETURN_NONE;
}

static PyObject *channel_pulse(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_store_seq_cst(&self->is_pulsed, 1);   /* before the pulse: see channel_wait_change */
    pp_futex_wake(&self->is_pulsed, INT32_MAX, UINT32_MAX);
    pp_pulse(self->segment->shared);
    Py_RETURN_NONE;
}

static void wait_pulse(pp_channel_t *self, uint32_t seen) {
    pp_shared_t *shared = self->segment->shared;
    pp_add_seq_cst(&shared->n_awaiting, 1);   /* before the pulse is read: either we see a change, or its author sees us */
    while (pp_load_seq_cst(&shared->pulse) == seen)
        pp_futex_wait(&shared->pulse, seen, -1, UINT32_MAX);
    pp_add_seq_cst(&shared->n_awaiting, -1);
}

PyDoc_STRVAR(wait_pulse_doc, "wait_pulse(seen) -> int\n\nWaits until the pulse differs from `seen`, and returns it.");
static PyObject *channel_wait_pulse(pp_channel_t *self, PyObject *arg) {
    unsigned long seen = PyLong_AsUnsignedLongMask(arg);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    wait_pulse(self, (uint32_t)seen);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(pp_load_seq_cst(&self->segment->shared->pulse));
}

static bool is_awake(pp_worker_slot_t *worker_slot) {
    return pp_load_seq_cst(&worker_slot->state) == PP_WORKER_READY && pp_load_seq_cst(&worker_slot->park) != PP_ASLEEP;
}

static void read_active(pp_segment_t *s, bool *active) {
    for (unsigned i = 0; i < s->n_workers; i++)
        active[i] = is_awake(pp_segment_worker(s, i));
}

/* Whether a worker was active or idle, other than `known` says, at two looks. */
static bool has_lasted(unsigned n_workers, const bool *known, const bool *first, const bool *second) {
    for (unsigned i = 0; i < n_workers; i++)
        if (first[i] != known[i] && second[i] != known[i])
            return true;
    return false;
}

/* Looks at the workers every period_ns while pulses come, and for STAY_NS longer. So a worker that wakes after a short
 * pause need not wake this thread, too. Then it sleeps until the next pulse. active: space for two looks. */
static uint32_t wait_change(pp_channel_t *self, uint32_t seen, const bool *known, bool *active, unsigned n_cpus, unsigned n_left,
                            int64_t period_ns) {
    pp_segment_t *s = self->segment;
    bool *before = active, *now = active + s->n_workers;
    int64_t pulsed_ns = 0;
    memcpy(before, known, s->n_workers * sizeof *known);
    for (;;) {
        int64_t now_ns = pp_now_ns();
        uint32_t pulse = pp_load_seq_cst(&s->shared->pulse);   /* first: what changes after what follows was read pulses again */
        if (pp_swap_seq_cst(&self->is_pulsed, 0) || pp_others_leave(n_cpus) != n_left)
            return pulse;
        read_active(s, now);
        if (has_lasted(s->n_workers, known, before, now))
            return pulse;
        memcpy(before, now, s->n_workers * sizeof *now);
        if (pulse != seen)
            pulsed_ns = now_ns;
        seen = pulse;
        if (now_ns - pulsed_ns > STAY_NS && memcmp(now, known, s->n_workers * sizeof *now) == 0)
            wait_pulse(self, seen);
        else
            pp_futex_wait(&self->is_pulsed, 0, now_ns + period_ns, UINT32_MAX);
    }
}

PyDoc_STRVAR(wait_change_doc,
    "wait_change(seen, awake, n_cpus, n_left, period_s) -> int\n\n"
    "Waits until a worker was active or idle, other than `awake` says, at two looks in a row, which are period_s apart; or\n"
    "cpus_left(n_cpus) is not n_left; or pulse() was called. seen: the pulse that was considered last. Returns the pulse\n"
    "that was considered now.");
static PyObject *channel_wait_change(pp_channel_t *self, PyObject *args) {
    unsigned long seen;
    PyObject *awake;
    unsigned n_cpus, n_left, n_workers = self->segment->n_workers;
    double period_s;
    if (!PyArg_ParseTuple(args, "kO!IId", &seen, &PyTuple_Type, &awake, &n_cpus, &n_left, &period_s))
        return NULL;
    if (PyTuple_GET_SIZE(awake) != (Py_ssize_t)n_workers)
        return PyErr_Format(PyExc_ValueError, "awake must have an item for each of the %u workers", n_workers);
    bool *known = PyMem_Calloc(3 * n_workers, sizeof *known);
    if (known == NULL)
        return PyErr_NoMemory();
    for (unsigned i = 0; i < n_workers; i++)
        known[i] = PyTuple_GET_ITEM(awake, (Py_ssize_t)i) == Py_True;
    uint32_t pulse;
    Py_BEGIN_ALLOW_THREADS
    pulse = wait_change(self, (uint32_t)seen, known, known + n_workers, n_cpus, n_left, (int64_t)(period_s * 1e9));
    Py_END_ALLOW_THREADS
    PyMem_Free(known);
    return PyLong_FromUnsignedLong(pulse);
}

PyDoc_STRVAR(counts_doc, "counts() -> tuple[int, ...]\n\n"
                                       "Returns, for each worker of this process, how many threads it may use now. For an\n"
                                       "idle worker, that is its own budget.");
static PyObject *channel_counts(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    unsigned n = self->segment->n_workers;
    PyObject *all = PyTuple_New((Py_ssize_t)n);
    for (unsigned i = 0; all && i < n; i++) {
        pp_worker_slot_t *worker_slot = pp_segment_worker(self->segment, i);
        unsigned count = pp_load_seq_cst(&worker_slot->grant);
        if (is_awake(worker_slot))
            count = pp_budget_count(&self->segment->budget, count, i);
        PyObject *number = PyLong_FromUnsignedLong(count);
        if (number)
            PyTuple_SET_ITEM(all, (Py_ssize_t)i, number);
        else
            Py_CLEAR(all);
    }
    return all;
}

PyDoc_STRVAR(awake_doc, "awake() -> tuple[bool, ...]\n\n"
                                      "Returns, for each worker, whether it has work or is seeking some.");
static PyObject *channel_awake(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    unsigned n = self->segment->n_workers;
    PyObject *all = PyTuple_New((Py_ssize_t)n);
    for (unsigned i = 0; all && i < n; i++) {
        PyTuple_SET_ITEM(all, (Py_ssize_t)i, PyBool_FromLong(is_awake(pp_segment_worker(self->segment, i))));
    }
    return all;
}

static PyObject *channel_lends(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    const pp_budget_t *budget = &self->segment->budget;
    return Py_BuildValue("KK", (unsigned long long)pp_load_relaxed(&budget->n_lends),
                         (unsigned long long)pp_load_relaxed(&budget->n_reclaims));
}

/* ---- traces ---- */

static PyObject *channel_trace(pp_channel_t *self, PyObject *arg) {
    int on = PyObject_IsTrue(arg);
    if (on < 0)
        return NULL;
    pp_store_seq_cst(&self->segment->shared->is_traced, (uint32_t)on);
    Py_RETURN_NONE;
}

static PyObject *channel_forget_events(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_segment_forget_events(self->segment);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(read_events_doc, "read_events(worker, start) -> (next, n_lost, bytes)\n\n"
                                            "Returns a worker's events from number `start` on, of EVENT_WORDS 64-bit words\n"
                                            "each, and how many were overwritten.");
static PyObject *channel_read_events(pp_channel_t *self, PyObject *args) {
    PyObject *n;
    unsigned long long from;
    if (!PyArg_ParseTuple(args, "OK", &n, &from))
        return NULL;
    int worker = pp_channel_slot(self, n);
    if (worker < 0)
        return NULL;
    enum { EVENT_BYTES = PP_EVENT_WORDS * sizeof(uint64_t) };
    uint64_t n_events = pp_load_acquire(&pp_segment_worker(self->segment, (unsigned)worker)->n_events), n_lost;
    uint64_t n_max = n_events > from ? n_events - from : 0;
    unsigned n_read;
    n_max = n_max < PP_EVENTS ? n_max : PP_EVENTS;
    uint64_t (*words)[PP_EVENT_WORDS] = PyMem_Malloc((size_t)n_max * EVENT_BYTES + 1);
    if (words == NULL)
        return PyErr_NoMemory();
    uint64_t next = pp_trace_read(self->segment, (unsigned)worker, from, words, (unsigned)n_max, &n_lost, &n_read);
    PyObject *result = Py_BuildValue("KKy#", (unsigned long long)next, (unsigned long long)n_lost, (const char *)words,
                                     (Py_ssize_t)n_read * EVENT_BYTES);
    PyMem_Free(words);
    return result;
}

PyDoc_STRVAR(present_doc, "present(worker) -> (n_events, state, since_ns, tid, job, index)\n\n"
                                        "Returns what a worker is doing, as it has recorded. state: a PRESENT_ constant;\n"
                                        "tid: 0 if it has not begun to serve.");
static PyObject *channel_present(pp_channel_t *self, PyObject *arg) {
    int n = pp_channel_slot(self, arg);
    if (n < 0)
        return NULL;
    pp_worker_slot_t *worker_slot = pp_segment_worker(self->segment, (unsigned)n);
    unsigned state = pp_trace_present(worker_slot);
    return Py_BuildValue("KIKIKI", (unsigned long long)pp_load_acquire(&worker_slot->n_events), state,
                         (unsigned long long)pp_load_relaxed(&worker_slot->since_ns), pp_load_relaxed(&worker_slot->tid),
                         (unsigned long long)pp_load_relaxed(&worker_slot->job), pp_load_relaxed(&worker_slot->index));
}

GUARDED(channel_limit)
GUARDED(channel_lend)
GUARDED(channel_grant)
GUARDED(channel_watch)
GUARDED_QUIET(channel_pulse, Py_None)
GUARDED(channel_wait_pulse)
GUARDED(channel_wait_change)
GUARDED(channel_counts)
GUARDED(channel_awake)
GUARDED(channel_lends)
GUARDED(channel_trace)
GUARDED(channel_forget_events)
GUARDED(channel_read_events)
GUARDED(channel_present)

PyMethodDef pp_observing_methods[] = {
    METHOD("limit", channel_limit, METH_VARARGS, limit_doc),
    METHOD("lend", channel_lend, METH_O, "lend(n_cpus)\n\n"
           "Lets this pool lend so many CPUs, as far as other programs leave them idle, which is observed from now on.\n"
           "Changes are told by the pulse. 0: ends lending."),
    METHOD("grant", channel_grant, METH_VARARGS, "grant(worker, n_threads)\n\n"
                                                    "Sets how many threads a worker's libraries may use; 0: no limit."),
    METHOD("watch", channel_watch, METH_NOARGS, "watch()\n\n"
                                                   "Makes the pulse tell when workers become idle and active, from now on."),
    METHOD("pulse", channel_pulse, METH_NOARGS, "pulse()\n\nWakes the threads that wait for the pulse."),
    METHOD("wait_pulse", channel_wait_pulse, METH_O, wait_pulse_doc),
    METHOD("wait_change", channel_wait_change, METH_VARARGS, wait_change_doc),
    METHOD("counts", channel_counts, METH_NOARGS, counts_doc),
    METHOD("awake", channel_awake, METH_NOARGS, awake_doc),
    METHOD("lends", channel_lends, METH_NOARGS, "lends() -> (n_lends, n_reclaims)\n\nCounts within this process."),
    METHOD("trace", channel_trace, METH_O, "trace(on)\n\nMakes workers record events, or stop it."),
    METHOD("forget_events", channel_forget_events, METH_NOARGS, "forget_events()\n\nGives back the memory of events."),
    METHOD("read_events", channel_read_events, METH_VARARGS, read_events_doc),
    METHOD("present", channel_present, METH_O, present_doc),
    {0},
};
