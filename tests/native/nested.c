/* An extension module that does not support interpreters, and makes a submodule that does not either while it is executed, as modules
 * of Rust do. It also schedules calls, as greenlet does, enters Python from threads of its own, as Arrow does, and registers a function
 * for Python's end, as DuckDB does. */
#include <Python.h>

#include <pthread.h>
#include <unistd.h>

static long long called_in;   /* id of the interpreter that ran the scheduled call; -1: none has */

static int note(void *ignored) {
    (void)ignored;
    called_in = PyInterpreterState_GetID(PyInterpreterState_Get());
    return 0;
}

static void *schedule_there(void *ignored) { return (void *)(intptr_t)Py_AddPendingCall(note, ignored); }

/* schedule(in_raw_thread): from this thread, or from one that Python does not know. */
static PyObject *schedule(PyObject *module, PyObject *in_raw_thread) {
    pthread_t thread;
    void *failed = NULL;
    (void)module;
    called_in = -1;
    if (in_raw_thread != Py_True)
        failed = schedule_there(NULL);
    else if (pthread_create(&thread, NULL, schedule_there, NULL) || pthread_join(thread, &failed))
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyBool_FromLong(failed == NULL);
}

static int steps[2];   /* two pipes: to read from, and to write to */

/* Waits for a byte, schedules a call, says how that went, waits for another byte, and says whether the call has run. */
static void *schedule_late(void *ignored) {
    char byte;
    if (read(steps[0], &byte, 1) == 1 && write(steps[1], Py_AddPendingCall(note, ignored) == 0 ? "0" : "-", 1) == 1)
        if (read(steps[0], &byte, 1) == 1 && write(steps[1], called_in == -1 ? "-" : "+", 1) == 1)
            close(steps[1]);
    return NULL;
}

/* stay(to_read, to_write): a thread that may outlive this interpreter. */
static PyObject *stay(PyObject *module, PyObject *args) {
    pthread_t thread;
    (void)module;
    called_in = -1;
    if (!PyArg_ParseTuple(args, "ii", &steps[0], &steps[1]))
        return NULL;
    if (pthread_create(&thread, NULL, schedule_late, NULL) || pthread_detach(thread))
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static void *enter(void *found) {
    PyGILState_STATE outer = PyGILState_Ensure(), inner = PyGILState_Ensure();
    *(long long *)found = PyInterpreterState_GetID(PyInterpreterState_Get());
    PyGILState_Release(inner);
    PyGILState_Release(outer);
    return NULL;
}

/* entered(): the interpreter that a thread enters which Python does not know. */
static PyObject *entered(PyObject *module, PyObject *ignored) {
    pthread_t thread;
    long long found = -1;
    int failed;
    (void)module, (void)ignored;
    Py_BEGIN_ALLOW_THREADS
    failed = pthread_create(&thread, NULL, enter, &found) || pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLongLong(found);
}

/* As cffi does: the state of a thread stays for its next callback, and nobody frees it when the thread ends. */
static void *enter_and_keep(void *found) {
    PyGILState_STATE state = PyGILState_Ensure();
    *(long long *)found = PyInterpreterState_GetID(PyInterpreterState_Get());
    PyGILState_GetThisThreadState()->gilstate_counter++;
    PyGILState_Release(state);
    return NULL;
}

/* kept(): as `entered`. */
static PyObject *kept(PyObject *module, PyObject *ignored) {
    pthread_t thread;
    long long found = -1;
    int failed;
    (void)module, (void)ignored;
    Py_BEGIN_ALLOW_THREADS
    failed = pthread_create(&thread, NULL, enter_and_keep, &found) || pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLongLong(found);
}

static void at_exit(void) { setenv("PP_TEST_EXIT", Py_IsInitialized() ? "initialized" : "ended", 1); }

/* at_exit(): sets a variable of the process when Python ends. */
static PyObject *register_exit(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyBool_FromLong(Py_AtExit(at_exit) == 0);
}

static pthread_key_t key;
static void drop(void *value) { (void)value; }

/* In a tail call, which does not return to this library. */
__attribute__((optimize("O2"))) static void make_in_tail_call(void) { pthread_key_create(&key, drop); }

/* make_key(): a thread-specific key that is never deleted. */
static PyObject *make_key(PyObject *module, PyObject *ignored) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)module, (void)ignored;
    return PyBool_FromLong(pthread_once(&once, make_in_tail_call) == 0);
}

static PyObject *called(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLongLong(called_in);
}

static PyObject *here(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLongLong(PyInterpreterState_GetID(PyInterpreterState_Get()));
}

static PyMethodDef functions[] = {
    {"schedule", schedule, METH_O, "Schedules a call; False if CPython's list is full."},
    {"called", called, METH_NOARGS, "The interpreter that ran it, or -1."},
    {"stay", stay, METH_VARARGS, "Starts a thread that schedules a call later."},
    {"entered", entered, METH_NOARGS, "The interpreter that a raw thread enters."},
    {"kept", kept, METH_NOARGS, "The interpreter that a raw thread enters, which keeps its state."},
    {"at_exit", register_exit, METH_NOARGS, "Registers a function for the end."},
    {"make_key", make_key, METH_NOARGS, "Makes a thread-specific key."},
    {"here", here, METH_NOARGS, "This interpreter."},
    {0},
};

static PyModuleDef_Slot no_slots[] = {{0, NULL}};
static struct PyModuleDef inner = {PyModuleDef_HEAD_INIT, .m_name = "inner", .m_slots = no_slots};

/* Makes a module `inner`, and sets `refused` if another module is refused meanwhile. */
static int exec(PyObject *module) {
    PyObject *spec = PyObject_GetAttrString(module, "__spec__");
    PyObject *submodule = spec ? PyModule_FromDefAndSpec(&inner, spec) : NULL;
    Py_XDECREF(spec);
    if (submodule == NULL || PyModule_ExecDef(submodule, &inner) < 0 || PyModule_Add(module, "inner", submodule) < 0)
        return -1;
    PyObject *other = PyImport_ImportModule("faulthandler");
    if (other == NULL)
        PyErr_Clear();
    Py_XDECREF(other);
    return PyModule_AddIntConstant(module, "refused", other == NULL);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec}, {0, NULL}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "nested", .m_methods = functions, .m_slots = slots};
PyMODINIT_FUNC PyInit_nested(void) { return PyModuleDef_Init(&def); }
