/* The typed encoding, for values that need no pickle.
 *
 * It encodes trees of tuples, lists and dicts with numbers, strings and bytes in them. Lists that contain only floats, or only
 * ints that fit 64 bits, become arrays of machine numbers. NumPy's arrays of plain numbers are supported; subclasses of these
 * types are not. An object that occurs twice in a value is one object on the other side, too: writer and reader number the
 * objects that may occur again, in the order in which they begin. The identity of floats and ints is not preserved: each
 * place gets an object of its own, as with pickle.
 *
 * Large parts are *leaves*, which travel beside the rest. A list among them is read only when its numbers are written into
 * their block. If another thread has changed it meanwhile, the writer notices that and encodes the value again.
 *
 *     0x01 node      node: 'T' n node...   a tuple
 *                          'L' n node...   a list
 *                          'D' n node...   the keys and values of a dict
 *                          'R' n           object number n again
 *                          't', 'm'        as 'T' and 'M', and the object has a number
 *                          'M' n bytes     a value encoded by marshal
 *                          'f' n doubles, 'q' n int64: a list of these numbers
 *                          'B' leaf        bytes
 *                          'S' leaf largest-character: a str
 *                          'F', 'Q', 'N' leaf: a list of floats, of ints, of the kind of the leaf
 *                          'A' leaf flags type n_dims dims...: an array
 */
#include "python.h"

#include <marshal.h>
#include <string.h>

#define DEPTH 4
#define ITEMS_MAX 64            /* of a tuple, a dict, or a list that is not all numbers */
#define LARGE_MIN 512           /* numbers in a list; pickle is as fast for fewer */
#define SEEN_MAX 128            /* objects of one value that have a number; each is compared with all others */
#define N_SAMPLES 4
#define ARRAY_TYPES "?bBhHiIlLqQefd"
enum { READ_ONLY = 1, FORTRAN = 2 };

typedef struct {
    pp_module_t *module;
    char *data;
    size_t size, capacity;
    PyObject *leaves;
    PyObject *seen[SEEN_MAX];
    bool is_open[SEEN_MAX];     /* an incomplete tuple, which the reader could not refer to yet */
    int n_seen;
    bool snapshot, has_large;   /* has_large: it has a large part; pickle is as fast for small ones */
} writer_t;

enum { FAILED = -1, NOT_FLAT = 0, FLAT = 1 };

/* ---- writing ---- */

static char *reserve_bytes(writer_t *w, size_t n) {
    if (w->size + n > w->capacity) {
        size_t capacity = 2 * (w->size + n) + 256;
        char *grown = PyMem_Realloc(w->data, capacity);
        if (grown == NULL)
            return (char *)PyErr_NoMemory();
        w->data = grown;
        w->capacity = capacity;
    }
    w->size += n;
    return w->data + w->size - n;
}

static int write_head(writer_t *w, char code, uint32_t n) {
    char *to = reserve_bytes(w, 5);
    if (to == NULL)
        return FAILED;
    to[0] = code;
    memcpy(to + 1, &n, 4);
    return FLAT;
}

static int write_leaf(writer_t *w, char code, PyObject *leaf) {
    if (PyList_Append(w->leaves, leaf) < 0)
        return FAILED;
    return write_head(w, code, (uint32_t)PyList_GET_SIZE(w->leaves) - 1);
}

static int write_marshal(writer_t *w, PyObject *value) {
    PyObject *bytes = PyMarshal_WriteObjectToString(value, PP_MARSHAL_VERSION);
    if (bytes == NULL)
        return FAILED;
    size_t n = (size_t)PyBytes_GET_SIZE(bytes);
    int done = write_head(w, 'M', (uint32_t)n);
    char *to = done == FLAT ? reserve_bytes(w, n) : NULL;
    if (to)
        memcpy(to, PyBytes_AS_STRING(bytes), n);
    Py_DECREF(bytes);
    return to ? FLAT : FAILED;
}

bool pp_get_int64(PyObject *item, int64_t *out) {
    int overflow = 0;
    if (Py_TYPE(item) != &PyLong_Type)
        return false;
    if (PyUnstable_Long_IsCompact((PyLongObject *)item))
        *out = PyUnstable_Long_CompactValue((PyLongObject *)item);
    else
        *out = PyLong_AsLongLongAndOverflow(item, &overflow);
    return !overflow;
}

/* Writes the n items of a list, if all are floats, and returns whether they are. Called in a critical section of the list. */
static bool fill_floats(PyObject *list, Py_ssize_t n, char *to) {
    if (PyList_GET_SIZE(list) != n)
        return false;
    for (Py_ssize_t i = 0; i < n; i++, to += 8) {
        PyObject *item = PyList_GET_ITEM(list, i);
        if (Py_TYPE(item) != &PyFloat_Type)
            return false;
        memcpy(to, &((PyFloatObject *)item)->ob_fval, 8);
    }
    return true;
}

static bool fill_ints(PyObject *list, Py_ssize_t n, char *to) {
    if (PyList_GET_SIZE(list) != n)
        return false;
    int64_t number;
    for (Py_ssize_t i = 0; i < n; i++, to += 8) {
        if (!pp_get_int64(PyList_GET_ITEM(list, i), &number))
            return false;
        memcpy(to, &number, 8);
    }
    return true;
}

static bool fill(PyObject *list, pp_leaf_kind_t kind, Py_ssize_t n, char *to) {
    bool done;
    Py_BEGIN_CRITICAL_SECTION(list);
    done = kind == PP_LEAF_FLOATS ? fill_floats(list, n, to) : fill_ints(list, n, to);
    Py_END_CRITICAL_SECTION();
    return done;
}

/* Guesses the kind of a list by some of its items, so that lists of other objects are not searched in vain. */
static pp_leaf_kind_t guess_kind(PyObject *list) {
    pp_leaf_kind_t kind = PP_LEAF_RAW;
    Py_BEGIN_CRITICAL_SECTION(list);
    Py_ssize_t n = PyList_GET_SIZE(list);
    PyTypeObject *type = n ? Py_TYPE(PyList_GET_ITEM(list, 0)) : NULL;
    if (type == &PyFloat_Type || type == &PyLong_Type)
        kind = type == &PyFloat_Type ? PP_LEAF_FLOATS : PP_LEAF_INTS;
    for (Py_ssize_t i = 1; i < N_SAMPLES && n > 0; i++)
        if (Py_TYPE(PyList_GET_ITEM(list, i * (n - 1) / (N_SAMPLES - 1))) != type)
            kind = PP_LEAF_RAW;
    Py_END_CRITICAL_SECTION();
    return kind;
}

bool pp_write_list(PyObject *list, pp_leaf_kind_t kind, size_t n_bytes, char *to) {
    return fill(list, kind, (Py_ssize_t)(n_bytes / 8), to);
}

pp_leaf_kind_t pp_list_kind(PyObject *list) { return guess_kind(list); }

static int write_numbers(writer_t *w, PyObject *list, pp_leaf_kind_t kind) {
    Py_ssize_t n = PyList_GET_SIZE(list);
    bool are_floats = kind == PP_LEAF_FLOATS;
    if (n * 8 < PP_OUT_OF_BAND_MIN) {
        size_t before = w->size;
        char *to = write_head(w, are_floats ? 'f' : 'q', (uint32_t)n) == FLAT ? reserve_bytes(w, (size_t)n * 8) : NULL;
        if (to == NULL)
            return FAILED;
        if (fill(list, kind, n, to))
            return FLAT;
        w->size = before;
        return NOT_FLAT;
    }
    if (!w->snapshot)
        return write_leaf(w, 'N', list);
    PyObject *copy = PyByteArray_FromStringAndSize(NULL, n * 8);   /* not bytes, which may be lent and received as bytes */
    if (copy == NULL)
        return FAILED;
    int done = fill(list, kind, n, PyByteArray_AS_STRING(copy)) ? write_leaf(w, are_floats ? 'F' : 'Q', copy) : NOT_FLAT;
    Py_DECREF(copy);
    return done;
}

/* The number of an object that was written before. Otherwise assigns it a number, if one is left, and returns -1. */
static int number_of(writer_t *w, PyObject *object) {
    for (int i = 0; i < w->n_seen; i++)
        if (w->seen[i] == object)
            return i;
    if (w->n_seen < SEEN_MAX)
        w->seen[w->n_seen] = object;
    w->n_seen++;
    return -1;
}

/* Whether an object needs a number because it may occur again. Two references are those of its container and of the writer;
 * any other may be from another place in the value. The outermost value, which is in no container, always has a number. */
static bool may_recur(const writer_t *w, PyObject *object) {
    if (w->size == 1)
        return true;
    if (PyUnicode_CheckExact(object))
        return PyUnicode_GET_LENGTH(object) > 1 && Py_REFCNT(object) > 2;
    if (PyBytes_CheckExact(object))
        return PyBytes_GET_SIZE(object) > 1 && Py_REFCNT(object) > 2;
    return Py_REFCNT(object) > 2;
}

static bool is_array(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    return !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && strcmp(type->tp_name, "numpy.ndarray") == 0;
}

/* Whether the array's dtype has metadata. That is rare, and left to pickle. */
static int has_metadata(PyObject *array) {
    PyObject *type = PyObject_GetAttrString(array, "dtype");
    PyObject *metadata = type ? PyObject_GetAttrString(type, "metadata") : NULL;
    int has = metadata ? metadata != Py_None : -1;
    Py_XDECREF(metadata);
    Py_XDECREF(type);
    return has;
}

/* Whether an array would be contiguous if its axes were in another order. Pickle preserves such an order. */
static bool is_permuted(const Py_buffer *view) {
    Py_ssize_t expected = view->itemsize;
    bool used[PyBUF_MAX_NDIM] = {false};
    for (int n = 0; n < view->ndim; n++) {
        int axis = 0;
        while (axis < view->ndim && (used[axis] || (view->shape[axis] > 1 && view->strides[axis] != expected)))
            axis++;
        if (axis == view->ndim)
            return false;
        used[axis] = true;
        expected *= view->shape[axis];
    }
    return true;
}

static int write_view(writer_t *w, PyObject *memory) {
    const Py_buffer *view = PyMemoryView_GET_BUFFER(memory);
    bool is_complex = view->format && view->format[0] == 'Z';
    const char *format = view->format ? view->format + is_complex : "";
    if (format[0] == 0 || format[1] != 0 || strchr(is_complex ? "fd" : ARRAY_TYPES, format[0]) == NULL ||
        view->len < (Py_ssize_t)PP_OUT_OF_BAND_MIN || view->suboffsets)
        return NOT_FLAT;
    bool is_c = PyBuffer_IsContiguous(view, 'C'), is_fortran = !is_c && PyBuffer_IsContiguous(view, 'F');
    int done = is_c || is_fortran || !is_permuted(view) ? write_leaf(w, 'A', memory) : NOT_FLAT;
    char *to = done == FLAT ? reserve_bytes(w, 3 + 8 * (size_t)view->ndim) : NULL;
    if (to == NULL)
        return done == FLAT ? FAILED : done;
    to[0] = (char)((view->readonly && (is_c || is_fortran) ? READ_ONLY : 0) | (is_fortran ? FORTRAN : 0));
    to[1] = is_complex ? (format[0] == 'f' ? 'F' : 'D') : format[0];
    to[2] = (char)view->ndim;
    for (int i = 0; i < view->ndim; i++) {
        int64_t n = view->shape[i];
        memcpy(to + 3 + 8 * i, &n, 8);
    }
    return FLAT;
}

/* While the view exists, no other thread can resize the array. */
static int write_array(writer_t *w, PyObject *array) {
    int unusual = has_metadata(array);
    if (unusual)
        return unusual < 0 ? FAILED : NOT_FLAT;
    PyObject *memory = PyMemoryView_FromObject(array);
    if (memory == NULL) {           /* a dtype that exports no buffer, such as objects or dates */
        PyErr_Clear();
        return NOT_FLAT;
    }
    int done = write_view(w, memory);
    Py_DECREF(memory);
    return done;
}

static int write_node(writer_t *w, PyObject *value, int depth);

static int write_items(writer_t *w, char code, PyObject *items, int depth) {
    bool is_list = code == 'L';
    Py_ssize_t n = is_list ? PyList_GET_SIZE(items) : PyTuple_GET_SIZE(items);
    if (n > ITEMS_MAX || depth == 0)
        return NOT_FLAT;
    int done = write_head(w, code, (uint32_t)n);
    for (Py_ssize_t i = 0; done == FLAT && i < n; i++) {
        if (is_list && PyList_GET_SIZE(items) != n)
            return NOT_FLAT;
        PyObject *item = Py_NewRef(is_list ? PyList_GET_ITEM(items, i) : PyTuple_GET_ITEM(items, i));
        done = write_node(w, item, depth - 1);
        Py_DECREF(item);
    }
    return done;
}

static int write_list(writer_t *w, PyObject *list, int depth) {
    pp_leaf_kind_t kind = guess_kind(list);
    if (kind == PP_LEAF_RAW)
        return write_items(w, 'L', list, depth);
    int done = write_numbers(w, list, kind);
    return done == NOT_FLAT ? write_items(w, 'L', list, depth) : done;
}

static bool is_large_value(PyObject *value) {
    return pp_is_blob(value) || is_array(value) || (PyList_CheckExact(value) && PyList_GET_SIZE(value) >= LARGE_MIN);
}

static bool has_large_value(PyObject *items) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++)
        if (is_large_value(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1)))
            return true;
    return false;
}

static int write_entries(writer_t *w, PyObject *items, int depth) {
    int done = write_head(w, 'D', (uint32_t)PyList_GET_SIZE(items));
    for (Py_ssize_t i = 0; done == FLAT && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        done = write_node(w, PyTuple_GET_ITEM(item, 0), 0);
        if (done == FLAT)
            done = write_node(w, PyTuple_GET_ITEM(item, 1), depth - 1);
    }
    return done;
}

static int write_dict(writer_t *w, PyObject *dict, int depth) {
    if (PyDict_GET_SIZE(dict) > ITEMS_MAX || depth == 0)
        return NOT_FLAT;
    PyObject *items = PyDict_Items(dict);
    if (items == NULL)
        return FAILED;
    w->has_large = w->has_large || has_large_value(items);
    int done = w->has_large || PyList_GET_SIZE(items) == 0 ? write_entries(w, items, depth) : NOT_FLAT;
    Py_DECREF(items);
    return done;
}

static int write_text(writer_t *w, PyObject *text) {
    uint32_t char_max = PyUnicode_MAX_CHAR_VALUE(text);
    int done = write_leaf(w, 'S', text);
    char *to = done == FLAT ? reserve_bytes(w, sizeof char_max) : NULL;
    if (to == NULL)
        return done == FLAT ? FAILED : done;
    memcpy(to, &char_max, sizeof char_max);
    return FLAT;
}

/* Writes a tuple or a small simple value, which has a number only if it may occur again. */
static int write_plain(writer_t *w, PyObject *value, int depth, bool has_number) {
    int number = w->n_seen - 1;
    size_t at = w->size;
    bool is_tuple = Py_TYPE(value) == &PyTuple_Type && PyTuple_GET_SIZE(value) > 0;
    if (has_number)
        w->is_open[number] = is_tuple;
    int done = is_tuple ? write_items(w, 'T', value, depth) : pp_is_simple(value, 0) ? write_marshal(w, value) : NOT_FLAT;
    if (has_number && done == FLAT) {
        w->data[at] = is_tuple ? 't' : 'm';
        w->is_open[number] = false;
    }
    return done;
}

static int write_node(writer_t *w, PyObject *value, int depth) {
    PyTypeObject *type = Py_TYPE(value);
    bool is_plain = type != &PyList_Type && type != &PyDict_Type && !pp_is_blob(value) && !is_array(value);
    bool is_object = type == &PyTuple_Type ? PyTuple_GET_SIZE(value) > 0 : type == &PyUnicode_Type || type == &PyBytes_Type;
    bool has_number = !is_plain || (is_object && may_recur(w, value));
    if (has_number) {
        int number = number_of(w, value);
        if (number >= 0)
            return w->is_open[number] ? NOT_FLAT : write_head(w, 'R', (uint32_t)number);
        if (w->n_seen > SEEN_MAX)
            return NOT_FLAT;
    }
    if (is_plain)
        return write_plain(w, value, depth, has_number);
    if (type == &PyList_Type)
        return write_list(w, value, depth);
    if (type == &PyDict_Type)
        return write_dict(w, value, depth);
    if (is_array(value))
        return write_array(w, value);
    return type == &PyBytes_Type ? write_leaf(w, 'B', value) : write_text(w, value);
}

int pp_flatten(pp_module_t *m, PyObject *value, bool snapshot, PyObject **payload) {
    writer_t w = {.module = m, .snapshot = snapshot, .leaves = PyList_New(0)};
    char *start = w.leaves ? reserve_bytes(&w, 1) : NULL;
    int done = FAILED;
    if (start) {
        *start = PP_FLAT_START;
        done = write_node(&w, value, DEPTH);
    }
    if (done == FLAT && (*payload = PyBytes_FromStringAndSize(w.data, (Py_ssize_t)w.size)) == NULL)
        done = FAILED;
    if (done == FLAT && PyList_GET_SIZE(w.leaves) > 0)
        Py_SETREF(*payload, PyTuple_Pack(2, *payload, w.leaves));
    PyMem_Free(w.data);
    Py_XDECREF(w.leaves);
    return done == FLAT && *payload == NULL ? FAILED : done;
}

/* ---- reading ---- */

typedef struct {
    pp_module_t *module;
    const char *at;
    pp_leaves_t *leaves;
    PyObject *seen[SEEN_MAX];   /* by number; borrowed from the value that is being built */
    int n_seen;
} reader_t;

static uint32_t read_u32(reader_t *r) {
    uint32_t n;
    memcpy(&n, r->at, 4);
    r->at += 4;
    return n;
}

static PyObject *make_floats(const char *from, Py_ssize_t n) {
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++, from += 8) {
        double number;
        memcpy(&number, from, 8);
        PyObject *item = PyFloat_FromDouble(number);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *make_ints(const char *from, Py_ssize_t n) {
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++, from += 8) {
        int64_t number;
        memcpy(&number, from, 8);
        PyObject *item = PyLong_FromLongLong(number);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *read_numbers(reader_t *r, pp_leaf_kind_t kind) {
    uint32_t leaf = read_u32(r);
    uint64_t size = r->leaves->size[leaf] & PP_LEAF_SIZE;
    if (kind == PP_LEAF_RAW)
        kind = (pp_leaf_kind_t)(r->leaves->size[leaf] >> PP_LEAF_SHIFT);
    const char *from = pp_leaf_start(r->leaves, leaf);
    return kind == PP_LEAF_FLOATS ? make_floats(from, (Py_ssize_t)(size / 8)) : make_ints(from, (Py_ssize_t)(size / 8));
}

static PyObject *read_blob(reader_t *r, bool is_text) {
    uint32_t leaf = read_u32(r), char_max = is_text ? read_u32(r) : 0;
    return pp_leaf_blob(r->module, r->leaves, leaf, is_text, char_max);
}

static PyObject *find_array_type(pp_module_t *m) {
    if (m->array_type)
        return m->array_type;
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *type = numpy ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
    Py_XDECREF(numpy);
    if (m->array_type == NULL)   /* the import may have let another thread do the same */
        m->array_type = Py_XNewRef(type);
    Py_XDECREF(type);
    return m->array_type;
}

static PyObject *read_shape(reader_t *r, int n_dims) {
    PyObject *shape = PyTuple_New(n_dims);
    for (int i = 0; shape && i < n_dims; i++, r->at += 8) {
        int64_t n;
        memcpy(&n, r->at, 8);
        PyObject *number = PyLong_FromLongLong(n);
        if (number == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, number);
    }
    return shape;
}

static PyObject *read_array(reader_t *r) {
    uint32_t leaf = read_u32(r);
    int flags = r->at[0], type = r->at[1], n_dims = r->at[2];
    r->at += 3;
    PyObject *shape = read_shape(r, n_dims), *array_type = find_array_type(r->module), *array = NULL;
    PyObject *buffer = shape && array_type ? pp_leaf_buffer(r->module, r->leaves, leaf) : NULL;
    if (buffer && flags & READ_ONLY)
        Py_SETREF(buffer, pp_read_only(buffer));
    if (buffer)
        array = PyObject_CallFunction(array_type, "OCOiOC", shape, type, buffer, 0, Py_None, flags & FORTRAN ? 'F' : 'C');
    Py_XDECREF(buffer);
    Py_XDECREF(shape);
    return array;
}

static PyObject *read_marshal(reader_t *r) {
    uint32_t n = read_u32(r);
    r->at += n;
    return PyMarshal_ReadObjectFromString(r->at - n, (Py_ssize_t)n);
}

static PyObject *read_node(reader_t *r);

static PyObject **new_number(reader_t *r) {
    r->seen[r->n_seen] = NULL;
    return &r->seen[r->n_seen++];
}

static PyObject *read_items(reader_t *r, bool is_list) {
    Py_ssize_t n = (Py_ssize_t)read_u32(r);
    PyObject *items = is_list ? PyList_New(n) : PyTuple_New(n);
    if (is_list)
        *new_number(r) = items;
    for (Py_ssize_t i = 0; items && i < n; i++) {
        PyObject *item = read_node(r);
        if (item == NULL)
            Py_CLEAR(items);
        else if (is_list)
            PyList_SET_ITEM(items, i, item);
        else
            PyTuple_SET_ITEM(items, i, item);
    }
    return items;
}

static PyObject *read_entries(reader_t *r) {
    uint32_t n = read_u32(r);
    PyObject *dict = PyDict_New();
    *new_number(r) = dict;
    for (uint32_t i = 0; dict && i < n; i++) {
        PyObject *key = read_node(r), *value = key ? read_node(r) : NULL;
        if (value == NULL || PyDict_SetItem(dict, key, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *read_inline(reader_t *r, bool are_floats) {
    Py_ssize_t n = (Py_ssize_t)read_u32(r);
    const char *from = r->at;
    r->at += 8 * n;
    return are_floats ? make_floats(from, n) : make_ints(from, n);
}

static PyObject *read_again(reader_t *r) { return Py_XNewRef(r->seen[read_u32(r)]); }

/* Reads an object that has a number. */
static PyObject *read_numbered(reader_t *r, PyObject *(*read)(reader_t *r)) {
    PyObject **seen = new_number(r);
    return *seen = read(r);
}

static PyObject *read_tuple(reader_t *r) { return read_items(r, false); }
static PyObject *read_floats_inline(reader_t *r) { return read_inline(r, true); }
static PyObject *read_ints_inline(reader_t *r) { return read_inline(r, false); }
static PyObject *read_bytes(reader_t *r) { return read_blob(r, false); }
static PyObject *read_text(reader_t *r) { return read_blob(r, true); }
static PyObject *read_floats(reader_t *r) { return read_numbers(r, PP_LEAF_FLOATS); }
static PyObject *read_ints(reader_t *r) { return read_numbers(r, PP_LEAF_INTS); }
static PyObject *read_any_numbers(reader_t *r) { return read_numbers(r, PP_LEAF_RAW); }

static PyObject *read_node(reader_t *r) {
    char code = *r->at++;
    switch (code) {
    case 'T': return read_tuple(r);
    case 't': return read_numbered(r, read_tuple);
    case 'L': return read_items(r, true);
    case 'D': return read_entries(r);
    case 'M': return read_marshal(r);
    case 'm': return read_numbered(r, read_marshal);
    case 'R': return read_again(r);
    case 'f': return read_numbered(r, read_floats_inline);
    case 'q': return read_numbered(r, read_ints_inline);
    case 'B': return read_numbered(r, read_bytes);
    case 'S': return read_numbered(r, read_text);
    case 'F': return read_numbered(r, read_floats);
    case 'Q': return read_numbered(r, read_ints);
    case 'N': return read_numbered(r, read_any_numbers);
    case 'A': return read_numbered(r, read_array);
    default: return PyErr_Format(PyExc_SystemError, "a flat value has no node '%c'", code);
    }
}

PyObject *pp_unflatten(pp_module_t *m, const void *data, pp_leaves_t *leaves) {
    reader_t r = {.module = m, .at = (const char *)data + 1, .leaves = leaves};
    return read_node(&r);
}
