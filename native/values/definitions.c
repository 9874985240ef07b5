/* Two questions that _wire/definitions.py asks of each pickle that names something of __main__: which names it has, and
 * whether the objects behind them have changed. They are answered in C because each call asks them. */
#include "python.h"

#include <stddef.h>
#include <string.h>

/* ---- names in a pickle ---- */

typedef struct {
    const unsigned char *at, *end;
    PyObject *names;                /* a frozenset */
    bool takes_all;                 /* all strings may be names, as arguments of making.get */
    const char *last[2];            /* the last two objects pushed, the newest first; NULL if not a string */
    uint32_t last_size[2];
    struct { const char *text; uint32_t size; } memo[256];
    uint32_t n_memo;
    bool is_unknown;                /* part of it may be another pickle, or is not understood */
} pickle_t;

#define GETTER "pool_party._wire.making"      /* the module whose `get` also names objects of __main__ */

/* Whether the text, if it is a pickle, may contain names of __main__. */
static bool may_name(const void *text, size_t size) {
    return memmem(text, size, "_main__", 7) != NULL || memmem(text, size, GETTER, sizeof GETTER - 1) != NULL;
}

static bool is_text(const char *text, uint32_t size, const char *expected) {
    return text && size == strlen(expected) && memcmp(text, expected, size) == 0;
}

static bool is_main(const char *text, uint32_t size) { return is_text(text, size, "__main__") || is_text(text, size, "__mp_main__"); }

static void push(pickle_t *p, const char *text, uint32_t size) {
    p->last[1] = p->last[0];
    p->last_size[1] = p->last_size[0];
    p->last[0] = text;
    p->last_size[0] = size;
}

static int add_name(pickle_t *p, const char *text, uint32_t size) {
    PyObject *name = PyUnicode_DecodeUTF8(text, size, "surrogatepass");
    int failed = name ? PySet_Add(p->names, name) : -1;
    Py_XDECREF(name);
    return failed;
}

/* Takes the name of a module, the name of an attribute, or any other string. */
static int take_text(pickle_t *p, const char *text, uint64_t size) {
    bool is_module = size < UINT32_MAX && (is_main(text, (uint32_t)size) || is_text(text, (uint32_t)size, GETTER));
    p->is_unknown = p->is_unknown || (!is_module && may_name(text, size));
    push(p, size <= UINT32_MAX ? text : NULL, (uint32_t)size);
    return p->takes_all && size < 256 ? add_name(p, text, (uint32_t)size) : 0;
}

static int take_global(pickle_t *p) {
    const char *module = p->last[1], *name = p->last[0];
    uint32_t size = p->last_size[0];
    if (module == NULL || name == NULL)
        p->is_unknown = true;
    else if (is_main(module, p->last_size[1]) && add_name(p, name, size) < 0)
        return -1;
    push(p, NULL, 0);
    return 0;
}

static void memorize(pickle_t *p) {
    if (p->n_memo < 256) {
        p->memo[p->n_memo].text = p->last[0];
        p->memo[p->n_memo].size = p->last_size[0];
    }
    p->n_memo++;
}

static void push_from_memo(pickle_t *p, uint32_t number) {
    if (number >= 256 || number >= p->n_memo)
        push(p, NULL, 0);           /* an unknown string, which matters only if a global uses it */
    else
        push(p, p->memo[number].text, p->memo[number].size);
}

static uint64_t read_unsigned(const unsigned char *from, unsigned n) {
    uint64_t number = 0;
    memcpy(&number, from, n);
    return number;
}

/* The number of argument bytes of an opcode that pushes no string. If the argument begins with its own length, returns the
 * size of the length field plus 16. Returns -1 if the opcode is unknown. */
static int size_after(unsigned char opcode) {
    switch (opcode) {
    case 0x80: case 'K': case 'h': return 1;                              /* PROTO, BININT1, BINGET */
    case 'M': return 2;
    case 'J': case 'j': return 4;                                         /* BININT, LONG_BINGET */
    case 'G': case 0x95: return 8;                                        /* BINFLOAT, FRAME */
    case 0x8a: case 'C': return 16 + 1;                                   /* LONG1, SHORT_BINBYTES */
    case 0x8b: case 'B': return 16 + 4;
    case 0x8e: case 0x96: return 16 + 8;                                  /* BINBYTES8, BYTEARRAY8 */
    case '(': case '.': case '0': case '1': case '2': case 'N': case 'R': case 'a': case 'b': case 'd': case 'e': case 'l': case 'o':
    case 's': case 't': case 'u': case ')': case ']': case '}': case 'Q': case 0x81: case 0x85: case 0x86: case 0x87: case 0x88:
    case 0x89: case 0x8f: case 0x90: case 0x91: case 0x92: case 0x94: case 0x97: case 0x98: return 0;
    default: return -1;
    }
}

static bool take_data(pickle_t *p, unsigned char opcode, int size) {
    uint64_t n = (uint64_t)(size & 15);
    if (n > (uint64_t)(p->end - p->at))
        return false;
    uint64_t number = read_unsigned(p->at, (unsigned)n);
    p->at += n;
    if (size >= 16) {
        if (number > (uint64_t)(p->end - p->at))
            return false;
        p->is_unknown = p->is_unknown || may_name(p->at, number);
        p->at += number;
    }
    if (opcode == 'h' || opcode == 'j')
        push_from_memo(p, (uint32_t)number);
    else if (opcode == 0x94)
        memorize(p);
    else if (opcode != 0x95)        /* a frame may begin between a string and the opcode that uses it */
        push(p, NULL, 0);
    return true;
}

/* Takes the two lines of GLOBAL, which preludes contain. */
static bool take_lines(pickle_t *p) {
    const unsigned char *first = memchr(p->at, '\n', (size_t)(p->end - p->at));
    const unsigned char *second = first ? memchr(first + 1, '\n', (size_t)(p->end - first - 1)) : NULL;
    if (second == NULL || may_name(p->at, (size_t)(first - p->at)))
        return false;
    p->at = second + 1;
    push(p, NULL, 0);
    return true;
}

/* Returns 0, or -1 with an exception. */
static int take_opcode(pickle_t *p) {
    unsigned char opcode = *p->at++;
    unsigned n = opcode == 0x8c ? 1 : opcode == 'X' ? 4 : opcode == 0x8d ? 8 : 0;
    if (n > 0) {
        uint64_t n_left = (uint64_t)(p->end - p->at), size = n <= n_left ? read_unsigned(p->at, n) : 0;
        if (n > n_left || size > n_left - n)
            return p->is_unknown = true, 0;
        const char *text = (const char *)p->at + n;
        p->at += n + size;
        return take_text(p, text, size);
    }
    if (opcode == 0x93)
        return take_global(p);
    int size = size_after(opcode);
    if (opcode == 'c' ? !take_lines(p) : size < 0 || !take_data(p, opcode, size))
        p->is_unknown = true;
    return 0;
}

const char pp_names_of_main_doc[] = PyDoc_STR("names_of_main(pickle) -> frozenset, or None\n\n"
    "The names in `__main__` that a pickle refers to; with all strings in it where it names them by `making.get`.\n"
    "None: it cannot be told, since there may be another pickle in it.");
PyObject *pp_names_of_main(PyObject *module, PyObject *pickle) {
    (void)module;
    if (!PyBytes_Check(pickle)) {
        PyErr_SetString(PyExc_TypeError, "a pickle is bytes");
        return NULL;
    }
    pickle_t p;                     /* the memo is large, and is initialized only as it is used */
    memset(&p, 0, offsetof(pickle_t, memo));
    p.at = (const unsigned char *)PyBytes_AS_STRING(pickle);
    p.names = PyFrozenSet_New(NULL);
    p.n_memo = 0;
    p.is_unknown = false;
    p.end = p.at + PyBytes_GET_SIZE(pickle);
    p.takes_all = memmem(p.at, (size_t)(p.end - p.at), GETTER, sizeof GETTER - 1) != NULL;
    while (p.names && !p.is_unknown && p.at < p.end)
        if (take_opcode(&p) < 0)
            Py_CLEAR(p.names);
    if (p.names && p.is_unknown)
        Py_SETREF(p.names, Py_NewRef(Py_None));
    return p.names;
}

/* ---- what a value is made of ---- */

#define LEAVES_MAX (1u << 20)   /* guess: objects that may be retained for this; pickling them again takes five times as long */
#define LONG 1000               /* guess: bytes and strings of this length are not retained */
#define DEPTH_MAX 100           /* guess: a deeper value probably contains a cycle */

typedef struct {
    PyObject *found, *atoms, *own, *parts, *modules;
    PyObject *classes;              /* a set: those that were examined */
    int depth;
} look_t;

static int look_at_value(look_t *look, PyObject *value);

static int add(look_t *look, PyObject *leaf) { return PyList_Append(look->found, leaf) < 0 ? -1 : 1; }

static int add_size(look_t *look, Py_ssize_t n) {
    PyObject *size = PyLong_FromSsize_t(n);
    int done = size ? add(look, size) : -1;
    Py_XDECREF(size);
    return done;
}

static bool has(PyObject *tuple, PyObject *item) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (PyTuple_GET_ITEM(tuple, i) == item)
            return true;
    return false;
}

static int look_at_or_none(look_t *look, PyObject *value) { return look_at_value(look, value ? value : Py_None); }

/* Takes over the reference to the sequence, which no other code uses. */
static int look_at_items(look_t *look, PyObject *items) {
    int done = items ? add_size(look, PySequence_Fast_GET_SIZE(items)) : -1;
    for (Py_ssize_t i = 0; done > 0 && i < PySequence_Fast_GET_SIZE(items); i++)
        done = look_at_value(look, PySequence_Fast_GET_ITEM(items, i));
    Py_XDECREF(items);
    return done;
}

static int look_at_dict(look_t *look, PyObject *dict) {
    int done = dict ? look_at_items(look, PyDict_Keys(dict)) : add(look, Py_None);
    return dict && done > 0 ? look_at_items(look, PyDict_Values(dict)) : done;
}

/* A large dict of atoms, of tuples of them, and of lists of both is not examined again while it is watched and unchanged. A
 * mark then stands for its content, a new one after each change. Lists cannot be watched, so their items are compared with
 * those that they had. The table belongs to the main interpreter, whose GIL guards it. */
#define WATCHED_MIN 1000        /* entries; guess */
#define WATCHED_MAX 32          /* guess: large dicts that a session's functions read */
#define ITEMS_MAX (1 << 20)     /* of the lists in a watched dict, which are kept until they are looked at again; guess */
typedef struct {
    PyObject *dict, *mark;      /* the dict is borrowed: its end is an event */
    PyObject *items;            /* a list with a tuple for each list among its values, in their order */
} watched_t;
static watched_t watched[WATCHED_MAX];
static unsigned n_watched;

static int forget_mark(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    (void)event, (void)key, (void)value;
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        if (watched[i].dict == dict) {
            watched[i].dict = NULL;
            Py_CLEAR(watched[i].mark);
            Py_CLEAR(watched[i].items);
        }
    return 0;
}

static bool is_constant_value(const look_t *look, PyObject *value, int depth) {
    if (!PyTuple_CheckExact(value))
        return has(look->atoms, (PyObject *)Py_TYPE(value));
    bool is = depth < DEPTH_MAX;
    for (Py_ssize_t i = 0; is && i < PyTuple_GET_SIZE(value); i++)
        is = is_constant_value(look, PyTuple_GET_ITEM(value, i), depth + 1);
    return is;
}

static bool is_long(PyObject *value) {
    return (PyUnicode_Check(value) && PyUnicode_GET_LENGTH(value) >= LONG) || (PyBytes_Check(value) && PyBytes_GET_SIZE(value) >= LONG);
}

/* Adds the items of a list. Returns 1; 0 if they may change or should not be kept; -1 with an exception. */
static int take_items(const look_t *look, PyObject *list, PyObject *to, Py_ssize_t *n_left) {
    if ((*n_left -= PyList_GET_SIZE(list)) < 0)
        return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        if (!is_constant_value(look, PyList_GET_ITEM(list, i), 0) || is_long(PyList_GET_ITEM(list, i)))
            return 0;
    PyObject *items = PyList_AsTuple(list);
    int done = items && PyList_Append(to, items) == 0 ? 1 : -1;
    Py_XDECREF(items);
    return done;
}

/* The items of the lists in a dict. NULL, perhaps with an exception: it contains other objects that may change. */
static PyObject *items_of(const look_t *look, PyObject *dict) {
    PyObject *key, *value, *items = PyList_New(0);
    Py_ssize_t n_left = ITEMS_MAX;
    int done = items ? 1 : -1;
    for (Py_ssize_t i = 0; done > 0 && PyDict_Next(dict, &i, &key, &value);)
        if (!is_constant_value(look, key, 0))
            done = 0;
        else
            done = PyList_CheckExact(value) ? take_items(look, value, items, &n_left) : is_constant_value(look, value, 0);
    if (done <= 0)
        Py_CLEAR(items);
    return items;
}

static bool has_items(PyObject *list, PyObject *items) {
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    return PyList_GET_SIZE(list) == n &&
           (n == 0 || memcmp(PySequence_Fast_ITEMS(list), PySequence_Fast_ITEMS(items), (size_t)n * sizeof(PyObject *)) == 0);
}

/* Whether the lists in a watched dict have the same items still. */
static bool are_lists_same(const watched_t *w) {
    PyObject *key, *value;
    for (Py_ssize_t i = 0, n = 0; n < PyList_GET_SIZE(w->items) && PyDict_Next(w->dict, &i, &key, &value);)
        if (PyList_CheckExact(value) && !has_items(value, PyList_GET_ITEM(w->items, n++)))
            return false;
    return true;
}

static watched_t *entry_of(PyObject *dict) {
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        if (watched[i].dict == dict)
            return &watched[i];
    return NULL;
}

/* Returns 1; 0 if the dict cannot be watched; -1 with an exception. */
static int watch_dict(const look_t *look, PyObject *dict) {
    static int watcher = -1;
    if (watcher < 0 && (watcher = PyDict_AddWatcher(forget_mark)) < 0) {
        PyErr_Clear();          /* others use all that CPython has */
        return 0;
    }
    PyObject *items = items_of(look, dict), *mark = items ? PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type) : NULL;
    if (mark == NULL || PyDict_Watch(watcher, dict) < 0) {
        Py_XDECREF(items);
        Py_XDECREF(mark);
        return PyErr_Occurred() ? -1 : 0;
    }
    watched_t *entry = entry_of(dict), old;
    if (entry == NULL)
        entry = &watched[n_watched++ % WATCHED_MAX];
    old = *entry;
    *entry = (watched_t){.dict = dict, .mark = mark, .items = items};
    Py_XDECREF(old.mark);
    Py_XDECREF(old.items);
    return 1;
}

/* Returns 1 if a mark was added for the dict; 0 if it has to be examined; -1 with an exception. */
static int look_at_watched(look_t *look, PyObject *dict) {
    if (!PP_HAS_GIL || PyDict_GET_SIZE(dict) < WATCHED_MIN || PyInterpreterState_Get() != PyInterpreterState_Main())
        return 0;
    const watched_t *entry = entry_of(dict);
    int done = entry && are_lists_same(entry) ? 1 : watch_dict(look, dict);
    return done > 0 ? add(look, entry_of(dict)->mark) : done;
}

static int look_at_closure(look_t *look, PyObject *function, PyObject *closure) {
    int done = 1;
    for (Py_ssize_t i = 0; closure && done > 0 && i < PyTuple_GET_SIZE(closure); i++) {
        PyObject *content = PyCell_Get(PyTuple_GET_ITEM(closure, i));
        done = content == function ? 1 : look_at_or_none(look, content);
        Py_XDECREF(content);
    }
    return done;
}

/* Adds the keys and values of a dict, into which it does not look. */
static int add_items(look_t *look, PyObject *dict) {
    PyObject *key, *value;
    int done = add_size(look, PyDict_GET_SIZE(dict));
    for (Py_ssize_t i = 0; done > 0 && PyDict_Next(dict, &i, &key, &value);)
        done = add(look, key) < 0 ? -1 : add(look, value);
    return done;
}

static int look_at_names(look_t *look, const PyFunctionObject *function) {
    PyObject *annotations = function->func_annotations;
    PyObject *parts[] = {function->func_name, function->func_qualname, function->func_doc, annotations};
    int done = 1;
    for (int i = 0; done > 0 && i < 4; i++)
        done = add(look, parts[i] ? parts[i] : Py_None);
    return done > 0 && annotations && PyDict_Check(annotations) ? add_items(look, annotations) : done;
}

static int look_at_function(look_t *look, PyObject *function) {
    int done = add(look, PyFunction_GetCode(function));
    if (done > 0)
        done = look_at_or_none(look, PyFunction_GetDefaults(function));
    if (done > 0)
        done = look_at_or_none(look, PyFunction_GetKwDefaults(function));
    if (done > 0)
        done = look_at_closure(look, function, PyFunction_GetClosure(function));
    if (done > 0)
        done = look_at_names(look, (PyFunctionObject *)function);
    return done > 0 ? look_at_dict(look, ((PyFunctionObject *)function)->func_dict) : done;
}

static int is_of_main(look_t *look, PyObject *cls) {
    PyObject *name = PyObject_GetAttrString(cls, "__module__");
    if (name == NULL)
        PyErr_Clear();
    int is = name ? PySequence_Contains(look->modules, name) : 0;
    Py_XDECREF(name);
    return is;
}

static int look_at_members(look_t *look, PyTypeObject *cls) {
    PyObject *dict = PyType_GetDict(cls), *members = dict ? PyDict_Copy(dict) : NULL;
    int done = members ? 1 : -1;
    for (Py_ssize_t i = 0; done > 0 && i < PyTuple_GET_SIZE(look->own); i++) {
        PyObject *name = PyTuple_GET_ITEM(look->own, i), *part = PyDict_GetItemWithError(members, name);
        if (part && PyDict_Check(part))
            done = add_items(look, part);
        if (PyErr_Occurred() || done < 0 || (part && PyDict_DelItem(members, name) < 0))
            done = -1;
    }
    if (done > 0)
        done = look_at_dict(look, members);
    Py_XDECREF(members);
    Py_XDECREF(dict);
    return done;
}

static int look_at_class(look_t *look, PyObject *cls) {
    int is_known = PySet_Contains(look->classes, cls);
    if (is_known || PySet_Add(look->classes, cls) < 0)
        return is_known > 0 ? add(look, cls) : -1;
    int done = add(look, cls), is_own = done > 0 ? is_of_main(look, cls) : 0;
    if (is_own <= 0)
        return is_own < 0 ? -1 : done;
    done = look_at_members(look, (PyTypeObject *)cls);
    return done > 0 ? look_at_items(look, Py_XNewRef(((PyTypeObject *)cls)->tp_bases)) : done;
}

/* Examines a property, a class method or a static method. */
static int look_at_part(look_t *look, PyObject *part) {
    static const char *names[] = {"__func__", "fget", "fset", "fdel"};
    int done = 1;
    for (int i = 0; done > 0 && i < 4; i++) {
        PyObject *function = PyObject_GetAttrString(part, names[i]);
        if (function == NULL)
            PyErr_Clear();
        done = look_at_or_none(look, function);
        Py_XDECREF(function);
    }
    return done;
}

static int look_at_module(look_t *look, PyObject *module) {
    PyObject *modules = PyImport_GetModuleDict(), *name = PyDict_GetItemString(PyModule_GetDict(module), "__name__");
    bool is_imported = name && PyUnicode_Check(name) && PyDict_Check(modules) && PyDict_GetItem(modules, name) == module;
    return is_imported ? add(look, module) : look_at_dict(look, PyModule_GetDict(module));
}

/* A builtin function, or a method that is bound to an object in which something may change. */
static int look_at_builtin(look_t *look, PyObject *builtin) {
    PyObject *self = PyCFunction_GET_SELF(builtin);
    int done = add(look, builtin);
    return done < 0 || self == NULL || PyModule_Check(self) ? done : look_at_value(look, self);
}

static int look_further(look_t *look, PyObject *value) {
    PyObject *kind = (PyObject *)Py_TYPE(value);
    if (add(look, kind) < 0)
        return -1;
    if (kind == (PyObject *)&PyFunction_Type)
        return look_at_function(look, value);
    if (PyType_Check(value))
        return look_at_class(look, value);
    if (kind == (PyObject *)&PyTuple_Type)
        return look_at_items(look, Py_NewRef(value));
    if (kind == (PyObject *)&PyList_Type)
        return look_at_items(look, PyList_GetSlice(value, 0, PyList_GET_SIZE(value)));
    if (kind == (PyObject *)&PyDict_Type) {
        int done = look_at_watched(look, value);
        return done ? done : look_at_dict(look, value);
    }
    if (kind == (PyObject *)&PySet_Type)
        return PySet_GET_SIZE(value) == 0;
    if (kind == (PyObject *)&PyModule_Type)
        return look_at_module(look, value);
    if (kind == (PyObject *)&PyCFunction_Type)
        return look_at_builtin(look, value);
    return has(look->parts, kind) ? look_at_part(look, value) : 0;
}

/* Returns 1; 0 if changes could not be noticed; -1 with an exception. */
static int look_at_value(look_t *look, PyObject *value) {
    if (PyList_GET_SIZE(look->found) > LEAVES_MAX || look->depth == DEPTH_MAX)
        return 0;
    if (has(look->atoms, (PyObject *)Py_TYPE(value))) {
        int done = add(look, value);
        return done > 0 && is_long(value) ? 0 : done;
    }
    if (Py_EnterRecursiveCall(" while looking at a definition"))
        return -1;
    look->depth++;
    int done = look_further(look, value);
    look->depth--;
    Py_LeaveRecursiveCall();
    return done;
}

const char pp_leaves_doc[] = PyDoc_STR("leaves(values, atoms, own, parts, modules) -> list, or None\n\n"
    "What values are made of: as long as all of that is the same, so are they. None: something in them may change unseen,\n"
    "or should not be kept alive for this. See _wire/namespace.py for the tuples of rules.");
PyObject *pp_find_leaves(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *values;
    look_t look = {.depth = 0};
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!", &PyList_Type, &values, &PyTuple_Type, &look.atoms, &PyTuple_Type, &look.own, &PyTuple_Type,
                          &look.parts, &PyTuple_Type, &look.modules) ||
        (look.found = PyList_New(0)) == NULL)
        return NULL;
    look.classes = PySet_New(NULL);
    int done = look.classes ? look_at_items(&look, Py_NewRef(values)) : -1;
    Py_XDECREF(look.classes);
    if (done > 0)
        return look.found;
    Py_DECREF(look.found);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

const char pp_annotations_of_doc[] = PyDoc_STR("annotations_of(function) -> dict, or None\n\n"
    "The annotations of a function, unless they have not been evaluated yet.");
PyObject *pp_annotations_of(PyObject *module, PyObject *function) {
    (void)module;
    if (!PyFunction_Check(function)) {
        PyErr_SetString(PyExc_TypeError, "a function is needed");
        return NULL;
    }
    PyObject *found = ((PyFunctionObject *)function)->func_annotations;
    return Py_NewRef(found && PyDict_Check(found) ? found : Py_None);
}

/* Ints are compared by value, because the ints for sizes are new objects each time. */
static bool is_same(PyObject *one, PyObject *other) {
    return one == other || (PyLong_CheckExact(one) && PyLong_CheckExact(other) && PyObject_RichCompareBool(one, other, Py_EQ) == 1);
}

const char pp_are_same_doc[] = PyDoc_STR("are_same(one, other) -> bool\n\nWhether two lists hold the same objects, or equal ints.");
PyObject *pp_are_same(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *one, *other;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &one, &PyList_Type, &other))
        return NULL;
    bool are_same = PyList_GET_SIZE(one) == PyList_GET_SIZE(other);
    for (Py_ssize_t i = 0; are_same && i < PyList_GET_SIZE(one); i++)
        are_same = is_same(PyList_GET_ITEM(one, i), PyList_GET_ITEM(other, i));
    return PyBool_FromLong(are_same);
}

/* ---- what was found before ---- */

static int is_bound_to(PyObject *namespace, PyObject *name, PyObject *reference) {
    PyObject *value = Py_XNewRef(PyDict_GetItemWithError(namespace, name)), *expected = NULL;
    int is = value == NULL && PyErr_Occurred() ? -1 : value == NULL && reference == Py_None;
    if (value && value != Py_None && reference != Py_None) {
        expected = PyObject_CallNoArgs(reference);
        is = expected ? expected == value : -1;
    }
    Py_XDECREF(expected);
    Py_XDECREF(value);
    return is;
}

static int holds(PyObject *module_namespace, PyObject *namespace, PyObject *seen) {
    PyObject *modules = PyImport_GetModuleDict(), *main = modules ? PyMapping_GetItemString(modules, "__main__") : NULL;
    int is_same = main ? PyModule_Check(main) && PyModule_GetDict(main) == module_namespace : -1;
    Py_XDECREF(main);
    for (Py_ssize_t i = 0; is_same > 0 && i < PyTuple_GET_SIZE(seen); i++) {
        PyObject *pair = PyTuple_GET_ITEM(seen, i);
        is_same = is_bound_to(namespace, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    return is_same;
}

static PyObject *find_kept(PyObject *kept, PyObject *key) {
    PyObject *entry = Py_XNewRef(PyDict_GetItemWithError(kept, key)), *module_namespace, *namespace, *seen, *prelude, *found = NULL;
    if (entry && PyArg_ParseTuple(entry, "O!O!O!O!", &PyDict_Type, &module_namespace, &PyDict_Type, &namespace, &PyTuple_Type, &seen,
                                  &PyTuple_Type, &prelude) && holds(module_namespace, namespace, seen) > 0)
        found = Py_NewRef(prelude);
    Py_XDECREF(entry);
    return found;
}

const char pp_recall_doc[] = PyDoc_STR("recall(kept, key) -> prelude, or None\n\n"
    "Returns the prelude that a dict has under a key, unless a definition in it has changed since. An entry has four\n"
    "items: the namespace of `__main__`; that of its functions; pairs of a name there and a reference to its value at that\n"
    "time (None if it had no value); and the prelude.");
PyObject *pp_recall(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *kept, *key;
    if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &kept, &key))
        return NULL;
    PyObject *found = find_kept(kept, key);
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

PyObject *pp_find_prelude(pp_module_t *m, PyObject *receivers, PyObject *of_call, PyObject *pickle) {
    PyObject *kept = PyObject_GetAttr(receivers, m->kept_name), *names = kept ? pp_names_of_main(NULL, pickle) : NULL;
    PyObject *found = NULL, *front = NULL;
    if (names && names != Py_None) {
        found = of_call ? Py_XNewRef(PyDict_GetItemWithError(of_call, names)) : NULL;
        if (found == NULL && !PyErr_Occurred() && PyDict_Check(kept))
            found = find_kept(kept, names);
    }
    if (found && PyTuple_Check(found) && PyTuple_GET_SIZE(found) == 4 && PyBytes_Check(PyTuple_GET_ITEM(found, 3)))
        front = Py_NewRef(PyTuple_GET_ITEM(found, 3));
    Py_XDECREF(found);
    Py_XDECREF(names);
    Py_XDECREF(kept);
    return front;
}
