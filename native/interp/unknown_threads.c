/* Threads that Python does not know and that run code of private copies, such as those of OpenMP, Rayon and Arrow.
 *
 * If such a thread needs Python, it calls PyGILState_Ensure, which enters the main interpreter. The objects of a copy
 * belong to the copy's interpreter, so there two interpreters would use them at once. Therefore copies call a function of
 * ours (imports.c), which finds the copy by the address that it returns to, and enters the copy's interpreter. CPython's
 * PyGILState_Release then leaves that. Threads that Python knows are left to CPython.
 *
 * At the end of an interpreter, first nobody else may enter, then those inside leave. Whoever comes later waits for ever,
 * as CPython makes them do at the end of a program. The copies stay loaded, as for any thread that is in their code
 * (inside.c). Code that asks first whether Python is initialized is told that it is not.
 */
#include "python.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LEAVING_S 2   /* a guess: callbacks are short, and whoever needs more only makes the interpreter stay */

/* An interpreter and the addresses of its copies. */
typedef struct home {
    struct home *next;
    PyInterpreterState *interpreter;
    int64_t id;
    unsigned n_inside;     /* threads with a thread state of ours */
    bool is_closed;
    size_t n, capacity;
    pp_place_t *places;
} home_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards all homes; no Python code runs while it is held */
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static home_t *homes;

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
static void survive_fork(void) { pthread_atfork(lock, unlock, unlock); }

static home_t *home_of(int64_t id) {
    home_t *h = homes;
    while (h && h->id != id)
        h = h->next;
    return h;
}

static home_t *home_at(uintptr_t address) {
    for (home_t *h = homes; h; h = h->next)
        for (size_t i = 0; i < h->n; i++)
            if (h->places[i].start <= address && address < h->places[i].end)
                return h;
    return NULL;
}

/* ---- which interpreter a copy belongs to ---- */

typedef struct { ElfW(Addr) base; pp_place_t place; } search_t;

static int measure_if_it_is(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    search_t *s = arg;
    if (info->dlpi_addr != s->base)
        return 0;
    s->place.start = UINTPTR_MAX;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = s->base + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        if (start < s->place.start)
            s->place.start = start;
        if (start + segment->p_memsz > s->place.end)
            s->place.end = start + segment->p_memsz;
        if (segment->p_flags & PF_X) {   /* linkers make one */
            s->place.code = start;
            s->place.code_size = segment->p_memsz;
        }
    }
    return 1;
}

static home_t *add_home(int64_t id) {
    home_t *h = calloc(1, sizeof *h);
    if (h) {
        *h = (home_t){.next = homes, .interpreter = PyInterpreterState_Get(), .id = id};
        homes = h;
    }
    return h;
}

static void add_place(home_t *h, pp_place_t place) {
    if (h->n == h->capacity) {
        size_t capacity = h->capacity ? 2 * h->capacity : 64;
        pp_place_t *grown = realloc(h->places, capacity * sizeof *grown);
        if (grown == NULL)
            return;
        h->places = grown;
        h->capacity = capacity;
    }
    h->places[h->n++] = place;
}

/* Without memory for it, threads of this copy enter the main interpreter. */
void pp_unknown_threads_note(void *library, bool may_sleep) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return;
    search_t search = {.base = map->l_addr};
    if (!dl_iterate_phdr(measure_if_it_is, &search))
        return;
    if (may_sleep)
        search.place.code_size = 0;
    pthread_once(&once, survive_fork);
    int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
    pthread_mutex_lock(&mutex);
    home_t *h = home_of(id);
    if (h || (h = add_home(id)))
        add_place(h, search.place);
    pthread_mutex_unlock(&mutex);
}

int64_t pp_unknown_threads_home(uintptr_t address) {
    pthread_mutex_lock(&mutex);
    home_t *h = home_at(address);
    int64_t id = h ? h->id : -1;
    pthread_mutex_unlock(&mutex);
    return id;
}

/* ---- what copies call instead ---- */

static void wait_for_ever(void) {
    for (;;)
        pause();
}

static void leave(int64_t id) {
    pthread_mutex_lock(&mutex);
    home_t *h = home_of(id);
    if (h && h->n_inside && --h->n_inside == 0)
        pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&mutex);
}

typedef struct { PyInterpreterState *interpreter; int64_t id; bool is_late; } visit_t;

/* The interpreter of the copy at an address, whose end waits until `leave`; NULL if it is none, or ends, or has ended. */
static visit_t visit(uintptr_t from) {
    visit_t v = {.id = -1};
    pthread_mutex_lock(&mutex);
    home_t *h = home_at(from);
    v.is_late = h && h->is_closed;
    if (h && !v.is_late) {
        h->n_inside++;
        v.interpreter = h->interpreter;
        v.id = h->id;
    }
    pthread_mutex_unlock(&mutex);
    return v;
}

/* A new thread state for a thread that comes from a copy; NULL: it does not. It is made without the mutex, because
 * CPython's lock for it is held during a fork, whose handler takes the mutex. */
static PyThreadState *enter(uintptr_t from) {
    visit_t v = visit(from);
    if (v.is_late)
        wait_for_ever();
    PyThreadState *state = v.interpreter ? PyThreadState_New(v.interpreter) : NULL;
    if (v.interpreter && state == NULL)
        leave(v.id);
    return state;
}

PyGILState_STATE pp_gil_ensure(void) {
    PyThreadState *state = PyGILState_GetThisThreadState() ? NULL : enter((uintptr_t)__builtin_return_address(0));
    if (state == NULL)
        return PyGILState_Ensure();
    PyEval_RestoreThread(state);
    return PyGILState_UNLOCKED;
}

/* CPython deletes a thread state when it is released as often as it was ensured. The first time counts. */
void pp_gil_release(PyGILState_STATE before) {
    PyThreadState *state = PyGILState_GetThisThreadState();
    bool leaves = state && state->gilstate_counter == 1;
    int64_t id = leaves ? PyInterpreterState_GetID(PyThreadState_GetInterpreter(state)) : 0;
    PyGILState_Release(before);
    if (leaves)
        leave(id);
}

#if PY_VERSION_HEX >= 0x030E0000
extern int _PyEval_AddPendingCall(PyInterpreterState *interpreter, int (*function)(void *), void *argument, int flags);

/* Schedules a call in the calling thread's interpreter; without a thread state, in the interpreter of the copy that the
 * function is in. CPython's function runs all calls in the main interpreter.
 *
 * greenlet makes such a call when a thread ends, be it the worker's own, so the interpreter may have ended: then the call
 * is dropped. CPython takes here the lock, too, that is held during a fork. */
int pp_add_pending_call(int (*function)(void *), void *argument) {
    PyThreadState *state = PyThreadState_GetUnchecked();
    if (state)
        return _PyEval_AddPendingCall(PyThreadState_GetInterpreter(state), function, argument, 0);
    visit_t v = visit((uintptr_t)function);
    if (v.interpreter == NULL)
        return 0;
    int result = _PyEval_AddPendingCall(v.interpreter, function, argument, 0);
    leave(v.id);
    return result;
}
#endif

static bool has_ended(uintptr_t from) {
    if (PyGILState_GetThisThreadState())
        return false;
    pthread_mutex_lock(&mutex);
    home_t *h = home_at(from);
    bool is_closed = h && h->is_closed;
    pthread_mutex_unlock(&mutex);
    return is_closed;
}

int pp_is_initialized(void) { return !has_ended((uintptr_t)__builtin_return_address(0)) && Py_IsInitialized(); }

/* ---- the end of an interpreter ---- */

bool pp_unknown_threads_end(int64_t id) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LEAVING_S;
    pthread_mutex_lock(&mutex);
    home_t *h = home_of(id);
    if (h)
        h->is_closed = true;
    while (h && h->n_inside && pthread_cond_timedwait(&left, &mutex, &until) != ETIMEDOUT) {
    }
    bool all_have_left = h == NULL || h->n_inside == 0;
    pthread_mutex_unlock(&mutex);
    return all_have_left;
}

/* Nobody changes the places of an interpreter that has ended. */
bool pp_unknown_threads_stay(int64_t id) {
    pthread_mutex_lock(&mutex);
    const home_t *h = home_of(id);
    pthread_mutex_unlock(&mutex);
    return h && pp_is_inside(h->places, h->n);
}

void pp_unknown_threads_forget(int64_t id) {
    pthread_mutex_lock(&mutex);
    home_t **at = &homes, *h = home_of(id);
    while (*at && *at != h)
        at = &(*at)->next;
    if (h)
        *at = h->next;
    pthread_mutex_unlock(&mutex);
    if (h)
        free(h->places);
    free(h);
}
