/* Interrupts of tasks: SystemExit in the Python code of a task or initializer that a thread or an interpreter runs. The
 * end of the pool raises it, or the end of a task's time.
 *
 * Python raises it at whatever the thread runs next, and that may be a destructor: `__del__`, or a weak reference's
 * callback. Python cannot let an exception out of a destructor. It hands it to sys.unraisablehook, which prints it, and
 * the task runs on as if nothing had happened. Our hook raises it again instead, in the code that the destructor has
 * interrupted.
 */
#include "python.h"

#include <pthread.h>

static _Thread_local pp_worker_slot_t *own;   /* of the worker whose loop this thread runs, or NULL */

void pp_interrupts_enter(pp_worker_slot_t *worker_slot) { own = worker_slot; }

void pp_interrupt(pp_segment_t *segment, pp_worker_slot_t *worker_slot, uint64_t begun_ns, unsigned long ident, PyObject *exception) {
    pthread_mutex_lock(&segment->interrupts);   /* held briefly, and never while waiting for the GIL */
    if (pp_worker_slot_runs(worker_slot, begun_ns)) {
        pp_store_relaxed(&worker_slot->is_interrupted, 1);
        PyThreadState_SetAsyncExc(ident, exception);
    }
    pthread_mutex_unlock(&segment->interrupts);
}

void pp_end_interrupts(pp_segment_t *segment, pp_worker_slot_t *worker_slot, bool has_replied) {
    pthread_mutex_lock(&segment->interrupts);
    pp_store_relaxed(&worker_slot->initializes, 0);
    pp_store_relaxed(&worker_slot->has_replied, has_replied);
    pp_store_relaxed(&worker_slot->is_interrupted, 0);
    pthread_mutex_unlock(&segment->interrupts);
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), NULL);
}

static bool is_interrupt(PyObject *unraisable) {
    if (own == NULL || !pp_load_relaxed(&own->is_interrupted))
        return false;
    PyObject *type = PyObject_GetAttrString(unraisable, "exc_type");
    if (type == NULL)
        PyErr_Clear();
    Py_XDECREF(type);
    return type == PyExc_SystemExit;
}

/* Bound to the hook that came before it. It is no Python function, since that would itself be interrupted. */
static PyObject *unraisable_hook(PyObject *before, PyObject *unraisable) {
    if (!is_interrupt(unraisable))
        return PyObject_CallOneArg(before, unraisable);
    if (pp_worker_slot_is_interruptible(own))
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), PyExc_SystemExit);
    Py_RETURN_NONE;
}

static PyMethodDef hook = {"unraisablehook", unraisable_hook, METH_O,
                           "unraisablehook(unraisable)\n\nRaises an interrupt of a task again, in the code that the "
                           "destructor has interrupted."};

PyObject *pp_interrupt_hook(PyObject *module, PyObject *before) {
    (void)module;
    return PyCFunction_New(&hook, before);
}
