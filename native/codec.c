/* Values <-> payloads: pickle protocol 5, large buffers out of band; marshal for numbers, strings and tuples of them.
 *
 * marshal is part of the core, several times faster than pickle there, and a fresh interpreter that runs only such tasks
 * need not import _pickle and its Python modules. A pickle begins with 0x80, which is no type code of marshal's.
 *
 * The common case never leaves C. What plain pickle cannot do, or would do by reference to a __main__ that the other
 * side does not have, goes to pool_party.wire.codec, whose output plain `loads` understands.
 */
#include "python.h"

#include <errno.h>
#include <marshal.h>
#include <string.h>

#define OUT_OF_BAND_MIN PP_INLINE_MAX   /* smaller buffers are cheaper inside the pickle, which then fits a ring */
#define MAX_BUFFERS 500
#define COPY_ALIGN(n) (((n) + 63) & ~63ull)
#define GIL_FREE_MIN (1u << 18)         /* copies from here on (some 50 us) let other threads run */

static PyObject *collect(PyObject *buffers, PyObject *buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) {   /* not contiguous: pickle says so itself */
        PyErr_Clear();
        Py_RETURN_TRUE;
    }
    bool in_band = view.len < OUT_OF_BAND_MIN || PyList_GET_SIZE(buffers) >= MAX_BUFFERS;
    PyBuffer_Release(&view);
    if (!in_band && PyList_Append(buffers, buffer) < 0)
        return NULL;
    return PyBool_FromLong(in_band);
}

static PyMethodDef collect_def = {"collect", collect, METH_O, NULL};

#define PICKLE_START 0x80
#define MARSHAL_VERSION 2               /* the last without a table of references, which costs more than all the rest */
#define MARSHAL_ITEMS 32
#define MARSHAL_DEPTH 3                 /* ((args), {}) with a tuple among the arguments */

/* None, numbers, strings, tuples of such, and the empty dict of a call without keywords: exact types only. */
static bool is_simple(PyObject *value, int depth) {
    PyTypeObject *t = Py_TYPE(value);
    if (t == &PyLong_Type || t == &PyFloat_Type || t == &PyUnicode_Type || t == &PyBytes_Type || t == &PyBool_Type ||
        value == Py_None)
        return true;
    if (t == &PyDict_Type)
        return PyDict_GET_SIZE(value) == 0;
    if (t != &PyTuple_Type || depth == 0 || PyTuple_GET_SIZE(value) > MARSHAL_ITEMS)
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (!is_simple(PyTuple_GET_ITEM(value, i), depth - 1))
            return false;
    return true;
}

static int ensure_pickle(pp_module_t *m) {
    if (m->loads)
        return 0;
    PyObject *pickle = PyImport_ImportModule("_pickle");
    m->dumps = pickle ? PyObject_GetAttrString(pickle, "dumps") : NULL;
    m->loads = m->dumps ? PyObject_GetAttrString(pickle, "loads") : NULL;
    Py_XDECREF(pickle);
    return m->loads ? 0 : -1;
}

/* A false alarm (a string that says so) only costs time. */
static bool mentions_main(PyObject *pickle) {
    return memmem(PyBytes_AS_STRING(pickle), PyBytes_GET_SIZE(pickle), "__main__", 8) != NULL;
}

static PyObject *dumps_slowly(PyObject *value, PyObject *callback) {
    PyObject *codec = PyImport_ImportModule("pool_party.wire.codec");
    PyObject *pickle = codec ? PyObject_CallMethod(codec, "dumps", "OO", value, callback) : NULL;
    Py_XDECREF(codec);
    return pickle;
}

/* Whether another try is worth it, after the exception that is set. */
static bool may_pickle_by_value(void) {
    return PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_RecursionError) &&
           !PyErr_ExceptionMatches(PyExc_MemoryError);
}

static PyObject *dumps(pp_module_t *m, PyObject *value, PyObject *callback, PyObject *buffers) {
    PyObject *args[] = {value, m->protocol, callback};
    PyObject *pickle = PyObject_Vectorcall(m->dumps, args, 2, m->dumps_keywords);
    if (pickle ? !mentions_main(pickle) : !may_pickle_by_value())
        return pickle;
    Py_XDECREF(pickle);
    PyErr_Clear();
    if (PyList_SetSlice(buffers, 0, PyList_GET_SIZE(buffers), NULL) < 0)
        return NULL;
    return dumps_slowly(value, callback);
}

PyObject *pp_encode(pp_module_t *m, PyObject *value) {
    if (value == Py_None)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (is_simple(value, MARSHAL_DEPTH))
        return PyMarshal_WriteObjectToString(value, MARSHAL_VERSION);
    if (ensure_pickle(m) < 0)
        return NULL;
    PyObject *buffers = PyList_New(0), *callback = NULL, *pickle = NULL;
    if (buffers && (callback = PyCFunction_New(&collect_def, buffers)))
        pickle = dumps(m, value, callback, buffers);
    if (pickle && PyList_GET_SIZE(buffers) > 0)
        Py_SETREF(pickle, PyTuple_Pack(2, pickle, buffers));
    Py_XDECREF(callback);
    Py_XDECREF(buffers);
    return pickle;
}

static bool is_pickle(const void *data) { return *(const unsigned char *)data == PICKLE_START; }

PyObject *pp_decode_bytes(pp_module_t *m, const void *data, Py_ssize_t size) {
    if (size == 0)
        Py_RETURN_NONE;
    if (!is_pickle(data))
        return PyMarshal_ReadObjectFromString(data, size);
    PyObject *pickle = PyBytes_FromStringAndSize(data, size);
    PyObject *value = pickle && ensure_pickle(m) == 0 ? PyObject_CallOneArg(m->loads, pickle) : NULL;
    Py_XDECREF(pickle);
    return value;
}

PyObject *pp_decode(pp_module_t *m, PyObject *payload) {
    if (!PyTuple_Check(payload) && (PyBytes_GET_SIZE(payload) == 0 || !is_pickle(PyBytes_AS_STRING(payload))))
        return pp_decode_bytes(m, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload));
    if (ensure_pickle(m) < 0)
        return NULL;
    if (!PyTuple_Check(payload))
        return PyObject_CallOneArg(m->loads, payload);
    PyObject *keywords = Py_BuildValue("{sO}", "buffers", PyTuple_GET_ITEM(payload, 1));
    PyObject *args = PyTuple_Pack(1, PyTuple_GET_ITEM(payload, 0));
    PyObject *value = keywords && args ? PyObject_Call(m->loads, args, keywords) : NULL;
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    return value;
}

static void copy(void *to, const void *from, size_t size) {
    if (size < GIL_FREE_MIN) {
        memcpy(to, from, size);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    memcpy(to, from, size);
    Py_END_ALLOW_THREADS
}

/* ---- payloads in memory: in a block, u64 number of buffers, u64 sizes of pickle and buffers, then these, aligned ---- */

bool pp_needs_block(PyObject *payload) {
    return PyTuple_Check(payload) || PyBytes_GET_SIZE(payload) > (Py_ssize_t)PP_INLINE_MAX;
}

static int write_block(pp_arena_t *arena, PyObject *pickle, Py_buffer *views, Py_ssize_t n, pp_blockref_t *ref) {
    uint64_t header = COPY_ALIGN((2 + (uint64_t)n) * 8), size = header + COPY_ALIGN((uint64_t)PyBytes_GET_SIZE(pickle));
    for (Py_ssize_t i = 0; i < n; i++)
        size += COPY_ALIGN((uint64_t)views[i].len);
    void *memory;
    int error = pp_block_open(arena, size, ref, &memory);
    if (error == EAGAIN)
        return error;
    if (error) {
        pp_raise_errno(error);
        return -1;
    }
    uint64_t *sizes = memory;
    char *to = (char *)memory + header;
    *sizes++ = (uint64_t)n;
    *sizes++ = (uint64_t)PyBytes_GET_SIZE(pickle);
    copy(to, PyBytes_AS_STRING(pickle), PyBytes_GET_SIZE(pickle));
    to += COPY_ALIGN((uint64_t)PyBytes_GET_SIZE(pickle));
    for (Py_ssize_t i = 0; i < n; i++) {
        *sizes++ = (uint64_t)views[i].len;
        copy(to, views[i].buf, views[i].len);
        to += COPY_ALIGN((uint64_t)views[i].len);
    }
    return 0;
}

static int pack_block(pp_arena_t *arena, PyObject *payload, pp_blockref_t *ref) {
    if (!PyTuple_Check(payload))
        return write_block(arena, payload, NULL, 0, ref);
    PyObject *buffers = PyTuple_GET_ITEM(payload, 1);
    Py_buffer views[MAX_BUFFERS];
    Py_ssize_t n = 0;
    int error = 0;
    while (n < PyList_GET_SIZE(buffers) && !error)
        if ((error = PyObject_GetBuffer(PyList_GET_ITEM(buffers, n), &views[n], PyBUF_SIMPLE)) == 0)
            n++;
    if (!error)
        error = write_block(arena, PyTuple_GET_ITEM(payload, 0), views, n, ref);
    while (n-- > 0)
        PyBuffer_Release(&views[n]);
    return error;
}

int pp_pack(pp_arena_t *arena, PyObject *payload, pp_packed_t *out) {
    if (pp_needs_block(payload)) {
        int error = pack_block(arena, payload, &out->block);
        out->where = PP_IN_BLOCK;
        out->size = sizeof out->block;
        out->data = &out->block;
        return error;
    }
    out->where = PP_IN_RING;
    out->size = (uint32_t)PyBytes_GET_SIZE(payload);
    out->data = PyBytes_AS_STRING(payload);
    return 0;
}

static PyObject *copy_buffers(const uint64_t *sizes, Py_ssize_t n, const char *from) {
    PyObject *buffers = PyList_New(0);
    for (Py_ssize_t i = 0; buffers && i < n; i++) {
        PyObject *buffer = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)sizes[i]);
        if (buffer == NULL || PyList_Append(buffers, buffer) < 0)
            Py_CLEAR(buffers);
        else
            copy(PyByteArray_AS_STRING(buffer), from, sizes[i]);
        Py_XDECREF(buffer);
        from += COPY_ALIGN(sizes[i]);
    }
    return buffers;
}

PyObject *pp_copy_block(pp_segment_t *s, const pp_blockref_t *ref) {
    void *memory;
    int error = pp_block_map(s, ref, &memory);
    if (error)
        return pp_raise_errno(error);
    const uint64_t *sizes = memory;
    Py_ssize_t n = (Py_ssize_t)sizes[0];
    const char *from = (char *)memory + COPY_ALIGN((2 + (uint64_t)n) * 8);
    PyObject *payload = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes[1]);
    if (payload)
        copy(PyBytes_AS_STRING(payload), from, sizes[1]);
    if (payload && n > 0) {
        PyObject *buffers = copy_buffers(sizes + 2, n, from + COPY_ALIGN(sizes[1]));
        Py_SETREF(payload, buffers ? PyTuple_Pack(2, payload, buffers) : NULL);
        Py_XDECREF(buffers);
    }
    pp_block_unmap(ref, memory);
    return payload;
}
