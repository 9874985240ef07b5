/* The end of a program that the runner has run: what the interpreter itself does after an uncaught exception. */
#include "python.h"

#include <signal.h>
#include <unistd.h>

static pid_t ending;   /* the process that is to end by SIGINT; a child that it forks in between has another pid */

/* Sets sys.last_exc, calls sys.excepthook and reports its errors. SystemExit ends the program, but not with `-i`. */
PyObject *pp_print_uncaught(PyObject *module, PyObject *error) {
    (void)module;
    if (!PyExceptionInstance_Check(error))
        return PyErr_Format(PyExc_TypeError, "print_uncaught takes an exception, not %R", error);
    PyErr_SetRaisedException(Py_NewRef(error));
    PyErr_Print();
    Py_RETURN_NONE;
}

/* SystemExit ends the process at once, as it does when the interpreter itself runs this. */
PyObject *pp_run_prompt(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
    PyRun_AnyFileExFlags(stdin, "<stdin>", 0, &(PyCompilerFlags){.cf_feature_version = PY_MINOR_VERSION});
    Py_RETURN_NONE;
}

static void end_by_interrupt(void) {
    if (ending != getpid())
        return;
    signal(SIGINT, SIG_DFL);
    kill(getpid(), SIGINT);
}

PyObject *pp_end_by_interrupt(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
    if (ending == 0 && Py_AtExit(end_by_interrupt) < 0)
        return PyErr_Format(PyExc_RuntimeError, "too many functions are registered with Py_AtExit");
    ending = getpid();
    Py_RETURN_NONE;
}
