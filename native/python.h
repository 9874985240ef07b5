/* What the files that use Python share: the module's state, one per interpreter, and the C side of its types. */
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

#define PP_COPIES "/proc/self/fd/"   /* the names of private copies in the linker's list begin so; no other library's does */

typedef struct pp_libraries pp_libraries_t;
struct pp_channel;

#define PP_COMMON_KEPT 8u

typedef struct pp_module {
    PyObject *dumps, *loads, *pickler, *unpickler;   /* of _pickle; imported when first needed, since a fresh interpreter pays 5 ms */
    PyObject *dumps_keywords, *loads_keywords, *protocol, *dispatch_table_name, *dump_name, *getvalue_name, *kept_name;
    PyObject *file_type, *reducers, *registered;   /* io.BytesIO, copyreg's table, and ForkingPickler's */
    PyObject *local_reducers, *duplicates;    /* see _wire/fd_handle.py; found when needed */
    PyObject *caller;                         /* the receiver of replies; see _wire/definitions.py; found when needed */
    Py_ssize_t n_registered;                  /* the size of `registered` when `reducers` were last copied */
    PyObject *array_type;                     /* numpy.ndarray, when first needed */
    struct { uint64_t number; PyObject *object, *decoded; } common[PP_COMMON_KEPT];   /* in a worker: what its last tasks shared; see common.c */
    pp_segment_t *worker_segment;             /* in a worker process or interpreter: its channel's, borrowed */
    pp_limited_t *limited;                    /* in a worker process or interpreter, while it is active: its worker; else NULL */
    unsigned n_common;
    uint64_t n_common_bytes;
    PyTypeObject *job_type, *entry_type, *channel_type, *published_type, *keeper_type, *worker_type, *interpreter_type, *memory_type;
    pp_libraries_t *libraries;                /* private copies, in an interpreter that is a worker; else NULL */
    PyObject *(*make_worker)(struct pp_module *m, pp_segment_t *s, unsigned worker);   /* pp_worker_new, for interpreters */
} pp_module_t;

/* errors.c */
PyObject *pp_raise_errno(int error);
int pp_deadline_of(PyObject *timeout_s, int64_t *deadline_ns);   /* None: -1, no deadline. Returns -1 with an exception */

/* module.c */
extern struct PyModuleDef pp_module_def;
pp_module_t *pp_module_of(PyTypeObject *type);
int pp_cpus_of(PyObject *numbers, cpu_set_t *cpus);              /* returns -1 with an exception */
extern _Atomic unsigned pp_n_forks;           /* one more in each forked child */

/* codec.c: values <-> payloads. A payload is bytes (empty for None, otherwise marshal's, pickle's or typed encoding),
 * or (bytes, [leaves]). Leaves are large parts: objects with a buffer or, unless a snapshot was asked for, lists of
 * numbers */
#define PP_OUT_OF_BAND_MIN ((Py_ssize_t)PP_INLINE_MAX)   /* smaller parts are cheaper inside the payload, which then fits a ring */
#define PP_MARSHAL_VERSION 2            /* the last without a table of references, which costs more than everything else */
typedef struct {                        /* the leaves of a payload that is in a block */
    uint32_t n;
    const uint64_t *size;               /* bytes of each, with its kind in the top byte */
    const char *data, *memory;
    pp_segment_t *segment;
    pp_blockref_t ref;
    unsigned arena;
    uint32_t keeper;                    /* the block's in_use value if it is retained; 0: it must not be */
    pp_memory_t *kept;
    uint32_t next;                      /* the leaf asked for last, or 0; it begins at `data` + */
    uint64_t next_at;                   /* this many bytes: leaves are asked for in order */
} pp_leaves_t;
typedef struct {                        /* how to encode a value */
    bool snapshot;                      /* copy what may still change at once */
    bool is_local;                      /* for an interpreter of this process */
    bool sets_apart;                    /* make large bytes and strings leaves in pickles, too */
    PyObject *receivers;                /* the value of `Channel.receivers`; NULL for a result */
    struct pp_channel *channel;         /* the channel that the value goes through; NULL for a result */
    struct pp_job *call;                /* the map or stream that has it as an argument, or NULL */
} pp_encoding_t;
PyObject *pp_encode(pp_module_t *m, PyObject *value, const pp_encoding_t *how);
PyObject *pp_encoding_for(void);        /* the receivers for which this thread is pickling, or None */
struct pp_channel *pp_encoding_channel(void);   /* whose tasks this thread encodes; NULL: none */
PyObject *pp_call_preludes(void);       /* the preludes (a dict) of the call for which this thread is pickling, or None */
PyObject *pp_decode_bytes(pp_module_t *m, const void *data, Py_ssize_t size);
PyObject *pp_decode(pp_module_t *m, const void *data, size_t size, pp_leaves_t *leaves);
bool pp_holds_common_blob(PyObject *value);   /* as far as a quick check shows; see common.c */
bool pp_is_apart(PyObject *payload);    /* whether a pickle has large bytes or strings as leaves */
bool pp_is_simple(PyObject *value, int depth);
#define PP_SIMPLE_DEPTH 3               /* allows ((args), {}) with a tuple among the arguments */
bool pp_is_blob(PyObject *value);       /* bytes or a str large enough for a leaf */

/* flat.c: the typed encoding */
#define PP_FLAT_START 0x01
#define PP_LEAF_SHIFT 56
#define PP_LEAF_SIZE ((1ull << PP_LEAF_SHIFT) - 1)
typedef enum { PP_LEAF_RAW, PP_LEAF_FLOATS, PP_LEAF_INTS, PP_LEAF_SHARED, PP_LEAF_LENT, PP_LEAF_LENT_MEMORY, PP_LEAF_COMMON } pp_leaf_kind_t;
int pp_flatten(pp_module_t *m, PyObject *value, bool snapshot, PyObject **payload);   /* 1; 0: it has no typed encoding; -1: an exception */
PyObject *pp_unflatten(pp_module_t *m, const void *data, pp_leaves_t *leaves);
pp_leaf_kind_t pp_list_kind(PyObject *list);   /* PP_LEAF_RAW: certainly not only numbers of one type */
bool pp_get_int64(PyObject *item, int64_t *out);   /* false: not exactly an int, or too large */
bool pp_write_list(PyObject *list, pp_leaf_kind_t kind, size_t n_bytes, char *to);   /* false: not of that kind and size */

/* Whether objects may change owners. Without a GIL they belong to the thread that made them. */
static inline bool pp_lends(const pp_segment_t *s) { return PP_HAS_GIL && s->is_local; }

/* payload.c: payloads in memory */
typedef struct {
    pp_where_t where;
    uint32_t size;              /* bytes of the payload; PP_IN_BLOCK: of the reference to the block, which has block.size */
    const void *data;
    pp_blockref_t block;
} pp_packed_t;
/* 0, EAGAIN, ESTALE (encode a snapshot) or -1. lends: objects may change owners. Then `given` is the encoded value if
 * the caller gives up its reference; it becomes NULL if that is used. memo: that of the call whose argument it is, or
 * NULL. */
int pp_pack(pp_arena_t *arena, PyObject *payload, bool lends, PyObject **given, PyObject *memo, pp_packed_t *out);
bool pp_needs_block(PyObject *payload);
PyObject *pp_read_block(pp_module_t *m, pp_segment_t *s, unsigned arena, const pp_blockref_t *ref, uint32_t keeper, bool *is_kept);
const char *pp_leaf_start(pp_leaves_t *leaves, uint32_t leaf);
PyObject *pp_leaf_buffer(pp_module_t *m, pp_leaves_t *leaves, uint32_t leaf);
PyObject *pp_leaf_blob(pp_module_t *m, pp_leaves_t *leaves, uint32_t leaf, bool is_text, Py_UCS4 char_max);   /* bytes or a str */
PyObject *pp_new_bytes(const char *from, size_t size);
PyObject *pp_new_text(const char *from, size_t size, Py_UCS4 char_max);   /* size: in bytes; char_max: selects the kind of str */
void pp_copy_freely(void *to, const void *from, size_t size);         /* releases the GIL if that is worth it */

/* common.c: large objects that several tasks of one call name */
#define PP_COMMON_MIN (1ull << 18)      /* smaller objects are copied as fast as they are found; guess */
typedef struct {                        /* how such an object is named in a payload */
    uint64_t number, size;              /* number: unique in this process, never reused */
    const void *start;                  /* where receivers in this process read it; NULL: in the block */
    pp_blockref_t block;                /* of the parent's arena */
} pp_common_t;
typedef PyObject *pp_publish_t(struct pp_channel *channel, const pp_blockref_t *block);
PyObject *pp_memo_new(struct pp_channel *channel, pp_publish_t *publish, bool takes_buffers);   /* of one call; used only by the thread that puts */
/* A new reference that retains the object; NULL without an exception: it is encoded with its task. is_blob: bytes or a
 * str. */
pp_memory_t *pp_memo_find(PyObject *memo, PyObject *object, bool is_blob, const void *start, uint64_t size, pp_common_t *out);
PyObject *pp_common_blob(pp_module_t *m, pp_segment_t *s, const pp_common_t *common, bool is_text, uint32_t char_max);
PyObject *pp_common_copy(pp_segment_t *s, const pp_common_t *common);
void pp_forget_common(pp_module_t *m);
extern const char pp_keep_decoded_doc[], pp_decoded_doc[], pp_members_doc[], pp_find_member_doc[], pp_kinds_doc[];
PyObject *pp_keep_decoded(PyObject *module, PyObject *args);
PyObject *pp_decoded(PyObject *module, PyObject *blob);
PyObject *pp_members(PyObject *module, PyObject *pickler);
PyObject *pp_find_member(PyObject *module, PyObject *args);
PyObject *pp_kinds(PyObject *module, PyObject *pickler);

/* duplicate.c */
extern const char pp_duplicate_doc[], pp_is_reusable_doc[];
PyObject *pp_duplicate(PyObject *module, PyObject *args);
PyObject *pp_is_reusable(PyObject *module, PyObject *args);

extern const char pp_copy_doc[];
PyObject *pp_copy_buffer(PyObject *module, PyObject *args);
PyObject *pp_n_helped(PyObject *module, PyObject *ignored);

/* definitions.c: questions about each pickle that names something of __main__ */
extern const char pp_names_of_main_doc[], pp_leaves_doc[], pp_are_same_doc[], pp_annotations_of_doc[];
PyObject *pp_names_of_main(PyObject *module, PyObject *pickle);
PyObject *pp_find_leaves(PyObject *module, PyObject *args);
/* What goes before a pickle that its receivers need to have there, as bytes; NULL without an exception: that is not known. */
PyObject *pp_find_prelude(pp_module_t *m, PyObject *receivers, PyObject *of_call, PyObject *pickle);
extern const char pp_recall_doc[];
PyObject *pp_recall(PyObject *module, PyObject *args);
PyObject *pp_annotations_of(PyObject *module, PyObject *function);
PyObject *pp_are_same(PyObject *module, PyObject *args);

/* sharing.c: Memory, and shared memory for Python */
extern PyType_Spec pp_memory_spec;
extern PyType_Spec pp_link_spec;       /* linking.c */
extern const char pp_enter_link_doc[];
PyObject *pp_enter_link(PyObject *module, PyObject *fd);
PyObject *pp_memory_view(pp_module_t *m, pp_memory_t *memory, uint64_t at, uint64_t size);   /* a memoryview; consumes the reference */
PyObject *pp_memory_attached(pp_module_t *m, const pp_handle_t *handle);
PyObject *pp_read_only(PyObject *view);
bool pp_array_has_own_memory(PyObject *array);
pp_memory_t *pp_array_received_in(PyObject *array, const Py_buffer *view, uint64_t *at);   /* a new reference, or NULL without an exception */
PyObject *pp_share(PyObject *module, PyObject *size);
PyObject *pp_is_shared(PyObject *module, PyObject *object);
PyObject *pp_name_shared(PyObject *module, PyObject *buffer);
PyObject *pp_has_shared(PyObject *module, PyObject *name);
PyObject *pp_open_shared(PyObject *module, PyObject *name);
extern const char pp_share_doc[], pp_is_shared_doc[], pp_name_shared_doc[], pp_has_shared_doc[], pp_open_shared_doc[];

/* job.c: a call in progress. The job's critical section guards its fields */
typedef enum { PP_APART_UNKNOWN, PP_APART_UNSEEN, PP_APART, PP_APART_NOTHING } pp_apart_t;   /* UNSEEN: a quick check found nothing */
typedef enum { PP_JOB_SINGLE, PP_JOB_MAP, PP_JOB_STREAM, PP_JOB_KINDS } pp_job_kind_t;
typedef enum { PP_DELIVERED, PP_DELIVERED_NEXT, PP_DELIVERED_LAST, PP_DELIVERED_LATE } pp_delivery_t;   /* NEXT: the
                                                    stream's consumer needs it next; LATE: the call had its outcome */
enum { PP_STATUS_UNDECODABLE = PP_STATUS_BROKEN_INIT + 1, PP_STATUS_RAISED, PP_STATUS_CANCELLED };   /* set by the parent side */
typedef enum { PP_CALLBACKS_NONE, PP_CALLBACKS_BEFORE, PP_CALLBACKS_AFTER } pp_callbacks_t;   /* relative to when the call is done */
typedef enum { PP_INTERCEPT_NOTHING, PP_INTERCEPT_FAILURES, PP_INTERCEPT_ALL } pp_intercepts_t;   /* outcomes that
                                                    the background thread looks at before they are delivered */
typedef struct pp_job {
    PyObject_HEAD
    uint64_t id;
    pp_job_kind_t kind;
    Py_ssize_t n_items, chunk, cursor, remaining;   /* cursor: next task to put; remaining: tasks without an outcome */
    int64_t sequence;                               /* single call: its task's sequence in the channel, or -1 */
    _Atomic char settled, done;                     /* the outcome is decided; it is available, since callbacks have run */
    char callbacks, ordered;                        /* pp_callbacks_t */
    char is_timed;                                  /* workers record when they claim its tasks */
    _Atomic char is_abandoned, is_lifted;
    int status;                                     /* of the outcome, with `value`; before that, of a map's first failure */
    PyObject *value, *function, *owner;
    PyObject *called, *items;                       /* its function's name, and a map's input, for messages until it is done; or NULL */
    Py_ssize_t failed;                              /* number of the task whose failure is its outcome; -1: none */
    char collects;                                  /* map: failures of tasks are part of its result */
    PyObject *failures;                             /* map that collects: a list of (number of the task, status, value), or NULL */
    PyObject *memo;                                 /* objects common to its tasks, until all are put; see common.c */
    PyObject *commons;                              /* finds objects to encode once, after a large task; see _wire/common.py */
    PyObject *preludes;                             /* the preludes made for it, by what they are for; see _wire/definitions.py */
    pp_apart_t apart;                               /* whether its large pickles contain parts to share; set while encoding */
    PyObject *results;                              /* map: the list that will be its value; NULL: no outcome yet */
    PyObject *arrived;                              /* stream: task number -> (status, value) */
    Py_ssize_t next, n_delivered, n_read, window;   /* stream: taken by the consumer; outcomes (of a map, too); read; most read
                                                       ahead of the consumer */
    Py_ssize_t ahead;                               /* most tasks without an outcome that the reader may have read; 0: any number */
    Py_ssize_t length;                              /* number of its tasks, or -1 while unknown */
    _Atomic uint32_t reader;                        /* futex word of the thread that reads its input */
    char reader_waits;                              /* for room to read; guarded by the job's critical section */
    _Atomic uint32_t intercepts;                    /* pp_intercepts_t */
    _Atomic uintptr_t submitter;                    /* the thread that is submitting it; 0: none any more */
    struct pp_job *next_deferred;
} pp_job_t;
extern PyType_Spec pp_job_spec;
pp_delivery_t pp_job_deliver(pp_job_t *job, uint32_t index, int status, PyObject *value);
bool pp_job_settle(pp_job_t *job, int status, PyObject *value, PyObject **replaced);   /* replaced: for the caller to drop, or NULL */
bool pp_job_settle_held(pp_job_t *job, int status, PyObject *value, PyObject **replaced);
bool pp_job_has_next(pp_job_t *job);
PyObject *pp_job_pop(pp_job_t *job);
PyObject *pp_job_pop_failure(pp_job_t *job);
bool pp_job_end_input(pp_job_t *job, Py_ssize_t length, Py_ssize_t n_missing, PyObject *error);
void pp_job_wake_reader(pp_job_t *job);

/* putting.c: what waits in the backlog. It is a task, or the tasks of a map from its cursor on, which are encoded as they are
 * put */
typedef struct pp_entry {
    PyObject_HEAD
    pp_job_t *job;
    unsigned index, mode;               /* index: of a task in its call; mode: a pp_mode_t, PP_MODE_CALL for a task */
    PyObject *function, *payload;       /* payload: a task's encoded arguments, or a map's items */
    bool waits, is_being_put;           /* it is in the backlog; the thread that puts has begun with it */
    struct pp_entry *next;
} pp_entry_t;
extern PyType_Spec pp_entry_spec;
void pp_entry_tell(const pp_entry_t *entry);
PyObject *pp_name_of(PyObject *function);

/* parent.c: the Channel */
typedef struct pp_channel {
    PyObject_HEAD
    pp_module_t *module;
    pp_segment_t *segment;              /* NULL once it was released */
    pp_arena_t *arena;
    pp_parent_t parent;
    bool by_reference, is_local;        /* workers share our objects; workers are interpreters of this process */
    uint32_t last_function_id;
    uint64_t n_taken;
    unsigned n_forks;                   /* at creation: in a forked child the segment is the parent's */
    uint64_t number;                    /* unique in this process and those that it forks, never reused */
    _Atomic long n_users;               /* users of the segment: the pool, and threads inside */
    _Atomic char is_closed, is_abandoned;
    /* The table of calls. Without a GIL `lock` guards it. It is held for a few instructions that run no other code */
#ifdef Py_GIL_DISABLED
    PyMutex lock;
#endif
    PyObject *calls;                    /* id -> Job */
    pp_entry_t *first_entry, *last_entry;   /* the backlog, guarded by `lock`, too */
    unsigned n_being_put;               /* entries; several if pickling one uses the pool */
    PyObject *open_function, *reports, *intercepted, *receivers;   /* open_function: see Functions.open */
    _Atomic uint32_t must_retry;        /* a task was refused, and no worker will tell when there is room */
    pp_job_t *idle, *first_deferred, *last_deferred;
    struct pp_postponed *first_postponed, *last_postponed;   /* results for the background thread to decode */
    uint64_t last_job_id, n_submitted;
    _Atomic uint64_t n_failed;
    bool is_closing;                    /* accepts no more calls */
    _Atomic uint32_t is_pulsed;         /* futex word: pulse() was called; the balancer takes it back */
    _Atomic uint32_t is_idle, deferred_bell, has_no_deferred, has_runner;   /* has_runner: a thread runs callbacks */
} pp_channel_t;
#ifdef Py_GIL_DISABLED
#define PP_LOCK(channel) PyMutex_Lock(&(channel)->lock)
#define PP_UNLOCK(channel) PyMutex_Unlock(&(channel)->lock)
#else
#define PP_LOCK(channel) ((void)0)
#define PP_UNLOCK(channel) ((void)0)
#endif
int pp_channel_slot(pp_channel_t *self, PyObject *number);        /* returns -1 with an exception */
bool pp_channel_is_closed(pp_channel_t *self);
PyObject *pp_channel_raise_closed(void);                          /* returns NULL */
bool pp_channel_enter(pp_channel_t *self);                        /* false: it is closed */
bool pp_channel_enter_late(pp_channel_t *self);                   /* also succeeds once it is closed, while others are inside */
void pp_channel_leave(pp_channel_t *self);
void pp_channel_drop_slot(pp_channel_t *self, pp_slot_t *slot);
PyObject *pp_channel_revoke_all(pp_channel_t *self, uint64_t job);

/* A method that uses the shared memory enters the channel. Once the pool has ended, it raises, or quietly returns something else. */
#define GUARDED(function)                                                       \
    static PyObject *guarded_##function(pp_channel_t *self, PyObject *arg) {    \
        if (!pp_channel_enter(self))                                                       \
            return pp_channel_raise_closed();                                   \
        PyObject *result = function(self, arg);                                 \
        pp_channel_leave(self);                                                            \
        return result;                                                          \
    }
#define GUARDED_QUIET(function, otherwise)                                      \
    static PyObject *guarded_##function(pp_channel_t *self, PyObject *arg) {    \
        if (!pp_channel_enter(self))                                            \
            return Py_NewRef(otherwise);                                        \
        PyObject *result = function(self, arg);                                 \
        pp_channel_leave(self);                                                 \
        return result;                                                          \
    }
#define METHOD(name, function, flags, doc) {name, (PyCFunction)(void *)guarded_##function, flags, doc}
/* The methods of Channel, in the files that define them. */
extern PyMethodDef pp_calls_methods[], pp_duties_methods[], pp_encoding_methods[], pp_hooks_methods[], pp_intercepting_methods[], pp_observing_methods[], pp_putting_methods[], pp_results_methods[];

/* loader.c: an interpreter's private copies of extension libraries, and their modules */
pp_libraries_t *pp_libraries_new(pp_segment_t *s, unsigned worker);   /* NULL: no memory */
size_t pp_libraries_count(const pp_libraries_t *libraries);
bool pp_libraries_have_changed(const pp_libraries_t *libraries);   /* a count of theirs, without the limiter's doing */
void pp_libraries_end(pp_libraries_t *libraries);       /* after the interpreter's end: runs destructors */
void pp_libraries_close(pp_libraries_t *libraries);     /* after that; no thread is in them */
void pp_libraries_leak(pp_libraries_t *libraries);      /* the interpreter never ends: closes nothing */
extern const char pp_open_copy_doc[], pp_copy_handle_doc[], pp_copy_threads_doc[], pp_limit_copy_doc[], pp_end_threads_doc[], pp_pin_library_doc[], pp_load_extension_doc[], pp_exec_extension_doc[];
PyObject *pp_open_copy(PyObject *module, PyObject *args);
PyObject *pp_copy_handle(PyObject *module, PyObject *copy);
PyObject *pp_copy_threads(PyObject *module, PyObject *copy);
PyObject *pp_limit_copy(PyObject *module, PyObject *args);
PyObject *pp_end_threads(PyObject *module, PyObject *copy);
PyObject *pp_pin_library(PyObject *module, PyObject *path);
PyObject *pp_load_extension(PyObject *module, PyObject *args);
PyObject *pp_exec_extension(PyObject *module, PyObject *made);

/* forks.c: the child of a fork has no other interpreter than the main one */
void pp_forks_find_interpreters(void);                  /* while there are others, and none is made or ended by us */
void pp_forks_forget_interpreters(void);                /* in the child, before CPython clears them */

/* arenas.c: freeing the memory of interpreters that have ended */
void pp_arenas_watch(void);                             /* with the GIL, before the first interpreter is created */
void pp_arenas_free(int64_t interpreter);               /* its interpreter id */
typedef struct {
    const PyObject **views;
    size_t n;
} pp_lent_t;
void pp_lent_find(pp_lent_t *lent);                     /* in an interpreter that is about to end */
bool pp_lent_remain(pp_lent_t *lent, int64_t interpreter);   /* after its end, before its arenas are freed */

/* layout.c: the mappings of private copies */
int pp_copy_lay_out(void *library, int fd, const char *original);   /* 0 or an errno; then its data may not be writable */
void pp_note_copy(void);                                /* one was loaded */
enum { PP_MAPPINGS_KEPT = 500 };                        /* guess: what threads, arenas and other libraries may need besides copies */
extern const char pp_has_room_doc[], pp_count_mappings_doc[];
PyObject *pp_has_room(PyObject *module, PyObject *counts);
PyObject *pp_count_mappings(PyObject *module, PyObject *ignored);

/* imports.c: what private copies call instead of CPython's functions */
int pp_imports_replace(void *library);                  /* a copy that was just laid out; 0, or ENOEXEC */
void pp_constructors_run(void *library);                /* those of a copy, which the linker has not called */
void pp_destructors_run(void *library);                 /* nor these */
PyObject *pp_module_from_def(PyModuleDef *def, PyObject *spec, int version);
#if PY_VERSION_HEX >= 0x030F0000
PyObject *pp_module_from_slots(const PySlot *slots, PyObject *spec);
#endif

/* inside.c: whether a thread is inside private copies */
typedef struct {
    uintptr_t start, end;                               /* a library's addresses */
    uintptr_t code, code_size;                          /* those of its code; 0: not searched for */
    char *file;                                         /* the original; NULL: unknown */
    bool may_lock;                                      /* it may have locks of the process */
} pp_place_t;
/* What is inside, or may be, in words; NULL: nothing. Waits a little for threads that end. */
const char *pp_is_inside(const pp_place_t *places, size_t n);

/* references.c: whether static data leads into private copies, and why copies stay loaded */
const char *pp_is_referred(const pp_place_t *places, size_t n);   /* the library with such data, or NULL */
void pp_staying_note(const char *cause);                /* the copies of an interpreter stay; `cause` stays, too */
extern const char pp_staying_doc[], pp_copies_locks_doc[];
PyObject *pp_staying(PyObject *module, PyObject *ignored);

/* file_locks.c: what private copies call to lock files */
int pp_copy_fcntl(int fd, int command, ...);
int pp_copy_lockf(int fd, int command, off_t length);
int pp_copy_flock(int fd, int operation);
PyObject *pp_copies_locks(PyObject *module, PyObject *ignored);

/* unknown_threads.c: threads that Python does not know, in private copies */
/* A copy of the calling thread's interpreter, and of this file. may_sleep: threads in it do not count at the end. */
void pp_unknown_threads_note(void *library, const char *file, bool may_sleep, bool may_lock);
bool pp_unknown_threads_place(uintptr_t address, pp_place_t *place);   /* false: no copy is there */
void pp_unknown_threads_clear(PyInterpreterState *interpreter);   /* attached to it: frees the states of threads that have ended */
int64_t pp_unknown_threads_home(uintptr_t address);     /* the id of the interpreter whose copy is there, or -1 */
bool pp_unknown_threads_end(int64_t interpreter);       /* its id; waits a little until they have left; false: some have not */
bool pp_unknown_threads_stay(int64_t interpreter);      /* after its end; true: one is in a copy still, so all must stay loaded */
void pp_unknown_threads_forget(int64_t interpreter);    /* its copies are closed */
PyGILState_STATE pp_gil_ensure(void);
int pp_add_pending_call(int (*function)(void *), void *argument);   /* CPython 3.14 and later */
void pp_gil_release(PyGILState_STATE before);
int pp_is_initialized(void);

/* exits.c: what private copies register for the end of Python */
int pp_exit_add(void (*function)(void));
void pp_exits_run(int64_t interpreter);                 /* its interpreter id; when it has ended, before its copies are closed */

/* tss_keys.c: TSS keys that private copies create */
int pp_key_create(Py_tss_t *key);
void pp_key_delete(Py_tss_t *key);
void pp_key_free(Py_tss_t *key);
int pp_pthread_key_create(pthread_key_t *key, void (*destructor)(void *));
int pp_pthread_key_delete(pthread_key_t key);
void pp_keys_free(int64_t interpreter);                 /* its interpreter id; after its copies were closed */

/* calls.c */
void pp_channel_count(pp_channel_t *self, unsigned n_tasks);
void pp_channel_set_event(pp_channel_t *self, pp_job_t *event);
void pp_channel_deliver_outcome(pp_channel_t *self, pp_job_t *job, uint32_t index, int status, PyObject *value);
bool pp_channel_settle_call(pp_channel_t *self, pp_job_t *job, int status, PyObject *value);   /* false: it had an outcome */

/* intercepting.c */
int pp_channel_keep_back(pp_channel_t *self, PyObject *job, uint32_t index, int status, PyObject *value, unsigned worker);

/* results.c */
PyObject *pp_channel_look_up(pp_channel_t *self, uint64_t id);   /* the Job or NULL, without an exception */
void pp_channel_drop_postponed(pp_channel_t *self);
int pp_channel_deliver_postponed(pp_channel_t *self);            /* 0, or -1 with an exception from a signal handler */
int pp_channel_take_one(pp_channel_t *self, unsigned worker, const pp_frame_t *frame, pp_batch_t *batch);   /* as leader; 0 or -1 */

/* hooks.c */
extern const pp_hooks_t pp_channel_hooks;

/* encoding.c */
typedef struct {                        /* a block that every worker may read while a reference to this exists */
    PyObject_HEAD
    pp_channel_t *channel;
    uint64_t at, size;
    uint32_t id, block;
} pp_published_t;
PyObject *pp_encode_for(pp_channel_t *self, PyObject *value, bool snapshot, pp_job_t *job);   /* job: the map or stream whose argument it is, or NULL */
PyObject *pp_publish_block(pp_channel_t *self, const pp_blockref_t *block);
/* Whether objects of a call's tasks stay as they are until all are put, unless the caller changes them meanwhile. One that
 * is read while tasks run may change what it has returned. */
bool pp_are_arguments_fixed(const pp_job_t *job);

/* putting.c, whose entries are above */
void pp_backlog_append(pp_channel_t *self, pp_entry_t *entry);   /* with `lock`; the caller sets `must_feed` */
void pp_backlog_clear(pp_channel_t *self);
int pp_channel_put_waiting(pp_channel_t *self, int64_t until_ns);   /* by one thread at a time. 1: as far as there is room; 0: there is no time
                                                                     * for the rest; -1: an exception; then it can be called again */

/* observing.c */

/* parent.c, worker.c, interp.c */
PyType_Spec *pp_channel_spec(void);
extern PyType_Spec pp_published_spec, pp_keeper_spec, pp_worker_spec, pp_interpreter_spec;
extern _Atomic long pp_n_interpreters;
void pp_interpreters_after_fork_in_child(void);
PyObject *pp_worker_new(pp_module_t *m, pp_segment_t *s, unsigned worker);
bool pp_is_importing(PyInterpreterState *interpreter, unsigned long ident);   /* an exception now would leave a message */
extern const char pp_ask_main_doc[];
PyObject *pp_ask_main(PyObject *module, PyObject *source);
PyObject *pp_interpreter_start(pp_module_t *m, pp_segment_t *s, unsigned worker);



/* task_interrupts.c */
void pp_interrupts_enter(pp_worker_slot_t *worker_slot);   /* this thread runs the worker's loop; NULL: no more */
/* Interrupts the timed task that began then; 0: whatever the worker runs. */
void pp_interrupt(pp_segment_t *segment, pp_worker_slot_t *worker_slot, uint64_t begun_ns, unsigned long ident, PyObject *exception);
/* Prevents an interrupt that comes too late from hitting what the calling thread does next. */
void pp_end_interrupts(pp_segment_t *segment, pp_worker_slot_t *worker_slot, bool has_replied);
PyObject *pp_interrupt_hook(PyObject *module, PyObject *before);
#define pp_interrupt_hook_doc "interrupt_hook(before) -> callable\n\nReturns a sys.unraisablehook that raises an interrupt of a " \
                              "task again if it hit a\ndestructor. It leaves everything else to the hook `before`."

/* interrupts.c */
bool pp_is_main_thread(void);                           /* the main thread of the process */
void pp_watch_interrupts(void);
PyObject *pp_n_interrupts(PyObject *module, PyObject *ignored);
void pp_sleep_on(_Atomic uint32_t *word);               /* a word that Ctrl-C then changes; NULL: the wait is over */
void pp_interrupts_after_fork(void);                    /* in the child */
PyObject *pp_call_apart(PyObject *module, PyObject *function);
#define pp_call_apart_doc "call_apart(function)\n\nWhat the function returns, which no signal handler interrupts: the main " \
    "thread has another thread call it, and waits for that."

/* duties.c */
enum { PP_DUTY_TASKS = 1, PP_DUTY_INPUT = 2, PP_DUTY_ANY = 4, PP_DUTY_RESULT = 8, PP_DUTY_BACKLOG = 16 };
uint64_t pp_next_number(void);                          /* for a channel */
void pp_duties_after_fork_in_child(void);
void pp_serve_all(void);                                /* the calling thread waits for the end of no pool */
uint64_t pp_decode_begin(const pp_channel_t *self);     /* what `pp_decode_end` needs */
void pp_decode_end(uint64_t outer);
void pp_note_feeding(const pp_channel_t *self);         /* NULL: no more */
pp_channel_t *pp_lead_begin(pp_channel_t *self);        /* before the thread may take the lead; returns what `pp_lead_end` needs */
void pp_lead_end(pp_channel_t *outer);
PyObject *pp_entry(PyObject *module, PyObject *args);
#define pp_entry_doc "entry(number, duty, function) -> callable\n\nReturns what a new thread calls: it belongs to the pool with " \
    "this number for the rest of\nits life, and calls function(). DUTY_TASKS: the pool's end waits for the thread.\n" \
    "DUTY_INPUT: it does until the pool is terminated. DUTY_ANY: it does, and those of other pools may as well."
PyObject *pp_served(PyObject *module, PyObject *ignored);
#define pp_served_doc "served() -> (int, int, int)\n\nReturns the numbers of the pools that need the calling thread: the one that it belongs to, the " \
    "one\nwhose result it is unpickling, and the one whose backlog it is putting. 0: none."
int pp_duties_add(PyObject *module);                    /* -1 with an exception */

/* ringing.c */
PyObject *pp_ring_word(PyObject *module, PyObject *word);
#define pp_ring_word_doc "ring(word)\n\nChanges a word in shared memory, a writable buffer, and wakes those that wait for that."
PyObject *pp_wait_ring_word(PyObject *module, PyObject *args);
#define pp_wait_ring_word_doc "wait_ring(word, seen, timeout_s=None) -> int\n\nWaits until a word is not `seen` any more, or for " \
    "some time. Returns the word, as it is\nthen. It may return too early."

/* uncaught.c */
PyObject *pp_print_uncaught(PyObject *module, PyObject *error);
#define pp_print_uncaught_doc "print_uncaught(error)\n\nDoes what the interpreter does with an exception that nobody has " \
    "caught. With SystemExit that ends\nthe program, unless it runs with -i."
PyObject *pp_run_prompt(PyObject *module, PyObject *ignored);
#define pp_run_prompt_doc "run_prompt()\n\nRuns what is typed at the interpreter's own prompt, until standard input ends."
PyObject *pp_end_by_interrupt(PyObject *module, PyObject *ignored);
#define pp_end_by_interrupt_doc "end_by_interrupt()\n\nThe process kills itself by SIGINT once the interpreter has ended, " \
    "as it does after an uncaught KeyboardInterrupt."

/* keywords.c: before 3.13 only */
PyObject *pp_keep_keywords(PyObject *module, PyObject *ignored);

/* gating.c: Gate, and OpenBLAS's regions */
int pp_gating_add(PyObject *module);

#endif
