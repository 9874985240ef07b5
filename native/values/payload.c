/* Payloads in memory. Small ones lie in a ring, the others in a block. A block contains a u64 number of leaves, a u64 size of
 * the rest and of each leaf, and then the rest and the leaves, each aligned to a cache line. The top byte of a leaf's size
 * is its kind. */
#include "python.h"

#include <errno.h>
#include <string.h>

#define ALIGN(n) (((n) + 63) & ~63ull)
#define GIL_FREE_MIN (1u << 18)         /* copies of at least this size (some 50 us) release the GIL */

void pp_copy_freely(void *to, const void *from, size_t size) {
    if (size < GIL_FREE_MIN) {
        memcpy(to, from, size);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    pp_copy(to, from, size, -1);
    Py_END_ALLOW_THREADS
}

/* For blocks of this size, malloc gets new pages from the system each time and returns them afterwards. A copy of 64 MB into
 * such pages takes 33 ms with pages of 4 KB, and 8 ms with pages of 2 MB. */
#define FRESH_MIN (32u << 20)

static void fill_blob(char *to, const char *from, size_t size) {
    if (size >= FRESH_MIN)
        pp_prefer_huge_pages(to, size);
    pp_copy_freely(to, from, size);
}

PyObject *pp_new_bytes(const char *from, size_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes)
        fill_blob(PyBytes_AS_STRING(bytes), from, size);
    return bytes;
}

PyObject *pp_new_text(const char *from, size_t size, Py_UCS4 char_max) {
    size_t char_size = char_max < 0x100 ? 1 : char_max < 0x10000 ? 2 : 4;
    PyObject *text = PyUnicode_New((Py_ssize_t)(size / char_size), char_max);
    if (text)
        fill_blob(PyUnicode_DATA(text), from, size);
    return text;
}

/* Copies a view in C order. Returns 0, or -1 with an exception. */
static int copy_view(void *to, const Py_buffer *view, int n_helpers) {
    pp_layout_t layout = {.item = (size_t)view->itemsize, .n_dims = view->ndim};
    if (view->ndim > PP_DIMS_MAX || view->suboffsets)
        return PyBuffer_ToContiguous(to, view, view->len, 'C');
    for (int i = 0; i < view->ndim; i++) {
        layout.shape[i] = (size_t)view->shape[i];
        layout.strides[i] = view->strides[i];
    }
    Py_BEGIN_ALLOW_THREADS
    pp_copy_strided(to, view->buf, &layout, n_helpers);
    Py_END_ALLOW_THREADS
    return 0;
}

const char pp_copy_doc[] = PyDoc_STR("copy(target, source, n_helpers=-1)\n\nCopies a buffer of any layout into contiguous memory, in C order, as values are\n"
                                     "on their way to workers. n_helpers: how many idle cores take part; -1: as many as there are.");
PyObject *pp_copy_buffer(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *target, *source;
    Py_buffer to, from;
    int n_helpers = -1;
    if (!PyArg_ParseTuple(args, "OO|i", &target, &source, &n_helpers) || PyObject_GetBuffer(target, &to, PyBUF_CONTIG) < 0)
        return NULL;
    if (PyObject_GetBuffer(source, &from, PyBUF_STRIDED_RO) < 0) {
        PyBuffer_Release(&to);
        return NULL;
    }
    int failed = 0;
    if (to.len != from.len) {
        failed = -1;
        PyErr_Format(PyExc_ValueError, "target has %zd bytes, source has %zd", to.len, from.len);
    } else {
        failed = copy_view(to.buf, &from, n_helpers);
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *pp_n_helped(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLongLong(pp_copy_n_helped());
}

/* ---- writing ---- */

typedef struct {
    pp_memory_t *loan;     /* of memory: a reference, which the receiver takes over */
    uint64_t at, size;     /* the part that is meant */
} lent_memory_t;

typedef struct {
    PyObject *list;        /* numbers to write */
    const char *blob;      /* the content of bytes or a str; otherwise `view` is used */
    Py_buffer view;
    pp_leaf_kind_t kind;
    uint64_t size;
    pp_handle_t handle;    /* PP_LEAF_SHARED */
    pp_common_t common;    /* PP_LEAF_COMMON */
    pp_memory_t *loan;     /* PP_LEAF_LENT; is_given: the object itself is lent, not a copy */
    lent_memory_t memory;  /* PP_LEAF_LENT_MEMORY */
    pp_memory_t *moved_to; /* the same: memory into which the view's content has yet to be moved, or NULL */
    bool is_given;
} part_t;

static void drop_blob(void *blob) { Py_DECREF((PyObject *)blob); }

static PyObject *copy_blob(PyObject *blob, const part_t *p) {
    return PyBytes_Check(blob) ? pp_new_bytes(p->blob, p->size) : pp_new_text(p->blob, p->size, PyUnicode_MAX_CHAR_VALUE(blob));
}

/* Bytes and strings of this size are allocated from the heap of the process, and not by their interpreter. An object without
 * other references may therefore move to another interpreter without a copy. Any other object is copied once. */
static int lend(PyObject *blob, part_t *p, pp_pins_t **pins) {
    PyObject *object = p->is_given ? Py_NewRef(blob) : copy_blob(blob, p);
    if (object == NULL)
        return -1;
    if (pp_memory_lend(object, p->size, drop_blob, &p->loan) != 0) {
        Py_DECREF(object);
        PyErr_NoMemory();
        return -1;
    }
    p->kind = PP_LEAF_LENT;
    p->size = sizeof p->loan;
    return pp_pins_add(pins, p->loan) == 0 ? 0 : (PyErr_NoMemory(), -1);
}

static void drop_memory(void *memory) { pp_memory_unref(memory); }

/* Lends memory, to which it takes over the reference. */
static int lend_memory(pp_memory_t *memory, uint64_t at, part_t *p, pp_pins_t **pins) {
    p->memory = (lent_memory_t){.at = at, .size = p->size};
    if (pp_memory_lend(memory, p->size, drop_memory, &p->memory.loan) != 0) {
        pp_memory_unref(memory);
        PyErr_NoMemory();
        return -1;
    }
    p->kind = PP_LEAF_LENT_MEMORY;
    p->size = sizeof p->memory;
    p->is_given = true;
    return pp_pins_add(pins, p->memory.loan) == 0 ? 0 : (PyErr_NoMemory(), -1);
}

static pp_memory_t *memory_of(PyObject *array, part_t *p, uint64_t *at) {
    if (p->size < FRESH_MIN || !pp_array_has_own_memory(array))
        return pp_array_received_in(array, &p->view, at);
    return pp_memory_reserve(p->view.buf, p->size, &p->moved_to) == 0 ? p->moved_to : NULL;
}

/* An array to which nothing else refers goes away as soon as it is written, so its memory may change hands, too:
 *
 * - A block that the array's interpreter keeps belongs to the process. The receiver gets the reference.
 * - What NumPy has allocated it will free, but its pages are moved to memory of the receiver's before that. Smaller
 *   arrays lie in a heap that is used again, where fresh pages cost more than a copy.
 *
 * The array's two references are the giver's and the view's. No other thread runs in this interpreter until it is gone. */
static int hand_array_over(PyObject *array, part_t *p, pp_pins_t **pins) {
    uint64_t at = 0;
    pp_memory_t *memory = p->size < PP_KEEP_MIN ? NULL : memory_of(array, p, &at);
    if (memory && Py_REFCNT(array) == 2)
        return lend_memory(memory, at, p, pins);
    pp_memory_unref(memory);
    p->moved_to = NULL;
    return 0;
}

static void give_away(PyObject *leaves, PyObject **given) {
    PyList_SetItem(leaves, 0, Py_NewRef(Py_None));
    Py_CLEAR(*given);      /* only the loan's reference is left */
}

/* Returns 1 if the object is common to several tasks, 0 if not, and -1 with an exception. */
static int find_common(PyObject *memo, PyObject *object, bool is_blob, const void *start, part_t *p, pp_pins_t **pins) {
    pp_memory_t *pin = memo ? pp_memo_find(memo, object, is_blob, start, p->size, &p->common) : NULL;
    if (pin == NULL)
        return 0;
    p->kind = PP_LEAF_COMMON;
    p->size = sizeof p->common;
    return pp_pins_add(pins, pin) == 0 ? 1 : (PyErr_NoMemory(), -1);
}

static PyObject *owner_of(PyObject *leaf, const Py_buffer *view) {
    return PyMemoryView_Check(leaf) ? PyMemoryView_GET_BUFFER(leaf)->obj : view->obj;
}

static int open_part(pp_arena_t *arena, PyObject *leaf, bool lends, PyObject **given, PyObject *memo, part_t *p, pp_pins_t **pins) {
    int found;
    *p = (part_t){.kind = PP_LEAF_RAW};
    if (pp_is_blob(leaf)) {
        bool is_text = PyUnicode_Check(leaf);
        p->blob = is_text ? PyUnicode_DATA(leaf) : PyBytes_AS_STRING(leaf);
        p->size = is_text ? (uint64_t)PyUnicode_GET_LENGTH(leaf) * PyUnicode_KIND(leaf) : (uint64_t)PyBytes_GET_SIZE(leaf);
        /* The two references are the giver's and the one in the list of leaves. */
        p->is_given = given && leaf == *given && Py_REFCNT(leaf) == 2 && !(is_text && PyUnicode_CHECK_INTERNED(leaf));
        if ((found = find_common(memo, leaf, true, p->blob, p, pins)) != 0)
            return found < 0 ? found : 0;
        return lends ? lend(leaf, p, pins) : 0;
    }
    if (PyList_CheckExact(leaf)) {
        p->list = leaf;
        p->kind = pp_list_kind(leaf);
        p->size = 8 * (uint64_t)PyList_GET_SIZE(leaf);
        return p->kind == PP_LEAF_RAW ? ESTALE : 0;
    }
    if (PyObject_GetBuffer(leaf, &p->view, PyMemoryView_Check(leaf) ? PyBUF_STRIDED_RO : PyBUF_ANY_CONTIGUOUS) < 0)
        return -1;
    p->size = (uint64_t)p->view.len;
    pp_memory_t *memory;
    if (!PyBuffer_IsContiguous(&p->view, 'A'))
        return 0;
    if (pp_memory_find(p->view.buf, p->size, &p->handle, &memory)) {
        p->kind = PP_LEAF_SHARED;
        p->size = sizeof p->handle;
        int error = pp_arena_is_attached(arena) ? pp_memory_give(memory) : 0;
        found = pp_pins_add(pins, memory) == 0 ? 0 : (PyErr_NoMemory(), -1);
        if (error && found == 0)
            found = (pp_raise_errno(error), -1);
    } else {
        found = find_common(memo, owner_of(leaf, &p->view), false, p->view.buf, p, pins);
        if (found == 0 && lends && given && PyMemoryView_Check(leaf) && owner_of(leaf, &p->view) == *given)
            found = hand_array_over(*given, p, pins);
    }
    if (found < 0)
        PyBuffer_Release(&p->view);
    return found < 0 ? found : 0;
}

static void close_part(part_t *p) {
    if (p->list == NULL && p->blob == NULL)
        PyBuffer_Release(&p->view);
}

static int write_part(const part_t *p, char *to) {
    if (p->moved_to && pp_memory_move(p->moved_to, p->view.buf) != 0)
        return ENOTSUP;
    if (p->list)
        return pp_write_list(p->list, p->kind, p->size, to) ? 0 : ESTALE;
    if (p->kind == PP_LEAF_SHARED)
        memcpy(to, &p->handle, sizeof p->handle);
    else if (p->kind == PP_LEAF_LENT)
        memcpy(to, &p->loan, sizeof p->loan);
    else if (p->kind == PP_LEAF_LENT_MEMORY)
        memcpy(to, &p->memory, sizeof p->memory);
    else if (p->kind == PP_LEAF_COMMON)
        memcpy(to, &p->common, sizeof p->common);
    else if (p->blob)
        pp_copy_freely(to, p->blob, p->size);
    else if (PyBuffer_IsContiguous(&p->view, 'A'))
        pp_copy_freely(to, p->view.buf, p->size);
    else
        return copy_view(to, &p->view, -1);
    return 0;
}

static int write_parts(PyObject *rest, const part_t *parts, Py_ssize_t n, void *memory) {
    uint64_t *sizes = memory, rest_size = (uint64_t)PyBytes_GET_SIZE(rest);
    char *to = (char *)memory + ALIGN((2 + (uint64_t)n) * 8);
    int error = 0;
    *sizes++ = (uint64_t)n;
    *sizes++ = rest_size;
    memcpy(to, PyBytes_AS_STRING(rest), rest_size);
    to += ALIGN(rest_size);
    for (Py_ssize_t i = 0; i < n && !error; i++) {
        *sizes++ = parts[i].size | (uint64_t)parts[i].kind << PP_LEAF_SHIFT;
        error = write_part(&parts[i], to);
        to += ALIGN(parts[i].size);
    }
    return error;
}

static int write_block(pp_arena_t *arena, PyObject *rest, const part_t *parts, Py_ssize_t n, pp_blockref_t *ref) {
    uint64_t size = ALIGN((2 + (uint64_t)n) * 8) + ALIGN((uint64_t)PyBytes_GET_SIZE(rest));
    for (Py_ssize_t i = 0; i < n; i++)
        size += ALIGN(parts[i].size);
    void *memory;
    int error = pp_block_open(arena, size, ref, &memory);
    if (error == EAGAIN)
        return error;
    if (error) {
        pp_raise_errno(error);
        return -1;
    }
    if ((error = write_parts(rest, parts, n, memory)) != 0)
        pp_block_drop(arena, ref);
    return error;
}

static int pack_block(pp_arena_t *arena, PyObject *payload, bool lends, PyObject **given, PyObject *memo, pp_blockref_t *ref) {
    if (!PyTuple_Check(payload))
        return write_block(arena, payload, NULL, 0, ref);
    PyObject *leaves = PyTuple_GET_ITEM(payload, 1);
    part_t *parts = PyMem_New(part_t, PyList_GET_SIZE(leaves));
    pp_pins_t *pins = NULL;
    Py_ssize_t n = 0;
    int error = 0;
    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    while (n < PyList_GET_SIZE(leaves) && !error)
        if ((error = open_part(arena, PyList_GET_ITEM(leaves, n), lends, given, memo, &parts[n], &pins)) == 0)
            n++;
    if (!error)
        error = write_block(arena, PyTuple_GET_ITEM(payload, 0), parts, n, ref);
    if (!error && n == 1 && parts[0].is_given)
        give_away(leaves, given);
    while (n-- > 0)
        close_part(&parts[n]);
    PyMem_Free(parts);
    if (pins && !error)
        pp_block_pin(arena, ref, pins);
    else
        pp_pins_free(pins);
    return error;
}

bool pp_needs_block(PyObject *payload) {
    return PyTuple_Check(payload) || PyBytes_GET_SIZE(payload) > (Py_ssize_t)PP_INLINE_MAX;
}

int pp_pack(pp_arena_t *arena, PyObject *payload, bool lends, PyObject **given, PyObject *memo, pp_packed_t *out) {
    if (pp_needs_block(payload)) {
        int error = pack_block(arena, payload, lends, given, memo, &out->block);
        if (error == ENOTSUP)   /* the memory cannot be moved */
            error = pack_block(arena, payload, lends, NULL, memo, &out->block);
        out->where = PP_IN_BLOCK;
        out->size = sizeof out->block;
        out->data = &out->block;
        return error;
    }
    out->where = PP_IN_RING;
    out->size = (uint32_t)PyBytes_GET_SIZE(payload);
    out->data = PyBytes_AS_STRING(payload);
    return 0;
}

/* ---- reading ---- */

const char *pp_leaf_start(pp_leaves_t *leaves, uint32_t leaf) {
    if (leaf < leaves->next)
        leaves->next = 0, leaves->next_at = 0;
    for (; leaves->next < leaf; leaves->next++)
        leaves->next_at += ALIGN(leaves->size[leaves->next] & PP_LEAF_SIZE);
    return leaves->data + leaves->next_at;
}

/* Makes one mapping for all leaves of a payload. If that is refused, the leaves are copied. From here on only its flag names
 * a worker's block, and the task no longer does. Once the value is gone the block may be in use again, so it must not be
 * released for the task. */
static bool keep_leaves(pp_leaves_t *leaves) {
    if (leaves->kept || leaves->keeper == 0)
        return leaves->kept != NULL;
    if (pp_memory_keep(leaves->segment, leaves->arena, &leaves->ref, leaves->keeper, &leaves->kept) != 0)
        leaves->keeper = 0;
    else if (leaves->arena == 0)
        pp_store_seq_cst(&pp_segment_worker(leaves->segment, leaves->keeper - PP_KEPT)->block, 0);
    return leaves->kept != NULL;
}

/* Reads a common buffer, which is kept or copied like others. The task's own block is kept as well, because its pins keep
 * the object. */
static PyObject *common_buffer(pp_module_t *m, pp_leaves_t *leaves, const pp_common_t *common) {
    pp_memory_t *memory;
    if (common->size >= PP_KEEP_MIN && keep_leaves(leaves) && pp_memory_keep_common(leaves->kept, &common->block, &memory) == 0)
        return pp_memory_view(m, memory, 0, common->size);
    return pp_common_copy(leaves->segment, common);
}

static void *take_loan(pp_memory_t *loan) {
    void *object = pp_memory_take(loan);
    return object ? object : PyErr_Format(PyExc_RuntimeError, "the pool ended before its data arrived");
}

static PyObject *take_blob(const char *from) {
    pp_memory_t *loan;
    memcpy(&loan, from, sizeof loan);
    return take_loan(loan);
}

static PyObject *take_memory(pp_module_t *m, const char *from) {
    lent_memory_t lent;
    memcpy(&lent, from, sizeof lent);
    pp_memory_t *memory = take_loan(lent.loan);
    return memory ? pp_memory_view(m, memory, lent.at, lent.size) : NULL;
}

PyObject *pp_leaf_buffer(pp_module_t *m, pp_leaves_t *leaves, uint32_t leaf) {
    const char *from = pp_leaf_start(leaves, leaf);
    uint64_t size = leaves->size[leaf] & PP_LEAF_SIZE;
    if (leaves->size[leaf] >> PP_LEAF_SHIFT == PP_LEAF_SHARED)
        return pp_memory_attached(m, (const pp_handle_t *)from);
    if (leaves->size[leaf] >> PP_LEAF_SHIFT == PP_LEAF_COMMON)
        return common_buffer(m, leaves, (const pp_common_t *)from);
    if (leaves->size[leaf] >> PP_LEAF_SHIFT == PP_LEAF_LENT_MEMORY)
        return take_memory(m, from);
    if (size >= PP_KEEP_MIN && keep_leaves(leaves))
        return pp_memory_view(m, pp_memory_ref(leaves->kept), (uint64_t)(from - leaves->memory), size);
    PyObject *buffer = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (buffer)
        pp_copy_freely(PyByteArray_AS_STRING(buffer), from, size);
    return buffer;
}

PyObject *pp_leaf_blob(pp_module_t *m, pp_leaves_t *leaves, uint32_t leaf, bool is_text, Py_UCS4 char_max) {
    const char *from = pp_leaf_start(leaves, leaf);
    uint64_t size = leaves->size[leaf] & PP_LEAF_SIZE;
    switch (leaves->size[leaf] >> PP_LEAF_SHIFT) {
    case PP_LEAF_LENT: return take_blob(from);
    case PP_LEAF_COMMON: return pp_common_blob(m, leaves->segment, (const pp_common_t *)from, is_text, char_max);
    default: return is_text ? pp_new_text(from, size, char_max) : pp_new_bytes(from, size);
    }
}

PyObject *pp_read_block(pp_module_t *m, pp_segment_t *s, unsigned arena, const pp_blockref_t *ref, uint32_t keeper, bool *is_kept) {
    void *memory;
    int error = pp_block_map(s, ref, &memory);
    if (error)
        return pp_raise_errno(error);
    const uint64_t *sizes = memory;
    const char *rest = (const char *)memory + ALIGN((2 + sizes[0]) * 8);
    pp_leaves_t leaves = {.n = (uint32_t)sizes[0], .size = sizes + 2, .data = rest + ALIGN(sizes[1]), .memory = memory,
                          .segment = s, .arena = arena, .ref = *ref, .keeper = keeper};
    PyObject *value = pp_decode(m, rest, sizes[1], &leaves);
    pp_block_unmap(s, ref, memory);
    if (is_kept)
        *is_kept = leaves.kept != NULL;
    pp_memory_unref(leaves.kept);
    return value;
}
