/* The functions that private copies register for the end of Python.
 *
 * Py_AtExit has one table of 32 functions for the process, which are called when the main interpreter has ended. By then
 * copies are closed. So the copies call a function of ours instead (imports.c). What they register is called when their
 * own interpreter has ended, while they are still loaded, and without a thread state, as CPython's documentation says.
 */
#include "python.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    void (*function)(void);
    int64_t interpreter;   /* its id, which is never reused */
} exit_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards the table; nothing is called while it is held */
static exit_t *exits;
static size_t n_exits, capacity;

static void lock_exits(void) { pthread_mutex_lock(&mutex); }
static void unlock_exits(void) { pthread_mutex_unlock(&mutex); }
static void guard_exits_at_fork(void) { pthread_atfork(lock_exits, unlock_exits, unlock_exits); }

/* Any thread may call it, as with CPython's. */
int pp_exit_add(void (*function)(void)) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void *caller = __builtin_return_address(0);
    int64_t interpreter = pp_unknown_threads_home((uintptr_t)function);
    if (interpreter < 0)
        interpreter = pp_unknown_threads_home((uintptr_t)caller);
    int result = 0;
    if (interpreter < 0)
        return Py_AtExit(function);
    pthread_once(&once, guard_exits_at_fork);
    pthread_mutex_lock(&mutex);
    if (n_exits == capacity) {
        size_t more = capacity ? 2 * capacity : 16;
        exit_t *grown = realloc(exits, more * sizeof *exits);
        if (grown) {
            exits = grown;
            capacity = more;
        } else
            result = -1;
    }
    if (result == 0)
        exits[n_exits++] = (exit_t){function, interpreter};
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Takes the function that was registered last, as CPython does. */
static void (*take_last(int64_t interpreter))(void) {
    void (*function)(void) = NULL;
    pthread_mutex_lock(&mutex);
    for (size_t i = n_exits; i-- > 0 && !function;)
        if (exits[i].interpreter == interpreter) {
            function = exits[i].function;
            for (n_exits--; i < n_exits; i++)
                exits[i] = exits[i + 1];
        }
    pthread_mutex_unlock(&mutex);
    return function;
}

void pp_exits_run(int64_t interpreter) {
    void (*function)(void);
    while ((function = take_last(interpreter)) != NULL)
        function();
}
