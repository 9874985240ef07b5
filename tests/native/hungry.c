/* An extension module that takes 1,500 bytes of static TLS, which the C library has little of for libraries that are loaded late. */
#include <Python.h>

static __thread char area[1500] __attribute__((tls_model("initial-exec"))) = "1";

static PyObject *use(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(area[0]++);
}

static PyMethodDef functions[] = {{"use", use, METH_NOARGS, "Its own calls in this thread, from 49 on."}, {0}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "hungry", .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC PyInit_hungry(void) { return PyModule_Create(&def); }
