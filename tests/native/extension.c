/* An extension module that does not support interpreters: it keeps a count for the process. NAME is its name in C; with
 * MULTI_PHASE it uses multi-phase initialization. Like pybind11 modules, it creates thread-specific keys and keeps one, and like
 * Arrow it creates one as soon as it is loaded. */
#include <Python.h>

#include <pthread.h>

#define JOIN(a, b) a##b
#define INIT(prefix, name) JOIN(prefix, name)

static int n_inits;
static Py_tss_t kept = Py_tss_NEEDS_INIT, deleted = Py_tss_NEEDS_INIT;

static PyObject *count(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(n_inits);
}

static pthread_key_t early;
static int n_constructors, n_arguments;

__attribute__((constructor(101))) static void construct_first(void) { n_constructors = n_constructors == 0 ? 1 : -1; }

__attribute__((constructor)) static void construct(int argc, char **argv) {
    n_constructors = n_constructors == 1 ? 2 : -1;
    n_arguments = argv[argc] == NULL ? argc : -1;
    pthread_key_create(&early, NULL);
}

/* constructed(): how many constructors have run, each once and in their order, and the number of arguments that they got. */
static PyObject *constructed(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return Py_BuildValue("ii", n_constructors, n_arguments);
}

static int use_keys(void) {
    int (*volatile create)(Py_tss_t *) = PyThread_tss_create;   /* an address is in another ELF table (.got) than a call (.got.plt) */
    int failed = create(&kept) || PyThread_tss_create(&deleted);
    PyThread_tss_delete(&deleted);
    return failed ? -1 : 0;
}

static PyMethodDef functions[] = {{"count", count, METH_NOARGS, "Inits in this process."},
                                  {"constructed", constructed, METH_NOARGS, "Constructors that have run."}, {0}};

#ifdef MULTI_PHASE

static int exec(PyObject *module) {
    if (n_inits++ > 0) {
        PyErr_SetString(PyExc_ImportError, "cannot load module more than once per process");
        return -1;
    }
    return use_keys() < 0 ? -1 : PyModule_AddIntConstant(module, "answer", 42);
}
static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec}, {0, NULL}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "extension", .m_methods = functions, .m_slots = slots};
PyMODINIT_FUNC INIT(PREFIX, NAME)(void) { return PyModuleDef_Init(&def); }

#else

static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "_single", .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC INIT(PREFIX, NAME)(void) {
    n_inits++;
    PyObject *module = PyModule_Create(&def);
    if (module && (use_keys() < 0 || PyModule_AddIntConstant(module, "answer", 42) < 0))
        Py_CLEAR(module);
    return module;
}

#endif
