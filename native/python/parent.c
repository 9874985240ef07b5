/* Channel: the parent's side, for Python: putting tasks and looking after workers. results.c takes results.
 *
 * The scheduler sees to it that one thread at a time puts. Pickling may run Python code of the user, which may call back
 * into the same thread's Channel: so every function here reads its state anew after such a call.
 */
#include "python.h"

#include <errno.h>
#include <string.h>

#define BLOCK_BYTES_MAX (64ull << 20)   /* of arguments in shared memory beyond what workers need at once; guess */

typedef struct {                        /* a map's function, for all its tasks */
    uint64_t at;
    uint32_t id, size;
    PyObject *object;                   /* by reference only */
} function_t;

static int channel_init(pp_channel_t *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n_workers", "by_reference", NULL};
    Py_ssize_t n_lanes;
    int by_reference = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|p", names, &n_lanes, &by_reference))
        return -1;
    if (self->segment) {
        PyErr_SetString(PyExc_RuntimeError, "Channel is initialised once");
        return -1;
    }
    if (n_lanes < 1 || n_lanes > (Py_ssize_t)PP_MAX_LANES) {
        PyErr_Format(PyExc_ValueError, "n_workers must be from 1 to %u, not %zd", PP_MAX_LANES, n_lanes);
        return -1;
    }
    self->module = pp_module_of(Py_TYPE(self));
    self->by_reference = by_reference;
    int error = pp_segment_create((unsigned)n_lanes, by_reference, &self->segment);
    if (error) {
        pp_raise_errno(error);
        return -1;
    }
    if ((self->arena = pp_arena_new(self->segment, 0)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pp_hub_init(&self->hub, self->segment);
    pp_watch_interrupts();
    self->n_forks = pp_load_relaxed(&pp_n_forks);
    return 0;
}

static void drop_slot(pp_channel_t *self, pp_slot_t *slot) {
    if (!self->by_reference)
        return;
    PyObject **pair = (PyObject **)slot->data;
    Py_DECREF(pair[0]);
    Py_DECREF(pair[1]);
}

/* Objects that are still on their way are ours, unless we are a child that was forked meanwhile. */
static void drop_all(pp_channel_t *self) {
    pp_slot_t slot;
    while (pp_hub_pop_waiting(&self->hub, &slot))
        drop_slot(self, &slot);
    for (unsigned i = 0; i < self->segment->shared->n_lanes; i++)
        for (const pp_frame_t *f; (f = pp_hub_peek(&self->hub, i)) != NULL;) {
            PyObject *value = *(PyObject **)(f + 1);
            pp_hub_take(&self->hub, i, f);
            Py_DECREF(value);
        }
}

/* Results may keep some blocks for long: all others go now. */
static void give_blocks_back(pp_channel_t *self) {
    for (unsigned i = 0; pp_load_seq_cst(&self->segment->refs) > 1 && i <= self->segment->shared->n_lanes; i++)
        pp_arena_forget(self->segment, i);
}

static void channel_dealloc(pp_channel_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->segment && self->n_forks == pp_load_relaxed(&pp_n_forks)) {
        if (self->by_reference)
            drop_all(self);
        else
            give_blocks_back(self);
    }
    pp_arena_free(self->arena);
    if (self->segment)
        pp_orphans_drop(self->segment);
    pp_segment_unref(self->segment);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- tasks out ---- */

PyDoc_STRVAR(encode_doc, "encode(value) -> payload\n\nThe value as it travels; the value itself where workers share our objects.");
static PyObject *channel_encode(pp_channel_t *self, PyObject *value) {
    return self->by_reference ? Py_NewRef(value) : pp_encode(self->module, value, true);
}

PyDoc_STRVAR(publish_doc, "publish(function) -> (id, at, size, block) or None if there is no room\n\n"
                          "Puts an encoded function where every worker can fetch it, until `retract(block)`.");
static PyObject *channel_publish(pp_channel_t *self, PyObject *payload) {
    pp_packed_t packed;
    PyObject *buffers = PyTuple_Check(payload) ? Py_NewRef(payload) : NULL;
    if (buffers == NULL && (buffers = PyList_New(0)))
        Py_SETREF(buffers, PyTuple_Pack(2, payload, buffers));   /* always a block */
    int error = buffers ? pp_pack(self->arena, buffers, false, NULL, &packed) : -1;
    Py_XDECREF(buffers);
    if (error == EAGAIN) {
        pp_hub_note_full(&self->hub);
        Py_RETURN_NONE;
    }
    if (error)
        return NULL;
    if (++self->last_function_id == 0)
        ++self->last_function_id;
    return Py_BuildValue("IKKI", self->last_function_id, (unsigned long long)packed.block.at,
                         (unsigned long long)packed.block.size, packed.block.id);
}

static PyObject *channel_retract(pp_channel_t *self, PyObject *arg) {
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    if (id < PP_BLOCKS)
        pp_block_release(self->segment, 0, (uint32_t)id);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unpin_doc, "unpin()\n\nLets go of the shared memory that tasks have received. Like putting: one thread at a time.");
static PyObject *channel_unpin(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_arena_unpin(self->arena);
    Py_RETURN_NONE;
}

static PyObject *get_has_pins(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_arena_has_pins(self->arena));
}

static int parse_function(pp_channel_t *self, PyObject *arg, function_t *f) {
    *f = (function_t){.object = arg};
    if (self->by_reference || arg == Py_None)
        return 0;
    unsigned long long at, size;
    unsigned block;
    if (!PyTuple_Check(arg) || !PyArg_ParseTuple(arg, "IKKI", &f->id, &at, &size, &block))
        return -1;
    if (size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the function's pickle is larger than 4 GiB; pass the data as an argument");
        return -1;
    }
    f->at = at;
    f->size = (uint32_t)size;
    return 0;
}

/* Large arguments wait in our memory until a worker is nearly ready for them. */
static bool is_too_much(pp_channel_t *self) {
    return pp_hub_n_waiting(&self->hub) >= self->segment->shared->n_lanes &&
           pp_arena_open_bytes(self->arena) > BLOCK_BYTES_MAX;
}

static int put(pp_channel_t *self, pp_task_t *task, const function_t *f, PyObject *payload, uint64_t *sequence) {
    PyObject *pair[] = {f->object, payload};
    task->function_id = f->id;
    task->function_at = f->at;
    task->function_size = f->size;
    if (self->by_reference) {
        task->where = PP_IN_PLACE;
        task->size = sizeof pair;
        task->data = pair;
        Py_INCREF(pair[0]);
        Py_INCREF(pair[1]);
        int error = pp_hub_put(&self->hub, task, sequence);
        if (error) {
            Py_DECREF(pair[0]);
            Py_DECREF(pair[1]);
        }
        return error;
    }
    if (!pp_hub_has_room(&self->hub) || (pp_needs_block(payload) && is_too_much(self)))
        return EAGAIN;
    pp_packed_t packed;
    int error = pp_pack(self->arena, payload, self->segment->is_local, NULL, &packed);
    if (error)
        return error;
    task->where = packed.where == PP_IN_RING && packed.size <= PP_SLOT_INLINE ? PP_IN_PLACE : packed.where;
    task->size = packed.size;
    task->data = packed.data;
    if ((error = pp_hub_put(&self->hub, task, sequence)) != 0 && packed.where == PP_IN_BLOCK)
        pp_block_release(self->segment, 0, packed.block.id);
    return error;
}

PyDoc_STRVAR(put_doc, "put(job, index, mode, function, payload) -> int\n\nThe task's sequence number, or -1 if there is no room now.");
static PyObject *channel_put(pp_channel_t *self, PyObject *args) {
    unsigned long long job;
    unsigned index, mode;
    PyObject *function, *payload;
    function_t f;
    if (!PyArg_ParseTuple(args, "KIIOO", &job, &index, &mode, &function, &payload) ||
        parse_function(self, function, &f) < 0)
        return NULL;
    pp_task_t task = {.job = job, .index = index, .mode = (uint16_t)mode};
    uint64_t sequence;
    int error = put(self, &task, &f, payload, &sequence);
    if (error < 0)
        return NULL;
    if (error) {
        pp_hub_note_full(&self->hub);
        return PyLong_FromLong(-1);
    }
    pp_hub_wake(&self->hub, 1);
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyObject *next_argument(pp_channel_t *self, pp_job_t *job, PyObject *items, bool snapshot) {
    Py_ssize_t first = job->cursor * job->chunk;
    PyObject *argument = job->chunk == 1 ? Py_NewRef(PyList_GET_ITEM(items, first)) : PyList_GetSlice(items, first, first + job->chunk);
    PyObject *payload = argument == NULL ? NULL : self->by_reference ? Py_NewRef(argument) : pp_encode(self->module, argument, snapshot);
    Py_XDECREF(argument);
    return payload;
}

static int put_next(pp_channel_t *self, pp_job_t *job, PyObject *items, unsigned mode, const function_t *f, bool snapshot) {
    PyObject *payload = next_argument(self, job, items, snapshot);
    if (payload == NULL)
        return -1;
    pp_task_t task = {.job = job->id, .index = (uint32_t)job->cursor, .mode = (uint16_t)mode};
    uint64_t sequence;
    int error = put(self, &task, f, payload, &sequence);
    Py_DECREF(payload);
    return error;
}

PyDoc_STRVAR(put_many_doc, "put_many(job, items, mode, function) -> bool\n\n"
                           "Puts the job's tasks from its cursor on while there is room; True once all are put.\n"
                           "Raises what pickling raised, with the cursor at the task that failed.");
static PyObject *channel_put_many(pp_channel_t *self, PyObject *args) {
    pp_job_t *job;
    PyObject *items, *function;
    unsigned mode;
    function_t f;
    if (!PyArg_ParseTuple(args, "O!O!IO", self->module->job_type, &job, &PyList_Type, &items, &mode, &function) ||
        parse_function(self, function, &f) < 0)
        return NULL;
    int error = 0;
    while (!error && job->cursor * job->chunk < PyList_GET_SIZE(items)) {
        if (!pp_hub_has_room(&self->hub)) {
            error = EAGAIN;
            break;
        }
        if ((error = put_next(self, job, items, mode, &f, false)) == ESTALE)
            error = put_next(self, job, items, mode, &f, true);
        if (error)
            break;
        job->cursor++;
        pp_hub_wake(&self->hub, 1);   /* at once: pickling the next argument may take its time */
    }
    if (error < 0)
        return NULL;
    if (error == EAGAIN)
        pp_hub_note_full(&self->hub);
    return PyBool_FromLong(!error);
}

PyDoc_STRVAR(revoke_doc, "revoke(sequence) -> bool\n\nTakes a task back that no worker has begun.");
static PyObject *channel_revoke(pp_channel_t *self, PyObject *arg) {
    unsigned long long sequence = PyLong_AsUnsignedLongLong(arg);
    pp_slot_t slot;
    if (PyErr_Occurred())
        return NULL;
    bool revoked = pp_hub_revoke(&self->hub, sequence, &slot);
    if (revoked)
        drop_slot(self, &slot);
    return PyBool_FromLong(revoked);
}

PyDoc_STRVAR(revoke_all_doc, "revoke_all() -> int\n\nTakes back every task that no worker has begun; their number.");
static PyObject *channel_revoke_all(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_slot_t slot;
    long n = 0;
    for (; pp_hub_pop_waiting(&self->hub, &slot); n++)
        drop_slot(self, &slot);
    return PyLong_FromLong(n);
}

PyDoc_STRVAR(wait_background_doc, "wait_background()\n\nSleeps until results must be taken and nobody leads.");
static PyObject *channel_wait_background(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS
    pp_hub_wait_background(&self->hub);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *channel_summon(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_hub_summon(&self->hub);
    Py_RETURN_NONE;
}

static PyObject *channel_lead(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_hub_lead(&self->hub);
    Py_RETURN_NONE;
}

static PyObject *channel_step_down(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_hub_step_down(&self->hub);
    Py_RETURN_NONE;
}

/* ---- workers ---- */

static int lane_number(pp_channel_t *self, PyObject *arg) {
    unsigned long lane = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return -1;
    if (lane < self->segment->shared->n_lanes)
        return (int)lane;
    PyErr_Format(PyExc_IndexError, "no worker %lu", lane);
    return -1;
}

PyDoc_STRVAR(open_lane_doc, "open_lane(worker)\n\nMakes a worker's place ready for a new worker.");
static PyObject *channel_open_lane(pp_channel_t *self, PyObject *arg) {
    int lane = lane_number(self, arg);
    if (lane < 0)
        return NULL;
    pp_hub_open_lane(&self->hub, (unsigned)lane);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(bury_doc, "bury(worker) -> (job, index) or None\n\n"
                       "After a worker's end, when its results are taken: the task that it had begun, if any.");
static PyObject *channel_bury(pp_channel_t *self, PyObject *arg) {
    int lane = lane_number(self, arg);
    if (lane < 0)
        return NULL;
    uint64_t job;
    uint32_t index;
    if (!pp_hub_bury(&self->hub, (unsigned)lane, &job, &index))
        Py_RETURN_NONE;
    return Py_BuildValue("KI", (unsigned long long)job, index);
}

PyDoc_STRVAR(look_doc, "look(worker) -> (state, n_done, job or None)\n\nA worker's state, finished tasks and current job.");
static PyObject *channel_look(pp_channel_t *self, PyObject *arg) {
    int n = lane_number(self, arg);
    if (n < 0)
        return NULL;
    pp_lane_t *lane = pp_segment_lane(self->segment, (unsigned)n);
    PyObject *job = pp_load_acquire(&lane->holds) ? PyLong_FromUnsignedLongLong(pp_load_relaxed(&lane->job))
                                                  : Py_NewRef(Py_None);
    return Py_BuildValue("IKN", pp_load_acquire(&lane->state), (unsigned long long)pp_load_relaxed(&lane->n_done), job);
}

PyDoc_STRVAR(interrupt_doc, "interrupt(worker, ident, exception) -> bool\n\n"
                            "Raises an exception in the Python code of the task or initializer that a thread of this process runs, if any.");
static PyObject *channel_interrupt(pp_channel_t *self, PyObject *args) {
    PyObject *n, *exception;
    unsigned long ident;
    if (!PyArg_ParseTuple(args, "OkO", &n, &ident, &exception))
        return NULL;
    int number = lane_number(self, n);
    if (number < 0)
        return NULL;
    pp_lane_t *lane = pp_segment_lane(self->segment, (unsigned)number);
    pthread_mutex_lock(&self->segment->interrupts);
    bool has_begun = pp_load_acquire(&lane->holds) || pp_load_seq_cst(&lane->initializes);
    bool runs = has_begun && !pp_load_relaxed(&lane->has_served);
    if (runs)
        PyThreadState_SetAsyncExc(ident, exception);
    pthread_mutex_unlock(&self->segment->interrupts);
    return PyBool_FromLong(runs);
}

PyDoc_STRVAR(stop_doc, "stop(how)\n\n1: workers end when no task waits; 2: at once, between two tasks.");
static PyObject *channel_stop(pp_channel_t *self, PyObject *arg) {
    unsigned long how = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    if (how > pp_load_seq_cst(&self->segment->shared->stop))
        pp_hub_stop(&self->hub, (pp_stop_t)how);
    Py_RETURN_NONE;
}

static PyObject *channel_announce(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_announce(self->segment->shared);
    Py_RETURN_NONE;
}

static PyObject *pp_channel_take_events(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    return PyBool_FromLong(pp_swap_seq_cst(&self->segment->shared->events, 0));
}

/* ---- budgets ---- */

PyDoc_STRVAR(limit_doc, "limit(n_cpus, n_threads, lends)\n\n"
                        "Limits this process's libraries while a worker of this channel is awake in it: to n_threads, or, if it\n"
                        "lends, to the CPUs over all workers that are awake. n_threads 0: no longer.");
static PyObject *channel_limit(pp_channel_t *self, PyObject *args) {
    unsigned n_cpus, n_threads;
    int lends;
    if (!PyArg_ParseTuple(args, "IIp", &n_cpus, &n_threads, &lends))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (n_threads)
        pp_budget_open(&self->segment->budget, n_cpus, n_threads, lends);
    else
        pp_budget_close(&self->segment->budget);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *channel_grant(pp_channel_t *self, PyObject *args) {
    PyObject *n;
    unsigned n_threads;
    if (!PyArg_ParseTuple(args, "OI", &n, &n_threads))
        return NULL;
    int lane = lane_number(self, n);
    if (lane < 0)
        return NULL;
    _Atomic uint32_t *grant = &pp_segment_lane(self->segment, (unsigned)lane)->grant;
    if (pp_swap_seq_cst(grant, n_threads) != n_threads)
        pp_futex_wake(grant, INT32_MAX, UINT32_MAX);
    Py_BEGIN_ALLOW_THREADS
    pp_limits_changed();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *channel_watch(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_store_seq_cst(&self->segment->shared->is_watched, 1);
    Py_RETURN_NONE;
}

static PyObject *channel_pulse(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_pulse(self->segment->shared);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(wait_pulse_doc, "wait_pulse(seen) -> int\n\nWaits until the pulse is not `seen`; the pulse.");
static PyObject *channel_wait_pulse(pp_channel_t *self, PyObject *arg) {
    unsigned long seen = PyLong_AsUnsignedLongMask(arg);
    if (PyErr_Occurred())
        return NULL;
    _Atomic uint32_t *pulse = &self->segment->shared->pulse;
    Py_BEGIN_ALLOW_THREADS
    while (pp_load_seq_cst(pulse) == (uint32_t)seen)
        pp_futex_wait(pulse, (uint32_t)seen, -1, UINT32_MAX);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(pp_load_seq_cst(pulse));
}

static bool is_awake(pp_lane_t *lane) {
    return pp_load_seq_cst(&lane->state) == PP_LANE_READY && pp_load_seq_cst(&lane->park) != PP_ASLEEP;
}

PyDoc_STRVAR(counts_doc, "counts() -> tuple[int, ...]\n\nFor each worker of this process, how many threads it may use now; while it\n"
                         "sleeps, its own budget.");
static PyObject *channel_counts(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    unsigned n = self->segment->shared->n_lanes;
    PyObject *all = PyTuple_New((Py_ssize_t)n);
    for (unsigned i = 0; all && i < n; i++) {
        pp_lane_t *lane = pp_segment_lane(self->segment, i);
        unsigned count = pp_load_seq_cst(&lane->grant);
        if (is_awake(lane))
            count = pp_budget_count(&self->segment->budget, count);
        PyObject *number = PyLong_FromUnsignedLong(count);
        if (number)
            PyTuple_SET_ITEM(all, (Py_ssize_t)i, number);
        else
            Py_CLEAR(all);
    }
    return all;
}

PyDoc_STRVAR(awake_doc, "awake() -> tuple[bool, ...]\n\nFor each worker, whether it has work or is just looking for some.");
static PyObject *channel_awake(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    unsigned n = self->segment->shared->n_lanes;
    PyObject *all = PyTuple_New((Py_ssize_t)n);
    for (unsigned i = 0; all && i < n; i++) {
        PyTuple_SET_ITEM(all, (Py_ssize_t)i, PyBool_FromLong(is_awake(pp_segment_lane(self->segment, i))));
    }
    return all;
}

static PyObject *channel_lends(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    const pp_budget_t *budget = &self->segment->budget;
    return Py_BuildValue("KK", (unsigned long long)pp_load_relaxed(&budget->n_lends),
                         (unsigned long long)pp_load_relaxed(&budget->n_reclaims));
}

/* ---- traces ---- */

static PyObject *channel_trace(pp_channel_t *self, PyObject *arg) {
    int on = PyObject_IsTrue(arg);
    if (on < 0)
        return NULL;
    pp_store_seq_cst(&self->segment->shared->is_traced, (uint32_t)on);
    Py_RETURN_NONE;
}

static PyObject *channel_forget_events(pp_channel_t *self, PyObject *ignored) {
    (void)ignored;
    pp_segment_forget_events(self->segment);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(read_events_doc, "read_events(worker, start) -> (next, n_lost, bytes)\n\n"
                              "A worker's events from number `start` on, of six 64-bit words each; how many were overwritten.");
static PyObject *channel_read_events(pp_channel_t *self, PyObject *args) {
    PyObject *n;
    unsigned long long from;
    if (!PyArg_ParseTuple(args, "OK", &n, &from))
        return NULL;
    int lane = lane_number(self, n);
    if (lane < 0)
        return NULL;
    enum { EVENT_BYTES = PP_EVENT_WORDS * sizeof(uint64_t) };
    uint64_t n_events = pp_load_acquire(&pp_segment_lane(self->segment, (unsigned)lane)->n_events), n_lost;
    uint64_t n_max = n_events > from ? n_events - from : 0;
    unsigned n_read;
    n_max = n_max < PP_EVENTS ? n_max : PP_EVENTS;
    uint64_t (*words)[PP_EVENT_WORDS] = PyMem_Malloc((size_t)n_max * EVENT_BYTES + 1);
    if (words == NULL)
        return PyErr_NoMemory();
    uint64_t next = pp_trace_read(self->segment, (unsigned)lane, from, words, (unsigned)n_max, &n_lost, &n_read);
    PyObject *result = Py_BuildValue("KKy#", (unsigned long long)next, (unsigned long long)n_lost, (const char *)words,
                                     (Py_ssize_t)n_read * EVENT_BYTES);
    PyMem_Free(words);
    return result;
}

PyDoc_STRVAR(present_doc, "present(worker) -> (n_events, state, since_ns, tid, job, index)\n\n"
                          "What a worker is doing, as it recorded that. state: 0 has a task, 1 looks for one, 2 asleep; tid: 0 if it has\n"
                          "not begun to serve.");
static PyObject *channel_present(pp_channel_t *self, PyObject *arg) {
    int n = lane_number(self, arg);
    if (n < 0)
        return NULL;
    pp_lane_t *lane = pp_segment_lane(self->segment, (unsigned)n);
    unsigned state = pp_load_acquire(&lane->holds) ? 0 : pp_load_seq_cst(&lane->park) == PP_ASLEEP ? 2 : 1;
    return Py_BuildValue("KIKIKI", (unsigned long long)pp_load_acquire(&lane->n_events), state,
                         (unsigned long long)pp_load_relaxed(&lane->since_ns), pp_load_relaxed(&lane->tid),
                         (unsigned long long)pp_load_relaxed(&lane->job), pp_load_relaxed(&lane->index));
}

PyDoc_STRVAR(worker_doc, "worker(n) -> Worker\n\nA worker's end for a thread of this interpreter.");
static PyObject *channel_worker(pp_channel_t *self, PyObject *arg) {
    int lane = lane_number(self, arg);
    return lane < 0 ? NULL : pp_worker_new(self->module, self->segment, (unsigned)lane);
}

PyDoc_STRVAR(start_interpreter_doc, "start_interpreter(n) -> Interpreter\n\n"
                                    "Makes an interpreter in a thread of its own, for worker n: see its `run`.");
static PyObject *channel_start_interpreter(pp_channel_t *self, PyObject *n) {
    int lane = lane_number(self, n);
    return lane < 0 ? NULL : pp_interpreter_start(self->module, self->segment, (unsigned)lane);
}

static PyObject *get_fd(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(self->segment->fd);
}

static PyObject *get_n_waiting(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(pp_hub_n_waiting(&self->hub));
}

static PyObject *get_n_taken(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->n_taken);
}

static PyObject *get_is_starved(pp_channel_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_hub_is_starved(&self->hub));
}

static PyGetSetDef getset[] = {
    {"is_starved", (getter)get_is_starved, NULL, "a put was refused and pump has not told of new room since", NULL},
    {"has_pins", (getter)get_has_pins, NULL, "shared memory is kept for tasks on their way", NULL},
    {"fd", (getter)get_fd, NULL, "file descriptor of the shared memory", NULL},
    {"n_waiting", (getter)get_n_waiting, NULL, "tasks that no worker has begun", NULL},
    {"n_taken", (getter)get_n_taken, NULL, "results taken so far", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"encode", (PyCFunction)channel_encode, METH_O, encode_doc},
    {"publish", (PyCFunction)channel_publish, METH_O, publish_doc},
    {"retract", (PyCFunction)channel_retract, METH_O, "retract(block)\n\nFrees a published function."},
    {"unpin", (PyCFunction)channel_unpin, METH_NOARGS, unpin_doc},
    {"put", (PyCFunction)channel_put, METH_VARARGS, put_doc},
    {"put_many", (PyCFunction)channel_put_many, METH_VARARGS, put_many_doc},
    {"revoke", (PyCFunction)channel_revoke, METH_O, revoke_doc},
    {"revoke_all", (PyCFunction)channel_revoke_all, METH_NOARGS, revoke_all_doc},
    {"take", (PyCFunction)pp_channel_take, METH_O, pp_take_doc},
    {"pump", (PyCFunction)pp_channel_pump, METH_VARARGS, pp_pump_doc},
    {"wait_background", (PyCFunction)channel_wait_background, METH_NOARGS, wait_background_doc},
    {"summon", (PyCFunction)channel_summon, METH_NOARGS, "summon()\n\nMakes wait_background return, whoever leads."},
    {"lead", (PyCFunction)channel_lead, METH_NOARGS, "lead()\n\nThe caller takes results from now on."},
    {"step_down", (PyCFunction)channel_step_down, METH_NOARGS, "step_down()\n\nThe background thread takes results."},
    {"open_lane", (PyCFunction)channel_open_lane, METH_O, open_lane_doc},
    {"bury", (PyCFunction)channel_bury, METH_O, bury_doc},
    {"look", (PyCFunction)channel_look, METH_O, look_doc},
    {"interrupt", (PyCFunction)channel_interrupt, METH_VARARGS, interrupt_doc},
    {"stop", (PyCFunction)channel_stop, METH_O, stop_doc},
    {"announce", (PyCFunction)channel_announce, METH_NOARGS, "announce()\n\nSomething happened to a worker: wakes all."},
    {"take_events", (PyCFunction)pp_channel_take_events, METH_NOARGS, "take_events() -> bool\n\nWas there any?"},
    {"limit", (PyCFunction)channel_limit, METH_VARARGS, limit_doc},
    {"grant", (PyCFunction)channel_grant, METH_VARARGS, "grant(worker, n_threads)\n\nWhat a worker's libraries may use; 0: no limit."},
    {"watch", (PyCFunction)channel_watch, METH_NOARGS, "watch()\n\nFrom now on the pulse tells when workers fall asleep and wake."},
    {"pulse", (PyCFunction)channel_pulse, METH_NOARGS, "pulse()\n\nWakes who waits for the pulse."},
    {"wait_pulse", (PyCFunction)channel_wait_pulse, METH_O, wait_pulse_doc},
    {"counts", (PyCFunction)channel_counts, METH_NOARGS, counts_doc},
    {"awake", (PyCFunction)channel_awake, METH_NOARGS, awake_doc},
    {"lends", (PyCFunction)channel_lends, METH_NOARGS, "lends() -> (n_lends, n_reclaims)\n\nWithin this process."},
    {"trace", (PyCFunction)channel_trace, METH_O, "trace(on)\n\nWorkers record events from now on, or no longer."},
    {"forget_events", (PyCFunction)channel_forget_events, METH_NOARGS, "forget_events()\n\nGives the memory of events back."},
    {"read_events", (PyCFunction)channel_read_events, METH_VARARGS, read_events_doc},
    {"present", (PyCFunction)channel_present, METH_O, present_doc},
    {"worker", (PyCFunction)channel_worker, METH_O, worker_doc},
    {"start_interpreter", (PyCFunction)channel_start_interpreter, METH_O, start_interpreter_doc},
    {0},
};

PyDoc_STRVAR(doc, "Channel(n_workers, by_reference=False)\n\nThe parent's side of tasks out and results back.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},         {Py_tp_init, channel_init}, {Py_tp_dealloc, channel_dealloc},
    {Py_tp_methods, methods},         {Py_tp_getset, getset},     {0, NULL},
};

PyType_Spec pp_channel_spec = {
    .name = "pool_party._native.Channel",
    .basicsize = sizeof(pp_channel_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
