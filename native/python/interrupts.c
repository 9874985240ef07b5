/* Ctrl-C while the main thread does the pool's own work.
 *
 * Python runs signal handlers between any two instructions of the main thread, and Ctrl-C's raises KeyboardInterrupt there:
 * also where a call is registered but not queued yet, where a result is taken but not delivered, or where a process has
 * started and its pid is not stored. A pool that a program goes on with afterwards would then wait for ever. So the main
 * thread does such work in `hold_interrupts`: a SIGINT that comes meanwhile, to whichever thread, is delivered at its end.
 * Waiting, in `pump` and in `allow_interrupts`, ends at once as usual, and so does a user's callback. A second SIGINT while
 * one is held back passes, so that nothing can keep a program from being interrupted.
 *
 * One that comes after the main thread's last look, and before it sleeps, changes the word that it is about to sleep on.
 *
 * Python's handler stays where it is; ours stands before it, from the first pool on. That costs a call nothing, but whoever
 * installs another handler takes ours away: so it is looked for whenever a pool is made and before each sleep. Until then the
 * main thread is interrupted as it would be without us.
 */
#include "python.h"

#include <signal.h>
#include <unistd.h>

static _Atomic int depth;          /* of calls of `hold_interrupts`; written by the main thread */
static _Atomic int held;           /* a SIGINT was held back; set by the handler, in any thread */
static _Atomic(_Atomic uint32_t *) bed;   /* what the main thread is about to sleep on, or NULL */
static struct sigaction before;    /* what our handler stands before; written while it is not installed */

static bool is_main_thread(void) {
    static _Thread_local unsigned n_forks;
    static _Thread_local enum { UNKNOWN, MAIN, OTHER } which;
    unsigned now = pp_load_relaxed(&pp_n_forks);
    if (which == UNKNOWN || n_forks != now) {
        n_forks = now;
        which = pp_thread_id() == (uint32_t)getpid() ? MAIN : OTHER;
    }
    return which == MAIN;
}

/* In the main thread: the word belongs to what it waits in, and may be gone for others. */
static void rouse(void) {
    _Atomic uint32_t *word = pp_load_seq_cst(&bed);
    if (word && pp_thread_id() == (uint32_t)getpid())
        pp_add_seq_cst(word, 1);
}

/* The main thread leaves with depth = 0 and then looks at `held`; another thread sets `held` and then looks at depth: one
 * of the two sees the other's. */
static void hold(int number) {
    rouse();
    if (pp_load_seq_cst(&depth) == 0) {
        before.sa_handler(number);
        return;
    }
    bool is_second = pp_swap_seq_cst(&held, 1);
    if ((is_second || pp_load_seq_cst(&depth) == 0) && pp_swap_seq_cst(&held, 0))
        before.sa_handler(number);
}

static void set_depth(int n) {
    pp_store_seq_cst(&depth, n);
    if (n == 0 && pp_swap_seq_cst(&held, 0))
        raise(SIGINT);
}

/* There is nothing to hold back where SIGINT ends the process or is ignored. */
void pp_watch_interrupts(void) {
    struct sigaction ours = {.sa_handler = hold, .sa_flags = SA_ONSTACK}, now;
    if (!is_main_thread() || sigaction(SIGINT, NULL, &now) != 0 || now.sa_handler == hold)
        return;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_flags & SA_SIGINFO)
        return;
    if (before.sa_handler && now.sa_handler != before.sa_handler)
        return;   /* another library's, which may call ours */
    before = now;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGINT, &ours, NULL);
}

static PyObject *apply(PyObject *const *args, Py_ssize_t n) { return PyObject_Vectorcall(args[0], args + 1, (size_t)n - 1, NULL); }

/* What a signal raises takes the place of a result, or of an exception. */
static PyObject *check_after(PyObject *result) {
    PyObject *error = result ? NULL : PyErr_GetRaisedException();
    if (PyErr_CheckSignals() < 0)
        Py_CLEAR(result);
    else if (error)
        PyErr_SetRaisedException(Py_NewRef(error));
    Py_XDECREF(error);
    return result;
}

static bool has_function(Py_ssize_t n) {
    if (n < 1)
        PyErr_SetString(PyExc_TypeError, "a function is missing");
    return n >= 1;
}

const char pp_hold_interrupts_doc[] = PyDoc_STR(
    "hold_interrupts(function, *args)\n\n"
    "function(*args), during which the main thread is not interrupted by Ctrl-C; KeyboardInterrupt is raised before or after.");
PyObject *pp_hold_interrupts(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!has_function(n))
        return NULL;
    if (!is_main_thread() || pp_load_relaxed(&depth) > 0)
        return apply(args, n);
    set_depth(1);
    PyObject *result = PyErr_CheckSignals() < 0 ? NULL : apply(args, n);   /* one that came just before */
    set_depth(0);
    return check_after(result);
}

const char pp_allow_interrupts_doc[] = PyDoc_STR("allow_interrupts(function, *args)\n\n"
                                                 "function(*args), interrupted by Ctrl-C even inside `hold_interrupts`.");
PyObject *pp_allow_interrupts(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!has_function(n))
        return NULL;
    if (!is_main_thread() || pp_load_relaxed(&depth) == 0)
        return apply(args, n);
    set_depth(0);
    PyObject *result = PyErr_CheckSignals() < 0 ? NULL : apply(args, n);
    set_depth(1);
    return check_after(result);
}

/* As PyErr_CheckSignals, for waits: what was held back is delivered. */
int pp_check_signals(void) {
    if (pp_load_seq_cst(&held) && is_main_thread() && pp_load_relaxed(&depth) > 0) {
        set_depth(0);
        set_depth(1);
    }
    return PyErr_CheckSignals();
}

void pp_sleep_on(_Atomic uint32_t *word) {
    if (is_main_thread())
        pp_store_seq_cst(&bed, word);
}

/* In a forked child nothing is held back: its main thread is the one that forked. */
void pp_interrupts_after_fork(void) {
    pp_store_seq_cst(&depth, 0);
    pp_store_seq_cst(&held, 0);
    pp_store_seq_cst(&bed, NULL);
}
