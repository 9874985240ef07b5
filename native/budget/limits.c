/* How many threads the native libraries of this process may use, now.
 *
 * A setter reaches one of three ways: through the whole process (OpenBLAS with pthreads), only in the calling thread
 * (OpenMP), or all that use a copy of the library which one interpreter worker has to itself.
 *
 * For the first the process has one count. It follows the workers of this process that are awake, of all pools together:
 *
 *     none                      what each library had before the first of them woke
 *     any of a pool that lends  the pool's CPUs over all workers that are awake, at least 1
 *     any of another pool       its count; if several pools have workers awake, no more than the CPUs over all of these
 *
 * and the smallest of these. A worker process keeps its own count as well, whether it is awake or not.
 * It changes when a worker falls asleep or wakes, never between two tasks, so a flood of small tasks pays nothing for it.
 * For the second each worker calls the setters itself, before a task, when its own count or the list of libraries changed.
 * The third has a count for each worker, by the same rules, and it is set for them by whoever changes it.
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
    pp_own_library_t *own;              /* of interpreter workers */
    unsigned n_foreign;                 /* workers in other processes that are awake */
    unsigned applied;                   /* the process's count; 0: each library's own */
    unsigned grown;                     /* the largest count that all libraries have made their threads for */
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local const _Atomic uint32_t *own_grant;   /* of the worker that this thread is, or NULL */

unsigned pp_own_grant(void) { return own_grant ? pp_load_relaxed(own_grant) : 0; }

static _Atomic uint32_t generation;     /* grows with each change of the list of libraries */
static _Atomic uint32_t n_per_thread;   /* libraries that are set per thread */
static _Atomic uint32_t n_awake;        /* workers, of all pools, with those in other processes; written under the lock */
static _Atomic uint32_t most = UINT32_MAX;   /* threads for each worker where several pools share the CPUs; written under the lock */

static unsigned over_awake(unsigned n_cpus) {
    unsigned awake = pp_load_relaxed(&n_awake);
    return awake > 0 && n_cpus > awake ? n_cpus / awake : 1;
}

/* What a worker may use of a library now, if it has `own` threads for as long as all workers of its pool have work. */
static unsigned count_for(const pp_budget_t *b, unsigned own) {
    if (pp_load_relaxed(&b->lends))
        own = over_awake(pp_load_relaxed(&b->n_cpus));
    unsigned bound = pp_load_relaxed(&most);
    return own < bound ? own : bound;
}

unsigned pp_budget_count(const pp_budget_t *b, unsigned own) { return count_for(b, own); }

static unsigned most_for_each(void) {
    unsigned n_pools = limits.n_foreign > 0, n_cpus = 0;
    for (const pp_budget_t *b = limits.budgets; b; b = b->next) {
        unsigned n = pp_load_relaxed(&b->n_cpus);
        n_pools += b->n_awake > 0;
        n_cpus = n > n_cpus ? n : n_cpus;
    }
    return n_pools > 1 ? over_awake(n_cpus) : UINT32_MAX;
}

static unsigned wanted(void) {
    unsigned n = 0;
    for (const pp_budget_t *b = limits.budgets; b; b = b->next) {
        unsigned own = count_for(b, b->n_threads);
        if ((b->n_awake > 0 || b->is_kept) && (n == 0 || own < n))
            n = own;
    }
    return n;
}

static unsigned ask(const pp_library_t *library) {
    int n = library->get();
    return n > 0 ? (unsigned)n : 1;   /* BLIS: -1 until a count was set */
}

/* What a library had before is asked each time that it is first limited: its user may have changed it since the last. */
static void set_all(unsigned n) {
    for (unsigned i = 0; i < limits.n_libraries; i++) {
        pp_library_t *library = &limits.libraries[i];
        if (library->per_thread)
            continue;
        if (limits.applied == 0)
            library->original = ask(library);
        library->set((int)(n ? n : library->original));
    }
    limits.applied = n;
}

static void set_own(pp_own_library_t *library) {
    unsigned grant = pp_load_relaxed(library->grant), n = count_for(library->budget, grant);
    if (grant > 0 && n != library->applied && pp_load_relaxed(&library->budget->is_open))
        library->set((int)(library->applied = n));
}

static void apply(void) {
    pp_store_relaxed(&most, most_for_each());
    unsigned n = wanted();
    if (n != limits.applied)
        set_all(n);
    for (pp_own_library_t *library = limits.own; library; library = library->next)
        set_own(library);
}

/* A library makes its threads when a count first needs them, and they inherit the caller's CPUs. So that happens here, in
 * callers that have all of them, and not in a worker that wakes. */
static void grow(void) {
    unsigned largest = 0;
    for (const pp_budget_t *b = limits.budgets; b; b = b->next) {
        unsigned n = pp_load_relaxed(&b->lends) ? pp_load_relaxed(&b->n_cpus) : 0;
        n = n > b->n_threads ? n : b->n_threads;
        largest = n > largest ? n : largest;
    }
    if (largest > limits.grown) {
        set_all(largest);
        limits.grown = largest;
    }
}

/* The list of libraries is found by Python. `original` is kept for those that were in it. */
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
    limits.grown = 0;
    grow();   /* sets the new ones, too, if any pool is open */
    apply();
    pp_store_seq_cst(&n_per_thread, n_threads);
    pp_add_seq_cst(&generation, 1);
    pthread_mutex_unlock(&limits.lock);
}

static void add(const pp_library_t *library) {
    pp_library_t *added = &limits.libraries[limits.n_libraries++];
    *added = *library;
    added->original = ask(added);
    if (added->per_thread) {
        pp_add_seq_cst(&n_per_thread, 1);
        pp_add_seq_cst(&generation, 1);
    } else if (limits.applied) {
        added->set((int)limits.applied);
    }
}

/* One that the calling thread, a worker's, has just loaded: for its task, too. The next `pp_limits_replace` has it as well. */
void pp_limits_add(const pp_library_t *library) {
    pthread_mutex_lock(&limits.lock);
    unsigned k = 0;
    while (k < limits.n_libraries && limits.libraries[k].set != library->set)
        k++;
    if (k == limits.n_libraries && k < PP_LIBRARIES_MAX)
        add(library);
    if (library->per_thread && pp_own_grant())
        library->set((int)pp_own_grant());
    pthread_mutex_unlock(&limits.lock);
}

unsigned pp_limits_now(void) {
    pthread_mutex_lock(&limits.lock);
    unsigned n = limits.applied;
    pthread_mutex_unlock(&limits.lock);
    return n;
}

/* ---- copies that one worker has ---- */

void pp_limits_own(pp_own_library_t *library) {
    pthread_mutex_lock(&limits.lock);
    library->applied = 0;
    library->next = limits.own;
    limits.own = library;
    set_own(library);
    pthread_mutex_unlock(&limits.lock);
}

void pp_limits_disown(pp_own_library_t *library) {
    pthread_mutex_lock(&limits.lock);
    pp_own_library_t **p = &limits.own;
    while (*p && *p != library)
        p = &(*p)->next;
    if (*p)
        *p = library->next;
    pthread_mutex_unlock(&limits.lock);
}

void pp_limits_changed(void) {
    pthread_mutex_lock(&limits.lock);
    apply();
    pthread_mutex_unlock(&limits.lock);
}

void pp_limits_foreign(unsigned n) {
    pthread_mutex_lock(&limits.lock);
    pp_store_relaxed(&n_awake, pp_load_relaxed(&n_awake) - limits.n_foreign + n);
    limits.n_foreign = n;
    apply();
    pthread_mutex_unlock(&limits.lock);
}

/* ---- budgets of pools ---- */

static void open_budget(pp_budget_t *b, unsigned n_cpus, unsigned n_threads, bool lends, bool is_kept) {
    pthread_mutex_lock(&limits.lock);
    b->n_threads = n_threads > 0 ? n_threads : 1;
    pp_store_relaxed(&b->n_cpus, n_cpus);
    pp_store_relaxed(&b->lends, lends);
    if (!pp_load_relaxed(&b->is_open)) {
        b->is_kept = is_kept;
        b->next = limits.budgets;
        limits.budgets = b;
        pp_store_relaxed(&b->is_open, true);
    }
    grow();
    apply();
    pthread_mutex_unlock(&limits.lock);
}

/* n_threads: the process's count while a worker of this pool is awake; lends: n_cpus over all that are awake, instead. */
void pp_budget_open(pp_budget_t *b, unsigned n_cpus, unsigned n_threads, bool lends) {
    open_budget(b, n_cpus, n_threads, lends, false);
}

/* In a worker process: its count from now on. No worker that counts for pools of its tasks, which share it. */
void pp_budget_keep(pp_budget_t *b, unsigned n_threads) { open_budget(b, 0, n_threads, false, true); }

void pp_budget_close(pp_budget_t *b) {
    pthread_mutex_lock(&limits.lock);
    for (pp_budget_t **p = &limits.budgets; *p; p = &(*p)->next)
        if (*p == b) {   /* not in a forked child, whose parent's pool it was */
            *p = b->next;
            pp_store_relaxed(&n_awake, pp_load_relaxed(&n_awake) - b->n_awake);
            break;
        }
    pp_store_relaxed(&b->is_open, false);
    b->n_awake = 0;
    apply();
    pthread_mutex_unlock(&limits.lock);
}

static void count(pp_budget_t *b, int change) {
    pthread_mutex_lock(&limits.lock);
    if (pp_load_relaxed(&b->is_open) && !b->is_kept) {
        b->n_awake += (unsigned)change;
        pp_store_relaxed(&n_awake, pp_load_relaxed(&n_awake) + (unsigned)change);
        apply();
        bool lends = pp_load_relaxed(&b->lends) && b->n_awake > 0 && limits.applied > b->n_threads;
        pp_add_seq_cst(&b->n_lends, lends && !b->is_lent);
        pp_add_seq_cst(&b->n_reclaims, b->is_lent && !lends && b->n_awake > 0);
        b->is_lent = lends;
    }
    pthread_mutex_unlock(&limits.lock);
}

unsigned pp_budget_lent(const pp_budget_t *b) {
    return pp_load_relaxed(&b->is_open) && pp_load_relaxed(&b->lends) ? count_for(b, 0) : 0;
}

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
    unsigned n = own ? count_for(b, own) : 0;
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
} follower_t;

static void *follow(void *arg) {
    follower_t f = *(follower_t *)arg;
    free(arg);
    pp_name_thread("pp-limits");
    for (;;) {
        uint32_t grant = pp_load_seq_cst(&f.lane->grant);
        if (grant)
            pp_budget_keep(&f.segment->budget, grant);
        pp_futex_wait(&f.lane->grant, grant, -1, UINT32_MAX);
    }
    return NULL;
}

/* Starts a thread of a worker process that applies the parent's grants at once: a library reads its count at each call, so
 * this reaches a task that is running. The thread may use `cpus`, and so may the library's threads that it makes. */
int pp_follow_grants(pp_end_t *e, const cpu_set_t *cpus) {
    follower_t *f = malloc(sizeof *f);
    if (f == NULL)
        return ENOMEM;
    *f = (follower_t){.segment = pp_segment_ref(e->segment), .lane = e->lane};
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

/* Nobody is inside a library's setter, or half-way through the list, in the moment of a fork. */
void pp_limits_before_fork(void) { pthread_mutex_lock(&limits.lock); }

void pp_limits_after_fork_in_parent(void) {
    limits.grown = 0;   /* OpenBLAS has ended its threads, and makes them again in the next caller */
    pthread_mutex_unlock(&limits.lock);
}

/* The pools are the parent's. Libraries keep the count of this moment: OpenBLAS's lock around calls of several threads may
 * be held by a thread that is not here, and with a count of 1, which it mostly is, nobody takes that. */
void pp_limits_after_fork_in_child(void) {
    pthread_mutex_init(&limits.lock, NULL);
    limits.budgets = NULL;
    limits.own = NULL;
    limits.grown = limits.n_foreign = 0;
    pp_store_relaxed(&n_awake, 0);
    pp_store_relaxed(&most, UINT32_MAX);
}
