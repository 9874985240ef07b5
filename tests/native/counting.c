/* A library that counts for the process, and, with MODULE, an extension module that needs it. */
#ifdef MODULE

#include <Python.h>

int count_up(void);

static PyObject *count(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(count_up());
}

static PyMethodDef functions[] = {{"count", count, METH_NOARGS, "Calls in this process."}, {0}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "counting", .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC PyInit_counting(void) { return PyModule_Create(&def); }

#else

static int n;
int count_up(void) { return ++n; }

#endif
