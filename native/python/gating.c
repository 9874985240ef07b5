/* Gate, and the functions that install OpenBLAS's regions: the Python interface of gate.c and region.c. */
#include "python.h"

#include <errno.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    pp_gate_t *gate;
} gate_t;

static PyObject *wrap(PyTypeObject *type, int error, pp_gate_t *gate) {
    if (error)
        return pp_raise_errno(error);
    gate_t *self = (gate_t *)type->tp_alloc(type, 0);
    if (self)
        self->gate = gate;
    else
        pp_gate_unref(gate);
    return (PyObject *)self;
}

static void gate_dealloc(gate_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    pp_gate_unref(self->gate);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool is_number(Py_ssize_t n, const char *what) {
    if (n < 1 || n > INT32_MAX)
        PyErr_Format(PyExc_ValueError, "%s must be at least 1; got %zd", what, n);
    return !PyErr_Occurred();
}

static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n_tokens", NULL};
    Py_ssize_t n;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &n) || !is_number(n, "n_tokens"))
        return NULL;
    pp_gate_t *gate = NULL;
    int error = pp_gate_create((unsigned)n, &gate);
    return wrap(type, error, gate);
}

static bool as_int(PyObject *arg, int *out) {
    long n = PyLong_AsLong(arg);
    *out = (int)n;
    if (!PyErr_Occurred() && n != *out)
        PyErr_SetString(PyExc_OverflowError, "number too large");
    return !PyErr_Occurred();
}

static PyObject *raise_damaged_gate(int error, const char *name) {
    char path[256] = "";
    pp_gate_machine_path(name, path, sizeof path);
    PyObject *text = PyUnicode_FromFormat("%s: the gate of this machine's programs is %s; remove the file if no program uses it", strerror(error),
                                          error == EINVAL ? "no gate, or damaged" : "damaged, or kept by a program that is stopped");
    PyObject *args = text ? Py_BuildValue("(iNs)", error, text, path) : NULL;
    if (args)
        PyErr_SetObject(PyExc_OSError, args);
    Py_XDECREF(args);
    return NULL;
}

static PyObject *raise_of_file(int error, const char *name) {
    if (error == EINVAL || error == ETIMEDOUT)
        return raise_damaged_gate(error, name);
    char path[256] = "";
    pp_gate_machine_path(name, path, sizeof path);
    errno = error;
    return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
}

PyDoc_STRVAR(machine_doc,
             "machine(n_tokens, name='') -> Gate\n\n"
             "Opens the gate that all programs of this user with the same name share. If nobody uses it, it takes this\n"
             "number of tokens; otherwise it keeps its own.");
static PyObject *gate_machine(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n_tokens", "name", NULL};
    Py_ssize_t n;
    const char *name = "";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|s", names, &n, &name) || !is_number(n, "n_tokens"))
        return NULL;
    pp_gate_t *gate = NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = pp_gate_open_machine((unsigned)n, name, &gate);
    Py_END_ALLOW_THREADS
    return error ? raise_of_file(error, name) : wrap(type, 0, gate);
}

PyDoc_STRVAR(machine_path_doc, "machine_path(name='') -> str\n\nReturns the path of that gate's file.");
static PyObject *gate_machine_path(PyObject *ignored, PyObject *args) {
    (void)ignored;
    const char *name = "";
    char path[256];
    if (!PyArg_ParseTuple(args, "|s", &name))
        return NULL;
    int error = pp_gate_machine_path(name, path, sizeof path);
    return error ? pp_raise_errno(error) : PyUnicode_FromString(path);
}

PyDoc_STRVAR(attach_doc, "attach(fd) -> Gate\n\nOpens the gate behind a file descriptor, and takes ownership of the descriptor.");
static PyObject *gate_attach(PyTypeObject *type, PyObject *arg) {
    int fd;
    if (!as_int(arg, &fd))
        return NULL;
    pp_gate_t *gate = NULL;
    int error = pp_gate_attach(fd, &gate);
    return wrap(type, error, gate);
}

/* Signal handlers run between two waits, after at most 200 ms. */
static int wait_granted(void) {
    for (;;) {
        int error;
        Py_BEGIN_ALLOW_THREADS
        error = pp_gate_wait();
        Py_END_ALLOW_THREADS
        if (error == 0)
            return 0;
        if (PyErr_CheckSignals() < 0) {
            pp_gate_cancel();
            return -1;
        }
        if (error == ECANCELED) {
            pp_raise_errno(error);
            return -1;
        }
    }
}

PyDoc_STRVAR(acquire_doc,
             "acquire(n=1, covers=False) -> int\n\nTakes n tokens at once, waiting in line for them. Returns how many it took: at most all tokens of the\n"
             "gate. A thread that already holds tokens, of this gate or another, keeps those and takes no more. Only the\n"
             "same thread can release them.\n\n"
             "covers: the tokens cover all threads of this process and all its descendant processes, which then pass.");
static PyObject *gate_acquire(gate_t *self, PyObject *args) {
    Py_ssize_t n = 1;
    int covers = 0;
    unsigned granted;
    if (!PyArg_ParseTuple(args, "|np", &n, &covers) || !is_number(n, "n"))
        return NULL;
    int error = pp_gate_begin(self->gate, (unsigned)n, covers, &granted);
    if (error == EAGAIN)
        error = wait_granted();
    if (error < 0)
        return NULL;
    return error ? pp_raise_errno(error) : PyLong_FromUnsignedLong(granted);
}

PyDoc_STRVAR(release_doc, "release()\n\nEnds what the last acquire() of this thread began.");
static PyObject *gate_release(gate_t *self, PyObject *ignored) {
    (void)self, (void)ignored;
    if (pp_gate_release() != 0) {
        PyErr_SetString(PyExc_RuntimeError, "this thread holds no tokens");
        return NULL;
    }
    Py_RETURN_NONE;
}


PyDoc_STRVAR(forget_doc,
             "forget(pid) -> int\n\n"
             "Takes back the tokens of dead threads of that process, or all of them if the process is dead. Returns the\n"
             "number of these threads.");
static PyObject *gate_forget(gate_t *self, PyObject *arg) {
    unsigned n;
    int pid;
    if (!as_int(arg, &pid))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    n = pp_gate_forget(self->gate, pid);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(n);
}

static PyObject *gate_lock(gate_t *self, PyObject *ignored) {
    (void)ignored;
    int error = pp_gate_lock_for_test(self->gate);
    if (error)
        return pp_raise_errno(error);
    Py_RETURN_NONE;
}

static PyObject *gate_get_fd(gate_t *self, void *ignored) { (void)ignored; return PyLong_FromLong(pp_gate_fd(self->gate)); }

static PyObject *gate_get_held(gate_t *self, void *ignored) {
    (void)self, (void)ignored;
    return PyLong_FromUnsignedLong(pp_gate_held());
}

enum { N_TOKENS, N_FREE, N_WAITING, N_ACQUIRED, N_WAITS, WAITED_S, N_RECOVERED };

static PyObject *gate_get(gate_t *self, void *which) {
    pp_gate_stats_t s;
    pp_gate_stats(self->gate, &s);
    switch ((intptr_t)which) {
    case N_TOKENS: return PyLong_FromUnsignedLong(s.n_tokens);
    case N_FREE: return PyLong_FromUnsignedLong(s.n_free);
    case N_WAITING: return PyLong_FromUnsignedLong(s.n_waiting);
    case N_ACQUIRED: return PyLong_FromUnsignedLongLong(s.n_acquired);
    case N_WAITS: return PyLong_FromUnsignedLongLong(s.n_waits);
    case WAITED_S: return PyFloat_FromDouble((double)s.waited_ns / 1e9);
    default: return PyLong_FromUnsignedLongLong(s.n_recovered);
    }
}

static PyGetSetDef gate_getset[] = {
    {"fd", (getter)gate_get_fd, NULL, "File descriptor for attach(), owned by this object.", NULL},
    {"held", (getter)gate_get_held, NULL, "Number of tokens that the calling thread holds, of any gate.", NULL},
    {"n_tokens", (getter)gate_get, NULL, "Total number of tokens.", (void *)N_TOKENS},
    {"n_free", (getter)gate_get, NULL, "Number of free tokens.", (void *)N_FREE},
    {"n_waiting", (getter)gate_get, NULL, "Number of waiting threads.", (void *)N_WAITING},
    {"n_acquired", (getter)gate_get, NULL, "Number of requests in all processes.", (void *)N_ACQUIRED},
    {"n_waits", (getter)gate_get, NULL, "Number of requests that had to wait.", (void *)N_WAITS},
    {"waited_s", (getter)gate_get, NULL, "Total time that requests have waited, in seconds.", (void *)WAITED_S},
    {"n_recovered", (getter)gate_get, NULL, "Number of recoveries after dead threads.", (void *)N_RECOVERED},
    {0},
};

static PyMethodDef gate_methods[] = {
    {"machine", (PyCFunction)(void (*)(void))gate_machine, METH_CLASS | METH_VARARGS | METH_KEYWORDS, machine_doc},
    {"machine_path", gate_machine_path, METH_STATIC | METH_VARARGS, machine_path_doc},
    {"attach", (PyCFunction)gate_attach, METH_CLASS | METH_O, attach_doc},
    {"acquire", (PyCFunction)gate_acquire, METH_VARARGS, acquire_doc},
    {"release", (PyCFunction)gate_release, METH_NOARGS, release_doc},
    {"forget", (PyCFunction)gate_forget, METH_O, forget_doc},
    {"_lock", (PyCFunction)gate_lock, METH_NOARGS, "_lock()\n\nFor tests: takes the table's mutex and keeps it."},
    {0},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_doc, "Gate(n_tokens)\n\nTokens that threads of several processes share. A killed holder's tokens come back."},
    {Py_tp_new, gate_new},
    {Py_tp_dealloc, gate_dealloc},
    {Py_tp_methods, gate_methods},
    {Py_tp_getset, gate_getset},
    {0, NULL},
};

static PyType_Spec gate_spec = {
    .name = "pool_party._native.Gate",
    .basicsize = sizeof(gate_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = gate_slots,
};

/* ---- regions ---- */

PyDoc_STRVAR(install_doc,
             "install_regions(setter, gate=None, exclusive=False)\n\n"
             "Makes an OpenBLAS run its parallel regions on our threads. `setter` is the address of its\n"
             "openblas_set_threads_callback_function. With a gate, a region of n jobs first takes n tokens, or all if\n"
             "exclusive. The first gate applies to the whole process until every library is uninstalled as often as it was\n"
             "installed.");
static PyObject *install_regions(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"setter", "gate", "exclusive", NULL};
    unsigned long long setter;
    PyObject *gate = Py_None;
    int exclusive = 0, error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "K|Op", names, &setter, &gate, &exclusive))
        return NULL;
    PyObject *type = PyObject_GetAttrString(module, "Gate");
    int is_gate = gate == Py_None ? 1 : type ? PyObject_IsInstance(gate, type) : -1;
    Py_XDECREF(type);
    if (is_gate < 1 || setter == 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "install_regions() takes an address and a Gate or None");
        return NULL;
    }
    pp_gate_t *g = gate == Py_None ? NULL : ((gate_t *)gate)->gate;
    Py_BEGIN_ALLOW_THREADS
    error = pp_regions_install((uintptr_t)setter, g, exclusive);
    Py_END_ALLOW_THREADS
    if (error)
        return pp_raise_errno(error);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(uninstall_doc, "uninstall_regions(setter) -> bool\n\n"
                            "Makes that OpenBLAS use its own threads again. False if it does so already.");
static PyObject *uninstall_regions(PyObject *module, PyObject *arg) {
    (void)module;
    int error;
    unsigned long long setter = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = pp_regions_uninstall((uintptr_t)setter);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(error == 0);
}

PyDoc_STRVAR(statistics_doc,
             "region_statistics() -> (n_regions, n_waits, n_threads)\n\n"
             "Returns the number of regions of this process so far, how often one has waited, and the number of threads\n"
             "made for them.");
static PyObject *region_statistics(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    pp_region_stats_t s;
    pp_regions_stats(&s);
    return Py_BuildValue("KKI", (unsigned long long)s.n_regions, (unsigned long long)s.n_waits, s.n_helpers);
}

PyDoc_STRVAR(ancestors_doc, "ancestors() -> tuple\n\nReturns the ids of this process and of its ancestors.");
static PyObject *ancestors(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    int pids[PP_LINE_MAX];
    unsigned n = pp_gate_line(pids);
    PyObject *line = PyTuple_New(n);
    for (unsigned i = 0; line && i < n; i++) {
        PyObject *pid = PyLong_FromLong(pids[i]);
        if (pid == NULL)
            Py_CLEAR(line);
        else
            PyTuple_SET_ITEM(line, i, pid);
    }
    return line;
}

PyDoc_STRVAR(adopt_doc, "descend_from(pids)\n\nAdds ancestors of this process: the ancestors() of another process.");
static PyObject *descend_from(PyObject *module, PyObject *arg) {
    (void)module;
    int pids[PP_LINE_MAX];
    unsigned n = 0;
    PyObject *list = PySequence_Fast(arg, "ancestors are a sequence of process numbers");
    if (list == NULL)
        return NULL;
    for (; n < PP_LINE_MAX && n < PySequence_Fast_GET_SIZE(list); n++)
        if (!as_int(PySequence_Fast_GET_ITEM(list, n), &pids[n]))
            break;
    Py_DECREF(list);
    if (PyErr_Occurred())
        return NULL;
    pp_gate_adopt(pids, n);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"ancestors", ancestors, METH_NOARGS, ancestors_doc},
    {"descend_from", descend_from, METH_O, adopt_doc},
    {"install_regions", (PyCFunction)(void (*)(void))install_regions, METH_VARARGS | METH_KEYWORDS, install_doc},
    {"uninstall_regions", uninstall_regions, METH_O, uninstall_doc},
    {"region_statistics", region_statistics, METH_NOARGS, statistics_doc},
    {0},
};

int pp_gating_add(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &gate_spec, NULL);
    int error = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return error < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
