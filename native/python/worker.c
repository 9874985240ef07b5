/* Worker: the worker side, for Python. `serve_tasks` is the loop that claims, decodes, calls, encodes and replies. Rare cases
 * (exceptions, values that do not pickle) are left to callables from pool_party._workers.loop. */
#include "python.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define COMMON_IDLE_NS 100000000   /* how long an idle worker keeps what its last tasks had in common; guess */
#define FUNCTIONS_MAX 256   /* most published functions that a worker caches; they are fetched again when needed */

typedef struct {
    PyObject_HEAD
    pp_module_t *module;
    pp_worker_t end;
    pp_arena_t *arena;          /* for large results; created when first needed */
    PyObject *functions;        /* id -> callable */
    PyObject *retire;           /* called after tasks, from `retire_at` on; tells whether the worker is to end; or NULL */
    uint64_t retire_at;
    PyObject *refresh;          /* called when the list of loaded libraries has changed, or NULL */
    unsigned n_forks;
    bool follows;               /* `refresh` is also called when the worker's number of threads is no longer this: */
    unsigned n_threads;
    uint64_t n_loads;           /* pp_n_loads() at the last check */
    pp_limited_t limits;
    uint32_t kept;              /* the budget that this worker process keeps to */
    uint64_t last_job;
    unsigned char *ring_copy;   /* PP_INLINE_MAX bytes for an argument; NULL if values pass by reference, in slots */
    Py_ssize_t at;              /* which item of its chunk the task has begun with */
} worker_t;

static PyObject *new_worker(pp_module_t *m, PyTypeObject *type, pp_segment_t *s, unsigned worker) {
    worker_t *self = (worker_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->module = m;
    self->n_forks = pp_load_relaxed(&pp_n_forks);
    pp_forget_common(m);   /* in a forked child: objects that its parent got as a worker of another pool */
    int error = pp_worker_init(&self->end, s, worker);
    if (error)
        pp_raise_errno(error);
    else if (!pp_segment_ref(s)->by_reference)   /* a worker process may have workers that are threads */
        m->worker_segment = s;
    if (!error && !s->by_reference && (self->ring_copy = PyMem_RawMalloc(PP_INLINE_MAX)) == NULL) {
        PyErr_NoMemory();
        error = ENOMEM;
    }
    if (error || (self->functions = PyDict_New()) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

PyObject *pp_worker_new(pp_module_t *m, pp_segment_t *s, unsigned worker) { return new_worker(m, m->worker_type, s, worker); }

PyDoc_STRVAR(attach_doc, "attach(fd, n) -> Worker\n\n"
                         "Opens worker n's end of the channel behind a file descriptor, and takes ownership of the\n"
                         "descriptor.");
static PyObject *worker_attach(PyTypeObject *type, PyObject *args) {
    int fd;
    unsigned worker;
    pp_segment_t *segment;
    if (!PyArg_ParseTuple(args, "iI", &fd, &worker))
        return NULL;
    int error = pp_segment_attach(fd, &segment);
    if (error)
        return pp_raise_errno(error);
    PyObject *self = new_worker(pp_module_of(type), type, segment, worker);
    pp_segment_unref(segment);
    return self;
}

static int worker_traverse(worker_t *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->functions);
    Py_VISIT(self->retire);
    Py_VISIT(self->refresh);
    return 0;
}

static int worker_clear(worker_t *self) {
    Py_CLEAR(self->functions);
    Py_CLEAR(self->retire);
    Py_CLEAR(self->refresh);
    return 0;
}

static void worker_dealloc(worker_t *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    worker_clear(self);
    pp_arena_free(self->arena);
    if (self->module->worker_segment == self->end.segment)
        self->module->worker_segment = NULL;
    pp_segment_unref(self->end.segment);
    PyMem_RawFree(self->ring_copy);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- calling ---- */

static PyObject *call_chunk(worker_t *self, PyObject *function, PyObject *items, bool star) {
    if (!PyList_Check(items)) {
        PyErr_SetString(PyExc_TypeError, "a chunk is a list");
        return NULL;
    }
    PyObject *results = PyList_New(PyList_GET_SIZE(items));
    for (Py_ssize_t i = 0; results && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i), *args = star ? PySequence_Tuple(item) : NULL, *result = NULL;
        self->at = i;
        if (!star)
            result = PyObject_CallOneArg(function, item);
        else if (args)
            result = PyObject_CallObject(function, args);
        Py_XDECREF(args);
        if (result)
            PyList_SET_ITEM(results, i, result);
        else
            Py_CLEAR(results);
    }
    return results;
}

static PyObject *call_star(PyObject *function, PyObject *item) {
    PyObject *args = PySequence_Tuple(item), *result = args ? PyObject_CallObject(function, args) : NULL;
    Py_XDECREF(args);
    return result;
}

/* The call of a single task: (function, args, kwargs), or (args, kwargs) if its function was published. */
static PyObject *call_single(PyObject *function, PyObject *call) {
    PyObject *args, *kwargs;
    if (function == NULL || function == Py_None ? !PyArg_ParseTuple(call, "OOO", &function, &args, &kwargs)
                                                : !PyArg_ParseTuple(call, "OO", &args, &kwargs))
        return NULL;
    PyObject *tuple = PySequence_Tuple(args);
    PyObject *dict = tuple && PyDict_Check(kwargs) && PyDict_GET_SIZE(kwargs) ? kwargs : NULL;
    PyObject *result = tuple ? PyObject_Call(function, tuple, dict) : NULL;
    Py_XDECREF(tuple);
    return result;
}

static PyObject *call_by_mode(worker_t *self, unsigned mode, PyObject *function, PyObject *argument) {
    switch (mode & ~(unsigned)PP_IS_TIMED) {
    case PP_MODE_CALL: return call_single(function, argument);
    case PP_MODE_ITEM: return PyObject_CallOneArg(function, argument);
    case PP_MODE_STAR: return call_star(function, argument);
    case PP_MODE_CHUNK: return call_chunk(self, function, argument, false);
    case PP_MODE_STARCHUNK: return call_chunk(self, function, argument, true);
    default: return PyErr_Format(PyExc_SystemError, "task of unknown mode %u", mode);
    }
}

/* ---- decoding ---- */

/* Imports a function that was sent as (module, qualified name). */
static PyObject *resolve(PyObject *names) {
    PyObject *module, *path;
    if (!PyArg_ParseTuple(names, "UU", &module, &path))
        return NULL;
    PyObject *found = PyImport_Import(module), *dot = PyUnicode_FromString(".");
    PyObject *steps = dot ? PyUnicode_Split(path, dot, -1) : NULL;
    for (Py_ssize_t i = 0; steps && found && i < PyList_GET_SIZE(steps); i++)
        Py_SETREF(found, PyObject_GetAttr(found, PyList_GET_ITEM(steps, i)));
    if (steps == NULL)
        Py_CLEAR(found);
    Py_XDECREF(steps);
    Py_XDECREF(dot);
    return found;
}

static PyObject *fetch_function(worker_t *self, const pp_slot_t *task) {
    if (task->function_id == 0)
        Py_RETURN_NONE;
    PyObject *id = PyLong_FromUnsignedLong(task->function_id);
    PyObject *function = id ? Py_XNewRef(PyDict_GetItemWithError(self->functions, id)) : NULL;
    if (function == NULL && !PyErr_Occurred()) {
        pp_blockref_t ref = {.at = task->function_at, .size = task->function_size};
        if (PyDict_GET_SIZE(self->functions) >= FUNCTIONS_MAX)
            PyDict_Clear(self->functions);
        function = pp_read_block(self->module, self->end.segment, 0, &ref, 0, NULL);
        if (function && PyTuple_CheckExact(function))
            Py_SETREF(function, resolve(function));
        if (function && PyDict_SetItem(self->functions, id, function) < 0)
            Py_CLEAR(function);
    }
    Py_XDECREF(id);
    return function;
}

static PyObject *fetch_argument(worker_t *self, const pp_slot_t *task) {
    if (task->job != self->last_job)
        pp_forget_common(self->module);
    self->last_job = task->job;
    if (task->where != PP_IN_BLOCK)
        return pp_decode_bytes(self->module, task->where == PP_IN_RING ? self->ring_copy : task->data, task->size);
    bool is_kept = false;
    PyObject *value = pp_read_block(self->module, self->end.segment, 0, (const pp_blockref_t *)task->data,
                                    PP_KEPT + self->end.n_worker, &is_kept);
    pp_worker_copied(&self->end, task, is_kept);
    return value;
}

/* What `failed` is told of a call that has raised: (function, argument, mode, which item of a chunk). NULL: no memory. The
 * exception stays set. */
static PyObject *describe_call(const worker_t *self, PyObject *function, PyObject *argument, unsigned mode) {
    PyObject *error = PyErr_GetRaisedException();
    PyObject *call = Py_BuildValue("(OOIn)", function, argument, mode & ~(unsigned)PP_IS_TIMED, self->at);
    PyErr_SetRaisedException(error);   /* in the place of a MemoryError */
    return call;
}

/* failed: set to what `describe_call` returns, if the call raises. */
static PyObject *run_task(worker_t *self, const pp_slot_t *task, PyObject **failed) {
    PyObject *function, *argument, *result = NULL;
    if (self->end.segment->by_reference) {
        function = ((PyObject **)task->data)[0];
        argument = ((PyObject **)task->data)[1];
    } else {
        argument = fetch_argument(self, task);
        function = argument ? fetch_function(self, task) : NULL;
    }
    self->at = 0;
    if (function && argument && (result = call_by_mode(self, task->mode, function, argument)) == NULL)
        *failed = describe_call(self, function, argument, task->mode);
    Py_XDECREF(function);
    Py_XDECREF(argument);
    return result;
}

/* ---- replying ---- */

static int wait_room(worker_t *self) {
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = pp_worker_wait_room(&self->end);
    Py_END_ALLOW_THREADS
    return error;
}

/* Waits for a receiver to release a block: one of 4,096 large results, or one that keeps a reference of ours. There
 * is no futex word for this, so it polls every millisecond. */
static int wait_block(worker_t *self) {
    if (pp_worker_must_stop(&self->end))
        return ECANCELED;
    _Atomic uint32_t never = 0;
    Py_BEGIN_ALLOW_THREADS
    pp_futex_wait(&never, 0, pp_now_ns() + 1000000, UINT32_MAX);
    Py_END_ALLOW_THREADS
    return 0;
}

static int write_frame(worker_t *self, pp_frame_t *frame, const void *data) {
    int error;
    while ((error = pp_worker_reply(&self->end, frame, data)) == EAGAIN)
        if ((error = wait_room(self)) != 0)
            break;
    return error;
}

/* Sends the result of a task. 0, -1 with an exception, or ECANCELED.
 *
 * After a reply the worker may drop large values, whose destructors an interrupt would break off, with a message. So the
 * flag is set before the parent can see the result and end the pool. The pool is stopped before it interrupts, except that
 * a timed task may be interrupted at any time. Whoever interrupts a thread has our GIL. */
static int send_result(worker_t *self, pp_frame_t *frame, const void *data) {
    if (pp_is_traced(self->end.shared))
        pp_trace_end(&self->end, frame->status);
    pp_store_relaxed(&self->end.own->has_replied, 1);
    int error = write_frame(self, frame, data);
    if (error)
        pp_store_relaxed(&self->end.own->has_replied, 0);   /* what is sent instead may run code of the task's */
    else if (pp_load_relaxed(&self->end.own->begun_ns) || pp_worker_must_stop(&self->end))
        pp_end_interrupts(self->end.segment, self->end.own, true);
    return error;
}

/* 0, -1 with an exception, or ECANCELED. */
static int send(worker_t *self, pp_frame_t *frame, const void *data) {
    return frame->job ? send_result(self, frame, data) : write_frame(self, frame, data);
}

static int send_payload(worker_t *self, pp_frame_t *frame, PyObject *payload, PyObject **value) {
    if (pp_needs_block(payload) && self->arena == NULL &&
        (self->arena = pp_arena_new(self->end.segment, 1 + self->end.n_worker)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pp_packed_t packed;
    int error;
    while ((error = pp_pack(self->arena, payload, pp_lends(self->end.segment), value, NULL, &packed)) == EAGAIN)
        if ((error = wait_block(self)) != 0)
            break;
    if (error)
        return error;
    frame->where = (uint16_t)packed.where;
    frame->size = packed.size;
    return send(self, frame, packed.data);
}

/* Encodes and sends a value. If the value itself can be handed to the receiver, its reference is consumed and `given`
 * becomes NULL. */
static int send_value(worker_t *self, pp_frame_t *frame, PyObject **given) {
    PyObject *value = *given;
    if (self->end.segment->by_reference) {
        frame->size = sizeof value;
        Py_INCREF(value);
        int error = send(self, frame, &value);
        if (error)
            Py_DECREF(value);
        return error;
    }
    pp_encoding_t how = {.is_local = self->end.segment->is_local};
    PyObject *payload = pp_encode(self->module, value, &how);
    int error = payload ? send_payload(self, frame, payload, given) : -1;
    if (error == ESTALE) {
        how.snapshot = true;
        Py_SETREF(payload, pp_encode(self->module, value, &how));
        error = payload ? send_payload(self, frame, payload, given) : -1;
    }
    Py_XDECREF(payload);
    return error;
}

/* Sends what `describe(exception)` or `describe(exception, value)` returns for the exception that is set. That always
 * pickles. value: a result, or what `describe_call` has returned; or NULL. */
static int send_failure(worker_t *self, pp_frame_t *frame, unsigned status, PyObject *describe, PyObject *value) {
    PyObject *error = PyErr_GetRaisedException();
    PyObject *args[] = {error, value};
    PyObject *description = PyObject_Vectorcall(describe, args, value ? 2 : 1, NULL);
    frame->status = (uint16_t)status;
    int failed = description ? send_value(self, frame, &description) : -1;
    Py_XDECREF(description);
    Py_DECREF(error);
    return failed;
}

/* Sends an outcome when describing a failure has failed as well. It is marshalled, so no Python code is needed. */
static int send_bare_failure(worker_t *self, pp_frame_t *frame) {
    PyObject *error = PyErr_GetRaisedException();
    if (self->end.segment->by_reference || !PyObject_IsInstance(error, PyExc_Exception)) {
        PyErr_SetRaisedException(error);
        return -1;
    }
    PyObject *description = Py_BuildValue("(OsN)", Py_None, "an exception that could not be described",
                                          PyUnicode_FromFormat("describing it raised %s", Py_TYPE(error)->tp_name));
    Py_DECREF(error);
    frame->status = PP_STATUS_FAILED;
    int failed = description ? send_value(self, frame, &description) : -1;
    Py_XDECREF(description);
    return failed;
}

/* ---- limits ---- */

/* Limits a library that the last task has loaded, before the next task. In interpreters the parent's background thread
 * must find it, so it is notified. */
static int note_libraries(worker_t *self) {
    uint64_t now = pp_n_loads();
    unsigned n_threads = self->follows ? pp_own_threads() : 0;
    if (now == self->n_loads && n_threads == self->n_threads)
        return 0;
    bool first = self->n_loads == 0;
    self->n_loads = now;
    if (self->refresh) {
        PyObject *told = PyObject_CallNoArgs(self->refresh);   /* the number may change meanwhile: the next task sees that */
        if (told == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1;   /* the pool is being terminated, which interrupts the task that is about to begin */
        self->follows = told && told != Py_None;
        self->n_threads = self->follows ? (unsigned)PyLong_AsUnsignedLong(told) : 0;
        if (PyErr_Occurred())
            PyErr_WriteUnraisable(self->refresh);   /* not the task's fault */
        Py_XDECREF(told);
    } else if (!first) {
        pp_notify_all(self->end.shared);
    }
    return 0;
}

/* Called before a task. 0, or -1 with an exception that is the task's outcome. */
static int keep_limits(worker_t *self) {
    pp_budget_t *budget = &self->end.segment->budget;
    if (!pp_load_relaxed(&budget->is_open))
        return 0;
    int failed = note_libraries(self);
    uint32_t grant = pp_load_seq_cst(&self->end.own->grant);
    if (self->kept && grant != self->kept)   /* the thread that follows budget changes might be too late for this task */
        pp_budget_keep(budget, self->kept = grant);
    if (self->module->libraries && pp_libraries_have_changed(self->module->libraries))
        pp_limits_changed();
    pp_limits_here();
    return failed;
}

/* Refuses a task with the exception that is set. Consume the argument anyway; otherwise its block leaks. */
static PyObject *refuse(worker_t *self, const pp_slot_t *task) {
    PyObject *error = PyErr_GetRaisedException();
    if (self->end.segment->by_reference) {
        Py_DECREF(((PyObject **)task->data)[0]);
        Py_DECREF(((PyObject **)task->data)[1]);
    } else {
        Py_XDECREF(fetch_argument(self, task));
        PyErr_Clear();
    }
    PyErr_SetRaisedException(error);
    return NULL;
}

PyDoc_STRVAR(refresh_doc, "refresh_with(function)\n\n"
                          "Sets what to call before a task if libraries were loaded since the last one. While it returns\n"
                          "a number of threads and not None, it is also called if the worker's budget is another.");
static PyObject *worker_refresh_with(worker_t *self, PyObject *function) {
    Py_XSETREF(self->refresh, Py_NewRef(function));
    Py_RETURN_NONE;
}

typedef struct {
    pp_segment_t *segment;
    pp_worker_slot_t *worker_slot;
    cpu_set_t cpus;
} follower_t;

static void *follow_grants(void *arg) {
    follower_t f = *(follower_t *)arg;
    free(arg);
    pp_name_thread("pp-limits");
    sched_setaffinity(0, sizeof f.cpus, &f.cpus);
    for (;;) {
        uint32_t grant = pp_load_seq_cst(&f.worker_slot->grant);
        if (grant)
            pp_budget_keep(&f.segment->budget, grant);
        pp_futex_wait(&f.worker_slot->grant, grant, -1, UINT32_MAX);
    }
    return NULL;
}

/* Starts a thread in a worker process that applies the parent's budget changes at once. A library reads its count at
 * each call, so this affects a running task. This thread, and the library's threads that it starts, may use `cpus`. */
static int start_following(pp_worker_t *worker, const cpu_set_t *cpus) {
    follower_t *f = malloc(sizeof *f);
    if (f == NULL)
        return ENOMEM;
    *f = (follower_t){.segment = pp_segment_ref(worker->segment), .worker_slot = worker->own, .cpus = *cpus};
    int error = pp_start_detached(follow_grants, f);
    if (error) {
        pp_segment_unref(f->segment);
        free(f);
    }
    return error;
}

PyDoc_STRVAR(keep_doc, "keep_grant(follow=None)\n\n"
                       "Limits this process's libraries to what the parent grants this worker. follow: CPUs of a thread\n"
                       "that applies a new grant at once, even in the middle of a task.");
static PyObject *worker_keep_grant(worker_t *self, PyObject *args) {
    PyObject *follow = Py_None;
    if (!PyArg_ParseTuple(args, "|O", &follow))
        return NULL;
    uint32_t grant = pp_load_seq_cst(&self->end.own->grant);
    if (grant > 0)
        pp_budget_keep(&self->end.segment->budget, self->kept = grant);
    if (follow == Py_None)
        Py_RETURN_NONE;
    cpu_set_t cpus;
    if (pp_cpus_of(follow, &cpus) < 0)
        return NULL;
    int error = start_following(&self->end, &cpus);
    if (error)
        return pp_raise_errno(error);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(initialize_doc, "initialize(function)\n\nCalls function(), which the end of the pool may interrupt like a task. Returns what it returned.");
static PyObject *worker_initialize(worker_t *self, PyObject *function) {
    pp_store_seq_cst(&self->end.own->initializes, 1);
    PyObject *done = pp_worker_must_stop(&self->end) ? Py_NewRef(Py_None) : PyObject_CallNoArgs(function);
    pp_limits_settle(&self->limits);
    pp_end_interrupts(self->end.segment, self->end.own, false);
    return done;
}

PyDoc_STRVAR(enter_doc, "enter()\n\nMarks the worker as active. From now on its thread, the calling one, keeps to its budget.");
static PyObject *worker_enter(worker_t *self, PyObject *ignored) {
    (void)ignored;
    pp_interrupts_enter(self->end.own);
    self->limits.budget = &self->end.segment->budget;
    self->limits.grant = &self->end.own->grant;
    self->limits.number = self->end.n_worker;
    if (!self->end.segment->by_reference)
        self->module->limited = &self->limits;
    pp_limits_enter(&self->limits);
    pp_budget_enter(&self->end.segment->budget);
    if (keep_limits(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *worker_leave(worker_t *self, PyObject *ignored) {
    (void)ignored;
    pp_budget_leave(&self->end.segment->budget);
    pp_limits_enter(NULL);
    if (self->module->limited == &self->limits)
        self->module->limited = NULL;
    pp_interrupts_enter(NULL);
    pp_pulse(self->end.shared);
    Py_RETURN_NONE;
}

static bool shares_gil(const worker_t *self) { return PP_HAS_GIL && self->end.segment->by_reference; }

static PyObject *raise_damaged_channel(void) {
    PyErr_SetString(PyExc_SystemError, "the pool's shared memory was overwritten: some task wrote to a descriptor that was not its own");
    return NULL;
}

/* Before a wait for tasks: decides how long the common objects of the last tasks are kept. */
static void limit_wait(worker_t *self, bool has_waited) {
    if (has_waited)
        pp_forget_common(self->module);
    self->end.deadline_ns = self->module->n_common > 0 ? pp_now_ns() + COMMON_IDLE_NS : 0;
}

PyDoc_STRVAR(retire_doc, "retire_when(function)\n\n"
                         "Sets what to call after each task. It returns the ns for which it need not be called again, or\n"
                         "-1 if the worker is to end as after its last task.");
static PyObject *worker_retire_when(worker_t *self, PyObject *function) {
    Py_XSETREF(self->retire, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* Whether the worker is to end. -1 with an exception if the end of the pool interrupts it. */
static int must_retire(worker_t *self) {
    uint64_t now = pp_now_ns();
    if (now < self->retire_at)
        return 0;
    PyObject *answer = PyObject_CallNoArgs(self->retire);
    long long pause_ns = answer ? PyLong_AsLongLong(answer) : 0;
    Py_XDECREF(answer);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_WriteUnraisable(self->retire);
        pause_ns = 0;
    }
    self->retire_at = now + (uint64_t)(pause_ns > 0 ? pause_ns : 0);
    return pause_ns < 0;
}

static PyObject *serve_tasks(worker_t *self, PyObject *failed, PyObject *unencodable, unsigned long long n_left) {
    bool has_waited = false;        /* in vain, for a task that might name the same common objects */
    for (;;) {
        pp_slot_t task;
        if (!pp_segment_is_sound(self->end.segment))
            return raise_damaged_channel();
        if (pp_worker_must_stop(&self->end))
            Py_RETURN_NONE;
        if (!pp_worker_claim(&self->end, &task, self->ring_copy)) {
            int error;
            limit_wait(self, has_waited);
            pp_trace_wait(&self->end);
            Py_BEGIN_ALLOW_THREADS
            error = pp_worker_wait(&self->end);
            if (shares_gil(self))
                pp_worker_await_caller(&self->end);
            Py_END_ALLOW_THREADS
            has_waited = error == ETIMEDOUT;
            if (self->arena)
                pp_arena_unpin(self->arena);
            if (error == ECANCELED)
                Py_RETURN_NONE;
            if (error && PyErr_CheckSignals() < 0)
                return NULL;
            continue;
        }
        has_waited = false;
        pp_trace_begin(&self->end);
        pp_frame_t frame = {.job = task.job, .index = task.index, .status = PP_STATUS_OK};
        PyObject *call = NULL;
        PyObject *result = keep_limits(self) < 0 ? refuse(self, &task) : run_task(self, &task, &call);
        if (pp_load_relaxed(&pp_n_forks) != self->n_forks)
            _exit(1);   /* a child that a task forked has returned here; the task belongs to its parent */
        pp_limits_end_task(&self->limits);
        if (result == NULL && pp_load_relaxed(&self->end.own->begun_ns))
            pp_end_interrupts(self->end.segment, self->end.own, true);   /* the task has ended; an interrupt would break off what describes its error */
        int error = result ? send_value(self, &frame, &result) : send_failure(self, &frame, PP_STATUS_FAILED, failed, call);
        bool is_damaged = (result == NULL || error < 0) && !pp_segment_has_file(self->end.segment);
        if (result && error < 0 && is_damaged)
            error = send_failure(self, &frame, PP_STATUS_FAILED, failed, NULL);
        else if (result && error < 0)
            error = send_failure(self, &frame, PP_STATUS_UNENCODABLE, unencodable, result);
        Py_XDECREF(result);
        Py_XDECREF(call);
        if (error < 0)
            error = send_bare_failure(self, &frame);
        if (error < 0)
            return NULL;   /* still holding the task: the parent sees that this worker ended with it */
        pp_worker_finish(&self->end);
        pp_store_relaxed(&self->end.own->has_replied, 0);
        if (error || (n_left && --n_left == 0) || (is_damaged && self->end.segment->is_attached))
            Py_RETURN_NONE;
        int retires = self->retire ? must_retire(self) : 0;
        if (retires < 0)
            return NULL;
        if (retires)
            Py_RETURN_NONE;
    }
}

PyDoc_STRVAR(serve_doc,
             "serve(failed, unencodable, max_tasks=0)\n\n"
             "Runs tasks until the pool ends, or max_tasks have run. failed(exception, call) and unencodable(exception, result)\n"
             "return what to send instead of a result. call: (function, argument, mode, which item of a chunk has raised), or\n"
             "missing if it did not come to the call.");
/* Results may reference memory that this process owns; wait until they are received. */
static void await_receivers(worker_t *self) {
    while (self->arena && pp_arena_has_pins(self->arena) && wait_block(self) == 0)
        pp_arena_unpin(self->arena);
}

static PyObject *worker_serve(worker_t *self, PyObject *args) {
    PyObject *failed, *unencodable;
    unsigned long long n_left = 0;
    if (!PyArg_ParseTuple(args, "OO|K", &failed, &unencodable, &n_left))
        return NULL;
    pp_store_relaxed(&self->end.own->tid, pp_thread_id());
    PyObject *done = serve_tasks(self, failed, unencodable, n_left);
    if (done)
        await_receivers(self);
    pp_trace_close(&self->end);
    if (self->end.segment->by_reference)
        pp_end_interrupts(self->end.segment, self->end.own, true);
    return done;
}

/* ---- one task at a time, by reference ----
 *
 * A worker that passes its tasks on to another machine takes each with `claim` and answers it later with `reply`, in
 * any thread that has the GIL, but in one at a time. */

/* Waits for a task. 0, ETIMEDOUT or EINTR: claim again; ECANCELED: the pool ends. */
static int wait_task(worker_t *self) {
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = pp_worker_wait(&self->end);
    Py_END_ALLOW_THREADS
    return error;
}

PyDoc_STRVAR(claim_doc, "claim(waits) -> (function, argument, mode, call) or None\n\n"
                        "Takes a task of a channel whose values pass by reference. None: there is no task; with `waits`, the pool ends.");
static PyObject *worker_claim(worker_t *self, PyObject *waits) {
    if (!self->end.segment->by_reference) {
        PyErr_SetString(PyExc_TypeError, "claim is for channels whose values pass by reference");
        return NULL;
    }
    int must_wait = PyObject_IsTrue(waits);
    if (must_wait < 0)
        return NULL;
    pp_slot_t task;
    for (;;) {
        if (pp_worker_must_stop(&self->end))
            Py_RETURN_NONE;
        if (pp_worker_claim(&self->end, &task, self->ring_copy))
            break;
        int error = must_wait ? wait_task(self) : ECANCELED;
        if (error == ECANCELED)
            Py_RETURN_NONE;
        if (error && PyErr_CheckSignals() < 0)
            return NULL;
    }
    PyObject **pair = (PyObject **)task.data;   /* references that are ours now */
    return Py_BuildValue("(NNIK)", pair[0], pair[1], (unsigned)(task.mode & ~(unsigned)PP_IS_TIMED), (unsigned long long)task.job);
}

PyDoc_STRVAR(reply_doc, "reply(status, value)\n\nAnswers the task that `claim` has taken. It is dropped if the pool ends.");
static PyObject *worker_reply(worker_t *self, PyObject *args) {
    unsigned status;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "IO", &status, &value))
        return NULL;
    pp_worker_slot_t *own = self->end.own;
    if (!self->end.segment->by_reference || !pp_load_acquire(&own->holds)) {
        PyErr_SetString(PyExc_RuntimeError, "reply is for a task that claim has taken");
        return NULL;
    }
    pp_frame_t frame = {.job = pp_load_relaxed(&own->job), .index = pp_load_relaxed(&own->index), .status = (uint16_t)status};
    frame.size = sizeof value;
    Py_INCREF(value);
    int error = write_frame(self, &frame, &value);
    if (error)
        Py_DECREF(value);
    pp_worker_finish(&self->end);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(report_doc, "report_broken(description)\n\nTells the parent that the initializer failed.");
static PyObject *worker_report_broken(worker_t *self, PyObject *description) {
    pp_frame_t frame = {.status = PP_STATUS_BROKEN_INIT};
    Py_INCREF(description);
    int failed = send_value(self, &frame, &description);
    Py_XDECREF(description);
    if (failed < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *worker_ready(worker_t *self, PyObject *ignored) {
    (void)ignored;
    pp_worker_state(&self->end, PP_WORKER_READY);
    Py_RETURN_NONE;
}

static PyObject *worker_exited(worker_t *self, PyObject *ignored) {
    (void)ignored;
    pp_worker_state(&self->end, PP_WORKER_EXITED);
    Py_RETURN_NONE;
}

static PyObject *get_must_stop(worker_t *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(pp_worker_must_stop(&self->end));
}

/* Any thread of the worker may read this. The answer of a thread that runs no task may be one task late. */
static PyObject *get_task(worker_t *self, void *closure) {
    (void)closure;
    pp_worker_slot_t *own = self->end.own;
    if (!pp_load_acquire(&own->holds))
        Py_RETURN_NONE;
    return Py_BuildValue("(KI)", (unsigned long long)pp_load_relaxed(&own->job), (unsigned)pp_load_relaxed(&own->index));
}

static PyGetSetDef getset[] = {
    {"must_stop", (getter)get_must_stop, NULL, "the pool was terminated", NULL},
    {"task", (getter)get_task, NULL, "the number of the call and of its task that the worker holds, or None", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"attach", (PyCFunction)worker_attach, METH_VARARGS | METH_CLASS, attach_doc},
    {"refresh_with", (PyCFunction)worker_refresh_with, METH_O, refresh_doc},
    {"retire_when", (PyCFunction)worker_retire_when, METH_O, retire_doc},
    {"keep_grant", (PyCFunction)worker_keep_grant, METH_VARARGS, keep_doc},
    {"initialize", (PyCFunction)worker_initialize, METH_O, initialize_doc},
    {"enter", (PyCFunction)worker_enter, METH_NOARGS, enter_doc},
    {"leave", (PyCFunction)worker_leave, METH_NOARGS, "leave()\n\nEnds what `enter` began: the worker is no longer active."},
    {"serve", (PyCFunction)worker_serve, METH_VARARGS, serve_doc},
    {"claim", (PyCFunction)worker_claim, METH_O, claim_doc},
    {"reply", (PyCFunction)worker_reply, METH_VARARGS, reply_doc},
    {"report_broken", (PyCFunction)worker_report_broken, METH_O, report_doc},
    {"ready", (PyCFunction)worker_ready, METH_NOARGS, "ready()\n\nTells the parent that the initializer has run."},
    {"exited", (PyCFunction)worker_exited, METH_NOARGS, "exited()\n\nTells the parent that this worker ends."},
    {0},
};

PyDoc_STRVAR(doc, "A worker's end of the channel: tasks in, results out.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},          {Py_tp_traverse, worker_traverse}, {Py_tp_clear, worker_clear},
    {Py_tp_dealloc, worker_dealloc},   {Py_tp_methods, methods},          {Py_tp_getset, getset},
    {0, NULL},
};

PyType_Spec pp_worker_spec = {
    .name = "pool_party._native.Worker",
    .basicsize = sizeof(worker_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
