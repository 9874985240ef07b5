/* The scheduler; see scheduler.h. It also stands in for prim/linux.c: futexes, clock, spinning, and a "file" in plain memory.
 *
 * An actor runs until a step: just before an operation on a word that others may read or write. There the scheduler may
 * switch to another actor (a pre-emption), or kill this one. An actor that has to wait (for a futex or a lock) yields
 * to any other.
 *
 * Weak memory: a relaxed or releasing store may stay in its actor's buffer, unseen by others, until the actor's next
 * sequentially consistent store, read-modify-write or system call, or until it drains by itself. Relaxed stores to
 * other words overtake pending stores; a releasing store does not. So stores become visible late and out of order;
 * loads are never early. */
#include "scheduler.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <ucontext.h>

#define STACK_BYTES (64 << 10)
#define PENDING_MAX 16
#define OPTIONS_MAX 64
#define STEPS_MAX 6000         /* a run with more steps is assumed to loop */
#define NAMES_MAX 400
#define CONSTANTS_MAX 8

typedef enum { UNUSED, RUNNABLE, ON_FUTEX, ON_MUTEX, UNTIL, IN_TASK, ENDED, KILLED } life_t;

typedef struct {
    void *at;
    uint64_t value;
    unsigned size;
    bool releases;
} pending_t;

typedef struct {
    life_t life;
    char name[16];
    int number;
    bool may_die, has_begun, has_deadline;
    int64_t deadline_ns, now_ns;   /* the actor's own clock: a sleep that ends at its deadline sets it */
    const void *mutex;
    const uint32_t *own;       /* the word on its own stack that it used last */
    void (*run)(int number);
    _Atomic uint32_t *futex;
    uint32_t bits;
    int woken_with;
    sch_condition_t condition;
    uint64_t history;          /* hash of everything it has read and may remember: with its program, this defines its state */
    pending_t pending[PENDING_MAX];
    unsigned n_pending;
    unsigned char *low;        /* of its stack: contents below do not matter */
    jmp_buf at;
} actor_t;

static actor_t actors[ACTORS_MAX];
static _Alignas(64) unsigned char stacks[ACTORS_MAX][STACK_BYTES];
static ucontext_t starts[ACTORS_MAX];
static int n_actors, current;
static sch_budget_t left;
static const sch_program_t *program;
static sch_decide_t decide;
bool sch_is_traced;
static bool is_free;           /* decisions are being made; before that, actors run without a choice */
static unsigned n_steps;
static char failure[400];
static jmp_buf driver;
static const void *constants[CONSTANTS_MAX];
static unsigned n_constants;
static struct { const char *from; unsigned size; char name[40]; } names[NAMES_MAX];
static unsigned n_names;

uint64_t sch_mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ b * 0x9e3779b97f4a7c15ull) + 0xd1b54a32d192ed03ull;
    x ^= x >> 32, x *= 0xd6e8feb86659fd93ull, x ^= x >> 29;
    return x;
}

/* ---- traces ---- */

void sch_forget_words(void) { n_names = n_constants = 0; }

void sch_name(const void *from, unsigned size, const char *format, int number) {
    if (n_names == NAMES_MAX)
        abort();
    names[n_names].from = from;
    names[n_names].size = size;
    snprintf(names[n_names++].name, sizeof names[0].name, format, number);
}

static const char *name_of(const void *at) {
    static char text[64];
    for (unsigned i = n_names; i-- > 0;)
        if ((const char *)at >= names[i].from && (const char *)at < names[i].from + names[i].size) {
            unsigned offset = (unsigned)((const char *)at - names[i].from);
            snprintf(text, sizeof text, offset ? "%s+%u" : "%s", names[i].name, offset);
            return text;
        }
    for (int i = 0; i < n_actors; i++)
        if ((const unsigned char *)at >= stacks[i] && (const unsigned char *)at < stacks[i + 1]) {
            snprintf(text, sizeof text, "%s's word", actors[i].name);
            return text;
        }
    snprintf(text, sizeof text, "%p", at);
    return text;
}

void sch_trace(int actor, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%5u  %-12s ", n_steps, actor < 0 ? "-" : actors[actor].name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

#define say_of(actor, ...) (sch_is_traced ? sch_trace(actor, __VA_ARGS__) : (void)0)

void sch_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(failure, sizeof failure, format, args);
    va_end(args);
    sch_say("FAILED: %s", failure);
    _longjmp(driver, 1 + SCH_FAILED);
}

/* ---- memory ---- */

static uint64_t read_word(const void *at, unsigned size) {
    uint64_t value = 0;
    memcpy(&value, at, size);
    return value;
}

static void commit(void *at, unsigned size, uint64_t value) {
    memcpy(at, &value, size);   /* little-endian */
}

static void drain_one(int i, unsigned n) {
    actor_t *a = &actors[i];
    pending_t p = a->pending[n];
    memmove(&a->pending[n], &a->pending[n + 1], (--a->n_pending - n) * sizeof p);
    commit(p.at, p.size, p.value);
    say_of(i, "    (%s = %llx is seen now)", name_of(p.at), (unsigned long long)read_word(p.at, p.size));
}

static void drain(int i) {
    while (actors[i].n_pending > 0)
        drain_one(i, 0);
}

static bool may_drain(const actor_t *a, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        if (a->pending[i].at == a->pending[n].at)
            return false;
    return n == 0 || !a->pending[n].releases;
}

static uint64_t read_as(const actor_t *a, const void *at, unsigned size) {
    for (unsigned i = a->n_pending; i-- > 0;)
        if (a->pending[i].at == at)
            return a->pending[i].value;
    return read_word(at, size);
}

uint64_t sch_newest(const void *at, unsigned size) {
    uint64_t value = read_word(at, size);
    for (int i = 0; i < n_actors; i++)
        for (unsigned n = 0; n < actors[i].n_pending; n++)
            if (actors[i].pending[n].at == at)
                value = actors[i].pending[n].value;
    return value;
}

uint64_t sch_note(uint64_t value) {
    actors[current].history = sch_mix(actors[current].history, value);
    return value;
}

void sch_forget(uint64_t all_but) {
    actors[current].history = all_but;
    actors[current].own = NULL;
}

static void note_own(const void *at) {
    if ((const unsigned char *)at >= stacks[current] && (const unsigned char *)at < stacks[current + 1])
        actors[current].own = at;
}

uint64_t sch_state(void) {
    uint64_t state = 0;
    for (int i = 0; i < n_actors; i++) {
        const actor_t *a = &actors[i];
        uint64_t of = sch_mix(a->history ^ (uintptr_t)a->futex * (a->life == ON_FUTEX), (uint64_t)a->life << 8 | (uint64_t)i);
        of = sch_mix(of, (uint64_t)a->now_ns ^ (uintptr_t)a->mutex * (a->life == ON_MUTEX) ^ (uint64_t)(a->own ? 1 + *a->own : 0) << 32);
        for (unsigned n = 0; n < a->n_pending; n++)
            of = sch_mix(of, sch_mix((uint64_t)(uintptr_t)a->pending[n].at, a->pending[n].value));
        state += of;
    }
    uint64_t rest = (uint64_t)left.preemptions << 48 ^ (uint64_t)left.kills << 36 ^ left.delays << 24 ^ left.vain_wakes << 12;
    return sch_mix(state, rest ^ (uint64_t)current);
}

/* ---- which actor runs next ---- */

enum { OWNER = 0xff, ROBUST = 0x100, INCONSISTENT = 0x200, LOST = 0x400 };   /* the word of a mutex */

static bool has_dead_owner(uint32_t word) { return (word & ROBUST) && (word & OWNER) && sch_has_ended((int)(word & OWNER) - 1); }

static bool is_locked(const void *mutex) {
    uint32_t word = *(const uint32_t *)mutex;
    return (word & OWNER) != 0 && !has_dead_owner(word);
}

static bool can_go(const actor_t *a) {
    return a->life == RUNNABLE || (a->life == UNTIL && a->condition()) || (a->life == ON_MUTEX && !is_locked(a->mutex));
}

static _Noreturn void resume(int i) {
    if (program->change)
        program->change(current, i);
    current = i;
    if (actors[i].has_begun)
        _longjmp(actors[i].at, 1);
    actors[i].has_begun = true;
    setcontext(&starts[i]);
    abort();
}

/* Leaves room for what the compiler keeps below a frame. */
static inline __attribute__((always_inline)) unsigned char *low_here(void) { return (unsigned char *)__builtin_frame_address(0) - 512; }

static void go(int i) {
    actors[i].life = RUNNABLE;
    actors[current].low = low_here();
    if (i != current && _setjmp(actors[current].at) == 0)
        resume(i);
}

static void kill_actor(int i) {
    drain(i);
    actors[i].life = KILLED;
    left.kills--;
    say_of(i, "KILLED");
}

static void wake(int i, int with) {
    actors[i].life = RUNNABLE;
    actors[i].woken_with = with;
}

static unsigned add(sch_option_t *options, unsigned n, sch_deed_t deed, int actor, int number) {
    if (n == OPTIONS_MAX)
        abort();
    options[n] = (sch_option_t){deed, actor, number};
    return n + 1;
}

static unsigned add_drains(sch_option_t *options, unsigned n) {
    for (int i = 0; i < n_actors; i++)
        for (unsigned j = 0; i != current && j < actors[i].n_pending; j++)
            if (may_drain(&actors[i], j))
                n = add(options, n, SCH_DRAIN, i, (int)j);
    return n;
}

static unsigned add_others(sch_option_t *options, unsigned n) {
    for (int i = 0; i < n_actors; i++)
        if (i != current && can_go(&actors[i]))
            n = add(options, n, SCH_GO, i, 0);
    return n;
}

typedef enum { SHORT, IDLE, LONG, FOR_EVER } sleep_t;

static sleep_t sleep_of(const actor_t *a) {
    int64_t ns = a->deadline_ns - a->now_ns;
    return !a->has_deadline ? FOR_EVER : ns < SCH_IDLE_NS ? SHORT : ns < SCH_LONG_NS ? IDLE : LONG;
}

static unsigned add_timeouts(sch_option_t *options, unsigned n, sleep_t which) {
    for (int i = 0; i < n_actors; i++)
        if (actors[i].life == ON_FUTEX && sleep_of(&actors[i]) == which)
            n = add(options, n, SCH_TIMEOUT, i, 0);
    return n;
}

static unsigned ask(const sch_option_t *options, unsigned n) { return is_free && n > 1 ? decide(options, n) : 0; }

/* Events after which an actor still has to be chosen. */
static void perform(sch_option_t o) {
    if (o.deed == SCH_KILL) {
        kill_actor(o.actor);
    } else if (o.deed == SCH_DRAIN) {
        drain_one(o.actor, (unsigned)o.n);
    } else {
        left.vain_wakes--;
        say_of(o.actor, o.deed == SCH_INTERRUPT ? "INTERRUPTED" : o.deed == SCH_EARLY ? "TIMES OUT" : "WAKES FOR NOTHING");
        wake(o.actor, o.deed == SCH_INTERRUPT ? EINTR : o.deed == SCH_EARLY ? ETIMEDOUT : 0);
    }
}

static void set_clock(actor_t *a, int64_t now_ns) { a->now_ns = now_ns > a->now_ns ? now_ns : a->now_ns; }

static void go_with(sch_option_t o) {
    if (o.deed != SCH_TIMEOUT)
        return;
    actor_t *a = &actors[o.actor];
    sleep_t sleep = sleep_of(a);
    wake(o.actor, ETIMEDOUT);
    for (int i = 0; i < n_actors && sleep == IDLE; i++)
        set_clock(&actors[i], a->deadline_ns);
    if (sleep == LONG)
        set_clock(a, a->deadline_ns);
}

static unsigned add_odd(sch_option_t *options, unsigned n) {
    for (int i = 0; i < n_actors; i++) {
        actor_t *a = &actors[i];
        if (left.kills > 0 && a->may_die && a->life >= RUNNABLE && a->life <= IN_TASK)
            n = add(options, n, SCH_KILL, i, 0);
        if (left.vain_wakes > 0 && a->life == ON_FUTEX) {
            n = add(options, n, SCH_VAIN_WAKE, i, 0);
            n = add(options, n, SCH_INTERRUPT, i, 0);
            if (sleep_of(a) == IDLE)
                n = add(options, n, SCH_EARLY, i, 0);
        }
    }
    return n;
}

static unsigned add_tasks(sch_option_t *options) {
    unsigned n = 0;
    for (int i = 0; i < n_actors; i++)
        if (actors[i].life == IN_TASK)
            n = add(options, n, SCH_GO, i, 0);
    return n;
}

/* Chooses an actor, since the current one has to wait. */
static int pick_next(void) {
    for (;;) {
        sch_option_t options[OPTIONS_MAX], chosen;
        unsigned n = 0;
        if (can_go(&actors[current]))
            n = add(options, n, SCH_GO, current, 0);
        n = add_timeouts(options, add_others(options, n), SHORT);
        if (n == 0 && (n = add_timeouts(options, n, IDLE)) > 0)
            program->idle();
        if (n == 0) {
            n = add_timeouts(options, add_tasks(options), LONG);
            (n > 0 ? program->busy : program->end)();
            if (n == 0)
                _longjmp(driver, 1 + SCH_PASSED);
        } else {
            n = add_timeouts(options, n, LONG);
        }
        n = add_odd(options, add_drains(options, n));
        chosen = options[ask(options, n)];
        if (chosen.deed == SCH_GO || chosen.deed == SCH_TIMEOUT) {
            go_with(chosen);
            return chosen.actor;
        }
        perform(chosen);
    }
}

/* Called before each operation on a shared word. */
static void step(void) {
    if (++n_steps > STEPS_MAX)
        sch_fail("goes in circles");
    sch_note(1);
    for (;;) {
        sch_option_t options[OPTIONS_MAX], chosen;
        unsigned n = add(options, 0, SCH_GO, current, 0);
        if (left.preemptions > 0)
            n = add_timeouts(options, add_timeouts(options, add_others(options, n), SHORT), LONG);
        n = add_drains(options, n);
        if (left.kills > 0 && actors[current].may_die)
            n = add(options, n, SCH_KILL, current, 0);
        chosen = options[ask(options, n)];
        if (chosen.deed == SCH_GO && chosen.actor == current)
            return;
        if (chosen.deed == SCH_GO || chosen.deed == SCH_TIMEOUT) {
            left.preemptions--;
            go_with(chosen);
            go(chosen.actor);
            return;
        }
        perform(chosen);
        if (actors[current].life == KILLED) {
            int next = pick_next();
            actors[next].life = RUNNABLE;
            resume(next);
        }
    }
}

static void sleep_as(life_t life) {
    drain(current);
    actors[current].life = life;
    go(pick_next());
}

unsigned sch_choose(unsigned n) {
    sch_option_t options[OPTIONS_MAX];
    for (unsigned i = 0; i < n; i++)
        options[i] = (sch_option_t){SCH_ANSWER, current, (int)i};
    return (unsigned)sch_note(ask(options, n));
}

void sch_until(sch_condition_t condition) {
    drain(current);
    if (condition())
        return;
    actors[current].condition = condition;
    sleep_as(UNTIL);
    sch_note(2);
}

void sch_task(void) {
    sch_say("in its task");
    sleep_as(IN_TASK);
    sch_note(3);
    sch_say("its task ends");
}

/* ---- operations ---- */

static bool is_constant(const void *at) {
    for (unsigned i = 0; i < n_constants; i++)
        if (constants[i] == at)
            return true;
    return false;
}

void sch_constant(const void *word) {
    if (n_constants == CONSTANTS_MAX)
        abort();
    constants[n_constants++] = word;
}

uint64_t sch_load(void *at, unsigned size, sch_order_t order) {
    (void)order;
    if (is_constant(at))
        return read_word(at, size);
    step();
    note_own(at);
    uint64_t value = sch_note(read_as(&actors[current], at, size));
    sch_say("load   %s: %llx", name_of(at), (unsigned long long)value);
    return value;
}

static bool is_pending(const actor_t *a, const void *at) {
    for (unsigned i = 0; i < a->n_pending; i++)
        if (a->pending[i].at == at)
            return true;
    return false;
}

static bool is_delayed(const actor_t *a) {
    if (left.delays == 0 || a->n_pending == PENDING_MAX || sch_choose(2) == 0)
        return false;
    left.delays--;
    return true;
}

void sch_store(void *at, unsigned size, uint64_t value, sch_order_t order) {
    step();
    actor_t *a = &actors[current];
    bool delayed = order != SCH_SEQ_CST && is_delayed(a);
    sch_say("store  %s = %llx%s", name_of(at), (unsigned long long)value, delayed ? ", not seen yet" : "");
    if (delayed) {
        a->pending[a->n_pending++] = (pending_t){at, value, size, order == SCH_RELEASE};
        return;
    }
    if (order != SCH_RELAXED || is_pending(a, at))
        drain(current);
    commit(at, size, value);
}

uint64_t sch_rmw(void *at, unsigned size, sch_rmw_t what, uint64_t value) {
    step();
    drain(current);
    uint64_t before = sch_note(read_word(at, size));
    static const char *names[] = {"add ", "or  ", "and ", "swap"};
    const uint64_t after[] = {before + value, before | value, before & value, value};
    commit(at, size, after[what]);
    sch_say("%s   %s: %llx -> %llx", names[what], name_of(at), (unsigned long long)before, (unsigned long long)read_word(at, size));
    return before;
}

bool sch_cas(void *at, void *expected, unsigned size, uint64_t value) {
    step();
    drain(current);
    uint64_t before = sch_note(read_word(at, size)), wanted = read_word(expected, size);
    sch_say("cas    %s: %llx, wanted %llx -> %llx%s", name_of(at), (unsigned long long)before, (unsigned long long)wanted,
            (unsigned long long)value, before == wanted ? "" : ": failed");
    if (before == wanted)
        commit(at, size, value);
    else
        memcpy(expected, &before, size);
    return before == wanted;
}

/* ---- replacements for prim/linux.c ---- */

int pp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t deadline_ns, uint32_t bits) {
    step();
    drain(current);
    actor_t *a = &actors[current];
    uint64_t value = sch_note(read_word((void *)(uintptr_t)word, 4));
    sch_say("futex  waits on %s while %x: it is %x", name_of((void *)(uintptr_t)word), expected, (unsigned)value);
    if (value != expected)
        return 0;
    a->futex = word;
    a->bits = bits;
    a->has_deadline = deadline_ns >= 0;
    a->deadline_ns = deadline_ns;
    sleep_as(ON_FUTEX);
    sch_say("futex  awake: %d", a->woken_with);
    return (int)sch_note((uint64_t)a->woken_with);
}

void pp_futex_wake(_Atomic uint32_t *word, int n, uint32_t bits) {
    step();
    drain(current);
    sch_say("futex  wakes %d on %s", n, name_of((void *)(uintptr_t)word));
    for (int i = 0; i < n_actors && n > 0; i++)
        if (actors[i].life == ON_FUTEX && actors[i].futex == word && (actors[i].bits & bits)) {
            wake(i, 0);
            n--;
        }
}

int64_t pp_now_ns(void) { return current < 0 ? 1 : actors[current].now_ns; }
void sch_pass(int64_t ns) { actors[current].now_ns += ns; }
uint64_t pp_run_delay_ns(void) { return 0; }
void pp_spin_begin(pp_spin_t *s, int64_t long_ns, int64_t short_ns) { (void)s, (void)long_ns, (void)short_ns; }
bool pp_spin_once(const pp_spin_t *s) {
    (void)s;
    return left.preemptions > 1000 && is_free && sch_choose(2);   /* a spinning actor is pre-empted while it looks: random runs only */
}
void pp_spin_end(pp_spin_t *s, bool was_found) { (void)s, (void)was_found; }

/* ---- actors ---- */

uintptr_t pp_this_thread(void) { return (uintptr_t)current + 1; }

void sch_mutex_init(void *mutex, const pthread_mutexattr_t *attributes) {
    int robust = PTHREAD_MUTEX_STALLED;
    if (attributes)
        pthread_mutexattr_getrobust(attributes, &robust);
    *(uint32_t *)mutex = robust == PTHREAD_MUTEX_ROBUST ? ROBUST : 0;
}

/* Takes the mutex unless a live actor holds it. */
static int take_mutex(uint32_t *mutex) {
    if (*mutex & LOST)
        return ENOTRECOVERABLE;
    if (has_dead_owner(*mutex))
        *mutex |= INCONSISTENT;
    *mutex = (*mutex & ~(uint32_t)OWNER) | ((uint32_t)current + 1);
    sch_note(program->guarded());
    if (*mutex & INCONSISTENT)
        sch_say("mutex  its owner has died");
    return *mutex & INCONSISTENT ? EOWNERDEAD : 0;
}

int sch_mutex_lock(void *mutex) {
    step();
    drain(current);
    sch_say("mutex  locks%s", is_locked(mutex) ? ": waits" : "");
    actors[current].mutex = mutex;
    if (is_locked(mutex))
        sleep_as(ON_MUTEX);
    return take_mutex(mutex);
}

int sch_mutex_trylock(void *mutex) {
    step();
    drain(current);
    sch_say("mutex  locks%s", is_locked(mutex) ? ": in vain" : "");
    return sch_note(is_locked(mutex)) ? EBUSY : take_mutex(mutex);
}

int sch_mutex_consistent(void *mutex) {
    *(uint32_t *)mutex &= ~(uint32_t)INCONSISTENT;
    return 0;
}

int sch_mutex_unlock(void *mutex) {
    uint32_t *word = mutex;
    drain(current);
    sch_check((*word & OWNER) == (uint32_t)current + 1, "a mutex is unlocked by another than who has it");
    sch_say("mutex  unlocks");
    *word = *word & INCONSISTENT ? LOST | ROBUST : *word & ROBUST;
    return 0;
}

void sch_system_call(void) {
    step();
    drain(current);
}

pid_t sch_getpid(void) { return current < 0 || !actors[current].may_die ? 1 : 2 + current; }

static void run_actor(int i) {
    actors[i].run(actors[i].number);
    say_of(i, "has ended");
    drain(i);
    actors[i].life = ENDED;
    int next = pick_next();
    actors[next].life = RUNNABLE;
    resume(next);
}

int sch_start(const char *name, int number, bool may_die, void (*run)(int number)) {
    if (n_actors == ACTORS_MAX)
        abort();
    int i = n_actors++;
    actor_t *a = &actors[i];
    a->life = RUNNABLE;
    a->number = number;
    a->may_die = may_die;
    a->run = run;
    a->has_begun = false;
    a->history = 0;
    a->n_pending = 0;
    a->now_ns = current < 0 ? 1 : actors[current].now_ns;
    a->own = NULL;
    snprintf(a->name, sizeof a->name, "%s %d", name, number);
    a->low = stacks[i + 1] - 512;
    if (starts[i].uc_stack.ss_sp == NULL)
        getcontext(&starts[i]);
    starts[i].uc_stack.ss_sp = stacks[i];
    starts[i].uc_stack.ss_size = STACK_BYTES;
    starts[i].uc_link = NULL;
    makecontext(&starts[i], (void (*)(void))run_actor, 1, i);
    say_of(i, "starts");
    return i;
}

void sch_decide_from_here(void) { is_free = true; }
bool sch_has_ended(int i) { return actors[i].life == ENDED || actors[i].life == KILLED; }
bool sch_was_killed(int i) { return actors[i].life == KILLED; }
bool sch_sleeps_on(int i, const void *word) { return actors[i].life == ON_FUTEX && (const void *)(uintptr_t)actors[i].futex == word; }

bool sch_is_asleep(int i) { return actors[i].life == ON_FUTEX; }

sch_result_t sch_run(const sch_program_t *p, sch_decide_t d, sch_budget_t budget, bool traced) {
    program = p;
    decide = d;
    left = budget;
    sch_is_traced = traced;
    is_free = false;
    n_actors = 0;
    n_steps = 0;
    current = -1;
    int code = _setjmp(driver);
    if (code == 0) {
        program->begin();
        if (program->change)
            program->change(-1, 0);
        current = 0;
        actors[0].has_begun = true;
        setcontext(&starts[0]);
    }
    return (sch_result_t)(code - 1);
}

/* ---- going back: everything that a run changes is copied, including the actors' stacks, to the same addresses ---- */

struct sch_saved {
    jmp_buf at;
    int n_actors, current;
    sch_budget_t left;
    unsigned n_steps;
    sch_region_t regions[REGIONS_MAX + 1 + ACTORS_MAX];
    unsigned n_regions;
    size_t size, n_bytes;
    unsigned char *bytes;
};

static bool has_stack(const actor_t *a) { return a->life != UNUSED && a->life != ENDED && a->life != KILLED; }

static void list_regions(sch_saved_t *s) {
    s->n_regions = program->regions(s->regions);
    s->regions[s->n_regions++] = (sch_region_t){actors, (size_t)n_actors * sizeof *actors};
    for (int i = 0; i < n_actors; i++)
        if (i == current || has_stack(&actors[i]))   /* an actor that has just ended still chooses the next one */
            s->regions[s->n_regions++] = (sch_region_t){actors[i].low, (size_t)(stacks[i + 1] - actors[i].low)};
    s->n_bytes = 0;
    for (unsigned i = 0; i < s->n_regions; i++)
        s->n_bytes += s->regions[i].size;
}

static sch_saved_t *renew(sch_saved_t **to) {
    if (*to == NULL && (*to = calloc(1, sizeof **to)) == NULL)
        abort();
    sch_saved_t *s = *to;
    s->n_actors = n_actors;
    s->current = current;
    s->left = left;
    s->n_steps = n_steps;
    list_regions(s);
    if (s->n_bytes > s->size && (s->bytes = realloc(s->bytes, s->size = s->n_bytes)) == NULL)
        abort();
    return s;
}

__attribute__((noinline)) bool sch_save(sch_saved_t **to) {
    actors[current].low = low_here();
    if (program->change)
        program->change(current, current);
    sch_saved_t *s = renew(to);
    if (_setjmp(s->at))
        return true;
    unsigned char *at = s->bytes;
    for (unsigned i = 0; i < s->n_regions; at += s->regions[i++].size)
        memcpy(at, s->regions[i].at, s->regions[i].size);
    return false;
}

sch_result_t sch_resume(const sch_saved_t *s, sch_decide_t d, const sch_budget_t *budget, bool traced) {
    int code = _setjmp(driver);
    if (code)
        return (sch_result_t)(code - 1);
    const unsigned char *at = s->bytes;
    for (unsigned i = 0; i < s->n_regions; at += s->regions[i++].size)
        memcpy(s->regions[i].at, at, s->regions[i].size);
    n_actors = s->n_actors;
    current = s->current;
    left = budget ? *budget : s->left;
    n_steps = s->n_steps;
    is_free = true;
    decide = d;
    sch_is_traced = traced;
    if (program->change)
        program->change(-1, current);
    _longjmp(*(jmp_buf *)(uintptr_t)&s->at, 1);
}

_Noreturn void sch_stop_run(void) { _longjmp(driver, 1 + SCH_KNOWN); }
const char *sch_failure(void) { return failure; }
unsigned sch_steps(void) { return n_steps; }
int sch_current(void) { return current; }
int sch_last_actor(void) { return n_actors - 1; }
const char *sch_name_of(int actor) { return actors[actor].name; }
