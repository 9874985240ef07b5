/* Private copies of extension modules: each interpreter has its own instance of modules that allow one per process.
 *
 * A copy is a memfd. It has another inode, so the dynamic linker creates another instance of the library, with its own
 * static variables. What is only read is not stored twice: see layout.c.
 *
 * CPython's own loader is not used, because it runs single-phase init in the main interpreter and shares the module's
 * dict.
 */
#include "python.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one copy ---- */

/* The linker takes two equal names for the same library, even if the first one's descriptor was closed and its number
 * reused. So each name is unique: it contains the bits of a counter, spelled as "/." and "/", which do not change the
 * path. */
static void make_name(char *name, size_t size, int fd) {
    static _Atomic unsigned n_names;
    int length = snprintf(name, size, "%.*s", (int)strlen(PP_COPIES) - 1, PP_COPIES);
    for (unsigned n = pp_add_seq_cst(&n_names, 1) + 1; n; n >>= 1)
        length += snprintf(name + length, size - (size_t)length, n & 1 ? "/." : "/");
    snprintf(name + length, size - (size_t)length, "/%d", fd);
}

static void *open_memfd(int fd) {
    char name[128];
    make_name(name, sizeof name, fd);
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

/* ---- an interpreter's copies ---- */

#define LIMITED_MAX 16     /* copies with threads of their own that an interpreter may have; NumPy and SciPy bring one each */

struct pp_libraries {
    pp_segment_t *segment;   /* the segment of the interpreter's worker, whose budget also limits these libraries; NULL: no longer */
    unsigned worker;
    size_t n, capacity;
    void **handles;
    unsigned n_limited;
    pp_own_library_t limited[LIMITED_MAX];
};

/* The segment must outlive the returned object. */
pp_libraries_t *pp_libraries_new(pp_segment_t *s, unsigned worker) {
    pp_libraries_t *libraries = calloc(1, sizeof *libraries);
    if (libraries)
        *libraries = (pp_libraries_t){.segment = s, .worker = worker};
    return libraries;
}

size_t pp_libraries_count(const pp_libraries_t *libraries) { return libraries->n; }

static void disown(pp_libraries_t *libraries) {
    while (libraries->n_limited)
        pp_limits_disown(&libraries->limited[--libraries->n_limited]);
}

/* All destructors run before anything is unmapped, as at the end of a program: one may call what another library had
 * registered with its own, as those of Arrow do. The library that was loaded last comes first. */
void pp_libraries_end(pp_libraries_t *libraries) {
    disown(libraries);
    for (size_t i = libraries->n; i-- > 0;)
        pp_destructors_run(libraries->handles[i]);
}

void pp_libraries_close(pp_libraries_t *libraries) {
    while (libraries->n)
        dlclose(libraries->handles[--libraries->n]);
    free(libraries->handles);
    free(libraries);
}

/* The copies stay loaded, and keep their present thread counts. */
void pp_libraries_leak(pp_libraries_t *libraries) {
    disown(libraries);
    libraries->segment = NULL;
}

/* Whether a count was set by other means than the limiter's. */
bool pp_libraries_have_changed(const pp_libraries_t *libraries) {
    for (unsigned i = 0; i < libraries->n_limited; i++) {
        int n = libraries->limited[i].library.get();
        if ((unsigned)(n > 0 ? n : 1) != pp_load_relaxed(&libraries->limited[i].count.now))
            return true;
    }
    return false;
}

static int keep_handle(pp_libraries_t *libraries, void *handle) {
    if (libraries->n == libraries->capacity) {
        size_t capacity = libraries->capacity ? 2 * libraries->capacity : 64;
        void **handles = realloc(libraries->handles, capacity * sizeof *handles);
        if (handles == NULL)
            return -1;
        libraries->handles = handles;
        libraries->capacity = capacity;
    }
    libraries->handles[libraries->n++] = handle;
    return 0;
}

static pp_libraries_t *libraries_of(PyObject *module) {
    pp_module_t *m = PyModule_GetState(module);
    if (m->libraries == NULL)
        PyErr_SetString(PyExc_RuntimeError, "private copies are for interpreter workers only");
    return m->libraries;
}

/* NULL: there is an error. No code of the copy has run yet. */
static void *open_bound_copy(int fd, const char *original) {
    void *library = open_memfd(fd);
    if (library == NULL) {
        PyErr_SetString(PyExc_OSError, dlerror());
        return NULL;
    }
    pp_note_copy();
    int error = pp_copy_lay_out(library, fd, original);
    if (error == 0 && (error = pp_imports_replace(library)) == 0)
        return library;
    dlclose(library);
    pp_raise_errno(error);
    return NULL;
}

/* OpenBLAS starts a thread for each further CPU of the thread that runs its constructors, and each spins for some 60 ms
 * before it sleeps. On one CPU it starts none until its count first needs them. */
static bool stay_on_one_cpu(cpu_set_t *own) {
    cpu_set_t one;
    int cpu = sched_getcpu();
    if (cpu < 0 || sched_getaffinity(0, sizeof *own, own) != 0)
        return false;
    CPU_ZERO(&one);
    CPU_SET((unsigned)cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

const char pp_open_copy_doc[] =
    "open_copy(fd, original, on_one_cpu=False, may_sleep=False, may_lock=False) -> int\n\nLoads the copy of a library that is in the memfd, and returns this "
    "interpreter's number for it.\nIt stays until the interpreter has ended; the descriptor is no longer needed. may_sleep: threads in it do not\n"
    "keep the other copies loaded. may_lock: it may lock files by fcntl.";
PyObject *pp_open_copy(PyObject *module, PyObject *args) {
    int fd, on_one_cpu = 0, may_sleep = 0, may_lock = 0;
    PyObject *original;
    if (!PyArg_ParseTuple(args, "iO&|ppp", &fd, PyUnicode_FSConverter, &original, &on_one_cpu, &may_sleep, &may_lock))
        return NULL;
    pp_libraries_t *libraries = libraries_of(module);
    void *library = libraries ? open_bound_copy(fd, PyBytes_AS_STRING(original)) : NULL;
    if (library)
        pp_unknown_threads_note(library, PyBytes_AS_STRING(original), may_sleep, may_lock);
    Py_DECREF(original);
    if (library == NULL)
        return NULL;
    if (keep_handle(libraries, library) < 0) {
        dlclose(library);
        return PyErr_NoMemory();
    }
    cpu_set_t own;
    bool is_narrow = on_one_cpu && stay_on_one_cpu(&own);
    pp_constructors_run(library);
    if (is_narrow)
        sched_setaffinity(0, sizeof own, &own);
    pp_note_load();
    return PyLong_FromSize_t(libraries->n - 1);
}

/* Wheels rename OpenBLAS's functions, in several ways. */
static uintptr_t openblas_function(void *library, const char *name) {
    static const char *const prefixes[] = {"", "scipy_"}, *const suffixes[] = {"", "64_", "_64"};
    char full_name[64];
    void *symbol = NULL;
    for (size_t i = 0; symbol == NULL && i < 6; i++) {
        snprintf(full_name, sizeof full_name, "%s%s%s", prefixes[i / 3], name, suffixes[i % 3]);
        symbol = dlsym(library, full_name);
    }
    return (uintptr_t)symbol;
}

/* An OpenBLAS that is built on OpenMP uses the calling thread's OpenMP count instead. */
static bool has_own_threads(void *library) {
    int (*get)(void) = (int (*)(void))openblas_function(library, "openblas_get_parallel");
    return get && get() == 1;
}

static void *handle_of(PyObject *module, PyObject *arg) {
    pp_libraries_t *libraries = libraries_of(module);
    size_t n = libraries ? PyLong_AsSize_t(arg) : 0;
    if (libraries == NULL || PyErr_Occurred())
        return NULL;
    if (n < libraries->n)
        return libraries->handles[n];
    PyErr_Format(PyExc_ValueError, "this interpreter has no copy %zu", n);
    return NULL;
}

const char pp_copy_handle_doc[] = "copy_handle(copy) -> int\n\nA copy's handle of the dynamic loader, for ctypes.";
PyObject *pp_copy_handle(PyObject *module, PyObject *arg) {
    void *library = handle_of(module, arg);
    return library ? PyLong_FromVoidPtr(library) : NULL;
}

const char pp_copy_threads_doc[] = "copy_threads(copy) -> int\n\nHow many threads a copy of OpenBLAS may use now; 0 if it is none.";
PyObject *pp_copy_threads(PyObject *module, PyObject *arg) {
    void *library = handle_of(module, arg);
    if (library == NULL)
        return NULL;
    int (*get)(void) = (int (*)(void))openblas_function(library, "openblas_get_num_threads");
    return PyLong_FromLong(get ? get() : 0);
}

const char pp_limit_copy_doc[] =
    "limit_copy(copy, most) -> bool\n\nKeeps a copy of OpenBLAS to the budget of this interpreter's worker, from now on, and to what the\n"
    "user's environment allows (0: any number); False if it has no threads.";
PyObject *pp_limit_copy(PyObject *module, PyObject *args) {
    PyObject *copy;
    unsigned most;
    if (!PyArg_ParseTuple(args, "OI", &copy, &most))
        return NULL;
    void *handle = handle_of(module, copy);
    if (handle == NULL)
        return NULL;
    pp_libraries_t *libraries = libraries_of(module);
    pp_library_t library = {.set = (void (*)(int))openblas_function(handle, "openblas_set_num_threads"),
                            .get = (int (*)(void))openblas_function(handle, "openblas_get_num_threads"),
                            .most = most};
    if (library.set == NULL || !has_own_threads(handle) || libraries->segment == NULL || libraries->n_limited == LIMITED_MAX)
        Py_RETURN_FALSE;
    pp_own_library_t *own = &libraries->limited[libraries->n_limited++];
    *own = (pp_own_library_t){
        .budget = &libraries->segment->budget,
        .grant = &pp_segment_worker(libraries->segment, libraries->worker)->grant,
        .number = libraries->worker,
        .library = library};
    Py_BEGIN_ALLOW_THREADS
    pp_limits_own(own);
    Py_END_ALLOW_THREADS
    Py_RETURN_TRUE;
}

typedef struct { void *words[4]; } returned_in_memory_t;   /* as C++ returns an object that has a destructor */

/* Ends the threads of one of Arrow's two pools, by `pool()->Shutdown(true)`: their code uses thread-local variables with
 * destructors, so Arrow would stay loaded, and what it needs would not. */
static void end_arrow_pool(void *library, const char *pool) {
    void *(*get)(void) = (void *(*)(void))dlsym(library, pool);
    returned_in_memory_t (*shut_down)(void *, bool) =
        (returned_in_memory_t (*)(void *, bool))dlsym(library, "_ZN5arrow8internal10ThreadPool8ShutdownEb");
    if (get && shut_down)
        shut_down(get(), true);
}

const char pp_end_threads_doc[] = "end_threads(copy)\n\nEnds the threads of a copy of Arrow, once they have done what they have to do.";
PyObject *pp_end_threads(PyObject *module, PyObject *arg) {
    void *library = handle_of(module, arg);
    if (library == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS   /* they may need Python */
    end_arrow_pool(library, "_ZN5arrow8internal16GetCpuThreadPoolEv");
    end_arrow_pool(library, "_ZN5arrow2io8internal15GetIOThreadPoolEv");
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void limit(uintptr_t set, uintptr_t get, bool per_thread) {
    if (set && get)
        pp_limits_add(&(pp_library_t){.set = (void (*)(int))set, .get = (int (*)(void))get, .per_thread = per_thread});
}

/* Limits a library at once: the task that loads it is about to use it, before the parent looks for new libraries. */
static void limit_now(void *library) {
    if (has_own_threads(library))
        limit(openblas_function(library, "openblas_set_num_threads"), openblas_function(library, "openblas_get_num_threads"),
              false);
    limit((uintptr_t)dlsym(library, "omp_set_num_threads"), (uintptr_t)dlsym(library, "omp_get_max_threads"), true);
}

const char pp_pin_library_doc[] =
    "pin_library(path)\n\nLoads a library for good: copies find it by its name, and its threads and settings outlive them.";
PyObject *pp_pin_library(PyObject *module, PyObject *arg) {
    (void)module;
    PyObject *path;
    if (!PyUnicode_FSConverter(arg, &path))
        return NULL;
    void *library = dlopen(PyBytes_AS_STRING(path), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    Py_DECREF(path);
    if (library == NULL) {
        PyErr_SetString(PyExc_OSError, dlerror());
        return NULL;
    }
    pp_note_load();
    Py_BEGIN_ALLOW_THREADS
    limit_now(library);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- modules ---- */

/* 1: `short_name` is the part of `name` after its last dot. */
static int is_last_part(PyObject *name, PyObject *short_name) {
    Py_ssize_t length = PyUnicode_GET_LENGTH(name);
    Py_ssize_t dot = PyUnicode_FindChar(name, '.', 0, length, -1);
    PyObject *last = dot < -1 ? NULL : PyUnicode_Substring(name, dot + 1, length);
    int same = last ? PyObject_RichCompareBool(last, short_name, Py_EQ) : -1;
    Py_XDECREF(last);
    return same;
}

/* Gives a submodule its full name. Unless CPython's own loader calls it, its init function knows only the last part.
 * Functions keep that name, and pickle would look for them there. */
static int set_full_name(PyObject *module, PyObject *name) {
    PyObject *short_name = PyObject_GetAttrString(module, "__name__"), *function, *key;
    int is_short = short_name ? is_last_part(name, short_name) : -1;
    int result = is_short > 0 ? PyObject_SetAttrString(module, "__name__", name) : is_short;
    Py_ssize_t at = 0;
    while (is_short > 0 && result == 0 && PyDict_Next(PyModule_GetDict(module), &at, &key, &function)) {
        if (!PyCFunction_CheckExact(function))
            continue;
        PyObject *home = PyObject_GetAttrString(function, "__module__");
        int is_its = home ? PyObject_RichCompareBool(home, short_name, Py_EQ) : -1;
        Py_XDECREF(home);
        result = is_its > 0 ? PyObject_SetAttrString(function, "__module__", name) : is_its;
    }
    Py_XDECREF(short_name);
    return result;
}

/* Registers a module for PyState_FindModule, as CPython's loader does. */
static int register_module(PyObject *module) {
    PyModuleDef *def = PyModule_GetDef(module);
    if (def == NULL || def->m_slots != NULL || PyState_FindModule(def) == module)
        return 0;
    return PyState_AddModule(module, def);
}

static PyObject *complete_single_phase(PyObject *module, PyObject *spec) {
    PyObject *name = PyObject_GetAttrString(spec, "name"), *file = PyObject_GetAttrString(spec, "origin");
    bool complete = false;
    if (!PyModule_Check(module))
        PyErr_Format(PyExc_SystemError, "initialization of %S made no module", name);
    else
        complete = name && file && set_full_name(module, name) == 0 && register_module(module) == 0 &&
                   PyObject_SetAttrString(module, "__file__", file) == 0;
    Py_XDECREF(name);
    Py_XDECREF(file);
    if (complete)
        return module;
    Py_DECREF(module);
    return NULL;
}

static PyObject *init_module(PyObject *(*init)(void), PyObject *spec, const char *init_name) {
    PyObject *made = init();
    if (made == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_SystemError, "%s failed without an exception", init_name);
        return NULL;
    }
    if (PyErr_Occurred()) {
        if (!PyObject_TypeCheck(made, &PyModuleDef_Type))
            Py_DECREF(made);
        return NULL;
    }
    if (PyObject_TypeCheck(made, &PyModuleDef_Type))   /* a borrowed reference */
        return pp_module_from_def((PyModuleDef *)made, spec, PYTHON_API_VERSION);
    return complete_single_phase(made, spec);
}

static PyObject *make_from_slots(void *library, const char *export_name, PyObject *spec) {
#if PY_VERSION_HEX >= 0x030F0000
    PySlot *(*export)(void) = (PySlot *(*)(void))dlsym(library, export_name);
    if (export == NULL)
        return NULL;
    PySlot *slots = export();
    if (slots == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_SystemError, "%s failed without an exception", export_name);
        return NULL;
    }
    return pp_module_from_slots(slots, spec);
#else
    (void)library, (void)export_name, (void)spec;
    return NULL;
#endif
}

const char pp_load_extension_doc[] =
    "load_extension(copy, name, spec) -> module\n\nMakes a module in this interpreter by the copy's PyInit function; `name` "
    "is that without \"PyInit\".";
PyObject *pp_load_extension(PyObject *module, PyObject *args) {
    Py_ssize_t n;
    const char *name;
    PyObject *spec;
    if (!PyArg_ParseTuple(args, "nsO", &n, &name, &spec))
        return NULL;
    pp_libraries_t *libraries = libraries_of(module);
    if (libraries == NULL)
        return NULL;
    if (n < 0 || (size_t)n >= libraries->n)
        return PyErr_Format(PyExc_ValueError, "this interpreter has no copy %zd", n);
    void *library = libraries->handles[n];
    char symbol[256];
    snprintf(symbol, sizeof symbol, "PyModExport%s", name);
    PyObject *made = make_from_slots(library, symbol, spec);
    if (made || PyErr_Occurred())
        return made;
    snprintf(symbol, sizeof symbol, "PyInit%s", name);
    PyObject *(*init)(void) = (PyObject *(*)(void))dlsym(library, symbol);
    if (init == NULL)
        return PyErr_Format(PyExc_ImportError, "dynamic module does not define module export function (%s)", symbol);
    return init_module(init, spec, symbol);
}

const char pp_exec_extension_doc[] =
    "exec_extension(module)\n\nRuns the second phase of a module's init; nothing if it has none or has had it.";
PyObject *pp_exec_extension(PyObject *module, PyObject *made) {
    (void)module;
    if (!PyModule_Check(made))
        Py_RETURN_NONE;
#if PY_VERSION_HEX >= 0x030F0000
    if (PyModule_Exec(made) < 0)
        return NULL;
#else
    PyModuleDef *def = PyModule_GetDef(made);
    if (def && PyModule_GetState(made) == NULL && PyModule_ExecDef(made, def) < 0)
        return NULL;
#endif
    Py_RETURN_NONE;
}
