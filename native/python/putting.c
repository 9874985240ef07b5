/* Channel, continued: putting. What waits to be put is the backlog, and one thread at a time moves it into the channel
 * while there is room (`pp_feed` in channel/waiting.c).
 *
 * Pickling and publishing may run user code, which may use the same Channel in the same thread. That thread then also puts
 * what this adds, except for the entries that its outer frames are putting. Every function here therefore reads its state
 * again after pickling. Only publishing a function, and asking where an error comes from, run Python code of the pool's.
 */
#include "python.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#define BLOCK_BYTES_MAX (64ull << 20)   /* bytes of arguments in shared memory beyond what workers need at once; guess */
#define CLOCK_EVERY 16                  /* tasks of a map between two looks at the clock */
#define LARGE_CHUNK 4096                /* items of a chunk that takes a while to make, and much memory; guess */
#define N_TRIES 3u                      /* to put a task that was refused while no worker will tell when there is room */

/* ---- entries ---- */

static int entry_init(pp_entry_t *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"job", "function", "payload", "index", "mode", NULL};
    PyObject *job, *function, *payload;
    self->index = 0;
    self->mode = PP_MODE_CALL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|II", names, &job, &function, &payload, &self->index, &self->mode))
        return -1;
    pp_module_t *m = pp_module_of(Py_TYPE(self));
    if (m == NULL || !PyObject_TypeCheck(job, m->job_type)) {
        PyErr_SetString(PyExc_TypeError, "an Entry belongs to a Job");
        return -1;
    }
    Py_XSETREF(self->job, (pp_job_t *)Py_NewRef(job));
    Py_XSETREF(self->function, Py_NewRef(function));
    Py_XSETREF(self->payload, Py_NewRef(payload));
    return 0;
}

static int entry_traverse(pp_entry_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->job);
    Py_VISIT(self->function);
    Py_VISIT(self->payload);
    return 0;
}

static int entry_clear(pp_entry_t *self) {
    Py_CLEAR(self->job);
    Py_CLEAR(self->function);
    Py_CLEAR(self->payload);
    return 0;
}

static void entry_dealloc(pp_entry_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef entry_members[] = {
    {"job", T_OBJECT, offsetof(pp_entry_t, job), READONLY, "the call that it is a part of"},
    {"payload", T_OBJECT, offsetof(pp_entry_t, payload), READONLY, "a task's encoded arguments, or these themselves"},
    {0},
};

PyDoc_STRVAR(entry_doc, "Entry(job, function, payload, index=0, mode=MODE_CALL)\n\n"
                        "What waits to be put: task `index` of a call, whose arguments `encode` has made; or, with the mode\n"
                        "of its tasks, the tasks of a map, and payload is its items: a list, or a sequence whose slices run\n"
                        "no code of the user's and of which a list is made for each task. function: what to call; None if\n"
                        "the payload has it, too.");

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, (void *)entry_doc},     {Py_tp_init, entry_init},       {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},         {Py_tp_dealloc, entry_dealloc}, {Py_tp_members, entry_members},
    {0, NULL},
};

PyType_Spec pp_entry_spec = {
    .name = "pool_party._native.Entry",
    .basicsize = sizeof(pp_entry_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = entry_slots,
};

static bool is_of_map(const pp_entry_t *entry) { return entry->mode != PP_MODE_CALL; }

static bool is_partial(PyObject *function) {
    const PyTypeObject *type = Py_TYPE(function);
    while (type && strcmp(type->tp_name, "functools.partial") != 0)   /* ours derive from it */
        type = type->tp_base;
    return type != NULL;
}

static PyObject *name_of_whole(PyObject *function) {
    if (PyFunction_Check(function))
        return Py_NewRef(((PyFunctionObject *)function)->func_qualname);
    if (PyMethod_Check(function) && PyFunction_Check(PyMethod_GET_FUNCTION(function)))
        return Py_NewRef(((PyFunctionObject *)PyMethod_GET_FUNCTION(function))->func_qualname);
    if (PyCFunction_Check(function))
        return PyUnicode_FromString(((PyCFunctionObject *)function)->m_ml->ml_name);
    const char *name = PyType_Check(function) ? ((PyTypeObject *)function)->tp_name : Py_TYPE(function)->tp_name;
    const char *dot = strrchr(name, '.');
    return PyUnicode_FromString(dot ? dot + 1 : name);
}

/* The name of what a call calls, for messages. It holds no object of the user's, so no finalizer runs later for that. */
PyObject *pp_name_of(PyObject *function) {
    enum { DEEPEST = 20 };   /* a partial may be made to contain itself */
    Py_INCREF(function);
    for (int depth = 0; function && depth < DEEPEST && is_partial(function); depth++)
        Py_SETREF(function, PyObject_GetAttrString(function, "func"));
    PyObject *name = function ? name_of_whole(function) : NULL;
    Py_XDECREF(function);
    return name;
}

/* Whether a map's input can be kept until its end: it holds nothing large, and nothing with a finalizer, as far as one look
 * at it shows. */
static bool is_plain_input(PyObject *items) {
    PyObject *first = PyList_CheckExact(items) && PyList_GET_SIZE(items) > 0 ? PyList_GET_ITEM(items, 0) : NULL;
    return PyRange_Check(items) || (first && (PyLong_CheckExact(first) || PyFloat_CheckExact(first) || PyUnicode_CheckExact(first)));
}

/* Tells a call that is not admitted yet what it calls, for messages. */
void pp_entry_tell(const pp_entry_t *entry) {
    if (entry->function != Py_None && entry->job->called == NULL && (entry->job->called = pp_name_of(entry->function)) == NULL)
        PyErr_Clear();
    if (is_of_map(entry) && is_plain_input(entry->payload))
        Py_XSETREF(entry->job->items, Py_NewRef(entry->payload));
}

/* ---- the backlog ---- */

void pp_backlog_append(pp_channel_t *self, pp_entry_t *entry) {
    PP_ASSERT(!entry->waits);
    *(self->last_entry ? &self->last_entry->next : &self->first_entry) = (pp_entry_t *)Py_NewRef(entry);
    self->last_entry = entry;
    entry->waits = true;
}

/* With `lock`. The caller drops the reference that the backlog had. */
static void unlink_entry(pp_channel_t *self, pp_entry_t *entry) {
    pp_entry_t *before = NULL, **at = &self->first_entry;
    while (*at != entry) {
        before = *at;
        at = &before->next;
    }
    *at = entry->next;
    if (self->last_entry == entry)
        self->last_entry = before;
    entry->next = NULL;
    entry->waits = false;
}

void pp_backlog_clear(pp_channel_t *self) {
    for (pp_entry_t *entry;; Py_DECREF(entry)) {   /* which may run user code: after each, all is as it should be */
        PP_LOCK(self);
        if ((entry = self->first_entry) != NULL)
            unlink_entry(self, entry);
        PP_UNLOCK(self);
        if (entry == NULL)
            break;
    }
}

PyDoc_STRVAR(clear_backlog_doc, "clear_backlog()\n\nForgets what has not been put, after the end of the pool.");
static PyObject *channel_clear_backlog(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_backlog_clear(self);
    Py_RETURN_NONE;
}

/* A new reference to the oldest entry that no outer frame is putting, or NULL. */
static pp_entry_t *begin_entry(pp_channel_t *self) {
    PP_LOCK(self);
    pp_entry_t *entry = self->first_entry;
    while (entry && entry->is_being_put)
        entry = entry->next;
    if (entry) {
        Py_INCREF(entry);
        entry->is_being_put = true;
        self->n_being_put++;
    }
    PP_UNLOCK(self);
    return entry;
}

static void end_entry(pp_channel_t *self, pp_entry_t *entry, bool is_done) {
    PP_LOCK(self);
    entry->is_being_put = false;
    self->n_being_put--;
    bool must_drop = is_done && entry->waits;   /* the end of the pool may have cleared the backlog */
    if (must_drop)
        unlink_entry(self, entry);
    PP_UNLOCK(self);
    if (must_drop)
        Py_DECREF(entry);
    Py_DECREF(entry);
}

/* ---- functions ---- */

typedef struct {                        /* a function, for a slot */
    uint64_t at;
    uint32_t id, size;
    PyObject *object;                   /* only for workers by reference */
} function_t;

static bool must_publish(pp_channel_t *self, PyObject *function) {
    return !self->by_reference && function != Py_None && !PyObject_TypeCheck(function, self->module->published_type);
}

/* A new reference to what was published for a call, or NULL. A stream has one for all its tasks. */
static PyObject *published_for(pp_job_t *job) {
    PyObject *published;
    Py_BEGIN_CRITICAL_SECTION(job);
    published = Py_XNewRef(job->function);
    Py_END_CRITICAL_SECTION();
    return published;
}

/* What was published lives until the call is done. */
static void keep_published(pp_job_t *job, PyObject *published) {
    Py_BEGIN_CRITICAL_SECTION(job);
    if (!job->settled && job->function == NULL)
        job->function = Py_NewRef(published);
    Py_END_CRITICAL_SECTION();
}

/* Asks Functions for a published function: None if there is no room; False if it must be pickled, and there is no time. */
static PyObject *ask_for(pp_channel_t *self, PyObject *function, bool has_time) {
    PyObject *open_function;
    Py_BEGIN_CRITICAL_SECTION(self);
    open_function = Py_XNewRef(self->open_function);
    Py_END_CRITICAL_SECTION();
    if (open_function == NULL)
        return pp_channel_raise_closed();
    PyObject *published = PyObject_CallFunctionObjArgs(open_function, function, has_time ? Py_True : Py_False, NULL);
    Py_DECREF(open_function);
    return published;
}

/* Publishes an entry's function, unless it was. 0; EAGAIN: there is no room; ETIME: there is no time; -1: an exception. */
static int publish_for(pp_channel_t *self, pp_entry_t *entry, int64_t until_ns) {
    if (!must_publish(self, entry->function))
        return 0;
    PyObject *published = published_for(entry->job);
    if (published == NULL && (published = ask_for(self, entry->function, until_ns < 0)) == NULL)
        return -1;
    int error = published == Py_None ? EAGAIN : published == Py_False ? ETIME : 0;
    if (!error && !PyObject_TypeCheck(published, self->module->published_type)) {
        PyErr_SetString(PyExc_TypeError, "a function is None or Published");
        error = -1;
    } else if (!error && ((pp_published_t *)published)->size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the function's pickle is larger than 4 GiB; pass the data as an argument");
        error = -1;
    } else if (!error) {
        keep_published(entry->job, published);
        Py_SETREF(entry->function, Py_NewRef(published));
    }
    Py_DECREF(published);
    return error;
}

static function_t function_of(pp_channel_t *self, const pp_entry_t *entry) {
    function_t f = {.object = entry->function};
    if (!self->by_reference && entry->function != Py_None) {
        const pp_published_t *published = (const pp_published_t *)entry->function;
        f.id = published->id;
        f.at = published->at;
        f.size = (uint32_t)published->size;
    }
    return f;
}

/* ---- one task ---- */

/* Whether large arguments must wait in private memory until a worker will soon need them. */
static bool is_too_much(pp_channel_t *self) {
    return pp_parent_n_waiting(&self->parent) >= self->segment->n_workers &&
           pp_arena_open_bytes(self->arena) > BLOCK_BYTES_MAX;
}

/* The memo of a call, whose critical section the caller holds. NULL without an exception: its tasks share nothing. */
static PyObject *memo_of(pp_channel_t *self, pp_job_t *job, PyObject *payload) {
    if (self->by_reference || job->kind == PP_JOB_SINGLE || job->settled || !PyTuple_Check(payload))
        return NULL;
    if (job->memo == NULL && (job->memo = pp_memo_new(self, pp_publish_block, pp_are_arguments_fixed(job))) == NULL)
        PyErr_Clear();
    return Py_XNewRef(job->memo);
}

/* 0, EAGAIN, ECANCELED or -1. The caller holds the call's critical section, so that `cancel` sees the task either outside or
 * inside the channel. While a large payload is copied others may enter that section: the call may be settled afterwards. */
static int put(pp_channel_t *self, pp_job_t *job, pp_slot_content_t content, const function_t *f, PyObject *payload, uint64_t *sequence) {
    PyObject *pair[] = {f->object, payload};
    if (job->settled)
        return ECANCELED;
    content.function_id = f->id;
    content.function_at = f->at;
    content.function_size = f->size;
    if (self->by_reference) {
        content.where = PP_IN_PLACE;
        content.size = sizeof pair;
        content.data = pair;
        Py_INCREF(pair[0]);
        Py_INCREF(pair[1]);
        int error = pp_parent_put(&self->parent, &content, sequence);
        if (error) {
            Py_DECREF(pair[0]);
            Py_DECREF(pair[1]);
        }
        return error;
    }
    if (!pp_parent_has_room(&self->parent) || (pp_needs_block(payload) && is_too_much(self)))
        return EAGAIN;
    pp_packed_t packed;
    PyObject *memo = memo_of(self, job, payload);
    int error = pp_pack(self->arena, payload, pp_lends(self->segment), NULL, memo, &packed);
    Py_XDECREF(memo);
    if (error)
        return error;
    content.where = packed.where == PP_IN_RING && packed.size <= PP_SLOT_INLINE ? PP_IN_PLACE : packed.where;
    content.size = packed.size;
    content.data = packed.data;
    error = job->settled ? ECANCELED : pp_parent_put(&self->parent, &content, sequence);
    if (error && packed.where == PP_IN_BLOCK)
        pp_block_release(self->segment, 0, packed.block.id);
    return error;
}

/* What goes into a slot's `mode` beside the mode. */
static uint16_t bits_of(const pp_job_t *job) { return job->is_timed ? PP_IS_TIMED : 0; }

/* 0, EAGAIN, ETIME or -1. */
static int put_task(pp_channel_t *self, pp_entry_t *entry, int64_t until_ns) {
    pp_job_t *job = entry->job;
    bool may_take_long = !self->by_reference && pp_needs_block(entry->payload);
    if (until_ns >= 0 && (may_take_long || pp_now_ns() >= until_ns))
        return ETIME;
    const function_t f = function_of(self, entry);
    pp_slot_content_t content = {.job = job->id, .index = entry->index, .mode = PP_MODE_CALL | bits_of(job)};
    int error;
    Py_BEGIN_CRITICAL_SECTION(job);
    uint64_t sequence;
    if ((error = put(self, job, content, &f, entry->payload, &sequence)) == 0) {
        if (job->kind == PP_JOB_SINGLE)
            job->sequence = (int64_t)sequence;
        pp_parent_wake(&self->parent, 1);
    }
    Py_END_CRITICAL_SECTION();
    return error == ECANCELED ? 0 : error;
}

/* ---- the tasks of a map ---- */

/* Items of a sequence that is not a list, as a list: a range, or an array, of which no more objects are made than are needed. */
static PyObject *make_chunk(PyObject *items, Py_ssize_t first, Py_ssize_t n) {
    PyObject *part = PySequence_GetSlice(items, first, first + n);
    PyObject *chunk = part ? PySequence_List(part) : NULL;
    Py_XDECREF(part);
    return chunk;
}

static PyObject *make_argument(PyObject *items, Py_ssize_t first, Py_ssize_t n) {
    if (PyList_CheckExact(items))
        return n == 1 ? Py_NewRef(PyList_GET_ITEM(items, first)) : PyList_GetSlice(items, first, first + n);
    return n == 1 ? PySequence_GetItem(items, first) : make_chunk(items, first, n);
}

static PyObject *next_argument(pp_channel_t *self, pp_job_t *job, PyObject *items, bool snapshot) {
    PyObject *argument = make_argument(items, job->cursor * job->chunk, job->chunk);
    PyObject *payload = argument ? pp_encode_for(self, argument, snapshot, job) : NULL;
    Py_XDECREF(argument);
    return payload;
}

static int put_next(pp_channel_t *self, pp_job_t *job, PyObject *items, unsigned mode, const function_t *f, bool snapshot) {
    PyObject *payload = next_argument(self, job, items, snapshot);
    if (payload == NULL)
        return -1;
    pp_slot_content_t content = {.job = job->id, .index = (uint32_t)job->cursor, .mode = (uint16_t)mode};
    uint64_t sequence;
    int error;
    Py_BEGIN_CRITICAL_SECTION(job);
    error = put(self, job, content, f, payload, &sequence);
    Py_END_CRITICAL_SECTION();
    Py_DECREF(payload);
    return error;
}

static void forget_memo(pp_job_t *job) {
    PyObject *memo, *commons, *preludes;
    Py_BEGIN_CRITICAL_SECTION(job);
    memo = job->memo;
    commons = job->commons;
    preludes = job->preludes;
    job->memo = job->commons = job->preludes = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(memo);
    Py_XDECREF(commons);
    Py_XDECREF(preludes);
}

/* Whether the next task can be encoded without pickling. */
static bool is_next_simple(pp_channel_t *self, pp_job_t *job, PyObject *items) {
    if (self->by_reference || PyRange_Check(items))
        return true;
    Py_ssize_t first = job->cursor * job->chunk, end = first + job->chunk;
    if (!PyList_CheckExact(items))
        return false;
    end = Py_MIN(end, PyList_GET_SIZE(items));
    for (Py_ssize_t i = first; i < end; i++)
        if (!pp_is_simple(PyList_GET_ITEM(items, i), PP_SIMPLE_DEPTH))
            return false;
    return true;
}

/* Whether a thread that waits until a time may put the next task. Reading the clock costs as much as putting does in part. */
static bool is_in_time(pp_channel_t *self, pp_job_t *job, PyObject *items, int64_t until_ns) {
    bool is_due = job->chunk == 1 && job->cursor % CLOCK_EVERY;
    return (is_due || pp_now_ns() < until_ns) && is_next_simple(self, job, items);
}

/* Whether the chunks of a range or an array should be made later, when workers will soon need them. */
static bool is_enough(pp_channel_t *self, pp_job_t *job, PyObject *items) {
    return job->chunk >= LARGE_CHUNK && !PyList_CheckExact(items) && pp_parent_n_waiting(&self->parent) >= self->segment->n_workers;
}

/* Puts the tasks from the call's cursor on. 0: all are put, or the outcome is decided; EAGAIN, ETIME; or -1, with the cursor
 * at the task that failed. */
static int put_map(pp_channel_t *self, pp_entry_t *entry, int64_t until_ns) {
    pp_job_t *job = entry->job;
    PyObject *items = entry->payload;
    const function_t f = function_of(self, entry);
    unsigned mode = entry->mode | bits_of(job);
    int error = 0;
    while (!error && !pp_load_seq_cst(&job->settled) && job->cursor * job->chunk < job->n_items) {
        if (!pp_parent_has_room(&self->parent) || is_enough(self, job, items))
            error = EAGAIN;
        else if (until_ns >= 0 && !is_in_time(self, job, items, until_ns))
            error = ETIME;
        else if ((error = put_next(self, job, items, mode, &f, false)) == ESTALE)
            error = put_next(self, job, items, mode, &f, true);
        if (error)
            break;
        job->cursor++;
        pp_parent_wake(&self->parent, 1);   /* at once: pickling the next argument may take long */
    }
    if (error == 0 || error == ECANCELED)
        forget_memo(job);
    return error == ECANCELED ? 0 : error;
}

/* ---- what waits ---- */

static bool is_from_handler(PyObject *error) {
    PyObject *module = PyImport_ImportModule("pool_party._wire.interrupts");   /* seldom needed */
    PyObject *found = module ? PyObject_CallMethod(module, "is_from_handler", "O", error) : NULL;
    bool is = found == Py_True;
    Py_XDECREF(found);
    Py_XDECREF(module);
    PyErr_Clear();
    return is;
}

/* Whether the thread that puts must raise this error, rather than the one that waits for the call: it is from a signal
 * handler; or it is a BaseException that is no Exception, and the thread is submitting this very call. */
static bool is_for_caller(PyObject *error, pp_job_t *job) {
    if (PyErr_GivenExceptionMatches(error, PyExc_KeyboardInterrupt) && pp_is_main_thread())
        return true;
    if (PyErr_GivenExceptionMatches(error, PyExc_Exception))
        return is_from_handler(error);
    return pp_load_seq_cst(&job->submitter) == pp_this_thread();
}

/* Makes an error the outcome of its task or, if a map's function cannot be published, of the whole call. */
static void refuse_entry(pp_channel_t *self, pp_entry_t *entry, PyObject *error) {
    if (!is_of_map(entry))
        pp_channel_deliver_outcome(self, entry->job, entry->index, PP_STATUS_RAISED, error);
    else if (must_publish(self, entry->function))
        pp_channel_settle_call(self, entry->job, PP_STATUS_RAISED, error);
    else
        pp_channel_deliver_outcome(self, entry->job, (uint32_t)entry->job->cursor++, PP_STATUS_RAISED, error);
}

/* 0: all of it is put or has an outcome; EAGAIN: there is no room; ETIME: there is no time; -1: an exception. */
static int put_entry(pp_channel_t *self, pp_entry_t *entry, int64_t until_ns) {
    while (!pp_load_seq_cst(&entry->job->settled)) {
        int error = publish_for(self, entry, until_ns);
        if (error == 0)
            error = (is_of_map(entry) ? put_map : put_task)(self, entry, until_ns);
        if (error == EAGAIN)
            pp_parent_note_full(&self->parent);
        if (error >= 0)
            return error;
        PyObject *raised = PyErr_GetRaisedException();
        if (is_for_caller(raised, entry->job)) {
            PyErr_SetRaisedException(raised);
            return -1;
        }
        refuse_entry(self, entry, raised);
        Py_DECREF(raised);
        if (!is_of_map(entry))
            return 0;
    }
    return 0;
}

int pp_channel_put_waiting(pp_channel_t *self, int64_t until_ns) {
    unsigned n_refused = 0;
    if (pp_arena_has_pins(self->arena))
        pp_arena_unpin(self->arena);
    for (pp_entry_t *entry; !pp_channel_is_closed(self) && (entry = begin_entry(self)) != NULL;) {
        int error = put_entry(self, entry, until_ns);
        end_entry(self, entry, error == 0);
        if (error == ETIME || error < 0)
            return error < 0 ? -1 : 0;
        if (error == EAGAIN && pp_parent_waits_for_room(&self->parent))
            break;   /* a worker that makes room will tell */
        if (error == EAGAIN && ++n_refused > N_TRIES) {   /* a retained block is in the way; nobody tells when it is released */
            pp_store_seq_cst(&self->must_retry, 1);
            pp_parent_notify(&self->parent);
            break;
        }
    }
    return 1;
}

/* ---- memory ---- */

PyDoc_STRVAR(trim_doc, "trim()\n\n"
                                     "Gives back the memory of blocks that have been idle since the last call, except a\n"
                                     "limited amount. For the background thread, while `wants_trim`.");
static PyObject *channel_trim(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    if (pp_arena_has_pins(self->arena)) {   /* the thread that puts releases what tasks have received */
        pp_store_seq_cst(&self->parent.must_feed, 1);
        if (pp_feed(&self->parent, -1) < 0)
            return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pp_blocks_trim(self->segment);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

GUARDED_QUIET(channel_trim, Py_None)

PyMethodDef pp_putting_methods[] = {
    METHOD("trim", channel_trim, METH_NOARGS, trim_doc),
    {"clear_backlog", (PyCFunction)(void *)channel_clear_backlog, METH_NOARGS, clear_backlog_doc},
    {0},
};
