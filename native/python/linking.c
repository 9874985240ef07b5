/* Link: the parent's end of a link to a worker process, for Python; see links.c. */
#include "python.h"

#include <unistd.h>

typedef struct {
    PyObject_HEAD
    pp_link_t *link;       /* NULL: closed */
    int worker_fd;         /* -1: closed */
    uint64_t worker_number;
} link_t;

static PyObject *link_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    if (!PyArg_ParseTuple(args, ""))
        return NULL;
    link_t *self = (link_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->worker_fd = -1;
    int error = pp_link_new(&self->link, &self->worker_fd);
    if (error) {
        Py_DECREF(self);
        return pp_raise_errno(error);
    }
    self->worker_number = pp_file_number(self->worker_fd);
    return (PyObject *)self;
}

static PyObject *link_close_worker_end(link_t *self, PyObject *ignored) {
    (void)ignored;
    if (self->worker_fd >= 0 && pp_file_number(self->worker_fd) == self->worker_number)
        close(self->worker_fd);
    self->worker_fd = -1;
    Py_RETURN_NONE;
}

static PyObject *link_close(link_t *self, PyObject *ignored) {
    (void)ignored;
    pp_link_t *link = self->link;
    self->link = NULL;
    if (link)
        pp_link_free(link);
    return link_close_worker_end(self, NULL);
}

static void link_dealloc(link_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(link_close(self, NULL));
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *link_serve(link_t *self, PyObject *ignored) {
    (void)ignored;
    return PyBool_FromLong(self->link && pp_link_serve(self->link) == 0);
}

static PyObject *link_get_fd(link_t *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(self->link ? pp_link_fd(self->link) : -1);
}

static PyObject *link_get_worker_fd(link_t *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(self->worker_fd);
}

static PyMethodDef methods[] = {
    {"serve", (PyCFunction)link_serve, METH_NOARGS,
     "serve() -> bool\n\nDoes what the worker has asked for, without waiting. False: the link is closed."},
    {"close", (PyCFunction)link_close, METH_NOARGS, "close()\n\nCloses both ends, after the worker's end."},
    {"close_worker_end", (PyCFunction)link_close_worker_end, METH_NOARGS,
     "close_worker_end()\n\nCloses the worker's end in this process, once the worker has it."},
    {0},
};

static PyGetSetDef members[] = {
    {"fd", (getter)link_get_fd, NULL, "Readable when there is something to serve; -1: closed.", NULL},
    {"worker_fd", (getter)link_get_worker_fd, NULL, "The worker's end; -1: closed.", NULL},
    {0},
};

PyDoc_STRVAR(doc, "Link()\n\nA link to a worker process, through which both get each other's shared memory. Any thread may use it.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_new, link_new},
    {Py_tp_dealloc, link_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec pp_link_spec = {
    .name = "pool_party._native.Link",
    .basicsize = sizeof(link_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

const char pp_enter_link_doc[] = PyDoc_STR("enter_link(fd)\n\nMakes this process a worker whose end of the link is `fd`, and takes ownership of it.");
PyObject *pp_enter_link(PyObject *module, PyObject *arg) {
    (void)module;
    int fd = (int)PyLong_AsLong(arg);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    pp_link_enter(fd);
    Py_RETURN_NONE;
}
