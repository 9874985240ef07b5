/* How many CPUs other programs use, which a policy must not lend.
 *
 * A library that computes with more threads than it has CPUs becomes disproportionately slow, since its threads spin
 * for the one that was preempted. Therefore only CPUs that were seen idle are lent, and they are taken back when other
 * programs need them.
 *
 * A reading is the number of running or runnable threads on the machine, the fourth field of /proc/loadavg. It takes
 * some microseconds, and reflects the present. Of these threads, at least one for each active worker is ours, and at
 * most these plus the threads lent beyond them. So other programs have at most the reading minus the former, and at
 * least the reading minus all of ours. While the estimate lies between these bounds it stays; otherwise it moves to the
 * nearer bound:
 *
 *     up     at the second such reading in a row: another program is noticed after 5 to 10 ms
 *     down   at the third, and after a delay that doubles each time that lending was a mistake
 *
 * One thread of the process reads every 5 ms while a pool that lends has both an active and an idle worker, and for 0.1
 * s longer. Then it sleeps and knows nothing: before CPUs are lent again they are observed for 10 ms. Code that counts
 * workers wakes it (`pp_others_note`); otherwise this costs a waking worker one memory read.
 *
 * If the number is not available, or if this process may not use all CPUs of the machine, all CPUs are assumed to be
 * idle.
 */
#include "native.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_NS 5000000LL
#define SPIN_NS 60000000LL         /* OpenBLAS's threads spin for 51 ms after a call (measured) */
#define STAY_NS 100000000LL        /* guess */
#define HOLD_MIN_NS 50000000LL     /* guess: a mistake costs some 10 ms, so if lending always is one it costs a fifth at first */
#define HOLD_MAX_NS 3200000000LL   /* and 0.3 % in the end */
#define EARNS 10                   /* lending was no mistake if it lasted this many times as long as the delay before it */
#define UNKNOWN UINT32_MAX         /* of others: nobody has looked, so they are assumed to use all CPUs */

enum { STOPPED, READING, ASLEEP };

static struct {
    pthread_mutex_t life;          /* guards the start and the end of the thread; held while waiting for its end */
    pthread_mutex_t lock;          /* guards the list */
    pp_segment_t *lenders;         /* the pools that lend, linked by `next_lender` */
    pthread_t thread;
    _Atomic uint32_t state;        /* futex word of the thread; STOPPED: there is no thread */
    _Atomic uint32_t n_cpus;       /* the most CPUs that one of the pools may lend; 0: none */
    _Atomic uint32_t n_awake;      /* active workers */
    _Atomic uint32_t n_others;     /* running threads of other programs, or UNKNOWN */
    _Atomic uint32_t n_machine;    /* CPUs of the machine */
    _Atomic uint32_t pretended;    /* a test's replacement for the reading, plus one; 0: none */
} others = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .n_others = UNKNOWN};

/* ---- the estimate: pure functions ---- */

static void forget_readings(pp_others_t *o) { *o = (pp_others_t){.n_others = UNKNOWN, .hold_ns = o->hold_ns}; }

static void remember_reading(int *last, int n) {
    memmove(last + 1, last, 2 * sizeof *last);
    last[0] = n > 0 ? n : 0;
}

/* Threads that were lent until recently may still be spinning. */
static int still_lent(pp_others_t *o, int n_lent, int64_t now_ns) {
    if (n_lent >= o->n_lent || now_ns > o->lent_until_ns) {
        o->n_lent = n_lent;
        o->lent_until_ns = now_ns + SPIN_NS;
    }
    return o->n_lent;
}

static void punish(pp_others_t *o, int64_t now_ns) {
    bool was_mistake = now_ns - o->lowered_ns < EARNS * o->hold_ns;
    int64_t hold_ns = was_mistake ? 2 * o->hold_ns : HOLD_MIN_NS;
    o->hold_ns = hold_ns < HOLD_MIN_NS ? HOLD_MIN_NS : hold_ns > HOLD_MAX_NS ? HOLD_MAX_NS : hold_ns;
    o->held_until_ns = now_ns + o->hold_ns;
}

/* n_running: without the reading thread. n_lent: threads that workers may use beyond one for each active worker. */
uint32_t pp_others_read(pp_others_t *o, int n_running, int n_awake, int n_lent, int64_t now_ns) {
    remember_reading(o->least, n_running - n_awake - still_lent(o, n_lent, now_ns));
    remember_reading(o->most, n_running - n_awake);
    o->n_readings += o->n_readings < 3;
    int up = o->least[0] < o->least[1] ? o->least[0] : o->least[1];
    int down = o->most[0] > o->most[1] ? o->most[0] : o->most[1];
    down = down > o->most[2] ? down : o->most[2];
    if (o->n_readings >= 2 && o->n_others != UNKNOWN && (uint32_t)up > o->n_others) {
        o->n_others = (uint32_t)up;
        if (n_lent > 0)
            punish(o, now_ns);
    } else if (o->n_readings == 3 && (uint32_t)down < o->n_others && now_ns >= o->held_until_ns) {
        o->n_others = (uint32_t)down;
        o->lowered_ns = now_ns;
    }
    return o->n_others;
}

/* ---- what follows from the estimate ---- */

/* A pool may count on more CPUs than the machine has. Other programs' threads are subtracted all the same. */
static unsigned left_of(unsigned n_cpus, unsigned n_others) {
    unsigned n_machine = pp_load_relaxed(&others.n_machine);
    unsigned n_all = n_machine > n_cpus ? n_machine : n_cpus, n = n_others < n_all ? n_all - n_others : 0;
    return n < n_cpus ? n : n_cpus;
}

unsigned pp_others_leave(unsigned n_cpus) { return left_of(n_cpus, pp_load_relaxed(&others.n_others)); }

static bool could_lend(void) {
    uint32_t n_awake = pp_load_seq_cst(&others.n_awake);
    return n_awake > 0 && n_awake < pp_load_relaxed(&others.n_cpus);
}

static void wake(uint32_t from, uint32_t to) {
    if (pp_cas_seq_cst(&others.state, &from, to))
        pp_futex_wake(&others.state, 1, UINT32_MAX);
}

unsigned pp_others_awake(void) { return pp_load_seq_cst(&others.n_awake); }

void pp_others_note(unsigned n_awake) {
    pp_store_seq_cst(&others.n_awake, n_awake);
    if (could_lend() && pp_load_seq_cst(&others.state) == ASLEEP)
        wake(ASLEEP, READING);
}

/* ---- the thread ---- */

/* Without the calling thread. -1: unknown. */
static int read_running(void) {
    uint32_t pretended = pp_load_seq_cst(&others.pretended);
    int n = pretended ? (int)pretended - 1 : pp_n_running();
    return n > 0 ? n - 1 : -1;
}

static void publish_others(uint32_t n_others) {
    uint32_t before = pp_swap_seq_cst(&others.n_others, n_others);
    bool matters = false;
    pthread_mutex_lock(&others.lock);
    for (pp_segment_t *s = others.lenders; s && n_others != before; s = s->next_lender)
        if (left_of(s->n_lent_cpus, before) != left_of(s->n_lent_cpus, n_others)) {
            matters = true;
            pp_pulse(s->shared);
        }
    pthread_mutex_unlock(&others.lock);
    if (matters)
        pp_limits_changed();
}

static void update_others(pp_others_t *o) {
    int n_running = read_running(), n_awake = (int)pp_load_seq_cst(&others.n_awake);
    if (n_running < 0) {
        forget_readings(o);
        publish_others(0);
    } else if (n_awake > 0) {   /* otherwise only threads that wait for the next task, or spin, are running */
        int n_usable = (int)pp_others_leave(pp_load_relaxed(&others.n_cpus));
        publish_others(pp_others_read(o, n_running, n_awake, n_usable > n_awake ? n_usable - n_awake : 0, pp_now_ns()));
    }
}

static void sleep_until_needed(pp_others_t *o) {
    uint32_t state = READING;
    forget_readings(o);
    publish_others(UNKNOWN);
    if (!pp_cas_seq_cst(&others.state, &state, ASLEEP))
        return;
    if (could_lend())   /* counted before our ASLEEP was seen: perhaps nobody wakes us */
        wake(ASLEEP, READING);
    while (pp_load_seq_cst(&others.state) == ASLEEP)
        pp_futex_wait(&others.state, ASLEEP, -1, UINT32_MAX);
}

static void *watch_others(void *arg) {
    (void)arg;
    pp_name_thread("pp-others");
    pp_run_on_all_cpus();   /* inherited by the libraries' threads that lending creates */
    pp_others_t o = {0};
    forget_readings(&o);
    int64_t needed_ns = pp_now_ns();
    while (pp_load_seq_cst(&others.state) != STOPPED) {
        int64_t now_ns = pp_now_ns();
        if (could_lend())
            needed_ns = now_ns;
        if (now_ns - needed_ns > STAY_NS) {
            sleep_until_needed(&o);
            needed_ns = pp_now_ns();
            continue;
        }
        update_others(&o);
        pp_futex_wait(&others.state, READING, now_ns + PERIOD_NS, UINT32_MAX);
    }
    return NULL;
}

/* ---- pools that lend ---- */

static bool can_tell(void) {
    long n_machine = sysconf(_SC_NPROCESSORS_ONLN);
    pp_store_relaxed(&others.n_machine, n_machine > 0 ? (uint32_t)n_machine : 1);
    return pp_load_seq_cst(&others.pretended) ? read_running() >= 0 : pp_n_cpus() >= n_machine && read_running() >= 0;
}

/* Starts the thread, with all signals blocked in it. */
static bool start(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pp_store_seq_cst(&others.state, READING);
    bool is_started = pthread_create(&others.thread, NULL, watch_others, NULL) == 0;
    if (!is_started)
        pp_store_seq_cst(&others.state, STOPPED);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

static void stop(void) {
    if (pp_swap_seq_cst(&others.state, STOPPED) != STOPPED) {
        pp_futex_wake(&others.state, 1, UINT32_MAX);
        pthread_join(others.thread, NULL);
    }
    pp_store_seq_cst(&others.n_others, UNKNOWN);
}

static void enlist_lender(pp_segment_t *s, unsigned n_cpus) {
    pthread_mutex_lock(&others.lock);
    s->n_lent_cpus = n_cpus;
    s->next_lender = others.lenders;
    others.lenders = s;
    if (n_cpus > pp_load_relaxed(&others.n_cpus))
        pp_store_seq_cst(&others.n_cpus, n_cpus);
    pthread_mutex_unlock(&others.lock);
}

static bool strike_off(pp_segment_t *s) {
    bool is_found = false;
    uint32_t n_cpus = 0;
    pthread_mutex_lock(&others.lock);
    for (pp_segment_t **p = &others.lenders; *p;) {
        if (*p == s) {
            *p = s->next_lender;
            is_found = true;
            continue;
        }
        n_cpus = (*p)->n_lent_cpus > n_cpus ? (*p)->n_lent_cpus : n_cpus;
        p = &(*p)->next_lender;
    }
    pp_store_seq_cst(&others.n_cpus, n_cpus);
    pthread_mutex_unlock(&others.lock);
    return is_found;
}

/* Called after the last fork of a pool's start, since it may start a thread. */
void pp_others_open(pp_segment_t *s, unsigned n_cpus) {
    pthread_mutex_lock(&others.life);
    strike_off(s);
    enlist_lender(s, n_cpus);
    if (pp_load_seq_cst(&others.state) == STOPPED && (!can_tell() || !start()))
        publish_others(0);
    pthread_mutex_unlock(&others.life);
}

void pp_others_close(pp_segment_t *s) {
    pthread_mutex_lock(&others.life);
    if (strike_off(s) && pp_load_relaxed(&others.n_cpus) == 0)
        stop();
    pthread_mutex_unlock(&others.life);
}

void pp_others_pretend(uint32_t n_running_and_one) { pp_store_seq_cst(&others.pretended, n_running_and_one); }

/* The pools and the thread belong to the parent, and a mutex may have been held during the fork. */
void pp_others_after_fork_in_child(void) {
    pthread_mutex_init(&others.life, NULL);
    pthread_mutex_init(&others.lock, NULL);
    others.lenders = NULL;
    pp_store_seq_cst(&others.state, STOPPED);
    pp_store_seq_cst(&others.n_cpus, 0);
    pp_store_seq_cst(&others.n_awake, 0);
    pp_store_seq_cst(&others.n_others, UNKNOWN);
}
