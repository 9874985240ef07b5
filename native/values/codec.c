/* Values <-> payloads: marshal for numbers, strings and tuples of them, our own format (flat.c) for what it knows, pickle
 * protocol 5 with large buffers out of band for everything else.
 *
 * marshal is part of the core, several times faster than pickle there, and a fresh interpreter that runs only such tasks
 * need not import _pickle and its Python modules. A number alone is its eight bytes: marshal would take longer than all the rest of
 * its way. A pickle begins with 0x80, a flat value with 0x01, a number with 0x02 or 0x03: no type codes of marshal's.
 *
 * The common case never leaves C. What plain pickle cannot do goes to pool_party.wire.codec, whose output plain `loads` understands;
 * pool_party.wire.definitions puts what the other side lacks of __main__ before a pickle that names something there.
 */
#include "python.h"

#include <marshal.h>
#include <string.h>

#define PICKLE_START 0x80
#define INT_START 0x02
#define FLOAT_START 0x03
#define MARSHAL_ITEMS 32
#define MARSHAL_DEPTH 3                 /* ((args), {}) with a tuple among the arguments */

/* What lies in shared memory travels by name, however small it is. */
static bool is_out_of_band(PyObject *buffers, const Py_buffer *view) {
    pp_handle_t handle;
    pp_memory_t *memory;
    if (PyList_GET_SIZE(buffers) >= PP_LEAVES_MAX)
        return false;
    if (view->len >= PP_OUT_OF_BAND_MIN)
        return true;
    if (!pp_memory_find(view->buf, (size_t)view->len, &handle, &memory))
        return false;
    pp_memory_unref(memory);
    return true;
}

static PyObject *collect(PyObject *buffers, PyObject *buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_ANY_CONTIGUOUS) < 0) {   /* not contiguous: pickle says so itself */
        PyErr_Clear();
        Py_RETURN_TRUE;
    }
    bool in_band = !is_out_of_band(buffers, &view);
    PyBuffer_Release(&view);
    if (!in_band && PyList_Append(buffers, buffer) < 0)
        return NULL;
    return PyBool_FromLong(in_band);
}

static PyMethodDef collect_def = {"collect", collect, METH_O, NULL};

bool pp_is_blob(PyObject *value) {
    if (PyBytes_CheckExact(value))
        return PyBytes_GET_SIZE(value) >= PP_OUT_OF_BAND_MIN;
    return PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) * PyUnicode_KIND(value) >= PP_OUT_OF_BAND_MIN;
}

/* n_dicts: an empty dict more than once may be one and the same. */
static bool is_simple(PyObject *value, int depth, int *n_dicts) {
    PyTypeObject *t = Py_TYPE(value);
    if (t == &PyLong_Type || t == &PyFloat_Type || t == &PyBool_Type || value == Py_None)
        return true;
    if (t == &PyBytes_Type || t == &PyUnicode_Type)
        return !pp_is_blob(value);
    if (t == &PyDict_Type)
        return PyDict_GET_SIZE(value) == 0 && (*n_dicts)++ == 0;
    if (t != &PyTuple_Type || PyTuple_GET_SIZE(value) > MARSHAL_ITEMS || (depth == 0 && PyTuple_GET_SIZE(value) > 0))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (!is_simple(PyTuple_GET_ITEM(value, i), depth - 1, n_dicts))
            return false;
    return true;
}

/* None, numbers, strings, tuples of such, and the empty dict of a call without keywords: exact types only. */
bool pp_is_simple(PyObject *value, int depth) {
    int n_dicts = 0;
    return is_simple(value, depth, &n_dicts);
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

/* Also as __mp_main__. A false alarm (a string that says so) only costs time. */
static bool mentions_main(PyObject *pickle) {
    return memmem(PyBytes_AS_STRING(pickle), PyBytes_GET_SIZE(pickle), "_main__", 7) != NULL;
}

/* Puts what the receiver lacks of __main__ before a pickle, which it takes. */
static PyObject *complete(PyObject *pickle) {
    PyObject *definitions = PyImport_ImportModule("pool_party.wire.definitions");
    PyObject *whole = definitions ? PyObject_CallMethod(definitions, "complete", "O", pickle) : NULL;
    Py_XDECREF(definitions);
    Py_DECREF(pickle);
    return whole;
}

static PyObject *dumps_slowly(PyObject *value, PyObject *callback, PyObject *refusal) {
    PyObject *codec = PyImport_ImportModule("pool_party.wire.codec");
    PyObject *pickle = codec ? PyObject_CallMethod(codec, "dumps", "OOO", value, callback, refusal ? refusal : Py_None) : NULL;
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
    if (pickle && mentions_main(pickle))
        return complete(pickle);
    if (pickle || !may_pickle_by_value())
        return pickle;
    PyObject *refusal = PyErr_GetRaisedException();
    bool is_empty = PyList_SetSlice(buffers, 0, PyList_GET_SIZE(buffers), NULL) == 0;
    pickle = is_empty ? dumps_slowly(value, callback, refusal) : NULL;
    Py_XDECREF(refusal);
    return pickle;
}

static PyObject *encode_pickle(pp_module_t *m, PyObject *value) {
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

static PyObject *encode_number(char start, const void *number) {
    PyObject *payload = PyBytes_FromStringAndSize(NULL, 9);
    if (payload) {
        PyBytes_AS_STRING(payload)[0] = start;
        memcpy(PyBytes_AS_STRING(payload) + 1, number, 8);
    }
    return payload;
}

static PyObject *decode_int(const char *from) {
    int64_t number;
    memcpy(&number, from, sizeof number);
    return PyLong_FromLongLong(number);
}

static PyObject *decode_float(const char *from) {
    double number;
    memcpy(&number, from, sizeof number);
    return PyFloat_FromDouble(number);
}

PyObject *pp_encode(pp_module_t *m, PyObject *value, bool snapshot) {
    int64_t number;
    if (value == Py_None)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (pp_get_int64(value, &number))
        return encode_number(INT_START, &number);
    if (Py_TYPE(value) == &PyFloat_Type)
        return encode_number(FLOAT_START, &((PyFloatObject *)value)->ob_fval);
    if (pp_is_simple(value, MARSHAL_DEPTH))
        return PyMarshal_WriteObjectToString(value, PP_MARSHAL_VERSION);
    PyObject *payload;
    int is_flat = pp_flatten(m, value, snapshot, &payload);
    return is_flat > 0 ? payload : is_flat < 0 ? NULL : encode_pickle(m, value);
}

static PyObject *loads(pp_module_t *m, const void *data, size_t size, PyObject *buffers) {
    if (ensure_pickle(m) < 0)
        return NULL;
    PyObject *pickle = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)size, PyBUF_READ);
    PyObject *args[] = {pickle, buffers};
    PyObject *value = pickle ? PyObject_Vectorcall(m->loads, args, 1, buffers ? m->loads_keywords : NULL) : NULL;
    Py_XDECREF(pickle);
    return value;
}

PyObject *pp_decode_bytes(pp_module_t *m, const void *data, Py_ssize_t size) {
    if (size == 0)
        Py_RETURN_NONE;
    switch (*(const unsigned char *)data) {
    case PICKLE_START: return loads(m, data, (size_t)size, NULL);
    case PP_FLAT_START: return pp_unflatten(m, data, NULL);
    case INT_START: return decode_int((const char *)data + 1);
    case FLOAT_START: return decode_float((const char *)data + 1);
    default: return PyMarshal_ReadObjectFromString(data, size);
    }
}

static PyObject *all_buffers(pp_module_t *m, const pp_leaves_t *leaves) {
    PyObject *buffers = PyList_New(0);
    for (uint32_t i = 0; buffers && i < leaves->n; i++) {
        PyObject *buffer = pp_leaf_buffer(m, leaves, i);
        if (buffer == NULL || PyList_Append(buffers, buffer) < 0)
            Py_CLEAR(buffers);
        Py_XDECREF(buffer);
    }
    return buffers;
}

PyObject *pp_decode(pp_module_t *m, const void *data, size_t size, const pp_leaves_t *leaves) {
    if (size > 0 && *(const unsigned char *)data == PP_FLAT_START)
        return pp_unflatten(m, data, leaves);
    if (leaves->n == 0)
        return pp_decode_bytes(m, data, (Py_ssize_t)size);
    PyObject *buffers = all_buffers(m, leaves);
    PyObject *value = buffers ? loads(m, data, size, buffers) : NULL;
    Py_XDECREF(buffers);
    return value;
}
