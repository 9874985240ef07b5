/* What functions share that Python calls: errors of the system, and time-outs. */
#include "python.h"

#include <errno.h>
#include <string.h>

static PyObject *raise_descriptor_closed(void) {
    PyObject *errors = PyImport_ImportModule("pool_party._ground.errors");
    PyObject *exception = errors ? PyObject_CallMethod(errors, "descriptor_closed", NULL) : NULL;
    if (exception)
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
    Py_XDECREF(errors);
    return NULL;
}

/* EFBIG: shared memory would exceed the largest file size or, beyond 256 GiB, the largest block. EBADF: a descriptor of
 * ours no longer belongs to its file. */
PyObject *pp_raise_errno(int error) {
    if (error == EBADF)
        return raise_descriptor_closed();
    if (error == EFBIG) {
        PyObject *text = PyUnicode_FromFormat("%s: shared memory is limited by RLIMIT_FSIZE (ulimit -f)", strerror(error));
        PyObject *args = text ? Py_BuildValue("(iN)", error, text) : NULL;
        if (args)
            PyErr_SetObject(PyExc_OSError, args);
        Py_XDECREF(args);
        return NULL;
    }
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

int pp_deadline_of(PyObject *timeout_s, int64_t *deadline_ns) {
    *deadline_ns = -1;
    if (timeout_s == Py_None)
        return 0;
    double seconds = PyFloat_AsDouble(timeout_s);
    if (PyErr_Occurred())
        return -1;
    if (!(seconds >= 1e9))   /* longer waits have no deadline, which also avoids overflow; NaN is over at once */
        *deadline_ns = pp_now_ns() + (int64_t)(seconds > 0 ? seconds * 1e9 : 0);
    return 0;
}
