/* Copies of values that unpickling has made, as unpickling the same pickle again would make them.
 *
 * A copy has lists, dicts, sets, bytearrays and instances of its own. It shares what nobody changes (dates, say, whose
 * types the caller passes), and classes and functions, which are pickled by name. Two references to one object become two references to one copy. No Python code
 * runs, so there are no copies of instances of which unpickling would run some. A value may contain other objects, which
 * cannot be copied; it must contain nothing that a reducer has returned, since a reducer may return something else next
 * time (`_is_copied` in _wire/common.py).
 */
#include "python.h"

typedef struct {
    PyObject *copies;               /* by the address of the original, if several objects refer to it */
    PyObject *constants;            /* a tuple: types whose instances are shared, and metaclasses of such types */
    PyTypeObject *plain;            /* the class that was last found to be plain */
    PyObject *no_arguments;
} copier_t;

static PyObject *copy_of(copier_t *c, PyObject *object, Py_ssize_t n_known);

static bool is_atom(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBytes_Type || type == &PyBool_Type ||
           object == Py_None || type == &PyComplex_Type || object == Py_Ellipsis || type == &PyFunction_Type || PyType_Check(object);
}

static bool has_constant_type(const copier_t *c, PyObject *object) {
    PyObject *type = (PyObject *)Py_TYPE(object), *metaclass = (PyObject *)Py_TYPE(type);
    bool is = false;
    for (Py_ssize_t i = 0; !is && i < PyTuple_GET_SIZE(c->constants); i++)
        is = PyTuple_GET_ITEM(c->constants, i) == type || PyTuple_GET_ITEM(c->constants, i) == metaclass;
    return is;
}

/* Whether an object and all of its parts are atoms, constants, tuples and frozensets. -1: an exception. */
static int is_immutable(const copier_t *c, PyObject *object) {
    if (is_atom(object))
        return 1;
    if (!PyTuple_CheckExact(object) && !PyFrozenSet_CheckExact(object))
        return has_constant_type(c, object);
    if (Py_EnterRecursiveCall(" in a copy"))
        return -1;
    int result = 1;
    PyObject *parts = PySequence_Fast(object, "not a sequence");
    for (Py_ssize_t i = 0; parts && result > 0 && i < PySequence_Fast_GET_SIZE(parts); i++)
        result = is_immutable(c, PySequence_Fast_GET_ITEM(parts, i));
    Py_LeaveRecursiveCall();
    Py_XDECREF(parts);
    return parts ? result : -1;
}

/* Remembers the copy of an object. n_known: references to the original that are known; if there are others, a part may
 * refer to it as well. */
static int remember_copy(copier_t *c, PyObject *object, Py_ssize_t n_known, PyObject *copy) {
    if (Py_REFCNT(object) <= n_known)
        return 0;
    PyObject *key = PyLong_FromVoidPtr(object);
    int error = key ? PyDict_SetItem(c->copies, key, copy) : -1;
    Py_XDECREF(key);
    return error;
}

/* A new reference; NULL, perhaps with an exception: there is no copy yet. */
static PyObject *recall_copy(copier_t *c, PyObject *object, Py_ssize_t n_known) {
    if (Py_REFCNT(object) <= n_known)
        return NULL;
    PyObject *key = PyLong_FromVoidPtr(object);
    PyObject *copy = key ? Py_XNewRef(PyDict_GetItemWithError(c->copies, key)) : NULL;
    Py_XDECREF(key);
    return copy;
}

/* Replaces the parts of a list, to which another object refers as well, by copies. The type of an object decides whether
 * it is an atom, and most parts of a list have the same type. */
static int copy_parts(copier_t *c, PyObject *list) {
    PyTypeObject *atoms = NULL;     /* the type of the atom that was seen last */
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        PyObject *part = PyList_GET_ITEM(list, i);
        if (Py_TYPE(part) == atoms)
            continue;
        if (is_atom(part)) {
            atoms = Py_TYPE(part);
            continue;
        }
        PyObject *copy = copy_of(c, part, 2);
        if (copy == NULL || PyList_SetItem(list, i, copy) < 0)
            return -1;
    }
    return 0;
}

static PyObject *copy_list(copier_t *c, PyObject *list, Py_ssize_t n_known) {
    PyObject *copy = PyList_GetSlice(list, 0, PyList_GET_SIZE(list));
    if (copy && (remember_copy(c, list, n_known, copy) < 0 || copy_parts(c, copy) < 0))
        Py_CLEAR(copy);
    return copy;
}

/* A list in the tuple may contain the tuple. Copying the list has then made the tuple's copy. */
static PyObject *copy_tuple(copier_t *c, PyObject *tuple, Py_ssize_t n_known) {
    PyObject *parts = PySequence_List(tuple), *copy = NULL;
    if (parts && copy_parts(c, parts) == 0 && (copy = recall_copy(c, tuple, n_known)) == NULL && !PyErr_Occurred()) {
        copy = PyList_AsTuple(parts);
        if (copy && remember_copy(c, tuple, n_known, copy) < 0)
            Py_CLEAR(copy);
    }
    Py_XDECREF(parts);
    return copy;
}

/* Adds copies of the items of a dict to another dict, or replaces them there. n_known: references to each value. */
static int copy_items(copier_t *c, PyObject *dict, PyObject *to, Py_ssize_t n_known, bool is_there) {
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &key, &value);) {
        if (is_immutable(c, key) <= 0)
            return -1;
        if (is_there && is_atom(value))
            continue;
        PyObject *copy = is_atom(value) ? Py_NewRef(value) : copy_of(c, value, n_known);
        int error = copy ? PyDict_SetItem(to, key, copy) : -1;
        Py_XDECREF(copy);
        if (error)
            return -1;
    }
    return 0;
}

static PyObject *copy_dict(copier_t *c, PyObject *dict, Py_ssize_t n_known) {
    PyObject *copy = PyDict_Copy(dict);
    if (copy && (remember_copy(c, dict, n_known, copy) < 0 || copy_items(c, dict, copy, 2, true) < 0))
        Py_CLEAR(copy);
    return copy;
}

static PyObject *copy_set(copier_t *c, PyObject *set, Py_ssize_t n_known) {
    PyObject *parts = PySequence_List(set), *copy = NULL;
    bool can = parts != NULL;
    for (Py_ssize_t i = 0; can && i < PyList_GET_SIZE(parts); i++)
        can = is_immutable(c, PyList_GET_ITEM(parts, i)) > 0;
    Py_XDECREF(parts);
    if (can && (copy = PySet_New(set)) && remember_copy(c, set, n_known, copy) < 0)
        Py_CLEAR(copy);
    return copy;
}

static PyObject *copy_bytearray(copier_t *c, PyObject *bytes, Py_ssize_t n_known) {
    PyObject *copy = PyByteArray_FromStringAndSize(PyByteArray_AS_STRING(bytes), PyByteArray_GET_SIZE(bytes));
    if (copy && remember_copy(c, bytes, n_known, copy) < 0)
        Py_CLEAR(copy);
    return copy;
}

/* Whether unpickling an instance only fills its `__dict__`, and its end runs no Python code. */
static bool is_plain(copier_t *c, PyTypeObject *type) {
    if (type == c->plain)
        return true;
    const PyTypeObject *base = &PyBaseObject_Type;
    bool is_ordinary = type->tp_flags & Py_TPFLAGS_HEAPTYPE && type->tp_flags & Py_TPFLAGS_MANAGED_DICT &&
                       type->tp_basicsize == base->tp_basicsize && type->tp_itemsize == 0;   /* otherwise it has slots */
    if (!is_ordinary || type->tp_new != base->tp_new || type->tp_getattro != base->tp_getattro || type->tp_finalize != base->tp_finalize ||
        type->tp_del != NULL || PyObject_HasAttrString((PyObject *)type, "__setstate__"))
        return false;
    c->plain = type;
    return true;
}

static PyObject *copy_instance(copier_t *c, PyObject *object, Py_ssize_t n_known) {
    PyTypeObject *type = Py_TYPE(object);
    if (!is_plain(c, type))
        return NULL;
    PyObject *copy = type->tp_new(type, c->no_arguments, NULL);
    PyObject *from = copy ? PyObject_GenericGetDict(object, NULL) : NULL, *to = from ? PyObject_GenericGetDict(copy, NULL) : NULL;
    if (copy && (to == NULL || remember_copy(c, object, n_known, copy) < 0 || copy_items(c, from, to, 1, false) < 0))
        Py_CLEAR(copy);
    Py_XDECREF(from);
    Py_XDECREF(to);
    return copy;
}

static PyObject *new_copy(copier_t *c, PyObject *object, Py_ssize_t n_known) {
    if (PyList_CheckExact(object))
        return copy_list(c, object, n_known);
    if (PyDict_CheckExact(object))
        return copy_dict(c, object, n_known);
    if (PySet_CheckExact(object))
        return copy_set(c, object, n_known);
    if (PyByteArray_CheckExact(object))
        return copy_bytearray(c, object, n_known);
    if (!PyTuple_CheckExact(object) && !PyFrozenSet_CheckExact(object))
        return has_constant_type(c, object) ? Py_NewRef(object) : copy_instance(c, object, n_known);
    int fixed = is_immutable(c, object);
    return fixed > 0 ? Py_NewRef(object) : fixed == 0 && PyTuple_CheckExact(object) ? copy_tuple(c, object, n_known) : NULL;
}

/* A new reference. NULL without an exception: the object cannot be copied. n_known: how many references to it can be no
 * other object's of the value. */
static PyObject *copy_of(copier_t *c, PyObject *object, Py_ssize_t n_known) {
    PyObject *copy = is_atom(object) ? Py_NewRef(object) : recall_copy(c, object, n_known);
    if (copy || PyErr_Occurred() || Py_EnterRecursiveCall(" in a copy"))
        return copy;
    copy = new_copy(c, object, n_known);
    Py_LeaveRecursiveCall();
    return copy;
}

const char pp_duplicate_doc[] = PyDoc_STR("duplicate(value, constants) -> copy, or None\n\n"
    "Copies a value that unpickling has made, and that contains nothing that a reducer has returned but instances of the\n"
    "types in `constants`, which the copy shares; for a metaclass, those of its classes. None: it contains objects that\n"
    "cannot be copied, or nests too deep.");
PyObject *pp_duplicate(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *value;
    copier_t c = {0};
    if (!PyArg_ParseTuple(args, "OO!", &value, &PyTuple_Type, &c.constants))
        return NULL;
    c.copies = PyDict_New();
    c.no_arguments = PyTuple_New(0);
    bool collects = PP_HAS_GIL && PyGC_Disable();   /* collections would find no garbage, and take longer than the rest */
    PyObject *copy = c.copies && c.no_arguments ? copy_of(&c, value, 0) : NULL;
    if (collects)
        PyGC_Enable();                              /* no other thread has run meanwhile */
    Py_XDECREF(c.copies);
    Py_XDECREF(c.no_arguments);
    if (copy == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear();
    return copy || PyErr_Occurred() ? copy : Py_NewRef(Py_None);
}

/* ---- using a copy again ---- */

static bool is_unchanged(PyObject *copy, PyObject *original);

/* Neither object may have another reference: one to the copy may be the task's, and with several to the original we would
 * have to find out whether the copy has them in the same places. */
static bool is_sole(PyObject *copy, PyObject *original) {
    return Py_REFCNT(copy) == 1 && Py_REFCNT(original) == 1 && is_unchanged(copy, original);
}

static bool are_items_unchanged(PyObject *copy, PyObject *original) {
    Py_ssize_t n = PySequence_Fast_GET_SIZE(copy);
    if (n != PySequence_Fast_GET_SIZE(original))
        return false;
    PyObject **ours = PySequence_Fast_ITEMS(copy), **others = PySequence_Fast_ITEMS(original);
    for (Py_ssize_t i = 0; i < n; i++)
        if (ours[i] != others[i] && !is_sole(ours[i], others[i]))
            return false;
    return true;
}

static bool is_dict_unchanged(PyObject *copy, PyObject *original) {
    PyObject *key, *value, *other_key, *other_value;
    if (PyDict_GET_SIZE(copy) != PyDict_GET_SIZE(original))
        return false;
    for (Py_ssize_t i = 0, j = 0; PyDict_Next(copy, &i, &key, &value) && PyDict_Next(original, &j, &other_key, &other_value);)
        if (key != other_key || (value != other_value && !is_sole(value, other_value)))
            return false;
    return true;
}

/* Whether a copy that a task has had still consists of the same lists, dicts and tuples, with the same objects in the same
 * order. The other objects that it shares with the original do not change. The recursion ends, as an object within itself
 * has two references. */
static bool is_unchanged(PyObject *copy, PyObject *original) {
    if (Py_TYPE(copy) != Py_TYPE(original))
        return false;
    if (PyList_CheckExact(copy) || PyTuple_CheckExact(copy))
        return are_items_unchanged(copy, original);
    return PyDict_CheckExact(copy) && is_dict_unchanged(copy, original);
}

const char pp_is_reusable_doc[] = PyDoc_STR("is_reusable(copies, originals) -> bool\n\n"
    "Whether nothing but the list `copies` refers to any part of the copies that `duplicate` has made of `originals`, and\n"
    "they are unchanged. They consist of lists, dicts and tuples; always False for others, and without a GIL.");
PyObject *pp_is_reusable(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *copies, *originals;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &copies, &PyList_Type, &originals))
        return NULL;
    bool is = PP_HAS_GIL && PyList_GET_SIZE(copies) == PyList_GET_SIZE(originals);
    for (Py_ssize_t i = 0; is && i < PyList_GET_SIZE(copies); i++) {
        PyObject *copy = PyList_GET_ITEM(copies, i), *original = PyList_GET_ITEM(originals, i);
        is = copy == original || (Py_REFCNT(copy) == 1 && is_unchanged(copy, original));
    }
    return PyBool_FromLong(is);
}
