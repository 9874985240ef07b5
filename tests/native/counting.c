/* A library that counts for the process, and, with MODULE, an extension module that needs it. With PART, the library is an
 * extension module itself.
 *
 * The library calls a function that was registered with it when it is closed, as Arrow does. The counts of both are unique
 * in the process, as the linker understands it. Under Arrow's names, it has two pools of threads, of which it has only the names. */
#ifdef MODULE

#include <Python.h>

int count_up(void);
void register_end(void (*function)(void));

static PyObject *count(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(count_up());
}

int pp_test_uses;
__asm__(".type pp_test_uses, @gnu_unique_object");

static PyObject *use(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(++pp_test_uses);
}

static void note_end(void) { setenv("PP_TEST_CLOSED", "called", 1); }

static PyObject *call_at_end(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    register_end(note_end);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"count", count, METH_NOARGS, "Calls in this process."},
    {"use", use, METH_NOARGS, "Its own calls in this process."},
    {"call_at_end", call_at_end, METH_NOARGS, "Sets PP_TEST_CLOSED when the library is closed."},
    {0},
};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "counting", .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC PyInit_counting(void) { return PyModule_Create(&def); }

#else

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int pp_test_count;
__asm__(".type pp_test_count, @gnu_unique_object");
int count_up(void) { return ++pp_test_count; }

static void (*registered)(void);
void register_end(void (*function)(void)) { registered = function; }
__attribute__((destructor)) static void end(void) {
    if (registered)
        registered();
}

typedef struct { void *words[4]; } status_t;   /* in memory, as an object with a destructor */
void *cpu_pool(void) __asm__("_ZN5arrow8internal16GetCpuThreadPoolEv");
void *io_pool(void) __asm__("_ZN5arrow2io8internal15GetIOThreadPoolEv");
status_t shut_down(void *pool, bool waits) __asm__("_ZN5arrow8internal10ThreadPool8ShutdownEb");

void *cpu_pool(void) { return "cpu"; }
void *io_pool(void) { return "io"; }
status_t shut_down(void *pool, bool waits) {
    char ended[20] = "";
    if (getenv("PP_TEST_THREADS"))
        strcpy(ended, getenv("PP_TEST_THREADS"));
    strcat(strcat(ended, " "), pool);
    if (waits)
        setenv("PP_TEST_THREADS", ended, 1);
    return (status_t){{0}};
}

#ifdef PART

#include <Python.h>

static PyObject *count(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(count_up());
}

static PyMethodDef functions[] = {{"count", count, METH_NOARGS, "Calls in this process."}, {0}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "libpart", .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC PyInit_libpart(void) { return PyModule_Create(&def); }

#endif

#endif
