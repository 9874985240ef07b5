/* Translates values to payloads and back. Numbers, strings and tuples of them travel by marshal, the values that flat.c
 * knows in the typed encoding, and all others by pickle protocol 5 with large buffers out of band.
 *
 * marshal is part of the interpreter's core and several times faster than pickle for such values, and a fresh interpreter
 * that runs only such tasks need not import _pickle and its Python modules. A single number is sent as its eight bytes,
 * because marshal would take longer than the rest of its transport. The first byte tells the encodings apart: a pickle
 * begins with 0x80, a flat value with 0x01 and a number with 0x02 or 0x03, none of which is a type code of marshal.
 * The tasks of a call with large pickles may have bytes and strings in common (common.c). These become the last leaves,
 * and the pickle names them by number: 0x04, u32 n, u32 largest-character (0: bytes) of each, pickle.
 *
 * The common case never leaves C. Values that plain pickle refuses go to pool_party._wire.codec, whose output plain `loads`
 * understands. If a pickle names something of __main__, pool_party._wire.definitions puts the definitions that the receiver
 * lacks before it.
 */
#include "python.h"

#include <marshal.h>
#include <string.h>

#define PICKLE_START 0x80
#define INT_START 0x02
#define FLOAT_START 0x03
#define APART_START 0x04
#define MARSHAL_ITEMS 32
#define MARSHAL_OBJECTS 32              /* strings and tuples with other references; each is compared with all others */
#define LOOKED_AT_MAX 32                /* objects of a value that are examined; a larger value pays for the table */

/* Whether a buffer travels beside the pickle. A buffer in shared memory does so by name, however small it is. */
static bool is_out_of_band(const Py_buffer *view) {
    pp_handle_t handle;
    pp_memory_t *memory;
    if (view->len >= PP_OUT_OF_BAND_MIN)
        return true;
    if (!pp_memory_find(view->buf, (size_t)view->len, &handle, &memory))
        return false;
    pp_memory_unref(memory);
    return true;
}

static PyObject *collect(PyObject *buffers, PyObject *buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_ANY_CONTIGUOUS) < 0) {   /* it is not contiguous: pickle reports that itself */
        PyErr_Clear();
        Py_RETURN_TRUE;
    }
    bool in_band = !is_out_of_band(&view);
    PyBuffer_Release(&view);
    if (!in_band && PyList_Append(buffers, buffer) < 0)
        return NULL;
    return PyBool_FromLong(in_band);
}

static PyMethodDef collect_def = {"collect", collect, METH_O, NULL};

/* The size of bytes or a str in bytes, and 0 for any other object. */
static Py_ssize_t blob_size(PyObject *value) {
    if (PyBytes_CheckExact(value))
        return PyBytes_GET_SIZE(value);
    return PyUnicode_CheckExact(value) ? PyUnicode_GET_LENGTH(value) * PyUnicode_KIND(value) : 0;
}

bool pp_is_blob(PyObject *value) { return blob_size(value) >= PP_OUT_OF_BAND_MIN; }

typedef struct {
    PyObject *all[MARSHAL_OBJECTS];
    int n, n_dicts;
} seen_t;

/* Whether an object occurs for the first time. marshal does not preserve identity, so a value in which an object occurs
 * twice cannot use it. An object without other references cannot occur twice. */
static bool is_first(PyObject *value, seen_t *seen) {
    if (Py_REFCNT(value) == 1)
        return true;
    for (int i = 0; i < seen->n; i++)
        if (seen->all[i] == value)
            return false;
    if (seen->n == MARSHAL_OBJECTS)
        return false;
    seen->all[seen->n++] = value;
    return true;
}

/* At most one empty dict is accepted, because two could be the same object. */
static bool is_simple(PyObject *value, int depth, seen_t *seen) {
    PyTypeObject *t = Py_TYPE(value);
    if (t == &PyLong_Type || t == &PyFloat_Type || t == &PyBool_Type || value == Py_None)
        return true;
    if (t == &PyBytes_Type)
        return !pp_is_blob(value) && (PyBytes_GET_SIZE(value) < 2 || is_first(value, seen));
    if (t == &PyUnicode_Type)
        return !pp_is_blob(value) && (PyUnicode_GET_LENGTH(value) < 2 || is_first(value, seen));
    if (t == &PyDict_Type)
        return PyDict_GET_SIZE(value) == 0 && seen->n_dicts++ == 0;
    if (t != &PyTuple_Type || PyTuple_GET_SIZE(value) > MARSHAL_ITEMS || (depth == 0 && PyTuple_GET_SIZE(value) > 0) ||
        (PyTuple_GET_SIZE(value) > 0 && !is_first(value, seen)))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (!is_simple(PyTuple_GET_ITEM(value, i), depth - 1, seen))
            return false;
    return true;
}

/* Accepts None, numbers, strings, tuples of these, and the empty dict of a call without keywords. Subclasses are refused. */
bool pp_is_simple(PyObject *value, int depth) {
    seen_t seen;
    seen.n = seen.n_dicts = 0;
    return is_simple(value, depth, &seen);
}

static int find_attribute(const char *module_name, const char *name, PyObject **out) {
    PyObject *module = *out ? NULL : PyImport_ImportModule(module_name), *found = module ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    if (*out == NULL)              /* the import may have let another thread do the same */
        *out = Py_XNewRef(found);
    Py_XDECREF(found);
    return *out ? 0 : -1;
}

static int ensure_pickle(pp_module_t *m) {
    return m->loads || (find_attribute("_pickle", "dumps", &m->dumps) == 0 && find_attribute("_pickle", "loads", &m->loads) == 0) ? 0 : -1;
}

/* ---- reducers ---- */

/* Finds the reducers that are registered with multiprocessing's ForkingPickler, for connections, sockets and the types of
 * some libraries. Returns false without an exception if multiprocessing is not imported, as nothing is registered then. */
static bool has_registered(pp_module_t *m) {
    if (m->registered)
        return true;
    PyObject *name = PyUnicode_FromString("multiprocessing.reduction"), *module = name ? PyImport_GetModule(name) : NULL;
    PyObject *pickler = module ? PyObject_GetAttrString(module, "ForkingPickler") : NULL;
    PyObject *registered = pickler ? PyObject_GetAttrString(pickler, "_extra_reducers") : NULL;
    Py_XDECREF(pickler);
    Py_XDECREF(module);
    Py_XDECREF(name);
    if (registered == NULL || find_attribute("_pickle", "Pickler", &m->pickler) < 0 || find_attribute("io", "BytesIO", &m->file_type) < 0 ||
        find_attribute("copyreg", "dispatch_table", &m->reducers) < 0) {
        PyErr_Clear();             /* another thread is importing it at this moment */
        Py_XDECREF(registered);
        return false;
    }
    m->registered = registered;
    return true;
}

static int ensure_local_reducers(pp_module_t *m) {
    Py_ssize_t n = PyDict_GET_SIZE(m->registered);
    if (m->local_reducers && m->n_registered == n)
        return 0;
    PyObject *handles = PyImport_ImportModule("pool_party._wire.fd_handle"), *reducers, *duplicates;
    PyObject *pair = handles ? PyObject_CallMethod(handles, "local_reducers", NULL) : NULL;
    int failed = pair && PyArg_ParseTuple(pair, "O!O!", &PyDict_Type, &reducers, &PyDict_Type, &duplicates) ? 0 : -1;
    if (!failed) {
        Py_XSETREF(m->local_reducers, Py_NewRef(reducers));
        Py_XSETREF(m->duplicates, Py_NewRef(duplicates));
        m->n_registered = n;
    }
    Py_XDECREF(pair);
    Py_XDECREF(handles);
    return failed;
}

/* Makes the table of reducers that ForkingPickler has, as one dict, because lookups in a ChainMap cost more. */
static PyObject *make_table(pp_module_t *m, bool is_local) {
    PyObject *table = PyDict_Copy(m->reducers);
    if (table && (PyDict_Update(table, m->registered) < 0 ||
                  (is_local && (ensure_local_reducers(m) < 0 || PyDict_Update(table, m->local_reducers) < 0))))
        Py_CLEAR(table);
    return table;
}

/* A pickler's `persistent_id`: turns large bytes and strings into leaves and returns their number. */
static PyObject *set_apart(PyObject *blobs, PyObject *object) {
    if (blob_size(object) < (Py_ssize_t)PP_COMMON_MIN)
        Py_RETURN_NONE;
    Py_ssize_t i = 0, n = PyList_GET_SIZE(blobs);
    while (i < n && PyList_GET_ITEM(blobs, i) != object)
        i++;
    return i == n && PyList_Append(blobs, object) < 0 ? NULL : PyLong_FromSsize_t(i);
}

static PyMethodDef set_apart_def = {"persistent_id", set_apart, METH_O, NULL};

/* In CPython 3.13.0 the attribute cannot be set (in later versions it can). All objects then stay in the pickle. */
static int set_blobs_apart(PyObject *pickler, PyObject *blobs) {
    PyObject *function = PyCFunction_New(&set_apart_def, blobs);
    int failed = function ? PyObject_SetAttrString(pickler, "persistent_id", function) : -1;
    Py_XDECREF(function);
    if (!failed || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return failed;
    PyErr_Clear();
    return 0;
}

/* `table` and `blobs` may be NULL. */
static PyObject *dumps_with(pp_module_t *m, PyObject *value, PyObject *callback, PyObject *table, PyObject *blobs) {
    PyObject *file = PyObject_CallNoArgs(m->file_type), *args[] = {file, m->protocol, callback}, *done = NULL, *pickle = NULL;
    PyObject *pickler = file ? PyObject_Vectorcall(m->pickler, args, 2, m->dumps_keywords) : NULL;
    if (pickler && (table == NULL || PyObject_SetAttr(pickler, m->dispatch_table_name, table) == 0) &&
        (blobs == NULL || set_blobs_apart(pickler, blobs) == 0))
        done = PyObject_CallMethodOneArg(pickler, m->dump_name, value);
    if (done)
        pickle = PyObject_CallMethodNoArgs(file, m->getvalue_name);
    Py_XDECREF(done);
    Py_XDECREF(pickler);
    Py_XDECREF(file);
    return pickle;
}

/* Whether a value consists of a few objects of built-in types, so that pickle asks no reducer. This check costs less than
 * making a table. Without a GIL it is skipped, because containers may change meanwhile. */
static bool needs_no_reducer(PyObject *value, int *n_left) {
    PyTypeObject *t = Py_TYPE(value);
    if (!PP_HAS_GIL || --*n_left < 0)
        return false;
    if (t == &PyLong_Type || t == &PyFloat_Type || t == &PyBool_Type || t == &PyBytes_Type || t == &PyUnicode_Type || value == Py_None)
        return true;
    bool needs_none = true;
    if (t == &PyTuple_Type || t == &PyList_Type) {
        for (Py_ssize_t i = 0; needs_none && i < PySequence_Fast_GET_SIZE(value); i++)
            needs_none = needs_no_reducer(PySequence_Fast_GET_ITEM(value, i), n_left);
    } else if (t == &PyDict_Type) {
        PyObject *key, *item;
        for (Py_ssize_t i = 0; needs_none && PyDict_Next(value, &i, &key, &item);)
            needs_none = needs_no_reducer(key, n_left) && needs_no_reducer(item, n_left);
    } else {
        needs_none = false;
    }
    return needs_none;
}

static bool holds_common_blob(PyObject *value, int *n_left) {
    if (--*n_left < 0)
        return false;
    if (blob_size(value) >= (Py_ssize_t)PP_COMMON_MIN)
        return true;
    bool holds = false;
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
        for (Py_ssize_t i = 0; !holds && *n_left > 0 && i < PySequence_Fast_GET_SIZE(value); i++)
            holds = holds_common_blob(PySequence_Fast_GET_ITEM(value, i), n_left);
    } else if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        for (Py_ssize_t i = 0; !holds && *n_left > 0 && PyDict_Next(value, &i, &key, &item);)
            holds = holds_common_blob(item, n_left);
    }
    return holds;
}

bool pp_holds_common_blob(PyObject *value) {
    int n_left = LOOKED_AT_MAX;
    return PP_HAS_GIL && holds_common_blob(value, &n_left);
}

static PyObject *dumps_plainly(pp_module_t *m, PyObject *value, PyObject *callback, bool is_local, PyObject *blobs) {
    int n_left = LOOKED_AT_MAX;
    if (needs_no_reducer(value, &n_left) || !has_registered(m)) {
        PyObject *args[] = {value, m->protocol, callback};
        return blobs ? dumps_with(m, value, callback, NULL, blobs) : PyObject_Vectorcall(m->dumps, args, 2, m->dumps_keywords);
    }
    PyObject *table = make_table(m, is_local), *pickle = table ? dumps_with(m, value, callback, table, blobs) : NULL;
    Py_XDECREF(table);
    return pickle;
}

/* ---- writing ---- */

/* Finds __main__ and __mp_main__. A false alarm, such as a string with that text, only costs time. */
static bool mentions_main(PyObject *pickle) {
    return memmem(PyBytes_AS_STRING(pickle), PyBytes_GET_SIZE(pickle), "_main__", 7) != NULL;
}

static _Thread_local const pp_encoding_t *encoding;   /* the encoding for which this thread is pickling, or NULL */

static PyObject *call_definitions(const char *name, PyObject *args) {
    PyObject *definitions = args ? PyImport_ImportModule("pool_party._wire.definitions") : NULL;
    PyObject *function = definitions ? PyObject_GetAttrString(definitions, name) : NULL;
    PyObject *done = function ? PyObject_CallObject(function, args) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(definitions);
    Py_XDECREF(args);
    return done;
}

/* The receivers of the current pickle, or NULL with an exception. */
static PyObject *receivers_of(pp_module_t *m) {
    if (encoding->receivers)
        return Py_NewRef(encoding->receivers);
    if (m->caller == NULL)
        m->caller = call_definitions("replying", PyTuple_New(0));
    return Py_XNewRef(m->caller);
}

static PyObject *preludes_of(pp_job_t *job) {
    PyObject *preludes = NULL;
    if (job) {
        Py_BEGIN_CRITICAL_SECTION(job);
        preludes = Py_XNewRef(job->preludes);
        Py_END_CRITICAL_SECTION();
    }
    return preludes;
}

/* Puts the definitions of __main__ that the receiver lacks before a pickle, to which it takes over the reference. */
static PyObject *complete_pickle(pp_module_t *m, PyObject *pickle, PyObject *callback) {
    PyObject *receivers = receivers_of(m), *of_call = preludes_of(encoding->call), *whole = NULL;
    PyObject *front = receivers ? pp_find_prelude(m, receivers, of_call, pickle) : NULL;
    if (front && PyBytes_GET_SIZE(front) == 0)
        whole = Py_NewRef(pickle);
    else if (front)
        whole = PySequence_Concat(front, pickle);
    else if (receivers && !PyErr_Occurred())
        whole = call_definitions("complete", Py_BuildValue("(OO)", pickle, callback));
    Py_XDECREF(front);
    Py_XDECREF(of_call);
    Py_XDECREF(receivers);
    Py_DECREF(pickle);
    return whole;
}

static PyObject *dumps_slowly(PyObject *value, PyObject *callback, PyObject *refusal, bool is_local) {
    PyObject *codec = PyImport_ImportModule("pool_party._wire.codec");
    PyObject *pickle = codec ? PyObject_CallMethod(codec, "dumps", "OOOO", value, callback, refusal ? refusal : Py_None,
                                                   is_local ? Py_True : Py_False) : NULL;
    Py_XDECREF(codec);
    return pickle;
}

/* Whether pickling by value may succeed after the exception that is set. */
static bool may_pickle_by_value(void) {
    return PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_RecursionError) &&
           !PyErr_ExceptionMatches(PyExc_MemoryError);
}

/* The receiver of a pickle owns the descriptors that were duplicated for it. If there is no pickle, closes them. */
static PyObject *with_duplicates(pp_module_t *m, PyObject *pickle) {
    if (m->duplicates == NULL || PyDict_GET_SIZE(m->duplicates) == 0)
        return pickle;
    PyObject *error = PyErr_GetRaisedException();
    PyObject *handles = PyImport_ImportModule("pool_party._wire.fd_handle");
    PyObject *done = handles ? PyObject_CallMethod(handles, "settle_duplicates", "O", pickle ? Py_True : Py_False) : NULL;
    if (done == NULL)
        Py_CLEAR(pickle);
    if (error)
        PyErr_SetRaisedException(error);
    Py_XDECREF(done);
    Py_XDECREF(handles);
    return pickle;
}

/* Whether the definitions that a pickle needs are to be in it, instead of before it. -1: an exception. */
static int is_by_value(pp_module_t *m) {
    PyObject *receivers = receivers_of(m), *flag = receivers ? PyObject_GetAttrString(receivers, "is_by_value") : NULL;
    int is_set = flag ? flag == Py_True : -1;
    Py_XDECREF(flag);
    Py_XDECREF(receivers);
    return is_set;
}

static PyObject *dumps(pp_module_t *m, PyObject *value, PyObject *callback, PyObject *buffers, bool is_local, PyObject *blobs) {
    PyObject *pickle = dumps_plainly(m, value, callback, is_local, blobs);
    if (pickle && mentions_main(pickle)) {
        int by_value = is_by_value(m);
        if (by_value == 0)
            return with_duplicates(m, complete_pickle(m, pickle, callback));
        Py_CLEAR(pickle);
        if (by_value < 0)
            return with_duplicates(m, NULL);
    } else if (pickle || !may_pickle_by_value()) {
        return with_duplicates(m, pickle);
    }
    PyObject *refusal = PyErr_GetRaisedException();   /* NULL: there was no exception */
    bool is_empty = PyList_SetSlice(buffers, 0, PyList_GET_SIZE(buffers), NULL) == 0 &&
                    (blobs == NULL || PyList_SetSlice(blobs, 0, PyList_GET_SIZE(blobs), NULL) == 0);
    pickle = is_empty ? dumps_slowly(value, callback, refusal, is_local) : NULL;
    Py_XDECREF(refusal);
    return pickle;
}

/* Takes over the reference to the pickle. The blobs become the last leaves. */
static PyObject *with_blobs(PyObject *pickle, PyObject *buffers, PyObject *blobs) {
    uint32_t n = (uint32_t)PyList_GET_SIZE(blobs);
    Py_ssize_t head = 5 + 4 * (Py_ssize_t)n, size = PyBytes_GET_SIZE(pickle);
    PyObject *payload = PyBytes_FromStringAndSize(NULL, head + size);
    if (payload && PyList_SetSlice(buffers, PyList_GET_SIZE(buffers), PyList_GET_SIZE(buffers), blobs) < 0)
        Py_CLEAR(payload);
    if (payload) {
        char *to = PyBytes_AS_STRING(payload);
        to[0] = APART_START;
        memcpy(to + 1, &n, 4);
        for (uint32_t i = 0; i < n; i++) {
            PyObject *blob = PyList_GET_ITEM(blobs, i);
            uint32_t char_max = PyUnicode_Check(blob) ? PyUnicode_MAX_CHAR_VALUE(blob) : 0;
            memcpy(to + 5 + 4 * i, &char_max, 4);
        }
        memcpy(to + head, PyBytes_AS_STRING(pickle), (size_t)size);
    }
    Py_DECREF(pickle);
    return payload;
}

static int ensure_pickler(pp_module_t *m) {
    return find_attribute("_pickle", "Pickler", &m->pickler) < 0 || find_attribute("io", "BytesIO", &m->file_type) < 0 ? -1 : 0;
}

static PyObject *pickle_with_leaves(pp_module_t *m, PyObject *value, bool is_local, bool sets_apart) {
    if (ensure_pickle(m) < 0 || (sets_apart && ensure_pickler(m) < 0))
        return NULL;
    PyObject *buffers = PyList_New(0), *blobs = sets_apart ? PyList_New(0) : NULL, *callback = NULL, *pickle = NULL;
    if (buffers && (blobs || !sets_apart) && (callback = PyCFunction_New(&collect_def, buffers)))
        pickle = dumps(m, value, callback, buffers, is_local, blobs);
    if (pickle && blobs && PyList_GET_SIZE(blobs) > 0)
        pickle = with_blobs(pickle, buffers, blobs);
    if (pickle && PyList_GET_SIZE(buffers) > 0)
        Py_SETREF(pickle, PyTuple_Pack(2, pickle, buffers));
    Py_XDECREF(callback);
    Py_XDECREF(blobs);
    Py_XDECREF(buffers);
    return pickle;
}

PyObject *pp_encoding_for(void) { return Py_NewRef(encoding && encoding->receivers ? encoding->receivers : Py_None); }

pp_channel_t *pp_encoding_channel(void) { return encoding ? encoding->channel : NULL; }

PyObject *pp_call_preludes(void) {
    pp_job_t *job = encoding ? encoding->call : NULL;
    PyObject *preludes = NULL;
    if (job == NULL)
        Py_RETURN_NONE;
    Py_BEGIN_CRITICAL_SECTION(job);
    if (job->preludes == NULL && !job->settled)
        job->preludes = PyDict_New();
    preludes = Py_XNewRef(job->preludes);
    Py_END_CRITICAL_SECTION();
    return preludes || PyErr_Occurred() ? preludes : Py_NewRef(Py_None);
}

/* Pickling may run code that uses another pool, so the outer encoding is restored afterwards. */
static PyObject *encode_pickle(pp_module_t *m, PyObject *value, const pp_encoding_t *how) {
    const pp_encoding_t *outer = encoding;
    PyObject *receivers = Py_XNewRef(how->receivers);
    encoding = how;
    PyObject *pickle = pickle_with_leaves(m, value, how->is_local, how->sets_apart);
    encoding = outer;
    Py_XDECREF(receivers);
    return pickle;
}

static PyObject *encode_number(char start, const void *number) {
    PyObject *payload = PyBytes_FromStringAndSize(NULL, 9);
    if (payload) {
        PyBytes_AS_STRING(payload)[0] = start;
        memcpy(PyBytes_AS_STRING(payload) + 1, number, 8);
    }
    return payload;
}

static PyObject *decode_int(const char *from) {
    int64_t number;
    memcpy(&number, from, sizeof number);
    return PyLong_FromLongLong(number);
}

static PyObject *decode_float(const char *from) {
    double number;
    memcpy(&number, from, sizeof number);
    return PyFloat_FromDouble(number);
}

PyObject *pp_encode(pp_module_t *m, PyObject *value, const pp_encoding_t *how) {
    int64_t number;
    if (value == Py_None)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (pp_get_int64(value, &number))
        return encode_number(INT_START, &number);
    if (Py_TYPE(value) == &PyFloat_Type)
        return encode_number(FLOAT_START, &((PyFloatObject *)value)->ob_fval);
    if (pp_is_simple(value, PP_SIMPLE_DEPTH))
        return PyMarshal_WriteObjectToString(value, PP_MARSHAL_VERSION);
    PyObject *payload;
    int is_flat = pp_flatten(m, value, how->snapshot, &payload);
    return is_flat > 0 ? payload : is_flat < 0 ? NULL : encode_pickle(m, value, how);
}

bool pp_is_apart(PyObject *payload) { return PyBytes_GET_SIZE(payload) > 0 && PyBytes_AS_STRING(payload)[0] == APART_START; }

static PyObject *loads(pp_module_t *m, const void *data, size_t size, PyObject *buffers) {
    if (ensure_pickle(m) < 0)
        return NULL;
    PyObject *pickle = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)size, PyBUF_READ);
    PyObject *args[] = {pickle, buffers};
    PyObject *value = pickle ? PyObject_Vectorcall(m->loads, args, 1, buffers ? m->loads_keywords : NULL) : NULL;
    Py_XDECREF(pickle);
    return value;
}

PyObject *pp_decode_bytes(pp_module_t *m, const void *data, Py_ssize_t size) {
    if (size == 0)
        Py_RETURN_NONE;
    switch (*(const unsigned char *)data) {
    case PICKLE_START: return loads(m, data, (size_t)size, NULL);
    case PP_FLAT_START: return pp_unflatten(m, data, NULL);
    case INT_START: return decode_int((const char *)data + 1);
    case FLOAT_START: return decode_float((const char *)data + 1);
    default: return PyMarshal_ReadObjectFromString(data, size);
    }
}

static PyObject *read_buffers(pp_module_t *m, pp_leaves_t *leaves, uint32_t n) {
    PyObject *buffers = PyList_New(0);
    for (uint32_t i = 0; buffers && i < n; i++) {
        PyObject *buffer = pp_leaf_buffer(m, leaves, i);
        if (buffer == NULL || PyList_Append(buffers, buffer) < 0)
            Py_CLEAR(buffers);
        Py_XDECREF(buffer);
    }
    return buffers;
}

static PyObject *read_blobs(pp_module_t *m, pp_leaves_t *leaves, const char *char_max, uint32_t n) {
    PyObject *blobs = PyTuple_New(n);
    for (uint32_t i = 0; blobs && i < n; i++) {
        uint32_t largest;
        memcpy(&largest, char_max + 4 * i, 4);
        PyObject *blob = pp_leaf_blob(m, leaves, leaves->n - n + i, largest > 0, largest);
        if (blob == NULL)
            Py_CLEAR(blobs);
        else
            PyTuple_SET_ITEM(blobs, i, blob);
    }
    return blobs;
}

/* Sets `persistent_load`, which returns the blob of a number. */
static int bring_together(PyObject *unpickler, PyObject *blobs) {
    PyObject *get = PyObject_GetAttrString(blobs, "__getitem__");
    int failed = get ? PyObject_SetAttrString(unpickler, "persistent_load", get) : -1;
    Py_XDECREF(get);
    return failed;
}

static PyObject *load_together(pp_module_t *m, const char *pickle, size_t size, PyObject *buffers, PyObject *blobs) {
    PyObject *view = PyMemoryView_FromMemory((char *)pickle, (Py_ssize_t)size, PyBUF_READ);
    PyObject *file = view ? PyObject_CallOneArg(m->file_type, view) : NULL, *args[] = {file, buffers}, *value = NULL;
    PyObject *unpickler = file ? PyObject_Vectorcall(m->unpickler, args, 1, m->loads_keywords) : NULL;
    if (unpickler && bring_together(unpickler, blobs) == 0)
        value = PyObject_CallMethod(unpickler, "load", NULL);
    Py_XDECREF(unpickler);
    Py_XDECREF(file);
    Py_XDECREF(view);
    return value;
}

static PyObject *loads_apart(pp_module_t *m, const char *data, size_t size, pp_leaves_t *leaves) {
    uint32_t n;
    memcpy(&n, data + 1, 4);
    size_t head = 5 + 4 * (size_t)n;
    if (find_attribute("_pickle", "Unpickler", &m->unpickler) < 0 || find_attribute("io", "BytesIO", &m->file_type) < 0)
        return NULL;
    PyObject *buffers = read_buffers(m, leaves, leaves->n - n), *blobs = buffers ? read_blobs(m, leaves, data + 5, n) : NULL;
    PyObject *value = blobs ? load_together(m, data + head, size - head, buffers, blobs) : NULL;
    Py_XDECREF(blobs);
    Py_XDECREF(buffers);
    return value;
}

PyObject *pp_decode(pp_module_t *m, const void *data, size_t size, pp_leaves_t *leaves) {
    if (size > 0 && *(const unsigned char *)data == PP_FLAT_START)
        return pp_unflatten(m, data, leaves);
    if (size > 0 && *(const unsigned char *)data == APART_START)
        return loads_apart(m, data, size, leaves);
    if (leaves->n == 0)
        return pp_decode_bytes(m, data, (Py_ssize_t)size);
    PyObject *buffers = read_buffers(m, leaves, leaves->n);
    PyObject *value = buffers ? loads(m, data, size, buffers) : NULL;
    Py_XDECREF(buffers);
    return value;
}
