/* The channel: one task ring from which all workers claim, and one ring of results per worker.
 *
 * A slot's state is one 64-bit word, `sequence << 16 | worker slot << 4 | tag`:
 *
 *     FREE -> READY            the parent publishes task number `sequence`
 *     READY -> CLAIMED(worker slot)   by compare-and-swap: exactly one worker gets it
 *     READY -> REVOKED         by compare-and-swap: the parent takes it back (cancel, terminate)
 *     CLAIMED -> TAKEN         the worker has copied the payload; its worker slot names the task that it holds
 *
 * There are no locks. A worker that is killed or stopped at any instruction leaves at most one slot CLAIMED, which
 * `reap` finds. The sequence in the word makes a stale compare-and-swap fail after the slot was reused. README.md shows
 * why no wake-up is lost.
 */
#include "native.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MASK (PP_SLOTS - 1)
#define PATIENCE_NS 50000   /* how long a burst of results may gather before it is taken; see pp_parent_park */
#define PAD UINT32_MAX      /* marks a frame that only fills the end of the ring */

enum { FREE, READY, CLAIMED, TAKEN, REVOKED };

static uint64_t state_of(uint64_t sequence, unsigned worker, unsigned tag) {
    return sequence << 16 | (uint64_t)worker << 4 | tag;
}
static uint64_t sequence_in(uint64_t state) { return state >> 16; }
static unsigned tag_in(uint64_t state) { return (unsigned)state & 0xf; }
static uint32_t align8(uint32_t n) { return (n + 7) & ~7u; }

static pp_worker_slot_t *slot_of(pp_parent_t *parent, unsigned worker) { return pp_segment_worker(parent->segment, worker); }

/* ---- the parent: tasks to workers ---- */

void pp_parent_init(pp_parent_t *parent, pp_segment_t *s) {
    memset(parent, 0, sizeof *parent);   /* no other thread has a reference yet */
    parent->segment = s;
    pp_leading_init(&parent->leading);
    pp_store_relaxed(&s->shared->room_at, PP_NOT_REFUSED);
}

/* Makes slots reusable, in order. If the worker that claimed the oldest one died before it advanced the head, the head
 * still points there and would never match again. The parent therefore advances the head first. */
static void reclaim_slots(pp_parent_t *parent) {
    pp_shared_t *shared = parent->segment->shared;
    for (uint64_t next; (next = pp_load_relaxed(&parent->reclaimed)) < pp_load_relaxed(&parent->tail);) {
        uint64_t state = pp_load_acquire(&shared->slots[next & MASK].state);
        if (tag_in(state) != TAKEN && tag_in(state) != REVOKED)
            return;
        uint64_t head = pp_load_seq_cst(&shared->head);
        while (head <= next && !pp_cas_seq_cst(&shared->head, &head, head + 1)) {}
        parent->bytes_head = parent->slot_bytes[next & MASK];
        pp_store_relaxed(&parent->reclaimed, next + 1);
    }
}

static bool has_free_slot(pp_parent_t *parent) { return pp_load_relaxed(&parent->tail) - pp_load_relaxed(&parent->reclaimed) < PP_SLOTS; }

bool pp_parent_has_room(pp_parent_t *parent) {
    if (!has_free_slot(parent))
        reclaim_slots(parent);
    return has_free_slot(parent);
}

uint64_t pp_parent_n_waiting(pp_parent_t *parent) {
    uint64_t head = pp_load_seq_cst(&parent->segment->shared->head), tail = pp_load_seq_cst(&parent->tail);
    return head < tail ? tail - head : 0;
}

/* Whether no worker needs a task's slot any more. The slot may be reused once it is the oldest. */
static bool is_task_over(pp_parent_t *parent, uint64_t sequence) {
    uint64_t state = pp_load_seq_cst(&parent->segment->shared->slots[sequence & MASK].state);
    return sequence_in(state) != sequence || tag_in(state) == TAKEN || tag_in(state) == REVOKED;
}

/* Which task's taking should trigger another put. If tasks wait, the middle one, so that workers have the other half
 * meanwhile; otherwise the oldest that a worker is still copying. UINT64_MAX: neither exists. */
static uint64_t find_target(pp_parent_t *parent) {
    reclaim_slots(parent);
    uint64_t tail = pp_load_relaxed(&parent->tail), first = pp_load_relaxed(&parent->reclaimed), n_waiting = pp_parent_n_waiting(parent);
    for (uint64_t i = tail - n_waiting / 2 - 1; n_waiting > 0 && i < tail; i++)
        if (!is_task_over(parent, i))
            return i;
    for (uint64_t i = first; i < tail; i++)
        if (!is_task_over(parent, i))
            return i;
    return UINT64_MAX;
}

/* After a put that found no room: the worker that takes the target task notifies the leader. If the target was taken
 * before room_at was set, the put is not backpressured, and the caller retries at once. */
void pp_parent_note_full(pp_parent_t *parent) {
    pp_shared_t *shared = parent->segment->shared;
    uint64_t target = find_target(parent);
    pp_store_seq_cst(&shared->room_at, target);
    if (target == UINT64_MAX || is_task_over(parent, target))
        pp_store_seq_cst(&shared->room_at, PP_NOT_REFUSED);
}

bool pp_parent_waits_for_room(pp_parent_t *parent) { return pp_load_seq_cst(&parent->segment->shared->room_at) != PP_NOT_REFUSED; }

/* For the leader: true once each time that a refused put may succeed. The caller must make sure that somebody puts. */
bool pp_parent_take_room(pp_parent_t *parent) {
    pp_shared_t *shared = parent->segment->shared;
    return pp_load_seq_cst(&shared->has_room) && pp_swap_seq_cst(&shared->has_room, 0);
}

/* Notifies of room. Called after a slot was made TAKEN or REVOKED. */
static void note_over(pp_shared_t *shared, uint64_t sequence) {
    if (sequence < pp_load_seq_cst(&shared->room_at) || pp_swap_seq_cst(&shared->room_at, PP_NOT_REFUSED) == PP_NOT_REFUSED)
        return;
    pp_store_seq_cst(&shared->has_room, 1);
    pp_ring(shared, false);
}

static void *open_bytes(pp_parent_t *parent, uint32_t size, uint64_t *at) {
    uint64_t start = parent->bytes_tail;
    if ((start & (PP_TASK_BYTES - 1)) + size > PP_TASK_BYTES)   /* payloads are contiguous */
        start = (start | (PP_TASK_BYTES - 1)) + 1;
    uint64_t end = start + align8(size);
    if (end - parent->bytes_head > PP_TASK_BYTES) {
        reclaim_slots(parent);
        if (end - parent->bytes_head > PP_TASK_BYTES)
            return NULL;
    }
    parent->bytes_tail = end;
    *at = start;
    return parent->segment->shared->task_ring + (start & (PP_TASK_BYTES - 1));
}

int pp_parent_put(pp_parent_t *parent, const pp_slot_content_t *content, uint64_t *sequence) {
    if (!pp_parent_has_room(parent))
        return EAGAIN;
    uint64_t tail = pp_load_relaxed(&parent->tail);
    pp_slot_t *slot = &parent->segment->shared->slots[tail & MASK];
    void *to = slot->data;
    if (content->where == PP_IN_RING && (to = open_bytes(parent, content->size, &slot->at)) == NULL)
        return EAGAIN;
    slot->job = content->job;
    slot->index = content->index;
    slot->function_at = content->function_at;
    slot->function_id = content->function_id;
    slot->function_size = content->function_size;
    slot->mode = content->mode;
    slot->where = content->where;
    slot->size = content->size;
    memcpy(to, content->data, content->size);
    parent->slot_bytes[tail & MASK] = parent->bytes_tail;
    if (pp_is_traced(parent->segment->shared))
        pp_trace_put(parent->segment->shared, tail);
    pp_store_release(&slot->state, state_of(tail, 0, READY));
    pp_store_seq_cst(&parent->tail, tail + 1);   /* no later load, as of workers that seek, may come before the two stores */
    *sequence = tail;
    return 0;
}

static bool is_anyone_seeking(pp_segment_t *s) {
    return pp_load_seq_cst(&pp_segment_worker(s, pp_load_relaxed(&s->shared->seeker))->park) == PP_SEEKING;
}

static void note_seeker(pp_shared_t *shared, unsigned worker) {
    if (pp_load_relaxed(&shared->seeker) != worker)
        pp_store_relaxed(&shared->seeker, worker);
}

/* Whether the worker seeks from now on, or does already. */
static bool wake_worker(pp_segment_t *s, unsigned worker) {
    _Atomic uint32_t *park = &pp_segment_worker(s, worker)->park;
    uint32_t before = PP_ASLEEP;
    if (!pp_cas_seq_cst(park, &before, PP_SEEKING))
        return before == PP_SEEKING;
    note_seeker(s->shared, worker);
    pp_futex_wake(park, 1, UINT32_MAX);
    return true;
}

/* Wakes as many workers as there are tasks, minus those that are known to seek, which will find them. Anyone may call it. */
static void wake_for(pp_segment_t *s, unsigned n_tasks) {
    n_tasks -= n_tasks > 0 && is_anyone_seeking(s);
    if (n_tasks == 0)
        return;
    PP_EACH_BIT(i, s->shared->asleep, s->n_workers)
        if (wake_worker(s, i) && --n_tasks == 0)
            return;
}

void pp_parent_wake(pp_parent_t *parent, unsigned n_tasks) { wake_for(parent->segment, n_tasks); }

/* ---- the parent: taking tasks back ---- */

#define ANY_JOB 0   /* the first call of a pool has the number 1 */

/* Any thread may revoke. The copy comes first, because the thread that puts may reuse a REVOKED slot. If the
 * compare-and-swap succeeds the copy is intact, since no slot is READY twice with the same sequence. */
static bool take_back(pp_parent_t *parent, uint64_t sequence, uint64_t job, pp_slot_t *copy) {
    pp_slot_t *slot = &parent->segment->shared->slots[sequence & MASK];
    uint64_t expected = state_of(sequence, 0, READY);
    if (pp_load_acquire(&slot->state) != expected)
        return false;
    memcpy(&copy->job, &slot->job, sizeof *copy - offsetof(pp_slot_t, job));
    if (job != ANY_JOB && copy->job != job)
        return false;
    if (!pp_cas_seq_cst(&slot->state, &expected, state_of(sequence, 0, REVOKED)))
        return false;
    if (copy->where == PP_IN_BLOCK)
        pp_block_release(parent->segment, 0, ((pp_blockref_t *)copy->data)->id);
    note_over(parent->segment->shared, sequence);
    return true;
}

bool pp_parent_revoke(pp_parent_t *parent, uint64_t sequence, pp_slot_t *copy) { return take_back(parent, sequence, ANY_JOB, copy); }

static uint64_t oldest(uint64_t tail) { return tail > PP_SLOTS ? tail - PP_SLOTS : 0; }

/* Any thread. Takes back the next task of a call that waits at `*from` or later, and moves `*from` behind it; starts with 0. */
bool pp_parent_revoke_next_of(pp_parent_t *parent, uint64_t job, uint64_t *from, pp_slot_t *copy) {
    uint64_t tail = pp_load_seq_cst(&parent->tail);
    if (*from < oldest(tail))
        *from = oldest(tail);
    while (*from < tail)
        if (take_back(parent, (*from)++, job, copy))
            return true;
    return false;
}

/* Any thread. Whether a worker has claimed a task of this call and is not through with it. A claim that is not yet entered in the
 * worker slot is seen in the task's slot, which is why that comes first: it is TAKEN only after `holds` was set. */
bool pp_parent_is_held(pp_parent_t *parent, unsigned worker, uint64_t job) {
    pp_worker_slot_t *worker_slot = slot_of(parent, worker);
    if (pp_load_acquire(&worker_slot->state) == PP_WORKER_EMPTY)
        return false;
    for (unsigned i = 0; i < PP_SLOTS; i++) {
        pp_slot_t *slot = &parent->segment->shared->slots[i];
        uint64_t state = pp_load_seq_cst(&slot->state);
        if (state == state_of(sequence_in(state), worker, CLAIMED) && slot->job == job)
            return true;
    }
    return pp_load_seq_cst(&worker_slot->holds) && pp_load_relaxed(&worker_slot->job) == job;
}

bool pp_parent_pop_waiting(pp_parent_t *parent, pp_slot_t *copy) {
    uint64_t tail = pp_load_relaxed(&parent->tail);
    for (uint64_t sequence = oldest(tail); sequence < tail; sequence++)
        if (pp_parent_revoke(parent, sequence, copy))
            return true;
    return false;
}

/* Prepares a worker slot for a new worker. `head` and `tail` stay as they are, because the leader may be reading the
 * slot's ring; see pp_parent_reap. */
void pp_parent_open_slot(pp_parent_t *parent, unsigned worker) {
    pp_worker_slot_t *worker_slot = slot_of(parent, worker);
    worker_slot->n_taken = 0;
    pp_store_relaxed(&worker_slot->full, 0);
    pp_store_relaxed(&worker_slot->holds, 0);
    pp_store_relaxed(&worker_slot->n_done, 0);
    pp_store_relaxed(&worker_slot->initializes, 0);
    pp_store_relaxed(&worker_slot->has_replied, 0);
    pp_store_relaxed(&worker_slot->is_interrupted, 0);
    pp_store_relaxed(&worker_slot->since_ns, 0);
    pp_store_relaxed(&worker_slot->tid, 0);
    pp_store_relaxed(&worker_slot->begun_ns, 0);
    pp_store_relaxed(&worker_slot->park, PP_BUSY);
    pp_store_seq_cst(&worker_slot->state, PP_WORKER_STARTING);
}

/* Of the task that a dead worker holds. A name of the task would not do, since it may be tried again by the same worker. */
static bool is_result_taken(const pp_worker_slot_t *worker_slot) { return worker_slot->n_taken > pp_load_relaxed(&worker_slot->n_done); }

/* Empties the slot of a dead worker, once its results are taken. True: *job and *index are the task that is lost with
 * it. A task is not lost if its result was the last taken: then the worker was killed between its reply and
 * pp_worker_finish. */
bool pp_parent_reap(pp_parent_t *parent, unsigned worker, uint64_t *job, uint32_t *index) {
    pp_shared_t *shared = parent->segment->shared;
    pp_worker_slot_t *worker_slot = slot_of(parent, worker);
    bool held = pp_load_acquire(&worker_slot->holds), lost = false;
    if (held) {
        uint32_t block = pp_load_relaxed(&worker_slot->block);
        if (block)
            pp_block_release(parent->segment, 0, block - 1);
        *job = pp_load_relaxed(&worker_slot->job);
        *index = pp_load_relaxed(&worker_slot->index);
        lost = !is_result_taken(worker_slot);
    }
    for (unsigned i = 0; i < PP_SLOTS; i++) {   /* all slots: the newest task may not be counted in `tail` yet */
        pp_slot_t *slot = &shared->slots[i];
        uint64_t state = pp_load_acquire(&slot->state), sequence = sequence_in(state);
        if (state != state_of(sequence, worker, CLAIMED))
            continue;
        if (!held && slot->where == PP_IN_BLOCK)   /* otherwise it was released above, and may be in use again */
            pp_block_release(parent->segment, 0, ((pp_blockref_t *)slot->data)->id);
        *job = slot->job;
        *index = slot->index;
        lost = true;
        pp_store_seq_cst(&slot->state, state_of(sequence, worker, TAKEN));
    }
    pp_store_relaxed(&worker_slot->head, 0);   /* safe: the ring is empty, and only the leader takes from it */
    pp_store_relaxed(&worker_slot->tail, 0);
    pp_store_seq_cst(&worker_slot->state, PP_WORKER_EMPTY);
    pp_store_seq_cst(&worker_slot->park, PP_BUSY);
    pp_bit_clear(shared->asleep, worker);
    pp_arena_forget(parent->segment, 1 + worker);
    if (pp_load_relaxed(&worker_slot->pid) != (uint32_t)getpid())   /* otherwise its values are alive, or released themselves */
        pp_arena_drop_kept(parent->segment, 0, PP_KEPT + worker);
    for (unsigned i = 0; i < parent->segment->n_workers; i++)   /* the dead worker may have set a sleeper to SEEKING without waking it */
        pp_futex_wake(&slot_of(parent, i)->park, 1, UINT32_MAX);
    /* the dead worker may have been woken for a task that it never claimed */
    pp_parent_wake(parent, (unsigned)pp_parent_n_waiting(parent));
    pp_store_seq_cst(&shared->room_at, PP_NOT_REFUSED);   /* it may have died before it notified of room: check again */
    pp_store_seq_cst(&shared->has_room, 1);
    return lost;
}

void pp_parent_stop(pp_parent_t *parent, pp_stop_t stop) {
    pp_shared_t *shared = parent->segment->shared;
    uint32_t now = pp_load_seq_cst(&shared->stop);
    while (now < stop && !pp_cas_seq_cst(&shared->stop, &now, stop)) {}   /* if two threads stop the pool, the stricter mode prevails */
    for (unsigned i = 0; i < parent->segment->n_workers; i++) {
        pp_worker_slot_t *worker_slot = slot_of(parent, i);
        wake_worker(parent->segment, i);
        if (pp_swap_seq_cst(&worker_slot->full, 0))
            pp_futex_wake(&worker_slot->full, 1, UINT32_MAX);
    }
}

/* ---- the parent: results back ---- */

static bool has_few_workers(const pp_segment_t *s) { return s->n_workers <= PP_FEW; }

/* The first worker from `from` on whose bit is set; n_workers: none. */
static unsigned first_of(_Atomic uint64_t *bits, unsigned from, unsigned n_workers) {
    uint64_t mask = ~0ull << from % 64;
    for (unsigned i = from / 64; i * 64 < n_workers; i++, mask = ~0ull) {
        uint64_t word = pp_load_seq_cst(&bits[i]) & mask;
        if (word)
            return i * 64 + (unsigned)__builtin_ctzll(word);
    }
    return n_workers;
}

unsigned pp_parent_next_reply(pp_parent_t *parent, unsigned from) {
    unsigned n_workers = parent->segment->n_workers, next = first_of(parent->segment->shared->replied, from, n_workers);
    return next < n_workers ? next : first_of(parent->segment->shared->replied, 0, n_workers);
}

/* Called when a worker's ring was found empty. Whether it still is once the worker's bit is clear. */
static bool is_drained(pp_parent_t *parent, unsigned worker) {
    _Atomic uint64_t *replied = parent->segment->shared->replied;
    pp_worker_slot_t *worker_slot = slot_of(parent, worker);
    if (has_few_workers(parent->segment) || !pp_bit_is_set(replied, worker))
        return true;
    pp_bit_clear(replied, worker);
    if (pp_load_seq_cst(&worker_slot->tail) == pp_load_relaxed(&worker_slot->head))
        return true;
    pp_bit_set(replied, worker);   /* the caller may take some of these results only */
    return false;
}

const pp_frame_t *pp_parent_peek(pp_parent_t *parent, unsigned worker) {
    pp_worker_slot_t *worker_slot = slot_of(parent, worker);
    for (;;) {
        uint64_t head = pp_load_relaxed(&worker_slot->head);
        if (head == pp_load_seq_cst(&worker_slot->tail) && is_drained(parent, worker))
            return NULL;
        const pp_frame_t *frame = (const pp_frame_t *)(worker_slot->ring + (head & (PP_RESULT_BYTES - 1)));
        if (frame->size != PAD)
            return frame;
        pp_parent_take(parent, worker, frame);
    }
}

void pp_parent_take(pp_parent_t *parent, unsigned worker, const pp_frame_t *frame) {
    pp_worker_slot_t *worker_slot = slot_of(parent, worker);
    if (frame->size != PAD && frame->job)
        worker_slot->n_taken++;
    pp_store_seq_cst(&worker_slot->head, pp_load_relaxed(&worker_slot->head) + frame->frame_size);
    if (pp_load_seq_cst(&worker_slot->full) && pp_swap_seq_cst(&worker_slot->full, 0))
        pp_futex_wake(&worker_slot->full, 1, UINT32_MAX);
}

/* Any thread may put. A leader leaves it to the thread that is already putting. */
bool pp_parent_wants_feed(pp_parent_t *parent) {
    uintptr_t feeder = pp_load_seq_cst(&parent->feeder);
    return pp_load_seq_cst(&parent->must_feed) && (feeder == 0 || feeder == pp_this_thread());
}

/* Whether a leader has pending events: results, room for refused tasks, or a thread that wants to lead. */
bool pp_parent_has_work(pp_parent_t *parent) {
    pp_shared_t *shared = parent->segment->shared;
    PP_EACH_BIT(i, shared->replied, parent->segment->n_workers)
        if (pp_worker_slot_has_replied(slot_of(parent, i)))
            return true;
    return pp_load_seq_cst(&shared->has_room) != 0 || pp_lead_is_claimed(parent);
}

static void ring(pp_shared_t *shared, uint32_t whom) {
    pp_add_seq_cst(&shared->bell, 1);
    pp_futex_wake(&shared->bell, INT32_MAX, whom);
}

void pp_ring(pp_shared_t *shared, bool everybody) {
    uint32_t whom = pp_load_seq_cst(&shared->waiting) ? pp_swap_seq_cst(&shared->waiting, 0) : 0;
    if (everybody)
        whom = PP_FOREGROUND | PP_BACKGROUND;
    if (whom)
        ring(shared, whom);
}

void pp_notify_all(pp_shared_t *shared) {
    pp_store_seq_cst(&shared->events, 1);
    pp_ring(shared, true);
}

/* Always a swap, and no look before it: a look may find the 1 of an earlier request though the trimmer has taken that up and
 * counted before it could see the caller's release. Of this swap and the trimmer's one comes first: if this one, the trimmer sees
 * the release; if the trimmer's, this one asks anew. */
void pp_want_trim(pp_shared_t *shared) {
    if (pp_swap_seq_cst(&shared->wants_trim, 1))
        return;
    pp_store_seq_cst(&shared->events, 1);
    ring(shared, PP_BACKGROUND);
}

/* Begins to lead. While there is a leader, workers need not wake the background thread. */
void pp_parent_lead(pp_parent_t *parent) {
    pp_store_seq_cst(&parent->leader, 1);
    pp_store_seq_cst(&parent->segment->shared->waiting, 0);
}

void pp_parent_step_down(pp_parent_t *parent) {
    pp_shared_t *shared = parent->segment->shared;
    pp_store_seq_cst(&parent->leader, 0);
    pp_or_seq_cst(&shared->waiting, PP_BACKGROUND);
    if (pp_parent_has_work(parent))
        ring(shared, PP_BACKGROUND);
}

/* Spins, as leader, while a result may arrive soon. False: there is no pending event, and the caller should park. */
bool pp_parent_spin(pp_parent_t *parent) {
    bool has_work;
    pp_spin_begin(&parent->spin, PP_SPIN_NS, PP_SPIN_SHORT_NS);
    while (!(has_work = pp_parent_has_work(parent)) && pp_spin_once(&parent->spin)) {}
    pp_spin_end(&parent->spin, has_work);
    return has_work;
}

/* Sleeps, as leader, until there is a pending event, or until the bell differs from its value when the caller last
 * checked its other conditions. patient: many tasks are in flight, so first sleep PATIENCE_NS without asking to be
 * woken. Workers then run undisturbed, and one wake-up serves some hundred results instead of one or two. */
int pp_parent_park(pp_parent_t *parent, uint32_t bell, int64_t deadline_ns, bool patient) {
    pp_shared_t *shared = parent->segment->shared;
    if (pp_parent_has_work(parent))
        return 0;
    if (patient) {
        int error = pp_futex_wait(&shared->bell, bell, pp_now_ns() + PATIENCE_NS, PP_FOREGROUND);
        if (error == EINTR || pp_parent_has_work(parent))
            return error == EINTR ? EINTR : 0;
    }
    pp_or_seq_cst(&shared->waiting, PP_FOREGROUND);
    return pp_parent_has_work(parent) ? 0 : pp_futex_wait(&shared->bell, bell, deadline_ns, PP_FOREGROUND);
}

/* Wakes the background thread, or prevents its next sleep. */
void pp_parent_notify(pp_parent_t *parent) {
    pp_store_seq_cst(&parent->notified, 1);
    ring(parent->segment->shared, PP_BACKGROUND);
}

void pp_parent_wake_leader(pp_parent_t *parent) { ring(parent->segment->shared, PP_FOREGROUND); }

/* The background thread sleeps here until it is notified, something happens to a worker, or results arrive while nobody
 * leads. */
int pp_parent_wait_background(pp_parent_t *parent, int64_t deadline_ns) {
    pp_shared_t *shared = parent->segment->shared;
    uint32_t bell = pp_load_seq_cst(&shared->bell);
    if (pp_swap_seq_cst(&parent->notified, 0) || pp_load_seq_cst(&shared->events))
        return 0;
    if (pp_load_seq_cst(&parent->leader) == 0) {
        pp_or_seq_cst(&shared->waiting, PP_BACKGROUND);
        if (pp_parent_has_work(parent))
            return 0;
    }
    return pp_futex_wait(&shared->bell, bell, deadline_ns, PP_BACKGROUND);
}

/* ---- a worker ---- */

int pp_worker_init(pp_worker_t *worker, pp_segment_t *s, unsigned number) {
    if (number >= s->n_workers)
        return EINVAL;
    *worker = (pp_worker_t){.segment = s, .shared = s->shared, .own = pp_segment_worker(s, number), .n_worker = number};
    pp_store_relaxed(&worker->own->pid, (uint32_t)getpid());
    return 0;
}

static bool claim_slot(pp_worker_t *worker, pp_slot_t **out) {
    pp_shared_t *shared = worker->shared;
    for (;;) {
        uint64_t head = pp_load_seq_cst(&shared->head), next = head;
        pp_slot_t *slot = &shared->slots[head & MASK];
        uint64_t state = pp_load_seq_cst(&slot->state);
        if (sequence_in(state) != head || tag_in(state) == FREE) {
            if (pp_load_seq_cst(&shared->head) == head)
                return false;
            continue;
        }
        bool mine = tag_in(state) == READY && pp_cas_seq_cst(&slot->state, &state, state_of(head, worker->n_worker, CLAIMED));
        if (mine || tag_in(state) != READY)
            pp_cas_seq_cst(&shared->head, &next, head + 1);
        if (mine) {
            *out = slot;
            return true;
        }
    }
}

/* Whether a claim may succeed: there is a task, or there was one just before. */
static bool is_ready(pp_worker_t *worker) {
    uint64_t head = pp_load_seq_cst(&worker->shared->head);
    uint64_t state = pp_load_seq_cst(&worker->shared->slots[head & MASK].state);
    return sequence_in(state) == head ? tag_in(state) != FREE : pp_load_seq_cst(&worker->shared->head) != head;
}

bool pp_worker_claim(pp_worker_t *worker, pp_slot_t *copy, void *payload) {
    pp_slot_t *slot;
    if (!claim_slot(worker, &slot))
        return false;
    bool sought = pp_load_relaxed(&worker->own->park) != PP_BUSY;
    if (sought)
        pp_store_seq_cst(&worker->own->park, PP_BUSY);
    memcpy(&copy->job, &slot->job, sizeof *copy - offsetof(pp_slot_t, job));
    pp_store_relaxed(&worker->own->job, copy->job);
    pp_store_relaxed(&worker->own->index, copy->index);
    pp_store_relaxed(&worker->own->block, copy->where == PP_IN_BLOCK ? ((pp_blockref_t *)copy->data)->id + 1 : 0);
    pp_store_relaxed(&worker->own->begun_ns, copy->mode & PP_IS_TIMED ? (uint64_t)pp_now_ns() : 0);
    pp_store_release(&worker->own->holds, 1);
    if (copy->where == PP_IN_RING)
        memcpy(payload, worker->shared->task_ring + (copy->at & (PP_TASK_BYTES - 1)), copy->size);
    uint64_t sequence = sequence_in(pp_load_relaxed(&slot->state));
    if (pp_is_traced(worker->shared))
        worker->trace.put_ns = pp_load_relaxed(&worker->shared->put_ns[sequence & MASK]);
    pp_store_seq_cst(&slot->state, state_of(sequence, worker->n_worker, TAKEN));
    /* The parent counted on this seeking worker for every task that it had put, so pass that on by waking another. It
     * is not enough to check whether the next slot is READY. A busy worker may have claimed it without having advanced
     * the head, and will not check whether another task follows. */
    if (sought && is_ready(worker))
        wake_for(worker->segment, 1);
    note_over(worker->shared, sequence);
    return true;
}

bool pp_worker_must_stop(pp_worker_t *worker) { return pp_load_seq_cst(&worker->shared->stop) == PP_STOP; }

static int sleep_until_ready(pp_worker_t *worker) {
    _Atomic uint32_t *park = &worker->own->park;
    while (pp_load_seq_cst(park) == PP_ASLEEP) {
        if (is_ready(worker)) {   /* published before our ASLEEP was seen: perhaps nobody wakes us */
            pp_store_seq_cst(park, PP_SEEKING);
            return 0;
        }
        if (pp_load_seq_cst(&worker->shared->stop) != PP_RUN)
            return ECANCELED;
        int error = pp_futex_wait(park, PP_ASLEEP, worker->deadline_ns ? worker->deadline_ns : -1, UINT32_MAX);
        if (error == EINTR || error == ETIMEDOUT) {
            pp_store_seq_cst(park, PP_BUSY);   /* the caller may do something else first, so this worker cannot take tasks */
            if (is_ready(worker))
                wake_for(worker->segment, 1);
            return error;
        }
    }
    return !is_ready(worker) && pp_load_seq_cst(&worker->shared->stop) != PP_RUN ? ECANCELED : 0;
}

/* One worker that spins is enough: it wakes the others. */
static bool seek(pp_worker_t *worker) {
    bool is_needed = !is_anyone_seeking(worker->segment), is_found;
    pp_spin_begin(&worker->spin, PP_SPIN_NS, PP_SPIN_SHORT_NS);
    pp_store_seq_cst(&worker->own->park, PP_SEEKING);
    if (is_needed)
        note_seeker(worker->shared, worker->n_worker);
    while (!(is_found = is_ready(worker)) && is_needed && pp_spin_once(&worker->spin)) {}
    if (is_needed)
        pp_spin_end(&worker->spin, is_found);
    return is_found;
}

/* A task of a worker process may have closed all descriptors. Then large values cannot arrive any more, and this process
 * would not notice its parent's end, so another one takes its place. */
static bool is_cut_off(const pp_segment_t *s) { return s->is_attached && !pp_segment_has_file(s); }

/* Enforcers see this worker as idle from the end of its spinning until it wakes. */
int pp_worker_wait(pp_worker_t *worker) {
    if (seek(worker))
        return 0;
    if (is_cut_off(worker->segment)) {
        pp_store_seq_cst(&worker->own->park, PP_BUSY);
        if (is_ready(worker))
            wake_for(worker->segment, 1);
        return ECANCELED;
    }
    pp_bit_set(worker->shared->asleep, worker->n_worker);
    pp_store_seq_cst(&worker->own->park, PP_ASLEEP);
    pp_budget_leave(&worker->segment->budget);
    pp_pulse(worker->shared);
    bool is_traced = pp_is_traced(worker->shared);
    int64_t slept_ns = is_traced ? -pp_now_ns() : 0;
    if (is_traced)
        pp_trace_budget(worker);
    int error = sleep_until_ready(worker);
    pp_bit_clear(worker->shared->asleep, worker->n_worker);
    pp_budget_enter(&worker->segment->budget);
    pp_pulse(worker->shared);
    if (is_traced)
        worker->trace.slept_ns += (uint64_t)(slept_ns + pp_now_ns());
    if (pp_is_traced(worker->shared))
        pp_trace_budget(worker);
    return error;
}

void pp_worker_copied(pp_worker_t *worker, const pp_slot_t *slot, bool is_kept) {
    pp_store_relaxed(&worker->own->block, 0);
    if (!is_kept)
        pp_block_release(worker->segment, 0, ((const pp_blockref_t *)slot->data)->id);
}

static bool has_room_in_ring(pp_worker_slot_t *worker_slot, uint64_t n_bytes) {
    return pp_load_relaxed(&worker_slot->tail) + n_bytes - pp_load_seq_cst(&worker_slot->head) <= PP_RESULT_BYTES;
}

int pp_worker_reply(pp_worker_t *worker, const pp_frame_t *frame, const void *payload) {
    pp_worker_slot_t *worker_slot = worker->own;
    uint64_t tail = pp_load_relaxed(&worker_slot->tail);
    uint32_t at = tail & (PP_RESULT_BYTES - 1), size = align8((uint32_t)sizeof *frame + frame->size);
    uint32_t pad = at + size > PP_RESULT_BYTES ? PP_RESULT_BYTES - at : 0;
    if (!has_room_in_ring(worker_slot, (uint64_t)pad + size))
        return EAGAIN;
    if (pad) {
        memcpy(worker_slot->ring + at, &(uint32_t[2]){pad, PAD}, 8);
        at = 0;
    }
    memcpy(worker_slot->ring + at, frame, sizeof *frame);
    memcpy(worker_slot->ring + at, &size, sizeof size);
    memcpy(worker_slot->ring + at + sizeof *frame, payload, frame->size);
    pp_store_seq_cst(&worker_slot->tail, tail + pad + size);
    if (!has_few_workers(worker->segment) && pp_load_seq_cst(&worker_slot->head) == tail)
        pp_bit_set(worker->shared->replied, worker->n_worker);   /* otherwise the leader still has to take an older result: README.md, 3 */
    pp_ring(worker->shared, false);
    return 0;
}

/* Waits until half the ring is free: the largest frame with its padding needs this much, and an empty ring always has
 * it. */
int pp_worker_wait_room(pp_worker_t *worker) {
    pp_worker_slot_t *worker_slot = worker->own;
    pp_store_seq_cst(&worker_slot->full, 1);
    while (pp_load_seq_cst(&worker_slot->full) && !has_room_in_ring(worker_slot, 2 * (PP_INLINE_MAX + sizeof(pp_frame_t)))) {
        if (pp_worker_must_stop(worker))
            return ECANCELED;
        pp_ring(worker->shared, false);
        pp_futex_wait(&worker_slot->full, 1, -1, UINT32_MAX);
    }
    pp_store_seq_cst(&worker_slot->full, 0);
    return 0;
}

void pp_worker_finish(pp_worker_t *worker) {
    pp_store_release(&worker->own->holds, 0);
    pp_store_release(&worker->own->n_done, pp_load_relaxed(&worker->own->n_done) + 1);   /* later: see is_result_taken */
}

void pp_worker_state(pp_worker_t *worker, pp_worker_state_t state) {
    pp_store_seq_cst(&worker->own->state, state);
    pp_notify_all(worker->shared);
    pp_pulse(worker->shared);   /* a worker that finds work at once never sleeps, but is active all the same */
}
