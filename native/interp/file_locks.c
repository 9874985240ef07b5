/* The locks of files that private copies take.
 *
 * Locks by fcntl and lockf belong to a process: two copies of a library in one process may both have one for the same file, and
 * closing the file in one of them takes the other one's away. A library that relies on such locks, and on a list of its own of
 * the files that it has open, would let two interpreters write at once. So a copy is refused such a lock, as by a file system
 * that has none (ENOLCK), unless the user has named its package in `extensions`.
 *
 * Locks by flock belong to an open file, so they work between copies.
 */
#include "python.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

static _Atomic unsigned n_locks[3];   /* by kind */
enum { OF_PROCESS, OF_FILE, REFUSED };

/* Whether the copy that the address is in may have a lock of the process. Says once why not. */
static bool may_lock(uintptr_t from) {
    pp_place_t place;
    if (!pp_unknown_threads_place(from, &place))
        return true;   /* not a copy's: a tail call has hidden it */
    pp_add_seq_cst(&n_locks[OF_PROCESS], 1);
    if (place.may_lock)
        return true;
    if (pp_add_seq_cst(&n_locks[REFUSED], 1) == 0)
        fprintf(stderr,
                "pool_party: %s was refused a lock of a file in a worker of kind 'interp': such locks (fcntl) do not conflict between "
                "interpreters of one process, so two workers could damage the file. Use kind='process' for it.\n",
                place.file ? place.file : "an extension module");
    errno = ENOLCK;
    return false;
}

/* Commands have an int, a pointer or nothing after them; a register or a word holds any of them. */
int pp_copy_fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    bool locks = (command == F_SETLK || command == F_SETLKW) && ((const struct flock *)argument)->l_type != F_UNLCK;
    if (locks && !may_lock((uintptr_t)__builtin_return_address(0)))
        return -1;
    return fcntl(fd, command, argument);
}

int pp_copy_lockf(int fd, int command, off_t length) {
    bool locks = command == F_LOCK || command == F_TLOCK;
    if (locks && !may_lock((uintptr_t)__builtin_return_address(0)))
        return -1;
    return lockf(fd, command, length);
}

int pp_copy_flock(int fd, int operation) {
    if ((operation & ~LOCK_NB) != LOCK_UN)
        pp_add_seq_cst(&n_locks[OF_FILE], 1);
    return flock(fd, operation);
}

const char pp_copies_locks_doc[] = PyDoc_STR("copies_locks() -> tuple\n\n"
                                             "Returns how many locks private copies have asked for in this process: those of the process (fcntl, lockf),\n"
                                             "those of an open file (flock), and how many of the first kind were refused.");
PyObject *pp_copies_locks(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return Py_BuildValue("III", pp_load_seq_cst(&n_locks[OF_PROCESS]), pp_load_seq_cst(&n_locks[OF_FILE]),
                         pp_load_seq_cst(&n_locks[REFUSED]));
}
