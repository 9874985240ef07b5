/* Deletes the TSS keys that private copies create.
 *
 * A process has 1,024 of them. Modules made with pybind11 create some with PyThread_tss_create and never delete them.
 * For a module that is loaded once that does not matter, but some hundred interpreters would use them up. So the copies
 * call these functions instead (imports.c), which record the keys. Those that are left are deleted once the interpreter
 * has ended.
 */
#include "python.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- the table of keys ---- */

typedef struct {
    Py_tss_t *owner;       /* where the copy stores the key */
    pthread_key_t key;
    int64_t interpreter;   /* its id, which is never reused */
} note_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards the table; nothing is called while it is held */
static note_t *notes;
static size_t n_notes, capacity;

static int64_t current_interpreter(void) {
    return PyInterpreterState_GetID(PyThreadState_GetInterpreter(PyThreadState_Get()));
}

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
static void survive_fork(void) { pthread_atfork(lock, unlock, unlock); }

/* Records a key. If the table cannot grow, the key is never deleted. */
static void note(Py_tss_t *owner) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int64_t interpreter = current_interpreter();
    pthread_once(&once, survive_fork);
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
        notes[n_notes++] = (note_t){owner, owner->_key, interpreter};
    pthread_mutex_unlock(&mutex);
}

static void forget(const Py_tss_t *owner) {
    pthread_mutex_lock(&mutex);
    for (size_t i = n_notes; i-- > 0;)
        if (notes[i].owner == owner)
            notes[i] = notes[--n_notes];
    pthread_mutex_unlock(&mutex);
}

void pp_keys_free(int64_t interpreter) {
    pthread_mutex_lock(&mutex);
    for (size_t i = n_notes; i-- > 0;)
        if (notes[i].interpreter == interpreter) {
            pthread_key_delete(notes[i].key);
            notes[i] = notes[--n_notes];
        }
    pthread_mutex_unlock(&mutex);
}

/* ---- what copies call instead ---- */

int pp_key_create(Py_tss_t *key) {
    if (PyThread_tss_is_created(key))
        return 0;
    int failed = PyThread_tss_create(key);
    if (!failed)
        note(key);
    return failed;
}

void pp_key_delete(Py_tss_t *key) {
    forget(key);   /* first: after the deletion another key may get its number */
    PyThread_tss_delete(key);
}

void pp_key_free(Py_tss_t *key) {
    forget(key);
    PyThread_tss_free(key);
}
