/* Interpreter workers. We start a thread, which creates an interpreter with its own GIL, waits until it is told what to
 * run, and runs pool_party._workers.loop in it until the pool ends. Start creation early: it takes longer than the rest
 * of the pool's set-up.
 *
 * The thread state belongs to this thread, so PyGILState_Ensure in extensions finds the right interpreter. Interpreters
 * are created and ended one at a time (CPython issues 136423, 127041).
 */
#include "python.h"

#include <errno.h>
#include <marshal.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { UNTOLD, TOLD, DISMISSED };
enum { READING_NS = 1000000 };   /* ns between two checks whether a module has been read; guess: much longer than most reads */

typedef struct {
    _Atomic long refs;              /* one of the thread, one of the handle */
    _Atomic uint32_t done;          /* futex: 1 once the thread no longer touches Python */
    _Atomic uint32_t told;          /* futex: UNTOLD; TOLD: `config` is there; DISMISSED: there is nothing to run */
    _Atomic uint32_t n_interrupts;  /* requests to interrupt a task since the thread that does it was started; 0: there is none */
    _Atomic uint64_t target_ns;     /* when the timed task began that it is to interrupt */
    _Atomic int is_ending;          /* it is to interrupt any task, from now on */
    _Atomic int is_closing;         /* nothing of the user's holds up its end any more but functions for the end */
    pthread_mutex_t mutex;          /* guards the two below; never held while waiting for a worker's task */
    PyInterpreterState *interpreter;   /* NULL while there is nothing to interrupt */
    unsigned long ident;
    pp_segment_t *segment;
    unsigned worker;
    char *config;
    Py_ssize_t config_size;
    bool initializes;                  /* what it is told to run begins with an initializer, or imports of `preload=` */
    pp_libraries_t *libraries;         /* the interpreter's; NULL once it is certain that they stay loaded */
    int64_t interpreter_id;
    pthread_t id;
    char error[200];
} thread_t;

typedef struct {
    PyObject_HEAD
    thread_t *thread;
} interpreter_t;

static pthread_mutex_t births_and_deaths = PTHREAD_MUTEX_INITIALIZER;
_Atomic long pp_n_interpreters;   /* interpreters of ours in this process */

void pp_interpreters_after_fork_in_child(void) {
    pthread_mutex_init(&births_and_deaths, NULL);
    pp_store_seq_cst(&pp_n_interpreters, 0);
    pp_forks_forget_interpreters();
}

static void thread_unref(thread_t *t) {
    if (t == NULL || pp_add_seq_cst(&t->refs, -1) != 1)
        return;
    pthread_mutex_destroy(&t->mutex);
    pp_segment_unref(t->segment);
    free(t->config);
    free(t);
}

/* Starts a thread with no signal blocked, since processes that tasks start inherit the mask. The kernel prefers the
 * main thread for signals anyway. */
static int start_thread(void *(*main)(void *), thread_t *t, bool is_joined) {
    pthread_t thread;
    int error = pp_create_thread(&thread, main, t);
    if (error == 0 && !is_joined)
        pthread_detach(thread);
    return error;
}

/* ---- in the new thread ---- */

/* Whether there may be something to run in it. A pool that is closed or terminated stops its workers when no task waits
 * any more. After `close`, each worker is initialized nevertheless, as with the pools of the standard library. */
static bool is_wanted(thread_t *t) {
    uint32_t told = pp_load_seq_cst(&t->told);
    if (told != TOLD)
        return told == UNTOLD;
    uint32_t stop = pp_load_seq_cst(&t->segment->shared->stop);
    return stop == PP_RUN || (stop == PP_DRAIN && t->initializes);
}

/* NULL: there is an error, or the interpreter is no longer wanted. */
static PyThreadState *open_interpreter(thread_t *t) {
    PyInterpreterConfig config = {
        .use_main_obmalloc = 0, .allow_fork = 0, .allow_exec = 0, .allow_threads = 1, .allow_daemon_threads = 0,
        .check_multi_interp_extensions = 1, .gil = PyInterpreterConfig_OWN_GIL,
    };
    PyThreadState *state = NULL;
    PyStatus status = PyStatus_Ok();
    pthread_mutex_lock(&births_and_deaths);
    if (is_wanted(t)) {   /* the births and deaths before this one may have taken long */
        /* CPython opens a standard stream whose number is in use. If the stream is closed, that is another thread's
         * file, perhaps a folder or closed by then, and the interpreter cannot be made; CPython 3.12 crashes. */
        pp_occupy_standard();
        status = Py_NewInterpreterFromConfig(&state, &config);
    }
    pp_forks_find_interpreters();   /* under the mutex, so that the newest one does not change */
    pthread_mutex_unlock(&births_and_deaths);
    if (!PyStatus_Exception(status))
        return state;
    strncpy(t->error, status.err_msg ? status.err_msg : "the interpreter could not be made", sizeof t->error - 1);
    return NULL;
}

static void set_interruptible(thread_t *t, bool can) {
    Py_BEGIN_ALLOW_THREADS   /* interrupt() holds the mutex while it waits for our GIL */
    pthread_mutex_lock(&t->mutex);
    t->interpreter = can ? PyThreadState_GetInterpreter(_save) : NULL;
    t->ident = PyThread_get_thread_ident();
    pthread_mutex_unlock(&t->mutex);
    Py_END_ALLOW_THREADS
}

static void await_word(thread_t *t) {
    while (pp_load_seq_cst(&t->told) == UNTOLD)
        pp_futex_wait(&t->told, UNTOLD, -1, UINT32_MAX);
}

/* Waits without a thread state, so that code that stops all threads does not wait for this one. */
static bool wait_until_told(thread_t *t) {
    Py_BEGIN_ALLOW_THREADS
    await_word(t);
    Py_END_ALLOW_THREADS
    return is_wanted(t);
}

/* Loads modules by `load` of pool_party._workers.interp.boot, whose code is passed in and not imported. */
static int load_modules(PyObject *start) {
    PyObject *boot, *modules, *frozen;
    if (start == Py_None)
        return 0;
    if (!PyArg_ParseTuple(start, "OOO", &boot, &modules, &frozen))
        return -1;
    PyObject *globals = PyDict_New(), *ran = globals ? PyEval_EvalCode(boot, globals, globals) : NULL;
    PyObject *load = ran ? PyDict_GetItemString(globals, "load") : NULL;
    PyObject *done = load ? PyObject_CallFunctionObjArgs(load, modules, frozen, NULL) : NULL;
    Py_XDECREF(globals);
    Py_XDECREF(ran);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The worker's part of the configuration. Before it come sys.path, without which pool_party may not be importable, and
 * the code of our first modules, or None. That code is large and no longer needed, so it is freed here. */
static PyObject *take_config(thread_t *t) {
    PyObject *told = PyMarshal_ReadObjectFromString(t->config, t->config_size), *path, *start, *config = NULL;
    free(t->config);
    t->config = NULL;
    if (told && PyArg_ParseTuple(told, "OOO", &path, &start, &config) && PySys_SetObject("path", path) == 0 &&
        load_modules(start) == 0)
        Py_INCREF(config);
    else
        config = NULL;
    Py_XDECREF(told);
    return config;
}

static int run_loop(thread_t *t) {
    PyObject *config = take_config(t), *module = NULL, *worker = NULL, *loop = NULL, *done = NULL;
    if (config)
        module = PyImport_ImportModule("pool_party._native");
    pp_module_t *m = module ? PyModule_GetState(module) : NULL;
    if (m)
        m->libraries = t->libraries = pp_libraries_new(t->segment, t->worker);
    if (m && (worker = m->make_worker(m, t->segment, t->worker)))
        loop = PyImport_ImportModule("pool_party._workers.loop");
    if (loop)
        done = PyObject_CallMethod(loop, "run_interpreter", "OO", worker, config);
    Py_XDECREF(config);
    Py_XDECREF(module);
    Py_XDECREF(worker);
    Py_XDECREF(loop);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Reports why the worker ended. PyErr_Print would end the process for a SystemExit. */
static void report_error(thread_t *t) {
    PyObject *error = PyErr_GetRaisedException();
    if (pp_load_seq_cst(&t->segment->shared->stop) != PP_STOP) {   /* otherwise it was interrupted to stop */
        snprintf(t->error, sizeof t->error, "its loop raised %s; see standard error", Py_TYPE(error)->tp_name);
        PyErr_DisplayException(error);
    }
    Py_DECREF(error);
}

/* Ends the threads of tasks. This may take long, so it comes before the mutex below is taken. */
static void end_threads(thread_t *t) {
    PyThreadState_SetAsyncExc(t->ident, NULL);   /* discards an interrupt that came too late for its task */
    PyObject *loop = PyImport_ImportModule("pool_party._workers.loop");
    PyObject *done = loop ? PyObject_CallMethod(loop, "end_threads", NULL) : NULL;
    Py_XDECREF(loop);
    Py_XDECREF(done);
    if (done == NULL)
        report_error(t);
}

static bool has_copies(const thread_t *t) { return t->libraries && pp_libraries_count(t->libraries) > 0; }

/* Calls what was registered by the atexit module now. It may wait for threads of a library, and these may need Python
 * to end, which they may not enter afterwards. */
static void run_exit_functions(void) {
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *done = atexit ? PyObject_CallMethod(atexit, "_run_exitfuncs", NULL) : NULL;
    if (done == NULL)
        PyErr_WriteUnraisable(atexit);
    Py_XDECREF(done);
    Py_XDECREF(atexit);
}

/* Ends the interpreter. Py_EndInterpreter aborts the process if a raw thread of a task still has a thread state there;
 * then the interpreter is left as it is. */
static void close_interpreter(thread_t *t, PyThreadState *state) {
    PyInterpreterState *interpreter = PyThreadState_GetInterpreter(state);
    t->interpreter_id = PyInterpreterState_GetID(interpreter);
    if (has_copies(t))
        run_exit_functions();
    PyEval_SaveThread();
    bool all_have_left = pp_unknown_threads_end(t->interpreter_id);
    PyEval_RestoreThread(state);
    if (all_have_left)
        pp_unknown_threads_clear(interpreter);
    if (!all_have_left || PyThreadState_Next(PyInterpreterState_ThreadHead(interpreter)) != NULL) {
        if (t->libraries) {
            pp_libraries_leak(t->libraries);
            pp_staying_note("a thread of a task");
        }
        t->libraries = NULL;
        PyEval_SaveThread();
        return;
    }
    PyEval_SaveThread();   /* detached while waiting: the holder of the mutex may have to stop all threads first */
    pthread_mutex_lock(&births_and_deaths);
    PyEval_RestoreThread(state);
    pp_lent_t lent = {0};
    if (has_copies(t))
        pp_lent_find(&lent);
    Py_EndInterpreter(state);
    if (pp_lent_remain(&lent, t->interpreter_id)) {
        pp_libraries_leak(t->libraries);
        pp_staying_note("memory that another interpreter reads");
        t->libraries = NULL;
    } else
        pp_exits_run(t->interpreter_id);
    pthread_mutex_unlock(&births_and_deaths);
    pp_add_seq_cst(&pp_n_interpreters, -1);
}

/* Reports the worker's end. Nothing of the worker runs after this. */
static void finish(thread_t *t) {
    pp_worker_t worker;
    pp_worker_init(&worker, t->segment, t->worker);
    pp_worker_state(&worker, PP_WORKER_EXITED);
    pp_store_seq_cst(&t->done, 1);   /* last: a thread that sees it may release the channel's memory */
    pp_futex_wake(&t->done, INT32_MAX, UINT32_MAX);
    thread_unref(t);
}

/* Destructors may end threads: those of OpenBLAS and libuv do. */
static void close_libraries(thread_t *t) {
    pp_libraries_end(t->libraries);
    if (pp_unknown_threads_stay(t->interpreter_id)) {
        pp_libraries_leak(t->libraries);
        finish(t);
        return;
    }
    pp_libraries_close(t->libraries);
    pp_unknown_threads_forget(t->interpreter_id);
    pp_keys_free(t->interpreter_id);
    pp_arenas_free(t->interpreter_id);
    pp_trim_heap();   /* the remaining blocks are fragmented, so the allocator's own trimming finds little */
    finish(t);
}

/* Clears what is left on the stack of a thread that ends. glibc gives the stack to another thread, with its topmost 16 KB as
 * they are, and addresses there would look as if that thread were in a copy (inside.c). */
__attribute__((noinline)) static void clear_stack(void) {
    char stack[32 << 10];
    explicit_bzero(stack, sizeof stack);
}

static void *join_and_close(void *arg) {
    thread_t *t = arg;
    pthread_join(t->id, NULL);
    close_libraries(t);
    clear_stack();
    return NULL;
}

/* Libraries with destructors of thread-local variables stay until their thread has ended, so another thread closes
 * them. */
static void end_thread(thread_t *t) {
    bool closes_copies = has_copies(t);
    if (closes_copies && start_thread(join_and_close, t, false) == 0)
        return;
    pthread_detach(t->id);
    if (closes_copies) {
        close_libraries(t);
        return;
    }
    if (t->libraries)
        pp_libraries_close(t->libraries);
    finish(t);
}

static void *run_interpreter(void *arg) {
    thread_t *t = arg;
    t->id = pthread_self();
    char name[16];
    snprintf(name, sizeof name, "pp-interp-%u", t->worker);
    pp_name_thread(name);
    PyThreadState *state = open_interpreter(t);
    if (state == NULL) {
        pp_add_seq_cst(&pp_n_interpreters, -1);
        await_word(t);   /* else its worker slot could be opened after it has reported its end there */
    } else {
        if (wait_until_told(t)) {
            set_interruptible(t, true);
            if (run_loop(t) < 0)
                report_error(t);
            set_interruptible(t, false);
            end_threads(t);
        }
        pp_store_seq_cst(&t->is_closing, 1);
        close_interpreter(t, state);
    }
    end_thread(t);
    clear_stack();
    return NULL;
}

/* ---- in the parent ---- */

static thread_t *new_thread(pp_segment_t *s, unsigned worker) {
    thread_t *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->refs = 2;
    t->segment = pp_segment_ref(s);
    t->worker = worker;
    pthread_mutex_init(&t->mutex, NULL);
    return t;
}

/* Runs source in the main interpreter: a copy of its `result`, or NULL. The copy is from malloc, since each interpreter
 * has its own Python allocator. */
static char *run_source(const char *source, Py_ssize_t *size) {
    PyObject *globals = Py_BuildValue("{s:O}", "__builtins__", PyEval_GetBuiltins());
    PyObject *done = globals ? PyRun_String(source, Py_file_input, globals, globals) : NULL;
    PyObject *result = done ? PyDict_GetItemString(globals, "result") : NULL;
    char *copy = NULL;
    if (result && PyBytes_Check(result) && (copy = malloc((size_t)PyBytes_GET_SIZE(result) + 1)))
        memcpy(copy, PyBytes_AS_STRING(result), (size_t)(*size = PyBytes_GET_SIZE(result)));
    PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(globals);
    return copy;
}

const char pp_ask_main_doc[] = PyDoc_STR("ask_main(source) -> bytes\n\n"
                                         "Runs source in the main interpreter, in this thread, and returns its variable\n"
                                         "`result`.");
PyObject *pp_ask_main(PyObject *module, PyObject *source) {
    (void)module;
    const char *text = PyUnicode_AsUTF8(source);
    Py_ssize_t size = 0;
    if (text == NULL)
        return NULL;
    PyThreadState *mine = PyEval_SaveThread(), *state = PyThreadState_New(PyInterpreterState_Main());
    char *result = NULL;
    if (state) {
        PyEval_RestoreThread(state);
        result = run_source(text, &size);
        PyThreadState_Clear(state);
        PyThreadState_DeleteCurrent();
    }
    PyEval_RestoreThread(mine);
    if (result == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the main interpreter gave no answer");
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(result, size);
    free(result);
    return bytes;
}

PyObject *pp_interpreter_start(pp_module_t *m, pp_segment_t *s, unsigned worker) {
    interpreter_t *self = (interpreter_t *)m->interpreter_type->tp_alloc(m->interpreter_type, 0);
    if (self == NULL || (self->thread = new_thread(s, worker)) == NULL) {
        Py_XDECREF(self);
        return PyErr_NoMemory();
    }
    pp_arenas_watch();
    if (!s->is_local)
        s->is_local = true;
    pp_add_seq_cst(&pp_n_interpreters, 1);
    int error = start_thread(run_interpreter, self->thread, true);
    if (error) {
        pp_add_seq_cst(&pp_n_interpreters, -1);
        thread_unref(self->thread);
        Py_DECREF(self);
        return pp_raise_errno(error);
    }
    return (PyObject *)self;
}

static void tell_thread(thread_t *t, uint32_t what) {
    pp_store_seq_cst(&t->told, what);
    pp_futex_wake(&t->told, 1, UINT32_MAX);
}

static void interpreter_dealloc(interpreter_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->thread && pp_load_seq_cst(&self->thread->told) == UNTOLD)
        tell_thread(self->thread, DISMISSED);
    thread_unref(self->thread);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(run_doc, "run(config, initializes=False)\n\n"
                      "Sets what the interpreter runs, as marshalled bytes. May be called once. initializes: the worker is to\n"
                      "be initialized even if the pool is closed meanwhile. Otherwise nothing runs then.");
static PyObject *interpreter_run(interpreter_t *self, PyObject *args) {
    thread_t *t = self->thread;
    PyObject *config;
    int initializes = 0;
    if (!PyArg_ParseTuple(args, "O|p", &config, &initializes))
        return NULL;
    if (!PyBytes_Check(config) || pp_load_seq_cst(&t->told) != UNTOLD) {
        PyErr_SetString(PyExc_ValueError, "an interpreter is told once what to run, as bytes");
        return NULL;
    }
    t->config_size = PyBytes_GET_SIZE(config);
    if ((t->config = malloc((size_t)t->config_size + 1)) == NULL)
        return PyErr_NoMemory();
    memcpy(t->config, PyBytes_AS_STRING(config), (size_t)t->config_size);
    t->initializes = initializes;
    tell_thread(t, TOLD);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(dismiss_doc, "dismiss()\n\nEnds an interpreter for which `run` was not called. Does not wait for that.");
static PyObject *interpreter_dismiss(interpreter_t *self, PyObject *ignored) {
    (void)ignored;
    if (pp_load_seq_cst(&self->thread->told) == UNTOLD)
        tell_thread(self->thread, DISMISSED);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(join_doc, "join(timeout_s=None) -> bool\n\nWaits for the end of the thread. False if it is still running.");
static PyObject *interpreter_join(interpreter_t *self, PyObject *args) {
    PyObject *timeout = Py_None;
    if (!PyArg_ParseTuple(args, "|O", &timeout))
        return NULL;
    int64_t deadline_ns;
    if (pp_deadline_of(timeout, &deadline_ns) < 0)
        return NULL;
    while (!pp_load_seq_cst(&self->thread->done)) {
        int error;
        Py_BEGIN_ALLOW_THREADS
        error = pp_futex_wait(&self->thread->done, 0, deadline_ns, UINT32_MAX);
        Py_END_ALLOW_THREADS
        if (error == EINTR && PyErr_CheckSignals() < 0)
            return NULL;
        if (error == ETIMEDOUT)
            break;
    }
    return PyBool_FromLong(pp_load_seq_cst(&self->thread->done));
}

static PyThreadState *find_thread(PyInterpreterState *interpreter, unsigned long ident) {
    PyThreadState *state = PyInterpreterState_ThreadHead(interpreter);
    while (state && state->thread_id != ident)
        state = PyThreadState_Next(state);
    return state;
}

static bool has_name(PyObject *text, const char *name) { return PyUnicode_CompareWithASCIIString(text, name) == 0; }

/* Whether a thread runs code of the import system itself, and not of a module. An exception between opening a module's
 * file and the `with` that closes it would leave closing to the file's destructor, which warns on standard error. In a
 * callback of its table of locks it would be swallowed, with a message. The caller holds the interpreter's GIL, so the
 * answer stays true meanwhile. Without a GIL nobody may inspect a running thread. */
bool pp_is_importing(PyInterpreterState *interpreter, unsigned long ident) {
    PyThreadState *state = PP_HAS_GIL ? find_thread(interpreter, ident) : NULL;
    PyFrameObject *frame = state ? PyThreadState_GetFrame(state) : NULL;
    if (frame == NULL) {
        PyErr_Clear();
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool is_importing = has_name(code->co_filename, "<frozen importlib._bootstrap_external>") ||
                        has_name(code->co_filename, "<frozen importlib._bootstrap>");
    Py_DECREF(code);
    Py_DECREF(frame);
    return is_importing;
}

/* False: try again a little later. */
static bool try_interrupt(thread_t *t) {
    bool is_done = true;
    pthread_mutex_lock(&t->mutex);
    pp_worker_slot_t *worker_slot = pp_segment_worker(t->segment, t->worker);
    uint64_t target_ns = pp_load_seq_cst(&t->is_ending) ? 0 : pp_load_seq_cst(&t->target_ns);
    if (t->interpreter && pp_worker_slot_runs(worker_slot, target_ns)) {
        PyThreadState *state = PyThreadState_New(t->interpreter);
        PyEval_RestoreThread(state);
        if (pp_worker_slot_runs(worker_slot, target_ns)) {   /* it may have ended while we waited for its GIL */
            is_done = !pp_is_importing(t->interpreter, t->ident);
            if (is_done)
                pp_interrupt(t->segment, worker_slot, target_ns, t->ident, PyExc_SystemExit);
        }
        PyThreadState_Clear(state);
        PyThreadState_DeleteCurrent();
    }
    pthread_mutex_unlock(&t->mutex);
    return is_done;
}

/* Runs in its own thread, since it must wait for the GIL of an interpreter that may be inside a long C call. */
static void *interrupt_task(void *arg) {
    thread_t *t = arg;
    uint32_t n;
    do {
        n = pp_load_seq_cst(&t->n_interrupts);
        while (!try_interrupt(t))
            pp_futex_wait(&t->done, 0, pp_now_ns() + READING_NS, UINT32_MAX);
    } while (!pp_cas_seq_cst(&t->n_interrupts, &n, 0));
    thread_unref(t);
    return NULL;
}

PyDoc_STRVAR(interrupt_doc, "interrupt(begun_ns=0) -> bool\n\n"
                            "Raises SystemExit in the task or initializer that the worker runs, if any, at its next Python instruction.\n"
                            "begun_ns: only in the timed task that began then; one thread at a time may ask for this. 0: also in whatever\n"
                            "begins later. Does not wait for that, unless no thread can be started. False: another task is being\n"
                            "interrupted; try again a little later.");
static PyObject *interpreter_interrupt(interpreter_t *self, PyObject *args) {
    unsigned long long target_ns = 0;
    if (!PyArg_ParseTuple(args, "|K", &target_ns))
        return NULL;
    thread_t *t = self->thread;
    if (!target_ns)
        pp_store_seq_cst(&t->is_ending, 1);
    else if (pp_load_seq_cst(&t->n_interrupts))
        Py_RETURN_FALSE;
    else
        pp_store_seq_cst(&t->target_ns, target_ns);
    if (pp_add_seq_cst(&t->n_interrupts, 1))
        Py_RETURN_TRUE;
    pp_add_seq_cst(&t->refs, 1);
    if (start_thread(interrupt_task, t, false) != 0) {   /* no more threads are allowed, or no memory is left: this one waits */
        Py_BEGIN_ALLOW_THREADS
        interrupt_task(t);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_TRUE;
}

static PyObject *get_error(interpreter_t *self, void *closure) {
    (void)closure;
    return PyUnicode_DecodeUTF8(self->thread->error, (Py_ssize_t)strlen(self->thread->error), "replace");
}

static PyObject *get_is_closing(interpreter_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_load_seq_cst(&self->thread->is_closing));
}

static PyGetSetDef getset[] = {
    {"error", (getter)get_error, NULL, "why the worker ended, or an empty string", NULL},
    {"is_closing", (getter)get_is_closing, NULL, "its tasks and their threads have ended, so it is about to end itself", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"run", (PyCFunction)interpreter_run, METH_VARARGS, run_doc},
    {"dismiss", (PyCFunction)interpreter_dismiss, METH_NOARGS, dismiss_doc},
    {"join", (PyCFunction)interpreter_join, METH_VARARGS, join_doc},
    {"interrupt", (PyCFunction)interpreter_interrupt, METH_VARARGS, interrupt_doc},
    {0},
};

PyDoc_STRVAR(doc, "A running interpreter worker.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_dealloc, interpreter_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

PyType_Spec pp_interpreter_spec = {
    .name = "pool_party._native.Interpreter",
    .basicsize = sizeof(interpreter_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
