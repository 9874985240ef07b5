/* What CPython 3.12 keeps of calls with keywords.
 *
 * A C function's names of parameters are in a tuple, which whichever interpreter makes the first such call makes for all.
 * The main interpreter frees it at its end with its own allocator: of a tuple that another interpreter has made the
 * process dies then ("free(): invalid pointer", "munmap_chunk(): invalid pointer"). So they are left to the system.
 */
#include "python.h"

#if PY_VERSION_HEX < 0x030D0000
#include <stdlib.h>

#define MADE 1       /* `initialized` of a parser that owns its tuple, in Python/getargs.c */
#define NOT_OURS -1  /* and of one that does not */

PyObject *pp_keep_keywords(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
    static const char *const names[] = {NULL};
    PyObject *nothing = PyTuple_New(0);
    struct _PyArg_Parser *newest = calloc(1, sizeof *newest);   /* for good: it stays in the list */
    if (nothing == NULL || newest == NULL) {
        Py_XDECREF(nothing);
        free(newest);
        return PyErr_NoMemory();
    }
    newest->format = ":keep_keywords";
    newest->keywords = names;
    int has_parsed = _PyArg_ParseTupleAndKeywordsFast(nothing, NULL, newest);   /* puts it in front of all others */
    Py_DECREF(nothing);
    if (!has_parsed)
        return NULL;
    for (struct _PyArg_Parser *parser = newest; parser; parser = parser->next)
        if (parser->initialized == MADE)
            parser->initialized = NOT_OURS;
    Py_RETURN_NONE;
}
#endif
