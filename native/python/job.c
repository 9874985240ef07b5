/* Job: the parent's side of one call, as far as results are stored without running Python. */
#include "python.h"

#include <stddef.h>
#include <structmember.h>

static int job_init(pp_job_t *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"id", "n_items", "chunk", "store", NULL};
    unsigned long long id;
    Py_ssize_t n_items, chunk = 1;
    int store = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Kn|np", names, &id, &n_items, &chunk, &store))
        return -1;
    if (n_items < 0 || chunk < 1 || self->results) {
        PyErr_SetString(PyExc_ValueError, "Job needs n_items >= 0 and chunk >= 1, once");
        return -1;
    }
    self->id = id;
    self->n_items = n_items;
    self->chunk = chunk;
    self->cursor = 0;
    self->remaining = n_items / chunk + (n_items % chunk != 0);
    if (store && (self->results = PyMem_Calloc((size_t)n_items + 1, sizeof *self->results)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int job_traverse(pp_job_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->failure);
    for (Py_ssize_t i = 0; self->results && i < self->n_items; i++)
        Py_VISIT(self->results[i]);
    return 0;
}

static int job_clear(pp_job_t *self) {
    PyObject **results = self->results;
    self->results = NULL;
    Py_CLEAR(self->failure);
    for (Py_ssize_t i = 0; results && i < self->n_items; i++)
        Py_XDECREF(results[i]);
    PyMem_Free(results);
    return 0;
}

static void job_dealloc(pp_job_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    job_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The leader stores results while the putting thread may settle an argument that does not pickle. */
static bool is_settled(pp_job_t *job, uint32_t index) {
    Py_ssize_t first = (Py_ssize_t)index * job->chunk;
    return job->results == NULL || first >= job->n_items || job->results[first] != NULL;
}

/* A chunk's value is the list of its items' results, made by the worker's loop. */
bool pp_job_store(pp_job_t *job, uint32_t index, PyObject *value, bool *last) {
    bool is_first;
    Py_BEGIN_CRITICAL_SECTION(job);
    is_first = !is_settled(job, index);
    if (is_first && job->chunk == 1) {
        job->results[index] = Py_NewRef(value);
    } else if (is_first) {
        PyObject **to = job->results + (Py_ssize_t)index * job->chunk;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); i++)
            to[i] = Py_NewRef(PyList_GET_ITEM(value, i));
    }
    *last = is_first && --job->remaining == 0;
    Py_END_CRITICAL_SECTION();
    Py_DECREF(value);
    return is_first;
}

PyDoc_STRVAR(settle_doc, "settle(index, error) -> bool\n\nNotes that task `index` has failed; False if it had its outcome already.");
static PyObject *job_settle(pp_job_t *self, PyObject *args) {
    unsigned index;
    PyObject *error;
    if (!PyArg_ParseTuple(args, "IO", &index, &error))
        return NULL;
    bool is_first;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_first = !is_settled(self, index);
    if (is_first) {
        self->results[(Py_ssize_t)index * self->chunk] = Py_NewRef(Py_Ellipsis);
        if (self->failure == NULL)
            self->failure = Py_NewRef(error);
        self->remaining--;
    }
    Py_END_CRITICAL_SECTION();
    return PyBool_FromLong(is_first);
}

PyDoc_STRVAR(take_doc, "take_results() -> list\n\nThe results of all items, which the job then no longer has.");
static PyObject *job_take_results(pp_job_t *self, PyObject *ignored) {
    (void)ignored;
    PyObject *list = self->results ? PyList_New(self->n_items) : PyList_New(0);
    if (list == NULL || self->results == NULL)
        return list;
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        PyList_SET_ITEM(list, i, self->results[i] ? self->results[i] : Py_NewRef(Py_None));
        self->results[i] = NULL;
    }
    return list;
}

static PyMethodDef methods[] = {
    {"settle", (PyCFunction)job_settle, METH_VARARGS, settle_doc},
    {"take_results", (PyCFunction)job_take_results, METH_NOARGS, take_doc},
    {0},
};

static PyMemberDef members[] = {
    {"id", T_ULONGLONG, offsetof(pp_job_t, id), READONLY, "number of the job, unique in its pool"},
    {"n_items", T_PYSSIZET, offsetof(pp_job_t, n_items), READONLY, "number of items"},
    {"chunk", T_PYSSIZET, offsetof(pp_job_t, chunk), READONLY, "items per task"},
    {"cursor", T_PYSSIZET, offsetof(pp_job_t, cursor), 0, "index of the next task to put"},
    {"failure", T_OBJECT, offsetof(pp_job_t, failure), READONLY, "the first failure of a task, or None"},
    {"done", T_BOOL, offsetof(pp_job_t, done), 0, "whether its outcome can be had"},
    {"remaining", T_PYSSIZET, offsetof(pp_job_t, remaining), 0, "tasks without an outcome"},
    {0},
};

PyDoc_STRVAR(doc, "Job(id, n_items, chunk=1, store=False)\n\n"
                  "One call of a pool. With `store`, the channel stores results here and calls `_complete()` after the\n"
                  "last one; every other outcome goes to `_deliver(index, status, value)`.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},           {Py_tp_init, job_init},   {Py_tp_traverse, job_traverse},
    {Py_tp_clear, job_clear},           {Py_tp_dealloc, job_dealloc}, {Py_tp_methods, methods},
    {Py_tp_members, members},           {0, NULL},
};

PyType_Spec pp_job_spec = {
    .name = "pool_party._native.Job",
    .basicsize = sizeof(pp_job_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
