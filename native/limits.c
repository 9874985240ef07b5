/* How many threads the native libraries of this process may use, now.
 *
 * Setters reach one of two ways: through the whole process (OpenBLAS with pthreads) or only in the calling thread (OpenMP).
 * The process has one count for the first. It follows the workers of this process that are awake, of all pools together:
 *
 *     none                      what each library had before
 *     any of a pool that lends  the CPUs over all that are awake, at least 1
 *     any of another pool       the smallest count of these pools
 *
 * It changes when a worker falls asleep or wakes, never between two tasks, so a flood of small tasks pays nothing for it.
 * For the second each worker calls the setters itself, before a task, when its own count or the list of libraries changed.
 */
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;               /* guards what follows; held for some 100 ns, longer when a library makes threads */
    pp_library_t libraries[PP_LIBRARIES_MAX];
    unsigned n_libraries;
    pp_budget_t *budgets;               /* of the open pools */
    unsigned n_cpus;
    unsigned applied;                   /* the process's count; 0: each library's own */
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER, .n_cpus = 1};

static _Thread_local const _Atomic uint32_t *own_grant;   /* of the worker that this thread is, or NULL */

static _Atomic uint32_t generation;     /* grows with each change of the list of libraries */
static _Atomic uint32_t n_per_thread;   /* libraries that are set per thread */
static _Atomic uint32_t n_awake;        /* workers, of all pools of this process; written under the lock */
static _Atomic uint32_t n_cpus_now = 1;

static unsigned lent(void) {
    unsigned awake = pp_load_relaxed(&n_awake), cpus = pp_load_relaxed(&n_cpus_now);
    return awake > 0 && cpus > awake ? cpus / awake : 1;
}

static unsigned wanted(void) {
    unsigned n = 0;
    for (const pp_budget_t *b = limits.budgets; b; b = b->next) {
        unsigned own = b->lends ? lent() : b->n_threads;
        if (b->n_awake > 0 && (n == 0 || own < n))
            n = own;
    }
    return n;
}

static void set_all(unsigned n) {
    for (unsigned i = 0; i < limits.n_libraries; i++) {
        const pp_library_t *library = &limits.libraries[i];
        if (!library->per_thread)
            library->set((int)(n ? n : library->original));
    }
    limits.applied = n;
}

static void apply(void) {
    unsigned n = wanted();
    if (n != limits.applied)
        set_all(n);
}

static unsigned ask(const pp_library_t *library) {
    int n = library->get();
    return n > 0 ? (unsigned)n : 1;   /* BLIS: -1 until a count was set */
}

/* The list of libraries is found by Python. `original` is kept for those that were in it; for others it is asked now. A
 * library makes its threads when a count first needs them, and they inherit the caller's CPUs: the caller has all of them. */
void pp_limits_replace(const pp_library_t *libraries, unsigned n) {
    pthread_mutex_lock(&limits.lock);
    pp_library_t now[PP_LIBRARIES_MAX];
    unsigned n_threads = 0;
    n = n < PP_LIBRARIES_MAX ? n : PP_LIBRARIES_MAX;
    for (unsigned i = 0; i < n; i++) {
        now[i] = libraries[i];
        n_threads += now[i].per_thread;
        unsigned k = 0;
        while (k < limits.n_libraries && limits.libraries[k].set != now[i].set)
            k++;
        now[i].original = k < limits.n_libraries ? limits.libraries[k].original : ask(&now[i]);
    }
    memcpy(limits.libraries, now, n * sizeof *now);
    limits.n_libraries = n;
    if (limits.budgets) {
        for (const pp_budget_t *b = limits.budgets; b; b = b->next)
            if (b->lends)
                set_all(limits.n_cpus);
        set_all(wanted());
    }
    pp_store_seq_cst(&n_per_thread, n_threads);
    pp_add_seq_cst(&generation, 1);
    pthread_mutex_unlock(&limits.lock);
}

unsigned pp_limits_now(void) {
    pthread_mutex_lock(&limits.lock);
    unsigned n = limits.applied;
    pthread_mutex_unlock(&limits.lock);
    return n;
}

/* n_cpus: of the process; n_threads: the process's count while a worker of this pool is awake. */
void pp_budget_open(pp_budget_t *b, unsigned n_cpus, unsigned n_threads, bool lends) {
    pthread_mutex_lock(&limits.lock);
    limits.n_cpus = n_cpus;
    pp_store_relaxed(&n_cpus_now, n_cpus);
    b->n_threads = n_threads > 0 ? n_threads : 1;
    b->lends = lends;
    if (!b->is_open) {
        b->is_open = true;
        b->next = limits.budgets;
        limits.budgets = b;
    }
    apply();
    pthread_mutex_unlock(&limits.lock);
}

void pp_budget_close(pp_budget_t *b) {
    pthread_mutex_lock(&limits.lock);
    for (pp_budget_t **p = &limits.budgets; *p; p = &(*p)->next)
        if (*p == b) {   /* not in a forked child, whose parent's pool it was */
            *p = b->next;
            pp_store_relaxed(&n_awake, pp_load_relaxed(&n_awake) - b->n_awake);
            break;
        }
    b->is_open = false;
    b->n_awake = 0;
    apply();
    pthread_mutex_unlock(&limits.lock);
}

static void count(pp_budget_t *b, int change) {
    pthread_mutex_lock(&limits.lock);
    if (b->is_open) {
        b->n_awake += (unsigned)change;
        pp_store_relaxed(&n_awake, pp_load_relaxed(&n_awake) + (unsigned)change);
        apply();
        bool lent = b->lends && b->n_awake > 0 && limits.applied > b->n_threads;
        b->n_lends += lent && !b->is_lent;
        b->n_reclaims += b->is_lent && !lent && b->n_awake > 0;
        b->is_lent = lent;
    }
    pthread_mutex_unlock(&limits.lock);
}

unsigned pp_own_grant(void) { return own_grant ? pp_load_relaxed(own_grant) : 0; }
void pp_set_own_grant(const _Atomic uint32_t *grant) { own_grant = grant; }

void pp_budget_enter(pp_budget_t *b) { count(b, +1); }
void pp_budget_leave(pp_budget_t *b) { count(b, -1); }

/* Before a task: the libraries that are set per thread. `own`: this worker's count where its pool does not lend. */
void pp_limits_here(const pp_budget_t *b, unsigned own, pp_limits_seen_t *seen) {
    uint32_t now = pp_load_relaxed(&generation);
    if (pp_load_relaxed(&n_per_thread) == 0) {
        seen->generation = now;
        return;
    }
    unsigned n = b->lends ? lent() : own;
    if (n == 0 || (now == seen->generation && n == seen->n_threads))
        return;
    pthread_mutex_lock(&limits.lock);
    for (unsigned i = 0; i < limits.n_libraries; i++)
        if (limits.libraries[i].per_thread)
            limits.libraries[i].set((int)n);
    pthread_mutex_unlock(&limits.lock);
    *seen = (pp_limits_seen_t){.generation = now, .n_threads = n};
}

typedef struct {
    pp_segment_t *segment;
    pp_lane_t *lane;
    unsigned n_cpus;
} follower_t;

static void *follow(void *arg) {
    follower_t f = *(follower_t *)arg;
    free(arg);
    pp_name_thread("pp-limits");
    for (;;) {
        uint32_t grant = pp_load_seq_cst(&f.lane->grant);
        if (grant)
            pp_budget_open(&f.segment->budget, f.n_cpus, grant, false);
        pp_futex_wait(&f.lane->grant, grant, -1, UINT32_MAX);
    }
    return NULL;
}

/* Starts a thread of a worker process that applies the parent's grants at once: a library reads its count at each call, so
 * this reaches a task that is running. The thread may use `cpus`, and so may the library's threads that it makes. */
int pp_follow_grants(pp_end_t *e, unsigned n_cpus, const cpu_set_t *cpus) {
    follower_t *f = malloc(sizeof *f);
    if (f == NULL)
        return ENOMEM;
    *f = (follower_t){.segment = pp_segment_ref(e->segment), .lane = e->lane, .n_cpus = n_cpus};
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setaffinity_np(&attributes, sizeof *cpus, cpus);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, follow, f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error) {
        pp_segment_unref(f->segment);
        free(f);
    }
    return error;
}

/* A forked child: the lock may be held by a thread that is not there, and the pools are the parent's. */
void pp_limits_after_fork(void) {
    pthread_mutex_init(&limits.lock, NULL);
    limits.budgets = NULL;
    pp_store_relaxed(&n_awake, 0);
}
