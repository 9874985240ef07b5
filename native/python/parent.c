/* Channel, the parent side for Python: its life, its workers, and its Python interface. Continued in putting.c (tasks
 * out), results.c (results back), calls.c (the table of calls), waiting.c (waiting threads) and observing.c (budgets
 * and traces).
 */
#include "python.h"

#include <errno.h>
#include <string.h>

static int make_tables(pp_channel_t *self, PyObject *backlog) {
    self->calls = PyDict_New();
    self->reports = PyList_New(0);
    self->intercepted = PyList_New(0);
    self->idle = (pp_job_t *)PyObject_CallNoArgs((PyObject *)self->module->job_type);
    self->backlog = Py_XNewRef(backlog);
    self->append = backlog ? PyObject_GetAttrString(backlog, "append") : NULL;
    self->popleft = backlog ? PyObject_GetAttrString(backlog, "popleft") : NULL;
    bool has_backlog = backlog == NULL || (self->append && self->popleft);
    bool is_complete = self->calls && self->reports && self->intercepted && self->idle && has_backlog;
    return is_complete ? 0 : -1;
}

static int channel_init(pp_channel_t *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n_workers", "by_reference", "backlog", NULL};
    Py_ssize_t n_workers;
    int by_reference = 0;
    PyObject *backlog = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|pO", names, &n_workers, &by_reference, &backlog))
        return -1;
    if (self->segment) {
        PyErr_SetString(PyExc_RuntimeError, "Channel is initialised once");
        return -1;
    }
    if (n_workers < 1 || n_workers > (Py_ssize_t)PP_MAX_WORKERS) {
        PyErr_Format(PyExc_ValueError, "n_workers must be from 1 to %u, not %zd", PP_MAX_WORKERS, n_workers);
        return -1;
    }
    self->module = pp_module_of(Py_TYPE(self));
    self->by_reference = by_reference;
    self->n_forks = pp_load_relaxed(&pp_n_forks);
    if (make_tables(self, backlog) < 0)
        return -1;
    int error = pp_segment_create((unsigned)n_workers, by_reference, &self->segment);
    if (error) {
        pp_raise_errno(error);
        return -1;
    }
    pp_parent_init(&self->parent, self->segment);
    if ((self->arena = pp_arena_new(self->segment, 0)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pp_store_seq_cst(&self->n_users, 1);
    pp_watch_interrupts();
    return 0;
}

static void drop_slot(pp_channel_t *self, pp_slot_t *slot) {
    if (!self->by_reference)
        return;
    PyObject **pair = (PyObject **)slot->data;
    Py_DECREF(pair[0]);
    Py_DECREF(pair[1]);
}

/* Drops objects that are still on their way. They are ours, unless this is a forked child. */
static void drop_all(pp_channel_t *self) {
    pp_slot_t slot;
    while (pp_parent_pop_waiting(&self->parent, &slot))
        drop_slot(self, &slot);
    for (unsigned i = 0; i < self->segment->n_workers; i++)
        for (const pp_frame_t *f; (f = pp_parent_peek(&self->parent, i)) != NULL;) {
            PyObject *value = *(PyObject **)(f + 1);
            pp_parent_take(&self->parent, i, f);
            Py_DECREF(value);
        }
}

/* Releases the memory that both sides map, and its descriptor. Values that outlive the pool keep their own part.
 * at_once: no worker uses it any more; otherwise the last worker's reference releases it. In a forked child only our
 * mapping is released. */
static void close_segment(pp_channel_t *self, bool at_once) {
    pp_segment_t *segment = self->segment;
    pp_arena_t *arena = self->arena;
    if (segment && arena && self->by_reference && self->n_forks == pp_load_relaxed(&pp_n_forks))
        drop_all(self);
    self->arena = NULL;
    self->segment = NULL;
    pp_arena_free(arena);
    if (segment) {
        pp_orphans_drop(segment);
        if (at_once && self->n_forks == pp_load_relaxed(&pp_n_forks))
            pp_segment_close(segment);
    }
    pp_segment_unref(segment);
}

static int channel_traverse(pp_channel_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->calls);
    Py_VISIT(self->reports);
    Py_VISIT(self->intercepted);
    Py_VISIT(self->idle);
    Py_VISIT(self->backlog);
    Py_VISIT(self->append);
    Py_VISIT(self->popleft);
    Py_VISIT(self->put_waiting);
    Py_VISIT(self->receivers);
    for (pp_job_t *job = self->first_deferred; job; job = job->next_deferred)
        Py_VISIT(job);
    return 0;
}

static int channel_clear(pp_channel_t *self) {
    pp_channel_drop_postponed(self);
    Py_CLEAR(self->calls);
    Py_CLEAR(self->reports);
    Py_CLEAR(self->intercepted);
    Py_CLEAR(self->idle);
    Py_CLEAR(self->backlog);
    Py_CLEAR(self->append);
    Py_CLEAR(self->popleft);
    Py_CLEAR(self->put_waiting);
    Py_CLEAR(self->receivers);
    for (pp_job_t *job = self->first_deferred, *next; job; job = next) {
        next = job->next_deferred;
        job->next_deferred = NULL;
        Py_DECREF(job);
    }
    self->first_deferred = self->last_deferred = NULL;
    return 0;
}

static void channel_dealloc(pp_channel_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    close_segment(self, false);
    channel_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- its end ---- */

/* Every user of the shared memory is counted, and so is the pool itself until it closes the channel. The last one to
 * leave closes the memory. So a thread that wakes up late finds the memory still there. */
bool pp_channel_is_closed(pp_channel_t *self) { return pp_load_seq_cst(&self->is_closed); }

PyObject *pp_channel_raise_closed(void) {
    PyErr_SetString(PyExc_ValueError, "the pool has ended");
    return NULL;
}

void pp_channel_leave(pp_channel_t *self) {
    if (pp_add_seq_cst(&self->n_users, -1) == 1)
        close_segment(self, true);
}

bool pp_channel_enter(pp_channel_t *self) { return !pp_channel_is_closed(self) && pp_channel_enter_late(self); }

bool pp_channel_enter_late(pp_channel_t *self) {
    if (self->n_forks != pp_load_relaxed(&pp_n_forks))
        return false;   /* a forked child: everything shared belongs to its parent */
    long n = pp_load_seq_cst(&self->n_users);
    while (n > 0)
        if (pp_cas_seq_cst(&self->n_users, &n, n + 1))
            return true;
    return false;
}

#define GUARDED(function)                                                       \
    static PyObject *guarded_##function(pp_channel_t *self, PyObject *arg) {    \
        if (!pp_channel_enter(self))                                                       \
            return pp_channel_raise_closed();                                   \
        PyObject *result = function(self, arg);                                 \
        pp_channel_leave(self);                                                            \
        return result;                                                          \
    }
#define GUARDED_QUIET(function, otherwise)                                      \
    static PyObject *guarded_##function(pp_channel_t *self, PyObject *arg) {    \
        if (!pp_channel_enter(self))                                            \
            return Py_NewRef(otherwise);                                        \
        PyObject *result = function(self, arg);                                 \
        pp_channel_leave(self);                                                 \
        return result;                                                          \
    }

PyDoc_STRVAR(close_doc, "close()\n\n"
                        "Called once the pool has ended. Gives back the shared memory and its descriptor as soon as no\n"
                        "thread uses them. From then on everything except reading calls raises ValueError.");
static PyObject *channel_close(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (!pp_swap_seq_cst(&self->is_closed, 1))
        pp_channel_leave(self);
    PyObject *put_waiting;
    Py_BEGIN_CRITICAL_SECTION(self);
    put_waiting = self->put_waiting;
    self->put_waiting = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(put_waiting);
    Py_RETURN_NONE;
}

/* A reference that stands for all use of a pool from outside. Its finalizer is in C, since one in Python could be
 * interrupted. */
typedef struct {
    PyObject_HEAD
    pp_channel_t *channel;
} keeper_t;

static int keeper_traverse(keeper_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->channel);
    return 0;
}

static int keeper_clear(keeper_t *self) {
    pp_channel_t *channel = self->channel;
    self->channel = NULL;
    if (channel) {
        pp_store_seq_cst(&channel->is_abandoned, 1);
        if (pp_channel_enter(channel)) {
            pp_parent_notify(&channel->parent);
            pp_channel_leave(channel);
        }
    }
    Py_XDECREF(channel);
    return 0;
}

static void keeper_dealloc(keeper_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    keeper_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot keeper_slots[] = {
    {Py_tp_doc, "When the last reference to this is gone, the channel is abandoned."},
    {Py_tp_traverse, keeper_traverse},
    {Py_tp_clear, keeper_clear},
    {Py_tp_dealloc, keeper_dealloc},
    {0, NULL},
};

PyType_Spec pp_keeper_spec = {
    .name = "pool_party._native.Keeper",
    .basicsize = sizeof(keeper_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = keeper_slots,
};

PyDoc_STRVAR(keeper_doc, "keeper() -> Keeper\n\n"
                         "Returns a keeper for all users of the pool: `is_abandoned` is true once it is gone.");
static PyObject *channel_keeper(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    keeper_t *keeper = (keeper_t *)self->module->keeper_type->tp_alloc(self->module->keeper_type, 0);
    if (keeper)
        keeper->channel = (pp_channel_t *)Py_NewRef(self);
    return (PyObject *)keeper;
}

static PyObject *get_is_damaged(pp_channel_t *self, void *closure) {
    (void)closure;
    if (!pp_channel_enter(self))
        Py_RETURN_FALSE;
    bool is_sound = pp_segment_is_sound(self->segment);
    pp_channel_leave(self);
    return PyBool_FromLong(!is_sound);
}

static PyObject *get_wants_trim(pp_channel_t *self, void *closure) {
    (void)closure;
    if (!pp_channel_enter(self))
        Py_RETURN_FALSE;
    bool wants_trim = pp_load_relaxed(&self->segment->shared->wants_trim);
    pp_channel_leave(self);
    return PyBool_FromLong(wants_trim);
}

static PyObject *get_idle_bytes(pp_channel_t *self, void *closure) {
    (void)closure;
    if (!pp_channel_enter(self))
        return PyLong_FromLong(0);
    uint64_t n_bytes = pp_blocks_idle(self->segment);
    pp_channel_leave(self);
    return PyLong_FromUnsignedLongLong(n_bytes);
}

static PyObject *get_has_pins(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(self->arena && pp_arena_has_pins(self->arena));
}

bool pp_channel_revoke(pp_channel_t *self, uint64_t sequence) {
    pp_slot_t slot;
    bool is_ours = pp_parent_revoke(&self->parent, sequence, &slot);
    if (is_ours)
        drop_slot(self, &slot);
    return is_ours;
}

/* Takes back the tasks of a map that wait in the channel. Its call is settled, so no more of them are put. */
void pp_channel_revoke_all(pp_channel_t *self, uint64_t job) {
    pp_slot_t slot;
    for (uint64_t from = 0; pp_parent_revoke_next_of(&self->parent, job, &from, &slot);)
        drop_slot(self, &slot);
}

static PyObject *channel_notify(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (pp_channel_enter(self)) {   /* may be called from finalizers, at any time */
        pp_parent_notify(&self->parent);
        pp_channel_leave(self);
    }
    Py_RETURN_NONE;
}

/* ---- workers ---- */

int pp_channel_slot(pp_channel_t *self, PyObject *arg) {
    unsigned long worker = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return -1;
    if (worker < self->segment->n_workers)
        return (int)worker;
    PyErr_Format(PyExc_IndexError, "no worker %lu", worker);
    return -1;
}

PyDoc_STRVAR(open_slot_doc, "open_slot(worker)\n\nPrepares an empty worker slot for a new worker.");
static PyObject *channel_open_slot(pp_channel_t *self, PyObject *arg) {
    int worker = pp_channel_slot(self, arg);
    if (worker < 0)
        return NULL;
    pp_forget_bars(pp_segment_worker(self->segment, (unsigned)worker));
    pp_parent_open_slot(&self->parent, (unsigned)worker);
    Py_RETURN_NONE;
}

static PyObject *channel_state_of(pp_channel_t *self, PyObject *arg) {
    int n = pp_channel_slot(self, arg);
    return n < 0 ? NULL : PyLong_FromUnsignedLong(pp_load_acquire(&pp_segment_worker(self->segment, (unsigned)n)->state));
}

static PyObject *channel_n_done(pp_channel_t *self, PyObject *arg) {
    int n = pp_channel_slot(self, arg);
    return n < 0 ? NULL : PyLong_FromUnsignedLongLong(pp_load_relaxed(&pp_segment_worker(self->segment, (unsigned)n)->n_done));
}

static PyObject *channel_is_busy(pp_channel_t *self, PyObject *arg) {
    int n = pp_channel_slot(self, arg);
    if (n < 0)
        return NULL;
    pp_worker_slot_t *worker = pp_segment_worker(self->segment, (unsigned)n);
    return PyBool_FromLong(pp_load_acquire(&worker->holds) && !pp_load_relaxed(&worker->has_replied));
}

static PyObject *channel_is_begun(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "is_begun asks about a Job");
        return NULL;
    }
    bool is_begun = false;
    for (unsigned i = 0; i < self->segment->n_workers && !is_begun; i++) {
        pp_worker_slot_t *worker = pp_segment_worker(self->segment, i);
        is_begun = pp_load_acquire(&worker->holds) && pp_load_relaxed(&worker->job) == ((pp_job_t *)arg)->id;
    }
    return PyBool_FromLong(is_begun);
}

PyDoc_STRVAR(holders_doc, "holders(job) -> list of int, or None\n\nThe workers that have claimed a task of this call and are not through with it;\n"
                          "None once the channel is closed.");
static PyObject *channel_holders(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "holders asks about a Job");
        return NULL;
    }
    PyObject *holders = PyList_New(0);
    for (unsigned i = 0; holders && i < self->segment->n_workers; i++) {
        if (!pp_parent_is_held(&self->parent, i, ((pp_job_t *)arg)->id))
            continue;
        PyObject *n = PyLong_FromUnsignedLong(i);
        if (n == NULL || PyList_Append(holders, n) < 0)
            Py_CLEAR(holders);
        Py_XDECREF(n);
    }
    return holders;
}

PyDoc_STRVAR(interrupt_doc, "interrupt(worker, ident, exception, begun_ns=0) -> bool\n\n"
                            "Raises an exception in the Python code of the task or initializer that a thread of this\n"
                            "process runs, if any. begun_ns: only in the timed task that began then. False: it is\n"
                            "impossible now; try again a little later.");
static PyObject *channel_interrupt(pp_channel_t *self, PyObject *args) {
    PyObject *n, *exception;
    unsigned long ident;
    unsigned long long begun_ns = 0;
    if (!PyArg_ParseTuple(args, "OkO|K", &n, &ident, &exception, &begun_ns))
        return NULL;
    int number = pp_channel_slot(self, n);
    if (number < 0)
        return NULL;
    pp_worker_slot_t *worker = pp_segment_worker(self->segment, (unsigned)number);
    bool is_importing = pp_worker_slot_runs(worker, begun_ns) && pp_is_importing(PyInterpreterState_Get(), ident);
    if (!is_importing)
        pp_interrupt(self->segment, worker, begun_ns, ident, exception);
    return PyBool_FromLong(!is_importing);
}

PyDoc_STRVAR(stop_doc, "stop(how)\n\nEnds workers. STOP_DRAIN: when no task waits; STOP_NOW: at once, between two tasks.");
static PyObject *channel_stop(pp_channel_t *self, PyObject *arg) {
    unsigned long how = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    if (how > pp_load_seq_cst(&self->segment->shared->stop))
        pp_parent_stop(&self->parent, (pp_stop_t)how);
    Py_RETURN_NONE;
}

static PyObject *channel_notify_all(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_notify_all(self->segment->shared);
    Py_RETURN_NONE;
}

static PyObject *pp_channel_take_events(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    return PyBool_FromLong(pp_swap_seq_cst(&self->segment->shared->events, 0));
}

PyDoc_STRVAR(worker_doc, "worker(n) -> Worker\n\nReturns a worker's end of the channel, for a thread of this interpreter.");
static PyObject *channel_worker(pp_channel_t *self, PyObject *arg) {
    int worker = pp_channel_slot(self, arg);
    return worker < 0 ? NULL : pp_worker_new(self->module, self->segment, (unsigned)worker);
}

PyDoc_STRVAR(start_interpreter_doc, "start_interpreter(n, key=None) -> Interpreter\n\n"
                                    "Creates an interpreter in a separate thread, for worker n; see its `run`. key: or takes\n"
                                    "one that an earlier pool has left for a worker with the same key.");
static PyObject *channel_start_interpreter(pp_channel_t *self, PyObject *args) {
    PyObject *n, *key = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &n, &key))
        return NULL;
    int worker = pp_channel_slot(self, n);
    PyObject *interpreter = worker < 0 ? NULL : pp_interpreter_start(self->module, self->segment, (unsigned)worker, key);
    self->is_local = self->is_local || interpreter;
    return interpreter;
}

static PyObject *get_fd(pp_channel_t *self, void *closure) {
    (void)closure;
    return pp_channel_is_closed(self) ? pp_channel_raise_closed() : PyLong_FromLong(self->segment->fd);
}

static PyObject *get_n_waiting(pp_channel_t *self, void *closure) {
    (void)closure;
    if (!pp_channel_enter(self))
        return PyLong_FromLong(0);
    PyObject *n = PyLong_FromUnsignedLongLong(pp_parent_n_waiting(&self->parent));
    pp_channel_leave(self);
    return n;
}

static PyObject *get_n_taken(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->n_taken);
}

static PyObject *get_is_starved(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_parent_is_starved(&self->parent));
}

static PyObject *get_wants_runner(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(self->first_deferred != NULL && !pp_load_seq_cst(&self->has_runner));
}

static PyObject *get_is_abandoned(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_load_seq_cst(&self->is_abandoned));
}

static PyObject *get_idle(pp_channel_t *self, void *closure) {
    (void)closure;
    return Py_NewRef(self->idle);
}

PyObject *pp_channel_put_waiting(pp_channel_t *self) {
    PyObject *put_waiting;
    Py_BEGIN_CRITICAL_SECTION(self);
    put_waiting = Py_XNewRef(self->put_waiting);
    Py_END_CRITICAL_SECTION();
    return put_waiting;
}

static PyObject *get_put_waiting(pp_channel_t *self, void *closure) {
    (void)closure;
    PyObject *put_waiting = pp_channel_put_waiting(self);
    return put_waiting ? put_waiting : Py_NewRef(Py_None);
}

static PyObject *get_receivers(pp_channel_t *self, void *closure) {
    (void)closure;
    return Py_NewRef(self->receivers ? self->receivers : Py_None);
}

static int set_receivers(pp_channel_t *self, PyObject *value, void *closure) {
    (void)closure;
    Py_XSETREF(self->receivers, Py_XNewRef(value));
    return 0;
}

static int set_put_waiting(pp_channel_t *self, PyObject *value, void *closure) {
    (void)closure;
    Py_XSETREF(self->put_waiting, Py_XNewRef(value));
    return 0;
}

static PyGetSetDef getset[] = {
    {"is_starved", (getter)get_is_starved, NULL, "a put was refused, and no worker has notified of new room since", NULL},
    {"has_pins", (getter)get_has_pins, NULL, "shared memory is retained for tasks that no worker has received yet", NULL},
    {"is_damaged", (getter)get_is_damaged, NULL, "the shared memory was overwritten", NULL},
    {"wants_trim", (getter)get_wants_trim, NULL, "blocks were released, so `trim` should be called after a while", NULL},
    {"idle_bytes", (getter)get_idle_bytes, NULL, "memory of blocks that are not in use", NULL},
    {"fd", (getter)get_fd, NULL, "file descriptor of the shared memory", NULL},
    {"n_waiting", (getter)get_n_waiting, NULL, "tasks that no worker has begun", NULL},
    {"n_taken", (getter)get_n_taken, NULL, "results taken so far", NULL},
    {"wants_runner", (getter)get_wants_runner, NULL, "callbacks are due, and no thread runs them", NULL},
    {"is_abandoned", (getter)get_is_abandoned, NULL, "its keeper is gone", NULL},
    {"idle", (getter)get_idle, NULL, "a Job that is done once a closed pool has no calls left", NULL},
    {"receivers", (getter)get_receivers, (setter)set_receivers, "what the workers have of __main__; see wire/definitions.py", NULL},
    {"put_waiting", (getter)get_put_waiting, (setter)set_put_waiting, "called by one thread at a time to put the backlog; its\n"
                                                                      "argument: whether that thread is putting already", NULL},
    {0},
};

GUARDED(pp_channel_take_results)
GUARDED(pp_channel_take_reports)
GUARDED(pp_channel_take_intercepted)
GUARDED_QUIET(pp_channel_task_of, Py_None)
GUARDED_QUIET(pp_channel_revoke_job, Py_None)
GUARDED_QUIET(pp_channel_show_bars, Py_None)
GUARDED_QUIET(pp_channel_bars_of, Py_None)
GUARDED_QUIET(pp_channel_feed, Py_None)
GUARDED_QUIET(pp_channel_feed_again, Py_None)
GUARDED(pp_channel_unpin)
GUARDED_QUIET(pp_channel_trim, Py_None)
GUARDED_QUIET(channel_notify_all, Py_None)
GUARDED(pp_channel_take_events)
GUARDED(pp_channel_watch)
GUARDED_QUIET(pp_channel_pulse, Py_None)
GUARDED(pp_channel_counts)
GUARDED(pp_channel_awake)
GUARDED(pp_channel_lends)
GUARDED(pp_channel_forget_events)
GUARDED(pp_channel_publish)
GUARDED(pp_channel_put)
GUARDED(pp_channel_put_many)
GUARDED_QUIET(pp_channel_admit, Py_False)
GUARDED_QUIET(pp_channel_enqueue, Py_None)
GUARDED_QUIET(pp_channel_enqueue_again, Py_None)
GUARDED_QUIET(pp_channel_deliver, Py_None)
GUARDED_QUIET(pp_channel_settle, Py_False)
GUARDED_QUIET(pp_channel_refuse, Py_None)
GUARDED_QUIET(pp_channel_skip, Py_None)
GUARDED_QUIET(pp_channel_end_input, Py_None)
GUARDED_QUIET(pp_channel_cancel, Py_False)
GUARDED(pp_channel_reap)
GUARDED(channel_open_slot)
GUARDED(channel_state_of)
GUARDED(channel_n_done)
GUARDED(channel_is_busy)
GUARDED_QUIET(channel_is_begun, Py_False)
GUARDED_QUIET(channel_holders, Py_None)
GUARDED_QUIET(channel_interrupt, Py_True)
GUARDED_QUIET(channel_stop, Py_None)
GUARDED(pp_channel_limit)
GUARDED(pp_channel_lend)
GUARDED(pp_channel_grant)
GUARDED(pp_channel_wait_pulse)
GUARDED(pp_channel_wait_change)
GUARDED(pp_channel_trace)
GUARDED(pp_channel_read_events)
GUARDED(pp_channel_present)
GUARDED(channel_worker)
GUARDED(channel_start_interpreter)

#define METHOD(name, function, flags, doc) {name, (PyCFunction)(void *)guarded_##function, flags, doc}
static PyMethodDef methods[] = {
    {"encode", (PyCFunction)pp_channel_encode, METH_VARARGS, pp_encode_doc},
    METHOD("publish", pp_channel_publish, METH_O, pp_publish_doc),
    METHOD("unpin", pp_channel_unpin, METH_NOARGS, pp_unpin_doc),
    METHOD("trim", pp_channel_trim, METH_NOARGS, pp_trim_doc),
    METHOD("put", pp_channel_put, METH_VARARGS, pp_put_doc),
    METHOD("put_many", pp_channel_put_many, METH_VARARGS, pp_put_many_doc),
    METHOD("admit", pp_channel_admit, METH_VARARGS, pp_admit_doc),
    METHOD("enqueue", pp_channel_enqueue, METH_O, pp_enqueue_doc),
    METHOD("enqueue_again", pp_channel_enqueue_again, METH_O, pp_enqueue_again_doc),
    METHOD("feed", pp_channel_feed, METH_NOARGS, pp_feed_doc),
    METHOD("feed_again", pp_channel_feed_again, METH_NOARGS, pp_feed_again_doc),
    METHOD("deliver", pp_channel_deliver, METH_VARARGS, pp_deliver_doc),
    METHOD("refuse", pp_channel_refuse, METH_VARARGS, pp_refuse_doc),
    METHOD("skip", pp_channel_skip, METH_VARARGS, pp_skip_doc),
    METHOD("settle", pp_channel_settle, METH_VARARGS, pp_settle_doc),
    METHOD("end_input", pp_channel_end_input, METH_VARARGS, pp_end_input_doc),
    METHOD("cancel", pp_channel_cancel, METH_O, pp_cancel_doc),
    {"finish", (PyCFunction)(void *)pp_channel_finish, METH_O, pp_finish_doc},
    {"set", (PyCFunction)(void *)pp_channel_set, METH_O, pp_set_doc},
    {"wait", (PyCFunction)(void *)pp_channel_wait, METH_FASTCALL, pp_wait_doc},
    {"next", (PyCFunction)(void *)pp_channel_next, METH_FASTCALL, pp_next_doc},
    {"close_calls", (PyCFunction)(void *)pp_channel_close_calls, METH_NOARGS, pp_close_calls_doc},
    {"jobs", (PyCFunction)pp_channel_jobs, METH_NOARGS, pp_jobs_doc},
    {"call_counts", (PyCFunction)pp_channel_call_counts, METH_NOARGS, pp_counts_of_calls_doc},
    {"next_deferred", (PyCFunction)pp_channel_next_deferred, METH_NOARGS, pp_next_deferred_doc},
    {"end_deferred", (PyCFunction)pp_channel_end_deferred, METH_NOARGS, pp_worker_deferred_doc},
    {"run_deferred", (PyCFunction)pp_channel_run_deferred, METH_O, pp_run_deferred_doc},
    METHOD("take_results", pp_channel_take_results, METH_NOARGS, pp_take_doc),
    METHOD("take_reports", pp_channel_take_reports, METH_NOARGS, pp_take_reports_doc),
    METHOD("take_intercepted", pp_channel_take_intercepted, METH_NOARGS, pp_take_intercepted_doc),
    {"intercept", (PyCFunction)pp_channel_intercept, METH_VARARGS, pp_intercept_doc},
    METHOD("task_of", pp_channel_task_of, METH_O, pp_task_of_doc),
    METHOD("revoke", pp_channel_revoke_job, METH_O, pp_revoke_doc),
    METHOD("show_bars", pp_channel_show_bars, METH_NOARGS, pp_show_bars_doc),
    METHOD("bars_of", pp_channel_bars_of, METH_O, pp_bars_of_doc),
    {"wait_background", (PyCFunction)(void *)pp_channel_wait_background, METH_FASTCALL, pp_wait_background_doc},
    {"notify", (PyCFunction)channel_notify, METH_NOARGS,
     "notify()\n\nMakes wait_background return, even while another thread leads. Takes no lock, and does nothing after `close`."},
    {"close", (PyCFunction)channel_close, METH_NOARGS, close_doc},
    {"keeper", (PyCFunction)channel_keeper, METH_NOARGS, keeper_doc},
    METHOD("open_slot", channel_open_slot, METH_O, open_slot_doc),
    METHOD("reap", pp_channel_reap, METH_O, pp_reap_doc),
    METHOD("state_of", channel_state_of, METH_O, "state_of(worker) -> int\n\nReturns a WORKER_ constant: the state of a worker."),
    METHOD("n_done", channel_n_done, METH_O, "n_done(worker) -> int\n\nReturns the number of tasks that the worker has finished."),
    METHOD("is_busy", channel_is_busy, METH_O, "is_busy(worker) -> bool\n\nReturns whether the worker has a task that it has not replied to."),
    METHOD("holders", channel_holders, METH_O, holders_doc),
    METHOD("is_begun", channel_is_begun, METH_O, "is_begun(job) -> bool\n\n"
                                                 "Returns whether a worker is running a task of this call."),
    METHOD("interrupt", channel_interrupt, METH_VARARGS, interrupt_doc),
    METHOD("stop", channel_stop, METH_O, stop_doc),
    METHOD("notify_all", channel_notify_all, METH_NOARGS, "notify_all()\n\n"
                                                          "Wakes all threads, because something happened to a worker."),
    METHOD("take_events", pp_channel_take_events, METH_NOARGS, "take_events() -> bool\n\n"
                                                               "Returns whether there were events since the last call."),
    METHOD("limit", pp_channel_limit, METH_VARARGS, pp_limit_doc),
    METHOD("lend", pp_channel_lend, METH_O,
           "lend(n_cpus)\n\n"
           "Lets this pool lend so many CPUs, as far as other programs leave them idle, which is observed from now on.\n"
           "Changes are told by the pulse. 0: ends lending."),
    METHOD("grant", pp_channel_grant, METH_VARARGS, "grant(worker, n_threads)\n\n"
                                                    "Sets how many threads a worker's libraries may use; 0: no limit."),
    METHOD("watch", pp_channel_watch, METH_NOARGS, "watch()\n\n"
                                                   "Makes the pulse tell when workers become idle and active, from now on."),
    METHOD("pulse", pp_channel_pulse, METH_NOARGS, "pulse()\n\nWakes the threads that wait for the pulse."),
    METHOD("wait_pulse", pp_channel_wait_pulse, METH_O, pp_wait_pulse_doc),
    METHOD("wait_change", pp_channel_wait_change, METH_VARARGS, pp_wait_change_doc),
    METHOD("counts", pp_channel_counts, METH_NOARGS, pp_counts_doc),
    METHOD("awake", pp_channel_awake, METH_NOARGS, pp_awake_doc),
    METHOD("lends", pp_channel_lends, METH_NOARGS, "lends() -> (n_lends, n_reclaims)\n\nCounts within this process."),
    METHOD("trace", pp_channel_trace, METH_O, "trace(on)\n\nMakes workers record events, or stop it."),
    METHOD("forget_events", pp_channel_forget_events, METH_NOARGS, "forget_events()\n\nGives back the memory of events."),
    METHOD("read_events", pp_channel_read_events, METH_VARARGS, pp_read_events_doc),
    METHOD("present", pp_channel_present, METH_O, pp_present_doc),
    METHOD("worker", channel_worker, METH_O, worker_doc),
    METHOD("start_interpreter", channel_start_interpreter, METH_VARARGS, start_interpreter_doc),
    {0},
};

PyDoc_STRVAR(doc, "Channel(n_workers, by_reference=False, backlog=None)\n\n"
                  "The parent's side: tasks out, results back, and the table of calls. backlog: the deque that `admit` appends to.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},               {Py_tp_init, channel_init},   {Py_tp_dealloc, channel_dealloc},
    {Py_tp_traverse, channel_traverse},     {Py_tp_clear, channel_clear}, {Py_tp_methods, methods},
    {Py_tp_getset, getset},                 {0, NULL},
};

PyType_Spec pp_channel_spec = {
    .name = "pool_party._native.Channel",
    .basicsize = sizeof(pp_channel_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
