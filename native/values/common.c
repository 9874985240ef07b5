/* Large objects that several tasks of one call name. Each is in shared memory once, while the call is being put or a task
 * in flight names it.
 *
 * The pins of a task keep the objects that it names until its block is released. The block is released after its worker has
 * read the object or was reaped, and not while an array of the task lies in it. Nothing here needs a protocol of its own.
 *
 * bytes and str do not change while they live. Buffers may change: a call takes their content at the first task that names
 * them. A stream does not share them, because its input may be written to between two tasks.
 * Buffers and large parts of the typed encoding are always leaves. bytes and str in pickles become leaves once the call is
 * known to have large ones (`pp_apart_t`, codec.c).
 *
 * A worker keeps the bytes and str that it has made of them until it gets a task of another call, or none for a tenth of
 * a second (worker.c).
 *
 * Other objects that several tasks name are pickled once, by _wire/common.py, and this pickle is such a bytes object. The
 * last section of this file tells which objects a pickle contains. duplicate.c copies what a worker has unpickled.
 */
#include "python.h"

#include <string.h>

#define ENTRIES_MAX 32u             /* guess: calls name few large objects in all their tasks */
#define SEEN_MAX 64u
#define HELD_MAX (64ull << 20)      /* bytes of all but the last, the same limit as for arguments that wait */
#define OWN_REFERENCES 5            /* to an object in one task: by its container, its owner, the call and us; guess */

typedef struct {
    PyObject *object;               /* retained, so that its address is not reused */
    const void *start;
    pp_memory_t *pin;
    pp_common_t common;
} entry_t;

typedef struct {
    pp_channel_t *channel;          /* borrowed: only functions of the channel use the memo */
    pp_publish_t *publish;
    bool takes_buffers;
    unsigned n, n_seen;
    uint64_t n_bytes;
    const void *seen[SEEN_MAX];     /* addresses that tasks have named, in a ring */
    entry_t entries[ENTRIES_MAX];   /* the most recently used first */
} memo_t;

static _Atomic uint64_t last_number;

/* ---- sending ---- */

static void free_memo(PyObject *capsule) {
    memo_t *memo = PyCapsule_GetPointer(capsule, NULL);
    for (unsigned i = 0; i < memo->n; i++) {
        pp_memory_unref(memo->entries[i].pin);
        Py_DECREF(memo->entries[i].object);
    }
    PyMem_Free(memo);
}

PyObject *pp_memo_new(pp_channel_t *channel, pp_publish_t *publish, bool takes_buffers) {
    memo_t *memo = PyMem_Calloc(1, sizeof *memo);
    if (memo == NULL)
        return PyErr_NoMemory();
    memo->channel = channel;
    memo->publish = publish;
    memo->takes_buffers = takes_buffers;
    PyObject *capsule = PyCapsule_New(memo, NULL, free_memo);
    if (capsule == NULL)
        PyMem_Free(memo);
    return capsule;
}

/* Whether other tasks probably name the object, too. A wrong guess costs some memory while the call lasts. */
static bool is_probably_common(memo_t *memo, PyObject *object, const void *start) {
    if (Py_REFCNT(object) > OWN_REFERENCES)
        return true;
    for (unsigned i = 0; i < SEEN_MAX; i++)
        if (memo->seen[i] == start)
            return Py_REFCNT(object) > 2;   /* otherwise it may be another object at the same address */
    memo->seen[memo->n_seen++ % SEEN_MAX] = start;
    return false;
}

static void drop_reference(void *object) { Py_DECREF((PyObject *)object); }

/* Wraps the new reference `owner`, which keeps the object's memory, in a pin. Returns NULL if there is no memory. */
static pp_memory_t *pin(PyObject *owner) {
    pp_memory_t *memory = NULL;
    if (owner && pp_memory_lend(owner, 0, drop_reference, &memory) != 0)
        Py_DECREF(owner);
    return memory;
}

/* Makes an object available to all workers. Interpreters of this process read bytes and str in place. */
static pp_memory_t *publish_object(memo_t *memo, PyObject *object, bool is_blob, const void *start, pp_common_t *common) {
    pp_channel_t *channel = memo->channel;
    if (is_blob && channel->is_local) {
        common->start = start;
        return pin(Py_NewRef(object));
    }
    void *to;
    if (pp_block_open(channel->arena, common->size, &common->block, &to) != 0)
        return NULL;
    pp_copy_freely(to, start, common->size);
    pp_block_hold(channel->arena, &common->block);
    return pin(memo->publish(channel, &common->block));
}

static void drop_last(memo_t *memo) {
    entry_t last = memo->entries[--memo->n];
    memo->n_bytes -= last.common.size;
    pp_memory_unref(last.pin);
    Py_DECREF(last.object);         /* last: its destructor may run code that enters this function again */
}

static void insert_first(memo_t *memo, const entry_t *entry, unsigned n_later) {
    memmove(memo->entries + 1, memo->entries, n_later * sizeof *entry);
    memo->entries[0] = *entry;
}

pp_memory_t *pp_memo_find(PyObject *capsule, PyObject *object, bool is_blob, const void *start, uint64_t size, pp_common_t *out) {
    memo_t *memo = PyCapsule_GetPointer(capsule, NULL);
    if (size < PP_COMMON_MIN || (!is_blob && !memo->takes_buffers) || memo->channel->segment->arena_bytes != PP_ARENA_BYTES)
        return NULL;
    for (unsigned i = 0; i < memo->n; i++) {
        entry_t found = memo->entries[i];
        if (found.object != object || found.start != start || found.common.size != size)
            continue;
        insert_first(memo, &found, i);
        *out = found.common;
        return pp_memory_ref(found.pin);
    }
    if (!is_probably_common(memo, object, start))
        return NULL;
    entry_t new = {.object = object, .start = start, .common = {.number = pp_add_seq_cst(&last_number, 1) + 1, .size = size}};
    if ((new.pin = publish_object(memo, object, is_blob, start, &new.common)) == NULL) {
        PyErr_Clear();              /* the object is sent with its task instead */
        return NULL;
    }
    Py_INCREF(object);
    pp_memory_ref(new.pin);
    while (memo->n > 0 && (memo->n == ENTRIES_MAX || memo->n_bytes + size > HELD_MAX))
        drop_last(memo);
    insert_first(memo, &new, memo->n++);
    memo->n_bytes += size;
    *out = new.common;
    return new.pin;
}

/* ---- receiving ---- */

void pp_forget_common(pp_module_t *m) {
    while (m->n_common > 0) {
        PyObject *decoded = m->common[--m->n_common].decoded;
        m->common[m->n_common].decoded = NULL;
        Py_CLEAR(m->common[m->n_common].object);
        Py_XDECREF(decoded);
    }
    m->n_common_bytes = 0;
}

static int open_common(pp_segment_t *s, const pp_common_t *common, void **start) {
    *start = (void *)common->start;
    int error = common->start ? 0 : pp_block_map(s, &common->block, start);
    return error ? (pp_raise_errno(error), -1) : 0;
}

static void close_common(pp_segment_t *s, const pp_common_t *common, void *start) {
    if (common->start == NULL)
        pp_block_unmap(s, &common->block, start);
}

static void remember_common(pp_module_t *m, const pp_common_t *common, PyObject *object) {
    if (m->n_common == PP_COMMON_KEPT || m->n_common_bytes + common->size > HELD_MAX)
        pp_forget_common(m);
    m->common[m->n_common].number = common->number;
    m->common[m->n_common++].object = Py_NewRef(object);
    m->n_common_bytes += common->size;
}

PyObject *pp_common_blob(pp_module_t *m, pp_segment_t *s, const pp_common_t *common, bool is_text, uint32_t char_max) {
    for (unsigned i = 0; i < m->n_common; i++)
        if (m->common[i].number == common->number)
            return Py_NewRef(m->common[i].object);
    void *start;
    if (open_common(s, common, &start) < 0)
        return NULL;
    PyObject *blob = is_text ? pp_new_text(start, common->size, char_max) : pp_new_bytes(start, common->size);
    close_common(s, common, start);
    if (blob)
        remember_common(m, common, blob);
    return blob;
}

PyObject *pp_common_copy(pp_segment_t *s, const pp_common_t *common) {
    void *start;
    PyObject *copy = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)common->size);
    if (copy == NULL || open_common(s, common, &start) < 0) {
        Py_XDECREF(copy);
        return NULL;
    }
    pp_copy_freely(PyByteArray_AS_STRING(copy), start, common->size);
    close_common(s, common, start);
    return copy;
}

static int index_of_blob(pp_module_t *m, PyObject *blob) {
    for (unsigned i = 0; i < m->n_common; i++)
        if (m->common[i].object == blob)
            return (int)i;
    return -1;
}

const char pp_keep_decoded_doc[] = PyDoc_STR("keep_decoded(blob, decoded)\n\n"
    "In a worker: keeps what was decoded from bytes that several tasks share, for as long as the worker keeps these bytes.\n"
    "Does nothing if it does not keep them.");
PyObject *pp_keep_decoded(PyObject *module, PyObject *args) {
    pp_module_t *m = PyModule_GetState(module);
    PyObject *blob, *decoded;
    if (!PyArg_ParseTuple(args, "OO", &blob, &decoded))
        return NULL;
    int i = index_of_blob(m, blob);
    if (i >= 0)
        Py_XSETREF(m->common[i].decoded, Py_NewRef(decoded));
    Py_RETURN_NONE;
}

const char pp_decoded_doc[] = PyDoc_STR("decoded(blob) -> object, or None\n\nReturns what `keep_decoded` has kept.");
PyObject *pp_decoded(PyObject *module, PyObject *blob) {
    pp_module_t *m = PyModule_GetState(module);
    int i = index_of_blob(m, blob);
    return Py_NewRef(i >= 0 && m->common[i].decoded ? m->common[i].decoded : Py_None);
}

/* ---- the objects of a pickle ---- */

typedef struct {                    /* the addresses of all objects that a pickler refers to, hashed with linear probing */
    size_t n, mask;
    PyObject *at[];
} members_t;

static size_t place_of(const members_t *members, PyObject *object) {
    size_t i = (size_t)((uintptr_t)object >> 4) * 0x9E3779B97F4A7C15ull >> 20;
    while (members->at[i & members->mask] && members->at[i & members->mask] != object)
        i++;
    return i & members->mask;
}

static int count_member(PyObject *object, void *n) {
    (void)object;
    ++*(size_t *)n;
    return 0;
}

static int enter_member(PyObject *object, void *members_) {
    members_t *members = members_;
    if (members->n < members->mask / 2) {
        size_t i = place_of(members, object);
        members->n += members->at[i] == NULL;
        members->at[i] = object;
    }
    return 0;
}

static void free_members(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, NULL)); }

const char pp_members_doc[] = PyDoc_STR("members(pickler) -> capsule\n\n"
    "Returns the set of all objects in a pickler's memo. It is valid while the pickler lives and pickles nothing new.");
PyObject *pp_members(PyObject *module, PyObject *pickler) {
    (void)module;
    size_t n = 0, size = 64;
    traverseproc traverse = Py_TYPE(pickler)->tp_traverse;
    if (traverse == NULL)
        return PyErr_Format(PyExc_TypeError, "a pickler is needed");
    traverse(pickler, count_member, &n);
    while (size < 2 * n + 2)
        size *= 2;
    members_t *members = PyMem_Calloc(1, sizeof *members + size * sizeof members->at[0]);
    if (members == NULL)
        return PyErr_NoMemory();
    members->mask = size - 1;
    traverse(pickler, enter_member, members);
    PyObject *capsule = PyCapsule_New(members, NULL, free_members);
    if (capsule == NULL)
        PyMem_Free(members);
    return capsule;
}

typedef struct {
    PyObject *set;
    PyTypeObject *last;
} kinds_t;

static int note_kind(PyObject *object, void *kinds_) {
    kinds_t *kinds = kinds_;
    PyTypeObject *kind = Py_TYPE(object);
    if (kind == kinds->last)
        return 0;
    kinds->last = kind;
    return PySet_Add(kinds->set, (PyObject *)kind);
}

const char pp_kinds_doc[] = PyDoc_STR("kinds(pickler) -> set\n\n"
    "Returns the types of all objects that a pickler has pickled, except numbers, True, False and None, and some others.");
PyObject *pp_kinds(PyObject *module, PyObject *pickler) {
    (void)module;
    kinds_t kinds = {.set = PySet_New(NULL)};
    traverseproc traverse = Py_TYPE(pickler)->tp_traverse;
    if (traverse == NULL)
        PyErr_SetString(PyExc_TypeError, "a pickler is needed");
    if (kinds.set && (traverse == NULL || traverse(pickler, note_kind, &kinds) < 0))
        Py_CLEAR(kinds.set);
    return kinds.set;
}

static PyObject *find_member(PyObject *pair, PyObject *object) {
    const members_t *members = PyCapsule_GetPointer(PyTuple_GET_ITEM(pair, 0), NULL);
    if (members->at[place_of(members, object)] == NULL)
        Py_RETURN_NONE;
    return PyObject_CallOneArg(PyTuple_GET_ITEM(pair, 1), object);
}

static PyMethodDef find_member_def = {"persistent_id", find_member, METH_O, NULL};

const char pp_find_member_doc[] = PyDoc_STR("find_member(members, index_of) -> persistent_id\n\n"
    "Returns a function for another pickler that calls `index_of` with each object that `members` contains.");
PyObject *pp_find_member(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *members, *index_of;
    if (!PyArg_ParseTuple(args, "O!O", &PyCapsule_Type, &members, &index_of))
        return NULL;
    return PyCFunction_New(&find_member_def, args);
}
