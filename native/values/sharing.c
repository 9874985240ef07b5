/* The Python type for memory that was received with a value, and for shared memory; see memory.c. */
#include "python.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    pp_memory_t *memory;
    char *start;
    Py_ssize_t size;
} memory_t;

static void memory_dealloc(memory_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    pp_memory_unref(self->memory);
    type->tp_free(self);
    Py_DECREF(type);
}

static int memory_getbuffer(memory_t *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->start, self->size, pp_memory_is_readonly(self->memory), flags);
}

static PyObject *new_memory(pp_module_t *m, pp_memory_t *memory, uint64_t at, uint64_t size) {
    memory_t *self = (memory_t *)m->memory_type->tp_alloc(m->memory_type, 0);
    if (self == NULL) {
        pp_memory_unref(memory);
        return NULL;
    }
    self->memory = memory;
    self->start = pp_memory_start(memory) + at;
    self->size = (Py_ssize_t)size;
    return (PyObject *)self;
}

PyObject *pp_memory_view(pp_module_t *m, pp_memory_t *memory, uint64_t at, uint64_t size) {
    PyObject *object = new_memory(m, memory, at, size);
    PyObject *view = object ? PyMemoryView_FromObject(object) : NULL;
    Py_XDECREF(object);
    return view;
}

/* Whether NumPy will free the array's memory by its own allocator, which is malloc. Allocators that a program has set may
 * give the memory of an array to somebody else, or keep its pages where they are for a device. */
bool pp_array_has_own_memory(PyObject *array) {
    PyObject *name = PyUnicode_FromString("numpy._core.multiarray"), *numpy = name ? PyImport_GetModule(name) : NULL;
    PyObject *flags = numpy ? PyObject_GetAttrString(array, "flags") : NULL;
    PyObject *owns = flags ? PyObject_GetAttrString(flags, "owndata") : NULL;
    PyObject *allocator = owns == Py_True ? PyObject_CallMethod(numpy, "get_handler_name", "O", array) : NULL;
    bool has = allocator && PyUnicode_Check(allocator) && PyUnicode_CompareWithASCIIString(allocator, "default_allocator") == 0;
    PyErr_Clear();
    Py_XDECREF(allocator);
    Py_XDECREF(owns);
    Py_XDECREF(flags);
    Py_XDECREF(numpy);
    Py_XDECREF(name);
    return has;
}

/* The memory that an array came in, and where in it the array lies. NULL: it is not such memory, others use it, too, or
 * the array is too small a part of it. */
pp_memory_t *pp_array_received_in(PyObject *array, const Py_buffer *view, uint64_t *at) {
    PyObject *base = PyObject_GetAttrString(array, "base");
    pp_memory_t *found = NULL;
    if (base && Py_TYPE(base)->tp_dealloc == (destructor)memory_dealloc && Py_REFCNT(base) == 2) {   /* the array's, and ours */
        pp_memory_t *memory = ((memory_t *)base)->memory;
        *at = (uint64_t)((char *)view->buf - pp_memory_start(memory));
        bool is_inside = *at <= pp_memory_size(memory) && (size_t)view->len <= pp_memory_size(memory) - *at;
        if (is_inside && pp_memory_has_one_user(memory) && (size_t)view->len >= pp_memory_size(memory) / 2)
            found = pp_memory_ref(memory);
    }
    PyErr_Clear();
    Py_XDECREF(base);
    return found;
}

PyObject *pp_memory_attached(pp_module_t *m, const pp_handle_t *handle) {
    pp_memory_t *memory = pp_memory_here(handle);
    int error = 0;
    if (memory == NULL) {
        Py_BEGIN_ALLOW_THREADS
        error = pp_memory_attach(handle, &memory);
        Py_END_ALLOW_THREADS
    }
    if (error)
        return pp_raise_errno(error);
    return pp_memory_view(m, memory, handle->at, handle->length);
}

PyObject *pp_read_only(PyObject *buffer) {
    PyObject *view = PyMemoryView_FromObject(buffer);
    PyObject *read_only = view ? PyObject_CallMethod(view, "toreadonly", NULL) : NULL;
    Py_XDECREF(view);
    return read_only;
}

const char pp_share_doc[] = PyDoc_STR("share(size) -> Memory\n\nNew shared memory, filled with zeros.");
PyObject *pp_share(PyObject *module, PyObject *arg) {
    Py_ssize_t size = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (size < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a size is not negative");
        return NULL;
    }
    pp_memory_t *memory;
    int error = pp_memory_share((size_t)size, &memory);
    return error ? pp_raise_errno(error) : new_memory(PyModule_GetState(module), memory, 0, (uint64_t)size);
}

const char pp_is_shared_doc[] = PyDoc_STR("is_shared(buffer) -> bool\n\nWhether all of a contiguous buffer lies in shared memory.");
PyObject *pp_is_shared(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_ANY_CONTIGUOUS) < 0) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    pp_handle_t handle;
    pp_memory_t *memory;
    bool found = pp_memory_find(view.buf, (size_t)view.len, &handle, &memory);
    if (found)
        pp_memory_unref(memory);
    PyBuffer_Release(&view);
    return PyBool_FromLong(found);
}

const char pp_name_shared_doc[] = PyDoc_STR("name_shared(buffer) -> bytes\n\nThe name by which workers find a buffer in shared memory, for as long as their parent has it.");
PyObject *pp_name_shared(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_ANY_CONTIGUOUS) < 0)
        return NULL;
    pp_handle_t handle;
    pp_memory_t *memory;
    bool found = pp_memory_find(view.buf, (size_t)view.len, &handle, &memory);
    PyBuffer_Release(&view);
    if (!found) {
        PyErr_SetString(PyExc_ValueError, "the buffer is not in shared memory");
        return NULL;
    }
    pp_memory_unref(memory);
    return PyBytes_FromStringAndSize((const char *)&handle, sizeof handle);
}

static bool read_name(PyObject *name, pp_handle_t *handle) {
    if (!PyBytes_Check(name) || PyBytes_GET_SIZE(name) != sizeof *handle) {
        PyErr_SetString(PyExc_ValueError, "that is no name of shared memory");
        return false;
    }
    memcpy(handle, PyBytes_AS_STRING(name), sizeof *handle);
    return true;
}

const char pp_has_shared_doc[] = PyDoc_STR("has_shared(name) -> bool\n\nWhether this process still has the shared memory that `name_shared` has named.");
PyObject *pp_has_shared(PyObject *module, PyObject *name) {
    (void)module;
    pp_handle_t handle;
    if (!read_name(name, &handle))
        return NULL;
    pp_memory_t *memory = pp_memory_here(&handle);
    pp_memory_unref(memory);
    return PyBool_FromLong(memory != NULL);
}

const char pp_open_shared_doc[] = PyDoc_STR("open_shared(name) -> memoryview\n\nThe shared memory that `name_shared` has named.");
PyObject *pp_open_shared(PyObject *module, PyObject *name) {
    pp_handle_t handle;
    return read_name(name, &handle) ? pp_memory_attached(PyModule_GetState(module), &handle) : NULL;
}

/* No writable view of the memory may exist, because a write to it would end the process. */
static PyObject *memory_protect(memory_t *self, PyObject *ignored) {
    (void)ignored;
    pp_memory_protect(self->memory);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"protect", (PyCFunction)memory_protect, METH_NOARGS, "protect()\n\nMakes shared memory read-only, here and for all who get it later."},
    {0},
};

PyDoc_STRVAR(doc, "Memory that is shared with other processes, or was received from one.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_getbuffer},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec pp_memory_spec = {
    .name = "pool_party._native.Memory",
    .basicsize = sizeof(memory_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
