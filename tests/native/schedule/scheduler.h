/* A scheduler of actors (coroutines) that share memory. It decides which actor makes the next step, how long a store
 * stays unseen, which actor is killed, and which sleeper wakes in vain. A run depends only on these decisions, so it
 * can be repeated. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "native.h"

#include <sys/types.h>

#define ACTORS_MAX 24
#define SCH_IDLE_NS 100000000    /* a sleep this long reaches its deadline only while no actor can do anything else */
#define SCH_LONG_NS 1000000000   /* a sleep this long is a caller's timeout: what is not done by then counts as never done */

/* ---- for the explored program ---- */

typedef bool (*sch_condition_t)(void);

int sch_start(const char *name, int number, bool may_die, void (*run)(int number));   /* returns the new actor */
void sch_decide_from_here(void);               /* before that, each actor runs for as long as it can */
void sch_until(sch_condition_t condition);     /* sleeps until the condition holds, as on a Python lock or condition */
void sch_task(void);                           /* a task: it ends only when no actor can do anything else */
void sch_pass(int64_t ns);                     /* the actor's clock goes on by so much */
void sch_system_call(void);                    /* a system call other than futex: a step */
unsigned sch_choose(unsigned n);                /* a decision of the program itself: 0 to n - 1 */
uint64_t sch_note(uint64_t value);             /* the actor has read this value outside atomic words; returns it */
void sch_forget(uint64_t all_but);             /* what the actor has read so far no longer affects it, except this */
bool sch_has_ended(int actor);                 /* by itself, or because it was killed */
bool sch_was_killed(int actor);
bool sch_sleeps_on(int actor, const void *word);
bool sch_is_asleep(int actor);                 /* on any futex */
uint64_t sch_newest(const void *word, unsigned size);   /* including stores that are not visible yet */
int sch_last_actor(void);
const char *sch_name_of(int actor);
void sch_constant(const void *word);           /* no actor changes it during a run: reading it is no step */
void sch_name(const void *from, unsigned size, const char *format, int number);   /* for traces */
void sch_forget_words(void);                   /* undoes the two calls above, for another program */
#define sch_say(...) (sch_is_traced ? sch_trace(sch_current(), __VA_ARGS__) : (void)0)   /* a line in the trace */
extern bool sch_is_traced;
void sch_trace(int actor, const char *format, ...);
int sch_current(void);
_Noreturn void sch_fail(const char *format, ...);
#define sch_check(condition, ...) ((condition) ? (void)0 : sch_fail(__VA_ARGS__))

/* ---- between the program and the explorer ---- */

#define REGIONS_MAX 100
typedef struct {
    void *at;
    size_t size;
} sch_region_t;

typedef struct {
    void (*begin)(void);                       /* starts the first actors */
    unsigned (*regions)(sch_region_t *out);    /* all memory that a run changes; returns how many regions */
    void (*idle)(void);                        /* no actor can do anything before SCH_IDLE_NS have passed: checks */
    void (*busy)(void);                        /* actors can only end a task, or reach a deadline: checks */
    void (*end)(void);                         /* no actor can do anything: checks */
    uint64_t (*guarded)(void);                 /* a hash of what mutexes guard: an actor that locks one may read it */
    uint64_t (*state)(void);                   /* a hash of all memory */
    void (*change)(int from, int to);          /* switches thread-local variables to another actor; -1: none. Or NULL */
} sch_program_t;

const char *program_name(unsigned i);          /* the programs that can be explored; NULL: no more */
const sch_program_t *program_open(unsigned i);

/* ---- for the explorer ---- */

typedef struct {                               /* limits for a run */
    unsigned preemptions, kills, delays, vain_wakes;
} sch_budget_t;

typedef enum { SCH_PASSED, SCH_FAILED, SCH_KNOWN } sch_result_t;   /* KNOWN: it reached a known state */

typedef enum { SCH_GO, SCH_TIMEOUT, SCH_KILL, SCH_VAIN_WAKE, SCH_INTERRUPT, SCH_EARLY, SCH_DRAIN, SCH_ANSWER } sch_deed_t;
typedef struct {                               /* one possible next event */
    sch_deed_t deed;
    int actor, n;                              /* DRAIN: the actor's n-th pending store; ANSWER: n */
} sch_option_t;

/* Chooses one of at least two options. The first one is free of cost: the actor continues, the store is visible at
 * once. */
typedef unsigned (*sch_decide_t)(const sch_option_t *options, unsigned n);

sch_result_t sch_run(const sch_program_t *program, sch_decide_t decide, sch_budget_t budget, bool traced);
typedef struct sch_saved sch_saved_t;
bool sch_save(sch_saved_t **to);               /* within `decide`: false; true once `sch_resume` has returned to this point */
sch_result_t sch_resume(const sch_saved_t *from, sch_decide_t decide, const sch_budget_t *budget, bool traced);   /* NULL: as saved */
const char *sch_failure(void);
unsigned sch_steps(void);                      /* of the last run */
_Noreturn void sch_stop_run(void);             /* within `decide`: the run is KNOWN */
uint64_t sch_state(void);                      /* a hash of the position and the pending stores of each actor; not of memory */
uint64_t sch_mix(uint64_t a, uint64_t b);

#endif
