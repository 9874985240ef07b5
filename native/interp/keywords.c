/* Works around a crash in CPython 3.12: tuples of keyword names that several interpreters share.
 *
 * The names of a C function's parameters are in a tuple, which the first interpreter that calls it creates for all. At
 * its end the main interpreter frees the tuple with its own allocator. If another interpreter has created it, the
 * process crashes ("free(): invalid pointer", "munmap_chunk(): invalid pointer"). So these tuples are never freed.
 */
#include "python.h"

#if PY_VERSION_HEX < 0x030D0000
#include <stdlib.h>

#define MADE 1       /* `initialized` of a parser that owns its tuple (Python/getargs.c) */
#define NOT_OURS -1  /* `initialized` of a parser that does not */

PyObject *pp_keep_keywords(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
    static const char *const names[] = {NULL};
    PyObject *nothing = PyTuple_New(0);
    struct _PyArg_Parser *newest = calloc(1, sizeof *newest);   /* never freed: it stays in the list */
    if (nothing == NULL || newest == NULL) {
        Py_XDECREF(nothing);
        free(newest);
        return PyErr_NoMemory();
    }
    newest->format = ":keep_keywords";
    newest->keywords = names;
    int has_parsed = _PyArg_ParseTupleAndKeywordsFast(nothing, NULL, newest);   /* puts it at the head of the list */
    Py_DECREF(nothing);
    if (!has_parsed)
        return NULL;
    for (struct _PyArg_Parser *parser = newest; parser; parser = parser->next)
        if (parser->initialized == MADE)
            parser->initialized = NOT_OURS;
    Py_RETURN_NONE;
}
#endif
