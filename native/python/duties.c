/* What the calling thread does for a pool. The end of a pool may need this thread: to run what is left of a task, to take
 * a result that it is decoding, or to release a lock. Such a thread must not wait for that end (pool_party/_core/waiting.py).
 * The user's code can ask for it almost anywhere, since the garbage collector runs finalizers between two instructions of
 * whatever thread needs memory just then.
 *
 * All of this is the thread's own, so it needs no lock, and it lasts until the thread has ended in C: later than what
 * `threading` knows of it, and later than the finalizers of its thread-local objects.
 */
#include "python.h"

typedef struct {
    uint64_t serves;    /* the number of the pool that the thread belongs to; 0: none */
    unsigned duties;    /* the DUTY_ constants that belong to this */
    unsigned n_held;    /* locks of type Guard that it holds, each as often as it was entered */
    uint64_t decodes, feeds;   /* the numbers of the pools whose result it is unpickling and whose backlog it is putting; 0: none */
    pp_channel_t *leads;       /* where it takes results, which may run the user's code; NULL: nowhere */
} duties_t;
static _Thread_local duties_t here;

uint64_t pp_next_number(void) {
    static _Atomic uint64_t last;
    return (uint64_t)pp_add_seq_cst(&last, 1) + 1;
}

/* The thread that forked is the only one of the child, and serves no pool there. */
void pp_duties_after_fork_in_child(void) { here = (duties_t){0}; }

uint64_t pp_decode_begin(const pp_channel_t *self) {
    uint64_t outer = here.decodes;
    here.decodes = self->number;
    return outer;
}

void pp_decode_end(uint64_t outer) { here.decodes = outer; }

void pp_note_feeding(const pp_channel_t *self) { here.feeds = self ? self->number : 0; }

/* Code of the user's that runs while the calling thread takes results of another pool must not keep its lead: the end of
 * that pool needs the lead, and the wait that is about to begin may depend on that end. */
pp_channel_t *pp_lead_begin(pp_channel_t *self) {
    pp_channel_t *outer = here.leads;
    if (outer && outer != self && pp_lead_is_mine(&outer->parent))
        pp_lead_release(&outer->parent);
    here.leads = self;
    return outer;
}

void pp_lead_end(pp_channel_t *outer) { here.leads = outer; }

void pp_serve_all(void) { here.duties |= PP_DUTY_ANY; }

/* arguments: those of `entry`. In Python code this would be too late: the garbage collector may run as soon as a thread
 * begins a function. */
static PyObject *enter_duty(PyObject *arguments, PyObject *ignored) {
    (void)ignored;
    unsigned long long number;
    unsigned duties;
    PyObject *function;
    if (!PyArg_ParseTuple(arguments, "KIO", &number, &duties, &function))
        return NULL;
    here.serves = number;
    here.duties = duties;
    return PyObject_CallNoArgs(function);
}

PyObject *pp_entry(PyObject *module, PyObject *args) {
    static PyMethodDef method = {"entry", enter_duty, METH_NOARGS, NULL};
    (void)module;
    return PyCFunction_New(&method, args);
}

PyDoc_STRVAR(duties_doc, "duties() -> int\n\n"
                                       "Returns the DUTY_ constants that say what the calling thread does for this pool now.");
static PyObject *channel_duties(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    unsigned duties = here.serves == self->number ? here.duties : here.duties & PP_DUTY_ANY;
    if (here.n_held)
        duties |= PP_DUTY_ANY;
    if (here.decodes == self->number)
        duties |= PP_DUTY_RESULT;
    if (pp_load_seq_cst(&self->parent.feeder) == pp_this_thread() && self->n_being_put > 0)   /* no other can put the rest */
        duties |= PP_DUTY_BACKLOG;
    return PyLong_FromUnsignedLong(duties);
}

PyObject *pp_served(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return Py_BuildValue("(KKK)", (unsigned long long)here.serves, (unsigned long long)here.decodes, (unsigned long long)here.feeds);
}

/* ---- Guard ---- */

/* Calls a method of the base class, threading's reentrant lock. */
static PyObject *call_base(PyObject *self, const char *name, PyObject *args) {
    PyObject *method = PyObject_GetAttrString((PyObject *)Py_TYPE(self)->tp_base, name), *all = NULL, *done = NULL;
    if (method && (all = PyTuple_New(1 + PyTuple_GET_SIZE(args)))) {
        PyTuple_SET_ITEM(all, 0, Py_NewRef(self));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
            PyTuple_SET_ITEM(all, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
        done = PyObject_CallObject(method, all);
    }
    Py_XDECREF(all);
    Py_XDECREF(method);
    return done;
}

static PyObject *note_held(PyObject *done, long n) {
    if (done && n < 0)
        here.n_held -= Py_MIN(here.n_held, (unsigned)-n);   /* in a forked child it holds none */
    else if (done)
        here.n_held += (unsigned)n;
    return done;
}

static PyObject *guard_acquire(PyObject *self, PyObject *args) {
    PyObject *done = call_base(self, "acquire", args);
    return note_held(done, done == Py_True);
}

static PyObject *guard_release(PyObject *self, PyObject *args) {
    (void)args;   /* those of __exit__ */
    PyObject *none = PyTuple_New(0), *done = none ? note_held(call_base(self, "release", none), -1) : NULL;
    Py_XDECREF(none);
    return done;
}

/* How often a thread holds the lock that `Condition.wait` releases, as the base class saves it. */
static long count_in(PyObject *state) {
    return state && PyTuple_Check(state) && PyTuple_GET_SIZE(state) ? PyLong_AsLong(PyTuple_GET_ITEM(state, 0)) : 0;
}

static PyObject *guard_release_save(PyObject *self, PyObject *args) {
    PyObject *state = call_base(self, "_release_save", args);
    return note_held(state, -count_in(state));
}

static PyObject *guard_acquire_restore(PyObject *self, PyObject *args) {
    long n = PyTuple_GET_SIZE(args) ? count_in(PyTuple_GET_ITEM(args, 0)) : 0;
    return note_held(call_base(self, "_acquire_restore", args), n);
}

static PyMethodDef guard_methods[] = {
    {"acquire", guard_acquire, METH_VARARGS, NULL},
    {"release", guard_release, METH_VARARGS, NULL},
    {"__enter__", guard_acquire, METH_VARARGS, NULL},
    {"__exit__", guard_release, METH_VARARGS, NULL},
    {"_release_save", guard_release_save, METH_VARARGS, NULL},
    {"_acquire_restore", guard_acquire_restore, METH_VARARGS, NULL},
    {0},
};

PyDoc_STRVAR(guard_doc, "A reentrant lock. A thread that holds one must not wait for the end of a pool: a finalizer that the\n"
                        "garbage collector runs there finds this out.");

static PyType_Slot guard_slots[] = {
    {Py_tp_doc, (void *)guard_doc},
    {Py_tp_methods, guard_methods},
    {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "pool_party._native.Guard",
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = guard_slots,
};

int pp_duties_add(PyObject *module) {
    PyObject *threads = PyImport_ImportModule("_thread"), *type = NULL;
    PyObject *base = threads ? PyObject_GetAttrString(threads, "RLock") : NULL, *bases = base ? PyTuple_Pack(1, base) : NULL;
    if (bases)
        type = PyType_FromModuleAndSpec(module, &guard_spec, bases);
    int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    Py_XDECREF(bases);
    Py_XDECREF(base);
    Py_XDECREF(threads);
    return failed;
}

PyMethodDef pp_duties_methods[] = {
    {"duties", (PyCFunction)(void *)channel_duties, METH_NOARGS, duties_doc},
    {0},
};
