/* The module itself: multi-phase init, all state per interpreter, heap types. */
#include "python.h"

#include <errno.h>
#include <pthread.h>

_Atomic unsigned pp_n_forks;

static void in_child(void) {
    atomic_fetch_add(&pp_n_forks, 1);
    pp_store_seq_cst(&pp_n_interpreters, 0);
}
static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

pp_module_t *pp_module_of(PyTypeObject *type) {
    PyObject *module = PyType_GetModuleByDef(type, &pp_module_def);
    return module ? PyModule_GetState(module) : NULL;
}

PyObject *pp_raise_errno(int error) {
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
    if (seconds < 1e9)   /* longer than anybody waits, and the sum can't overflow */
        *deadline_ns = pp_now_ns() + (int64_t)(seconds > 0 ? seconds * 1e9 : 0);
    return 0;
}

static PyObject *raise_in_thread(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long ident;
    PyObject *exception;
    if (!PyArg_ParseTuple(args, "kO", &ident, &exception))
        return NULL;
    return PyLong_FromLong(PyThreadState_SetAsyncExc(ident, exception));
}

static PyObject *n_interpreters(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(pp_load_seq_cst(&pp_n_interpreters));
}

static PyObject *die_with(PyObject *module, PyObject *arg) {
    (void)module;
    int fd = PyObject_AsFileDescriptor(arg);
    if (fd < 0)
        return NULL;
    int error = pp_die_with(fd);
    if (error)
        return pp_raise_errno(error);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"raise_in_thread", raise_in_thread, METH_VARARGS,
     "raise_in_thread(ident, exception) -> int\n\nRaises an exception in the Python code of another thread."},
    {"n_interpreters", n_interpreters, METH_NOARGS,
     "n_interpreters() -> int\n\nInterpreter workers that are alive in this process."},
    {"die_with", die_with, METH_O, "die_with(fd)\n\nKills this process as soon as `fd` reads end of file."},
    {0},
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int add_constants(PyObject *module) {
    static const struct { const char *name; long value; } constants[] = {
        {"STATUS_OK", PP_STATUS_OK},           {"STATUS_FAILED", PP_STATUS_FAILED},
        {"STATUS_UNENCODABLE", PP_STATUS_UNENCODABLE}, {"STATUS_BROKEN_INIT", PP_STATUS_BROKEN_INIT},
        {"STATUS_UNDECODABLE", PP_STATUS_BROKEN_INIT + 1},
        {"MODE_CALL", PP_MODE_CALL},           {"MODE_ITEM", PP_MODE_ITEM},     {"MODE_STAR", PP_MODE_STAR},
        {"MODE_CHUNK", PP_MODE_CHUNK},         {"MODE_STARCHUNK", PP_MODE_STARCHUNK},
        {"STOP_DRAIN", PP_DRAIN},              {"STOP_NOW", PP_STOP},
        {"LANE_EMPTY", PP_LANE_EMPTY},         {"LANE_STARTING", PP_LANE_STARTING},
        {"LANE_READY", PP_LANE_READY},         {"LANE_EXITED", PP_LANE_EXITED},
        {"MAX_WORKERS", PP_MAX_LANES},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static int module_exec(PyObject *module) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pp_module_t *m = PyModule_GetState(module);
    m->dumps_keywords = Py_BuildValue("(s)", "buffer_callback");
    m->protocol = PyLong_FromLong(5);
    m->deliver = PyUnicode_InternFromString("_deliver");
    m->complete = PyUnicode_InternFromString("_complete");
    m->job_type = add_type(module, &pp_job_spec);
    m->channel_type = add_type(module, &pp_channel_spec);
    m->worker_type = add_type(module, &pp_worker_spec);
    m->interpreter_type = add_type(module, &pp_interpreter_spec);
    bool complete = m->dumps_keywords && m->protocol && m->deliver && m->complete &&
                    m->job_type && m->channel_type && m->worker_type && m->interpreter_type;
    return complete ? add_constants(module) : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    pp_module_t *m = PyModule_GetState(module);
    Py_VISIT(m->dumps);
    Py_VISIT(m->loads);
    Py_VISIT(m->job_type);
    Py_VISIT(m->channel_type);
    Py_VISIT(m->worker_type);
    Py_VISIT(m->interpreter_type);
    return 0;
}

static int module_clear(PyObject *module) {
    pp_module_t *m = PyModule_GetState(module);
    Py_CLEAR(m->dumps);
    Py_CLEAR(m->loads);
    Py_CLEAR(m->dumps_keywords);
    Py_CLEAR(m->protocol);
    Py_CLEAR(m->deliver);
    Py_CLEAR(m->complete);
    Py_CLEAR(m->job_type);
    Py_CLEAR(m->channel_type);
    Py_CLEAR(m->worker_type);
    Py_CLEAR(m->interpreter_type);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

struct PyModuleDef pp_module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pool_party._native",
    .m_doc = "The channel, the workers' loop and interpreter threads.",
    .m_size = sizeof(pp_module_t),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&pp_module_def); }
