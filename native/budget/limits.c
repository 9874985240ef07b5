/* How many threads the native libraries of this process may use now.
 *
 * A setter has one of three scopes: the whole process (OpenBLAS with pthreads), the calling thread (OpenMP), or a
 * private copy of the library, which only one interpreter worker uses.
 *
 * For the first scope the process has one count. It depends on which workers of this process, over all pools, are
 * active:
 *
 *     none                   what the user has set
 *     of a pool that lends   the share of its last worker: see divide.c
 *     of another pool        its count; if several pools have active workers, at most that share
 *
 * The smallest of these is used, but never more than the user has set. A worker process also keeps its own count,
 * whether it is active or not. The count changes when a worker becomes active or idle. Before a task one read finds out
 * whether the user has changed it. For the second scope each worker calls the setters itself, before a task. A private
 * copy has a count for its worker, by the same rules, which the thread that causes a change sets.
 *
 * The program's limit is known in three ways. First, we store the count that we last set or saw in each library (`now`).
 * If the library has another one while no worker is active, the program set it (`users`). Second, calls through
 * threadpoolctl are reported to us (`pp_user_sets`), since they may set the count that is in force anyway. Its open blocks
 * are reported, too (`block`). Third, a count that a library has when it is found is the program's, unless it is the
 * library's own default.
 *
 * A task's limit (`pp_task_sets`) is a wish of its worker. It applies to the libraries that this worker uses, which may
 * be those of all workers in the process, and ends with the task. A count that was set without a report while a worker
 * is active may be a task's. So it is not taken for a limit, and does not last: before the next task, and when the
 * worker becomes idle, the count is what it should be. What an initializer has set is what each task begins with.
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
    pp_limited_t *workers;              /* the workers that are threads of this process */
    uint64_t n_tasks;                   /* tasks that have set a count */
    unsigned n_foreign;                 /* active workers in other processes */
    unsigned applied;                   /* the process's count; 0: each library has its own */
    unsigned told;                      /* the count in a worker process's environment, instead of the user's; 0: none */
    cpu_set_t cpus;                     /* where libraries' threads may run, even if a worker may not; empty: unknown */
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local pp_limited_t *own_limits;   /* of the worker that runs in this thread, or NULL */

unsigned pp_own_grant(void) { return own_limits ? pp_load_relaxed(own_limits->grant) : 0; }

static _Atomic uint32_t n_libraries;    /* written under the lock */
static _Atomic uint32_t n_awake;        /* active workers of all pools, including those in other processes; written under the lock */

static unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

static void set_n_awake(unsigned n) {
    pp_store_relaxed(&n_awake, n);
    pp_others_note(n);
}

/* How many threads of a library a worker may use now: see divide.c. A pool that has no work, or that works alone and does
 * not lend, keeps what it was granted.
 *
 * A worker looks alone, before a task, so its rank is its number. The balancer takes the place among a pool's active
 * workers, so that left-over threads are always used; but places change whenever another worker becomes active or idle.
 * No number is lower than that place, so the sum stays within bounds. */
unsigned pp_budget_count(const pp_budget_t *b, unsigned own, unsigned number) {
    unsigned here = pp_load_relaxed(&b->n_awake), all = pp_load_relaxed(&n_awake), others = all > here ? all - here : 0;
    bool lends = pp_load_relaxed(&b->lends);
    if (here == 0 || (others == 0 && !lends))
        return own;
    unsigned n_cpus = pp_load_relaxed(&b->n_cpus);
    return pp_divide(own, others + number, others + here, n_cpus, lends ? pp_others_leave(n_cpus) : 0);
}

/* What its libraries may use that have one count for the process: no worker has less. */
static unsigned least_count(const pp_budget_t *b) { return pp_budget_count(b, b->n_threads, pp_load_relaxed(&b->n_awake)); }

static unsigned wanted(void) {
    unsigned n = 0;
    for (const pp_budget_t *b = limits.budgets; b; b = b->next) {
        unsigned least = least_count(b);
        if ((pp_load_relaxed(&b->n_awake) > 0 || b->is_kept) && (n == 0 || least < n))
            n = least;
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

/* If the count has changed since the last look, and no task may have changed it, the program has. */
static void look_at_count(const pp_library_t *library, pp_count_t *c, bool may_be_tasks) {
    unsigned n = ask(library);
    if (n != pp_load_relaxed(&c->now)) {
        c->users = may_be_tasks ? c->users : n;
        pp_store_relaxed(&c->now, n);
    }
}

/* Whether a task, or an initializer, may run in this process. */
static bool is_busy(void) {
    for (const pp_budget_t *b = limits.budgets; b; b = b->next)
        if (pp_load_relaxed(&b->n_awake) > 0 || b->is_kept)
            return true;
    return false;
}

static unsigned limit_of(const pp_wish_t *wish) {
    return wish->now ? wish->now : wish->base ? wish->base : UINT32_MAX;
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

/* Applies a budget and the wishes of tasks to a library. wanted: the budget; 0: none. */
static void keep_to(const pp_library_t *library, pp_count_t *c, unsigned wanted, unsigned wish) {
    unsigned n = wanted ? smaller(wanted, users_most(c)) : c->block ? c->block : c->users;
    set(library, c, smaller(n, wish));
}

/* ---- all libraries ---- */

/* The smallest limit of a task for a library that all workers share. What initializers have set applies while workers
 * are active. */
static unsigned least_wish(unsigned k, bool is_busy) {
    unsigned n = UINT32_MAX;
    for (const pp_limited_t *w = limits.workers; w; w = w->next)
        if (is_busy || w->wishes[k].now)
            n = smaller(n, limit_of(&w->wishes[k]));
    return n;
}

static unsigned most_of_all(void) {
    unsigned n = UINT32_MAX;
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++)
        if (!limits.libraries[i].per_thread)
            n = smaller(n, users_most(&limits.counts[i]));
    return n;
}

/* The program does not see private copies, and sets only the process's libraries. Those limits are applied to copies as
 * well. */
static void set_own(pp_own_library_t *own, unsigned users) {
    unsigned grant = pp_load_relaxed(own->grant), n = smaller(pp_budget_count(own->budget, grant, own->number), users);
    look_at_count(&own->library, &own->count, true);
    if (grant > 0 && pp_load_relaxed(&own->budget->is_open))
        keep_to(&own->library, &own->count, n, limit_of(&own->wish));
}

static void look_at_counts(void) {
    bool busy = is_busy();
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++)
        if (!limits.libraries[i].per_thread)
            look_at_count(&limits.libraries[i], &limits.counts[i], busy);
}

static void note_lends(pp_budget_t *b) {
    bool is_active = pp_load_relaxed(&b->n_awake) > 0, lends = pp_load_relaxed(&b->lends) && is_active && limits.applied > b->n_threads;
    pp_add_seq_cst(&b->n_lends, lends && !b->is_lent);
    pp_add_seq_cst(&b->n_reclaims, b->is_lent && !lends && is_active);
    b->is_lent = lends;
}

/* Called after a change. Before a change of what is active, `look_at_counts` must have been called. */
static void apply(void) {
    bool busy = is_busy();
    look_at_counts();
    limits.applied = wanted();
    for (pp_budget_t *b = limits.budgets; b; b = b->next)
        note_lends(b);
    for (unsigned i = 0; i < pp_load_relaxed(&n_libraries); i++)
        if (!limits.libraries[i].per_thread)
            keep_to(&limits.libraries[i], &limits.counts[i], limits.applied, least_wish(i, busy));
    unsigned users = limits.own ? most_of_all() : UINT32_MAX;
    for (pp_own_library_t *own = limits.own; own; own = own->next)
        set_own(own, users);
}

static unsigned find_by_setter(uintptr_t set) {
    unsigned k = 0;
    while (k < pp_load_acquire(&n_libraries) && (uintptr_t)limits.libraries[k].set != set)
        k++;
    return k;
}

static pp_own_library_t *find_own(uintptr_t set) {
    pp_own_library_t *own = limits.own;
    while (own && (uintptr_t)own->library.set != set)
        own = own->next;
    return own;
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
    return own ? pp_budget_count(own_limits->budget, own, own_limits->number) : 0;
}

static void keep_here(unsigned k) {
    unsigned n = pp_own_threads();
    pp_count_t *c = n ? count_here(k) : NULL;
    if (c) {
        look_at_count(&limits.libraries[k], c, true);
        keep_to(&limits.libraries[k], c, n, limit_of(&own_limits->wishes[k]));
    }
}

/* In a worker process its task's limits are those of a pool that the task opens. */
unsigned pp_user_most(void) {
    pthread_mutex_lock(&limits.lock);
    look_at_counts();
    bool is_worker = false;
    for (const pp_budget_t *b = limits.budgets; b; b = b->next)
        is_worker |= b->is_kept;
    unsigned n = most_of_all();
    for (unsigned i = 0; is_worker && i < pp_load_relaxed(&n_libraries); i++)
        n = smaller(n, least_wish(i, true));
    pthread_mutex_unlock(&limits.lock);
    return n;
}

/* Python code finds libraries, or in an interpreter the thread that loads them. They stay loaded from then on. */
void pp_limits_add(const pp_library_t *library) {
    pthread_mutex_lock(&limits.lock);
    if (find_own((uintptr_t)library->set)) {   /* found by the interpreter whose private copy it is */
        pthread_mutex_unlock(&limits.lock);
        return;
    }
    unsigned k = find_by_setter((uintptr_t)library->set);
    if (is_known(k) && library->count) {
        limits.libraries[k].count = library->count;
        limits.libraries[k].has_threads = library->has_threads;
    }
    if (is_known(k) && library->most && library->most != limits.libraries[k].most) {   /* found by the parent of this worker */
        limits.libraries[k].most = library->most;
        limits.counts[k].found_most = smaller(limits.counts[k].found_most, library->most);
        pp_count_t *here = library->per_thread ? count_here(k) : NULL;
        if (here)
            here->found_most = smaller(here->found_most, library->most);
        apply();
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

/* ---- what tasks set through threadpoolctl ---- */

uint64_t pp_task_of(pp_limited_t *worker) {
    worker = own_limits ? own_limits : worker;
    if (worker == NULL)
        return 0;
    pthread_mutex_lock(&limits.lock);
    if (pp_load_relaxed(&worker->task) == 0)
        pp_store_relaxed(&worker->task, ++limits.n_tasks);
    uint64_t task = pp_load_relaxed(&worker->task);
    pthread_mutex_unlock(&limits.lock);
    return task;
}

static pp_limited_t *find_worker(uint64_t task) {
    pp_limited_t *w = limits.workers;
    while (w && pp_load_relaxed(&w->task) != task)
        w = w->next;
    return w;
}

/* Sets the count of a library with a count per thread in the calling one, which is one of the worker's. */
static void wish_here(pp_limited_t *w, unsigned k, unsigned n) {
    unsigned grant = pp_load_relaxed(w->grant);
    unsigned budget = grant && pp_load_relaxed(&w->budget->is_open) ? pp_budget_count(w->budget, grant, w->number) : UINT32_MAX;
    pp_count_t *c = w == own_limits ? count_here(k) : NULL;
    if (c) {
        w->wishes[k].now = n;
        look_at_count(&limits.libraries[k], c, true);
        keep_to(&limits.libraries[k], c, budget == UINT32_MAX ? 0 : budget, limit_of(&w->wishes[k]));
    } else if (n || budget != UINT32_MAX) {   /* a thread that the task has started */
        limits.libraries[k].set((int)smaller(n ? n : UINT32_MAX, budget));
    }
}

bool pp_task_sets(uint64_t task, uintptr_t set, unsigned n) {
    pthread_mutex_lock(&limits.lock);
    pp_limited_t *w = find_worker(task);
    unsigned k = find_by_setter(set);
    pp_own_library_t *own = find_own(set);
    bool is_found = w && (own ? own->grant == w->grant : is_known(k));
    bool is_here = is_found && !own && limits.libraries[k].per_thread;
    if (is_found && !is_here) {
        *(own ? &own->wish.now : &w->wishes[k].now) = n;
        apply();
    }
    pthread_mutex_unlock(&limits.lock);
    if (is_here)
        wish_here(w, k, n);   /* the worker exists until the task, in one of whose threads this is, has ended */
    return is_found;
}

/* Ends what the worker's task has set. settles: what has been set is what its tasks begin with. */
static void settle_wishes(pp_limited_t *w, bool settles) {
    for (unsigned k = 0; k < pp_load_acquire(&n_libraries); k++) {
        pp_wish_t *wish = &w->wishes[k];
        if (settles && wish->now)
            wish->base = wish->now;
        wish->now = 0;
    }
    for (pp_own_library_t *own = limits.own; own; own = own->next)
        if (own->grant == w->grant) {
            if (settles && own->wish.now)
                own->wish.base = own->wish.now;
            own->wish.now = 0;
        }
    pp_store_relaxed(&w->task, 0);
}

void pp_limits_end_task(pp_limited_t *w) {
    if (pp_load_relaxed(&w->task) == 0)
        return;
    for (unsigned k = 0; k < pp_load_acquire(&n_libraries); k++)
        if (limits.libraries[k].per_thread && w->wishes[k].now)
            wish_here(w, k, 0);
    pthread_mutex_lock(&limits.lock);
    settle_wishes(w, false);
    apply();
    pthread_mutex_unlock(&limits.lock);
}

/* An initializer may have used a library's own function. */
static void note_unreported(pp_wish_t *wish, const pp_library_t *library, const pp_count_t *c) {
    unsigned n = ask(library), now = pp_load_relaxed(&c->now);
    if (now != 0 && n != now)
        wish->base = n;
}

void pp_limits_settle(pp_limited_t *w) {
    pthread_mutex_lock(&limits.lock);
    settle_wishes(w, true);
    for (unsigned k = 0; k < pp_load_acquire(&n_libraries); k++)
        note_unreported(&w->wishes[k], &limits.libraries[k], limits.libraries[k].per_thread ? &w->counts[k] : &limits.counts[k]);
    for (pp_own_library_t *own = limits.own; own; own = own->next)
        if (own->grant == w->grant)
            note_unreported(&own->wish, &own->library, &own->count);
    apply();
    pthread_mutex_unlock(&limits.lock);
}

/* ---- what the program sets through threadpoolctl ---- */

bool pp_user_sets(uintptr_t set, unsigned n) {
    unsigned k = find_by_setter(set);
    if (!is_known(k))
        return false;
    if (limits.libraries[k].per_thread) {
        limits.libraries[k].set((int)n);
        return true;
    }
    pthread_mutex_lock(&limits.lock);
    look_at_counts();
    limits.counts[k].users = n;
    apply();
    pthread_mutex_unlock(&limits.lock);
    return true;
}

bool pp_user_blocks(uintptr_t set, unsigned n, bool applies) {
    unsigned k = find_by_setter(set);
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
    unsigned k = find_by_setter(set);
    if (!is_known(k))
        return false;
    pthread_mutex_lock(&limits.lock);
    look_at_counts();
    *n = limits.libraries[k].per_thread ? ask(&limits.libraries[k]) : limits.counts[k].users;
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
    set_n_awake(pp_load_relaxed(&n_awake) - limits.n_foreign + n);
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
    limits.workers = NULL;   /* of the thread that has forked */
    own_limits = NULL;
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
    look_at_counts();
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

/* n_threads: the process's count while a worker of this pool is active. lends: unless n_cpus divided by active workers is
 * more. */
void pp_budget_open(pp_budget_t *b, unsigned n_cpus, unsigned n_threads, bool lends) {
    open_budget(b, n_cpus, n_threads, lends, false);
}

/* In a worker process: sets its count. The worker itself is not counted as active; pools that its tasks open share the
 * count. */
void pp_budget_keep(pp_budget_t *b, unsigned n_threads) { open_budget(b, 0, n_threads, false, true); }

void pp_budget_close(pp_budget_t *b) {
    pthread_mutex_lock(&limits.lock);
    look_at_counts();
    for (pp_budget_t **p = &limits.budgets; *p; p = &(*p)->next)
        if (*p == b) {   /* not in a forked child, to which the parent's pool does not belong */
            *p = b->next;
            set_n_awake(pp_load_relaxed(&n_awake) - pp_load_relaxed(&b->n_awake));
            break;
        }
    pp_store_relaxed(&b->is_open, false);
    pp_store_relaxed(&b->n_awake, 0);
    apply();
    if (limits.budgets == NULL)
        CPU_ZERO(&limits.cpus);
    pthread_mutex_unlock(&limits.lock);
}

static void change_n_awake(pp_budget_t *b, int change) {
    pthread_mutex_lock(&limits.lock);
    if (pp_load_relaxed(&b->is_open) && !b->is_kept) {
        look_at_counts();
        pp_store_relaxed(&b->n_awake, pp_load_relaxed(&b->n_awake) + (unsigned)change);
        set_n_awake(pp_load_relaxed(&n_awake) + (unsigned)change);
        apply();
    }
    pthread_mutex_unlock(&limits.lock);
}

unsigned pp_budget_lent(const pp_budget_t *b) {
    return pp_load_relaxed(&b->is_open) && pp_load_relaxed(&b->lends) ? least_count(b) : 0;
}

void pp_budget_enter(pp_budget_t *b) { change_n_awake(b, +1); }
void pp_budget_leave(pp_budget_t *b) { change_n_awake(b, -1); }

void pp_limits_enter(pp_limited_t *worker) {
    pthread_mutex_lock(&limits.lock);
    pp_limited_t **p = &limits.workers;
    while (*p && *p != own_limits)
        p = &(*p)->next;
    if (*p) {   /* not so in a forked child, if another thread has forked it */
        settle_wishes(own_limits, false);
        *p = own_limits->next;
        apply();   /* without what its initializer has set */
    }
    own_limits = worker;
    if (worker) {
        worker->next = limits.workers;
        limits.workers = worker;
    }
    pthread_mutex_unlock(&limits.lock);
}

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
    limits.workers = own_limits;
    if (own_limits)
        own_limits->next = NULL;
    limits.n_foreign = 0;
    for (unsigned i = 0; i < PP_LIBRARIES_MAX; i++)
        limits.counts[i].n_made = 0;
    set_n_awake(0);
}
