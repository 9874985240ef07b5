/* Runs OpenBLAS's parallel regions on our threads, through a gate. No Python, no malloc, and usually no lock.
 *
 * OpenBLAS calls `run_region` instead of using its own threads. All jobs of a call must run at the same time, since
 * they spin until the others are done. Each job needs a number from 0 to 63 that no other running job of the process
 * has, because it indexes buffers in every OpenBLAS. Number i belongs to helper thread i: only the owner of the number
 * may give that helper work.
 *
 * OpenBLAS's own threads have the numbers from 0 up, and it takes the end of a job with such a number for the end of
 * theirs. They work beside ours: updates of LU (exec_blas_async) never reach the callback, nor do regions that began
 * before it was installed. So numbers are taken from the top, and as many low numbers as there are CPUs are left to
 * them.
 */
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_JOBS 1024            /* an OpenBLAS that was built for more CPUs has as many numbers */
#define MAX_LIBRARIES 256
#define CREATE_TRIES 10000       /* one millisecond each */

typedef void (*dojob_t)(int number, void *data, int dojob_data);
typedef void (*callback_t)(int sync, dojob_t run, int n_jobs, size_t size, void *jobs, int dojob_data);
typedef void (*setter_t)(callback_t);

enum { IDLE, ASLEEP, WORK };     /* a helper's futex word */
#define SLEEPS 0x80000000u       /* in a region's countdown: its caller sleeps */
#define CLOSED 0x80000000u       /* in `n_running`: a fork is in progress, and no region may begin */

typedef struct {
    _Alignas(128) _Atomic uint32_t state;   /* the number's owner stores WORK; the helper IDLE or ASLEEP */
    bool exists;                 /* from here on written by the number's owner before WORK, and read by the helper */
    dojob_t run;
    void *data;
    int number, dojob_data;
    _Atomic uint32_t *n_left;    /* on the caller's stack: invalid once it is 0 */
} helper_t;

static helper_t helpers[MAX_JOBS];
static _Atomic uint64_t taken;               /* numbers in use, one bit each */
static _Atomic uint32_t n_reserved;          /* lowest numbers, left to OpenBLAS's own threads if possible */
static _Atomic uint32_t given_back;          /* futex word: changes when numbers are given back */
static _Atomic uint32_t n_wanting;           /* regions that wait for numbers */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;      /* held by the thread that waits for numbers; others queue behind it */
static _Atomic uint32_t n_running;           /* regions with running jobs, and the bit CLOSED */
static _Atomic uint32_t n_jobs_running, n_spinning, n_cpus;
static _Atomic bool crowded;                 /* a thread waited for tokens at the end of the last region: do not spin */
static _Thread_local bool inside;            /* this thread runs a job */

static _Atomic uintptr_t current;            /* a pp_gate_t *, plus 1 if regions take all tokens; or 0 */
static _Atomic uint32_t n_reading;           /* threads that have read `current` but have no reference yet */
static _Atomic uint64_t n_regions, n_waits;
static _Atomic uint32_t n_helpers;

/* ---- numbers ---- */

/* Takes the n highest free numbers, or none. */
static uint64_t try_take(int n) {
    uint32_t reserved = pp_load_relaxed(&n_reserved);
    uint64_t usable = n <= PP_REGION_NUMBERS - (int)reserved ? ~0ull << reserved : ~0ull, seen = pp_load_seq_cst(&taken);
    while (__builtin_popcountll(usable & ~seen) >= n) {
        uint64_t mine = 0, free = usable & ~seen;
        for (int i = 0; i < n; i++) {
            uint64_t highest = 1ull << (63 - __builtin_clzll(free));
            mine |= highest;
            free &= ~highest;
        }
        if (pp_cas_seq_cst(&taken, &seen, seen | mine))
            return mine;
    }
    return 0;
}

/* Takes all n numbers at once, so that no thread waits for numbers while holding some. First come, first served, so
 * that many small regions do not starve a large one. */
static uint64_t take_numbers(int n) {
    uint64_t mine = pp_load_seq_cst(&n_wanting) == 0 ? try_take(n) : 0;
    if (mine)
        return mine;
    pp_add_seq_cst(&n_waits, 1);
    pp_add_seq_cst(&n_wanting, 1);
    pthread_mutex_lock(&turn);
    for (;;) {
        uint32_t before = pp_load_seq_cst(&given_back);
        if ((mine = try_take(n)) != 0)
            break;
        pp_futex_wait(&given_back, before, -1, ~0u);
    }
    pthread_mutex_unlock(&turn);
    pp_add_seq_cst(&n_wanting, -1);
    return mine;
}

static void give_numbers(uint64_t mine) {
    atomic_fetch_and_explicit(&taken, ~mine, memory_order_seq_cst);
    if (pp_load_seq_cst(&n_wanting) > 0) {
        pp_add_seq_cst(&given_back, 1);
        pp_futex_wake(&given_back, 1, ~0u);
    }
}

static int pop_highest(uint64_t *numbers) {
    int highest = 63 - __builtin_clzll(*numbers);
    *numbers &= ~(1ull << highest);
    return highest;
}

/* ---- helpers ---- */

/* Whether spinning is worthwhile: only on a CPU that no other thread needs. */
static bool has_spare_cpu(void) {
    return !pp_load_relaxed(&crowded) &&
           pp_load_relaxed(&n_jobs_running) + pp_load_relaxed(&n_spinning) <= pp_load_relaxed(&n_cpus);
}

static void wait_for_work(helper_t *helper) {
    uint32_t state = pp_load_acquire(&helper->state);
    pp_add_seq_cst(&n_spinning, 1);
    for (int64_t until_ns = pp_now_ns() + PP_REGION_SPIN_NS; state != WORK && has_spare_cpu(); ) {
        pp_pause();
        state = pp_load_acquire(&helper->state);
        if (pp_now_ns() >= until_ns)
            break;
    }
    pp_add_seq_cst(&n_spinning, -1);
    while (state != WORK) {
        state = IDLE;
        if (pp_cas_seq_cst(&helper->state, &state, ASLEEP) || state == ASLEEP)
            pp_futex_wait(&helper->state, ASLEEP, -1, ~0u);
        state = pp_load_acquire(&helper->state);
    }
}

static void count_down(_Atomic uint32_t *n_left) {
    /* Right after this the caller may return, and the word may no longer exist. A futex call on that address then wakes
     * nobody, or wakes a thread spuriously, and every sleeper checks again. */
    if (pp_add_seq_cst(n_left, -1) == (SLEEPS | 1))
        pp_futex_wake(n_left, 1, ~0u);
}

static void *serve_jobs(void *arg) {
    helper_t *helper = arg;
    pp_name_thread("pool_party-blas");
    pp_run_on_all_cpus();        /* not only on those of the worker that happens to be first */
    inside = true;               /* a region within a job would wait for tokens that its caller holds */
    for (;;) {
        wait_for_work(helper);
        _Atomic uint32_t *n_left = helper->n_left;
        dojob_t run = helper->run;
        void *data = helper->data;
        int dojob_data = helper->dojob_data, number = helper->number;
        pp_store_release(&helper->state, IDLE);
        run(number, data, dojob_data);
        pp_add_seq_cst(&n_jobs_running, -1);
        count_down(n_left);
    }
    return NULL;
}

static int create_helper(helper_t *helper) {
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) == 0)
        pp_store_relaxed(&n_cpus, (uint32_t)CPU_COUNT(&set));
    return pp_start_detached(serve_jobs, helper);
}

/* Starts a helper. The region's running jobs already spin until this one has run, so failure is not an option. */
static void need_helper(helper_t *helper) {
    struct timespec ms = {.tv_nsec = 1000000};
    int error = create_helper(helper);
    for (int i = 0; error && i < CREATE_TRIES; i++) {
        nanosleep(&ms, NULL);
        error = create_helper(helper);
    }
    if (error) {
        fprintf(stderr, "pool_party: no thread can be started for OpenBLAS (error %d); its call cannot be completed\n", error);
        abort();
    }
    helper->exists = true;
    pp_add_seq_cst(&n_helpers, 1);
}

static void start_job(int number, dojob_t run, void *data, int dojob_data, _Atomic uint32_t *n_left) {
    helper_t *helper = &helpers[number];
    helper->run = run;
    helper->data = data;
    helper->dojob_data = dojob_data;
    helper->number = number;
    helper->n_left = n_left;
    if (pp_swap_seq_cst(&helper->state, WORK) == ASLEEP)
        pp_futex_wake(&helper->state, 1, ~0u);
    if (!helper->exists)
        need_helper(helper);
}

/* ---- forks ---- */

static void begin_running(void) {
    while (pp_add_seq_cst(&n_running, 1) & CLOSED) {
        uint32_t now = pp_add_seq_cst(&n_running, -1) - 1;
        pp_futex_wake(&n_running, INT32_MAX, ~0u);       /* the fork may have waited for this one */
        while (now & CLOSED) {
            pp_futex_wait(&n_running, now, -1, ~0u);
            now = pp_load_seq_cst(&n_running);
        }
    }
}

static void end_running(void) {
    if (pp_add_seq_cst(&n_running, -1) == (CLOSED | 1))
        pp_futex_wake(&n_running, INT32_MAX, ~0u);
}

static _Atomic uint32_t n_forking;

/* Before a fork OpenBLAS releases all its buffers, even those of running jobs, and the next call in another thread
 * would get them. So this lets running regions end, and none begin. It must run before OpenBLAS's own handler. */
static void regions_before_fork(void) {
    if (pp_add_seq_cst(&n_forking, 1) == 0)
        pp_or_seq_cst(&n_running, CLOSED);
    for (uint32_t now = pp_load_seq_cst(&n_running); now != CLOSED && !inside; now = pp_load_seq_cst(&n_running))
        pp_futex_wait(&n_running, now, -1, ~0u);
}

static void after_fork_in_parent(void) {
    if (pp_add_seq_cst(&n_forking, -1) != 1)
        return;
    atomic_fetch_and_explicit(&n_running, ~CLOSED, memory_order_seq_cst);
    pp_futex_wake(&n_running, INT32_MAX, ~0u);
}

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;

/* The child has this thread only: no helpers and no regions. */
static void after_fork_in_child(void) {
    for (int i = 0; i < MAX_JOBS && (i < PP_REGION_NUMBERS || helpers[i].exists); i++) {
        helpers[i].exists = false;
        pp_store_relaxed(&helpers[i].state, IDLE);
    }
    pp_store_relaxed(&taken, 0);
    pp_store_relaxed(&n_wanting, 0);
    pp_store_relaxed(&n_jobs_running, 0);
    pp_store_relaxed(&n_spinning, 0);
    pp_store_relaxed(&n_reading, 0);
    pp_store_relaxed(&n_helpers, 0);
    pp_store_relaxed(&n_forking, 0);
    pthread_mutex_init(&turn, NULL);
    pthread_mutex_init(&libraries_lock, NULL);
    pp_store_seq_cst(&n_running, 0);
}

/* ---- regions ---- */

static void wait_for_helpers(_Atomic uint32_t *n_left) {
    int64_t until_ns = 0;
    while (pp_load_acquire(n_left) != 0) {
        if (until_ns == 0)
            until_ns = pp_now_ns() + PP_REGION_SPIN_NS;
        if (pp_load_relaxed(&n_jobs_running) > pp_load_relaxed(&n_cpus) || pp_now_ns() >= until_ns)
            break;
        pp_pause();
    }
    if (pp_load_acquire(n_left) == 0)
        return;
    uint32_t now = pp_or_seq_cst(n_left, SLEEPS) | SLEEPS;
    while (now != SLEEPS) {
        pp_futex_wait(n_left, now, -1, ~0u);
        now = pp_load_seq_cst(n_left);
    }
}

/* Starts helpers first and runs the caller's own job last, since that would delay their start. */
static void run_jobs(dojob_t run, int n, size_t size, char *jobs, int dojob_data) {
    _Atomic uint32_t n_left = (uint32_t)n - 1;
    begin_running();
    uint64_t mine = take_numbers(n < PP_REGION_NUMBERS ? n : PP_REGION_NUMBERS), numbers = mine;
    pp_add_seq_cst(&n_jobs_running, n);
    for (int i = 1; i < n; i++)
        start_job(i < PP_REGION_NUMBERS ? pop_highest(&numbers) : i, run, jobs + (size_t)i * size, dojob_data, &n_left);
    run(pop_highest(&numbers), jobs, dojob_data);
    pp_add_seq_cst(&n_jobs_running, -1);
    wait_for_helpers(&n_left);
    give_numbers(mine);
    end_running();
}

/* The process's gate, with a new reference. `pp_regions_install` drops a gate only when no thread is in this function. */
static pp_gate_t *current_gate(bool *exclusive) {
    pp_add_seq_cst(&n_reading, 1);
    uintptr_t now = pp_load_seq_cst(&current);
    pp_gate_t *g = (pp_gate_t *)(now & ~(uintptr_t)1);
    if (g)
        pp_gate_ref(g);
    pp_add_seq_cst(&n_reading, -1);
    *exclusive = now & 1;
    return g;
}

static bool enter_gate(pp_gate_t *g, unsigned n) {
    unsigned granted;
    int error = pp_gate_begin(g, n, false, &granted);
    if (error != EAGAIN)
        return error == 0;   /* if the table is full, or stuck, run without tokens rather than not at all */
    pp_add_seq_cst(&n_waits, 1);
    while (pp_gate_wait() != 0) {}
    return true;
}

static void leave_gate(pp_gate_t *g) {
    pp_gate_stats_t stats;
    pp_gate_release();
    pp_gate_stats(g, &stats);
    pp_store_relaxed(&crowded, stats.n_waiting > 0);
}

static void run_region(int sync, dojob_t run, int n_jobs, size_t size, void *jobs, int dojob_data) {
    (void)sync;
    if (n_jobs <= 0)
        return;
    if (n_jobs > MAX_JOBS) {
        fprintf(stderr, "pool_party: an OpenBLAS region of %d jobs; at most %d are supported\n", n_jobs, MAX_JOBS);
        abort();
    }
    pp_add_seq_cst(&n_regions, 1);
    bool exclusive, was_inside = inside;
    pp_gate_t *g = was_inside ? NULL : current_gate(&exclusive);
    bool entered = g && enter_gate(g, exclusive ? UINT32_MAX : (unsigned)n_jobs);
    inside = true;
    run_jobs(run, n_jobs, size, jobs, dojob_data);
    inside = was_inside;
    if (entered)
        leave_gate(g);
    pp_gate_unref(g);
}

/* ---- libraries ---- */

static struct {
    uintptr_t setter;
    unsigned n_users;                        /* interpreters that gate it, each with its own list of libraries */
} libraries[MAX_LIBRARIES];                  /* guarded by libraries_lock */
static int n_libraries;
static unsigned n_users;                     /* of all libraries */

static void set_current(pp_gate_t *gate, bool exclusive) {
    uintptr_t now = gate ? (uintptr_t)pp_gate_ref(gate) | exclusive : 0;
    uintptr_t before = pp_swap_seq_cst(&current, now);
    while (pp_load_seq_cst(&n_reading) > 0)
        sched_yield();
    pp_gate_unref((pp_gate_t *)(before & ~(uintptr_t)1));
}

/* A library that is new here was loaded after those before it. Fork handlers run in reverse order, so ours is
 * registered again. */
static int find_library(uintptr_t setter, bool add) {
    for (int i = 0; i < n_libraries; i++)
        if (libraries[i].setter == setter)
            return i;
    if (!add || n_libraries == MAX_LIBRARIES ||
        pthread_atfork(regions_before_fork, after_fork_in_parent, after_fork_in_child) != 0)
        return -1;
    long n_online = sysconf(_SC_NPROCESSORS_ONLN);
    pp_store_relaxed(&n_reserved, n_online < 1 ? 0 : n_online < PP_REGION_NUMBERS ? (uint32_t)n_online - 1 : PP_REGION_NUMBERS - 1);
    libraries[n_libraries].setter = setter;
    return n_libraries++;
}

int pp_regions_install(uintptr_t setter, pp_gate_t *gate, bool exclusive) {
    pthread_mutex_lock(&libraries_lock);
    int i = find_library(setter, true);
    if (i >= 0) {
        if (n_users++ == 0)
            set_current(gate, exclusive);    /* later callers use that gate, too */
        if (libraries[i].n_users++ == 0)
            ((setter_t)setter)(run_region);
    }
    pthread_mutex_unlock(&libraries_lock);
    return i < 0 ? ENOMEM : 0;
}

int pp_regions_uninstall(uintptr_t setter) {
    pthread_mutex_lock(&libraries_lock);
    int i = find_library(setter, false);
    bool found = i >= 0 && libraries[i].n_users > 0;
    if (found && --libraries[i].n_users == 0)
        ((setter_t)setter)(NULL);
    if (found && --n_users == 0)
        set_current(NULL, false);
    pthread_mutex_unlock(&libraries_lock);
    return found ? 0 : ENOENT;
}

void pp_regions_stats(pp_region_stats_t *out) {
    *out = (pp_region_stats_t){
        .n_regions = pp_load_relaxed(&n_regions),
        .n_waits = pp_load_relaxed(&n_waits),
        .n_helpers = pp_load_relaxed(&n_helpers),
    };
}
