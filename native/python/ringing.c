/* A word by which the programs that share a table tell each other that something in it has changed. */
#include "python.h"

/* Gets the word in a buffer, which must be released. NULL: there is an error. */
static _Atomic uint32_t *get_word(PyObject *object, Py_buffer *buffer) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    if (buffer->len >= 4 && (uintptr_t)buffer->buf % 4 == 0)
        return buffer->buf;
    PyBuffer_Release(buffer);
    PyErr_SetString(PyExc_ValueError, "a buffer of at least 4 bytes is needed, at a multiple of 4");
    return NULL;
}

PyObject *pp_ring_word(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    _Atomic uint32_t *word = get_word(object, &buffer);
    if (word == NULL)
        return NULL;
    pp_add_seq_cst(word, 1);
    pp_futex_wake(word, INT32_MAX, UINT32_MAX);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

PyObject *pp_wait_ring_word(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object, *timeout_s = Py_None;
    unsigned seen;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "OI|O", &object, &seen, &timeout_s))
        return NULL;
    double seconds = timeout_s == Py_None ? 0 : PyFloat_AsDouble(timeout_s);
    if (PyErr_Occurred())
        return NULL;
    int64_t deadline_ns = timeout_s == Py_None ? -1 : pp_now_ns() + (int64_t)(seconds * 1e9);
    _Atomic uint32_t *word = get_word(object, &buffer);
    if (word == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pp_futex_wait(word, seen, deadline_ns, UINT32_MAX);
    Py_END_ALLOW_THREADS
    uint32_t now = pp_load_seq_cst(word);
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(now);
}
