/* Job: a call in progress. Everything that changes a call until its outcome is decided is here and in calls.c, in C
 * functions that run no Python code of ours. So no Python signal handler runs within a change. */
#include "python.h"

#include <stddef.h>
#include <structmember.h>

/* ---- creation ---- */

/* A job that is not initialized is one of a single call. */
static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    pp_job_t *self = (pp_job_t *)type->tp_alloc(type, 0);
    if (self) {
        self->n_items = self->chunk = self->length = self->remaining = 1;
        self->sequence = self->failed = -1;
    }
    return (PyObject *)self;
}

static int job_init(pp_job_t *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n_items", "chunk", "kind", "window", NULL};
    Py_ssize_t n_items = 1, chunk = 1, window = 0;
    int kind = PP_JOB_SINGLE;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|nnin", names, &n_items, &chunk, &kind, &window))
        return -1;
    if (n_items < 0 || chunk < 1 || kind < 0 || kind >= PP_JOB_KINDS || self->results || self->arrived) {
        PyErr_SetString(PyExc_ValueError, "Job needs n_items >= 0, chunk >= 1 and a kind, once");
        return -1;
    }
    self->kind = (pp_job_kind_t)kind;
    self->n_items = n_items;
    self->chunk = chunk;
    self->cursor = 0;
    self->sequence = -1;
    self->window = window;
    self->length = window > 0 ? -1 : n_items / chunk + (n_items % chunk != 0);   /* -1: `pp_job_end_input` tells it */
    self->remaining = window == 0 && self->length > 0 ? self->length : 0;
    if (kind == PP_JOB_MAP && (self->results = PyList_New(n_items)) != NULL)
        PyObject_GC_UnTrack(self->results);   /* until it is complete, nobody else may see it */
    if (kind == PP_JOB_STREAM)
        self->arrived = PyDict_New();
    return PyErr_Occurred() ? -1 : 0;
}

static int job_traverse(pp_job_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->value);
    Py_VISIT(self->function);
    Py_VISIT(self->owner);
    Py_VISIT(self->called);
    Py_VISIT(self->items);
    Py_VISIT(self->failures);
    Py_VISIT(self->memo);
    Py_VISIT(self->commons);
    Py_VISIT(self->preludes);
    Py_VISIT(self->arrived);
    for (Py_ssize_t i = 0; self->results && i < PyList_GET_SIZE(self->results); i++)
        Py_VISIT(PyList_GET_ITEM(self->results, i));
    return 0;
}

static int job_clear(pp_job_t *self) {
    Py_CLEAR(self->results);
    Py_CLEAR(self->value);
    Py_CLEAR(self->function);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->called);
    Py_CLEAR(self->items);
    Py_CLEAR(self->failures);
    Py_CLEAR(self->memo);
    Py_CLEAR(self->commons);
    Py_CLEAR(self->preludes);
    Py_CLEAR(self->arrived);
    return 0;
}

static void job_dealloc(pp_job_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    job_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- outcomes; callers are in the job's critical section, unless a comment says otherwise ---- */

/* Decides the outcome of a call, which has no value yet. The first one wins: false if there was one. */
static bool decide(pp_job_t *job, int status, PyObject *value) {
    if (job->settled)
        return false;
    job->status = status;
    job->value = Py_NewRef(value);
    pp_store_seq_cst(&job->settled, 1);
    return true;
}

/* Whether the task whose first item is `first` already has an outcome. */
static bool has_outcome(pp_job_t *job, Py_ssize_t first) {
    return job->results == NULL || first >= job->n_items || PyList_GET_ITEM(job->results, first) != NULL;
}

/* Returns the list of results, with None in place of missing ones, and without those that an input which was shorter than
 * its length does not have. */
static PyObject *take_results(pp_job_t *job) {
    PyObject *list = job->results;
    job->results = NULL;
    for (Py_ssize_t i = 0; i < job->n_items; i++)
        if (PyList_GET_ITEM(list, i) == NULL)
            PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
    PyObject_GC_Track(list);
    if (PyList_GET_SIZE(list) > job->n_items && PyList_SetSlice(list, job->n_items, PyList_GET_SIZE(list), NULL) < 0)
        Py_CLEAR(list);
    return list;
}

/* Adds a task's failure to those that are part of a map's result. Without memory, that error is the map's outcome. */
static void collect_failure(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    PyObject *failure = Py_BuildValue("(IiO)", index, status, value);
    if (job->failures == NULL)
        job->failures = PyList_New(0);
    if ((failure == NULL || job->failures == NULL || PyList_Append(job->failures, failure) < 0) && job->value == NULL) {
        job->status = PP_STATUS_RAISED;
        job->value = PyErr_GetRaisedException();
    }
    PyErr_Clear();
    Py_XDECREF(failure);
}

static void store_failure(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    PyList_SET_ITEM(job->results, (Py_ssize_t)index * job->chunk, Py_NewRef(Py_Ellipsis));
    if (job->collects) {
        collect_failure(job, index, status, value);
    } else if (job->value == NULL) {   /* the call's failure is the first to arrive */
        job->status = status;
        job->value = Py_NewRef(value);
        job->failed = index;
    }
}

/* Stores the outcome of a map's task. A chunk's value is the list of its items' results. */
static bool store(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    Py_ssize_t first = (Py_ssize_t)index * job->chunk;
    if (has_outcome(job, first))
        return false;
    if (status != PP_STATUS_OK) {
        store_failure(job, index, status, value);
    } else if (job->chunk == 1) {
        PyList_SET_ITEM(job->results, first, Py_NewRef(value));
    } else {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value) && first + i < job->n_items; i++)
            PyList_SET_ITEM(job->results, first + i, Py_NewRef(PyList_GET_ITEM(value, i)));
    }
    return true;
}

static bool is_at_end(pp_job_t *job) { return job->length >= 0 && job->n_delivered >= job->length; }

/* Decides the outcome of a map all of whose tasks have theirs. */
static bool end_map(pp_job_t *job) {
    if (!is_at_end(job))
        return false;
    if (job->value == NULL && (job->value = take_results(job)) == NULL) {
        job->status = PP_STATUS_RAISED;
        job->value = PyErr_GetRaisedException();
    }
    pp_store_seq_cst(&job->settled, 1);
    return true;
}

static bool deliver_map(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    if (!store(job, index, status, value))
        return false;
    job->n_delivered++;
    job->remaining--;
    return end_map(job);
}

static bool deliver_single(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    job->failed = status == PP_STATUS_OK ? -1 : (Py_ssize_t)index;
    return decide(job, status, value);
}

/* Keeps an outcome until the consumer has taken those before it. at: its position among them. index: its task; -1: none. */
static void keep_outcome(pp_job_t *job, Py_ssize_t at, int status, PyObject *value, Py_ssize_t index) {
    PyObject *key = job->is_abandoned ? NULL : PyLong_FromSsize_t(at);
    PyObject *outcome = key ? Py_BuildValue("(iOn)", status, value, index) : NULL;
    if (outcome && PyDict_SetItem(job->arrived, key, outcome) < 0)
        PyErr_WriteUnraisable((PyObject *)job);
    Py_XDECREF(key);
    Py_XDECREF(outcome);
}

static pp_delivery_t deliver_stream(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    Py_ssize_t at = job->ordered ? (Py_ssize_t)index : job->n_delivered;
    keep_outcome(job, at, status, value, index);
    job->n_delivered++;
    job->remaining = (job->length >= 0 ? job->length : job->n_read) - job->n_delivered;
    if (!is_at_end(job))
        return at == job->next ? PP_DELIVERED_NEXT : PP_DELIVERED;
    decide(job, PP_STATUS_OK, Py_None);
    return PP_DELIVERED_LAST;
}

/* Whether one more task may be read. A map keeps its results anyway. A reader that waits goes on when it has room for some. */
static bool may_read_one_more(const pp_job_t *job) {
    enum { SOME = 8 };   /* one in so many */
    Py_ssize_t ahead = job->reader_waits ? job->ahead - job->ahead / SOME : job->ahead;
    bool is_ahead = job->ahead > 0 && job->n_read - job->n_delivered >= ahead;
    return !is_ahead && (job->kind == PP_JOB_MAP || job->is_lifted || job->n_read - job->next < job->window);
}

/* Whether a reader that waits may go on. It sees what changed before it waits, and whoever changes something later sees that
 * it waits: both hold the critical section. */
static bool may_go_on(pp_job_t *job) { return job->reader_waits && (job->settled || may_read_one_more(job)); }

/* Enters the critical section itself. */
pp_delivery_t pp_job_deliver(pp_job_t *job, uint32_t index, int status, PyObject *value) {
    pp_delivery_t delivery;
    bool makes_room;
    Py_BEGIN_CRITICAL_SECTION(job);
    if (job->settled)
        delivery = PP_DELIVERED_LATE;
    else if (job->kind == PP_JOB_STREAM)
        delivery = deliver_stream(job, index, status, value);
    else if (job->kind == PP_JOB_MAP)
        delivery = deliver_map(job, index, status, value) ? PP_DELIVERED_LAST : PP_DELIVERED;
    else
        delivery = deliver_single(job, index, status, value) ? PP_DELIVERED_LAST : PP_DELIVERED;
    if (delivery == PP_DELIVERED_LAST)
        job->remaining = 0;
    makes_room = may_go_on(job);
    Py_END_CRITICAL_SECTION();
    if (makes_room)
        pp_job_wake_reader(job);
    return delivery;
}

/* Called with the job's critical section. */
bool pp_job_settle_held(pp_job_t *job, int status, PyObject *value, PyObject **replaced) {
    *replaced = job->settled ? NULL : job->value;   /* of a map: a task's failure, which the call's outcome replaces */
    if (*replaced)
        job->value = NULL;
    job->failed = job->settled ? job->failed : -1;
    bool is_first = decide(job, status, value);
    if (is_first)
        job->remaining = 0;
    return is_first;
}

/* Gives the whole call an outcome, whatever happens to its tasks. False if it had one. Enters the critical section
 * itself. */
bool pp_job_settle(pp_job_t *job, int status, PyObject *value, PyObject **replaced) {
    bool is_first;
    Py_BEGIN_CRITICAL_SECTION(job);
    is_first = pp_job_settle_held(job, status, value, replaced);
    Py_END_CRITICAL_SECTION();
    pp_job_wake_reader(job);
    return is_first;
}

/* ---- inputs that are read while tasks run, and imap ---- */

bool pp_job_has_next(pp_job_t *job) {
    bool has = false;
    Py_BEGIN_CRITICAL_SECTION(job);
    if (job->arrived && PyDict_GET_SIZE(job->arrived) > 0) {
        PyObject *key = PyLong_FromSsize_t(job->next);
        has = key && PyDict_Contains(job->arrived, key) == 1;
        Py_XDECREF(key);
    }
    Py_END_CRITICAL_SECTION();
    return has;
}

void pp_job_wake_reader(pp_job_t *job) {
    if (job->window == 0)
        return;
    pp_add_seq_cst(&job->reader, 1);
    pp_futex_wake(&job->reader, INT32_MAX, UINT32_MAX);
}

static PyObject *pop_next(pp_job_t *job) {
    PyObject *key = PyLong_FromSsize_t(job->next);
    PyObject *outcome = key ? Py_XNewRef(PyDict_GetItemWithError(job->arrived, key)) : NULL;
    if (outcome && PyDict_DelItem(job->arrived, key) < 0)
        Py_CLEAR(outcome);
    Py_XDECREF(key);
    job->next += outcome != NULL;
    return outcome;
}

/* A new reference to (status, value, index of the task). NULL: nothing is there yet, or there is an exception. */
PyObject *pp_job_pop(pp_job_t *job) {
    PyObject *outcome;
    bool makes_room;
    Py_BEGIN_CRITICAL_SECTION(job);
    outcome = pop_next(job);
    makes_room = may_go_on(job);
    Py_END_CRITICAL_SECTION();
    if (makes_room)
        pp_job_wake_reader(job);
    return outcome;
}

/* The failure of the whole stream, once; after that NULL. */
PyObject *pp_job_pop_failure(pp_job_t *job) {
    PyObject *outcome = NULL;
    Py_BEGIN_CRITICAL_SECTION(job);
    if (job->settled && job->status != PP_STATUS_OK) {
        outcome = Py_BuildValue("(iOi)", job->status, job->value, -1);
        job->status = PP_STATUS_OK;
    }
    Py_END_CRITICAL_SECTION();
    return outcome;
}

/* 1: the reader may read one more task, which now counts as read; 0: it must stop; -1: it must wait. */
static int reserve_task(pp_job_t *job) {
    int may;
    Py_BEGIN_CRITICAL_SECTION(job);
    bool is_over = job->settled || job->is_abandoned;
    may = is_over ? 0 : job->id != 0 && may_read_one_more(job) ? 1 : -1;
    job->n_read += may == 1;
    job->remaining += may == 1;
    job->reader_waits = may < 0;
    Py_END_CRITICAL_SECTION();
    return may;
}

PyDoc_STRVAR(reserve_doc, "reserve() -> bool\n\n"
                          "Called by the thread that reads a call's input. Waits until the call is admitted and one more\n"
                          "task may be read. False: read no more.");
static PyObject *job_reserve(pp_job_t *self, PyObject *ignored) {
    (void)ignored;
    for (;;) {
        uint32_t seen = pp_load_seq_cst(&self->reader);
        int may = reserve_task(self);
        if (may >= 0)
            return PyBool_FromLong(may);
        Py_BEGIN_ALLOW_THREADS
        pp_futex_wait(&self->reader, seen, -1, UINT32_MAX);
        Py_END_ALLOW_THREADS
    }
}

/* length: the number of tasks that were read. n_missing: how many items the last of them has less than `chunk`. error: what
 * the input has raised, or NULL. Of a stream it comes after all results, also if these have no order, and is no task's. Of a
 * map it is the failure, unless a task failed before. False: the call continues. */
bool pp_job_end_input(pp_job_t *job, Py_ssize_t length, Py_ssize_t n_missing, PyObject *error) {
    bool is_over;
    Py_BEGIN_CRITICAL_SECTION(job);
    job->length = length;
    job->remaining = job->settled ? 0 : length - job->n_delivered;
    if (job->settled) {
        is_over = false;
    } else if (job->kind == PP_JOB_MAP) {
        job->n_items = Py_MIN(job->n_items, length * job->chunk - n_missing);
        if (error && job->value == NULL) {
            job->status = PP_STATUS_RAISED;
            job->value = Py_NewRef(error);
        }
        is_over = end_map(job);
    } else {
        if (error)
            keep_outcome(job, length, PP_STATUS_RAISED, error, -1);
        is_over = is_at_end(job) && decide(job, PP_STATUS_OK, Py_None);
    }
    Py_END_CRITICAL_SECTION();
    return is_over;
}

PyDoc_STRVAR(watch_doc, "watch() -> bool\n\n"
                        "Has `run_callbacks` called once the call is done, if it is not anyway. False: the outcome was decided before.");
static PyObject *job_watch(pp_job_t *self, PyObject *ignored) {
    (void)ignored;
    bool is_pending;
    Py_BEGIN_CRITICAL_SECTION(self);   /* `callbacks` is read once the outcome is decided, and stays as it was then */
    is_pending = !self->settled;
    if (is_pending && self->callbacks == PP_CALLBACKS_NONE)
        self->callbacks = PP_CALLBACKS_AFTER;
    Py_END_CRITICAL_SECTION();
    return PyBool_FromLong(is_pending);
}

PyDoc_STRVAR(abandon_doc, "abandon()\n\n"
                          "Notes that nobody will ask for results. Takes no lock, so finalizers and signal handlers may\n"
                          "call it.");
static PyObject *job_abandon(pp_job_t *self, PyObject *ignored) {
    (void)ignored;
    self->is_abandoned = 1;
    pp_job_wake_reader(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(lift_doc, "lift_window()\n\nLets the reader run ahead of the consumer without limit, since the pool is being joined.");
static PyObject *job_lift_window(pp_job_t *self, PyObject *ignored) {
    (void)ignored;
    self->is_lifted = 1;
    pp_job_wake_reader(self);
    Py_RETURN_NONE;
}

/* ---- the types ---- */

static PyMethodDef job_methods[] = {
    {"reserve", (PyCFunction)job_reserve, METH_NOARGS, reserve_doc},
    {"watch", (PyCFunction)job_watch, METH_NOARGS, watch_doc},
    {"abandon", (PyCFunction)job_abandon, METH_NOARGS, abandon_doc},
    {"lift_window", (PyCFunction)job_lift_window, METH_NOARGS, lift_doc},
    {0},
};

static PyMemberDef job_members[] = {
    {"id", T_ULONGLONG, offsetof(pp_job_t, id), READONLY, "number of the call, unique in its pool; 0 before it is admitted"},
    {"n_items", T_PYSSIZET, offsetof(pp_job_t, n_items), READONLY, "number of items"},
    {"chunk", T_PYSSIZET, offsetof(pp_job_t, chunk), READONLY, "items per task"},
    {"cursor", T_PYSSIZET, offsetof(pp_job_t, cursor), 0, "index of the next task to put"},
    {"remaining", T_PYSSIZET, offsetof(pp_job_t, remaining), READONLY, "tasks without an outcome"},
    {"n_delivered", T_PYSSIZET, offsetof(pp_job_t, n_delivered), READONLY, "tasks of a map or a stream with an outcome of their own"},
    {"sequence", T_LONGLONG, offsetof(pp_job_t, sequence), READONLY, "the sequence of a single task that is in the channel;\n"
                                                                     "otherwise -1"},
    {"settled", T_BOOL, offsetof(pp_job_t, settled), READONLY, "the outcome is decided; callbacks may still run"},
    {"done", T_BOOL, offsetof(pp_job_t, done), READONLY, "the outcome is available"},
    {"status", T_INT, offsetof(pp_job_t, status), READONLY, "a STATUS_ constant, once the call is settled"},
    {"value", T_OBJECT, offsetof(pp_job_t, value), READONLY, "the outcome's value, once the call is settled"},
    {"callbacks", T_BYTE, offsetof(pp_job_t, callbacks), 0, "a CALLBACKS_ constant: whether, and when, they run"},
    {"ordered", T_BOOL, offsetof(pp_job_t, ordered), 0, "whether a stream's results come in the order of its input"},
    {"ahead", T_PYSSIZET, offsetof(pp_job_t, ahead), 0, "how many tasks without an outcome may have been read; 0: any number"},
    {"is_timed", T_BOOL, offsetof(pp_job_t, is_timed), 0, "whether workers record when they claim its tasks; set before it is admitted"},
    {"function", T_OBJECT, offsetof(pp_job_t, function), 0, "what must live until the call is done: its published function"},
    {"owner", T_OBJECT, offsetof(pp_job_t, owner), 0, "what must live until the call is done: its pool"},
    {"failed", T_PYSSIZET, offsetof(pp_job_t, failed), READONLY, "the task whose failure is the outcome, or -1"},
    {"collects", T_BOOL, offsetof(pp_job_t, collects), 0, "whether failures of a map's tasks are part of its result; set before it is admitted"},
    {"failures", T_OBJECT, offsetof(pp_job_t, failures), READONLY, "of a map that collects: (task, status, value) of each, or None"},
    {0},
};

/* The call may be done meanwhile, which clears both. */
static PyObject *read_member(pp_job_t *self, PyObject **member) {
    (void)self;
    PyObject *value;
    Py_BEGIN_CRITICAL_SECTION(self);
    value = Py_NewRef(*member ? *member : Py_None);
    Py_END_CRITICAL_SECTION();
    return value;
}

static PyObject *get_called(pp_job_t *self, void *ignored) {
    (void)ignored;
    return read_member(self, &self->called);
}

static int set_called(pp_job_t *self, PyObject *value, void *ignored) {
    (void)ignored;
    PyObject *name = value ? pp_name_of(value) : NULL, *old;
    if (name == NULL)
        return -1;
    Py_BEGIN_CRITICAL_SECTION(self);
    old = self->called;
    self->called = name;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(old);
    return 0;
}

static PyObject *get_items(pp_job_t *self, void *ignored) {
    (void)ignored;
    return read_member(self, &self->items);
}

static PyGetSetDef job_getset[] = {
    {"called", (getter)get_called, (setter)set_called, "the name of the function that it calls, until it is done, or None; a function is set", NULL},
    {"items", (getter)get_items, NULL, "a map's input if that is plain, until it is done, or None", NULL},
    {0},
};

PyDoc_STRVAR(job_doc, "Job(n_items=1, chunk=1, kind=JOB_SINGLE, window=0)\n\n"
                      "One call of a pool: a single call, a map or a stream (imap). window: how many tasks of a stream may\n"
                      "be read ahead of its consumer, and more than 0 if a map's input is read while its tasks run; 0: there\n"
                      "are n_items items. Thread-safe.");

static PyType_Slot job_slots[] = {
    {Py_tp_doc, (void *)job_doc},       {Py_tp_new, job_new},         {Py_tp_init, job_init},
    {Py_tp_traverse, job_traverse},
    {Py_tp_clear, job_clear},           {Py_tp_dealloc, job_dealloc}, {Py_tp_methods, job_methods},
    {Py_tp_members, job_members},       {Py_tp_getset, job_getset},   {0, NULL},
};

PyType_Spec pp_job_spec = {
    .name = "pool_party._native.Job",
    .basicsize = sizeof(pp_job_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = job_slots,
};
