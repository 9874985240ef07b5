/* Frees the memory of interpreters that have ended.
 *
 * An interpreter with its own allocator takes memory in arenas of 1 MB. At its end CPython frees them only if no object
 * is left. Extension modules that are made for one interpreter per process leave many objects behind, in static types
 * and variables. Nothing can reach these once the interpreter has ended and its libraries are closed. With NumPy that
 * is 10 MB per interpreter. So we record which arenas an interpreter has, and free those that are left.
 *
 * Other interpreters can reach one kind of object: a memoryview that was sent to another interpreter shares the
 * sender's buffer (concurrent.interpreters). Such views are looked for before the end. If one is still in use after it,
 * the interpreter's memory stays.
 *
 * PyObject_SetArenaAllocator affects the whole process. Arenas of the main interpreter pass through untouched; those of
 * interpreters that are not ours are recorded, but never freed here. Before 3.14, where no copies are loaded, nothing
 * is done.
 */
#include "python.h"

#if PY_VERSION_HEX < 0x030E0000 || defined(Py_GIL_DISABLED)

void pp_arenas_watch(void) {}
void pp_arenas_free(int64_t interpreter) { (void)interpreter; }
void pp_lent_find(pp_lent_t *lent) { *lent = (pp_lent_t){0}; }
bool pp_lent_remain(pp_lent_t *lent, int64_t interpreter) { (void)lent, (void)interpreter; return false; }

#else

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    void *start;
    size_t size;
    int64_t interpreter;   /* its id, which is never reused */
} arena_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards the table; nothing is called while it is held */
static arena_t *arenas;
static size_t n_arenas, capacity;
static PyObjectArenaAllocator system_arenas;   /* the previous allocator; written before ours is in use */

#if PY_VERSION_HEX < 0x030D0000
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

static int64_t current_interpreter_or_0(void) {
    PyThreadState *state = PyThreadState_GetUnchecked();
    return state ? PyInterpreterState_GetID(PyThreadState_GetInterpreter(state)) : 0;
}

/* Records an arena. If the table cannot grow, the arena is never freed. */
static void note_arena(void *start, size_t size, int64_t interpreter) {
    pthread_mutex_lock(&mutex);
    if (n_arenas == capacity) {
        size_t more = capacity ? 2 * capacity : 64;
        arena_t *grown = realloc(arenas, more * sizeof *arenas);
        if (grown) {
            arenas = grown;
            capacity = more;
        }
    }
    if (n_arenas < capacity)
        arenas[n_arenas++] = (arena_t){start, size, interpreter};
    pthread_mutex_unlock(&mutex);
}

static void *take_arena(void *ignored, size_t size) {
    (void)ignored;
    void *start = system_arenas.alloc(system_arenas.ctx, size);
    int64_t interpreter = start ? current_interpreter_or_0() : 0;
    if (interpreter != 0)
        note_arena(start, size, interpreter);
    return start;
}

static void give_arena(void *ignored, void *start, size_t size) {
    (void)ignored;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < n_arenas; i++)
        if (arenas[i].start == start) {
            arenas[i] = arenas[--n_arenas];
            break;
        }
    pthread_mutex_unlock(&mutex);
    system_arenas.free(system_arenas.ctx, start, size);
}

static bool take_left_arena(int64_t interpreter, arena_t *left) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < n_arenas && !found; i++)
        if (arenas[i].interpreter == interpreter) {
            *left = arenas[i];
            arenas[i] = arenas[--n_arenas];
            found = true;
        }
    pthread_mutex_unlock(&mutex);
    return found;
}

void pp_arenas_free(int64_t interpreter) {
    arena_t left;
    while (take_left_arena(interpreter, &left))
        system_arenas.free(system_arenas.ctx, left.start, left.size);
}

/* ---- buffers that other interpreters use ---- */

static int add_if_lent(PyObject *object, void *arg) {
    pp_lent_t *lent = arg;
    if (!PyMemoryView_Check(object) || ((PyMemoryViewObject *)object)->exports == 0)
        return 1;
    const PyObject **grown = realloc(lent->views, (lent->n + 1) * sizeof *grown);
    if (grown) {
        lent->views = grown;
        lent->views[lent->n++] = object;
    }
    return grown != NULL;
}

void pp_lent_find(pp_lent_t *lent) {
    *lent = (pp_lent_t){0};
    PyUnstable_GC_VisitObjects(add_if_lent, lent);
}

static bool is_in_arena(const void *object, int64_t interpreter) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < n_arenas && !found; i++)
        found = arenas[i].interpreter == interpreter && (uintptr_t)object - (uintptr_t)arenas[i].start < arenas[i].size;
    pthread_mutex_unlock(&mutex);
    return found;
}

/* A view that was freed has no exports. What lies there afterwards is another object, or another view of the same
 * interpreter. */
static bool is_lent(const PyObject *object, int64_t interpreter) {
    return is_in_arena(object, interpreter) && Py_TYPE(object) == &PyMemoryView_Type &&
           ((const PyMemoryViewObject *)object)->exports > 0;
}

bool pp_lent_remain(pp_lent_t *lent, int64_t interpreter) {
    bool remain = false;
    for (size_t i = 0; i < lent->n && !remain; i++)
        remain = is_lent(lent->views[i], interpreter);
    free(lent->views);
    return remain;
}

/* ---- the hook ---- */

static void lock_arenas(void) { pthread_mutex_lock(&mutex); }
static void unlock_arenas(void) { pthread_mutex_unlock(&mutex); }

static void watch_arenas(void) {
    PyObject_GetArenaAllocator(&system_arenas);
    /* The same ctx: another interpreter may meanwhile call with a mixture of the old and the new fields. */
    PyObjectArenaAllocator ours = {.ctx = system_arenas.ctx, .alloc = take_arena, .free = give_arena};
    pthread_atfork(lock_arenas, unlock_arenas, unlock_arenas);
    PyObject_SetArenaAllocator(&ours);
}

void pp_arenas_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_arenas);
}

#endif
