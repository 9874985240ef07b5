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
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LEAVING_NS = 2000000000,   /* a guess: callbacks are short, and whoever needs more only makes the interpreter stay */
    PAUSE_NS = 5000000,        /* guess: between two looks for threads that have ended */
};

/* An interpreter and the addresses of its copies. */
typedef struct home {
    struct home *next;
    PyInterpreterState *interpreter;
    int64_t id;
    size_t n_inside, inside_capacity;
    int *inside;           /* the ids of threads with a thread state of ours */
    bool is_closed;
    size_t n, capacity;
    pp_place_t *places;
} home_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards all homes; no Python code runs while it is held */
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static home_t *homes;

static void lock_homes(void) { pthread_mutex_lock(&mutex); }
static void unlock_homes(void) { pthread_mutex_unlock(&mutex); }
static void guard_homes_at_fork(void) { pthread_atfork(lock_homes, unlock_homes, unlock_homes); }

static home_t *home_of(int64_t id) {
    home_t *home = homes;
    while (home && home->id != id)
        home = home->next;
    return home;
}

static home_t *home_at(uintptr_t address) {
    for (home_t *home = homes; home; home = home->next)
        for (size_t i = 0; i < home->n; i++)
            if (home->places[i].start <= address && address < home->places[i].end)
                return home;
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
    home_t *home = calloc(1, sizeof *home);
    if (home) {
        *home = (home_t){.next = homes, .interpreter = PyInterpreterState_Get(), .id = id};
        homes = home;
    }
    return home;
}

static void add_place(home_t *home, pp_place_t place) {
    if (home->n == home->capacity) {
        size_t capacity = home->capacity ? 2 * home->capacity : 64;
        pp_place_t *grown = realloc(home->places, capacity * sizeof *grown);
        if (grown == NULL)
            return;
        home->places = grown;
        home->capacity = capacity;
    }
    home->places[home->n++] = place;
}

/* Without memory for it, threads of this copy enter the main interpreter. */
void pp_unknown_threads_note(void *library, const char *file, bool may_sleep, bool may_lock) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return;
    search_t search = {.base = map->l_addr};
    if (!dl_iterate_phdr(measure_if_it_is, &search))
        return;
    search.place.file = strdup(file);
    search.place.may_lock = may_lock;
    if (may_sleep)
        search.place.code_size = 0;
    pthread_once(&once, guard_homes_at_fork);
    int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
    pthread_mutex_lock(&mutex);
    home_t *home = home_of(id);
    if (home || (home = add_home(id)))
        add_place(home, search.place);
    pthread_mutex_unlock(&mutex);
}

bool pp_unknown_threads_place(uintptr_t address, pp_place_t *place) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    home_t *home = home_at(address);
    for (size_t i = 0; home && i < home->n && !found; i++)
        if ((found = home->places[i].start <= address && address < home->places[i].end))
            *place = home->places[i];
    pthread_mutex_unlock(&mutex);
    return found;
}

int64_t pp_unknown_threads_home(uintptr_t address) {
    pthread_mutex_lock(&mutex);
    home_t *home = home_at(address);
    int64_t id = home ? home->id : -1;
    pthread_mutex_unlock(&mutex);
    return id;
}

/* ---- what copies call instead ---- */

static void wait_for_ever(void) {
    for (;;)
        pause();
}

static bool go_in(home_t *home, int thread) {
    if (home->n_inside == home->inside_capacity) {
        size_t capacity = home->inside_capacity ? 2 * home->inside_capacity : 8;
        int *grown = realloc(home->inside, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        home->inside = grown;
        home->inside_capacity = capacity;
    }
    home->inside[home->n_inside++] = thread;
    return true;
}

static void leave_home(int64_t id) {
    int thread = (int)pp_thread_id();
    pthread_mutex_lock(&mutex);
    home_t *home = home_of(id);
    for (size_t i = home ? home->n_inside : 0; i-- > 0;)
        if (home->inside[i] == thread) {
            home->inside[i] = home->inside[--home->n_inside];
            break;
        }
    if (home && home->n_inside == 0)
        pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&mutex);
}

typedef struct { PyInterpreterState *interpreter; int64_t id; bool is_late; } visit_t;

/* The interpreter of the copy at an address, whose end waits until `leave_home`; NULL if it is none, or ends, or has ended. */
static visit_t visit(uintptr_t from) {
    visit_t v = {.id = -1};
    pthread_mutex_lock(&mutex);
    home_t *home = home_at(from);
    v.is_late = home && home->is_closed;
    if (home && !v.is_late && go_in(home, (int)pp_thread_id())) {
        v.interpreter = home->interpreter;
        v.id = home->id;
    }
    pthread_mutex_unlock(&mutex);
    return v;
}

/* A new thread state for a thread that comes from a copy; NULL: it does not. It is made without the mutex, because
 * CPython's lock for it is held during a fork, whose handler takes the mutex. */
static PyThreadState *enter_home(uintptr_t from) {
    visit_t v = visit(from);
    if (v.is_late)
        wait_for_ever();
    PyThreadState *state = v.interpreter ? PyThreadState_New(v.interpreter) : NULL;
    if (v.interpreter && state == NULL)
        leave_home(v.id);
    return state;
}

PyGILState_STATE pp_gil_ensure(void) {
    PyThreadState *state = PyGILState_GetThisThreadState() ? NULL : enter_home((uintptr_t)__builtin_return_address(0));
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
        leave_home(id);
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
    leave_home(v.id);
    return result;
}
#endif

static bool has_ended(uintptr_t from) {
    if (PyGILState_GetThisThreadState())
        return false;
    pthread_mutex_lock(&mutex);
    home_t *home = home_at(from);
    bool is_closed = home && home->is_closed;
    pthread_mutex_unlock(&mutex);
    return is_closed;
}

int pp_is_initialized(void) { return !has_ended((uintptr_t)__builtin_return_address(0)) && Py_IsInitialized(); }

/* ---- the end of an interpreter ---- */

static bool has_ended_thread(int thread) { return syscall(SYS_tgkill, getpid(), thread, 0) < 0 && errno == ESRCH; }

/* A thread that has ended without leaving is not inside: cffi keeps the state of a thread for its next callback. */
static bool all_have_left(home_t *home) {
    for (size_t i = home->n_inside; i-- > 0;)
        if (has_ended_thread(home->inside[i]))
            home->inside[i] = home->inside[--home->n_inside];
    return home->n_inside == 0;
}

bool pp_unknown_threads_end(int64_t id) {
    int64_t deadline_ns = pp_now_ns() + LEAVING_NS;
    pthread_mutex_lock(&mutex);
    home_t *home = home_of(id);
    if (home)
        home->is_closed = true;
    bool have_left;
    while (!(have_left = home == NULL || all_have_left(home)) && pp_now_ns() < deadline_ns) {
        struct timespec until;   /* a thread that ends says nothing */
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PAUSE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&left, &mutex, &until);
    }
    pthread_mutex_unlock(&mutex);
    return have_left;
}

/* The first state whose thread has ended. */
static PyThreadState *state_of_nobody(PyInterpreterState *interpreter) {
    PyThreadState *state = PyInterpreterState_ThreadHead(interpreter);
    while (state && (state->native_thread_id == 0 || !has_ended_thread((int)state->native_thread_id)))
        state = PyThreadState_Next(state);
    return state;
}

void pp_unknown_threads_clear(PyInterpreterState *interpreter) {
    PyThreadState *state;
    while ((state = state_of_nobody(interpreter)) != NULL) {
        state->_status.bound_gilstate = 0;   /* otherwise CPython would take the calling thread's state for it */
        PyThreadState_Clear(state);
        PyThreadState_Delete(state);
    }
}

/* Nobody changes the places of an interpreter that has ended. */
bool pp_unknown_threads_stay(int64_t id) {
    pthread_mutex_lock(&mutex);
    const home_t *home = home_of(id);
    pthread_mutex_unlock(&mutex);
    const char *why = home ? pp_is_inside(home->places, home->n) : NULL;
    if (why == NULL && home)
        why = pp_is_referred(home->places, home->n);
    if (why)
        pp_staying_note(why);
    return why != NULL;
}

void pp_unknown_threads_forget(int64_t id) {
    pthread_mutex_lock(&mutex);
    home_t **at = &homes, *home = home_of(id);
    while (*at && *at != home)
        at = &(*at)->next;
    if (home)
        *at = home->next;
    pthread_mutex_unlock(&mutex);
    for (size_t i = 0; home && i < home->n; i++)
        free(home->places[i].file);
    if (home) {
        free(home->places);
        free(home->inside);
    }
    free(home);
}
