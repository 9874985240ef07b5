/* The atomic operations of native.h in a build with PP_SCHEDULE. They call a scheduler, which may run any other actor
 * before each of them, and which delays relaxed and releasing stores. The segment is so small that a few tasks fill it. */
#ifndef SCHEDULE_OPS_H
#define SCHEDULE_OPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum { SCH_RELAXED, SCH_RELEASE, SCH_ACQUIRE, SCH_SEQ_CST } sch_order_t;
typedef enum { SCH_ADD, SCH_OR, SCH_AND, SCH_SWAP } sch_rmw_t;

uint64_t sch_load(void *at, unsigned size, sch_order_t order);
void sch_store(void *at, unsigned size, uint64_t value, sch_order_t order);
uint64_t sch_rmw(void *at, unsigned size, sch_rmw_t what, uint64_t value);
bool sch_cas(void *at, void *expected, unsigned size, uint64_t value);

#define SCH_AT(p) ((void *)(uintptr_t)(p)), (unsigned)sizeof *(p)
#define pp_load_relaxed(p) ((__typeof__(*(p)))sch_load(SCH_AT(p), SCH_RELAXED))
#define pp_load_acquire(p) ((__typeof__(*(p)))sch_load(SCH_AT(p), SCH_ACQUIRE))
#define pp_load_seq_cst(p) ((__typeof__(*(p)))sch_load(SCH_AT(p), SCH_SEQ_CST))
#define pp_store_relaxed(p, v) sch_store(SCH_AT(p), (uint64_t)(v), SCH_RELAXED)
#define pp_store_release(p, v) sch_store(SCH_AT(p), (uint64_t)(v), SCH_RELEASE)
#define pp_store_seq_cst(p, v) sch_store(SCH_AT(p), (uint64_t)(v), SCH_SEQ_CST)
#define pp_add_seq_cst(p, v) ((__typeof__(*(p)))sch_rmw(SCH_AT(p), SCH_ADD, (uint64_t)(v)))
#define pp_or_seq_cst(p, v) ((__typeof__(*(p)))sch_rmw(SCH_AT(p), SCH_OR, (uint64_t)(v)))
#define pp_and_seq_cst(p, v) ((__typeof__(*(p)))sch_rmw(SCH_AT(p), SCH_AND, (uint64_t)(v)))
#define pp_swap_seq_cst(p, v) ((__typeof__(*(p)))sch_rmw(SCH_AT(p), SCH_SWAP, (uint64_t)(v)))
#define pp_cas_seq_cst(p, expected, v) \
    sch_cas((void *)(uintptr_t)(p), (void *)(expected), (unsigned)sizeof *(p), (uint64_t)(v))

#ifndef PP_SLOTS
#define PP_SLOTS 2u
#endif
#define PP_SLOT_INLINE 72u
#define PP_INLINE_MAX 8u
#define PP_TASK_BYTES 8u       /* one payload */
#define PP_RESULT_BYTES 64u    /* two results */
#define PP_BLOCKS 8u   /* more than tasks can use at once: the waiting ones, and one per worker */
#define PP_SHELF_BYTES 8u
#define PP_ARENA_BYTES (1ull << 16)
#define PP_EVENTS 1u
#define PP_MAX_WORKERS 64u
#define PP_FEW (PP_SLOTS == 4u ? 4u : 0u)   /* both ways to find results are explored: the leader looks into all rings, or follows the bits */
#define PP_BATCH 2u
#define PP_PATIENT_MIN schedule_patient_min
#define PP_IDLE_MAX schedule_idle_max
extern uint64_t schedule_idle_max;   /* pool.c: no limit, or 0 if blocks are trimmed */
extern unsigned schedule_patient_min;   /* pool.c: as good as no limit, or 0 if the leader is patient */

/* A mutex: an actor that finds it locked waits until it is unlocked. A robust mutex tells the next owner that the last
 * one died with it. */
void sch_mutex_init(void *mutex, const pthread_mutexattr_t *attributes);
int sch_mutex_lock(void *mutex);
int sch_mutex_trylock(void *mutex);
int sch_mutex_consistent(void *mutex);
int sch_mutex_unlock(void *mutex);
#define pthread_mutex_init(mutex, attributes) (sch_mutex_init(mutex, attributes), 0)
#define pthread_mutex_lock(mutex) sch_mutex_lock(mutex)
#define pthread_mutex_timedlock(mutex, until) ((void)(until), sch_mutex_lock(mutex))   /* no owner is stopped that long */
#define pthread_mutex_trylock(mutex) sch_mutex_trylock(mutex)
#define pthread_mutex_consistent(mutex) sch_mutex_consistent(mutex)
#define pthread_mutex_unlock(mutex) sch_mutex_unlock(mutex)

/* Returns the number of the actor, so that the parent's side sees workers as other processes. */
pid_t sch_getpid(void);
#define getpid sch_getpid

#endif
