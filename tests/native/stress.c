/* Stress test of the channel without Python: segment.c, channel.c, blocks.c and prim/linux.c.
 *
 *   stress units                             single cases, in one thread
 *   stress threads   SEED ROUNDS WORKERS       workers are threads, which also end by themselves now and then
 *   stress processes SEED ROUNDS WORKERS       workers are forked processes, which are SIGKILLed at random instants
 *   stress stop      SEED ROUNDS WORKERS       STOP in mid-flight, again and again
 *
 * A round puts some tasks and waits until each has an outcome, so that a lost wake-up is a hang, which SIGALRM ends,
 * instead of a delay. The last tasks of some rounds wait for each other. There are as many as workers, so no worker may
 * sleep while one of them waits.
 */
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition, ...) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, __VA_ARGS__))
#define HANG_S 120
#define BATCH_MAX (2 * PP_SLOTS)
#define WORKERS_MAX 1000
#define KEPT_MAX 37
#define WAIT_NS 100000                                       /* after this, a worker without a task looks once more, and then sleeps */

enum { FREE, READY, CLAIMED, TAKEN, REVOKED };               /* slot tags, as in channel.c */
enum { PENDING, DONE, TAKEN_BACK, LOST };                    /* a task's outcome */
enum { QUICK, MEETING };                                     /* a task's mode: MEETING waits until WORKERS have begun */
enum { NOBODY, FOREGROUND, BACKGROUND };                     /* who leads */

typedef struct {
    bool alive;
    pid_t pid;
    pthread_t thread;
} worker_t;

typedef struct {                                             /* the parent's side of a pool */
    pp_segment_t *segment;
    pp_parent_t parent;
    pp_arena_t *arena;
    unsigned n_workers, seed;
    bool by_process;
    uint64_t n_max;
    _Atomic uint64_t n_put;
    _Atomic uint32_t n_settled, n_revoked, n_lost, n_deaths; /* n_settled: futex word of the waiting main thread */
    _Atomic uint32_t round;                                  /* futex word of the foreground thread while it is away */
    _Atomic uint8_t *outcomes;
    _Atomic bool is_stopping, is_over, is_claimed, no_kills, no_revokes;
    pthread_mutex_t lock;                                    /* guards the following fields */
    int leader;
    worker_t workers[WORKERS_MAX];
    unsigned dead[WORKERS_MAX], n_dead;
    pp_memory_t *kept[KEPT_MAX];                             /* results that the leader keeps */
    uint64_t kept_ids[KEPT_MAX];
} pool_t;

static _Atomic uint32_t *n_met;                              /* number of MEETING tasks that have begun, by task; shared with processes */

static _Noreturn void fail(const char *file, int line, const char *what, const char *why, uint64_t value) {
    fprintf(stderr, "%s:%d: not %s: %s (%llu)\n", file, line, what, why, (unsigned long long)value);
    abort();
}

static uint32_t draw(uint32_t *state, uint32_t below) {
    *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5;
    return *state % below;
}
static uint32_t mix(uint64_t id, uint32_t salt) {
    uint64_t x = (id + 1) * 0x9e3779b97f4a7c15ull ^ salt * 0xc2b2ae3d27d4eb4full;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(x >> 32) | 1;
}

/* ---- payloads: size and bytes follow from the task's number ---- */

static uint64_t job_of(uint64_t id) { return id + 1; }       /* a call's number; no call has the number 0 */
static uint64_t id_of(uint64_t job) { return job - 1; }

static uint32_t size_of(uint64_t id, uint32_t salt) {
    uint32_t r = mix(id, salt), kind = draw(&r, 64);
    return kind < 32 ? draw(&r, PP_SLOT_INLINE + 1) : kind < 61 ? draw(&r, PP_INLINE_MAX + 1)
                                                                 : PP_INLINE_MAX + 1 + draw(&r, 1u << 17);
}
static void write_payload(void *to, uint32_t size, uint64_t id) { memset(to, (int)(id % 251) + 1, size); }
static void check_payload(const void *from, uint32_t size, uint64_t id) {
    const unsigned char *p = from;
    CHECK(size == 0 || (p[0] == id % 251 + 1 && memcmp(p, p + 1, size - 1) == 0), "payload of task", id);
}

/* ---- a worker ---- */

/* Returns 0, EAGAIN or ECANCELED. */
static int reply(pp_worker_t *worker, pp_arena_t *arena, const pp_slot_t *task, unsigned char *buffer) {
    uint64_t id = id_of(task->job);
    uint32_t size = size_of(id, 2);
    pp_blockref_t ref;
    pp_frame_t frame = {.job = task->job, .index = task->index, .where = PP_IN_RING, .size = size};
    const void *data = buffer;
    void *to = buffer;
    int error;
    if (size > PP_INLINE_MAX) {
        CHECK(pp_block_open(arena, size, &ref, &to) == 0, "block for the result of", id);
        frame.where = PP_IN_BLOCK;
        frame.size = sizeof ref;
        data = &ref;
    }
    write_payload(to, size, id);
    while ((error = pp_worker_reply(worker, &frame, data)) == EAGAIN)
        if ((error = pp_worker_wait_room(worker)) != 0)
            break;
    return error;
}

static void run(pp_worker_t *worker, const pp_slot_t *task, const void *payload) {
    uint64_t id = id_of(task->job);
    uint32_t size = size_of(id, 1);
    if (task->where == PP_IN_BLOCK) {
        void *memory;
        pp_memory_t *kept = NULL;
        const pp_blockref_t *ref = (const pp_blockref_t *)task->data;
        if (id % 2 && pp_memory_keep(worker->segment, 0, ref, PP_KEPT + worker->n_worker, &kept) == 0) {
            pp_worker_copied(worker, task, true);
            check_payload(pp_memory_start(kept), size, id);
            memset(pp_memory_start(kept), 0, size);          /* a private copy: nobody sees this */
            pp_memory_unref(kept);
        } else {
            CHECK(ref->size == size && pp_block_map(worker->segment, ref, &memory) == 0, "block of task", id);
            check_payload(memory, size, id);
            pp_block_unmap(worker->segment, ref, memory);
            pp_worker_copied(worker, task, false);
        }
    } else {
        CHECK(task->size == size, "size of task", id);
        check_payload(task->where == PP_IN_RING ? payload : task->data, size, id);
    }
    if (task->mode == MEETING) {
        pp_add_seq_cst(&n_met[task->index], 1);
        while (pp_load_seq_cst(&n_met[task->index]) < worker->shared->n_workers && !pp_worker_must_stop(worker))
            sched_yield();
    }
}

/* Serves until the pool ends, or n_left tasks have run. */
static void serve(pp_segment_t *s, unsigned number, uint64_t n_left) {
    static _Thread_local unsigned char payload[PP_INLINE_MAX], buffer[PP_INLINE_MAX];
    pp_worker_t worker;
    pp_slot_t task;
    pp_arena_t *arena = pp_arena_new(s, 1 + number);
    CHECK(arena && pp_worker_init(&worker, s, number) == 0, "worker slot", number);
    pp_worker_state(&worker, PP_WORKER_READY);
    for (int error = 0; n_left > 0 && !pp_worker_must_stop(&worker);) {
        if (!pp_worker_claim(&worker, &task, payload)) {
            worker.deadline_ns = error == ETIMEDOUT ? 0 : pp_now_ns() + WAIT_NS;
            if ((error = pp_worker_wait(&worker)) != 0 && error != ETIMEDOUT)
                break;
            continue;
        }
        run(&worker, &task, payload);
        if (reply(&worker, arena, &task, buffer) != 0)
            break;                                           /* it still holds the task, which is then lost */
        pp_worker_finish(&worker);
        n_left--;
    }
    pp_arena_free(arena);
    pp_worker_state(&worker, PP_WORKER_EXITED);
}

typedef struct {
    pool_t *pool;
    unsigned worker;
    uint64_t n_tasks;
} start_t;

static void *run_thread(void *arg) {
    start_t start = *(start_t *)arg;
    free(arg);
    serve(start.pool->segment, start.worker, start.n_tasks);
    return NULL;
}

static void start_worker(pool_t *p, unsigned worker) {
    worker_t w = {.alive = true};
    pp_parent_open_slot(&p->parent, worker);
    if (p->by_process) {
        if ((w.pid = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);                    /* after a hang the parent aborts */
            serve(p->segment, worker, UINT64_MAX);
            _exit(0);
        }
        CHECK(w.pid > 0, "fork", errno);
    } else {
        start_t *start = malloc(sizeof *start);
        *start = (start_t){p, worker, 500 + mix(pp_load_relaxed(&p->n_put), worker) % 5000};
        CHECK(pthread_create(&w.thread, NULL, run_thread, start) == 0, "thread", worker);
    }
    pthread_mutex_lock(&p->lock);
    p->workers[worker] = w;
    pthread_mutex_unlock(&p->lock);
}

/* ---- the parent: outcomes ---- */

static void settle(pool_t *p, uint64_t id, uint8_t outcome) {
    uint8_t before = PENDING;
    CHECK(id < p->n_max, "no such task", id);
    CHECK(atomic_compare_exchange_strong(&p->outcomes[id], &before, outcome), "two outcomes of task", id);
    if (outcome == TAKEN_BACK)
        pp_add_seq_cst(&p->n_revoked, 1);
    if (outcome == LOST)
        pp_add_seq_cst(&p->n_lost, 1);
    pp_add_seq_cst(&p->n_settled, 1);
    pp_futex_wake(&p->n_settled, 1, UINT32_MAX);
}

/* A kept result still has its contents, whatever has happened to its worker since. */
static void drop_kept(pool_t *p, unsigned i) {
    if (p->kept[i] == NULL)
        return;
    check_payload(pp_memory_start(p->kept[i]), size_of(p->kept_ids[i], 2), p->kept_ids[i]);
    pp_memory_unref(p->kept[i]);
    p->kept[i] = NULL;
}

static unsigned take_slot(pool_t *p, unsigned worker) {
    unsigned n = 0;
    for (const pp_frame_t *f; (f = pp_parent_peek(&p->parent, worker)) != NULL; n++) {
        uint64_t id = id_of(f->job);
        uint32_t size = size_of(id, 2);
        if (f->where == PP_IN_BLOCK) {
            pp_blockref_t ref;
            void *memory;
            memcpy(&ref, f + 1, sizeof ref);
            pp_store_seq_cst(&pp_segment_flags(p->segment, 1 + worker)->in_use[ref.id], PP_KEPT);
            pp_memory_t **kept = &p->kept[id % KEPT_MAX];    /* some results are kept until much later */
            if (*kept == NULL && id % 3 == 0 && pp_memory_keep(p->segment, 1 + worker, &ref, PP_KEPT, kept) == 0) {
                p->kept_ids[id % KEPT_MAX] = id;
            } else {
                CHECK(ref.size == size && pp_block_map(p->segment, &ref, &memory) == 0, "block of result", id);
                check_payload(memory, size, id);
                pp_block_unmap(p->segment, &ref, memory);
                pp_block_release(p->segment, 1 + worker, ref.id);
                drop_kept(p, id % KEPT_MAX);
            }
        } else {
            CHECK(f->size == size, "size of result", id);
            check_payload(f + 1, size, id);
        }
        pp_parent_take(&p->parent, worker, f);
        settle(p, id, DONE);
    }
    return n;
}

static void reap(pool_t *p, unsigned worker) {
    uint64_t job;
    uint32_t index;
    take_slot(p, worker);
    if (pp_parent_reap(&p->parent, worker, &job, &index)) {
        pp_add_seq_cst(&n_met[index], 1);                    /* wakes the tasks that wait for it */
        settle(p, id_of(job), LOST);
    }
    pp_add_seq_cst(&p->n_deaths, 1);
}

/* For the leader. Threads report their end by the state of their worker slot; dead processes are in a list. */
static void handle_events(pool_t *p) {
    if (!pp_swap_seq_cst(&p->segment->shared->events, 0))
        return;
    unsigned dead[WORKERS_MAX], n = 0;
    pthread_mutex_lock(&p->lock);
    for (; p->n_dead > 0; n++)
        dead[n] = p->dead[--p->n_dead];
    for (unsigned i = 0; i < p->n_workers; i++)
        if (!p->by_process && p->workers[i].alive &&
            pp_load_acquire(&pp_segment_worker(p->segment, i)->state) == PP_WORKER_EXITED)
            dead[n++] = i;                                   /* counts as alive until it has a successor: `reap` waits for that */
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < n; i++) {
        if (!p->by_process)
            pthread_join(p->workers[dead[i]].thread, NULL);
        reap(p, dead[i]);
        if (!pp_load_seq_cst(&p->is_stopping)) {
            start_worker(p, dead[i]);
            continue;
        }
        pthread_mutex_lock(&p->lock);
        p->workers[dead[i]].alive = false;
        pthread_mutex_unlock(&p->lock);
    }
}

static bool try_lead(pool_t *p, int me) {
    pthread_mutex_lock(&p->lock);
    bool leads = p->leader == NOBODY;
    if (leads) {
        p->leader = me;
        pp_parent_lead(&p->parent);
    }
    pthread_mutex_unlock(&p->lock);
    return leads;
}

static void step_down(pool_t *p) {
    pthread_mutex_lock(&p->lock);
    p->leader = NOBODY;
    pp_parent_step_down(&p->parent);
    pthread_mutex_unlock(&p->lock);
}

static unsigned take_all(pool_t *p) {
    unsigned n = 0;
    PP_EACH_BIT(i, p->segment->shared->replied, p->n_workers)
        n += take_slot(p, i);
    handle_events(p);
    return n;
}

/* Leads for a number of results, or for a while; sometimes sleeps as leader until rings are full. Then it goes away,
 * often until the next round, and the background thread handles the rest of this one. */
static void *run_foreground(void *arg) {
    pool_t *p = arg;
    uint32_t r = mix(p->seed, 11);
    while (!pp_load_seq_cst(&p->is_over)) {
        if (try_lead(p, FOREGROUND)) {
            unsigned n = 0, n_wanted = 1 + draw(&r, 300);
            int64_t deadline_ns = draw(&r, 2) ? -1 : pp_now_ns() + draw(&r, 1000000);
            if (draw(&r, 8) == 0)
                usleep(draw(&r, 4000));
            while (n < n_wanted && !pp_load_seq_cst(&p->is_over) && (deadline_ns < 0 || pp_now_ns() < deadline_ns)) {
                uint32_t bell = pp_load_seq_cst(&p->segment->shared->bell);   /* a later claim changes it */
                if (pp_load_seq_cst(&p->is_claimed))
                    break;
                unsigned n_more = take_all(p);
                if (n_more == 0)
                    pp_parent_park(&p->parent, bell, deadline_ns, draw(&r, 4) == 0);
                n += n_more;
            }
            step_down(p);
        }
        uint32_t round = pp_load_seq_cst(&p->round);
        if (draw(&r, 2))
            usleep(draw(&r, 300));
        else if (draw(&r, 2) && !pp_load_seq_cst(&p->is_over))
            pp_futex_wait(&p->round, round, -1, UINT32_MAX);
    }
    return NULL;
}

static void *run_background(void *arg) {
    pool_t *p = arg;
    while (!pp_load_seq_cst(&p->is_over)) {
        pp_parent_wait_background(&p->parent, -1);
        if (pp_load_seq_cst(&p->segment->shared->events)) {   /* only this thread is woken for dead workers, since it wants the lead */
            pp_store_seq_cst(&p->is_claimed, 1);
            pp_parent_wake_leader(&p->parent);
        }
        if (try_lead(p, BACKGROUND)) {
            pp_store_seq_cst(&p->is_claimed, 0);
            while (take_all(p) > 0) {}
            step_down(p);
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static bool may_be_revoked(uint64_t id) { return mix(id, 3) % 8 < 3; }   /* MEETING tasks may not */

/* Task numbers are slot sequences. Half of the tasks are taken back as those of a map are. */
static void take_back(pool_t *p, uint64_t id) {
    pp_slot_t copy;
    uint64_t from = id;
    if (!(id % 2 ? pp_parent_revoke_next_of(&p->parent, job_of(id), &from, &copy) : pp_parent_revoke(&p->parent, id, &copy)))
        return;
    for (unsigned i = 0; i < p->segment->n_workers; i++)
        CHECK(!pp_parent_is_held(&p->parent, i, job_of(id)), "a task that was taken back is held", id);
    CHECK(copy.job == job_of(id), "revoked another task", copy.job);
    CHECK(copy.where == PP_IN_BLOCK || copy.size == size_of(id, 1), "copy of revoked task", id);
    settle(p, id, TAKEN_BACK);
}

/* Revokes tasks, as any thread of the parent may. */
static void *run_revoker(void *arg) {
    pool_t *p = arg;
    uint32_t r = mix(p->seed, 12);
    while (!pp_load_seq_cst(&p->no_revokes)) {
        uint64_t n = pp_load_seq_cst(&p->n_put), back = 1 + draw(&r, 20);
        if (draw(&r, 2))                                     /* the oldest, which workers are about to claim */
            back = pp_parent_n_waiting(&p->parent) + 1 - draw(&r, 3);
        if (back > 0 && n >= back && may_be_revoked(n - back))
            take_back(p, n - back);
        if (draw(&r, 4) == 0)
            usleep(draw(&r, 100));
    }
    return NULL;
}

static void *run_killer(void *arg) {
    pool_t *p = arg;
    uint32_t r = mix(p->seed, 13);
    while (!pp_load_seq_cst(&p->no_kills)) {
        usleep(draw(&r, 4000));
        unsigned worker = draw(&r, p->n_workers);
        pthread_mutex_lock(&p->lock);
        bool alive = p->workers[worker].alive;
        pid_t pid = p->workers[worker].pid;
        p->workers[worker].alive = false;
        pthread_mutex_unlock(&p->lock);
        if (!alive)
            continue;
        int status = 0;
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "worker's end", status);
        pthread_mutex_lock(&p->lock);
        p->dead[p->n_dead++] = worker;
        pthread_mutex_unlock(&p->lock);
        pp_notify_all(p->segment->shared);
    }
    return NULL;
}

/* ---- the parent: tasks ---- */

static void put(pool_t *p, unsigned mode, uint32_t index) {
    static unsigned char buffer[PP_INLINE_MAX];
    uint64_t id = pp_load_relaxed(&p->n_put), sequence;
    uint32_t size = size_of(id, 1);
    pp_blockref_t ref;
    pp_slot_content_t content = {.job = job_of(id), .index = index, .mode = (uint16_t)mode, .size = size, .data = buffer};
    void *to = buffer;
    int error;
    content.where = size > PP_INLINE_MAX ? PP_IN_BLOCK : size > PP_SLOT_INLINE || mix(id, 4) % 16 == 1 ? PP_IN_RING : PP_IN_PLACE;
    if (content.where == PP_IN_BLOCK) {
        CHECK(pp_block_open(p->arena, size, &ref, &to) == 0, "block for task", id);
        content.data = &ref;
        content.size = sizeof ref;
    }
    write_payload(to, size, id);
    while ((error = pp_parent_put(&p->parent, &content, &sequence)) == EAGAIN)
        usleep(20);
    CHECK(error == 0 && sequence == id, "sequence of task", id);
    pp_store_seq_cst(&p->n_put, id + 1);
}

static void wait_settled(pool_t *p) {
    for (uint32_t n; (n = pp_load_seq_cst(&p->n_settled)) != (uint32_t)pp_load_relaxed(&p->n_put);)
        pp_futex_wait(&p->n_settled, n, -1, UINT32_MAX);
}

static unsigned put_batch(pool_t *p, uint32_t *r, unsigned n) {
    unsigned n_unannounced = 0;
    for (unsigned i = 0; i < n; i++) {
        put(p, QUICK, 0);
        if (++n_unannounced > draw(r, 32)) {
            pp_parent_wake(&p->parent, n_unannounced);
            n_unannounced = 0;
        }
    }
    pp_parent_wake(&p->parent, n_unannounced);
    return n;
}

static void put_meeting(pool_t *p, uint32_t index) {
    for (unsigned i = 0; i < p->n_workers; i++) {
        while (may_be_revoked(pp_load_relaxed(&p->n_put))) { /* the revoker may take this place */
            put(p, QUICK, 0);
            pp_parent_wake(&p->parent, 1);
        }
        put(p, MEETING, index);
        pp_parent_wake(&p->parent, 1);
    }
}

static pool_t *open_pool(bool by_process, unsigned seed, uint64_t n_max, unsigned n_workers) {
    pool_t *p = calloc(1, sizeof *p);
    *p = (pool_t){.n_workers = n_workers, .by_process = by_process, .seed = seed, .n_max = n_max};
    p->outcomes = calloc(n_max, 1);
    pthread_mutex_init(&p->lock, NULL);
    CHECK(pp_segment_create(n_workers, false, &p->segment) == 0 && (p->arena = pp_arena_new(p->segment, 0)), "segment", errno);
    pp_parent_init(&p->parent, p->segment);
    for (unsigned i = 0; i < n_workers; i++)
        start_worker(p, i);
    return p;
}

/* No process uses the segment any more, so nothing may be in use. A process that is killed between forgetting an
 * argument's block and releasing it leaks that block; the check allows for a few of these. */
static unsigned check_unused(pool_t *p) {
    unsigned n_leaked = 0;
    for (unsigned i = 0; i < KEPT_MAX; i++)
        drop_kept(p, i);
    for (unsigned arena = 0; arena <= p->n_workers; arena++)
        for (unsigned i = 0; i < PP_BLOCKS; i++)
            if (pp_load_relaxed(&pp_segment_flags(p->segment, arena)->in_use[i])) {
                CHECK(arena == 0 && p->by_process, "block still in use", i);
                n_leaked++;
            }
    CHECK(n_leaked <= 2 + pp_load_relaxed(&p->n_deaths) / 50, "blocks leaked", n_leaked);
    for (unsigned i = 0; i < PP_SLOTS; i++) {
        unsigned tag = pp_load_relaxed(&p->segment->shared->slots[i].state) & 0xf;
        CHECK(tag != READY && tag != CLAIMED, "slot still in use", i);
    }
    for (uint64_t id = 0; id < pp_load_relaxed(&p->n_put); id++)
        CHECK(pp_load_relaxed(&p->outcomes[id]) != PENDING, "no outcome of task", id);
    CHECK(pp_load_relaxed(&p->n_lost) <= pp_load_relaxed(&p->n_deaths), "more tasks lost than workers", p->n_lost);
    return n_leaked;
}

static void close_pool(pool_t *p) {
    pp_arena_free(p->arena);
    pp_segment_unref(p->segment);
    pthread_mutex_destroy(&p->lock);
    free((void *)p->outcomes);
    free(p);
}

static void reap_dead(pool_t *p) {                               /* the remaining workers end by themselves */
    for (unsigned i = 0; i < p->n_workers; i++) {
        int status = 0;
        pthread_mutex_lock(&p->lock);
        bool alive = p->workers[i].alive;
        if (p->by_process)
            p->workers[i].alive = false;
        pthread_mutex_unlock(&p->lock);
        if (alive && p->by_process)
            CHECK(waitpid(p->workers[i].pid, &status, 0) == p->workers[i].pid && status == 0, "status", status);
    }
    for (bool any = !p->by_process; any; usleep(100)) {      /* threads: the leader joins them */
        any = false;
        pthread_mutex_lock(&p->lock);
        for (unsigned i = 0; i < p->n_workers; i++)
            any |= p->workers[i].alive;
        pthread_mutex_unlock(&p->lock);
    }
}

static void next_round(pool_t *p) {
    alarm(HANG_S);                                           /* for a round: on a busy machine all of them may take longer */
    pp_add_seq_cst(&p->round, 1);
    pp_futex_wake(&p->round, 1, UINT32_MAX);
}

static void stress(bool by_process, unsigned seed, unsigned n_rounds, unsigned n_workers) {
    int64_t start_ns = pp_now_ns();
    pool_t *p = open_pool(by_process, seed, (uint64_t)n_rounds * (BATCH_MAX + 64 * n_workers) + 10 * PP_SLOTS, n_workers);
    pthread_t foreground, background, revoker, killer;
    uint32_t r = mix(seed, 10);
    pthread_create(&foreground, NULL, run_foreground, p);
    pthread_create(&background, NULL, run_background, p);
    pthread_create(&revoker, NULL, run_revoker, p);
    if (by_process)
        pthread_create(&killer, NULL, run_killer, p);
    for (unsigned round = 0; round < n_rounds; round++) {
        next_round(p);
        put_batch(p, &r, draw(&r, draw(&r, 40) == 0 ? BATCH_MAX : draw(&r, 10) == 0 ? 200 : 12));
        if (draw(&r, 2))
            put_meeting(p, round);
        wait_settled(p);
    }
    put_batch(p, &r, 3 * PP_SLOTS);                          /* every slot, and more */
    pp_store_seq_cst(&p->no_kills, true);
    if (by_process)
        pthread_join(killer, NULL);
    wait_settled(p);
    put_batch(p, &r, PP_SLOTS / 2);                          /* DRAIN still runs waiting tasks */
    pp_store_seq_cst(&p->no_revokes, true);
    pthread_join(revoker, NULL);
    pp_parent_stop(&p->parent, PP_DRAIN);
    wait_settled(p);
    pp_store_seq_cst(&p->is_stopping, true);
    reap_dead(p);
    pp_store_seq_cst(&p->is_over, true);
    next_round(p);
    pp_notify_all(p->segment->shared);
    pthread_join(foreground, NULL);
    pthread_join(background, NULL);
    unsigned n_leaked = check_unused(p);
    printf("%s: %llu tasks, %u taken back, %u lost, %u workers ended early, %u blocks leaked, %.1f s\n",
           by_process ? "processes" : "threads", (unsigned long long)p->n_put, p->n_revoked, p->n_lost, p->n_deaths, n_leaked,
           (double)(pp_now_ns() - start_ns) / 1e9);
    close_pool(p);
}

/* Stops while tasks wait and rings are full. Each task must be done, lost with its worker, or taken back. */
static void stop_once(unsigned seed, unsigned n_workers) {
    pool_t *p = open_pool(seed % 2, seed, PP_SLOTS, n_workers);
    pthread_t foreground, background;
    uint32_t r = mix(seed, 20);
    pp_slot_t slot;
    bool is_served = draw(&r, 2);
    if (is_served) {
        pthread_create(&foreground, NULL, run_foreground, p);
        pthread_create(&background, NULL, run_background, p);
    }
    put_batch(p, &r, 1 + draw(&r, is_served ? PP_SLOTS - 1 : 50));
    usleep(draw(&r, 2000));
    pp_store_seq_cst(&p->is_stopping, true);
    pp_parent_stop(&p->parent, PP_STOP);
    while (pp_parent_pop_waiting(&p->parent, &slot))
        settle(p, id_of(slot.job), TAKEN_BACK);
    if (is_served || p->by_process)
        reap_dead(p);
    pp_store_seq_cst(&p->is_over, true);
    next_round(p);
    pp_notify_all(p->segment->shared);
    if (is_served) {
        pthread_join(foreground, NULL);
        pthread_join(background, NULL);
    }
    for (unsigned i = 0; i < n_workers; i++) {
        if (!p->by_process && p->workers[i].alive)
            pthread_join(p->workers[i].thread, NULL);
        if (p->by_process || p->workers[i].alive)            /* otherwise the leader has reaped it */
            reap(p, i);
    }
    check_unused(p);
    close_pool(p);
}

/* ---- single cases ---- */

static uint64_t put_one(pp_parent_t *parent, uint64_t job, uint32_t size, pp_where_t where) {
    static unsigned char buffer[PP_INLINE_MAX];
    pp_slot_content_t content = {.job = job, .size = size, .where = (uint16_t)where, .data = buffer};
    uint64_t sequence = UINT64_MAX;
    write_payload(buffer, size, job);
    int error = pp_parent_put(parent, &content, &sequence);
    CHECK(error == 0 || error == EAGAIN, "put", error);
    return sequence;
}

static bool claims(pp_worker_t *worker, uint64_t job, uint32_t size) {
    static unsigned char payload[PP_INLINE_MAX];
    pp_slot_t task;
    if (!pp_worker_claim(worker, &task, payload))
        return false;
    CHECK(task.job == job && task.size == size, "claimed another task", task.job);
    check_payload(task.where == PP_IN_RING ? payload : task.data, size, job);
    pp_worker_finish(worker);
    return true;
}

/* Leaves a worker as if it sought or slept. */
static void pretend(pp_worker_t *worker, pp_park_t park) {
    pp_store_seq_cst(&worker->own->park, park);
    if (park == PP_ASLEEP)
        pp_bit_set(worker->shared->asleep, worker->n_worker);
    else
        pp_store_relaxed(&worker->shared->seeker, worker->n_worker);
}

static void open_units(pp_segment_t **s, pp_parent_t *parent, pp_worker_t *workers, unsigned n) {
    CHECK(pp_segment_create(n, false, s) == 0, "segment", 0);
    pp_parent_init(parent, *s);
    for (unsigned i = 0; i < n; i++) {
        pp_parent_open_slot(parent, i);
        CHECK(pp_worker_init(&workers[i], *s, i) == 0, "worker slot", i);
    }
    CHECK(pp_worker_init(&workers[0], *s, n) == EINVAL, "worker slot", n);
}

static void test_kept_blocks(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    pp_blockref_t small, large, sent, next;
    void *memory;
    pp_memory_t *kept[2];
    static pp_memory_t *more[PP_BLOCKS / 2 + 1];
    unsigned n = 0;
    open_units(&s, &parent, workers, 1);
    pp_arena_t *arena = pp_arena_new(s, 1);
    CHECK(pp_block_open(arena, 100, &small, &memory) == 0, "open", 0);
    memset(memory, 1, 100);
    CHECK(pp_block_open(arena, 16 << 20, &large, &memory) == 0, "open", 0);
    memset(memory, 2, 16 << 20);
    CHECK(pp_block_open(arena, 16 << 20, &sent, &memory) == 0, "open", 0);
    CHECK(pp_memory_keep(s, 1, &small, PP_KEPT, &kept[0]) == 0 && pp_memory_keep(s, 1, &large, PP_KEPT, &kept[1]) == 0, "keep", 0);
    pp_arena_free(arena);                                    /* its owner dies, and is replaced */
    pp_arena_forget(s, 1);
    arena = pp_arena_new(s, 1);
    for (int i = 0; i < 50; i++) {
        CHECK(pp_block_open(arena, i % 2 ? 100 : 16 << 20, &next, &memory) == 0, "open", i);
        CHECK(next.id != small.id && next.id != large.id && next.at != small.at && next.at != large.at, "kept", next.id);
        memset(memory, 3, next.size);
        pp_block_release(s, 1, next.id);
    }
    CHECK(pp_memory_start(kept[0])[99] == 1 && pp_memory_start(kept[1])[(16 << 20) - 1] == 2, "still what was sent", 0);
    pp_memory_before_fork();                                 /* from here on the memory is private */
    pp_memory_after_fork();
    CHECK(pp_arena_open_bytes(arena) == 0 && pp_block_open(arena, 100, &next, &memory) == 0, "released", 0);
    pp_arena_forget(s, 1);
    CHECK(pp_memory_start(kept[0])[99] == 1 && pp_memory_start(kept[1])[(16 << 20) - 1] == 2, "private", 0);
    pp_memory_unref(kept[0]);
    pp_memory_unref(kept[1]);
    CHECK(pp_block_open(arena, 100, &next, &memory) == 0, "open", 0);
    while (pp_block_open(arena, 100, &next, &memory) == 0 && pp_memory_keep(s, 1, &next, PP_KEPT, &more[n]) == 0)
        n++;                                                 /* a receiver that keeps everything must leave the owner some */
    CHECK(n == PP_BLOCKS / 2, "kept at most", n);
    while (n-- > 0)
        pp_memory_unref(more[n]);
    pp_arena_free(arena);
    pp_segment_unref(s);
}

#define STACK_BYTES (4 << 20)

static void *use_stack(void *arg) {
    volatile char bytes[STACK_BYTES];
    for (int i = STACK_BYTES - 1; i >= 0; i -= 4096)
        bytes[i] = 1;
    return bytes[0] ? NULL : arg;
}

static void test_stack(void) {
    pthread_t thread;
    CHECK(pp_create_thread(&thread, use_stack, NULL) == 0, "thread", 0);
    pthread_join(thread, NULL);
}

#define CLOSED_BYTES (4u << 20)

/* Skipped under qemu-user, which does not pass MADV_REMOVE on to the kernel. */
static void check_file_bytes(int fd, uint64_t expected, const char *when) {
    struct stat status;
    CHECK(fstat(fd, &status) == 0, "fstat", errno);
#ifndef PP_EMULATED
    CHECK((uint64_t)status.st_blocks * 512 == expected, when, status.st_blocks);
#else
    (void)expected, (void)when;
#endif
}

static void *release_one(void *memory) {
    pp_memory_unref(memory);
    return NULL;
}

static bool is_all(const pp_memory_t *m, char byte) {
    const char *p = pp_memory_start(m);
    return p[0] == byte && memcmp(p, p + 1, pp_memory_size(m) - 1) == 0;
}

/* A closed segment frees everything except kept values, even while threads release values and a child is forked. */
static void test_close(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[2];
    pp_memory_t *kept[8];
    pp_blockref_t ref;
    pthread_t threads[4];
    void *memory;
    int status;
    char byte;
    off_t kept_at = 0;
    open_units(&s, &parent, workers, 2);
    int fd = dup(s->fd);
    CHECK(put_one(&parent, 0, PP_INLINE_MAX, PP_IN_RING) == 0, "put", 0);
    pp_arena_t *arenas[2] = {pp_arena_new(s, 1), pp_arena_new(s, 2)};
    for (int i = 0; i < 8; i++) {
        CHECK(pp_block_open(arenas[i % 2], CLOSED_BYTES, &ref, &memory) == 0, "open", i);
        memset(memory, i + 1, CLOSED_BYTES);
        CHECK(pp_memory_keep(s, 1 + (unsigned)i % 2, &ref, PP_KEPT, &kept[i]) == 0, "keep", i);
        if (i == 4)
            kept_at = (off_t)ref.at;
        CHECK(pp_block_open(arenas[i % 2], CLOSED_BYTES / 2, &ref, &memory) == 0, "open", i);
        memset(memory, 99, CLOSED_BYTES / 2);                /* not sent to anyone */
    }
    for (int i = 0; i < 2; i++)
        pp_arena_free(arenas[i]);
    for (uintptr_t i = 0; i < 4; i++)                        /* released before, during, or after the close */
        CHECK(pthread_create(&threads[i], NULL, release_one, kept[i]) == 0, "thread", i);
    pp_segment_ref(s);
    pp_segment_close(s);
    pp_segment_close(s);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(s->shared == NULL && pp_file_number(s->fd) == pp_file_number(fd), "closed, but for the descriptor", 0);
    check_file_bytes(fd, 4 * CLOSED_BYTES, "only what is kept");
    memset(pp_memory_start(kept[4]), 44, CLOSED_BYTES);
    CHECK(pread(fd, &byte, 1, kept_at) == 1 && byte == 44, "written where it is", byte);
    pp_memory_unref(kept[7]);
    check_file_bytes(fd, 3 * CLOSED_BYTES, "one released");
    pp_memory_before_fork();
    pid_t pid = fork();
    pp_memory_after_fork();
    for (int i = 4; i < 7; i++)
        CHECK(is_all(kept[i], (char)(i == 4 ? 44 : i + 1)), "still what was sent", i);
    check_file_bytes(fd, 0, "private memory");
    CHECK(s->fd == -1, "nobody needs the descriptor any more", s->fd);
    for (int i = 4; i < 7; i++)
        pp_memory_unref(kept[i]);
    pp_segment_unref(s);
    pp_segment_unref(s);
    if (pid == 0)
        _exit(0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child", status);
    close(fd);
}

/* A process keeps no more blocks than it can map, regardless of the number of workers and pools. */
static void test_kept_at_most(void) {
    enum { N_SEGMENTS = 9, N_MAX = 16384 };
    pp_segment_t *s[N_SEGMENTS];
    static pp_memory_t *kept[N_MAX];
    unsigned n = 0;
    int error = 0;
    for (int i = 0; i < N_SEGMENTS; i++) {
        pp_parent_t parent;
        pp_worker_t workers[1];
        pp_blockref_t ref;
        void *memory;
        open_units(&s[i], &parent, workers, 1);
        pp_arena_t *arena = pp_arena_new(s[i], 1);
        for (unsigned k = 0; k < PP_BLOCKS / 2 && !error; k++) {
            CHECK(pp_block_open(arena, 100, &ref, &memory) == 0, "open", k);
            if ((error = pp_memory_keep(s[i], 1, &ref, PP_KEPT, &kept[n % N_MAX])) == 0)
                n++;
        }
        pp_arena_free(arena);
    }
    CHECK(error == EMFILE && n == N_MAX, "kept", n);
    while (n-- > 0)
        pp_memory_unref(kept[n]);
    for (int i = 0; i < N_SEGMENTS; i++)
        pp_segment_unref(s[i]);
}

#define MANY 70

/* Closed segments with kept values have a descriptor each, up to 64 in all; further values are copied. */
static void test_many_closed(void) {
    pp_segment_t *s[MANY];
    pp_memory_t *kept[MANY];
    unsigned n_open = 0;
    for (int i = 0; i < MANY; i++) {
        pp_parent_t parent;
        pp_worker_t workers[1];
        pp_blockref_t ref;
        void *memory;
        open_units(&s[i], &parent, workers, 1);
        pp_arena_t *arena = pp_arena_new(s[i], 1);
        CHECK(pp_block_open(arena, 10000, &ref, &memory) == 0, "open", i);
        memset(memory, i, 10000);
        CHECK(pp_memory_keep(s[i], 1, &ref, PP_KEPT, &kept[i]) == 0, "keep", i);
        pp_arena_free(arena);
        pp_segment_close(s[i]);
        n_open += s[i]->fd >= 0;
    }
    CHECK(n_open == 64, "descriptors", n_open);
    for (int i = 0; i < MANY; i++) {
        CHECK(is_all(kept[i], (char)i), "what was sent", i);
        pp_memory_unref(kept[i]);
        CHECK(s[i]->fd == -1, "the last of it is gone", i);
        pp_segment_unref(s[i]);
    }
}

/* A program that closes all descriptors, or reuses their numbers for its own files, keeps its values and its files. */
static void test_stolen_descriptor(bool forks) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    pp_blockref_t ref;
    pp_memory_t *kept;
    void *memory;
    char bytes[10000];
    open_units(&s, &parent, workers, 1);
    pp_arena_t *arena = pp_arena_new(s, 1);
    CHECK(pp_block_open(arena, sizeof bytes, &ref, &memory) == 0, "open", 0);
    memset(memory, 7, sizeof bytes);
    CHECK(pp_memory_keep(s, 1, &ref, PP_KEPT, &kept) == 0, "keep", 0);
    pp_arena_free(arena);
    pp_segment_close(s);
    int other = memfd_create("other", 0);
    memset(bytes, 1, sizeof bytes);
    CHECK(dup2(other, s->fd) == s->fd && pwrite(other, bytes, sizeof bytes, (off_t)ref.at) == sizeof bytes, "stolen", errno);
    if (forks) {
        pp_memory_before_fork();
        pp_memory_after_fork();
    }
    CHECK(is_all(kept, 7), "still what was sent", 0);
    int number = s->fd;
    pp_memory_unref(kept);
    CHECK(pread(other, bytes, 1, (off_t)ref.at) == 1 && bytes[0] == 1, "still the program's file", bytes[0]);
    CHECK(close(number) == 0 && close(other) == 0, "the descriptor is left alone", errno);
    pp_segment_unref(s);
}

/* Payloads of all sizes, in arenas that RLIMIT_FSIZE has made small. There is room as soon as no payload is in flight,
 * and a payload that never fits is reported. */
static void test_small_arenas(void) {
    enum { N_SIZES = 16 };
    struct rlimit before, small;
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[2];
    pp_blockref_t held, ref;
    pp_memory_t *kept;
    void *memory;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "limit", errno);
    small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0 && pp_segment_create(2, false, &s) == EFBIG, "no room for the core", errno);
    CHECK(pp_memory_share(2 << 20, &kept) == EFBIG, "shared memory", 0);
    small.rlim_cur = 64 << 20;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0, "limit", errno);
    open_units(&s, &parent, workers, 2);
    pp_segment_t *other;
    CHECK(pp_segment_attach(dup(s->fd), &other) == 0 && pp_segment_arena_at(other, 3) == pp_segment_arena_at(s, 3), "both sides", 0);
    CHECK(pp_segment_arena_at(s, 3) <= 64 << 20 && s->arena_bytes > 16 << 20, "the limit is used", s->arena_bytes);
    pp_segment_unref(other);
    pp_arena_t *arena = pp_arena_new(s, 0);
    for (uint32_t i = 0, r = 7; i < 300; i++) {
        uint64_t size = i < 2 * N_SIZES ? s->arena_bytes >> (N_SIZES - 1 - i % N_SIZES) : 1 + draw(&r, (uint32_t)s->arena_bytes);
        CHECK(pp_block_open(arena, size, &ref, &memory) == 0, "room for", size);
        CHECK(ref.at + size <= pp_segment_arena_at(s, 1), "inside", ref.at);
        memset(memory, 1, size);
        CHECK(pp_memory_keep(s, 0, &ref, PP_KEPT, &kept) == EMFILE, "copied, not kept", i);
        pp_block_release(s, 0, ref.id);
    }
    CHECK(pp_block_open(arena, s->arena_bytes + 1, &ref, &memory) == EFBIG, "too big", 0);
    CHECK(pp_block_open(arena, s->arena_bytes / 2, &held, &memory) == 0, "open", 0);
    CHECK(pp_block_open(arena, s->arena_bytes, &ref, &memory) == EAGAIN, "later", 0);
    pp_block_hold(arena, &held);
    CHECK(pp_block_open(arena, s->arena_bytes, &ref, &memory) == EFBIG, "not as long as it is held", 0);
    pp_block_release(s, 0, held.id);
    CHECK(pp_block_open(arena, s->arena_bytes, &ref, &memory) == 0, "released", 0);
    pp_arena_free(arena);
    pp_segment_unref(s);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0, "limit", errno);
}

static void *copy_often(void *arg) {
    uint32_t r = (uint32_t)(uintptr_t)arg;
    size_t n = 300000 + draw(&r, 1000);
    unsigned char *from = malloc(2 * n), *to = malloc(n);
    for (size_t i = 0; i < 2 * n; i++)
        from[i] = (unsigned char)(i * r >> 5);
    for (int round = 0; round < 100; round++) {
        size_t step = 1 + draw(&r, 2);
        pp_layout_t layout = {.item = 1, .n_dims = 1, .shape = {n}, .strides = {(ptrdiff_t)step}};
        memset(to, 0, n);
        if (draw(&r, 2))
            pp_copy_strided(to, from, &layout, (int)draw(&r, 4));
        else
            step = 1, pp_copy(to, from, n, (int)draw(&r, 4));
        for (size_t i = 0; i < n; i++)
            CHECK(to[i] == from[i * step], "copied", i);
    }
    free(from);
    free(to);
    return NULL;
}

static void test_copies(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, copy_often, (void *)(i + 77)) == 0, "thread", i);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

static void test_shared_memory(void) {
    pp_memory_t *m, *same, *found;
    pp_handle_t handle;
    CHECK(pp_memory_share(10000, &m) == 0, "share", 0);
    memset(pp_memory_start(m), 5, 10000);
    CHECK(!pp_memory_find(pp_memory_start(m) + 1, 10000, &handle, &found), "beyond its end", 0);
    CHECK(pp_memory_find(pp_memory_start(m) + 10, 100, &handle, &found) && found == m && handle.at == 10, "find", handle.at);
    CHECK(pp_memory_attach(&handle, &same) == 0 && same == m, "attached before", 0);
    pp_memory_unref(found);
    pp_memory_unref(same);
    pid_t pid = fork();
    if (pid == 0) {
        handle.readonly = 1;                                 /* so that it is not the inherited mapping */
        CHECK(pp_memory_attach(&handle, &same) == 0 && same != m && pp_memory_start(same)[9999] == 5, "attach", errno);
        pp_memory_start(m)[9999] = 6;
        CHECK(pp_memory_start(same)[9999] == 6, "shared", 0);
        pp_memory_unref(same);
        handle.id[0] ^= 1;
        CHECK(pp_memory_attach(&handle, &same) == ESTALE, "another one's number", 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child", status);
    CHECK(pp_memory_start(m)[9999] == 6, "written by the child", 0);
    pp_memory_unref(m);
    handle.readonly = 0;
    CHECK(pp_memory_attach(&handle, &same) != 0, "gone", 0);
}

static int n_dropped;
static void drop(void *object) { n_dropped += *(int *)object; }

/* A loaned object changes owners once. It is not dropped with its block, its arena or its pool while it is in flight. */
static void test_loans(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    pp_blockref_t refs[3];
    pp_memory_t *loans[3];
    void *memory;
    int objects[3] = {1, 10, 100};
    open_units(&s, &parent, workers, 1);
    pp_arena_t *arena = pp_arena_new(s, 0);
    for (int i = 0; i < 3; i++) {
        pp_pins_t *pins = NULL;
        CHECK(pp_block_open(arena, 100, &refs[i], &memory) == 0, "block", i);
        CHECK(pp_memory_lend(&objects[i], 1000, drop, &loans[i]) == 0 && pp_pins_add(&pins, loans[i]) == 0, "loan", i);
        pp_block_pin(arena, &refs[i], pins);
    }
    CHECK(pp_arena_open_bytes(arena) == 3 * (pp_whole_pages(1) + 1000), "bytes", pp_arena_open_bytes(arena));
    CHECK(pp_memory_take(loans[0]) == &objects[0] && pp_memory_take(loans[0]) == NULL, "taken once", 0);
    pp_block_release(s, 0, refs[0].id);
    pp_arena_unpin(arena);
    CHECK(n_dropped == 0, "taken", n_dropped);
    pp_block_release(s, 0, refs[1].id);
    pp_arena_unpin(arena);
    CHECK(n_dropped == 10, "released", n_dropped);
    pp_arena_free(arena);
    CHECK(n_dropped == 10, "on its way", n_dropped);
    pp_orphans_drop(s);
    CHECK(n_dropped == 110 && pp_memory_take(loans[2]) == NULL, "dropped", n_dropped);
    pp_segment_unref(s);
    CHECK(n_dropped == 110, "dropped once", n_dropped);
}

/* Memory that somebody else would still see is not moved, and stays as it is. That of an allocator is, whatever lies
 * beside it in its pages. After a refusal nothing is moved. */
static void test_moved(void) {
    enum { SIZE = 9 << 20 };
    char *others = malloc(SIZE + 4096), *mine = others + 100, *shared;
    memset(others, 'o', SIZE + 4096);
    memset(mine, 'm', SIZE);
    pp_memory_t *m;
    CHECK(pp_memory_reserve(mine, SIZE, &m) == 0 && pp_memory_has_one_user(m), "reserved", 0);
    bool is_moved = pp_memory_move(m, mine) == 0;   /* Linux before 5.7 refuses */
    CHECK(is_all(m, is_moved ? 'm' : 0), "moved", is_moved);
    CHECK(others[99] == 'o' && mine[SIZE] == 'o' && mine[SIZE / 2] == (is_moved ? 0 : 'm'), "what stays", mine[SIZE / 2]);
    free(others);
    pp_memory_unref(m);
    shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(shared, 's', SIZE);
    if (is_moved && pp_memory_reserve(shared, SIZE, &m) == 0) {
        CHECK(pp_memory_move(m, shared) != 0, "shared memory was moved", 0);
        CHECK(shared[0] == 's' && shared[SIZE - 1] == 's', "it stays", shared[0]);
        pp_memory_unref(m);
    }
    CHECK(pp_memory_reserve(shared, SIZE, &m) != 0, "reserved again", 0);
    munmap(shared, SIZE);
}

/* Several receivers keep one block, each privately and as long as its task's block. This also holds after a fork, and
 * after the segment is gone. */
static void test_common(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    pp_blockref_t common, refs[3], next;
    pp_memory_t *kept[3], *all[3];
    void *memory;
    open_units(&s, &parent, workers, 1);
    pp_arena_t *arena = pp_arena_new(s, 0);
    CHECK(pp_block_open(arena, 8 << 20, &common, &memory) == 0, "open", 0);
    memset(memory, 5, 8 << 20);
    pp_block_hold(arena, &common);
    for (int i = 0; i < 3; i++) {
        CHECK(pp_block_open(arena, 100, &refs[i], &memory) == 0, "open", i);
        CHECK(pp_memory_keep(s, 0, &refs[i], PP_KEPT, &kept[i]) == 0, "keep", i);
        CHECK(pp_memory_keep_common(kept[i], &common, &all[i]) == 0, "keep in common", i);
        pp_memory_unref(kept[i]);
    }
    pp_memory_start(all[0])[0] = 6;
    CHECK(is_all(all[1], 5) && pp_memory_size(all[1]) == 8 << 20, "private", 0);
    pp_memory_unref(all[1]);
    CHECK(pp_block_open(arena, 100, &next, &memory) == 0 && next.id == refs[1].id, "its task's block is released", next.id);
    pp_block_release(s, 0, next.id);
    pp_memory_before_fork();
    pp_memory_after_fork();
    CHECK(pp_block_open(arena, 100, &next, &memory) == 0 && next.id == refs[0].id, "all are released", next.id);
    pp_block_release(s, 0, common.id);
    CHECK(pp_block_open(arena, 8 << 20, &next, &memory) == 0 && next.id == common.id, "used again", next.id);
    memset(memory, 7, 8 << 20);
    CHECK(is_all(all[2], 5) && pp_memory_start(all[0])[0] == 6, "as before the fork", 0);
    CHECK(pp_block_open(arena, 100, &refs[1], &memory) == 0 && pp_memory_keep(s, 0, &refs[1], PP_KEPT, &kept[1]) == 0, "keep", 1);
    CHECK(pp_memory_keep_common(kept[1], &next, &all[1]) == 0, "keep in common", 1);
    pp_memory_unref(kept[1]);
    pp_arena_free(arena);
    pp_segment_close(s);
    CHECK(is_all(all[1], 7), "after the segment's end", 0);
    for (int i = 0; i < 3; i++)
        pp_memory_unref(all[i]);
    pp_segment_unref(s);
}

static int64_t spin_length(pp_spin_t *spin) {
    pp_spin_begin(spin, 1000000000, 1000);
    return spin->until_ns - pp_now_ns();
}

static void pin_to_one_cpu(void) {
    cpu_set_t set, one;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0, "affinity", errno);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &set))
            CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0, "pin", errno);
}

static void *spin_pinned(void *can_spin) {
    pp_spin_t spin = {0};
    pin_to_one_cpu();
    pp_spin_begin(&spin, 1000, 1000);
    *(bool *)can_spin = spin.until_ns != 0;
    return NULL;
}

/* The CPUs of the process count, even if a pinned thread asks first; a child may have others. */
static void test_spin_of_pinned_threads(void) {
    pthread_t thread;
    bool can_spin;
    int status;
    pp_forget_cpus();
    bool is_one = pp_n_cpus() == 1;
    pp_forget_cpus();
    CHECK(pthread_create(&thread, NULL, spin_pinned, &can_spin) == 0 && pthread_join(thread, NULL) == 0, "thread", 0);
    CHECK(can_spin == !is_one, "the process's", can_spin);
    pid_t pid = fork();
    if (pid == 0) {
        pp_forget_cpus();
        spin_pinned(&can_spin);
        _exit(can_spin);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child on one CPU", status);
}

/* Spinning is long until several misses in a row, then rare until something comes. */
static void test_spin(void) {
    pp_spin_t spin = {0};
    pp_spin_begin(&spin, 1000000000, 1000);
    if (spin.until_ns == 0)   /* one CPU */
        return;
    for (unsigned i = 0; i < 3 * PP_VAIN_PERIOD; i++) {
        bool is_long = spin_length(&spin) > 500000000;
        CHECK(is_long == (i < PP_VAIN_MAX || i % PP_VAIN_PERIOD == 0), "spin", i);
        pp_spin_end(&spin, false);
    }
    pp_spin_end(&spin, true);
    CHECK(spin_length(&spin) > 500000000, "found", 0);
}

static void test_blocks(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    pp_blockref_t a, b;
    void *at_a, *at_b;
    uint64_t page = pp_whole_pages(1);
    open_units(&s, &parent, workers, 1);
    pp_arena_t *arena = pp_arena_new(s, 0);
    CHECK(pp_block_open(arena, 1, &a, &at_a) == 0 && pp_block_open(arena, page, &b, &at_b) == 0, "open", 0);
    CHECK(a.id != b.id && b.at - a.at == page && pp_arena_open_bytes(arena) == 2 * page, "classes", b.at - a.at);
    pp_block_release(s, 0, a.id);
    CHECK(pp_arena_open_bytes(arena) == page, "released", pp_arena_open_bytes(arena));
    uint32_t id = a.id;
    CHECK(pp_block_open(arena, page + 1, &a, &at_a) == 0 && a.id != id && a.size == page + 1, "another class", a.id);
    CHECK(pp_block_open(arena, 100, &a, &at_a) == 0 && a.id == id, "used again", a.id);
    CHECK(pp_block_open(arena, PP_ARENA_BYTES + 1, &a, &at_a) == EFBIG, "too big", 0);
    memset(at_a, 7, 100);                                    /* the receiver's mapping shows the same bytes */
    CHECK(pp_block_map(s, &(pp_blockref_t){.at = s ? a.at : 0, .size = 100, .id = id}, &at_b) == 0, "map", 0);
    CHECK(memcmp(at_a, at_b, 100) == 0, "mapped", 0);
    pp_block_unmap(s, &(pp_blockref_t){.at = a.at, .size = 100, .id = id}, at_b);
    int error;
    unsigned n = 3;
    while ((error = pp_block_open(arena, page, &a, &at_a)) == 0)
        n++;
    CHECK(error == EAGAIN && n == PP_BLOCKS, "exhausted after", n);
    pp_block_release(s, 0, 17);
    CHECK(pp_block_open(arena, page, &a, &at_a) == 0 && a.id == 17, "after exhaustion", a.id);
    pp_block_release(s, 0, 17);
    CHECK(pp_block_open(arena, 1 << 20, &a, &at_a) == 0, "another class after exhaustion", 0);
    memset(at_a, 1, 1 << 20);
    pp_arena_forget(s, 0);
    CHECK(pp_arena_open_bytes(arena) == 0, "forgotten", pp_arena_open_bytes(arena));
    pp_arena_free(arena);
    pp_segment_unref(s);
}

static void test_wrap_around(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    open_units(&s, &parent, workers, 1);
    uint64_t n_put = 0, n_claimed = 0;
    for (int round = 0; round < 20; round++) {
        while (put_one(&parent, n_put, size_of(n_put, 5) % (PP_INLINE_MAX + 1), PP_IN_RING) != UINT64_MAX)
            n_put++;                                         /* until the ring of bytes is full */
        CHECK(n_put > n_claimed, "room", n_put);
        while (claims(&workers[0], n_claimed, size_of(n_claimed, 5) % (PP_INLINE_MAX + 1)))
            n_claimed++;
        CHECK(n_put == n_claimed, "claimed", n_claimed);
    }
    for (int round = 0; round < 3; round++) {
        uint64_t first = n_put;
        while (put_one(&parent, n_put, 8, PP_IN_PLACE) != UINT64_MAX)
            n_put++;                                         /* until the slots are full */
        CHECK(n_put - first == PP_SLOTS && !pp_parent_has_room(&parent) && pp_parent_n_waiting(&parent) == PP_SLOTS, "slots",
              n_put - first);
        pp_slot_t copy;
        CHECK(pp_parent_revoke(&parent, n_put - PP_SLOTS + 1, &copy) && copy.job == n_put - PP_SLOTS + 1, "revoke", copy.job);
        CHECK(!pp_parent_revoke(&parent, n_put - PP_SLOTS + 1, &copy) && !pp_parent_has_room(&parent), "twice", 0);
        for (; n_claimed < n_put; n_claimed++)
            if (n_claimed != n_put - PP_SLOTS + 1)
                CHECK(claims(&workers[0], n_claimed, 8), "claim", n_claimed);
        CHECK(!claims(&workers[0], 0, 0) && pp_parent_n_waiting(&parent) == 0, "empty", 0);
    }
    pp_segment_unref(s);
}

/* Leaves the state of a worker that was killed right after its compare-and-swap, before it advanced the head. */
static void claim_and_die(pp_segment_t *s, uint64_t sequence, unsigned worker) {
    uint64_t ready = sequence << 16 | READY;
    CHECK(pp_cas_seq_cst(&s->shared->slots[sequence % PP_SLOTS].state, &ready, sequence << 16 | worker << 4 | CLAIMED), "claim", worker);
}

static void test_death(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[3];
    pp_blockref_t ref;
    void *memory;
    uint64_t job, sequence;
    uint32_t index;
    open_units(&s, &parent, workers, 3);
    put_one(&parent, 100, 8, PP_IN_PLACE);
    put_one(&parent, 101, 8, PP_IN_PLACE);
    claim_and_die(s, 0, 1);
    CHECK(claims(&workers[2], 101, 8), "another worker helps the head on", 0);
    CHECK(!pp_parent_reap(&parent, 2, &job, &index), "held nothing", job);
    CHECK(pp_parent_reap(&parent, 1, &job, &index) && job == 100, "lost", job);
    CHECK(!pp_parent_reap(&parent, 1, &job, &index), "lost twice", job);
    for (uint64_t i = 2; i < 2 * PP_SLOTS; i++)              /* no worker helps: the parent advances the head itself */
        if (put_one(&parent, i, 8, PP_IN_PLACE) == UINT64_MAX) {
            for (uint64_t done = i - PP_SLOTS; done < i; done++) {
                claim_and_die(s, done, 1);
                CHECK(pp_parent_reap(&parent, 1, &job, &index) && job == done, "lost", job);
            }
            CHECK(put_one(&parent, i, 8, PP_IN_PLACE) == i, "slot of a dead worker", i);
            break;
        }
    CHECK(claims(&workers[2], PP_SLOTS + 2, 8), "claim after deaths", 0);

    /* Killed while it owned the block: the block is released once, with or without `holds`. */
    pp_arena_t *arena = pp_arena_new(s, 0);
    for (int with_holds = 0; with_holds < 2; with_holds++) {
        CHECK(pp_block_open(arena, 5000, &ref, &memory) == 0, "open", 0);
        pp_slot_content_t content = {.job = 7, .index = 9, .where = PP_IN_BLOCK, .size = sizeof ref, .data = &ref};
        CHECK(pp_parent_put(&parent, &content, &sequence) == 0, "put", 0);
        claim_and_die(s, sequence, 1);
        pp_worker_slot_t *worker_slot = pp_segment_worker(s, 1);
        pp_store_relaxed(&worker_slot->job, 7);
        pp_store_relaxed(&worker_slot->index, 9);
        pp_store_relaxed(&worker_slot->block, ref.id + 1);
        pp_store_relaxed(&worker_slot->holds, with_holds);
        CHECK(pp_parent_reap(&parent, 1, &job, &index) && job == 7 && index == 9, "lost", job);
        CHECK(pp_arena_open_bytes(arena) == 0, "block of a dead worker", 0);
        pp_parent_open_slot(&parent, 1);
    }

    /* It held the oldest slot when it died, and the other workers have finished all the rest. No put can succeed before
     * it is reaped, so no thread may retry in a loop. */
    uint64_t first = put_one(&parent, 700, 8, PP_IN_PLACE), last = first;
    claim_and_die(s, first, 1);
    while ((sequence = put_one(&parent, 701, 8, PP_IN_PLACE)) != UINT64_MAX) {
        last = sequence;
        CHECK(claims(&workers[2], 701, 8), "claim", sequence);
    }
    CHECK(last - first < PP_SLOTS && pp_parent_n_waiting(&parent) == 0, "full of finished tasks", last - first);
    pp_parent_take_room(&parent);                               /* the room from reaping earlier workers */
    pp_parent_note_full(&parent);
    CHECK(pp_parent_waits_for_room(&parent) && !pp_parent_take_room(&parent), "room before the burial", last);
    CHECK(pp_parent_reap(&parent, 1, &job, &index) && job == 700, "lost", job);
    CHECK(pp_parent_take_room(&parent) && !pp_parent_take_room(&parent), "told once of the room after the burial", last);
    CHECK(put_one(&parent, 702, 8, PP_IN_PLACE) == last + 1 && claims(&workers[2], 702, 8), "after the burial", last);
    pp_parent_note_full(&parent);
    CHECK(!pp_parent_waits_for_room(&parent), "nothing waits and nobody holds anything: try at once", last);

    /* Claimed by a worker that died before the putting thread, which is stopped in pp_parent_put, could count the task. */
    sequence = put_one(&parent, 500, 8, PP_IN_PLACE);
    pp_store_relaxed(&parent.tail, sequence);
    claim_and_die(s, sequence, 1);
    CHECK(pp_parent_reap(&parent, 1, &job, &index) && job == 500, "lost while it was put", job);
    pp_arena_free(arena);

    /* The parent had counted on a seeker that is now dead. */
    pretend(&workers[1], PP_SEEKING);
    pretend(&workers[2], PP_ASLEEP);
    pp_store_relaxed(&parent.tail, sequence + 1);
    put_one(&parent, 600, 8, PP_IN_PLACE);
    pp_parent_wake(&parent, 1);
    CHECK(pp_load_seq_cst(&workers[2].own->park) == PP_ASLEEP && !pp_parent_reap(&parent, 1, &job, &index), "seeker", 0);
    CHECK(pp_load_seq_cst(&workers[2].own->park) == PP_SEEKING, "nobody runs what a dead seeker was counted on for", 0);
    pp_segment_unref(s);
}

/* The worker or thread that takes the middle one of the waiting tasks reports the room; its result does not. */
static void test_room(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[2];
    pp_slot_t copy;
    open_units(&s, &parent, workers, 2);
    for (uint64_t i = 0; i < PP_SLOTS; i++)
        put_one(&parent, i, 8, PP_IN_PLACE);
    pp_parent_note_full(&parent);
    for (uint64_t i = 0; i < PP_SLOTS / 2; i++) {
        CHECK(pp_parent_waits_for_room(&parent) && !pp_parent_has_work(&parent), "told too early, after", i);
        CHECK(claims(&workers[i % 2], i, 8), "claim", i);
    }
    CHECK(!pp_parent_waits_for_room(&parent) && pp_parent_has_work(&parent) && pp_parent_take_room(&parent) &&
          !pp_parent_take_room(&parent), "half is taken", 0);

    for (uint64_t i = 0; i < PP_SLOTS / 2; i++)
        CHECK(put_one(&parent, PP_SLOTS + i, 8, PP_IN_PLACE) == PP_SLOTS + i, "room", i);
    pp_parent_note_full(&parent);
    CHECK(pp_parent_revoke(&parent, PP_SLOTS - 2, &copy) && !pp_parent_has_work(&parent), "taken back before the target", 0);
    CHECK(pp_parent_revoke(&parent, PP_SLOTS - 1, &copy) && pp_parent_take_room(&parent), "the target is taken back", 0);
    while (pp_parent_pop_waiting(&parent, &copy)) {}
    pp_parent_note_full(&parent);
    CHECK(!pp_parent_waits_for_room(&parent), "everything is taken back: try at once", 0);
    pp_segment_unref(s);
}

/* Killed between the reply and pp_worker_finish: the result counts, whether it was taken just before the reaping or
 * long ago. */
static void test_delivered(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    uint64_t job;
    uint32_t index;
    open_units(&s, &parent, workers, 1);
    put_one(&parent, 5, 8, PP_IN_PLACE);
    CHECK(claims(&workers[0], 5, 8), "claim", 5);
    pp_store_relaxed(&workers[0].own->holds, 1);            /* `claims` has finished it */
    pp_store_relaxed(&workers[0].own->n_done, 0);
    pp_frame_t frame = {.job = 5, .index = pp_load_relaxed(&workers[0].own->index), .size = 8};
    CHECK(pp_worker_reply(&workers[0], &frame, "8 bytes") == 0, "reply", 5);
    pp_parent_take(&parent, 0, pp_parent_peek(&parent, 0));
    CHECK(!pp_parent_reap(&parent, 0, &job, &index), "lost, and its result was taken", job);
    pp_parent_open_slot(&parent, 0);
    put_one(&parent, 5, 8, PP_IN_PLACE);                     /* the same task again, for another worker */
    claim_and_die(s, 1, 0);
    CHECK(pp_parent_reap(&parent, 0, &job, &index) && job == 5, "not lost, because of another worker's result", 5);
    pp_segment_unref(s);
}

/* A seeker that takes a task passes the parent's count on, even if the claimer of the next task has not advanced the
 * head yet. */
static void test_pass_on(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[3];
    open_units(&s, &parent, workers, 3);
    pretend(&workers[1], PP_SEEKING);
    pretend(&workers[2], PP_ASLEEP);
    for (uint64_t i = 0; i < 3; i++) {
        put_one(&parent, i, 8, PP_IN_PLACE);
        pp_parent_wake(&parent, 1);
    }
    CHECK(pp_load_seq_cst(&workers[2].own->park) == PP_ASLEEP, "the seeker counts", 0);
    claim_and_die(s, 1, 0);                                  /* worker slot 0 was busy; it continues after the seeker's look */
    CHECK(claims(&workers[1], 0, 8), "claim", 0);
    CHECK(pp_load_seq_cst(&workers[2].own->park) == PP_SEEKING, "a task waits and a worker sleeps", 0);
    pp_segment_unref(s);
}

/* Workers in several words of bits: one that was noted as seeking and is busy does not count, nor does a bit that its worker has
 * not cleared yet; the only sleeper is woken, and then counts as a seeker. Results are found in turn. */
static void test_many_workers(void) {
    enum { N = 200, LAST = N - 1 };
    static pp_worker_t workers[N];
    static const unsigned senders[] = {130, 131, LAST, 3, 64};   /* in turn from 130 on */
    pp_segment_t *s;
    pp_parent_t parent;
    open_units(&s, &parent, workers, N);
    pretend(&workers[LAST], PP_ASLEEP);
    pretend(&workers[100], PP_ASLEEP);
    pretend(&workers[100], PP_BUSY);
    pp_parent_wake(&parent, 1);
    CHECK(pp_load_seq_cst(&workers[LAST].own->park) == PP_SEEKING, "the sleeper was not found", 0);
    pretend(&workers[5], PP_ASLEEP);
    pp_parent_wake(&parent, 1);
    CHECK(pp_load_seq_cst(&workers[5].own->park) == PP_ASLEEP, "who was woken counts", 0);
    pp_parent_wake(&parent, 3);
    CHECK(pp_load_seq_cst(&workers[5].own->park) == PP_SEEKING && pp_load_seq_cst(&workers[100].own->park) == PP_BUSY, "not woken", 0);

    pp_frame_t frame = {.job = 5, .size = 8};
    for (unsigned i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++)
            CHECK(pp_worker_reply(&workers[senders[i]], &frame, "8 bytes") == 0, "reply", i);
    for (unsigned i = 0, from = 130; i < 5; i++, from = (from + 1) % N) {
        CHECK(pp_parent_has_work(&parent) && (from = pp_parent_next_reply(&parent, from)) == senders[i], "in turn", i);
        for (int k = 0; k < 2; k++)
            pp_parent_take(&parent, from, pp_parent_peek(&parent, from));
        CHECK(pp_parent_peek(&parent, from) == NULL, "two results", i);
    }
    CHECK(!pp_parent_has_work(&parent) && pp_parent_next_reply(&parent, 130) == N, "no more results", 0);
    pp_segment_unref(s);
}

/* A worker is killed after it made a sleeper SEEKING, before it woke it. Reaping must wake the sleeper, or the parent
 * would count on it for ever. */
static void *claim_one(void *arg) {
    static unsigned char payload[PP_INLINE_MAX];
    pp_worker_t *worker = arg;
    pp_slot_t task;
    while (!pp_worker_claim(worker, &task, payload))
        CHECK(pp_worker_wait(worker) == 0, "wait", 0);
    pp_worker_finish(worker);
    return NULL;
}

static void test_half_wake(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[2];
    pthread_t sleeper;
    uint64_t job;
    uint32_t index, asleep = PP_ASLEEP;
    open_units(&s, &parent, workers, 2);
    pthread_create(&sleeper, NULL, claim_one, &workers[0]);
    while (pp_load_seq_cst(&workers[0].own->park) != PP_ASLEEP)
        usleep(100);
    usleep(20000);                                           /* by now it sleeps in the kernel, too */
    CHECK(pp_cas_seq_cst(&workers[0].own->park, &asleep, PP_SEEKING), "asleep", asleep);
    CHECK(!pp_parent_reap(&parent, 1, &job, &index), "held nothing", job);
    put_one(&parent, 1, 8, PP_IN_PLACE);
    pp_parent_wake(&parent, 1);
    pthread_join(sleeper, NULL);
    pp_segment_unref(s);
}

static void test_stop(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[1];
    open_units(&s, &parent, workers, 1);
    put_one(&parent, 1, 8, PP_IN_PLACE);
    pp_parent_stop(&parent, PP_DRAIN);
    CHECK(pp_worker_wait(&workers[0]) == 0 && claims(&workers[0], 1, 8) && pp_worker_wait(&workers[0]) == ECANCELED, "drain", 0);
    pp_parent_stop(&parent, PP_STOP);
    pp_parent_stop(&parent, PP_DRAIN);                          /* if two threads stop, the stricter mode wins */
    CHECK(pp_worker_must_stop(&workers[0]), "stop", 0);
    pp_segment_unref(s);
}

/* A worker whose wait has reached its deadline is busy, so nobody counts on it. */
static void test_deadline(void) {
    pp_segment_t *s;
    pp_parent_t parent;
    pp_worker_t workers[2];
    open_units(&s, &parent, workers, 2);
    int64_t begin_ns = pp_now_ns();
    workers[0].deadline_ns = begin_ns + 2000000;
    CHECK(pp_worker_wait(&workers[0]) == ETIMEDOUT && pp_now_ns() >= begin_ns + 2000000, "waits until its deadline", 0);
    CHECK(pp_load_seq_cst(&workers[0].own->park) == PP_BUSY, "is busy", 0);
    CHECK(pp_worker_wait(&workers[0]) == ETIMEDOUT, "a deadline in the past", 0);
    put_one(&parent, 1, 8, PP_IN_PLACE);
    CHECK(pp_worker_wait(&workers[0]) == 0 && claims(&workers[0], 1, 8), "a task comes before the deadline", 0);
    pp_parent_stop(&parent, PP_DRAIN);
    CHECK(pp_worker_wait(&workers[0]) == ECANCELED, "so does the end", 0);
    pp_segment_unref(s);
}

static void on_alarm(int signal) {
    (void)signal;
    static const char text[] = "stress: hangs\n";
    (void)!write(2, text, sizeof text - 1);
    abort();
}

/* A reader of a trace sees whole events in order, even if the writer overwrites some meanwhile, and counts the lost ones. */

enum { TRACED = 3 * PP_EVENTS + 7 };

static void *write_events(void *arg) {
    pp_worker_t *worker = arg;
    for (uint64_t k = 0; k < TRACED; k++) {
        pp_store_relaxed(&worker->own->job, k);
        pp_store_relaxed(&worker->own->index, (uint32_t)k);
        worker->trace.begun_ns = (uint64_t)pp_now_ns();
        worker->trace.put_ns = k;
        pp_trace_end(worker, PP_STATUS_OK);
    }
    return NULL;
}

static uint64_t check_events(pp_segment_t *s, uint64_t from, unsigned n_max, uint64_t *n_seen) {
    static uint64_t words[PP_EVENTS][PP_EVENT_WORDS];
    uint64_t n_lost;
    unsigned n;
    uint64_t next = pp_trace_read(s, 0, from, words, n_max, &n_lost, &n);
    CHECK(next == from + n_lost + n, "events are either read or lost", next);
    for (unsigned i = 0; i < n; i++) {
        uint64_t k = from + n_lost + i;
        CHECK(words[i][2] == k && words[i][3] == k && (uint32_t)words[i][4] == k, "an event is whole", k);
    }
    *n_seen += n;
    return next;
}

static void test_trace(void) {
    pp_segment_t *s;
    pp_worker_t worker;
    pthread_t writer;
    CHECK(pp_segment_create(1, false, &s) == 0 && pp_worker_init(&worker, s, 0) == 0, "segment", 0);
    uint64_t n_seen = 0, next = 0;
    pthread_create(&writer, NULL, write_events, &worker);
    while (next < TRACED)
        next = check_events(s, next, next % 2 ? 100 : PP_EVENTS, &n_seen);
    pthread_join(writer, NULL);
    CHECK(check_events(s, TRACED, PP_EVENTS, &n_seen) == TRACED, "nothing follows", 0);
    n_seen = 0;
    CHECK(check_events(s, 0, PP_EVENTS, &n_seen) == TRACED && n_seen == PP_EVENTS - 1, "the newest are kept", n_seen);
    pp_segment_unref(s);
}

/* A task counts as running until its end is recorded, though the worker holds it until its outcome is sent. */
static void test_present(void) {
    pp_segment_t *s;
    pp_worker_t worker;
    CHECK(pp_segment_create(1, false, &s) == 0 && pp_worker_init(&worker, s, 0) == 0, "segment", 0);
    pp_store_relaxed(&s->shared->is_traced, true);
    pp_store_relaxed(&worker.own->holds, 1);
    pp_trace_begin(&worker);
    CHECK(pp_trace_present(worker.own) == PP_PRESENT_TASK, "a task has begun", 0);
    pp_trace_end(&worker, PP_STATUS_OK);
    CHECK(pp_trace_present(worker.own) == PP_PRESENT_LOOKS, "its end was recorded", 0);
    pp_store_relaxed(&worker.own->holds, 0);
    CHECK(pp_trace_present(worker.own) == PP_PRESENT_LOOKS, "its outcome was sent", 0);
    pp_store_relaxed(&s->shared->is_traced, false);
    pp_store_relaxed(&worker.own->holds, 1);
    pp_trace_begin(&worker);
    CHECK(pp_trace_present(worker.own) == PP_PRESENT_TASK, "the next task has begun, which is not traced", 0);
    pp_segment_unref(s);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1, n_rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 100;
    unsigned n_workers = argc > 4 ? (unsigned)atoi(argv[4]) : 4;
    signal(SIGALRM, on_alarm);
    alarm(HANG_S);
    if (n_workers < 1 || n_workers > WORKERS_MAX)
        return 2;
    n_met = mmap(NULL, (n_rounds + 1) * sizeof *n_met, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (strcmp(mode, "units") == 0) {
        test_blocks();
        test_kept_blocks();
        test_close();
        test_many_closed();
        test_kept_at_most();
        test_stolen_descriptor(false);
        test_stolen_descriptor(true);
        test_small_arenas();
        test_copies();
        test_shared_memory();
        test_loans();
        test_moved();
        test_common();
        test_spin_of_pinned_threads();
        test_spin();
        test_wrap_around();
        test_death();
        test_room();
        test_delivered();
        test_pass_on();
        test_many_workers();
        test_half_wake();
        test_stop();
        test_deadline();
        test_trace();
        test_present();
        test_stack();
        puts("units: passed");
    } else if (strcmp(mode, "stop") == 0) {
        for (unsigned i = 0; i < n_rounds; i++)
            stop_once(seed + i, n_workers);
        printf("stop: %u times\n", n_rounds);
    } else if (strcmp(mode, "threads") == 0 || strcmp(mode, "processes") == 0) {
        stress(mode[0] == 'p', seed, n_rounds, n_workers);
    } else {
        fputs("usage: stress units | threads|processes|stop SEED ROUNDS WORKERS\n", stderr);
        return 2;
    }
    return 0;
}
