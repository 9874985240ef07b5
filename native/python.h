/* What the files that speak to Python share: the module's state, one per interpreter, and the types' C sides. */
#ifndef PP_PYTHON_H
#define PP_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

typedef struct pp_libraries pp_libraries_t;

typedef struct {
    PyObject *dumps, *loads;                  /* of _pickle, once needed: a fresh interpreter pays 5 ms for it */
    PyObject *dumps_keywords, *protocol;
    PyObject *deliver, *complete;             /* interned names of Job's methods */
    PyTypeObject *job_type, *channel_type, *worker_type, *interpreter_type;
    pp_libraries_t *libraries;                /* private copies, in an interpreter worker; else NULL */
} pp_module_t;

/* module.c */
extern struct PyModuleDef pp_module_def;
pp_module_t *pp_module_of(PyTypeObject *type);
PyObject *pp_raise_errno(int error);
int pp_deadline_of(PyObject *timeout_s, int64_t *deadline_ns);   /* None: -1, for ever. Returns -1 with an exception */
int pp_cpus_of(PyObject *numbers, cpu_set_t *cpus);              /* -1 with an exception */
extern _Atomic unsigned pp_n_forks;           /* grows in each forked child */

/* codec.c: values <-> payloads. A payload is bytes (empty for None, else marshal's or pickle's) or (bytes, [buffers]) */
PyObject *pp_encode(pp_module_t *m, PyObject *value);
PyObject *pp_decode_bytes(pp_module_t *m, const void *data, Py_ssize_t size);
PyObject *pp_copy_block(pp_segment_t *s, const pp_blockref_t *ref);   /* a payload, copied out */
PyObject *pp_decode(pp_module_t *m, PyObject *payload);
typedef struct {
    pp_where_t where;
    uint32_t size;
    const void *data;
    pp_blockref_t block;
} pp_packed_t;
int pp_pack(pp_arena_t *arena, PyObject *payload, pp_packed_t *out);  /* 0, EAGAIN, or -1 with an exception */
bool pp_needs_block(PyObject *payload);

/* job.c: the parent's side of one call, as far as results are stored without running Python */
typedef struct {
    PyObject_HEAD
    uint64_t id;
    Py_ssize_t n_items, chunk, cursor, remaining;   /* cursor: next task to put; remaining: tasks without an outcome */
    char done;                                      /* its outcome can be had; set by Python, last of all */
    PyObject *failure;                              /* the first to arrive, or NULL */
    PyObject **results;                             /* n_items, or NULL for jobs that store results themselves */
} pp_job_t;
extern PyType_Spec pp_job_spec;
bool pp_job_store(pp_job_t *job, uint32_t index, PyObject *value, bool *last);   /* steals value; false: had its outcome */

/* parent.c: the Channel */
typedef struct {
    PyObject_HEAD
    pp_module_t *module;
    pp_segment_t *segment;
    pp_arena_t *arena;
    pp_hub_t hub;
    bool by_reference;
    uint32_t last_function_id;
    uint64_t n_taken;
    unsigned n_forks;                   /* when it was made: in a forked child the segment is the parent's */
} pp_channel_t;

/* loader.c: an interpreter's private copies of extension libraries, and their modules */
pp_libraries_t *pp_libraries_new(pp_segment_t *s, unsigned lane);   /* NULL: no memory */
size_t pp_libraries_count(const pp_libraries_t *libraries);
void pp_libraries_close(pp_libraries_t *libraries);     /* once the interpreter has ended */
void pp_libraries_leak(pp_libraries_t *libraries);      /* it does not end: nothing is closed */
extern const char pp_open_copy_doc[], pp_copy_threads_doc[], pp_limit_copy_doc[], pp_pin_library_doc[], pp_load_extension_doc[], pp_exec_extension_doc[];
PyObject *pp_open_copy(PyObject *module, PyObject *args);
PyObject *pp_copy_threads(PyObject *module, PyObject *copy);
PyObject *pp_limit_copy(PyObject *module, PyObject *copy);
PyObject *pp_pin_library(PyObject *module, PyObject *path);
PyObject *pp_load_extension(PyObject *module, PyObject *args);
PyObject *pp_exec_extension(PyObject *module, PyObject *made);

/* arenas.c: the memory of interpreters that have ended */
void pp_arenas_watch(void);                             /* with the GIL, before the first interpreter is made */
void pp_arenas_free(int64_t interpreter);               /* its id */

/* keys.c: thread-specific keys that private copies create */
void pp_keys_watch(void *library);                      /* a copy that was just loaded */
void pp_keys_free(int64_t interpreter);                 /* its id; once its copies are closed */

/* results.c */
extern const char pp_take_doc[], pp_pump_doc[];
PyObject *pp_channel_take(pp_channel_t *self, PyObject *jobs);
PyObject *pp_channel_pump(pp_channel_t *self, PyObject *args);

/* parent.c, worker.c, interp.c */
extern PyType_Spec pp_channel_spec, pp_worker_spec, pp_interpreter_spec;
extern _Atomic long pp_n_interpreters;
PyObject *pp_worker_new(pp_module_t *m, pp_segment_t *s, unsigned lane);
PyObject *pp_interpreter_start(pp_module_t *m, pp_segment_t *s, unsigned lane, PyObject *config);

/* gating.c: Gate, and OpenBLAS's regions */
int pp_gating_add(PyObject *module);

#endif
