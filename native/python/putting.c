/* Channel, continued: putting. Encodes values, publishes functions, and moves tasks into the channel while there is
 * room.
 *
 * `feed` in waiting.c ensures that one thread at a time puts. Pickling may run user code, which may use the same
 * Channel in the same thread. Every function here therefore reads its state again after pickling.
 */
#include "python.h"

#include <errno.h>
#include <string.h>

#define BLOCK_BYTES_MAX (64ull << 20)   /* bytes of arguments in shared memory beyond what workers need at once; guess */
#define CLOCK_EVERY 16                  /* tasks of a map between two looks at the clock */

typedef struct {                        /* a map's function, the same for all its tasks */
    uint64_t at;
    uint32_t id, size;
    PyObject *object;                   /* only for workers by reference */
} function_t;

/* Decides whether to examine each object of a pickle, which takes time: only after a large pickle, and only while it
 * finds parts to share. */
static void decide_apart(pp_job_t *job, PyObject *payload) {
    PyObject *rest = PyTuple_Check(payload) ? PyTuple_GET_ITEM(payload, 0) : payload;
    bool is_large = PyBytes_GET_SIZE(rest) >= (Py_ssize_t)PP_COMMON_MIN;
    if (job->apart == PP_APART && is_large && !pp_is_apart(rest))
        job->apart = PP_APART_NOTHING;
    else if (job->apart == PP_APART_UNSEEN && is_large)
        job->apart = PP_APART;
}

/* Whether parts of a payload are large that no task can share as they are: a pickle, or the numbers of a list. */
static bool is_large(PyObject *payload) {
    PyObject *rest = PyTuple_Check(payload) ? PyTuple_GET_ITEM(payload, 0) : payload;
    if (PyBytes_GET_SIZE(rest) >= (Py_ssize_t)PP_COMMON_MIN)
        return true;
    PyObject *leaves = PyTuple_Check(payload) ? PyTuple_GET_ITEM(payload, 1) : NULL;
    for (Py_ssize_t i = 0; leaves && i < PyList_GET_SIZE(leaves); i++)
        if (PyList_CheckExact(PyList_GET_ITEM(leaves, i)) && PyList_GET_SIZE(PyList_GET_ITEM(leaves, i)) >= (Py_ssize_t)PP_COMMON_MIN / 8)
            return true;
    return false;
}

/* Calls an attribute of wire/common.py. */
static PyObject *call_common(const char *name, PyObject *argument) {
    PyObject *module = PyImport_ImportModule("pool_party.wire.common");
    PyObject *done = module && argument ? PyObject_CallMethod(module, name, "O", argument) : NULL;
    Py_XDECREF(module);
    return done;
}

/* Begins to look for objects that other tasks of the call name, too, after a task that names large ones. */
static int begin_commons(pp_job_t *job, PyObject *value) {
    PyObject *commons = call_common("Commons", job->kind == PP_JOB_MAP ? Py_True : Py_False), *same = NULL;
    if (commons)
        same = PyObject_CallOneArg(commons, value);
    int failed = same ? 0 : -1;
    Py_XDECREF(same);
    if (!failed) {
        Py_BEGIN_CRITICAL_SECTION(job);
        if (!job->settled && job->commons == NULL)
            job->commons = Py_NewRef(commons);
        Py_END_CRITICAL_SECTION();
    }
    Py_XDECREF(commons);
    return failed;
}

/* Looks at a payload that is not small. Returns 0, or -1 with an exception. */
static int look_at(pp_job_t *job, PyObject *value, PyObject *payload) {
    decide_apart(job, payload);
    return is_large(payload) ? begin_commons(job, value) : 0;
}

/* A new reference to the value, or to an object that is encoded in its place and names objects that were encoded before. */
static PyObject *without_commons(pp_job_t *job, PyObject *value) {
    PyObject *commons;
    Py_BEGIN_CRITICAL_SECTION(job);
    commons = Py_XNewRef(job->commons);
    Py_END_CRITICAL_SECTION();
    PyObject *rest = commons ? PyObject_CallOneArg(commons, value) : Py_NewRef(value);
    Py_XDECREF(commons);
    return rest;
}

static PyObject *encode_as(pp_channel_t *self, PyObject *value, bool snapshot, pp_job_t *job, bool sets_apart) {
    pp_encoding_t how = {.snapshot = snapshot, .is_local = self->is_local, .sets_apart = sets_apart,
                         .receivers = self->receivers, .channel = self, .call = job};
    return pp_encode(self->module, value, &how);
}

/* Encodes a value. job: the map or stream whose argument it is, or NULL. */
static PyObject *encode(pp_channel_t *self, PyObject *value, bool snapshot, pp_job_t *job) {
    if (self->by_reference)
        return Py_NewRef(value);
    if (job == NULL)
        return encode_as(self, value, snapshot, job, false);
    if (job->apart == PP_APART_UNKNOWN)
        job->apart = pp_holds_common_blob(value) ? PP_APART : PP_APART_UNSEEN;
    if (job->commons) {
        PyObject *rest = without_commons(job, value);
        PyObject *payload = rest ? encode_as(self, rest, snapshot, job, rest != value || job->apart == PP_APART) : NULL;
        if (payload && rest == value)
            decide_apart(job, payload);
        Py_XDECREF(rest);
        return payload;
    }
    PyObject *payload = encode_as(self, value, snapshot, job, job->apart == PP_APART);
    bool is_small = payload && PyBytes_CheckExact(payload) && PyBytes_GET_SIZE(payload) < (Py_ssize_t)PP_COMMON_MIN;
    if (payload && !is_small && look_at(job, value, payload) < 0)
        Py_CLEAR(payload);
    return payload;
}

const char pp_encode_doc[] = PyDoc_STR("encode(value, call=None) -> payload\n\n"
                                       "Returns the value as it is sent, or the value itself if workers share our objects.\n"
                                       "call: the call that it is an argument of.");
PyObject *pp_channel_encode(pp_channel_t *self, PyObject *args) {
    PyObject *value;
    pp_job_t *job = NULL;
    if (!PyArg_ParseTuple(args, "O|O!", &value, self->module->job_type, &job))
        return NULL;
    return encode(self, value, true, job && job->kind != PP_JOB_SINGLE ? job : NULL);
}

typedef struct {                        /* a block that every worker may read while a reference to this exists */
    PyObject_HEAD
    pp_channel_t *channel;
    uint64_t at, size;
    uint32_t id, block;
} published_t;

/* The channel leads to a namespace of the program, which may contain the pool that refers to this. */
static int published_traverse(published_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->channel);
    return 0;
}

static int published_clear(published_t *self) {
    pp_channel_t *channel = self->channel;
    self->channel = NULL;
    if (channel && pp_channel_enter(channel)) {
        pp_block_release(channel->segment, 0, self->block);
        pp_channel_leave(channel);
    }
    Py_XDECREF(channel);
    return 0;
}

static void published_dealloc(published_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    published_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot published_slots[] = {
    {Py_tp_doc, "A function, or data, that every worker can fetch while a reference to this exists."},
    {Py_tp_traverse, published_traverse},
    {Py_tp_clear, published_clear},
    {Py_tp_dealloc, published_dealloc},
    {0, NULL},
};

PyType_Spec pp_published_spec = {
    .name = "pool_party._native.Published",
    .basicsize = sizeof(published_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = published_slots,
};

PyObject *pp_channel_publish_block(pp_channel_t *self, const pp_blockref_t *block) {
    PyTypeObject *type = self->module->published_type;
    published_t *published = (published_t *)type->tp_alloc(type, 0);
    if (published == NULL) {
        pp_block_release(self->segment, 0, block->id);
        return NULL;
    }
    if (++self->last_function_id == 0)
        ++self->last_function_id;
    published->channel = (pp_channel_t *)Py_NewRef(self);
    published->id = self->last_function_id;
    published->at = block->at;
    published->size = block->size;
    published->block = block->id;
    return (PyObject *)published;
}

const char pp_publish_doc[] = PyDoc_STR("publish(function) -> Published, or None if there is no room\n\n"
    "Puts an encoded function where every worker can fetch it.");
PyObject *pp_channel_publish(pp_channel_t *self, PyObject *payload) {
    pp_packed_t packed;
    PyObject *buffers = PyTuple_Check(payload) ? Py_NewRef(payload) : NULL;
    if (buffers == NULL && (buffers = PyList_New(0)))
        Py_SETREF(buffers, PyTuple_Pack(2, payload, buffers));   /* two parts, so that it always becomes a block */
    int error = buffers ? pp_pack(self->arena, buffers, false, NULL, NULL, &packed) : -1;
    Py_XDECREF(buffers);
    if (error == EAGAIN) {
        pp_parent_note_full(&self->parent);
        Py_RETURN_NONE;
    }
    if (!error)
        pp_block_hold(self->arena, &packed.block);
    return error ? NULL : pp_channel_publish_block(self, &packed.block);
}

static int parse_function(pp_channel_t *self, PyObject *arg, function_t *f) {
    *f = (function_t){.object = arg};
    if (self->by_reference || arg == Py_None)
        return 0;
    if (!PyObject_TypeCheck(arg, self->module->published_type)) {
        PyErr_SetString(PyExc_TypeError, "a function is None or Published");
        return -1;
    }
    const published_t *published = (published_t *)arg;
    if (published->size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the function's pickle is larger than 4 GiB; pass the data as an argument");
        return -1;
    }
    f->id = published->id;
    f->at = published->at;
    f->size = (uint32_t)published->size;
    return 0;
}

/* Whether large arguments must wait in private memory until a worker will soon need them. */
static bool is_too_much(pp_channel_t *self) {
    return pp_parent_n_waiting(&self->parent) >= self->segment->n_workers &&
           pp_arena_open_bytes(self->arena) > BLOCK_BYTES_MAX;
}

/* The memo of a call, whose critical section the caller holds. NULL without an exception: its tasks share nothing. */
static PyObject *memo_of(pp_channel_t *self, pp_job_t *job, PyObject *payload) {
    if (self->by_reference || job->kind == PP_JOB_SINGLE || job->settled || !PyTuple_Check(payload))
        return NULL;
    if (job->memo == NULL && (job->memo = pp_memo_new(self, job->kind == PP_JOB_MAP)) == NULL)
        PyErr_Clear();
    return Py_XNewRef(job->memo);
}

/* 0, EAGAIN, ECANCELED or -1. The caller holds the call's critical section, so that `cancel` sees the task either outside or
 * inside the channel. While a large payload is copied others may enter that section: the call may be settled afterwards. */
static int put(pp_channel_t *self, pp_job_t *job, pp_task_t task, const function_t *f, PyObject *payload, uint64_t *sequence) {
    PyObject *pair[] = {f->object, payload};
    if (job->settled)
        return ECANCELED;
    task.function_id = f->id;
    task.function_at = f->at;
    task.function_size = f->size;
    if (self->by_reference) {
        task.where = PP_IN_PLACE;
        task.size = sizeof pair;
        task.data = pair;
        Py_INCREF(pair[0]);
        Py_INCREF(pair[1]);
        int error = pp_parent_put(&self->parent, &task, sequence);
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
    task.where = packed.where == PP_IN_RING && packed.size <= PP_SLOT_INLINE ? PP_IN_PLACE : packed.where;
    task.size = packed.size;
    task.data = packed.data;
    error = job->settled ? ECANCELED : pp_parent_put(&self->parent, &task, sequence);
    if (error && packed.where == PP_IN_BLOCK)
        pp_block_release(self->segment, 0, packed.block.id);
    return error;
}

/* What goes into a slot's `mode` beside the mode. */
static uint16_t bits_of(const pp_job_t *job) { return job->is_timed ? PP_IS_TIMED : 0; }

/* 0, EAGAIN or -1. */
static int put_unless_settled(pp_channel_t *self, pp_pending_t *pending, const function_t *f) {
    int error;
    pp_job_t *job = pending->job;
    pp_task_t task = {.job = job->id, .index = pending->index, .mode = PP_MODE_CALL | bits_of(job)};
    Py_BEGIN_CRITICAL_SECTION(job);
    uint64_t sequence;
    if ((error = put(self, job, task, f, pending->payload, &sequence)) == 0) {
        pending->is_put = true;
        if (job->kind == PP_JOB_SINGLE)
            job->sequence = (int64_t)sequence;
        pp_parent_wake(&self->parent, 1);
    }
    Py_END_CRITICAL_SECTION();
    return error == ECANCELED ? 0 : error;
}

/* True: everything is put, or its outcome is decided; False: there is no room now; None: there is no time. */
static PyObject *verdict(pp_channel_t *self, int error) {
    if (error < 0)
        return NULL;
    if (error == ETIME)
        Py_RETURN_NONE;
    if (error == EAGAIN)
        pp_parent_note_full(&self->parent);
    return PyBool_FromLong(error != EAGAIN);
}

const char pp_put_doc[] = PyDoc_STR("put(task, until_ns=-1) -> bool or None\n\n"
                                    "Puts a task, unless it has been put or its call is settled. False: there is no room\n"
                                    "now. None: until_ns has passed, or copying the task's data may take long.");
PyObject *pp_channel_put(pp_channel_t *self, PyObject *args) {
    function_t f;
    pp_pending_t *pending;
    long long until_ns = -1;
    if (!PyArg_ParseTuple(args, "O!|L", self->module->task_type, &pending, &until_ns) ||
        parse_function(self, pending->function, &f) < 0)
        return NULL;
    if (pending->is_put)
        Py_RETURN_TRUE;
    bool may_take_long = !self->by_reference && pp_needs_block(pending->payload);
    if (until_ns >= 0 && (may_take_long || pp_now_ns() >= until_ns))
        Py_RETURN_NONE;
    return verdict(self, put_unless_settled(self, pending, &f));
}

bool pp_channel_put_plain(pp_channel_t *self) {
    bool has_put = false;
    while (self->by_reference && self->backlog && PyObject_Size(self->backlog) > 0) {
        PyObject *entry = PySequence_GetItem(self->backlog, 0), *first = NULL;
        if (entry && PyObject_TypeCheck(entry, self->module->task_type)) {
            pp_pending_t *pending = (pp_pending_t *)entry;
            const function_t f = {.object = pending->function};
            if (pending->is_put || put_unless_settled(self, pending, &f) == 0)
                first = PyObject_CallNoArgs(self->popleft);
        }
        has_put = first != NULL;
        PyErr_Clear();   /* the pool has ended in another thread, which cleared the backlog */
        Py_XDECREF(first);
        Py_XDECREF(entry);
        if (!has_put)
            break;
    }
    return has_put;
}

static PyObject *next_argument(pp_channel_t *self, pp_job_t *job, PyObject *items, bool snapshot) {
    Py_ssize_t first = job->cursor * job->chunk;
    PyObject *argument = job->chunk == 1 ? Py_NewRef(PyList_GET_ITEM(items, first)) : PyList_GetSlice(items, first, first + job->chunk);
    PyObject *payload = argument ? encode(self, argument, snapshot, job) : NULL;
    Py_XDECREF(argument);
    return payload;
}

static int put_next(pp_channel_t *self, pp_job_t *job, PyObject *items, unsigned mode, const function_t *f, bool snapshot) {
    PyObject *payload = next_argument(self, job, items, snapshot);
    if (payload == NULL)
        return -1;
    pp_task_t task = {.job = job->id, .index = (uint32_t)job->cursor, .mode = (uint16_t)mode};
    uint64_t sequence;
    int error;
    Py_BEGIN_CRITICAL_SECTION(job);
    error = put(self, job, task, f, payload, &sequence);
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
    Py_ssize_t first = job->cursor * job->chunk, end = Py_MIN(first + job->chunk, PyList_GET_SIZE(items));
    if (!self->by_reference)
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

const char pp_put_many_doc[] = PyDoc_STR("put_many(job, items, mode, function, until_ns=-1) -> bool or None\n\n"
    "Puts the job's tasks from its cursor on while there is room; True once all are put, or its outcome is decided. None:\n"
    "until_ns has passed, or the next task must be pickled, which may take long. Raises what pickling raised, with the\n"
    "cursor at the task that failed.");
PyObject *pp_channel_put_many(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    PyObject *items, *function;
    unsigned mode;
    function_t f;
    long long until_ns = -1;
    if (!PyArg_ParseTuple(args, "O!O!IO|L", self->module->job_type, &job, &PyList_Type, &items, &mode, &function, &until_ns) ||
        parse_function(self, function, &f) < 0)
        return NULL;
    int error = 0;
    mode |= bits_of(job);
    while (!error && !pp_load_seq_cst(&job->settled) && job->cursor * job->chunk < PyList_GET_SIZE(items)) {
        if (!pp_parent_has_room(&self->parent))
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
    return verdict(self, error);
}

const char pp_unpin_doc[] = PyDoc_STR("unpin()\n\n"
                                      "Releases shared memory that tasks have received. Only the thread that puts may call\n"
                                      "it.");
PyObject *pp_channel_unpin(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_arena_unpin(self->arena);
    Py_RETURN_NONE;
}

const char pp_trim_doc[] = PyDoc_STR("trim()\n\n"
                                     "Gives back the memory of blocks that have been idle since the last call, except a\n"
                                     "limited amount. For the background thread, while `wants_trim`.");
PyObject *pp_channel_trim(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS
    pp_blocks_trim(self->segment);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
