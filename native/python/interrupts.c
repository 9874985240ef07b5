/* Signals and the main thread: a Ctrl-C that comes just before it sleeps; steps amid which no signal handler may run.
 *
 * Python's own handler notes a signal; what it means is done by the main thread when it next runs Python code, or is woken
 * from a system call. A signal that comes after the last look and before the sleep would wake nobody. So our handler stands
 * before Python's, from the first pool on: it changes the word that the main thread is about to sleep on, and then nobody
 * sleeps. It changes nothing else of what the program has asked for: the same flags, the same mask, and Python's handler is
 * called each time.
 *
 * Whoever installs another handler takes ours away: so it is looked for whenever a pool is made and before each sleep. Without
 * it, for other signals, and for one that another thread takes, the main thread wakes now and then (see calls.c).
 */
#include "python.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static _Atomic(_Atomic uint32_t *) bed;   /* what the main thread is about to sleep on, or NULL */
static struct sigaction before;    /* what our handler stands before; written while it is not installed */

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

/* In the main thread alone: the word belongs to what it waits in, and may be gone for others. The low byte of a follower's
 * word is its state (leading.c). */
static void rouse(int number) {
    _Atomic uint32_t *word = pp_load_seq_cst(&bed);
    if (word && pp_thread_id() == (uint32_t)getpid())
        pp_add_seq_cst(word, 0x100);
    before.sa_handler(number);
}

/* There is nothing to wake for where SIGINT ends the process or is ignored. */
void pp_watch_interrupts(void) {
    struct sigaction now;
    if (!pp_is_main_thread() || sigaction(SIGINT, NULL, &now) != 0 || now.sa_handler == rouse)
        return;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_flags & SA_SIGINFO)
        return;
    if (before.sa_handler && now.sa_handler != before.sa_handler)
        return;   /* another library's, which may call ours */
    before = now;
    now.sa_handler = rouse;
    sigaction(SIGINT, &now, NULL);
}

void pp_sleep_on(_Atomic uint32_t *word) {
    if (pp_is_main_thread())
        pp_store_seq_cst(&bed, word);
}

void pp_interrupts_after_fork(void) { pp_store_seq_cst(&bed, NULL); }

typedef struct {
    PyInterpreterState *interpreter;
    PyObject *function, *result, *error;   /* both NULL if there was no memory for a thread state */
} call_t;

static void *call(void *arg) {
    call_t *c = arg;
    PyThreadState *state = PyThreadState_New(c->interpreter);
    if (state == NULL)
        return NULL;
    PyEval_RestoreThread(state);
    c->result = PyObject_CallNoArgs(c->function);
    c->error = PyErr_GetRaisedException();
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
    return NULL;
}

#if PY_VERSION_HEX < 0x030D0000
#define Py_IsFinalizing _Py_IsFinalizing
#endif

/* Handlers run in the main thread, and this one waits in C: so none comes before the function has returned. While the
 * interpreter ends no other thread can run. */
PyObject *pp_call_apart(PyObject *module, PyObject *function) {
    (void)module;
    if (!pp_is_main_thread() || Py_IsFinalizing())
        return PyObject_CallNoArgs(function);
    call_t c = {.interpreter = PyInterpreterState_Get(), .function = function};
    pthread_t thread;
    if (pp_create_thread(&thread, call, &c) != 0)
        return PyErr_Format(PyExc_RuntimeError, "can't start new thread");
    Py_BEGIN_ALLOW_THREADS
    pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    if (c.error)
        PyErr_SetRaisedException(c.error);
    else if (c.result == NULL)
        PyErr_NoMemory();
    return c.result;
}
