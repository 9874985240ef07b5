/* The rule by which active workers, of every kind, divide threads. A pure function.
 *
 * The active workers of a process, of all its pools, have ranks from 0. Dividing threads among them gives each the same
 * part, and those of the lowest ranks one more. A worker has its own number, but at least its part of the threads for
 * which other programs leave CPUs, and at most its part of all. So the CPUs of idle workers are lent to active ones, and
 * pools that have work at the same time share the machine.
 *
 * While all workers of the only pool are active, their parts are their own numbers, unless these were divided unevenly.
 */
#include "native.h"

static unsigned part_of(unsigned n_threads, unsigned n_awake, unsigned rank) { return n_threads / n_awake + (rank < n_threads % n_awake); }

/* Returns an active worker's threads, 1 at least. own: its threads while all workers of its pool are active. n_threads:
 * those of the pool. n_left: for how many of these other programs leave CPUs; 0: nothing is lent. */
unsigned pp_divide(unsigned own, unsigned rank, unsigned n_awake, unsigned n_threads, unsigned n_left) {
    unsigned most = part_of(n_threads, n_awake, rank), least = part_of(n_left < n_threads ? n_left : n_threads, n_awake, rank);
    unsigned n = own < least ? least : own > most ? most : own;
    return n > 0 ? n : 1;
}
