/* How far the loops of tasks are (pool_party.progress). A worker notes it in its slot, and the parent reads it from time
 * to time. So a step of a loop costs one store, nothing is sent, and no result waits for a bar.
 *
 * A bar belongs to the task that opened it, and is ignored once the worker holds another one: at the end of a task nothing
 * needs to be closed, nor when the worker is killed. The parent reads a bar between two equal, even versions. A worker
 * that is killed while it changes a bar leaves an odd version; its successor goes on with the next odd one.
 */
#include "python.h"

#include <string.h>

enum { PLACE_BITS = 2 };   /* of a bar's number; the rest is its version */
_Static_assert(PP_BARS <= 1 << PLACE_BITS, "each bar has a place");

/* ---- a worker ---- */

/* Any version that follows is larger, so numbers of bars are not used again before 2^31 further bars. */
static uint32_t begin_change(pp_bar_t *bar) {
    uint32_t version = (pp_load_relaxed(&bar->version) + 1) | 1;
    pp_store_seq_cst(&bar->version, version);
    return version + 1;
}

static void end_change(pp_bar_t *bar, uint32_t version) { pp_store_seq_cst(&bar->version, version); }

static uint64_t present_task(pp_worker_slot_t *own) { return 1 + pp_load_relaxed(&own->n_done); }

static pp_bar_t *find_free(pp_worker_slot_t *own) {
    for (unsigned i = 0; i < PP_BARS; i++)
        if (pp_load_relaxed(&own->bars[i].task) != present_task(own))
            return &own->bars[i];
    return NULL;
}

static bool shows_bars(pp_worker_slot_t *own) { return pp_load_relaxed(&own->shows_bars) && pp_load_relaxed(&own->holds); }

const char pp_shows_bars_doc[] = PyDoc_STR(
    "shows_bars() -> bool or None\n\n"
    "Whether the parent may show bars of the task that this thread runs. None: this is no worker's thread.");
PyObject *pp_shows_bars(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    pp_worker_slot_t *own = pp_own_slot();
    return own ? PyBool_FromLong(shows_bars(own)) : Py_NewRef(Py_None);
}

const char pp_open_bar_doc[] = PyDoc_STR(
    "open_bar(total, text) -> int\n\n"
    "Opens a bar of the task that this thread runs. total: -1 if it is not known. Returns its number, or -1 if nobody shows\n"
    "bars of it, or it has too many of them.");
PyObject *pp_open_bar(PyObject *module, PyObject *args) {
    (void)module;
    long long total;
    const char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Ly#", &total, &text, &size))
        return NULL;
    pp_worker_slot_t *own = pp_own_slot();
    pp_bar_t *bar = own && shows_bars(own) ? find_free(own) : NULL;
    if (bar == NULL)
        return PyLong_FromLong(-1);
    uint64_t words[PP_BAR_WORDS] = {0};
    memcpy(words, text, (size_t)size < sizeof words ? (size_t)size : sizeof words);
    uint32_t version = begin_change(bar);
    for (unsigned i = 0; i < PP_BAR_WORDS; i++)
        pp_store_seq_cst(&bar->text[i], words[i]);
    pp_store_seq_cst(&bar->done, 0);
    pp_store_seq_cst(&bar->total, total < 0 ? PP_NO_TOTAL : (uint64_t)total);
    pp_store_seq_cst(&bar->task, present_task(own));
    end_change(bar, version);
    return PyLong_FromLongLong((long long)version << PLACE_BITS | (bar - own->bars));
}

/* Returns the open bar with this number, or NULL if it is none of this thread's worker any more. */
static pp_bar_t *find_bar(long long number) {
    pp_worker_slot_t *own = pp_own_slot();
    unsigned place = (unsigned)(number & ((1 << PLACE_BITS) - 1));
    if (own == NULL || number < 0 || place >= PP_BARS)
        return NULL;
    pp_bar_t *bar = &own->bars[place];
    return pp_load_relaxed(&bar->version) == (uint32_t)(number >> PLACE_BITS) ? bar : NULL;
}

const char pp_count_bar_doc[] = PyDoc_STR("count_bar(number, done)\n\nNotes how far a bar of this thread's is, unless it was closed.");
PyObject *pp_count_bar(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    (void)module;
    if (n_args != 2) {
        PyErr_SetString(PyExc_TypeError, "count_bar takes a number and a count");
        return NULL;
    }
    long long number = PyLong_AsLongLong(args[0]), done = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    pp_bar_t *bar = find_bar(number);
    if (bar)
        pp_store_relaxed(&bar->done, (uint64_t)done);
    Py_RETURN_NONE;
}

const char pp_close_bar_doc[] = PyDoc_STR("close_bar(number)\n\nCloses a bar of this thread's, unless it was closed.");
PyObject *pp_close_bar(PyObject *module, PyObject *arg) {
    (void)module;
    long long number = PyLong_AsLongLong(arg);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    pp_bar_t *bar = find_bar(number);
    if (bar) {
        uint32_t version = begin_change(bar);
        pp_store_seq_cst(&bar->task, 0);
        end_change(bar, version);
    }
    Py_RETURN_NONE;
}

/* ---- the parent ---- */

const char pp_show_bars_doc[] = PyDoc_STR("show_bars()\n\nMakes tasks that are put from now on note how far their loops are.");
PyObject *pp_channel_show_bars(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    for (unsigned i = 0; i < self->segment->n_workers; i++)
        pp_store_relaxed(&pp_segment_worker(self->segment, i)->shows_bars, 1);
    Py_RETURN_NONE;
}

/* Forgets what a worker has left in its slot, before another one starts there and begins to count its tasks again. */
void pp_forget_bars(pp_worker_slot_t *worker) {
    for (unsigned i = 0; i < PP_BARS; i++)
        pp_store_relaxed(&worker->bars[i].task, 0);
}

typedef struct {
    uint64_t task, done, total, text[PP_BAR_WORDS];
    uint32_t version;
} copy_t;

/* Copies a bar. False: it was changing. */
static bool read_bar(pp_bar_t *bar, copy_t *copy) {
    copy->version = pp_load_seq_cst(&bar->version);
    copy->task = pp_load_seq_cst(&bar->task);
    copy->done = pp_load_seq_cst(&bar->done);
    copy->total = pp_load_seq_cst(&bar->total);
    for (unsigned i = 0; i < PP_BAR_WORDS; i++)
        copy->text[i] = pp_load_seq_cst(&bar->text[i]);
    return copy->version % 2 == 0 && pp_load_seq_cst(&bar->version) == copy->version;
}

static int append_bar(PyObject *list, const copy_t *copy, unsigned place) {
    const char *text = (const char *)copy->text;
    PyObject *desc = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strnlen(text, sizeof copy->text), "ignore");
    PyObject *total = copy->total == PP_NO_TOTAL ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(copy->total);
    unsigned long long number = (unsigned long long)copy->version << PLACE_BITS | place;
    PyObject *bar = desc && total ? Py_BuildValue("(KKOO)", number, (unsigned long long)copy->done, total, desc) : NULL;
    int failed = bar ? PyList_Append(list, bar) : -1;
    Py_XDECREF(bar);
    Py_XDECREF(total);
    Py_XDECREF(desc);
    return failed;
}

const char pp_bars_of_doc[] = PyDoc_STR(
    "bars_of(worker) -> (job or None, index, [(number, done, total or None, text)]) or None\n\n"
    "Returns what the task that a worker runs shows, and which task this is. None: nothing.");
PyObject *pp_channel_bars_of(pp_channel_t *self, PyObject *n) {
    int number = pp_channel_slot(self, n);
    if (number < 0)
        return NULL;
    pp_worker_slot_t *worker = pp_segment_worker(self->segment, (unsigned)number);
    copy_t copies[PP_BARS];
    bool is_open[PP_BARS], is_any = false;
    uint64_t n_done = pp_load_seq_cst(&worker->n_done);
    for (unsigned i = 0; i < PP_BARS; i++)
        is_any |= is_open[i] = read_bar(&worker->bars[i], &copies[i]) && copies[i].task == 1 + n_done;
    pp_held_t held = pp_read_held(worker);
    if (!is_any || !held.runs || pp_load_seq_cst(&worker->n_done) != n_done)
        Py_RETURN_NONE;   /* or the task has just ended */
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; i < PP_BARS && list; i++)
        if (is_open[i] && append_bar(list, &copies[i], i) < 0)
            Py_CLEAR(list);
    if (list == NULL)
        return NULL;
    PyObject *job = pp_channel_look_up(self, held.job), *bars = Py_BuildValue("(OIN)", job ? job : Py_None, held.index, list);
    Py_XDECREF(job);
    return bars;
}
