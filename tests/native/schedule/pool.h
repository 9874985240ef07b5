/* A small pool on the real channel, as a program for the scheduler. */
#ifndef POOL_H
#define POOL_H

#include "scheduler.h"

#define WORKERS_MAX 4
#define TASKS_MAX 8

typedef struct {
    const char *name;
    unsigned n_slots;                          /* PP_SLOTS of the program that it is for */
    unsigned n_workers, n_tasks, n_each;       /* n_each: a worker ends after so many tasks; 0: with the pool */
    const char *waiters;                       /* beside the background thread, see run_waiter and run_main */
    const char *where;                         /* of each task in turn: (p)lace, (r)ing, (b)lock */
    bool cancels, is_patient, at_once;         /* at_once: tasks come while workers start */
} pool_t;

const sch_program_t *pool_program(const pool_t *pool);
uint64_t pool_state(void);                     /* a hash of all memory */

#endif
