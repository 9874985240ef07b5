/* What the files that speak to Python share: the module's state, one per interpreter, and the types' C sides. */
#ifndef PP_PYTHON_H
#define PP_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

#ifdef Py_GIL_DISABLED
#define PP_HAS_GIL false
#else
#define PP_HAS_GIL true
#endif

#ifndef Py_BEGIN_CRITICAL_SECTION             /* before 3.13 */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

typedef struct pp_libraries pp_libraries_t;

typedef struct {
    PyObject *dumps, *loads;                  /* of _pickle, once needed: a fresh interpreter pays 5 ms for it */
    PyObject *dumps_keywords, *loads_keywords, *protocol;
    PyObject *array_type;                     /* numpy.ndarray, once needed */
    PyObject *deliver, *complete;             /* interned names of Job's methods */
    PyTypeObject *job_type, *channel_type, *worker_type, *interpreter_type, *memory_type;
    pp_libraries_t *libraries;                /* private copies, in an interpreter worker; else NULL */
} pp_module_t;

/* module.c */
extern struct PyModuleDef pp_module_def;
pp_module_t *pp_module_of(PyTypeObject *type);
PyObject *pp_raise_errno(int error);
int pp_deadline_of(PyObject *timeout_s, int64_t *deadline_ns);   /* None: -1, for ever. Returns -1 with an exception */
int pp_cpus_of(PyObject *numbers, cpu_set_t *cpus);              /* -1 with an exception */
extern _Atomic unsigned pp_n_forks;           /* grows in each forked child */

/* codec.c: values <-> payloads. A payload is bytes (empty for None, else marshal's, pickle's or flat), or (bytes, [leaves]).
 * Leaves are large parts: objects with a buffer, or a list of numbers, if no snapshot was asked for */
#define PP_OUT_OF_BAND_MIN ((Py_ssize_t)PP_INLINE_MAX)   /* smaller parts are cheaper in the payload, which then fits a ring */
#define PP_LEAVES_MAX 500
#define PP_MARSHAL_VERSION 2            /* the last without a table of references, which costs more than all the rest */
typedef struct {                        /* of a payload that is in a block */
    uint32_t n;
    const uint64_t *size;               /* with the kind in the top byte */
    const char *data, *memory;
    pp_segment_t *segment;
    pp_blockref_t ref;
    unsigned arena;
    uint32_t keeper;                    /* what the block's flag says if it is kept; 0: it must not be */
    pp_memory_t *kept;
} pp_leaves_t;
PyObject *pp_encode(pp_module_t *m, PyObject *value, bool snapshot);
PyObject *pp_decode_bytes(pp_module_t *m, const void *data, Py_ssize_t size);
PyObject *pp_decode(pp_module_t *m, const void *data, size_t size, const pp_leaves_t *leaves);
bool pp_is_simple(PyObject *value, int depth);
bool pp_is_blob(PyObject *value);       /* bytes or a str that are a leaf */

/* flat.c: our own format */
#define PP_FLAT_START 0x01
#define PP_LEAF_SHIFT 56
#define PP_LEAF_SIZE ((1ull << PP_LEAF_SHIFT) - 1)
typedef enum { PP_LEAF_RAW, PP_LEAF_FLOATS, PP_LEAF_INTS, PP_LEAF_SHARED, PP_LEAF_LENT } pp_leaf_kind_t;
int pp_flatten(pp_module_t *m, PyObject *value, bool snapshot, PyObject **payload);   /* 1; 0: not flat; -1 */
PyObject *pp_unflatten(pp_module_t *m, const void *data, const pp_leaves_t *leaves);
pp_leaf_kind_t pp_list_kind(PyObject *list);   /* PP_LEAF_RAW: surely not only numbers of one kind */
bool pp_get_int64(PyObject *item, int64_t *out);   /* false: not exactly an int, or too large */
bool pp_write_list(PyObject *list, pp_leaf_kind_t kind, size_t n_bytes, char *to);   /* false: it is not of that kind and size */

/* payload.c: payloads in memory */
typedef struct {
    pp_where_t where;
    uint32_t size;
    const void *data;
    pp_blockref_t block;
} pp_packed_t;
/* 0, EAGAIN, ESTALE: encode a snapshot, or -1. lends: objects may change hands; then `given` is the encoded value if the caller
 * gives its reference away, and NULL after that was done. */
int pp_pack(pp_arena_t *arena, PyObject *payload, bool lends, PyObject **given, pp_packed_t *out);
bool pp_needs_block(PyObject *payload);
PyObject *pp_read_block(pp_module_t *m, pp_segment_t *s, unsigned arena, const pp_blockref_t *ref, uint32_t keeper, bool *is_kept);
const char *pp_leaf_start(const pp_leaves_t *leaves, uint32_t leaf);
PyObject *pp_leaf_buffer(pp_module_t *m, const pp_leaves_t *leaves, uint32_t leaf);
PyObject *pp_new_bytes(const char *from, size_t size);
PyObject *pp_new_text(const char *from, size_t size, Py_UCS4 char_max);   /* size: in bytes; char_max: which kind of str */
void pp_copy_freely(void *to, const void *from, size_t size);         /* without the GIL if that is worth it */

extern const char pp_copy_doc[];
PyObject *pp_copy_buffer(PyObject *module, PyObject *args);
PyObject *pp_n_helped(PyObject *module, PyObject *ignored);

/* sharing.c: Memory, and shared memory for Python */
extern PyType_Spec pp_memory_spec;
PyObject *pp_memory_view(pp_module_t *m, pp_memory_t *memory, uint64_t at, uint64_t size);   /* steals memory; a memoryview */
PyObject *pp_memory_attached(pp_module_t *m, const pp_handle_t *handle);
PyObject *pp_read_only(PyObject *view);
PyObject *pp_share(PyObject *module, PyObject *size);
PyObject *pp_is_shared(PyObject *module, PyObject *object);
extern const char pp_share_doc[], pp_is_shared_doc[];

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
typedef struct {
    const PyObject **views;
    size_t n;
} pp_lent_t;
void pp_lent_find(pp_lent_t *lent);                     /* in an interpreter that is about to end */
bool pp_lent_remain(pp_lent_t *lent, int64_t interpreter);   /* once it has ended, before its arenas go */

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
PyObject *pp_interpreter_start(pp_module_t *m, pp_segment_t *s, unsigned lane);

/* interrupts.c */
extern const char pp_hold_interrupts_doc[], pp_allow_interrupts_doc[];
PyObject *pp_hold_interrupts(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *pp_allow_interrupts(PyObject *module, PyObject *const *args, Py_ssize_t n);
void pp_watch_interrupts(void);
int pp_check_signals(void);
void pp_sleep_on(_Atomic uint32_t *word);               /* which a Ctrl-C shall change; NULL: the wait is over */
void pp_interrupts_after_fork(void);                    /* in the child */

/* keywords.c: before 3.13 only */
PyObject *pp_keep_keywords(PyObject *module, PyObject *ignored);

/* gating.c: Gate, and OpenBLAS's regions */
int pp_gating_add(PyObject *module);

#endif
