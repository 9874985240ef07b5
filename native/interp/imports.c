/* What private copies call instead of functions of CPython that count on one instance of a library per process.
 *
 * When a copy is loaded, it is bound to its imports through a table of its own. The addresses are replaced there, so
 * other libraries, and the originals, call CPython's functions.
 */
#include "python.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- making modules ---- */

typedef struct { PyObject *imp, *previous; } lifted_t;

/* Lifts CPython's check while one module is created. Modules that others import are checked as usual. */
static int lift_check(lifted_t *lifted) {
    lifted->previous = NULL;
    if ((lifted->imp = PyImport_ImportModule("_imp")) != NULL)
        lifted->previous = PyObject_CallMethod(lifted->imp, "_override_multi_interp_extensions_check", "i", -1);
    return lifted->previous ? 0 : -1;
}

static void put_check_back(lifted_t *lifted) {
    PyObject *error = PyErr_GetRaisedException(), *done = NULL;
    if (lifted->previous)
        done = PyObject_CallMethod(lifted->imp, "_override_multi_interp_extensions_check", "O", lifted->previous);
    if (lifted->previous && done == NULL)
        PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(lifted->previous);
    Py_XDECREF(lifted->imp);
    PyErr_SetRaisedException(error);
}

/* Makes a module of a copy, or, called by a copy, a submodule: those of Rust are made while their parent is executed. */
PyObject *pp_module_from_def(PyModuleDef *def, PyObject *spec, int version) {
    lifted_t lifted;
    PyObject *module = lift_check(&lifted) == 0 ? PyModule_FromDefAndSpec2(def, spec, version) : NULL;
    put_check_back(&lifted);
    return module;
}

#if PY_VERSION_HEX >= 0x030F0000
PyObject *pp_module_from_slots(const PySlot *slots, PyObject *spec) {
    lifted_t lifted;
    PyObject *module = lift_check(&lifted) == 0 ? PyModule_FromSlotsAndSpec(slots, spec) : NULL;
    put_check_back(&lifted);
    return module;
}
#endif

/* ---- starting threads ---- */

typedef void (*function_t)(void);

/* Starts a thread as CPython does, without one of its functions in between, so that inside.c knows it as a copy's. */
static unsigned long start_new_thread(void (*function)(void *), void *argument) {
    pthread_t thread;
    if (pp_create_thread(&thread, (void *(*)(void *))(function_t)function, argument) != 0)
        return PYTHREAD_INVALID_THREAD_ID;
    pthread_detach(thread);
    return (unsigned long)thread;
}

/* ---- parsing arguments ---- */

#if PY_VERSION_HEX >= 0x030E0000
extern PyObject *const *_PyArg_UnpackKeywords(PyObject *const *args, Py_ssize_t n_args, PyObject *kwargs, PyObject *names,
                                              struct _PyArg_Parser *parser, int min_pos, int max_pos, int min_keywords,
                                              int has_varargs, PyObject **buffer);

/* CPython enters each parser of arguments into a list, which it follows when the process ends. So a copy's parser is used through
 * a clone, which stays when the copy is unloaded: some 80 bytes. What the clone refers to in the copy is not read then. */
static PyObject *const *unpack_keywords(PyObject *const *args, Py_ssize_t n_args, PyObject *kwargs, PyObject *names,
                                        struct _PyArg_Parser *parser, int min_pos, int max_pos, int min_keywords, int has_varargs,
                                        PyObject **buffer) {
    if (parser->next == NULL) {   /* unused otherwise, since the parser itself is in no list */
        struct _PyArg_Parser *clone = PyMem_RawMalloc(sizeof *clone);
        if (clone == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        *clone = *parser;
        parser->next = clone;
    }
    return _PyArg_UnpackKeywords(args, n_args, kwargs, names, parser->next, min_pos, max_pos, min_keywords, has_varargs, buffer);
}
#endif

/* ---- the import tables of a copy, which layout.c has made writable ---- */

static const struct { function_t theirs, ours; } replaced[] = {
    {(function_t)pthread_key_create, (function_t)pp_pthread_key_create},
    {(function_t)pthread_key_delete, (function_t)pp_pthread_key_delete},
    {(function_t)fcntl, (function_t)pp_copy_fcntl},
    {(function_t)lockf, (function_t)pp_copy_lockf},
    {(function_t)flock, (function_t)pp_copy_flock},
    {(function_t)PyThread_tss_create, (function_t)pp_key_create},
    {(function_t)PyThread_tss_delete, (function_t)pp_key_delete},
    {(function_t)PyThread_tss_free, (function_t)pp_key_free},
    {(function_t)Py_AtExit, (function_t)pp_exit_add},
    {(function_t)PyThread_start_new_thread, (function_t)start_new_thread},
    {(function_t)PyGILState_Ensure, (function_t)pp_gil_ensure},
    {(function_t)PyGILState_Release, (function_t)pp_gil_release},
    {(function_t)Py_IsInitialized, (function_t)pp_is_initialized},
    {(function_t)PyModule_FromDefAndSpec2, (function_t)pp_module_from_def},
#if PY_VERSION_HEX >= 0x030E0000
    {(function_t)Py_AddPendingCall, (function_t)pp_add_pending_call},
    {(function_t)_PyArg_UnpackKeywords, (function_t)unpack_keywords},
#endif
#if PY_VERSION_HEX >= 0x030F0000
    {(function_t)PyModule_FromSlotsAndSpec, (function_t)pp_module_from_slots},
#endif
};

typedef struct {
    ElfW(Addr) base;
    const ElfW(Rela) *start;
    size_t size;           /* bytes */
} relocations_t;

static void replace_entries(const relocations_t *r) {
    for (size_t i = 0; r->start && i < r->size / sizeof *r->start; i++) {
        function_t *entry = (function_t *)(r->base + r->start[i].r_offset);
        for (size_t k = 0; k < sizeof replaced / sizeof *replaced; k++)
            if (*entry == replaced[k].theirs)
                *entry = replaced[k].ours;
    }
}

static const ElfW(Rela) *table_at(const relocations_t *r, ElfW(Addr) address) {
    return (const ElfW(Rela) *)(address < r->base ? r->base + address : address);   /* glibc has usually added the base already */
}

int pp_imports_replace(void *library) {
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return ENOEXEC;
    relocations_t functions = {.base = map->l_addr}, others = {.base = map->l_addr};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_JMPREL: functions.start = table_at(&functions, entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: functions.size = entry->d_un.d_val; break;
        case DT_RELA: others.start = table_at(&others, entry->d_un.d_ptr); break;
        case DT_RELASZ: others.size = entry->d_un.d_val; break;
        case DT_PLTREL:
            if (entry->d_un.d_val == DT_RELA)
                break;
            return ENOEXEC;
        case DT_TEXTREL: return ENOEXEC;   /* entries may be in code */
        case DT_FLAGS:
            if (entry->d_un.d_val & DF_TEXTREL)
                return ENOEXEC;
        }
    replace_entries(&functions);
    replace_entries(&others);
    return 0;
}

/* ---- the constructors and destructors of a copy ---- */

/* What a constructor calls must have been replaced, too, and destructors run before it is decided whether a copy is unloaded. So
 * the linker does not find them in a copy: elf.py has changed the tags of the entries that lead to them. */
enum { POSTPONED = 0x60505000 };

typedef void (*constructor_t)(int, char **, char **);
static int program_argc;
static char **program_argv;

typedef struct {
    uintptr_t single;      /* a function, or 0 */
    function_t *others;
    size_t n;
} postponed_t;

/* The linker passes the program's arguments to constructors, and to this one. */
__attribute__((constructor)) static void note_arguments(int argc, char **argv) {
    program_argc = argc;
    program_argv = argv;
}

static postponed_t find_postponed(void *library, ElfW(Sxword) single, ElfW(Sxword) array, ElfW(Sxword) array_size) {
    struct link_map *map;
    postponed_t found = {0};
    size_t size = 0;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return found;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == (POSTPONED | single))
            found.single = map->l_addr + entry->d_un.d_ptr;
        else if (entry->d_tag == (POSTPONED | array))
            found.others = (function_t *)(map->l_addr + entry->d_un.d_ptr);
        else if (entry->d_tag == array_size)
            size = entry->d_un.d_val;
    found.n = found.others ? size / sizeof *found.others : 0;
    return found;
}

void pp_constructors_run(void *library) {
    postponed_t p = find_postponed(library, DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ);
    if (p.single)
        ((constructor_t)p.single)(program_argc, program_argv, environ);
    for (size_t i = 0; i < p.n; i++)
        ((constructor_t)p.others[i])(program_argc, program_argv, environ);
}

void pp_destructors_run(void *library) {
    postponed_t p = find_postponed(library, DT_FINI, DT_FINI_ARRAY, DT_FINI_ARRAYSZ);
    while (p.n)
        p.others[--p.n]();
    if (p.single)
        ((function_t)p.single)();
}
