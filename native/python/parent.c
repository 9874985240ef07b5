/* Channel, the parent side for Python: its life, its workers, and the list of its methods. Continued in encoding.c
 * (arguments), putting.c (tasks out), results.c (results back), calls.c (the table of calls), hooks.c (waiting threads),
 * intercepting.c (what options of calls need), duties.c and observing.c (budgets and traces).
 */
#include "python.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define METHODS_MAX 80

static int make_tables(pp_channel_t *self) {
    self->calls = PyDict_New();
    self->reports = PyList_New(0);
    self->intercepted = PyList_New(0);
    self->idle = (pp_job_t *)PyObject_CallNoArgs((PyObject *)self->module->job_type);
    return self->calls && self->reports && self->intercepted && self->idle ? 0 : -1;
}

static int channel_init(pp_channel_t *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n_workers", "by_reference", NULL};
    Py_ssize_t n_workers;
    int by_reference = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|p", names, &n_workers, &by_reference))
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
    self->number = pp_next_number();
    if (make_tables(self) < 0)
        return -1;
    int error = pp_segment_create((unsigned)n_workers, by_reference, &self->segment);
    if (error) {
        pp_raise_errno(error);
        return -1;
    }
    pp_parent_init(&self->parent, self->segment);
    self->parent.hooks = &pp_channel_hooks;
    self->parent.shares_gil = PP_HAS_GIL && by_reference;
    if ((self->arena = pp_arena_new(self->segment, 0)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pp_store_seq_cst(&self->n_users, 1);
    pp_watch_interrupts();
    return 0;
}

void pp_channel_drop_slot(pp_channel_t *self, pp_slot_t *slot) {
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
        pp_channel_drop_slot(self, &slot);
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
    Py_VISIT(self->open_function);
    Py_VISIT(self->receivers);
    for (pp_entry_t *entry = self->first_entry; entry; entry = entry->next)
        Py_VISIT(entry);
    for (pp_job_t *job = self->first_deferred; job; job = job->next_deferred)
        Py_VISIT(job);
    return 0;
}

static int channel_clear(pp_channel_t *self) {
    pp_channel_drop_postponed(self);
    pp_backlog_clear(self);
    Py_CLEAR(self->calls);
    Py_CLEAR(self->reports);
    Py_CLEAR(self->intercepted);
    Py_CLEAR(self->idle);
    Py_CLEAR(self->open_function);
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

PyDoc_STRVAR(close_doc, "close()\n\n"
                        "Called once the pool has ended. Gives back the shared memory and its descriptor as soon as no\n"
                        "thread uses them. From then on everything except reading calls raises ValueError.");
static PyObject *channel_close(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (!pp_swap_seq_cst(&self->is_closed, 1))
        pp_channel_leave(self);
    PyObject *open_function;
    Py_BEGIN_CRITICAL_SECTION(self);
    open_function = self->open_function;
    self->open_function = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(open_function);
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

/* Takes back the tasks of a map that wait in the channel. Its call is settled, so no more of them are put. Returns the
 * objects that they held, for the caller to drop, or NULL. */
PyObject *pp_channel_revoke_all(pp_channel_t *self, uint64_t job) {
    PyObject *held = self->by_reference ? PyList_New(0) : NULL;
    pp_slot_t slot;
    for (uint64_t from = 0; pp_parent_revoke_next_of(&self->parent, job, &from, &slot);) {
        PyObject **pair = (PyObject **)slot.data;
        if (held && (PyList_Append(held, pair[0]) < 0 || PyList_Append(held, pair[1]) < 0))
            PyErr_Clear();   /* no memory: they go at once */
        pp_channel_drop_slot(self, &slot);
    }
    PyErr_Clear();
    return held;
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
    pp_worker_slot_t *worker_slot = pp_segment_worker(self->segment, (unsigned)n);
    return PyBool_FromLong(pp_load_acquire(&worker_slot->holds) && !pp_load_relaxed(&worker_slot->has_replied));
}

static PyObject *channel_is_begun(pp_channel_t *self, PyObject *arg) {
    if (!PyObject_TypeCheck(arg, self->module->job_type)) {
        PyErr_SetString(PyExc_TypeError, "is_begun asks about a Job");
        return NULL;
    }
    bool is_begun = false;
    for (unsigned i = 0; i < self->segment->n_workers && !is_begun; i++) {
        pp_worker_slot_t *worker_slot = pp_segment_worker(self->segment, i);
        is_begun = pp_load_acquire(&worker_slot->holds) && pp_load_relaxed(&worker_slot->job) == ((pp_job_t *)arg)->id;
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
    pp_worker_slot_t *worker_slot = pp_segment_worker(self->segment, (unsigned)number);
    bool is_importing = pp_worker_slot_runs(worker_slot, begun_ns) && pp_is_importing(PyInterpreterState_Get(), ident);
    if (!is_importing)
        pp_interrupt(self->segment, worker_slot, begun_ns, ident, exception);
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

static PyObject *channel_take_events(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    return PyBool_FromLong(pp_swap_seq_cst(&self->segment->shared->events, 0));
}

PyDoc_STRVAR(worker_doc, "worker(n) -> Worker\n\nReturns a worker's end of the channel, for a thread of this interpreter.");
static PyObject *channel_worker(pp_channel_t *self, PyObject *arg) {
    int worker = pp_channel_slot(self, arg);
    return worker < 0 ? NULL : pp_worker_new(self->module, self->segment, (unsigned)worker);
}

PyDoc_STRVAR(start_interpreter_doc, "start_interpreter(n) -> Interpreter\n\n"
                                    "Creates an interpreter in a separate thread, for worker n; see its `run`.");
static PyObject *channel_start_interpreter(pp_channel_t *self, PyObject *n) {
    int worker = pp_channel_slot(self, n);
    PyObject *interpreter = worker < 0 ? NULL : pp_interpreter_start(self->module, self->segment, (unsigned)worker);
    self->is_local = self->is_local || interpreter;
    return interpreter;
}

static PyObject *get_fd(pp_channel_t *self, void *closure) {
    (void)closure;
    if (pp_channel_is_closed(self))
        return pp_channel_raise_closed();
    return pp_segment_has_file(self->segment) ? PyLong_FromLong(self->segment->fd) : pp_raise_errno(EBADF);
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

static PyObject *get_must_retry(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_load_seq_cst(&self->must_retry));
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

static PyObject *get_receivers(pp_channel_t *self, void *closure) {
    (void)closure;
    return Py_NewRef(self->receivers ? self->receivers : Py_None);
}

static int set_receivers(pp_channel_t *self, PyObject *value, void *closure) {
    (void)closure;
    Py_XSETREF(self->receivers, Py_XNewRef(value));
    return 0;
}

static PyObject *get_open_function(pp_channel_t *self, void *closure) {
    PyObject *open_function;
    (void)closure;
    Py_BEGIN_CRITICAL_SECTION(self);
    open_function = Py_NewRef(self->open_function ? self->open_function : Py_None);
    Py_END_CRITICAL_SECTION();
    return open_function;
}

static int set_open_function(pp_channel_t *self, PyObject *value, void *closure) {
    (void)closure;
    Py_XSETREF(self->open_function, Py_XNewRef(value));
    return 0;
}

static PyObject *get_number(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->number);
}

static PyGetSetDef getset[] = {
    {"number", (getter)get_number, NULL, "unique in this process", NULL},
    {"must_retry", (getter)get_must_retry, NULL, "a task was refused, and no worker will tell when there is room: call `feed` again", NULL},
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
    {"receivers", (getter)get_receivers, (setter)set_receivers, "what the workers have of __main__; see _wire/definitions.py", NULL},
    {"open_function", (getter)get_open_function, (setter)set_open_function,
     "publishes functions, for the thread that puts; see Functions.open", NULL},
    {0},
};

GUARDED(channel_open_slot)
GUARDED(channel_state_of)
GUARDED(channel_n_done)
GUARDED(channel_is_busy)
GUARDED_QUIET(channel_holders, Py_None)
GUARDED_QUIET(channel_is_begun, Py_False)
GUARDED_QUIET(channel_interrupt, Py_True)
GUARDED_QUIET(channel_stop, Py_None)
GUARDED_QUIET(channel_notify_all, Py_None)
GUARDED(channel_take_events)
GUARDED(channel_worker)
GUARDED(channel_start_interpreter)

static PyMethodDef own_methods[] = {
    {"notify", (PyCFunction)(void *)channel_notify, METH_NOARGS,
     "notify()\n\nMakes wait_background return, even while another thread leads. Takes no lock, and does nothing after `close`."},
    {"close", (PyCFunction)(void *)channel_close, METH_NOARGS, close_doc},
    {"keeper", (PyCFunction)(void *)channel_keeper, METH_NOARGS, keeper_doc},
    METHOD("open_slot", channel_open_slot, METH_O, open_slot_doc),
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
    METHOD("take_events", channel_take_events, METH_NOARGS, "take_events() -> bool\n\n"
                                                               "Returns whether there were events since the last call."),
    METHOD("worker", channel_worker, METH_O, worker_doc),
    METHOD("start_interpreter", channel_start_interpreter, METH_O, start_interpreter_doc),
    {0},
};

static PyMethodDef methods[METHODS_MAX];

static void join_methods(void) {
    PyMethodDef *const parts[] = {own_methods, pp_encoding_methods, pp_putting_methods, pp_calls_methods, pp_hooks_methods,
                                  pp_results_methods, pp_intercepting_methods, pp_duties_methods, pp_observing_methods};
    unsigned n = 0;
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        for (const PyMethodDef *m = parts[i]; m->ml_name && n < METHODS_MAX - 1; m++)   /* the last one ends the list */
            methods[n++] = *m;
}

PyDoc_STRVAR(doc, "Channel(n_workers, by_reference=False)\n\n"
                  "The parent's side: tasks out, results back, and the table of calls.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},               {Py_tp_init, channel_init},   {Py_tp_dealloc, channel_dealloc},
    {Py_tp_traverse, channel_traverse},     {Py_tp_clear, channel_clear}, {Py_tp_methods, methods},
    {Py_tp_getset, getset},                 {0, NULL},
};

static PyType_Spec channel_spec = {
    .name = "pool_party._native.Channel",
    .basicsize = sizeof(pp_channel_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

/* Interpreters that load the module at the same time share the list of methods. */
PyType_Spec *pp_channel_spec(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, join_methods);
    return &channel_spec;
}
