/* How many threads the native libraries of this process may use now.
 *
 * A setter has one of three scopes: the whole process (OpenBLAS with pthreads), the calling thread (OpenMP), or a
 * private copy of the library, which only one interpreter worker uses.
 *
 * For the first scope the process has one count. It depends on which workers of this process, over all pools, are
 * active:
 *
 *     none                   what the user has set
 *     of a pool that lends   idle pool CPUs (see others.c) divided by active workers, or its count if that is more
 *     of another pool        its count; if several pools have active workers, at most the CPUs divided by all these
 *
 * The smallest of these is used, but never more than the user has set. A worker process also keeps its own count,
 * whether it is active or not. The count changes when a worker becomes active or idle. Before a task one read finds out
 * whether the user has changed it. For the second scope each worker calls the setters itself, before a task. A private
 * copy has a count for its worker, by the same rules, which the thread that causes a change sets.
 *
 * The user's limit is known in three ways. First, we store the count that we last set or saw in each library (`now`).
 * If the library has another one, the user set it (`users`). Second, calls through threadpoolctl are reported to us
 * (`pp_user_sets`), since they may set the count that is in force anyway. Its open blocks are reported, too (`block`).
 * Third, a count that a library has when it is found is the user's, unless it is the library's own default.
 */
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;               /* guards what follows; held for some 100 ns, or longer when a library starts threads */
    pp_library_t libraries[PP_LIBRARIES_MAX];   /* constant once counted in n_libraries, so they are read without the lock */
    pp_count_t counts[PP_LIBRARIES_MAX];        /* of libraries whose setter affects the whole process */
    pp_budget_t *budgets;               /* of the open pools */
    pp_own_library_t *own;              /* private copies of interpreter workers */
    unsigned n_foreign;                 /* active workers in other processes */
    unsigned applied;                   /* the process's count; 0: each library has its own */
    unsigned told;                      /* the count in a worker process's environment, instead of the user's; 0: none */
    cpu_set_t cpus;                     /* where libraries' threads may run, even if a worker may not; empty: unknown */
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local pp_limited_t *own_limits;   /* of the worker that runs in this thread, or NULL */

unsigned pp_own_grant(void) { return own_limits ? pp_load_relaxed(own_limits->grant) : 0; }

static _Atomic uint32_t n_libraries;    /* written under the lock */
static _Atomic uint32_t n_awake;        /* active workers of all pools, including those in other processes; written under the lock */
static _Atomic uint32_t most = UINT32_MAX;   /* threads per worker while several pools share the CPUs; written under the lock */

static unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

static void count_awake(unsigned n) {
    pp_store_relaxed(&n_awake, n);
    pp_others_note(n);
}

static unsigned over_awake(unsigned n_cpus) {
    unsigned awake = pp_load_relaxed(&n_awake);
    return awake > 0 && n_cpus > awake ? n_cpus / awake : 1;
}

/* What a worker may use of a library now, if it has `own` threads while all workers of its pool are active. */
static unsigned count_for(const pp_budget_t *b, unsigned own) {
    if (pp_load_relaxed(&b->lends)) {
        unsigned n_cpus = pp_load_relaxed(&b->n_cpus), left = over_awake(pp_others_leave(n_cpus));
        own = left > own ? left : smaller(own, over_awake(n_cpus));
    }
    return smaller(own, pp_load_relaxed(&most));
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

/* ---- one library's count ---- */

static unsigned ask(const pp_library_t *library) {
    int n = library->get();
    return n > 0 ? (unsigned)n : 1;
}

static unsigned n_cpus_of(pid_t thread) {
    cpu_set_t set;
    return sched_getaffinity(thread, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 0;
}

/* Whether a library that nobody has limited would have this count: a thread for each CPU of the process or of the
 * loading thread, which is nearly always the calling one, or what we have put into the environment. BLIS reports -1. */
static bool is_default(int n) {
    return n < 1 || (unsigned)n == n_cpus_of(getpid()) || (unsigned)n == n_cpus_of(0) || (unsigned)n == limits.told;
}

static void meet(const pp_library_t *library, pp_count_t *c) {
    unsigned by_environment = library->most ? library->most : UINT32_MAX;
    *c = (pp_count_t){.now = ask(library)};
    c->users = c->found = c->n_made = c->now;
    c->found_most = is_default(library->get()) ? by_environment : smaller(by_environment, c->found);
}

/* The most threads that the user wants. The count that the library had when it was found keeps its meaning from then.
 * Any other count is the user's wish. */
static unsigned users_most(const pp_count_t *c) {
    unsigned of_call = c->users == c->found ? c->found_most : c->users;
    return c->block ? c->block : of_call;
}

/* If the count has changed since the last look, the user has changed it. */
static void look(const pp_library_t *library, pp_count_t *c) {
    unsigned n = ask(library);
    if (n != pp_load_relaxed(&c->now)) {
        c->users = n;
        pp_store_relaxed(&c->now, n);
    }
}

/* Sets a count with all CPUs allowed. A library starts threads when a count first needs them, and they inherit the
 * caller's CPUs, which must not be those of a pinned worker. */
static void set_wide(const pp_library_t *library, unsigned n) {
    cpu_set_t own, both;
    bool is_narrow = CPU_COUNT(&limits.cpus) > 0 && sched_getaffinity(0, sizeof own, &own) == 0;
    if (is_narrow) {
        CPU_AND(&both, &own, &limits.cpus);
        is_narrow = CPU_EQUAL(&both, &own) && !CPU_EQUAL(&own, &limits.cpus);
    }
    is_narrow = is_narrow && sched_setaffinity(0, sizeof limits.cpus, &limits.cpus) == 0;
    library->set((int)n);
    if (is_narrow)
        sched_setaffinity(0, sizeof own, &own);
}

/* A forked process has none of OpenBLAS's threads. The setter would start them all, whatever the count, and each would
 * spin for 51 ms. A count of 1 needs none, so it is stored where the setter would store it. */
static bool lacks_threads(const pp_library_t *library) {
    return library->count && !pp_load_relaxed(library->has_threads);
}

static void set(const pp_library_t *library, pp_count_t *c, unsigned n) {
    if (n == pp_load_relaxed(&c->now))
        return;
    if (n == 1 && lacks_threads(library))
        pp_store_relaxed(library->count, 1);
    else if (n > c->n_made && own_limits && !library->per_thread)
        set_wide(library, n);
    else
        library->set((int)n);
    c->n_made = n > c->n_made ? n : c->n_made;
    pp_store_relaxed(&c->now, ask(library));   /* the library may have a maximum */
}

/* Applies a budget to a library. wanted: the budget; 0: none. */
static void keep_to(const pp_library_t *library, pp_count_t *c, unsigned wanted) {
    look(library, c);
    set(library, c, wanted ? smaller(wanted, users_most(c)) : c->block ? c->block : c->users);
}

/* ---- all libraries ---- */

static unsigned most_of_all(void) {
    unsigned n = UINT32_MAX;
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++)
        if (!limits.libraries[i].per_thread)
            n = smaller(n, users_most(&limits.counts[i]));
    return n;
}

/* The user does not see private copies, and sets only the process's libraries. Those limits are applied to copies as
 * well. */
static void set_own(pp_own_library_t *own, unsigned users) {
    unsigned grant = pp_load_relaxed(own->grant), n = smaller(count_for(own->budget, grant), users);
    if (grant > 0 && pp_load_relaxed(&own->budget->is_open))
        keep_to(&own->library, &own->count, n);
}

static void note_lends(pp_budget_t *b) {
    bool lends = pp_load_relaxed(&b->lends) && b->n_awake > 0 && limits.applied > b->n_threads;
    pp_add_seq_cst(&b->n_lends, lends && !b->is_lent);
    pp_add_seq_cst(&b->n_reclaims, b->is_lent && !lends && b->n_awake > 0);
    b->is_lent = lends;
}

static void apply(void) {
    pp_store_relaxed(&most, most_for_each());
    limits.applied = wanted();
    for (pp_budget_t *b = limits.budgets; b; b = b->next)
        note_lends(b);
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++)
        if (!limits.libraries[i].per_thread)
            keep_to(&limits.libraries[i], &limits.counts[i], limits.applied);
    unsigned users = limits.own ? most_of_all() : UINT32_MAX;
    for (pp_own_library_t *own = limits.own; own; own = own->next)
        set_own(own, users);
}

static unsigned find(uintptr_t set) {
    unsigned k = 0;
    while (k < pp_load_acquire(&n_libraries) && (uintptr_t)limits.libraries[k].set != set)
        k++;
    return k;
}

static bool is_known(unsigned k) { return k < pp_load_acquire(&n_libraries); }

static pp_count_t *count_here(unsigned k) {
    pp_count_t *c = own_limits ? &own_limits->counts[k] : NULL;
    if (c && pp_load_relaxed(&c->now) == 0)
        meet(&limits.libraries[k], c);
    return c;
}

unsigned pp_own_threads(void) {
    unsigned own = pp_own_grant();
    return own ? count_for(own_limits->budget, own) : 0;
}

static void keep_here(unsigned k) {
    unsigned n = pp_own_threads();
    pp_count_t *c = n ? count_here(k) : NULL;
    if (c)
        keep_to(&limits.libraries[k], c, n);
}

unsigned pp_user_most(void) {
    pthread_mutex_lock(&limits.lock);
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++)
        if (!limits.libraries[i].per_thread)
            look(&limits.libraries[i], &limits.counts[i]);
    unsigned n = most_of_all();
    pthread_mutex_unlock(&limits.lock);
    return n;
}

/* Python code finds libraries, or in an interpreter the thread that loads them. They stay loaded from then on. */
void pp_limits_add(const pp_library_t *library) {
    pthread_mutex_lock(&limits.lock);
    unsigned k = find((uintptr_t)library->set);
    if (is_known(k) && library->count) {
        limits.libraries[k].count = library->count;
        limits.libraries[k].has_threads = library->has_threads;
    }
    if (!is_known(k) && k < PP_LIBRARIES_MAX) {
        limits.libraries[k] = *library;
        if (!library->per_thread)
            meet(library, &limits.counts[k]);
        pp_store_release(&n_libraries, k + 1);
        apply();
    }
    pthread_mutex_unlock(&limits.lock);
    if (library->per_thread && k < PP_LIBRARIES_MAX)
        keep_here(k);
}

/* ---- what the user sets through threadpoolctl ---- */

bool pp_user_sets(uintptr_t set, unsigned n) {
    unsigned k = find(set);
    if (!is_known(k))
        return false;
    if (limits.libraries[k].per_thread) {
        pp_count_t *c = count_here(k);
        if (c == NULL)
            limits.libraries[k].set((int)n);
        else
            c->users = n;
        keep_here(k);
        return true;
    }
    pthread_mutex_lock(&limits.lock);
    look(&limits.libraries[k], &limits.counts[k]);
    limits.counts[k].users = n;
    apply();
    pthread_mutex_unlock(&limits.lock);
    return true;
}

bool pp_user_blocks(uintptr_t set, unsigned n, bool applies) {
    unsigned k = find(set);
    if (!is_known(k) || limits.libraries[k].per_thread)
        return false;
    pthread_mutex_lock(&limits.lock);
    limits.counts[k].block = n;
    if (applies)
        apply();
    pthread_mutex_unlock(&limits.lock);
    return true;
}

bool pp_user_count(uintptr_t set, unsigned *n) {
    unsigned k = find(set);
    if (!is_known(k))
        return false;
    const pp_library_t *library = &limits.libraries[k];
    pp_count_t *c = library->per_thread ? count_here(k) : &limits.counts[k];
    pthread_mutex_lock(&limits.lock);
    if (c)
        look(library, c);
    *n = c ? c->users : ask(library);
    pthread_mutex_unlock(&limits.lock);
    return true;
}

unsigned pp_limits_now(void) {
    pthread_mutex_lock(&limits.lock);
    unsigned n = limits.applied;
    pthread_mutex_unlock(&limits.lock);
    return n;
}

/* ---- private copies ---- */

void pp_limits_own(pp_own_library_t *library) {
    pthread_mutex_lock(&limits.lock);
    meet(&library->library, &library->count);
    unsigned users = library->library.most;   /* its count is 1 yet, and says nothing about what the user wants */
    library->count.found_most = users && users != limits.told ? users : UINT32_MAX;
    library->next = limits.own;
    limits.own = library;
    set_own(library, most_of_all());
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
    count_awake(pp_load_relaxed(&n_awake) - limits.n_foreign + n);
    limits.n_foreign = n;
    apply();
    pthread_mutex_unlock(&limits.lock);
}

/* ---- the environment and the CPUs ---- */

void pp_limits_told(unsigned n) {
    pthread_mutex_lock(&limits.lock);
    limits.told = n;
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++) {   /* the parent's budgets already contain its user's limits */
        pp_count_t *c = &limits.counts[i];
        c->users = c->found;
        c->found_most = limits.libraries[i].most ? limits.libraries[i].most : UINT32_MAX;
        c->block = 0;
    }
    pthread_mutex_unlock(&limits.lock);
}

void pp_limits_cpus(const cpu_set_t *cpus) {
    pthread_mutex_lock(&limits.lock);
    limits.cpus = *cpus;
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
    apply();
    pthread_mutex_unlock(&limits.lock);
}

/* n_threads: the process's count while a worker of this pool is active. lends: n_cpus divided by active workers
 * instead. */
void pp_budget_open(pp_budget_t *b, unsigned n_cpus, unsigned n_threads, bool lends) {
    open_budget(b, n_cpus, n_threads, lends, false);
}

/* In a worker process: sets its count. The worker itself is not counted as active; pools that its tasks open share the
 * count. */
void pp_budget_keep(pp_budget_t *b, unsigned n_threads) { open_budget(b, 0, n_threads, false, true); }

void pp_budget_close(pp_budget_t *b) {
    pthread_mutex_lock(&limits.lock);
    for (pp_budget_t **p = &limits.budgets; *p; p = &(*p)->next)
        if (*p == b) {   /* not in a forked child, to which the parent's pool does not belong */
            *p = b->next;
            count_awake(pp_load_relaxed(&n_awake) - b->n_awake);
            break;
        }
    pp_store_relaxed(&b->is_open, false);
    b->n_awake = 0;
    apply();
    if (limits.budgets == NULL)
        CPU_ZERO(&limits.cpus);
    pthread_mutex_unlock(&limits.lock);
}

static void count(pp_budget_t *b, int change) {
    pthread_mutex_lock(&limits.lock);
    if (pp_load_relaxed(&b->is_open) && !b->is_kept) {
        b->n_awake += (unsigned)change;
        count_awake(pp_load_relaxed(&n_awake) + (unsigned)change);
        apply();
    }
    pthread_mutex_unlock(&limits.lock);
}

unsigned pp_budget_lent(const pp_budget_t *b) {
    return pp_load_relaxed(&b->is_open) && pp_load_relaxed(&b->lends) ? count_for(b, b->n_threads) : 0;
}

void pp_budget_enter(pp_budget_t *b) { count(b, +1); }
void pp_budget_leave(pp_budget_t *b) { count(b, -1); }

void pp_limits_enter(pp_limited_t *worker) { own_limits = worker; }

static bool has_users_change(void) {
    for (unsigned i = 0; i < pp_load_acquire(&n_libraries); i++)
        if (!limits.libraries[i].per_thread && ask(&limits.libraries[i]) != pp_load_relaxed(&limits.counts[i].now))
            return true;
    return false;
}

void pp_limits_here(void) {
    if (has_users_change())
        pp_limits_changed();
    for (unsigned k = 0; k < pp_load_acquire(&n_libraries); k++)
        if (limits.libraries[k].per_thread)
            keep_here(k);
}

void pp_limits_restore_here(void) {
    for (unsigned k = 0; own_limits && k < pp_load_acquire(&n_libraries); k++) {
        pp_count_t *c = &own_limits->counts[k];
        if (limits.libraries[k].per_thread && pp_load_relaxed(&c->now) != 0)
            limits.libraries[k].set((int)c->found);
    }
}

typedef struct {
    pp_segment_t *segment;
    pp_worker_slot_t *worker;
    cpu_set_t cpus;
} follower_t;

static void *follow(void *arg) {
    follower_t f = *(follower_t *)arg;
    free(arg);
    pp_name_thread("pp-limits");
    sched_setaffinity(0, sizeof f.cpus, &f.cpus);
    for (;;) {
        uint32_t grant = pp_load_seq_cst(&f.worker->grant);
        if (grant)
            pp_budget_keep(&f.segment->budget, grant);
        pp_futex_wait(&f.worker->grant, grant, -1, UINT32_MAX);
    }
    return NULL;
}

/* Starts a thread in a worker process that applies the parent's budget changes at once. A library reads its count at
 * each call, so this affects a running task. This thread, and the library's threads that it starts, may use `cpus`. */
int pp_follow_grants(pp_worker_t *e, const cpu_set_t *cpus) {
    follower_t *f = malloc(sizeof *f);
    if (f == NULL)
        return ENOMEM;
    *f = (follower_t){.segment = pp_segment_ref(e->segment), .worker = e->own, .cpus = *cpus};
    int error = pp_start_detached(follow, f);
    if (error) {
        pp_segment_unref(f->segment);
        free(f);
    }
    return error;
}

/* Ensures that at the moment of a fork no thread is inside a library's setter, or changing the list. */
void pp_limits_before_fork(void) { pthread_mutex_lock(&limits.lock); }

/* OpenBLAS has ended its threads. It starts them again when its count is set, or else in the next caller, with that
 * thread's CPUs. */
void pp_limits_after_fork_in_parent(void) {
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries) && limits.budgets && CPU_COUNT(&limits.cpus) > 0; i++)
        if (!limits.libraries[i].per_thread)
            set_wide(&limits.libraries[i], ask(&limits.libraries[i]));
    pthread_mutex_unlock(&limits.lock);
}

/* The pools belong to the parent. Libraries keep their present count: OpenBLAS's lock around multi-threaded calls may
 * be held by a thread that the child does not have. With a count of 1, the usual one, nobody takes that lock. */
void pp_limits_after_fork_in_child(void) {
    pthread_mutex_init(&limits.lock, NULL);
    limits.budgets = NULL;
    limits.own = NULL;
    limits.n_foreign = 0;
    for (unsigned i = 0; i < PP_LIBRARIES_MAX; i++)
        limits.counts[i].n_made = 0;
    count_awake(0);
    pp_store_relaxed(&most, UINT32_MAX);
}
