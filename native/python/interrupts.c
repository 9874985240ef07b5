/* Signals and the main thread: a Ctrl-C that arrives just before it sleeps, and steps within which no signal handler
 * may run.
 *
 * Python's own handler only records a signal. The main thread acts on it when it next runs Python code, or when a
 * system call is interrupted. A signal between its last check and its sleep would wake nobody. From the first pool on,
 * our handler therefore runs before Python's: it changes the word on which the main thread is about to sleep, so that
 * it does not sleep. It changes nothing else that the program has set: flags and mask stay the same, and Python's
 * handler is always called.
 *
 * A program that installs another handler removes ours. So it is checked whenever a pool is made, and before each
 * sleep. Without our handler, for other signals, and for signals that another thread takes, the main thread wakes now
 * and then (see hooks.c).
 */
#include "python.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static _Atomic(_Atomic uint32_t *) bed;   /* the word on which the main thread is about to sleep, or NULL */
static _Atomic uint32_t n_interrupts;
static struct sigaction before;    /* the handler that ours calls; written only while ours is not installed */

bool pp_is_main_thread(void) {
    static _Thread_local unsigned n_forks;
    static _Thread_local enum { UNKNOWN, MAIN, OTHER } which;
    unsigned now = pp_load_relaxed(&pp_n_forks);
    if (which == UNKNOWN || n_forks != now) {
        n_forks = now;
        which = pp_thread_id() == (uint32_t)getpid() ? MAIN : OTHER;
    }
    return which == MAIN;
}

/* Runs in the main thread only: the word belongs to its wait, and may be gone in other threads. The low byte of a
 * follower's word is its state (leading.c). */
static void wake_all(int number) {
    pp_add_seq_cst(&n_interrupts, 1);
    _Atomic uint32_t *word = pp_load_seq_cst(&bed);
    if (word && pp_thread_id() == (uint32_t)getpid())
        pp_add_seq_cst(word, 0x100);
    before.sa_handler(number);
}

PyObject *pp_n_interrupts(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLong(pp_load_seq_cst(&n_interrupts));
}

/* Does nothing if SIGINT ends the process or is ignored. */
void pp_watch_interrupts(void) {
    struct sigaction now;
    if (!pp_is_main_thread() || sigaction(SIGINT, NULL, &now) != 0 || now.sa_handler == wake_all)
        return;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_flags & SA_SIGINFO)
        return;
    if (before.sa_handler && now.sa_handler != before.sa_handler)
        return;   /* another library's handler, which may call ours */
    before = now;
    now.sa_handler = wake_all;
    sigaction(SIGINT, &now, NULL);
}

void pp_sleep_on(_Atomic uint32_t *word) {
    if (pp_is_main_thread())
        pp_store_seq_cst(&bed, word);
}

void pp_interrupts_after_fork(void) { pp_store_seq_cst(&bed, NULL); }

typedef struct {
    PyInterpreterState *interpreter;
    PyObject *function, *result, *error;   /* result and error are NULL if there was no memory for a thread state */
} call_t;

static void *call_in_thread(void *arg) {
    call_t *c = arg;
    PyThreadState *state = PyThreadState_New(c->interpreter);
    if (state == NULL)
        return NULL;
    PyEval_RestoreThread(state);
    pp_serve_all();   /* the function may hold a lock that the end of a pool needs */
    c->result = PyObject_CallNoArgs(c->function);
    c->error = PyErr_GetRaisedException();
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
    return NULL;
}

#if PY_VERSION_HEX < 0x030D0000
#define Py_IsFinalizing _Py_IsFinalizing
#endif

/* Signal handlers run in the main thread, and this one waits in C, so none runs before the function has returned. While
 * the interpreter ends no other thread can run. Without a thread the function is called here, since most of what is
 * called so ends something: better that a handler runs amid it than that it is not done. */
PyObject *pp_call_apart(PyObject *module, PyObject *function) {
    (void)module;
    if (!pp_is_main_thread() || Py_IsFinalizing())
        return PyObject_CallNoArgs(function);
    call_t c = {.interpreter = PyInterpreterState_Get(), .function = function};
    pthread_t thread;
    if (pp_create_thread(&thread, call_in_thread, &c) != 0)
        return PyObject_CallNoArgs(function);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    if (c.error)
        PyErr_SetRaisedException(c.error);
    else if (c.result == NULL)
        PyErr_NoMemory();
    return c.result;
}
