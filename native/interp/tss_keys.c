/* Deletes the TSS keys that private copies create.
 *
 * A process has 1,024 of them. Modules made with pybind11 create some with PyThread_tss_create and never delete them, nor do
 * those of Rust, which use pthread_key_create. For a module that is loaded once that does not matter, but some hundred
 * interpreters would use them up. So the copies call these functions instead (imports.c), which record the keys. Those that
 * are left are deleted once the interpreter has ended, but for those of copies that stay loaded because their threads
 * still run.
 */
#include "python.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* ---- the table of keys ---- */

typedef struct {
    Py_tss_t *owner;       /* where the copy stores the key; NULL: the key is not CPython's */
    const void *there;     /* an address in the copy that created such a key */
    pthread_key_t key;
    int64_t interpreter;   /* its id, which is never reused */
} note_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards the table; nothing is called while it is held */
static note_t *notes;
static size_t n_notes, capacity;

static int64_t current_interpreter(void) {
    return PyInterpreterState_GetID(PyThreadState_GetInterpreter(PyThreadState_Get()));
}

static void lock_keys(void) { pthread_mutex_lock(&mutex); }
static void unlock_keys(void) { pthread_mutex_unlock(&mutex); }
static void guard_keys_at_fork(void) { pthread_atfork(lock_keys, unlock_keys, unlock_keys); }

/* Records a key. If the table cannot grow, the key is never deleted. */
static void note_key(note_t new) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, guard_keys_at_fork);
    pthread_mutex_lock(&mutex);
    if (n_notes == capacity) {
        size_t more = capacity ? 2 * capacity : 16;
        note_t *grown = realloc(notes, more * sizeof *notes);
        if (grown) {
            notes = grown;
            capacity = more;
        }
    }
    if (n_notes < capacity)
        notes[n_notes++] = new;
    pthread_mutex_unlock(&mutex);
}

/* One of CPython's keys, or if there is no owner, one that is not. */
static void forget_key(const Py_tss_t *owner, pthread_key_t key) {
    pthread_mutex_lock(&mutex);
    for (size_t i = n_notes; i-- > 0;)
        if (notes[i].owner == owner && (owner || notes[i].key == key))
            notes[i] = notes[--n_notes];
    pthread_mutex_unlock(&mutex);
}

static bool take_left_key(int64_t interpreter, note_t *taken) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < n_notes && !found; i++)
        if (notes[i].interpreter == interpreter) {
            *taken = notes[i];
            notes[i] = notes[--n_notes];
            found = true;
        }
    pthread_mutex_unlock(&mutex);
    return found;
}

static bool is_loaded(const void *there) {
    Dl_info info;
    return dladdr(there, &info) != 0;
}

void pp_keys_free(int64_t interpreter) {
    note_t left;
    while (take_left_key(interpreter, &left))
        if (left.owner || !is_loaded(left.there))
            pthread_key_delete(left.key);
}

/* ---- what copies call instead ---- */

int pp_key_create(Py_tss_t *key) {
    if (PyThread_tss_is_created(key))
        return 0;
    int failed = PyThread_tss_create(key);
    if (!failed)
        note_key((note_t){.owner = key, .key = key->_key, .interpreter = current_interpreter()});
    return failed;
}

void pp_key_delete(Py_tss_t *key) {
    forget_key(key, 0);   /* first: after the deletion another key may get its number */
    PyThread_tss_delete(key);
}

void pp_key_free(Py_tss_t *key) {
    forget_key(key, 0);
    PyThread_tss_free(key);
}

int pp_pthread_key_create(pthread_key_t *key, void (*destructor)(void *)) {
    const void *there[] = {__builtin_return_address(0), (void *)(uintptr_t)destructor, key};   /* after a tail call the first is elsewhere */
    int error = pthread_key_create(key, destructor);
    int64_t interpreter = -1;
    for (size_t i = 0; !error && interpreter < 0 && i < sizeof there / sizeof *there; i++)
        if ((interpreter = pp_unknown_threads_home((uintptr_t)there[i])) >= 0)
            note_key((note_t){.there = there[i], .key = *key, .interpreter = interpreter});
    return error;
}

int pp_pthread_key_delete(pthread_key_t key) {
    forget_key(NULL, key);
    return pthread_key_delete(key);
}
