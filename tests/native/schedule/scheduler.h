/* A scheduler of actors (coroutines) that share memory: it decides which of them makes the next step, how long a store stays
 * unseen, who is killed, and which sleeper wakes for nothing. A run follows from its decisions alone, so it can be repeated. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "native.h"

#include <sys/types.h>

#define ACTORS_MAX 24
#define SCH_IDLE_NS 100000000    /* from here on a sleep ends at its deadline only while nobody else can do anything */
#define SCH_LONG_NS 1000000000   /* from here on it is a caller's timeout: what is left undone until then is left undone */

/* ---- for the program that is explored ---- */

typedef bool (*sch_condition_t)(void);

int sch_start(const char *name, int number, bool may_die, void (*run)(int number));   /* the new actor */
void sch_decide_from_here(void);               /* before that, each actor goes on for as long as it can */
void sch_until(sch_condition_t condition);     /* sleeps until it holds, as on a lock or a condition of Python's */
void sch_task(void);                           /* a task: it ends only when nobody else can do anything */
void sch_system_call(void);                    /* another one than those of futexes: a step */
unsigned sch_choose(unsigned n);                /* a decision of the program's own: 0 to n - 1 */
uint64_t sch_note(uint64_t value);             /* the actor has read this elsewhere than in atomic words; the value */
void sch_forget(uint64_t all_but);             /* what it has read so far does not matter to what it does next, but for this */
bool sch_has_ended(int actor);                 /* by itself, or killed */
bool sch_was_killed(int actor);
bool sch_sleeps_on(int actor, const void *word);
bool sch_is_asleep(int actor);                 /* on any futex */
uint64_t sch_newest(const void *word, unsigned size);   /* also if it is not seen yet */
int sch_last_actor(void);
const char *sch_name_of(int actor);
void sch_constant(const void *word);           /* nobody changes it during a run: reading it is no step */
void sch_name(const void *from, unsigned size, const char *format, int number);   /* for traces */
void sch_forget_words(void);                   /* those two, for another program */
#define sch_say(...) (sch_is_traced ? sch_trace(sch_current(), __VA_ARGS__) : (void)0)   /* a line in the trace */
extern bool sch_is_traced;
void sch_trace(int actor, const char *format, ...);
int sch_current(void);
_Noreturn void sch_fail(const char *format, ...);
#define sch_check(condition, ...) ((condition) ? (void)0 : sch_fail(__VA_ARGS__))

/* ---- between the program and who explores it ---- */

#define REGIONS_MAX 100
typedef struct {
    void *at;
    size_t size;
} sch_region_t;

typedef struct {
    void (*begin)(void);                       /* makes the first actors */
    unsigned (*regions)(sch_region_t *out);    /* all memory that a run changes; how many */
    void (*idle)(void);                        /* nobody can do anything before SCH_IDLE_NS have passed: checks */
    void (*busy)(void);                        /* nobody can do anything but end a task, or give up at a deadline: checks */
    void (*end)(void);                         /* nobody can do anything: checks */
    uint64_t (*guarded)(void);                 /* a hash of what mutexes guard: who locks one may read it */
    uint64_t (*state)(void);                   /* a hash of all memory */
    void (*change)(int from, int to);          /* another actor goes on: thread-local variables; -1: none. Or NULL */
} sch_program_t;

const char *program_name(unsigned i);          /* the programs that can be explored; NULL: there are no more */
const sch_program_t *program_open(unsigned i);

/* ---- for who explores ---- */

typedef struct {                               /* how much of each may happen in a run */
    unsigned preemptions, kills, delays, vain_wakes;
} sch_budget_t;

typedef enum { SCH_PASSED, SCH_FAILED, SCH_KNOWN } sch_result_t;   /* KNOWN: it came to a state that was seen before */

typedef enum { SCH_GO, SCH_TIMEOUT, SCH_KILL, SCH_VAIN_WAKE, SCH_INTERRUPT, SCH_EARLY, SCH_DRAIN, SCH_ANSWER } sch_deed_t;
typedef struct {                               /* one thing that may happen next */
    sch_deed_t deed;
    int actor, n;                              /* DRAIN: its n-th pending store; ANSWER: n */
} sch_option_t;

/* Decides which of at least two options comes true. The first never costs anything: the actor goes on, the store is seen at once. */
typedef unsigned (*sch_decide_t)(const sch_option_t *options, unsigned n);

sch_result_t sch_run(const sch_program_t *program, sch_decide_t decide, sch_budget_t budget, bool traced);
typedef struct sch_saved sch_saved_t;
bool sch_save(sch_saved_t **to);               /* from within `decide`: false; true once `sch_resume` has gone back to here */
sch_result_t sch_resume(const sch_saved_t *from, sch_decide_t decide, const sch_budget_t *budget, bool traced);   /* NULL: what was left */
const char *sch_failure(void);
unsigned sch_steps(void);                      /* of the last run */
_Noreturn void sch_stop_run(void);             /* from within `decide`: the run is KNOWN */
uint64_t sch_state(void);                      /* a hash: where each actor stands, and its pending stores; not memory */
uint64_t sch_mix(uint64_t a, uint64_t b);

#endif
