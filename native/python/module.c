/* The module itself: multi-phase initialization, all state per interpreter, heap types. */
#include "python.h"

#include <errno.h>
#include <opcode.h>
#include <pthread.h>
#include <string.h>

_Atomic unsigned pp_n_forks;

static void before_fork(void) {
    pp_limits_before_fork();
    pp_links_before_fork();
    pp_memory_before_fork();
}

static void in_parent(void) {
    pp_memory_after_fork();
    pp_links_after_fork();
    pp_limits_after_fork_in_parent();
}

/* On free-threaded builds each object has a lock. A lock that another thread holds during a fork stays locked in the
 * child for ever, and almost everything in a child reads sys.modules. The child has only the forking thread, which is
 * in `fork` and holds no such lock, so unlocking sys.modules is safe. */
#ifdef Py_GIL_DISABLED
static PyObject *modules;   /* the main interpreter's; NULL: another one imported this module first */

static void note_modules(void) {
    if (PyInterpreterState_Get() == PyInterpreterState_Main())
        modules = Py_NewRef(PyImport_GetModuleDict());
}

static void unlock_modules(void) {
    if (modules)
        modules->ob_mutex = (PyMutex){0};
}
#else
static void note_modules(void) {}
static void unlock_modules(void) {}
#endif

static void in_child(void) {
    unlock_modules();
    pp_memory_after_fork();
    pp_links_after_fork_in_child();
    pp_copy_after_fork_in_child();
    pp_forget_cpus();
    atomic_fetch_add(&pp_n_forks, 1);
    pp_interpreters_after_fork_in_child();
    pp_limits_after_fork_in_child();
    pp_others_after_fork_in_child();
    pp_loads_after_fork();
    pp_interrupts_after_fork();
    pp_duties_after_fork_in_child();
    pp_interrupts_enter(NULL);   /* the worker that forked is not this process */
}

static void watch_forks(void) {
    note_modules();
    pthread_atfork(before_fork, in_parent, in_child);
}

pp_module_t *pp_module_of(PyTypeObject *type) {
    PyObject *module = PyType_GetModuleByDef(type, &pp_module_def);
    return module ? PyModule_GetState(module) : NULL;
}

static PyObject *call_preludes(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return pp_call_preludes();
}

static PyObject *shelve(PyObject *module, PyObject *package) {
    (void)module;
    if (!PyBytes_Check(package)) {
        PyErr_SetString(PyExc_TypeError, "a package is bytes");
        return NULL;
    }
    pp_channel_t *channel = pp_encoding_channel();
    uint32_t at = 0;
    bool is_there = false;
    if (channel && PyBytes_GET_SIZE(package) <= PP_SHELF_BYTES && pp_channel_enter(channel)) {
        is_there = pp_shelf_put(channel->segment, PyBytes_AS_STRING(package), (uint32_t)PyBytes_GET_SIZE(package), &at);
        pp_channel_leave(channel);
    }
    if (!is_there)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(at);
}

static PyObject *from_shelf(PyObject *module, PyObject *args) {
    pp_module_t *m = PyModule_GetState(module);
    unsigned at, size;
    if (!PyArg_ParseTuple(args, "II", &at, &size))
        return NULL;
    const void *start = m->worker_segment ? pp_shelf_get(m->worker_segment, at, size) : NULL;
    if (start == NULL)
        return PyErr_Format(PyExc_RuntimeError, "there is no such place on the shelf");
    return PyBytes_FromStringAndSize(start, size);
}

static PyObject *receivers(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
    return pp_encoding_for();
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

int pp_cpus_of(PyObject *numbers, cpu_set_t *cpus) {
    CPU_ZERO(cpus);
    PyObject *list = PySequence_Fast(numbers, "CPUs are a sequence of numbers");
    if (list == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        long n = PyLong_AsLong(PySequence_Fast_GET_ITEM(list, i));
        if (n >= 0 && n < CPU_SETSIZE)
            CPU_SET(n, cpus);
        else if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "no CPU has the number %ld", n);
    }
    Py_DECREF(list);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *limit_library(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long set, get, count = 0, has_threads = 0;
    int per_thread;
    unsigned most;
    if (!PyArg_ParseTuple(args, "KKpI|KK", &set, &get, &per_thread, &most, &count, &has_threads))
        return NULL;
    pp_library_t library = {.set = (void (*)(int))(uintptr_t)set, .get = (int (*)(void))(uintptr_t)get,
                            .per_thread = per_thread, .most = most, .count = (_Atomic uint32_t *)(uintptr_t)count,
                            .has_threads = (_Atomic uint32_t *)(uintptr_t)has_threads};
    Py_BEGIN_ALLOW_THREADS
    pp_limits_add(&library);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *limits_told(PyObject *module, PyObject *args) {
    (void)module;
    unsigned n;
    if (!PyArg_ParseTuple(args, "I", &n))
        return NULL;
    pp_limits_told(n);
    Py_RETURN_NONE;
}

static PyObject *limits_cpus(PyObject *module, PyObject *numbers) {
    (void)module;
    cpu_set_t cpus;
    if (pp_cpus_of(numbers, &cpus) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pp_limits_cpus(&cpus);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* What the user sets of a library, or has set: each step may have to wait for another thread that sets one. */
typedef struct {
    unsigned long long setter;
    unsigned n;
    int applies;
} users_t;

static bool step_sets(users_t *u) { return pp_user_sets((uintptr_t)u->setter, u->n); }
static bool step_blocks(users_t *u) { return pp_user_blocks((uintptr_t)u->setter, u->n, u->applies); }
static bool step_count(users_t *u) { return pp_user_count((uintptr_t)u->setter, &u->n); }

/* Takes the arguments of `format`, the first ones of `u`. Returns whether the library is known. */
static PyObject *do_step(bool (*step)(users_t *), PyObject *args, const char *format, users_t *u) {
    bool is_known;
    if (!PyArg_ParseTuple(args, format, &u->setter, &u->n, &u->applies))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    is_known = step(u);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_known);
}

/* In an interpreter that is a worker, and in a worker process, all threads are the worker's. */
static PyObject *task(PyObject *module, PyObject *ignored) {
    (void)ignored;
    pp_module_t *m = PyModule_GetState(module);
    uint64_t task;
    Py_BEGIN_ALLOW_THREADS
    task = pp_task_of(m->limited);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(task == 0 && m->libraries ? PP_NO_TASK : task);
}

static PyObject *task_sets(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long task, setter;
    unsigned n;
    bool is_found;
    if (!PyArg_ParseTuple(args, "KKI", &task, &setter, &n))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    is_found = pp_task_sets(task, (uintptr_t)setter, n);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_found);
}

static PyObject *user_sets(PyObject *module, PyObject *args) {
    (void)module;
    return do_step(step_sets, args, "KI", &(users_t){0});
}

static PyObject *user_blocks(PyObject *module, PyObject *args) {
    (void)module;
    return do_step(step_blocks, args, "KIp", &(users_t){0});
}

static PyObject *user_count(PyObject *module, PyObject *args) {
    (void)module;
    users_t u = {0};
    PyObject *is_known = do_step(step_count, args, "K", &u);
    if (is_known == NULL)
        return NULL;
    Py_DECREF(is_known);
    return is_known == Py_True ? PyLong_FromUnsignedLong(u.n) : Py_NewRef(Py_None);
}

static PyObject *user_most(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    unsigned n;
    Py_BEGIN_ALLOW_THREADS
    n = pp_user_most();
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(n);
}

static PyObject *cpus_left(PyObject *module, PyObject *arg) {
    (void)module;
    unsigned long n = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLong(pp_others_leave((unsigned)n));
}

static PyObject *divide(PyObject *module, PyObject *args) {
    (void)module;
    unsigned own, rank, n_awake, n_threads, n_left;
    if (!PyArg_ParseTuple(args, "IIIII", &own, &rank, &n_awake, &n_threads, &n_left))
        return NULL;
    if (n_awake == 0)
        return PyErr_Format(PyExc_ValueError, "n_awake must be at least 1");
    return PyLong_FromUnsignedLong(pp_divide(own, rank, n_awake, n_threads, n_left));
}

static PyObject *count_awake(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLong(pp_others_awake());
}

static PyObject *pretend_running(PyObject *module, PyObject *arg) {
    (void)module;
    unsigned long n = Py_IsNone(arg) ? 0 : PyLong_AsUnsignedLong(arg) + 1;
    if (PyErr_Occurred())
        return NULL;
    pp_others_pretend((uint32_t)n);
    Py_RETURN_NONE;
}

static PyObject *estimate_others(PyObject *module, PyObject *readings) {
    (void)module;
    pp_others_t o = {.n_others = UINT32_MAX};
    PyObject *all = PyList_New(0);
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(readings); i++) {
        int n_running, n_awake, n_lent;
        double at_s;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(readings, i), "iiid", &n_running, &n_awake, &n_lent, &at_s)) {
            Py_CLEAR(all);
            break;
        }
        uint32_t n = pp_others_read(&o, n_running, n_awake, n_lent, (int64_t)(at_s * 1e9));
        PyObject *number = n == UINT32_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(n);
        if (number == NULL || PyList_Append(all, number) < 0)
            Py_CLEAR(all);
        Py_XDECREF(number);
    }
    return all;
}

static PyObject *own_grant(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLong(pp_own_grant());
}

static PyObject *own_threads(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLong(pp_own_threads());
}

static PyObject *limit_foreign(PyObject *module, PyObject *arg) {
    (void)module;
    unsigned long n = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pp_limits_foreign((unsigned)n);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *process_limit(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLong(pp_limits_now());
}

static PyObject *n_loads(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    uint64_t n = pp_n_loads();
    if (n & 1) {
        Py_BEGIN_ALLOW_THREADS
        n = pp_look_at_loads();
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromUnsignedLongLong(n);
}

static PyObject *n_thread_libraries(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    unsigned n;
    Py_BEGIN_ALLOW_THREADS
    n = pp_n_thread_libraries();
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(n);
}

static PyObject *call_getter(PyObject *module, PyObject *arg) {
    (void)module;
    unsigned long long address = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred())
        return NULL;
    int n;
    Py_BEGIN_ALLOW_THREADS
    n = ((int (*)(void))(uintptr_t)address)();
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(n);
}

static PyObject *occupy_standard(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    pp_occupy_standard();
    Py_RETURN_NONE;
}

static PyObject *name_file(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    const char *path;
    if (!PyArg_ParseTuple(args, "is", &fd, &path))
        return NULL;
    int error = pp_name_file(fd, path);
    if (error)
        return pp_raise_errno(error);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
#if PY_VERSION_HEX < 0x030D0000
    {"keep_keywords", pp_keep_keywords, METH_NOARGS,
     "keep_keywords()\n\n"
     "Called before the end of the main interpreter. Prevents it from freeing objects that other interpreters have made."},
#endif
    {"print_uncaught", pp_print_uncaught, METH_O, pp_print_uncaught_doc},
    {"run_prompt", pp_run_prompt, METH_NOARGS, pp_run_prompt_doc},
    {"end_by_interrupt", pp_end_by_interrupt, METH_NOARGS, pp_end_by_interrupt_doc},
    {"interrupt_hook", pp_interrupt_hook, METH_O, pp_interrupt_hook_doc},
    {"n_loads", n_loads, METH_NOARGS,
     "n_loads() -> int\n\nReturns a number that changes when libraries are loaded into this process."},
    {"n_thread_libraries", n_thread_libraries, METH_NOARGS,
     "n_thread_libraries() -> int\n\nHow many loaded libraries have threads of their own, judging by file names."},
    {"call_getter", call_getter, METH_O, "call_getter(address) -> int\n\nCalls an int (*)(void)."},
    {"limit_library", limit_library, METH_VARARGS,
     "limit_library(setter, getter, per_thread, most, count=0, has_threads=0)\n\n"
     "Adds a native library for open budgets to limit, unless it is known. Takes the addresses of a void (*)(int) and an\n"
     "int (*)(void). most: the limit of the user's environment; 0: none. count, has_threads: the addresses of the ints\n"
     "where OpenBLAS keeps its count, and whether it has started its threads; 0: unknown."},
    {"limits_told", limits_told, METH_VARARGS,
     "limits_told(n)\n\nIn a worker process: its environment contains n instead of the user's setting."},
    {"limits_cpus", limits_cpus, METH_O,
     "limits_cpus(cpus)\n\nSets where libraries' threads may run, even if the worker that creates them is pinned to fewer CPUs."},
    {"task", task, METH_NOARGS,
     "task() -> int\n\nThe number of the task whose thread this is, unique in this process; 0: it is the program's. In an interpreter\n"
     "that has no task, the number is that of no task."},
    {"task_sets", task_sets, METH_VARARGS,
     "task_sets(task, setter, n) -> bool\n\n"
     "Limits a library for a task, until that ends; 0: no longer. A library with a count per thread is limited in this thread.\n"
     "False: the task has ended, or does not use the library."},
    {"user_sets", user_sets, METH_VARARGS,
     "user_sets(setter, n) -> bool\n\nNotes that the program sets a library's count. False: the library is unknown."},
    {"user_blocks", user_blocks, METH_VARARGS,
     "user_blocks(setter, n, applies) -> bool\n\n"
     "Sets the count of the user's open blocks for a library with one count per process; 0: no block is open. applies: set\n"
     "the library now. False: the library is unknown."},
    {"user_count", user_count, METH_VARARGS,
     "user_count(setter) -> int | None\n\n"
     "Returns what the program has set outside blocks in this process or thread. None: the library is unknown."},
    {"user_most", user_most, METH_NOARGS,
     "user_most() -> int\n\n"
     "Returns the smallest count that the user has set for a library with one count per process; a very large number if\n"
     "none is set."},
    {"limit_foreign", limit_foreign, METH_O,
     "limit_foreign(n)\n\n"
     "Sets the number of active workers in other processes, which reduces the limits of this process's libraries."},
    {"cpus_left", cpus_left, METH_O,
     "cpus_left(n) -> int\n\n"
     "Returns how many of n CPUs other programs do not use, as far as is known. It is observed while a pool lends."},
    {"divide", divide, METH_VARARGS,
     "divide(own, rank, n_awake, n_threads, n_left) -> int\n\n"
     "Returns how many threads the active worker of this rank, of n_awake ones, has. own: its threads while all workers of its\n"
     "pool are active; n_threads: those of the pool; n_left: for how many of these other programs leave CPUs, which are lent."},
    {"n_awake", count_awake, METH_NOARGS,
     "n_awake() -> int\n\n"
     "For tests: returns the number of active workers, of all pools of this process, that budgets are based on."},
    {"pretend_running", pretend_running, METH_O,
     "pretend_running(n)\n\n"
     "For tests: pretends that so many threads of the machine are running, including the reading one. 0: the system does\n"
     "not tell; None: reads the real number."},
    {"estimate_others", estimate_others, METH_VARARGS,
     "estimate_others(*readings) -> list\n\n"
     "For tests: returns threads of other programs, or None, after each reading of (running, awake, lent, seconds)."},
    {"own_grant", own_grant, METH_NOARGS,
     "own_grant() -> int\n\nReturns how many threads the worker in this thread may use. 0: there is no limit, or no worker."},
    {"own_threads", own_threads, METH_NOARGS,
     "own_threads() -> int\n\n"
     "Like own_grant, but includes threads lent to the worker now, and excludes those that other pools need."},
    {"process_limit", process_limit, METH_NOARGS,
     "process_limit() -> int\n\nReturns how many threads libraries with one count per process may use now; 0: unlimited."},
    {"call_preludes", call_preludes, METH_NOARGS,
     "call_preludes() -> dict, or None\n\nReturns the preludes that were made for the map or stream that this thread is encoding."},
    {"receivers", receivers, METH_NOARGS,
     "receivers() -> object\n\n"
     "Returns `Channel.receivers` of the pool that this thread is encoding for, or None: what its workers have of __main__."},
    {"n_interpreters", n_interpreters, METH_NOARGS,
     "n_interpreters() -> int\n\nReturns the number of live interpreter workers in this process."},
    {"open_copy", pp_open_copy, METH_VARARGS, pp_open_copy_doc},
    {"has_room", pp_has_room, METH_O, pp_has_room_doc},
    {"count_mappings", pp_count_mappings, METH_NOARGS, pp_count_mappings_doc},
    {"staying", pp_staying, METH_NOARGS, pp_staying_doc},
    {"copies_locks", pp_copies_locks, METH_NOARGS, pp_copies_locks_doc},
    {"copy_handle", pp_copy_handle, METH_O, pp_copy_handle_doc},
    {"copy_threads", pp_copy_threads, METH_O, pp_copy_threads_doc},
    {"end_threads", pp_end_threads, METH_O, pp_end_threads_doc},
    {"limit_copy", pp_limit_copy, METH_VARARGS, pp_limit_copy_doc},
    {"pin_library", pp_pin_library, METH_O, pp_pin_library_doc},
    {"load_extension", pp_load_extension, METH_VARARGS, pp_load_extension_doc},
    {"exec_extension", pp_exec_extension, METH_O, pp_exec_extension_doc},
    {"copy", pp_copy_buffer, METH_VARARGS, pp_copy_doc},
    {"keep_decoded", pp_keep_decoded, METH_VARARGS, pp_keep_decoded_doc},
    {"decoded", pp_decoded, METH_O, pp_decoded_doc},
    {"members", pp_members, METH_O, pp_members_doc},
    {"find_member", pp_find_member, METH_VARARGS, pp_find_member_doc},
    {"kinds", pp_kinds, METH_O, pp_kinds_doc},
    {"duplicate", pp_duplicate, METH_VARARGS, pp_duplicate_doc},
    {"is_reusable", pp_is_reusable, METH_VARARGS, pp_is_reusable_doc},
    {"shelve", shelve, METH_O,
     "shelve(package) -> int, or None\n\n"
     "Puts bytes on the shelf of the channel for which this thread is encoding. All its workers can read them there until\n"
     "the pool ends. Returns their position, or None if there is no room or no such channel."},
    {"from_shelf", from_shelf, METH_VARARGS, "from_shelf(at, size) -> bytes\n\n"
                                             "In a worker: returns what `shelve` has put at this position."},
    {"names_of_main", pp_names_of_main, METH_O, pp_names_of_main_doc},
    {"leaves", pp_find_leaves, METH_VARARGS, pp_leaves_doc},
    {"recall", pp_recall, METH_VARARGS, pp_recall_doc},
    {"annotations_of", pp_annotations_of, METH_O, pp_annotations_of_doc},
    {"are_same", pp_are_same, METH_VARARGS, pp_are_same_doc},
    {"n_helped", pp_n_helped, METH_NOARGS, "n_helped() -> int\n\n"
                                           "Returns the number of copied pieces that idle cores have contributed in this\n"
                                           "process."},
    {"share", pp_share, METH_O, pp_share_doc},
    {"ask_main", pp_ask_main, METH_O, pp_ask_main_doc},
    {"is_shared", pp_is_shared, METH_O, pp_is_shared_doc},
    {"served", pp_served, METH_NOARGS, pp_served_doc},
    {"entry", pp_entry, METH_VARARGS, pp_entry_doc},
    {"call_apart", pp_call_apart, METH_O, pp_call_apart_doc},
    {"name_shared", pp_name_shared, METH_O, pp_name_shared_doc},
    {"has_shared", pp_has_shared, METH_O, pp_has_shared_doc},
    {"enter_link", pp_enter_link, METH_O, pp_enter_link_doc},
    {"occupy_standard", occupy_standard, METH_NOARGS,
     "occupy_standard()\n\n"
     "Opens /dev/null in place of each standard stream that is closed, so that no descriptor that is opened later has its\n"
     "number. Programs that are started inherit it."},
    {"name_file", name_file, METH_VARARGS, "name_file(fd, path)\n\nGives a file without a name one. Raises: FileExistsError."},
    {"open_shared", pp_open_shared, METH_O, pp_open_shared_doc},
    {"ring", pp_ring_word, METH_O, pp_ring_word_doc},
    {"wait_ring", pp_wait_ring_word, METH_VARARGS, pp_wait_ring_word_doc},
    {"n_interrupts", pp_n_interrupts, METH_NOARGS, "n_interrupts() -> int\n\nReturns how often this process has received SIGINT, as far as it was watched."},
    {"die_with", die_with, METH_O, "die_with(fd)\n\nKills this process as soon as `fd` reads end of file."},
    {0},
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

#ifdef __GLIBC__
#define HAS_GLIBC 1
#else
#define HAS_GLIBC 0   /* musl never unloads a library, and resolves dependencies of a library by path only */
#endif

static int add_constants(PyObject *module) {
    static const struct { const char *name; long value; } constants[] = {
        {"CHANNEL_MAGIC", PP_MAGIC},           {"CHANNEL_MAGIC_AT", PP_CORE_AT},
        {"COMMON_MIN", PP_COMMON_MIN},
        {"STATUS_OK", PP_STATUS_OK},           {"STATUS_FAILED", PP_STATUS_FAILED},
        {"STATUS_UNENCODABLE", PP_STATUS_UNENCODABLE}, {"STATUS_BROKEN_INIT", PP_STATUS_BROKEN_INIT},
        {"STATUS_UNDECODABLE", PP_STATUS_UNDECODABLE}, {"STATUS_RAISED", PP_STATUS_RAISED},
        {"STATUS_CANCELLED", PP_STATUS_CANCELLED},
        {"CALLBACKS_NONE", PP_CALLBACKS_NONE}, {"CALLBACKS_BEFORE", PP_CALLBACKS_BEFORE},
        {"CALLBACKS_AFTER", PP_CALLBACKS_AFTER},
        {"JOB_SINGLE", PP_JOB_SINGLE},         {"JOB_MAP", PP_JOB_MAP},         {"JOB_STREAM", PP_JOB_STREAM},
        {"MODE_CALL", PP_MODE_CALL},           {"MODE_ITEM", PP_MODE_ITEM},     {"MODE_STAR", PP_MODE_STAR},
        {"INTERCEPT_FAILURES", PP_INTERCEPT_FAILURES}, {"INTERCEPT_ALL", PP_INTERCEPT_ALL},
        {"MODE_CHUNK", PP_MODE_CHUNK},         {"MODE_STARCHUNK", PP_MODE_STARCHUNK},
        {"STOP_DRAIN", PP_DRAIN},              {"STOP_NOW", PP_STOP},
        {"WORKER_STARTING", PP_WORKER_STARTING},
        {"WORKER_READY", PP_WORKER_READY},         {"WORKER_EXITED", PP_WORKER_EXITED},
        {"DUTY_TASKS", PP_DUTY_TASKS},         {"DUTY_INPUT", PP_DUTY_INPUT},   {"DUTY_ANY", PP_DUTY_ANY},
        {"DUTY_RESULT", PP_DUTY_RESULT},       {"DUTY_BACKLOG", PP_DUTY_BACKLOG},
        {"MAX_WORKERS", PP_MAX_WORKERS},         {"SLOTS", PP_SLOTS},
        {"EVENT_TASK", PP_EVENT_TASK},         {"EVENT_WAIT", PP_EVENT_WAIT},   {"EVENT_BUDGET", PP_EVENT_BUDGET},
        {"EVENT_WORDS", PP_EVENT_WORDS},       {"TAGS_KIND_AT", PP_TAGS_KIND_AT},
        {"TAGS_STATUS_AT", PP_TAGS_STATUS_AT}, {"TAGS_THREADS_AT", PP_TAGS_THREADS_AT},
        {"PRESENT_TASK", PP_PRESENT_TASK},     {"PRESENT_LOOKS", PP_PRESENT_LOOKS},
        {"PRESENT_SLEEPS", PP_PRESENT_SLEEPS}, {"REGION_NUMBERS", PP_REGION_NUMBERS},
        {"HAS_GLIBC", HAS_GLIBC},
        {"MAPPINGS_KEPT", PP_MAPPINGS_KEPT},
        {"LOAD_GLOBAL", LOAD_GLOBAL},          {"STORE_GLOBAL", STORE_GLOBAL},  {"DELETE_GLOBAL", DELETE_GLOBAL},
        {"LOAD_NAME", LOAD_NAME},              {"EXTENDED_ARG", EXTENDED_ARG},
        {"LOAD_FROM_DICT_OR_GLOBALS", LOAD_FROM_DICT_OR_GLOBALS},
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
    m->make_worker = pp_worker_new;
    m->dumps_keywords = Py_BuildValue("(s)", "buffer_callback");
    m->loads_keywords = Py_BuildValue("(s)", "buffers");
    m->protocol = PyLong_FromLong(5);
    m->dispatch_table_name = PyUnicode_InternFromString("dispatch_table");
    m->dump_name = PyUnicode_InternFromString("dump");
    m->getvalue_name = PyUnicode_InternFromString("getvalue");
    m->kept_name = PyUnicode_InternFromString("kept");
    m->job_type = add_type(module, &pp_job_spec);
    m->entry_type = add_type(module, &pp_entry_spec);
    m->published_type = add_type(module, &pp_published_spec);
    m->keeper_type = add_type(module, &pp_keeper_spec);
    m->channel_type = add_type(module, pp_channel_spec());
    m->worker_type = add_type(module, &pp_worker_spec);
    m->interpreter_type = add_type(module, &pp_interpreter_spec);
    if (add_type(module, &pp_link_spec) == NULL)
        return -1;
    m->memory_type = add_type(module, &pp_memory_spec);
    bool complete = m->dumps_keywords && m->loads_keywords && m->memory_type && m->protocol && m->dispatch_table_name && m->dump_name &&
                    m->getvalue_name && m->kept_name && m->job_type && m->entry_type &&
                    m->published_type && m->keeper_type && m->channel_type && m->worker_type && m->interpreter_type;
    return complete && pp_gating_add(module) == 0 && pp_duties_add(module) == 0 ? add_constants(module) : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    pp_module_t *m = PyModule_GetState(module);
    Py_VISIT(m->dumps);
    Py_VISIT(m->loads);
    Py_VISIT(m->pickler);
    Py_VISIT(m->unpickler);
    Py_VISIT(m->file_type);
    Py_VISIT(m->reducers);
    Py_VISIT(m->registered);
    Py_VISIT(m->local_reducers);
    Py_VISIT(m->duplicates);
    Py_VISIT(m->caller);
    Py_VISIT(m->job_type);
    Py_VISIT(m->entry_type);
    Py_VISIT(m->published_type);
    Py_VISIT(m->keeper_type);
    Py_VISIT(m->channel_type);
    Py_VISIT(m->worker_type);
    Py_VISIT(m->interpreter_type);
    Py_VISIT(m->memory_type);
    Py_VISIT(m->array_type);
    return 0;
}

static int module_clear(PyObject *module) {
    pp_module_t *m = PyModule_GetState(module);
    pp_forget_common(m);
    Py_CLEAR(m->dumps);
    Py_CLEAR(m->loads);
    Py_CLEAR(m->pickler);
    Py_CLEAR(m->unpickler);
    Py_CLEAR(m->file_type);
    Py_CLEAR(m->reducers);
    Py_CLEAR(m->registered);
    Py_CLEAR(m->local_reducers);
    Py_CLEAR(m->duplicates);
    Py_CLEAR(m->caller);
    Py_CLEAR(m->dumps_keywords);
    Py_CLEAR(m->loads_keywords);
    Py_CLEAR(m->protocol);
    Py_CLEAR(m->dispatch_table_name);
    Py_CLEAR(m->dump_name);
    Py_CLEAR(m->getvalue_name);
    Py_CLEAR(m->kept_name);
    Py_CLEAR(m->job_type);
    Py_CLEAR(m->entry_type);
    Py_CLEAR(m->published_type);
    Py_CLEAR(m->keeper_type);
    Py_CLEAR(m->channel_type);
    Py_CLEAR(m->worker_type);
    Py_CLEAR(m->interpreter_type);
    Py_CLEAR(m->memory_type);
    Py_CLEAR(m->array_type);
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
