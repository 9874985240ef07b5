/* A small pool on the real channel. What Python does around it is here as few lines of C: one thread at a time puts (`feed`),
 * one at a time leads; main offers tasks and may lead; a background thread leads when nobody does; a watcher reports workers
 * that have ended; whoever leads buries them and starts others. After all outcomes the pool is stopped, and everybody must end.
 *
 * A task is over at once, or lasts until nobody can do anything else: what is left undone then would be left undone for as long as
 * tasks last. */
#include "pool.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READY = 1, CLAIMED = 2 };               /* a slot's tags, as channel.c has them */
enum { PENDING, DONE, LOST, TAKEN_BACK };
enum { NOBODY, MAIN, BACKGROUND };

static const pool_t *pool;
static pp_segment_t *segment;
static pp_hub_t hub;
static pp_arena_t *arena;
static struct {                                /* what Python keeps; under its locks unless atomic */
    _Atomic uint32_t feeding, n_offered, n_put;
    bool is_locked, is_stopping, is_over, main_follows;
    unsigned leader, n_settled, n_lost, n_killed, n_cancels, n_leaks;
    unsigned outcome[TASKS_MAX], n_runs[TASKS_MAX];
    uint64_t sequence[TASKS_MAX];              /* + 1; 0: not put */
    int worker[WORKERS_MAX];                   /* its actor + 1; 0: none */
    int background;
    unsigned dead;                             /* workers whose end was reported: bits */
    bool is_open[PP_BLOCKS];                   /* arguments' blocks */
    bool is_copying[WORKERS_MAX];              /* in pp_end_copied */
} m;

/* ---- memory: the segment's file ---- */

static _Alignas(4096) unsigned char core[1 << 20], arenas[(1 + WORKERS_MAX) * PP_ARENA_BYTES], core_at_start[sizeof core];
#define ARENAS_AT (1ull << 30)

int pp_memfd(const char *name, uint64_t size, int *fd) {
    (void)name, (void)size;
    *fd = -1;
    return 0;
}
int pp_map(int fd, uint64_t at, size_t size, void **memory) {
    (void)fd;
    bool is_core = at < ARENAS_AT;
    if (at + size > (is_core ? sizeof core : ARENAS_AT + sizeof arenas))
        return ENOMEM;
    *memory = is_core ? core + at : arenas + (at - ARENAS_AT);
    return 0;
}
void pp_unmap(void *memory, size_t size) { (void)memory, (void)size; }
void pp_punch_hole(int fd, uint64_t at, uint64_t size) { (void)fd, (void)at, (void)size; }

/* What else the channel calls, of which this pool has nothing. */
void pp_pins_free(pp_pins_t *pins) { (void)pins; }
void pp_pins_orphan(pp_segment_t *s, pp_pins_t *pins) { (void)s, (void)pins; }
size_t pp_pins_lent(const pp_pins_t *pins) { return pins != NULL; }
void pp_orphans_free(pp_segment_t *s) { (void)s; }
void pp_budget_close(pp_budget_t *b) { (void)b; }
void pp_budget_enter(pp_budget_t *b) { (void)b; }
void pp_budget_leave(pp_budget_t *b) { (void)b; }
void pp_trace_put(pp_shared_t *shared, uint64_t sequence) { (void)shared, (void)sequence; }
void pp_trace_budget(pp_end_t *e) { (void)e; }

/* ---- blocks: each is released once (the linker sends all other files' calls here) ---- */

void __real_pp_block_release(pp_segment_t *s, unsigned owner, uint32_t id);
void __wrap_pp_block_release(pp_segment_t *s, unsigned owner, uint32_t id);
void __wrap_pp_block_release(pp_segment_t *s, unsigned owner, uint32_t id) {
    sch_check(owner == 0 && id < PP_BLOCKS && m.is_open[id], "block %u is released, but not open", id);
    m.is_open[id] = false;
    __real_pp_block_release(s, owner, id);
}

static int open_block(pp_blockref_t *ref, uint64_t value) {
    void *memory;
    int error = pp_block_open(arena, sizeof value, ref, &memory);
    if (error)
        return error;
    sch_check(!m.is_open[ref->id], "block %u is used again before its release", ref->id);
    m.is_open[ref->id] = true;
    memcpy(memory, &value, sizeof value);
    return 0;
}

/* ---- Python's locks ---- */

static bool is_unlocked(void) { return !m.is_locked; }
static void lock(void) {
    sch_until(is_unlocked);
    m.is_locked = true;
}
static void unlock(void) {
    m.is_locked = false;
    sch_note(0);
}

/* ---- putting ---- */

static uint64_t argument_of(uint64_t id) { return (id + 1) * 0x0101010101010101ull; }
static uint64_t result_of(uint64_t id) { return (id + 1) * 0x1111111111111111ull; }

static int put(unsigned id) {
    uint64_t argument = argument_of(id);
    char where = pool->where[id % strlen(pool->where)];
    pp_blockref_t ref;
    pp_task_t task = {.job = id + 1, .index = id, .size = sizeof argument, .data = &argument,
                      .where = where == 'p' ? PP_IN_PLACE : where == 'r' ? PP_IN_RING : PP_IN_BLOCK};
    if (!pp_hub_has_room(&hub))
        return EAGAIN;
    int error = 0;
    if (task.where == PP_IN_BLOCK) {
        if ((error = open_block(&ref, argument)) != 0)
            return error;
        task.data = &ref;
        task.size = sizeof ref;
    }
    uint64_t sequence;
    if ((error = pp_hub_put(&hub, &task, &sequence)) != 0 && task.where == PP_IN_BLOCK)
        pp_block_release(segment, 0, ref.id);
    if (!error)
        m.sequence[id] = sequence + 1;
    return error;
}

/* Puts what is offered; false if there was no room for all. */
static bool put_next(void) {
    uint32_t id;
    while ((id = pp_load_seq_cst(&m.n_put)) < pp_load_seq_cst(&m.n_offered)) {
        int error = put(id);
        if (error) {
            sch_check(error == EAGAIN, "put: error %d", error);
            pp_hub_note_full(&hub);
            sch_say("      task %u is refused", id);
            return false;
        }
        sch_say("      task %u is put", id);
        pp_hub_wake(&hub, 1);                  /* at once: nothing between may stand in for its fences */
        pp_store_seq_cst(&m.n_put, id + 1);
    }
    return true;
}

/* A leader that learns of room while another thread puts leaves it to that one, which looks once more. */
static void feed(void) {
    while (pp_load_seq_cst(&m.n_put) < pp_load_seq_cst(&m.n_offered) && pp_swap_seq_cst(&m.feeding, 1) == 0) {
        bool is_full = !put_next();
        pp_store_seq_cst(&m.feeding, 0);
        if (is_full && pp_hub_is_starved(&hub))
            return;
    }
}

/* ---- outcomes ---- */

static void settle(uint64_t id, unsigned outcome) {
    static const char *names[] = {"pending", "done", "lost", "taken back"};
    sch_say("      task %u is %s", (unsigned)id, names[outcome]);
    sch_check(id < pool->n_tasks, "an outcome of task %u, which there is not", (unsigned)id);
    sch_check(m.outcome[id] == PENDING, "task %u has two outcomes: %s, then %s", (unsigned)id, names[m.outcome[id]], names[outcome]);
    m.outcome[id] = outcome;
    m.n_settled++;
    m.n_lost += outcome == LOST;
}

static unsigned take_lane(unsigned lane) {
    unsigned n = 0;
    for (const pp_frame_t *f; (f = pp_hub_peek(&hub, lane)) != NULL; n++) {
        uint64_t id = f->index, value;
        memcpy(&value, f + 1, sizeof value);
        sch_check(f->job == id + 1 && f->size == sizeof value && value == result_of(id), "a result is not what was sent");
        pp_hub_take(&hub, lane, f);
        settle(id, DONE);
    }
    return n;
}

static unsigned take_all(void) {
    unsigned n = 0;
    for (unsigned i = 0; i < pool->n_workers; i++)
        n += take_lane(i);
    return n;
}

static void run_worker(int lane);

static void start_worker(unsigned lane) {
    pp_hub_open_lane(&hub, lane);
    m.worker[lane] = 1 + sch_start("worker", (int)lane, true, run_worker);
}

static void bury(unsigned lane) {
    uint64_t job;
    uint32_t index;
    sch_say("      buries worker %u", lane);
    take_lane(lane);
    if (pp_hub_bury(&hub, lane, &job, &index)) {
        sch_check(job == index + 1, "what is lost is no task");
        settle(index, LOST);
    }
    m.n_leaks += m.is_copying[lane];           /* killed between the two stores of pp_end_copied: README.md, Limits */
    m.is_copying[lane] = false;
    if (sch_note(m.is_stopping))
        m.worker[lane] = 0;
    else
        start_worker(lane);
    m.dead &= ~(1u << lane);
}

static void handle_events(void) {
    pp_swap_seq_cst(&segment->shared->events, 0);
    unsigned dead = (unsigned)sch_note(m.dead);
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (dead >> i & 1)
            bury(i);
}

/* ---- leading ---- */

static bool are_all_settled(void) { return m.n_settled == pool->n_tasks; }
static bool is_main_done(void) { return m.n_settled >= (pool->leading == MAIN_LEADS_FIRST ? 1 : pool->n_tasks); }
static bool is_never(void) { return false; }

static bool try_lead(unsigned me) {
    lock();
    bool leads = m.leader == NOBODY;
    sch_note(m.leader);
    if (leads) {
        m.leader = me;
        pp_hub_lead(&hub);
    }
    leads = sch_note(m.leader) == me;
    unlock();
    return leads;
}

static void step_down(void) {
    lock();
    if (sch_note(m.main_follows)) {
        m.leader = MAIN;
        m.main_follows = false;
    } else {
        m.leader = NOBODY;
        pp_hub_step_down(&hub);
    }
    unlock();
}

/* As leader, until `done` or, for the background thread, there is no news. */
static void lead(bool (*done)(void), bool stays) {
    for (;;) {
        sch_forget(1);
        unsigned n = take_all();
        if (sch_note(done()))
            return;
        if (pp_load_seq_cst(&segment->shared->events)) {
            handle_events();
        } else if (pp_hub_take_room(&hub)) {
            feed();
        } else if (n == 0) {
            if (!stays)
                return;
            if (!pp_hub_spin(&hub))
                pp_hub_park(&hub, pp_load_seq_cst(&segment->shared->bell), -1, pool->is_patient);
        }
    }
}

static bool has_followed(void) { return is_main_done() || m.leader == MAIN; }

static void lead_or_follow(void) {
    for (;;) {
        sch_forget(2);
        if (sch_note(is_main_done()))
            return;
        if (!try_lead(MAIN)) {
            lock();
            m.main_follows = sch_note(m.leader) != NOBODY;
            unlock();
            if (!m.main_follows)
                continue;
            sch_until(has_followed);
        }
        lock();
        m.main_follows = false;
        bool leads = sch_note(m.leader) == MAIN;
        unlock();
        if (leads) {
            lead(is_main_done, true);
            step_down();
        }
    }
}

static void run_background(int number) {
    (void)number;
    for (;;) {
        sch_forget(3);
        if (sch_note(m.is_over))
            return;
        pp_hub_wait_background(&hub);
        if (try_lead(BACKGROUND)) {
            lead(is_never, false);
            step_down();
        }
    }
}

/* ---- the other threads of the parent ---- */

static int unreported(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (m.worker[i] && !(m.dead >> i & 1) && sch_has_ended(m.worker[i] - 1))
            return (int)i;
    return -1;
}
static bool has_to_watch(void) { return m.is_over || unreported() >= 0; }

static void run_watcher(int number) {
    (void)number;
    for (;;) {
        sch_forget(4);
        sch_until(has_to_watch);
        int lane = unreported();
        sch_note((uint64_t)lane + 1);
        if (lane < 0)
            return;
        m.n_killed += sch_was_killed(m.worker[lane] - 1);
        m.dead |= 1u << lane;
        pp_announce(segment->shared);
    }
}

/* Takes one task back, whichever the scheduler chooses. */
static bool is_any_put(void) { return m.sequence[0] > 0; }

static void run_canceller(int number) {
    (void)number;
    sch_until(is_any_put);
    for (m.n_cancels = 0; m.n_cancels < 2; m.n_cancels++) {
        sch_forget(5);
        unsigned id = sch_choose(pool->n_tasks);
        pp_slot_t copy;
        uint64_t sequence = sch_note(m.sequence[id]);
        if (sequence == 0 || m.outcome[id] != PENDING || !pp_hub_revoke(&hub, sequence - 1, &copy))
            continue;
        sch_check(copy.index == id, "another task was taken back");
        lock();
        settle(id, TAKEN_BACK);
        bool is_led = sch_note(m.leader) != NOBODY;
        unlock();
        if (is_led)
            pp_announce(segment->shared);
    }
}

static bool are_all_buried(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (m.worker[i])
            return false;
    return true;
}

static bool are_all_asleep(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (!sch_sleeps_on(m.worker[i] - 1, (void *)&pp_segment_lane(segment, i)->park))
            return false;
    return sch_sleeps_on(m.background, (void *)&segment->shared->bell);
}

static void run_main(int number) {
    (void)number;
    pp_hub_init(&hub, segment);
    for (unsigned i = 0; i < pool->n_workers; i++)
        start_worker(i);
    m.background = sch_start("background", 0, false, run_background);
    sch_start("watcher", 0, false, run_watcher);
    if (pool->cancels)
        sch_start("canceller", 0, false, run_canceller);
    if (!pool->at_once)
        sch_until(are_all_asleep);
    sch_decide_from_here();
    for (unsigned i = 0; i < pool->n_tasks; i++) {
        sch_forget(10 + i);
        pp_store_seq_cst(&m.n_offered, i + 1);
        feed();
    }
    if (pool->leading != NOBODY_LEADS)
        lead_or_follow();
    sch_until(are_all_settled);
    sch_say("      everything is done: the pool ends");
    m.is_stopping = true;
    pp_hub_stop(&hub, PP_DRAIN);
    sch_until(are_all_buried);
    m.is_over = true;
    pp_hub_summon(&hub);
}

/* ---- a worker ---- */

static void run_task(pp_end_t *end, const pp_slot_t *task, const unsigned char *payload) {
    uint64_t argument, id = task->index;
    const void *from = task->where == PP_IN_RING ? payload : task->data;
    void *memory;
    const pp_blockref_t *ref = (const pp_blockref_t *)task->data;
    sch_check(id < pool->n_tasks && task->job == id + 1, "a task is not what was put");
    sch_say("      runs task %u", (unsigned)id);
    sch_check(m.n_runs[id]++ == 0, "task %u runs twice", (unsigned)id);
    if (task->where == PP_IN_BLOCK) {
        sch_check(pp_block_map(segment, ref, &memory) == 0 && m.is_open[ref->id], "the block of task %u", (unsigned)id);
        from = memory;
    }
    memcpy(&argument, from, sizeof argument);
    sch_check(argument == argument_of(id), "the argument of task %u is not what was put", (unsigned)id);
    if (task->where == PP_IN_BLOCK) {
        m.is_copying[end->n_lane] = true;
        pp_end_copied(end, task, false);
        m.is_copying[end->n_lane] = false;
    }
    if (sch_choose(2))
        sch_task();                            /* else it is over at once */
}

static void run_worker(int lane) {
    unsigned char payload[PP_INLINE_MAX];
    pp_end_t end;
    pp_slot_t task;
    sch_check(pp_end_init(&end, segment, (unsigned)lane) == 0, "worker %d", lane);
    pp_end_state(&end, PP_LANE_READY);
    for (unsigned n = 0; (pool->n_each == 0 || n < pool->n_each) && !pp_end_must_stop(&end);) {
        sch_forget(10 + n);
        if (!pp_end_claim(&end, &task, payload)) {
            int error = pp_end_wait(&end);
            if (error == ECANCELED)
                break;
            if (error == EINTR)
                sch_task();                    /* a signal handler, which takes its time */
            continue;
        }
        run_task(&end, &task, payload);
        uint64_t result = result_of(task.index);
        pp_frame_t frame = {.job = task.job, .index = task.index, .where = PP_IN_RING, .size = sizeof result};
        while (pp_end_reply(&end, &frame, &result) == EAGAIN)
            sch_check(pp_end_wait_room(&end) == 0, "the pool was not told to stop at once");
        pp_end_finish(&end);
        n++;
    }
    pp_end_state(&end, PP_LANE_EXITED);
}

/* ---- checks while nobody can do anything, but perhaps end a task ---- */

static uint64_t word(const void *at, unsigned size) {
    uint64_t value = 0;
    memcpy(&value, at, size);
    return value;
}

static int idle_worker(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (m.worker[i] && sch_sleeps_on(m.worker[i] - 1, (void *)&pp_segment_lane(segment, i)->park))
            return (int)i;
    return -1;
}

static void check_quiet(void) {
    int idle = idle_worker();
    for (unsigned i = 0; i < pool->n_workers; i++) {
        pp_lane_t *lane = pp_segment_lane(segment, i);
        sch_check(word(&lane->tail, 8) == word(&lane->head, 8), "a result of worker %u waits and nobody takes it", i);
        sch_check(!m.worker[i] || !sch_has_ended(m.worker[i] - 1), "worker %u is dead and nobody buries it", i);
        sch_check(m.worker[i] == 0 || word(&lane->full, 4) == 0, "worker %u waits for room and there is some", i);
    }
    for (unsigned i = 0; i < PP_SLOTS; i++) {
        uint64_t state = word(&segment->shared->slots[i].state, 8);
        sch_check((state & 0xf) != READY || idle < 0, "task %u waits in the channel while worker %d sleeps",
                  segment->shared->slots[i].index, idle);
    }
    uint64_t n_put = word(&m.n_put, 4);
    sch_check(n_put == word(&m.n_offered, 4) || idle < 0, "task %u was refused and waits while worker %d sleeps", (unsigned)n_put, idle);
}

static void check_end(void) {
    check_quiet();
    for (unsigned i = 0; i < pool->n_tasks; i++)
        sch_check(m.outcome[i] != PENDING, "task %u has no outcome, and everybody sleeps", i);
    for (int i = 0; i <= sch_last_actor(); i++)
        sch_check(sch_has_ended(i), "%s sleeps for ever", sch_name_of(i));
    unsigned n_open = 0;
    for (unsigned i = 0; i < PP_BLOCKS; i++)
        n_open += m.is_open[i];
    sch_check(n_open <= m.n_leaks, "%u blocks were never released", n_open);
    sch_check(m.n_lost <= m.n_killed, "%u tasks lost with %u workers", m.n_lost, m.n_killed);
}

/* ---- a run ---- */

static size_t core_used(void) { return (size_t)((unsigned char *)pp_segment_lane(segment, pool->n_workers) - core); }

static uint64_t hash_of(const void *from, size_t size, uint64_t hash) {
    for (size_t i = 0; i + 8 <= size; i += 8)
        hash = (hash ^ word((const char *)from + i, 8)) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 29;
    return hash;
}

uint64_t pool_state(void) {
    uint64_t hash = hash_of(&m, sizeof m, 0);
    hash = hash_of(core, core_used(), hash_of(&hub, sizeof hub, hash));
    hash = hash_of(arena, malloc_usable_size(arena), hash);
    for (unsigned i = 0; i < PP_BLOCKS; i++)
        hash = hash_of(arenas + i * 4096, 8, hash);
    return hash;
}

static void name_words(void) {
    pp_shared_t *s = segment->shared;
#define NAME(word) sch_name(&(word), sizeof(word), #word, 0)
    NAME(s->stop), NAME(s->events), NAME(s->head), NAME(s->bell), NAME(s->waiting), NAME(hub.tail), NAME(hub.reclaimed);
    NAME(hub.leader), NAME(hub.summons), NAME(m.feeding), NAME(m.n_offered), NAME(m.n_put), NAME(s->room_at), NAME(s->has_room);
#undef NAME
    for (unsigned i = 0; i < PP_SLOTS; i++)
        sch_name(&s->slots[i].state, 8, "slots[%d].state", (int)i);
    for (unsigned i = 0; i <= pool->n_workers; i++)
        sch_name(pp_segment_flags(segment, i), PP_BLOCKS * 4, "arena[%d].in_use", (int)i);
    for (unsigned i = 0; i < pool->n_workers; i++) {
        pp_lane_t *lane = pp_segment_lane(segment, i);
#define NAME(field) sch_name(&lane->field, sizeof lane->field, "lane[%d]." #field, (int)i)
        NAME(park), NAME(state), NAME(full), NAME(holds), NAME(index), NAME(block), NAME(job), NAME(n_done), NAME(tail), NAME(head);
#undef NAME
    }
    sch_constant(&s->is_traced);
    sch_constant(&s->is_watched);
}

static void begin(void) {
    memcpy(core, core_at_start, core_used());
    memset(&m, 0, sizeof m);
    pp_arena_free(arena);
    arena = pp_arena_new(segment, 0);
    sch_start("main", 0, false, run_main);
}

static unsigned list_memory(sch_region_t *out) {
    const sch_region_t regions[] = {{core, core_used()}, {&hub, sizeof hub}, {&m, sizeof m}, {arena, malloc_usable_size(arena)}};
    unsigned n = sizeof regions / sizeof *regions;
    memcpy(out, regions, sizeof regions);
    for (unsigned i = 0; i < PP_BLOCKS; i++)
        out[n++] = (sch_region_t){arenas + i * 4096, 8};   /* an argument is no larger */
    return n;
}

const sch_program_t *pool_program(const pool_t *p) {
    static const sch_program_t program = {begin, list_memory, check_quiet, check_end};
    pool = p;
    pp_arena_free(arena);
    arena = NULL;
    pp_segment_unref(segment);
    memset(core, 0, sizeof core);
    sch_forget_words();
    if (pp_segment_create(p->n_workers, false, &segment) != 0)
        abort();
    memcpy(core_at_start, core, sizeof core);
    name_words();
    return &program;
}
