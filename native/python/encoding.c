/* Channel, continued: encoding. Makes payloads of arguments, and publishes functions.
 *
 * Pickling may run user code, which may use the same Channel in the same thread. Every function here therefore reads its
 * state again after pickling.
 */
#include "python.h"

#include <errno.h>

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
static bool has_large_parts(PyObject *payload) {
    PyObject *rest = PyTuple_Check(payload) ? PyTuple_GET_ITEM(payload, 0) : payload;
    if (PyBytes_GET_SIZE(rest) >= (Py_ssize_t)PP_COMMON_MIN)
        return true;
    PyObject *leaves = PyTuple_Check(payload) ? PyTuple_GET_ITEM(payload, 1) : NULL;
    for (Py_ssize_t i = 0; leaves && i < PyList_GET_SIZE(leaves); i++)
        if (PyList_CheckExact(PyList_GET_ITEM(leaves, i)) && PyList_GET_SIZE(PyList_GET_ITEM(leaves, i)) >= (Py_ssize_t)PP_COMMON_MIN / 8)
            return true;
    return false;
}

/* Whether objects of a call's tasks stay as they are until all are put, unless the caller changes them meanwhile. One that is
 * read while tasks run may change what it has returned. */
bool pp_are_arguments_fixed(const pp_job_t *job) { return job->kind == PP_JOB_MAP && job->window == 0; }

/* Begins to look for objects that other tasks of the call name, too, after a task that names large ones. */
static int begin_commons(pp_job_t *job, PyObject *value) {
    PyObject *module = PyImport_ImportModule("pool_party._wire.common"), *same = NULL;
    bool is_chunked = job->chunk > 1 && PyList_CheckExact(value);
    PyObject *flags[] = {pp_are_arguments_fixed(job) ? Py_True : Py_False, is_chunked ? Py_True : Py_False};
    PyObject *commons = module ? PyObject_CallMethod(module, "Commons", "OO", flags[0], flags[1]) : NULL;
    Py_XDECREF(module);
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
static int look_at_payload(pp_job_t *job, PyObject *value, PyObject *payload) {
    decide_apart(job, payload);
    return has_large_parts(payload) ? begin_commons(job, value) : 0;
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
PyObject *pp_encode_for(pp_channel_t *self, PyObject *value, bool snapshot, pp_job_t *job) {
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
    if (payload && !is_small && look_at_payload(job, value, payload) < 0)
        Py_CLEAR(payload);
    return payload;
}

PyDoc_STRVAR(encode_doc, "encode(value, call=None) -> payload\n\n"
                                       "Returns the value as it is sent, or the value itself if workers share our objects.\n"
                                       "call: the call that it is an argument of.");
static PyObject *channel_encode(pp_channel_t *self, PyObject *args) {
    PyObject *value;
    pp_job_t *job = NULL;
    if (!PyArg_ParseTuple(args, "O|O!", &value, self->module->job_type, &job))
        return NULL;
    return pp_encode_for(self, value, true, job && job->kind != PP_JOB_SINGLE ? job : NULL);
}

/* The channel leads to a namespace of the program, which may contain the pool that refers to this. */
static int pp_published_traverse(pp_published_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->channel);
    return 0;
}

static int published_clear(pp_published_t *self) {
    pp_channel_t *channel = self->channel;
    self->channel = NULL;
    if (channel && pp_channel_enter(channel)) {
        pp_block_release(channel->segment, 0, self->block);
        pp_channel_leave(channel);
    }
    Py_XDECREF(channel);
    return 0;
}

static void published_dealloc(pp_published_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    published_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot published_slots[] = {
    {Py_tp_doc, "A function, or data, that every worker can fetch while a reference to this exists."},
    {Py_tp_traverse, pp_published_traverse},
    {Py_tp_clear, published_clear},
    {Py_tp_dealloc, published_dealloc},
    {0, NULL},
};

PyType_Spec pp_published_spec = {
    .name = "pool_party._native.Published",
    .basicsize = sizeof(pp_published_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = published_slots,
};

PyObject *pp_publish_block(pp_channel_t *self, const pp_blockref_t *block) {
    PyTypeObject *type = self->module->published_type;
    pp_published_t *published = (pp_published_t *)type->tp_alloc(type, 0);
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

PyDoc_STRVAR(publish_doc, "publish(function) -> Published, or None if there is no room\n\n"
    "Puts an encoded function where every worker can fetch it.");
static PyObject *channel_publish(pp_channel_t *self, PyObject *payload) {
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
    return error ? NULL : pp_publish_block(self, &packed.block);
}

GUARDED(channel_publish)

PyMethodDef pp_encoding_methods[] = {
    {"encode", (PyCFunction)(void *)channel_encode, METH_VARARGS, encode_doc},
    METHOD("publish", channel_publish, METH_O, publish_doc),
    {0},
};
