/* A small pool on the real channel. It replaces the Python side (calls.c, putting.c, results.c) by a few lines of C, with
 * the same names and the same order, which the real waiting.c calls (`pp_hooks_t`). Tasks are offered, and a thread that finds
 * no other thread putting puts them. Each waiter submits a task and waits for it, as leader or follower. The background thread takes results
 * while nobody leads, reaps workers and starts others; a watcher reports workers that have ended. Once every task has
 * its outcome the pool is stopped, and every actor must end.
 *
 * A task ends at once, or lasts until no actor can do anything else. What is not done by then would not be done while
 * such tasks last. */
#include "scheduler.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 4
#define TASKS_MAX 8

typedef struct {
    const char *name;
    unsigned n_slots;                          /* PP_SLOTS of the build that this pool needs */
    unsigned n_workers, n_tasks, n_each;       /* n_each: tasks after which a worker ends; 0: it ends with the pool */
    const char *waiters;                       /* besides the background thread, see run_waiter and run_main */
    const char *where;                         /* of each task in turn: its argument is in its (p)lace, in the (r)ing, in a (b)lock, in a
                                                * block that the worker (k)eeps, or in a kept block that names a (c)ommon block; in upper
                                                * case, its result is in a block, too. Or it is in its place, and pickling it (n)ests, that
                                                * is, waits for another task; or raises an (e)xception, once */
    enum { TASKS = true, THE_MAP } cancels;    /* TASKS: single ones; THE_MAP: all tasks but the last are those of one map */
    bool is_patient;
    enum { AT_ONCE = true, LATER } begins;     /* AT_ONCE: tasks come while workers start; LATER: after others that had something in common */
    bool trims;                                /* idle blocks lose their memory */
} pool_t;

static const pool_t pools[] = {   /* slots, workers, tasks, tasks of each worker; who waits, where tasks are; cancels, is patient, begins, trims */
    {"two", 2, 2, 2, 0, "", "p", false, false, true, false},
    {"pair", 2, 2, 2, 0, "", "p", false, false, false, false},
    {"full", 2, 2, 3, 0, "", "p", false, false, false, false},
    {"ring", 2, 2, 3, 0, "w", "r", false, false, false, false},
    {"blocks", 2, 2, 3, 0, "w", "b", false, false, false, false},
    {"kept", 2, 2, 4, 0, "", "k", false, false, false, false},
    {"idle", 2, 2, 3, 0, "", "p", false, false, LATER, false},
    {"common", 2, 2, 4, 0, "", "c", false, false, false, false},
    {"commons", 2, 2, 3, 0, "w", "CCB", false, false, false, true},
    {"values", 2, 2, 3, 0, "w", "BKP", false, false, false, false},
    {"trims", 2, 1, 3, 0, "w", "B", false, false, false, true},
    {"later", 2, 2, 3, 0, "twt", "P", false, false, false, false},
    {"pickle", 2, 2, 4, 0, "w", "nppp", false, false, false, false},
    {"raise", 2, 2, 3, 0, "wt", "peeB", false, false, false, false},
    {"heir", 2, 1, 4, 0, "", "P", false, false, false, false},
    {"waits", 2, 2, 2, 0, "w", "p", false, false, false, false},
    {"gives-up", 2, 2, 2, 0, "wt", "p", false, false, false, false},
    {"led", 2, 1, 2, 0, "ww", "p", false, false, false, false},
    {"timed", 2, 1, 2, 0, "wt", "p", false, false, false, false},
    {"joined", 2, 2, 2, 0, "wj", "p", false, false, false, false},
    {"cancel", 2, 1, 3, 0, "wt", "pb", true, false, false, false},
    {"nested", 2, 2, 3, 0, "nw", "p", false, false, false, false},
    {"signal", 2, 2, 3, 0, "s", "p", true, false, false, false},
    {"short", 2, 2, 4, 1, "w", "pr", false, false, false, false},
    {"patient", 2, 1, 4, 0, "wj", "p", false, true, false, false},
    {"slow", 2, 1, 5, 0, "j", "p", false, true, false, false},
    {"three", 2, 3, 6, 0, "wwt", "prb", false, false, false, false},
    {"pass", 4, 3, 5, 0, "", "p", false, false, false, false},
    {"map", 2, 2, 4, 0, "", "p", THE_MAP, false, false, false},
    {"map-of-blocks", 2, 2, 5, 0, "w", "pb", THE_MAP, false, false, false},
    {"four", 4, 4, 8, 0, "wtnj", "pprb", true, true, false, false},
};

enum { READY = 1, CLAIMED = 2 };               /* slot tags, as in channel.c */
enum { PENDING, DONE, LOST, TAKEN_BACK };
enum { ENDED = TASKS_MAX, TICKETS };  /* what an actor can wait for: tasks, and the end of the pool */
#define MAP 1                                  /* the number of its call; other calls have that of their task, + 1 */
#define REVOKES_MAP (TASKS_MAX + 1)

typedef struct { unsigned arena, id, task; } block_t;

uint64_t schedule_idle_max;
unsigned schedule_patient_min;

static const pool_t *pool;
static pp_segment_t *segment;
static pp_parent_t parent;
static struct {                                /* the parent's state; under Python's locks unless atomic */
    _Atomic uint32_t n_offered, n_put;         /* tasks between the two are the backlog */
    _Atomic uint32_t done[TICKETS], is_idle, is_withdrawn;
    pthread_mutex_t map;                       /* the critical section of the map */
    bool is_in_map[WORKERS_MAX], is_through[WORKERS_MAX];   /* the worker runs a task of the map; it was found not to hold one */
    bool is_put[TASKS_MAX], is_being_put[TASKS_MAX], is_pickled[TASKS_MAX], is_pickling[ACTORS_MAX];
    bool is_nested[ACTORS_MAX], has_looked[ACTORS_MAX], is_timed[ACTORS_MAX];   /* the actor's wait: within something else; not the first look; with a timeout */
    bool is_closing, is_stopping, is_over, has_nested[ACTORS_MAX], has_signals[ACTORS_MAX], has_signal[ACTORS_MAX];
    unsigned n_settled, n_lost, n_killed, n_cancels, n_leaks;
    unsigned outcome[TASKS_MAX], n_runs[TASKS_MAX];
    unsigned awaits[ACTORS_MAX];               /* the ticket that the actor waits for, + 1 */
    uint64_t sequence[TASKS_MAX];              /* + 1; 0: not put */
    int worker[WORKERS_MAX];                   /* its actor + 1; 0: none */
    int background;
    unsigned dead;                             /* a bit for each worker whose end was reported */
    bool is_copying[WORKERS_MAX];              /* while in pp_worker_copied */
    bool has_common[WORKERS_MAX];              /* the worker still has a copy of what its last task had in common with others */
    bool is_burying;
    unsigned revoked;                          /* the task that is being revoked, + 1; REVOKES_MAP: those of the map */
    struct {
        unsigned needed_by;                    /* a task, + 1; 0: nobody needs the contents of the block */
        uint64_t at;
        bool is_received;                      /* a result, received by the parent */
        unsigned keeper;                       /* the slot of the worker that keeps it, + 1 */
    } blocks[1 + WORKERS_MAX][PP_BLOCKS];      /* of each arena */
    struct { unsigned n_pins; bool is_held; } commons[PP_BLOCKS];   /* of the parent's arena; n_pins: by tasks; is_held: by the call's memo */
    unsigned current, common_of[TASKS_MAX];    /* common_of: the block of each task, + 1 */
    block_t values[TASKS_MAX];                 /* values in blocks that the parent's program still holds */
    unsigned n_values;
} m;

/* ---- memory: the segment's file ---- */

static _Alignas(4096) unsigned char core[1 << 20], arenas[(1 + WORKERS_MAX) * PP_ARENA_BYTES], core_at_start[sizeof core];
#define ARENAS_AT (1ull << 30)
#define BLOCK_BYTES 4096
#define PLACES 8                               /* blocks of an arena that a run uses */

int pp_memfd(const char *name, uint64_t size, int *fd) {
    (void)name, (void)size;
    *fd = -1;
    return 0;
}
void pp_fix_size(int fd) { (void)fd; }
uint64_t pp_file_number(int fd) { return (uint64_t)fd; }
uint64_t pp_whole_pages(uint64_t size) { return (size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES; }

int pp_map(int fd, uint64_t at, size_t size, void **memory) {
    (void)fd;
    bool is_core = at < ARENAS_AT;
    if (at + size > (is_core ? sizeof core : ARENAS_AT + sizeof arenas))
        return ENOMEM;
    *memory = is_core ? core + at : arenas + (at - ARENAS_AT);
    return 0;
}
void pp_unmap(void *memory, size_t size) { (void)memory, (void)size; }
void pp_punch_hole(int fd, uint64_t at, uint64_t size) {
    (void)fd;
    sch_system_call();
    for (unsigned i = 0; i <= pool->n_workers; i++)
        for (unsigned id = 0; id < PP_BLOCKS; id++) {
            uint64_t block = m.blocks[i][id].at;
            sch_check(!m.blocks[i][id].needed_by || block + BLOCK_BYTES <= at || block >= at + size,
                      "the memory of block %u of arena %u is given back, and task %u needs it", id, i, m.blocks[i][id].needed_by - 1);
        }
    for (uint64_t place = at; place < at + size && at >= ARENAS_AT; place += BLOCK_BYTES)
        memset(arenas + (place - ARENAS_AT), 0, 8);
}

uint64_t pp_file_size_max(void) { return UINT64_MAX; }

/* Other functions that the channel calls; this pool does not need them. */
bool pp_memory_close(pp_segment_t *s) { return s->shared != NULL; }
bool pp_pins_have_own(const pp_pins_t *pins) { return pins != NULL; }
void pp_pins_orphan(pp_segment_t *s, pp_pins_t *pins) { (void)s, (void)pins; }
size_t pp_pins_lent(const pp_pins_t *pins) { return pins != NULL; }
void pp_orphans_free(pp_segment_t *s) { (void)s; }
void pp_budget_close(pp_budget_t *b) { (void)b; }
void pp_budget_enter(pp_budget_t *b) { (void)b; }
void pp_budget_leave(pp_budget_t *b) { (void)b; }
void pp_trace_put(pp_shared_t *shared, uint64_t sequence) { (void)shared, (void)sequence; }
void pp_trace_budget(pp_worker_t *worker) { (void)worker; }

/* ---- blocks (the linker redirects releases from other files than blocks.c to here) ---- */

static uint64_t word(const void *at, unsigned size) {
    uint64_t value = 0;
    memcpy(&value, at, size);
    return value;
}

static uint64_t job_of(uint64_t id) { return pool->cancels == THE_MAP && id + 1 < pool->n_tasks ? MAP : id + 1; }

static bool is_being_revoked(unsigned id) { return m.revoked == 1 + id || (m.revoked == REVOKES_MAP && job_of(id) == MAP); }

static uint64_t in_use(unsigned owner, unsigned id) { return sch_newest(&pp_segment_flags(segment, owner)->in_use[id], 4); }

static void check_blocks(void) {
    for (unsigned i = 0; i <= pool->n_workers; i++)
        for (unsigned id = 0; id < PP_BLOCKS; id++)
            sch_check(!m.blocks[i][id].needed_by || in_use(i, id), "block %u of arena %u is released, and task %u needs it", id, i,
                      m.blocks[i][id].needed_by - 1);
}

static bool has_results_in_blocks(void) {
    for (const char *c = pool->where; *c; c++)
        if (isupper(*c))
            return true;
    return false;
}

static bool has_kept_arguments(void) { return strpbrk(pool->where, "kKcC") != NULL; }

void __real_pp_block_release(pp_segment_t *s, unsigned owner, uint32_t id);
void __wrap_pp_block_release(pp_segment_t *s, unsigned owner, uint32_t id);
void __wrap_pp_block_release(pp_segment_t *s, unsigned owner, uint32_t id) {
    bool may_be_again = m.is_burying && has_kept_arguments();   /* README.md: two may name it, and it is not in use again */
    if (m.blocks[owner][id].needed_by && is_being_revoked(m.blocks[owner][id].needed_by - 1))
        m.blocks[owner][id].needed_by = 0;
    sch_check(in_use(owner, id) || may_be_again, "block %u of arena %u is released, but not open", id, owner);
    __real_pp_block_release(s, owner, id);
    check_blocks();
}

/* Nobody needs the block from now on; called before its release. */
static void need_no_more(unsigned owner, unsigned id) { m.blocks[owner][id].needed_by = m.blocks[owner][id].keeper = 0; }

/* As in common.c: several tasks may name one block, which lives while a task or the call's memo pins it. */
static void drop_common(unsigned id) {
    if (m.commons[id].is_held || m.commons[id].n_pins > 0)
        return;
    need_no_more(0, id);
    pp_block_release(segment, 0, id);
}

void pp_pins_free(pp_pins_t *pins) {
    if (pins == NULL)
        return;
    unsigned id = (unsigned)(uintptr_t)pins - 1;
    m.commons[id].n_pins--;
    drop_common(id);
}

/* The owners' own halves of arenas: process memory, at a fixed place so that it can be copied. */
static _Alignas(64) unsigned char halves[1 + WORKERS_MAX][640];
static unsigned next_half;                     /* + 1; 0: the next allocation is not a half */

static pp_arena_t *half(unsigned owner) { return (pp_arena_t *)halves[owner]; }

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) {
    if (next_half == 0)
        return __real_calloc(n, size);
    if (n * size > sizeof halves[0])
        abort();
    unsigned char *new = memset(halves[next_half - 1], 0, sizeof halves[0]);
    next_half = 0;
    return new;
}

static void new_half(unsigned owner) {
    next_half = owner + 1;
    pp_arena_new(segment, owner);
}

static int open_block(unsigned owner, unsigned task, pp_blockref_t *ref, uint64_t value) {
    void *memory;
    int error = pp_block_open(half(owner), sizeof value, ref, &memory);
    if (error)
        return error;
    sch_check(m.blocks[owner][ref->id].needed_by == 0, "block %u of arena %u is used again, and task %u needs it", ref->id, owner,
              m.blocks[owner][ref->id].needed_by - 1);
    sch_check(ref->at < pp_segment_arena_at(segment, owner) + PLACES * BLOCK_BYTES, "the model has too few places for blocks");
    m.blocks[owner][ref->id].needed_by = 1 + task;
    m.blocks[owner][ref->id].at = ref->at;
    m.blocks[owner][ref->id].is_received = false;
    memcpy(memory, &value, sizeof value);
    return 0;
}

static uint64_t read_block(const pp_blockref_t *ref) {
    void *memory;
    uint64_t value;
    sch_check(pp_block_map(segment, ref, &memory) == 0, "a block cannot be mapped");
    memcpy(&value, memory, sizeof value);
    return sch_note(value);
}

static uint64_t value_of(const block_t *block) {
    pp_blockref_t ref = {.at = m.blocks[block->arena][block->id].at, .size = 8, .id = block->id};
    return read_block(&ref);
}

/* ---- putting ---- */

static uint64_t argument_of(uint64_t id) { return (id + 1) * 0x0101010101010101ull; }
static uint64_t result_of(uint64_t id) { return (id + 1) * 0x1111111111111111ull; }

static char where_of(uint64_t id) { return pool->where[id % strlen(pool->where)]; }
static bool names_common(uint64_t id) { return tolower(where_of(id)) == 'c'; }
static bool is_kept_by_worker(uint64_t id) { return tolower(where_of(id)) == 'k' || names_common(id); }
static bool is_result_in_block(uint64_t id) { return isupper(where_of(id)); }

static bool pickle(unsigned id);
static void settle(uint64_t id, unsigned outcome);

static pp_where_t place_of(unsigned id) {
    switch (tolower(where_of(id))) {
    case 'r': return PP_IN_RING;
    case 'b':
    case 'c':
    case 'k': return PP_IN_BLOCK;
    default: return PP_IN_PLACE;
    }
}

#define COMMON 0x5555555555555555ull

/* 0; EAGAIN: no room, so its task is refused as well. */
static int name_common(unsigned task) {
    pp_blockref_t ref;
    if (!m.current) {
        int error = open_block(0, TASKS_MAX, &ref, COMMON);
        if (error)
            return error;
        m.current = 1 + ref.id;
        m.commons[ref.id].is_held = true;
        pp_block_hold(half(0), &ref);
    }
    m.common_of[task] = m.current;
    m.commons[m.current - 1].n_pins++;
    return 0;
}

/* The call's memo drops its blocks: the call has been put, or other blocks are used more. */
static void forget_common(void) {
    unsigned id = m.current - 1;
    m.current = 0;
    m.commons[id].is_held = false;
    drop_common(id);
}

static void check_common(unsigned task) {
    unsigned id = m.common_of[task] - 1;
    pp_blockref_t ref = {.at = m.blocks[0][id].at, .size = 8, .id = id};
    sch_check(read_block(&ref) == COMMON, "what task %u has in common with others has changed", task);
}

/* As in putting.c: under the lock that guards whether the call is settled, so that whoever settles it finds the task. */
static int put_unless_withdrawn(const pp_slot_content_t *content, uint64_t *sequence) {
    if (pool->cancels != THE_MAP || content->job != MAP)
        return pp_parent_put(&parent, content, sequence);
    pthread_mutex_lock(&m.map);
    int error = pp_load_seq_cst(&m.is_withdrawn) ? ECANCELED : pp_parent_put(&parent, content, sequence);
    pthread_mutex_unlock(&m.map);
    return error;
}

/* EINTR: an exception; ECANCELED: its call was cancelled. */
static int put(unsigned id) {
    uint64_t argument = argument_of(id);
    pp_blockref_t ref;
    pp_slot_content_t content = {.job = job_of(id), .index = id, .size = sizeof argument, .data = &argument, .where = place_of(id)};
    if (!pp_parent_has_room(&parent))
        return EAGAIN;
    if (!pickle(id))
        return EINTR;
    int error = 0;
    if (content.where == PP_IN_BLOCK) {
        if (names_common(id) && (error = name_common(id)) != 0)
            return error;
        pp_pins_t *pins = names_common(id) ? (pp_pins_t *)(uintptr_t)m.common_of[id] : NULL;
        if ((error = open_block(0, id, &ref, argument)) != 0) {
            pp_pins_free(pins);
            return error;
        }
        if (pins)
            pp_block_pin(half(0), &ref, pins);
        content.data = &ref;
        content.size = sizeof ref;
    }
    uint64_t sequence;
    if ((error = put_unless_withdrawn(&content, &sequence)) != 0 && content.where == PP_IN_BLOCK) {
        need_no_more(0, ref.id);
        pp_block_release(segment, 0, ref.id);
    }
    if (!error)
        m.sequence[id] = sequence + 1;
    if (m.current && sch_choose(2))
        forget_common();
    return error;
}

/* Returns the oldest task that no outer frame is putting; -1: none. Pickling may run code that uses the pool. */
static int next_entry(void) {
    unsigned id = 0, n = pp_load_seq_cst(&m.n_offered);
    while (id < n && (m.is_put[id] || m.is_being_put[id]))
        id++;
    return (int)sch_note(id < n ? id : UINT32_MAX);
}

/* As in putting.c. 0: a thread that has little time has come to a task that must be pickled; -1: an exception. */
static int put_waiting(pp_parent_t *p, bool is_nested, int64_t until_ns) {
    (void)p, (void)is_nested;
    for (int id; (id = next_entry()) >= 0;) {
        if (until_ns >= 0 && (strchr("en", where_of((unsigned)id)) || sch_choose(2)))
            return 0;
        m.is_being_put[id] = true;
        int error = put((unsigned)id);
        m.is_being_put[id] = false;
        sch_check(error == 0 || error == EAGAIN || error == EINTR || error == ECANCELED, "put: error %d", error);
        if (error == EINTR)
            return -1;
        if (error == ECANCELED) {
            m.is_put[id] = true;
            settle((unsigned)id, TAKEN_BACK);
        } else if (error) {
            pp_parent_note_full(&parent);
            sch_say("      task %d is refused", id);
            if (pp_parent_waits_for_room(&parent))
                return 1;
        } else {
            sch_say("      task %d is put", id);
            m.is_put[id] = true;
            pp_parent_wake(&parent, 1);              /* immediately: code in between could hide a missing fence */
            pp_add_seq_cst(&m.n_put, 1);
        }
    }
    return 1;
}

/* Returns the submitted task. */
static unsigned submit(void) {
    unsigned id = pp_add_seq_cst(&m.n_offered, 1);
    pp_store_seq_cst(&parent.must_feed, 1);
    pp_feed(&parent, -1);
    return id;
}

/* ---- outcomes ---- */

static void open_ticket(unsigned ticket) {
    pp_store_seq_cst(&m.done[ticket], 1);
    pp_wake_waiters(&parent, &m.done[ticket]);
}

static void note_idle(void) {
    if (pp_swap_seq_cst(&m.is_idle, 1))
        return;
    pp_parent_stop(&parent, PP_DRAIN);
    pp_parent_notify(&parent);
}

static void settle(uint64_t id, unsigned outcome) {
    static const char *names[] = {"pending", "done", "lost", "taken back"};
    sch_say("      task %u is %s", (unsigned)id, names[outcome]);
    sch_check(id < pool->n_tasks, "an outcome of task %u, which there is not", (unsigned)id);
    sch_check(m.outcome[id] == PENDING, "task %u has two outcomes: %s, then %s", (unsigned)id, names[m.outcome[id]], names[outcome]);
    m.outcome[id] = outcome;
    m.n_lost += outcome == LOST;
    bool is_last = ++m.n_settled == pool->n_tasks && m.is_closing;
    open_ticket((unsigned)id);
    if (is_last)
        note_idle();
}

static void close_calls(void) {
    m.is_closing = true;
    if (sch_note(m.n_settled) == pool->n_tasks)
        note_idle();
}

/* ---- taking results, as leader ---- */

static void check_leads(const char *what) {
    sch_check(word(&parent.leading.leader, 8) == pp_this_thread(), "%s without the lead", what);
}

static void await(unsigned ticket);

/* False: an exception. Called once for each task. It does not wait in the background thread, as nobody would reap
 * workers (README.md, Limits). */
static bool pickle(unsigned id) {
    int me = sch_current();
    bool is_nested = m.is_pickling[me];
    char where = where_of(id);
    if (m.is_pickled[id] || (where != 'n' && where != 'e'))
        return true;
    m.is_pickled[id] = true;
    if (where == 'e') {
        sch_say("      an exception amid pickling");
        return false;
    }
    sch_say("      waits for another task amid pickling");
    m.is_pickling[me] = true;
    unsigned other = submit();
    if (me != m.background)
        await(other);
    m.is_pickling[me] = is_nested;
    return true;
}

/* Decoding a result may run code that itself uses the pool. */
static void decode(void) {
    int me = sch_current();
    if (!m.has_nested[me])
        return;
    m.has_nested[me] = false;
    sch_say("      waits for another task amid decoding");
    await(submit());
}

/* As in results.c: what is known of a result once it has been taken. */
typedef struct {
    uint64_t id, value;
    bool is_in_block;
    unsigned worker;
    pp_blockref_t block;
} result_t;

static struct {                                /* results that the background thread has to decode; copied like m */
    result_t queue[TASKS_MAX];
    unsigned first, last;
} postponed;

static void take_result(unsigned worker, const pp_frame_t *f, result_t *r) {
    *r = (result_t){.id = f->index, .worker = worker};
    sch_check(f->job == job_of(r->id) && f->size == (f->where == PP_IN_BLOCK ? sizeof r->block : sizeof r->value), "a result is not what was sent");
    check_leads("a result is taken");
    if (f->where == PP_IN_BLOCK) {
        r->is_in_block = true;
        memcpy(&r->block, f + 1, sizeof r->block);
        m.blocks[1 + worker][r->block.id].is_received = true;
        pp_store_seq_cst(&pp_segment_flags(segment, 1 + worker)->in_use[r->block.id], PP_KEPT);
    } else {
        memcpy(&r->value, f + 1, sizeof r->value);
    }
    pp_parent_take(&parent, worker, f);
}

/* Decodes the value. If it lies in the block, and the program chooses to keep it, the block stays. */
static void decode_result(result_t *r) {
    decode();
    if (r->is_in_block)
        r->value = read_block(&r->block);
    sch_check(r->value == result_of(r->id), "the result of task %u is not what was sent", (unsigned)r->id);
    if (r->is_in_block && sch_choose(2)) {
        m.values[m.n_values++] = (block_t){1 + r->worker, r->block.id, (unsigned)r->id};
        r->is_in_block = false;
    }
}

static void drop_result(result_t *r) {
    if (!r->is_in_block)
        return;
    need_no_more(1 + r->worker, r->block.id);
    pp_block_release(segment, 1 + r->worker, r->block.id);
}

static void decode_and_deliver(result_t *r) {
    decode_result(r);
    settle(r->id, DONE);
}

static void postpone(const result_t *r) {
    sch_say("      leaves the result of task %u to the background thread", (unsigned)r->id);
    postponed.queue[postponed.last++] = *r;
    pp_parent_notify(&parent);
}

static void deliver_postponed(void) {
    while (sch_note(postponed.first < postponed.last)) {
        result_t r = postponed.queue[postponed.first++];
        decode_and_deliver(&r);
        drop_result(&r);
    }
}

/* A caller that waits with a timeout leaves slow results of other tasks to the background thread. */
static int take_one(pp_parent_t *p, unsigned worker, const pp_frame_t *f, pp_batch_t *batch) {
    (void)p;
    result_t r;
    take_result(worker, f, &r);
    batch->was_slow = batch->alone_for && r.is_in_block;
    if (batch->was_slow && batch->alone_for != &m.done[r.id]) {
        postpone(&r);
        return 0;
    }
    decode_and_deliver(&r);
    drop_result(&r);
    return 0;
}

static void end_batch(pp_batch_t *batch) { (void)batch; }

/* The program may drop a value that lies in a block at any moment. */
static bool has_to_collect(void) { return m.n_values > 0 || m.is_over; }

static void run_collector(int number) {
    (void)number;
    for (;;) {
        sch_forget(6);
        sch_until(has_to_collect);
        if (sch_note(m.n_values) == 0)
            return;
        block_t value = m.values[--m.n_values];
        sch_check(value_of(&value) == result_of(value.task), "the value of task %u has changed", value.task);
        need_no_more(value.arena, value.id);
        pp_block_release(segment, value.arena, value.id);
    }
}

/* ---- waiting ---- */

static bool is_met(const void *awaited) { return pp_load_seq_cst((_Atomic uint32_t *)(uintptr_t)awaited); }

/* The pool is never closed while a thread waits. But a deadline may have passed whenever the thread looks again; and what it has
 * seen so far no longer matters, unless it waits within something else. */
static bool is_closed(pp_parent_t *p) {
    int me = sch_current();
    (void)p;
    if (!m.is_nested[me])
        sch_forget(100 + 2 * m.awaits[me] + m.has_looked[me]);
    if (m.has_looked[me] && m.is_timed[me] && sch_choose(2))
        sch_pass(SCH_LONG_NS);
    m.has_looked[me] = true;
    return false;
}

/* Once, a waiter's signal handler may wait for the first task. */
static int run_handlers(pp_parent_t *p, _Atomic uint32_t *word) {
    int me = sch_current();
    if (word != &segment->shared->bell || !m.has_signals[me])
        return 0;
    pp_lead_pause(p);
    if (!m.has_signal[me] || m.awaits[me] == 1 || !sch_choose(2))
        return 0;
    m.has_signal[me] = false;
    sch_say("      a signal handler waits for task 0");
    await(0);
    return 0;
}

static int64_t prepare_sleep(int64_t deadline_ns) { return deadline_ns; }
static void *let_go(pp_parent_t *p) { return p; }
static void take_back(pp_parent_t *p, void *state) { (void)p, (void)state; }
void pp_parent_let_go(pp_parent_t *p, bool has_let_go) { (void)p, (void)has_let_go; }
void pp_parent_await_workers(pp_parent_t *p) { (void)p; }

static const pp_hooks_t hooks = {
    .put = put_waiting,
    .take = take_one,
    .end_batch = end_batch,
    .is_met = is_met,
    .is_closed = is_closed,
    .run_handlers = run_handlers,
    .prepare_sleep = prepare_sleep,
    .let_go = let_go,
    .take_back = take_back,
};

/* False: the deadline has passed, or an exception. */
static bool wait_for_ticket(unsigned ticket, int64_t deadline_ns) {
    int me = sch_current();
    bool was_nested = m.is_nested[me], was_timed = m.is_timed[me], was_leader = pp_lead_is_mine(&parent);
    unsigned outer = m.awaits[me];
    m.is_nested[me] = outer > 0 || m.is_pickling[me];
    m.has_looked[me] = false;
    m.is_timed[me] = deadline_ns >= 0;
    m.awaits[me] = 1 + ticket;
    pp_waited_t found = pp_wait_for(&parent, &m.done[ticket], deadline_ns);
    m.awaits[me] = outer;
    m.is_nested[me] = was_nested;
    m.is_timed[me] = was_timed;
    sch_check(was_leader || word(&parent.leading.leader, 8) != pp_this_thread(), "the lead is left with one who has gone");
    return found == PP_WAIT_MET;
}

/* Waits without a timeout; the program catches exceptions. */
static void await(unsigned ticket) {
    while (!wait_for_ticket(ticket, -1)) {}
}

/* ---- the background thread ---- */

static bool take_results(void) {
    deliver_postponed();
    return pp_take_results(&parent) == 0;
}

static void run_worker(int number);

static void start_worker(unsigned worker) {
    pp_parent_open_slot(&parent, worker);
    m.worker[worker] = 1 + sch_start("worker", (int)worker, true, run_worker);
}

static bool is_held_by(unsigned worker, unsigned task) {
    const pp_worker_slot_t *worker_slot = pp_segment_worker(segment, worker);
    bool is_held = word(&worker_slot->holds, 4) && word(&worker_slot->index, 4) == task;
    for (unsigned i = 0; i < PP_SLOTS; i++) {
        const pp_slot_t *slot = &segment->shared->slots[i];
        uint64_t state = word(&slot->state, 8);
        is_held = is_held || ((state & 0xf) == CLAIMED && (state >> 4 & 0xfff) == worker && slot->index == task);
    }
    return is_held;
}

/* From now on nobody needs what the dead worker needed. */
static bool reap(unsigned worker, uint64_t *job, uint32_t *index) {
    for (unsigned id = 0; id < PP_BLOCKS; id++) {
        if (m.blocks[0][id].keeper == worker + 1 || (m.blocks[0][id].needed_by && is_held_by(worker, m.blocks[0][id].needed_by - 1)))
            need_no_more(0, id);
        if (!m.blocks[1 + worker][id].is_received)
            need_no_more(1 + worker, id);
    }
    m.is_in_map[worker] = m.has_common[worker] = false;
    m.is_burying = true;
    bool is_lost = pp_parent_reap(&parent, worker, job, index);
    m.is_burying = false;
    check_blocks();
    return is_lost;
}

static void reap_dead(unsigned worker) {
    uint64_t job;
    uint32_t index;
    sch_say("      reaps worker %u", worker);
    pp_take_last(&parent, worker);
    check_leads("a dead worker is reaped");
    bool is_lost = reap(worker, &job, &index);
    pp_lead_release(&parent);
    sch_check(!is_lost || job == job_of(index), "what is lost is no task");
    m.n_leaks += m.is_copying[worker];           /* killed between the two stores of pp_worker_copied: README.md, Limits */
    m.is_copying[worker] = false;
    m.worker[worker] = 0;
    m.dead &= ~(1u << worker);
    if (is_lost)
        settle(index, LOST);
}

static void look_at_workers(void) {
    unsigned dead = (unsigned)sch_note(m.dead);
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (dead >> i & 1)
            reap_dead(i);
}

static void fill_slots(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (sch_note((uint64_t)m.worker[i]) == 0)
            start_worker(i);
}

static void attend(void) {
    if (pp_feed(&parent, -1) < 0 || !take_results())   /* the exception is logged, and the thread continues */
        return;
    if (pp_load_seq_cst(&m.is_idle))
        m.is_stopping = true;
    if (pp_swap_seq_cst(&segment->shared->events, 0))
        look_at_workers();
    if (!m.is_stopping)
        fill_slots();
    if (pp_load_relaxed(&segment->shared->wants_trim))
        pp_blocks_trim(segment);
}

static bool are_all_buried(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (m.worker[i])
            return false;
    return true;
}

static void run_background(int number) {
    (void)number;
    while (!sch_note(m.is_stopping && are_all_buried())) {
        sch_forget(3);
        bool wants_trim = pp_load_relaxed(&segment->shared->wants_trim);
        pp_parent_wait_background(&parent, wants_trim ? pp_now_ns() + 2 * SCH_IDLE_NS : -1);
        attend();
    }
    if (m.current)
        forget_common();
    pp_arena_unpin(half(0));
    open_ticket(ENDED);
    m.is_over = true;
}

/* ---- waiting threads ---- */

/* Waits for its own task: (w) without a timeout; (t) with a timeout; (n) decoding its first result waits for another
 * task; (s) a signal handler waits for another task. */
static void run_waiter(int number) {
    char how = pool->waiters[number];
    int me = sch_current();
    m.has_nested[me] = how == 'n';
    m.has_signals[me] = m.has_signal[me] = how == 's';
    unsigned id = submit();
    if (how == 't')
        wait_for_ticket(id, pp_now_ns() + SCH_LONG_NS);
    else
        await(id);
    sch_say("      waiter %d ends", number);
    sch_forget(4);
    if (sch_note(m.has_nested[me]))
        submit();                              /* counts as submitted although put failed */
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
        int worker = unreported();
        sch_note((uint64_t)worker + 1);
        if (worker < 0)
            return;
        m.n_killed += sch_was_killed(m.worker[worker] - 1);
        m.dead |= 1u << worker;
        pp_notify_all(segment->shared);
    }
}

/* Called while the task is being revoked: releases its block. */
static bool revoke(unsigned id, uint64_t sequence, pp_slot_t *copy) {
    m.revoked = 1 + id;
    bool is_ours = pp_parent_revoke(&parent, sequence, copy);
    m.revoked = 0;
    return is_ours;
}

/* Revokes one task, which the scheduler chooses. */
static bool is_any_put(void) { return m.sequence[0] > 0; }

static void run_canceller(int number) {
    (void)number;
    sch_until(is_any_put);
    for (m.n_cancels = 0; m.n_cancels < 2; m.n_cancels++) {
        sch_forget(5);
        unsigned id = sch_choose(pool->n_tasks);
        pp_slot_t copy;
        uint64_t sequence = sch_note(m.sequence[id]);
        if (sequence == 0 || m.outcome[id] != PENDING || !revoke(id, sequence - 1, &copy))
            continue;
        sch_check(copy.index == id, "another task was taken back");
        settle(id, TAKEN_BACK);
        pp_store_seq_cst(&parent.must_feed, 1);   /* its slot has become free, and no worker will report that */
        pp_parent_notify(&parent);
    }
}

/* As `cancel` of a map in calls.c and `Engine.end`: a worker that holds no task of the map by then will not begin one. */
static void run_withdrawer(int number) {
    (void)number;
    sch_until(is_any_put);
    pthread_mutex_lock(&m.map);
    pp_store_seq_cst(&m.is_withdrawn, 1);
    pthread_mutex_unlock(&m.map);
    pp_slot_t copy;
    m.revoked = REVOKES_MAP;
    for (uint64_t from = 0; pp_parent_revoke_next_of(&parent, MAP, &from, &copy);) {
        sch_check(job_of(copy.index) == MAP, "a task of another call was taken back");
        settle(copy.index, TAKEN_BACK);
    }
    m.revoked = 0;
    pp_store_seq_cst(&parent.must_feed, 1);
    pp_parent_notify(&parent);
    for (unsigned i = 0; i < pool->n_workers; i++) {
        m.is_through[i] = !pp_parent_is_held(&parent, i, MAP);
        sch_check(!m.is_through[i] || !m.is_in_map[i], "worker %u runs a task of the map, and was found not to hold one", i);
    }
}

static bool are_all_asleep(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (!sch_sleeps_on(m.worker[i] - 1, (void *)&pp_segment_worker(segment, i)->park))
            return false;
    return sch_sleeps_on(m.background, (void *)&segment->shared->bell);
}

static bool are_all_offered(void) { return m.n_offered == pool->n_tasks; }

static void run_main(int number) {
    (void)number;
    pp_parent_init(&parent, segment);
    parent.hooks = &hooks;
    pthread_mutex_init(&m.map, NULL);
    new_half(0);
    for (unsigned i = 0; i <= pool->n_workers; i++) {   /* maps the window of each arena once */
        pp_blockref_t ref = {.at = pp_segment_arena_at(segment, i), .size = 8};
        read_block(&ref);
    }
    for (unsigned i = 0; i < pool->n_workers; i++)
        start_worker(i);
    m.background = sch_start("background", 0, false, run_background);
    sch_start("watcher", 0, false, run_watcher);
    if (pool->cancels == TASKS)
        sch_start("canceller", 0, false, run_canceller);
    if (pool->cancels == THE_MAP)
        sch_start("withdrawer", 0, false, run_withdrawer);
    if (has_results_in_blocks())
        sch_start("collector", 0, false, run_collector);
    if (pool->begins != AT_ONCE)
        sch_until(are_all_asleep);
    sch_decide_from_here();
    unsigned n_others = 0;
    for (unsigned i = 0; pool->waiters[i]; i++) {
        if (pool->waiters[i] == 'j')
            continue;
        sch_start("waiter", (int)i, false, run_waiter);
        n_others += 1 + (pool->waiters[i] == 'n');
    }
    for (unsigned i = 0; i < pool->n_tasks; i++)
        n_others += where_of(i) == 'n';
    for (unsigned i = n_others; i < pool->n_tasks; i++) {
        sch_forget(10 + i);
        submit();
    }
    sch_until(are_all_offered);
    close_calls();
    if (strchr(pool->waiters, 'j'))            /* main waits for the end, as leader or follower */
        await(ENDED);
}

/* ---- a worker ---- */

/* Releases the value in a block that this worker has kept, as memory.c does. */
static void release_kept(block_t *kept) {
    sch_check(value_of(kept) == argument_of(kept->task), "the argument of task %u has changed", kept->task);
    if (names_common(kept->task))
        check_common(kept->task);
    need_no_more(0, kept->id);
    pp_block_release(segment, 0, kept->id);
    kept->task = TASKS_MAX;
}

/* Keeps the block or not, as memory.c and payload.c do. All values in a kept block may be released at once, so by then
 * it must not be named as the argument. Otherwise, if the worker is killed before pp_worker_copied, a block that may be
 * in use again would be released. */
static void copied(pp_worker_t *worker, const pp_slot_t *task, block_t *kept) {
    uint32_t id = ((const pp_blockref_t *)task->data)->id;
    if (kept) {
        m.blocks[0][id].keeper = 1 + worker->n_worker;
        *kept = (block_t){0, id, task->index};
        pp_store_seq_cst(&pp_segment_flags(segment, 0)->in_use[id], PP_KEPT + worker->n_worker);
        pp_store_seq_cst(&worker->own->block, 0);
        if (sch_choose(2))
            release_kept(kept);
        pp_worker_copied(worker, task, true);
    } else {
        need_no_more(0, id);
        m.is_copying[worker->n_worker] = true;
        pp_worker_copied(worker, task, false);
        m.is_copying[worker->n_worker] = false;
    }
}

static void run_task(pp_worker_t *worker, const pp_slot_t *task, const unsigned char *payload, block_t *kept) {
    uint64_t argument, id = task->index;
    const void *from = task->where == PP_IN_RING ? payload : task->data;
    const pp_blockref_t *ref = (const pp_blockref_t *)task->data;
    sch_check(id < pool->n_tasks && task->job == job_of(id), "a task is not what was put");
    m.is_in_map[worker->n_worker] = pool->cancels == THE_MAP && task->job == MAP;
    sch_check(!m.is_in_map[worker->n_worker] || !m.is_through[worker->n_worker], "a task of the map begins after its end");
    sch_say("      runs task %u", (unsigned)id);
    sch_check(m.n_runs[id]++ == 0, "task %u runs twice", (unsigned)id);
    m.has_common[worker->n_worker] = names_common(id);
    if (names_common(id))
        check_common((unsigned)id);
    if (task->where == PP_IN_BLOCK)
        argument = read_block(ref);
    else
        memcpy(&argument, from, sizeof argument);
    sch_check(argument == argument_of(id), "the argument of task %u is not what was put", (unsigned)id);
    if (task->where == PP_IN_BLOCK)
        copied(worker, task, is_kept_by_worker(id) && sch_choose(2) ? kept : NULL);
    if (sch_choose(2))
        sch_task();                            /* otherwise it ends at once */
}

static void reply(pp_worker_t *worker, const pp_slot_t *task) {
    uint64_t result = result_of(task->index);
    pp_frame_t frame = {.job = task->job, .index = task->index, .where = PP_IN_RING, .size = sizeof result};
    pp_blockref_t ref;
    bool is_in_block = is_result_in_block(task->index);
    if (is_in_block) {
        sch_check(open_block(1 + worker->n_worker, task->index, &ref, result) == 0, "no block for a result");
        frame.where = PP_IN_BLOCK;
        frame.size = sizeof ref;
    }
    while (pp_worker_reply(worker, &frame, is_in_block ? (void *)&ref : (void *)&result) == EAGAIN)
        sch_check(pp_worker_wait_room(worker) == 0, "the pool was not told to stop at once");
}

/* As in worker.c: an idle worker wakes once, to forget what its last task had in common with others. */
static void limit_wait(pp_worker_t *worker, bool has_waited) {
    if (has_waited)
        m.has_common[worker->n_worker] = false;
    worker->deadline_ns = m.has_common[worker->n_worker] ? pp_now_ns() + SCH_IDLE_NS : 0;
}

static void run_worker(int number) {
    unsigned char payload[PP_INLINE_MAX];
    pp_worker_t worker;
    pp_slot_t task;
    block_t kept = {.task = TASKS_MAX};        /* an argument that outlives its task */
    sch_check(pp_worker_init(&worker, segment, (unsigned)number) == 0, "worker %d", number);
    if (has_results_in_blocks())
        new_half(1 + (unsigned)number);
    pp_worker_state(&worker, PP_WORKER_READY);
    bool has_waited = false;
    m.has_common[number] = pool->begins == LATER;
    for (unsigned n = 0; (pool->n_each == 0 || n < pool->n_each) && !pp_worker_must_stop(&worker);) {
        sch_forget(10 + n + 100 * (kept.task < TASKS_MAX ? 1 + kept.id : 0) + 10000 * has_waited);
        if (!pp_worker_claim(&worker, &task, payload)) {
            limit_wait(&worker, has_waited);
            int error = pp_worker_wait(&worker);
            if (error == ECANCELED)
                break;
            has_waited = error == ETIMEDOUT;
            if (error)
                sch_task();                    /* a slow signal handler, or another thread has the GIL */
            continue;
        }
        has_waited = false;
        if (kept.task < TASKS_MAX)
            release_kept(&kept);
        run_task(&worker, &task, payload, &kept);
        reply(&worker, &task);
        m.is_in_map[number] = false;
        pp_worker_finish(&worker);
        n++;
        if (kept.task < TASKS_MAX && sch_choose(2))
            release_kept(&kept);
    }
    if (kept.task < TASKS_MAX)
        release_kept(&kept);
    pp_worker_state(&worker, PP_WORKER_EXITED);
}

/* ---- checks while no actor can do anything, except perhaps end a task ---- */

static int idle_worker(void) {
    for (unsigned i = 0; i < pool->n_workers; i++)
        if (m.worker[i] && sch_sleeps_on(m.worker[i] - 1, (void *)&pp_segment_worker(segment, i)->park))
            return (int)i;
    return -1;
}

/* Every actor sleeps: each actor that has something to do must have been told. */
static void check_leading(void) {
    uint64_t leader = word(&parent.leading.leader, 8);
    sch_check(word(&parent.leading.mutex, 4) == 0, "the mutex is held for ever");
    sch_check(word(&parent.leading.n_claims, 4) == 0, "a claim of the lead is not granted");
    sch_check(leader == 0 || m.awaits[leader - 1], "%s leads, and does not wait for anything", sch_name_of((int)leader - 1));
    sch_check(word(&parent.leader, 4) == (leader != 0), "the background thread does not know whether somebody leads");
    sch_check(leader || parent.leading.first == NULL, "%s follows, and nobody leads", sch_name_of((int)parent.leading.first->thread - 1));
    for (int i = 0; i <= sch_last_actor(); i++)
        sch_check(m.awaits[i] == 0 || word(&m.done[m.awaits[i] - 1], 4) == 0, "%s sleeps, and its result is there", sch_name_of(i));
}

/* While nobody requests another trim: unused blocks have no memory, as this pool's limit for idle blocks is zero. */
static void check_trimmed(void) {
    for (unsigned i = 0; i <= pool->n_workers; i++)
        for (unsigned id = 0; id < PP_BLOCKS; id++)
            sch_check(in_use(i, id) || word(&pp_segment_flags(segment, i)->touched[id], 8) == 0, "block %u of arena %u keeps its memory", id, i);
}

static void check_quiet(void) {
    check_leading();
    if (pool->trims && m.n_killed == 0 && word(&segment->shared->wants_trim, 4) == 0)
        check_trimmed();
    uint64_t feeder = word(&parent.feeder, 8);
    sch_check(feeder == 0 || m.is_pickling[feeder - 1], "the backlog is locked for ever");
    sch_check(m.is_over || word(&parent.must_feed, 4) == 0, "nobody puts what waits in the backlog");
    sch_check(m.is_over || word(&segment->shared->has_room, 4) == 0, "nobody has seen that there is room");
    sch_check(m.is_over || postponed.first == postponed.last, "a result was postponed, and nobody makes its value");
    int idle = idle_worker();
    for (unsigned i = 0; i < pool->n_workers; i++) {
        pp_worker_slot_t *worker_slot = pp_segment_worker(segment, i);
        sch_check(word(&worker_slot->tail, 8) == word(&worker_slot->head, 8), "a result of worker %u waits and nobody takes it", i);
        sch_check(!m.worker[i] || !sch_has_ended(m.worker[i] - 1), "worker %u is dead and nobody reaps it", i);
        sch_check(m.worker[i] == 0 || word(&worker_slot->full, 4) == 0, "worker %u waits for room and there is some", i);
    }
    for (unsigned i = 0; i < PP_SLOTS; i++) {
        uint64_t state = word(&segment->shared->slots[i].state, 8);
        sch_check((state & 0xf) != READY || idle < 0, "task %u waits in the channel while worker %d sleeps",
                  segment->shared->slots[i].index, idle);
    }
    for (unsigned i = 0; i < word(&m.n_offered, 4); i++)
        sch_check(m.is_put[i] || m.is_being_put[i] || idle < 0, "task %u was refused and waits while worker %d sleeps", i, idle);
}

/* No sleeping worker has a deadline. */
static void check_busy(void) {
    check_quiet();
    for (unsigned i = 0; i < pool->n_workers; i++)
        sch_check(!m.has_common[i] || !m.worker[i] || !sch_sleeps_on(m.worker[i] - 1, (void *)&pp_segment_worker(segment, i)->park),
                  "worker %u sleeps, and keeps what its last task had in common with others", i);
}

static void check_end(void) {
    check_busy();
    for (unsigned i = 0; i < pool->n_tasks; i++)
        sch_check(m.outcome[i] != PENDING, "task %u has no outcome, and everybody sleeps", i);
    for (int i = 0; i <= sch_last_actor(); i++)
        sch_check(sch_has_ended(i), "%s sleeps for ever", sch_name_of(i));
    unsigned n_open = 0, n_pins = 0;
    for (unsigned i = 0; i <= pool->n_workers; i++)
        for (unsigned id = 0; id < PP_BLOCKS; id++)
            n_open += in_use(i, id) != 0 && (i > 0 || m.commons[id].n_pins == 0);
    for (unsigned id = 0; id < PP_BLOCKS; id++)
        n_pins += m.commons[id].n_pins;
    sch_check(n_pins <= n_open, "%u tasks that are over pin what they had in common", n_pins);
    sch_check(n_open <= m.n_leaks, "%u blocks were never released", n_open);
    sch_check(m.n_lost <= m.n_killed, "%u tasks lost with %u workers", m.n_lost, m.n_killed);
}

/* ---- a run ---- */

static size_t core_used(void) { return (size_t)((unsigned char *)pp_segment_worker(segment, pool->n_workers) - core); }

static uint64_t hash_of(const void *from, size_t size, uint64_t hash) {
    for (size_t i = 0; i + 8 <= size; i += 8)
        hash = (hash ^ word((const char *)from + i, 8)) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 29;
    return hash;
}

static uint64_t guarded(void) {
    uint64_t hash = word(&parent.leading.leader, 8);
    unsigned n = 0;
    for (const pp_waiter_t *w = parent.leading.first; w && n < ACTORS_MAX; w = w->next, n++)
        hash = sch_mix(sch_mix(hash, w->thread), sch_mix((uintptr_t)w->awaited, word(&w->word, 4)));
    return hash;
}

static unsigned n_arenas(void) { return has_results_in_blocks() ? 1 + pool->n_workers : 1; }

static unsigned char *place(unsigned owner, unsigned n) { return arenas + owner * PP_ARENA_BYTES + n * BLOCK_BYTES; }

static uint64_t state(void) {
    uint64_t hash = hash_of(&m, sizeof m, 0);
    for (unsigned i = postponed.first; i < postponed.last; i++)
        hash = sch_mix(hash, postponed.queue[i].id);
    hash = hash_of(core, core_used(), hash_of(&parent, sizeof parent, hash));
    for (unsigned i = 0; i < n_arenas(); i++) {
        hash = hash_of(halves[i], sizeof halves[0], hash);
        for (unsigned n = 0; n < PLACES; n++)
            hash = hash_of(place(i, n), 8, hash);
    }
    for (unsigned i = 0; pool->trims && i < n_arenas(); i++)
        hash = sch_mix(hash, segment->windows[i].n_opened);
    return sch_mix(hash, guarded());
}

static void name_words(void) {
    pp_shared_t *s = segment->shared;
#define NAME(word) sch_name(&(word), sizeof(word), #word, 0)
    NAME(s->stop), NAME(s->events), NAME(s->head), NAME(s->bell), NAME(s->waiting), NAME(parent.tail), NAME(parent.reclaimed);
    NAME(parent.leader), NAME(parent.notified), NAME(m.is_idle), NAME(m.n_offered), NAME(m.n_put), NAME(s->room_at), NAME(s->has_room);
    NAME(s->seeker), NAME(s->asleep), NAME(s->replied);
    NAME(parent.leading.leader), NAME(parent.leading.awaited), NAME(parent.leading.n_claims), NAME(parent.must_feed), NAME(parent.feeder);
#undef NAME
    for (unsigned i = 0; i < TICKETS; i++)
        sch_name(&m.done[i], 4, "done[%d]", (int)i);
    for (unsigned i = 0; i < PP_SLOTS; i++)
        sch_name(&s->slots[i].state, 8, "slots[%d].state", (int)i);
    for (unsigned i = 0; i <= pool->n_workers; i++)
        sch_name(pp_segment_flags(segment, i), PP_BLOCKS * 4, "arena[%d].in_use", (int)i);
    for (unsigned i = 0; i < pool->n_workers; i++) {
        pp_worker_slot_t *worker_slot = pp_segment_worker(segment, i);
#define NAME(field) sch_name(&worker_slot->field, sizeof worker_slot->field, "worker slot[%d]." #field, (int)i)
        NAME(park), NAME(state), NAME(full), NAME(holds), NAME(index), NAME(block), NAME(pid), NAME(job), NAME(n_done), NAME(tail), NAME(head);
#undef NAME
    }
    sch_constant(&s->is_traced);
    sch_constant(&s->is_watched);
}

static void begin(void) {
    memcpy(core, core_at_start, core_used());
    memset(&m, 0, sizeof m);
    memset(&postponed, 0, sizeof postponed);
    memset(halves, 0, sizeof halves);
    memset(segment->windows, 0, (1 + pool->n_workers) * sizeof *segment->windows);
    sch_start("main", 0, false, run_main);
}

static unsigned list_memory(sch_region_t *out) {
    const sch_region_t regions[] = {{core, core_used()}, {&parent, sizeof parent}, {&m, sizeof m}, {&postponed, sizeof postponed}, {halves, n_arenas() * sizeof halves[0]},
                                    {segment->windows, (1 + pool->n_workers) * sizeof *segment->windows}};
    unsigned n = sizeof regions / sizeof *regions;
    memcpy(out, regions, sizeof regions);
    for (unsigned i = 0; i < n_arenas(); i++)
        for (unsigned k = 0; k < PLACES; k++)
            out[n++] = (sch_region_t){place(i, k), 8};   /* no payload is larger */
    return n;
}

/* Returns the i-th pool for this number of slots. */
static const pool_t *find_pool(unsigned i) {
    for (unsigned n = 0; n < sizeof pools / sizeof *pools; n++)
        if (pools[n].n_slots == PP_SLOTS && i-- == 0)
            return &pools[n];
    return NULL;
}

const char *program_name(unsigned i) {
    const pool_t *p = find_pool(i);
    return p ? p->name : NULL;
}

const sch_program_t *program_open(unsigned i) {
    static const sch_program_t program = {.begin = begin, .regions = list_memory, .idle = check_quiet, .busy = check_busy,
                                          .end = check_end, .guarded = guarded, .state = state};
    pool = find_pool(i);
    schedule_idle_max = pool->trims ? 0 : UINT64_MAX;
    schedule_patient_min = pool->is_patient ? 0 : 1000;
    pp_segment_unref(segment);
    memset(core, 0, sizeof core);
    sch_forget_words();
    if (pp_segment_create(pool->n_workers, false, &segment) != 0)
        abort();
    memcpy(core_at_start, core, sizeof core);
    name_words();
    return &program;
}
