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

static pp_worker_slot_t *slot_of(pp_parent_t *h, unsigned worker) { return pp_segment_worker(h->segment, worker); }

/* ---- the parent: tasks to workers ---- */

void pp_parent_init(pp_parent_t *h, pp_segment_t *s) {
    memset(h, 0, sizeof *h);   /* no other thread has a reference yet */
    h->segment = s;
    pp_leading_init(&h->leading);
    pp_store_relaxed(&s->shared->room_at, PP_NOT_REFUSED);
}

/* Makes slots reusable, in order. If the worker that claimed the oldest one died before it advanced the head, the head
 * still points there and would never match again. The parent therefore advances the head first. */
static void reclaim(pp_parent_t *h) {
    pp_shared_t *shared = h->segment->shared;
    for (uint64_t next; (next = pp_load_relaxed(&h->reclaimed)) < pp_load_relaxed(&h->tail);) {
        uint64_t state = pp_load_acquire(&shared->slots[next & MASK].state);
        if (tag_in(state) != TAKEN && tag_in(state) != REVOKED)
            return;
        uint64_t head = pp_load_seq_cst(&shared->head);
        while (head <= next && !pp_cas_seq_cst(&shared->head, &head, head + 1)) {}
        h->bytes_head = h->slot_bytes[next & MASK];
        pp_store_relaxed(&h->reclaimed, next + 1);
    }
}

static bool has_free_slot(pp_parent_t *h) { return pp_load_relaxed(&h->tail) - pp_load_relaxed(&h->reclaimed) < PP_SLOTS; }

bool pp_parent_has_room(pp_parent_t *h) {
    if (!has_free_slot(h))
        reclaim(h);
    return has_free_slot(h);
}

uint64_t pp_parent_n_waiting(pp_parent_t *h) {
    uint64_t head = pp_load_seq_cst(&h->segment->shared->head), tail = pp_load_seq_cst(&h->tail);
    return head < tail ? tail - head : 0;
}

/* Whether no worker needs a task's slot any more. The slot may be reused once it is the oldest. */
static bool is_over(pp_parent_t *h, uint64_t sequence) {
    uint64_t state = pp_load_seq_cst(&h->segment->shared->slots[sequence & MASK].state);
    return sequence_in(state) != sequence || tag_in(state) == TAKEN || tag_in(state) == REVOKED;
}

/* Which task's taking should trigger another put. If tasks wait, the middle one, so that workers have the other half
 * meanwhile; otherwise the oldest that a worker is still copying. UINT64_MAX: neither exists. */
static uint64_t find_target(pp_parent_t *h) {
    reclaim(h);
    uint64_t tail = pp_load_relaxed(&h->tail), first = pp_load_relaxed(&h->reclaimed), n_waiting = pp_parent_n_waiting(h);
    for (uint64_t i = tail - n_waiting / 2 - 1; n_waiting > 0 && i < tail; i++)
        if (!is_over(h, i))
            return i;
    for (uint64_t i = first; i < tail; i++)
        if (!is_over(h, i))
            return i;
    return UINT64_MAX;
}

/* After a put that found no room: the worker that takes the target task notifies the leader. If the target was taken
 * before room_at was set, the put is not backpressured, and the caller retries at once. */
void pp_parent_note_full(pp_parent_t *h) {
    pp_shared_t *shared = h->segment->shared;
    uint64_t target = find_target(h);
    pp_store_seq_cst(&shared->room_at, target);
    if (target == UINT64_MAX || is_over(h, target))
        pp_store_seq_cst(&shared->room_at, PP_NOT_REFUSED);
}

bool pp_parent_is_starved(pp_parent_t *h) { return pp_load_seq_cst(&h->segment->shared->room_at) != PP_NOT_REFUSED; }

/* For the leader: true once each time that a refused put may succeed. The caller must make sure that somebody puts. */
bool pp_parent_take_room(pp_parent_t *h) {
    pp_shared_t *shared = h->segment->shared;
    return pp_load_seq_cst(&shared->has_room) && pp_swap_seq_cst(&shared->has_room, 0);
}

/* Notifies of room. Called after a slot was made TAKEN or REVOKED. */
static void note_over(pp_shared_t *shared, uint64_t sequence) {
    if (sequence < pp_load_seq_cst(&shared->room_at) || pp_swap_seq_cst(&shared->room_at, PP_NOT_REFUSED) == PP_NOT_REFUSED)
        return;
    pp_store_seq_cst(&shared->has_room, 1);
    pp_ring(shared, false);
}

static void *open_bytes(pp_parent_t *h, uint32_t size, uint64_t *at) {
    uint64_t start = h->bytes_tail;
    if ((start & (PP_TASK_BYTES - 1)) + size > PP_TASK_BYTES)   /* payloads are contiguous */
        start = (start | (PP_TASK_BYTES - 1)) + 1;
    uint64_t end = start + align8(size);
    if (end - h->bytes_head > PP_TASK_BYTES) {
        reclaim(h);
        if (end - h->bytes_head > PP_TASK_BYTES)
            return NULL;
    }
    h->bytes_tail = end;
    *at = start;
    return h->segment->shared->task_ring + (start & (PP_TASK_BYTES - 1));
}

int pp_parent_put(pp_parent_t *h, const pp_task_t *task, uint64_t *sequence) {
    if (!pp_parent_has_room(h))
        return EAGAIN;
    uint64_t tail = pp_load_relaxed(&h->tail);
    pp_slot_t *slot = &h->segment->shared->slots[tail & MASK];
    void *to = slot->data;
    if (task->where == PP_IN_RING && (to = open_bytes(h, task->size, &slot->at)) == NULL)
        return EAGAIN;
    slot->job = task->job;
    slot->index = task->index;
    slot->function_at = task->function_at;
    slot->function_id = task->function_id;
    slot->function_size = task->function_size;
    slot->mode = task->mode;
    slot->where = task->where;
    slot->size = task->size;
    memcpy(to, task->data, task->size);
    h->slot_bytes[tail & MASK] = h->bytes_tail;
    if (pp_is_traced(h->segment->shared))
        pp_trace_put(h->segment->shared, tail);
    pp_store_release(&slot->state, state_of(tail, 0, READY));
    pp_store_seq_cst(&h->tail, tail + 1);   /* no later load, as of workers that seek, may come before the two stores */
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

void pp_parent_wake(pp_parent_t *h, unsigned n_tasks) { wake_for(h->segment, n_tasks); }

/* ---- the parent: taking tasks back ---- */

#define ANY_JOB 0   /* the first call of a pool has the number 1 */

/* Any thread may revoke. The copy comes first, because the thread that puts may reuse a REVOKED slot. If the
 * compare-and-swap succeeds the copy is intact, since no slot is READY twice with the same sequence. */
static bool take_back(pp_parent_t *h, uint64_t sequence, uint64_t job, pp_slot_t *copy) {
    pp_slot_t *slot = &h->segment->shared->slots[sequence & MASK];
    uint64_t expected = state_of(sequence, 0, READY);
    if (pp_load_acquire(&slot->state) != expected)
        return false;
    memcpy(&copy->job, &slot->job, sizeof *copy - offsetof(pp_slot_t, job));
    if (job != ANY_JOB && copy->job != job)
        return false;
    if (!pp_cas_seq_cst(&slot->state, &expected, state_of(sequence, 0, REVOKED)))
        return false;
    if (copy->where == PP_IN_BLOCK)
        pp_block_release(h->segment, 0, ((pp_blockref_t *)copy->data)->id);
    note_over(h->segment->shared, sequence);
    return true;
}

bool pp_parent_revoke(pp_parent_t *h, uint64_t sequence, pp_slot_t *copy) { return take_back(h, sequence, ANY_JOB, copy); }

static uint64_t oldest(uint64_t tail) { return tail > PP_SLOTS ? tail - PP_SLOTS : 0; }

/* Any thread. Takes back the next task of a call that waits at `*from` or later, and moves `*from` behind it; starts with 0. */
bool pp_parent_revoke_next_of(pp_parent_t *h, uint64_t job, uint64_t *from, pp_slot_t *copy) {
    uint64_t tail = pp_load_seq_cst(&h->tail);
    if (*from < oldest(tail))
        *from = oldest(tail);
    while (*from < tail)
        if (take_back(h, (*from)++, job, copy))
            return true;
    return false;
}

/* Any thread. Whether a worker has claimed a task of this call and is not through with it. A claim that is not yet entered in the
 * worker slot is seen in the task's slot, which is why that comes first: it is TAKEN only after `holds` was set. */
bool pp_parent_is_held(pp_parent_t *h, unsigned worker, uint64_t job) {
    pp_worker_slot_t *l = slot_of(h, worker);
    if (pp_load_acquire(&l->state) == PP_WORKER_EMPTY)
        return false;
    for (unsigned i = 0; i < PP_SLOTS; i++) {
        pp_slot_t *slot = &h->segment->shared->slots[i];
        uint64_t state = pp_load_seq_cst(&slot->state);
        if (state == state_of(sequence_in(state), worker, CLAIMED) && slot->job == job)
            return true;
    }
    return pp_load_seq_cst(&l->holds) && pp_load_relaxed(&l->job) == job;
}

bool pp_parent_pop_waiting(pp_parent_t *h, pp_slot_t *copy) {
    uint64_t tail = pp_load_relaxed(&h->tail);
    for (uint64_t sequence = oldest(tail); sequence < tail; sequence++)
        if (pp_parent_revoke(h, sequence, copy))
            return true;
    return false;
}

/* Prepares a worker slot for a new worker. `head` and `tail` stay as they are, because the leader may be reading the
 * slot's ring; see pp_parent_reap. */
void pp_parent_open_slot(pp_parent_t *h, unsigned worker) {
    pp_worker_slot_t *l = slot_of(h, worker);
    l->n_taken = 0;
    pp_store_relaxed(&l->full, 0);
    pp_store_relaxed(&l->holds, 0);
    pp_store_relaxed(&l->n_done, 0);
    pp_store_relaxed(&l->initializes, 0);
    pp_store_relaxed(&l->has_replied, 0);
    pp_store_relaxed(&l->is_interrupted, 0);
    pp_store_relaxed(&l->since_ns, 0);
    pp_store_relaxed(&l->tid, 0);
    pp_store_relaxed(&l->begun_ns, 0);
    pp_store_relaxed(&l->park, PP_BUSY);
    pp_store_seq_cst(&l->state, PP_WORKER_STARTING);
}

/* Of the task that a dead worker holds. A name of the task would not do, since it may be tried again by the same worker. */
static bool is_result_taken(const pp_worker_slot_t *l) { return l->n_taken > pp_load_relaxed(&l->n_done); }

/* Empties the slot of a dead worker, once its results are taken. True: *job and *index are the task that is lost with
 * it. A task is not lost if its result was the last taken: then the worker was killed between its reply and
 * pp_worker_finish. */
bool pp_parent_reap(pp_parent_t *h, unsigned worker, uint64_t *job, uint32_t *index) {
    pp_shared_t *shared = h->segment->shared;
    pp_worker_slot_t *l = slot_of(h, worker);
    bool held = pp_load_acquire(&l->holds), lost = false;
    if (held) {
        uint32_t block = pp_load_relaxed(&l->block);
        if (block)
            pp_block_release(h->segment, 0, block - 1);
        *job = pp_load_relaxed(&l->job);
        *index = pp_load_relaxed(&l->index);
        lost = !is_result_taken(l);
    }
    for (unsigned i = 0; i < PP_SLOTS; i++) {   /* all slots: the newest task may not be counted in `tail` yet */
        pp_slot_t *slot = &shared->slots[i];
        uint64_t state = pp_load_acquire(&slot->state), sequence = sequence_in(state);
        if (state != state_of(sequence, worker, CLAIMED))
            continue;
        if (!held && slot->where == PP_IN_BLOCK)   /* otherwise it was released above, and may be in use again */
            pp_block_release(h->segment, 0, ((pp_blockref_t *)slot->data)->id);
        *job = slot->job;
        *index = slot->index;
        lost = true;
        pp_store_seq_cst(&slot->state, state_of(sequence, worker, TAKEN));
    }
    pp_store_relaxed(&l->head, 0);   /* safe: the ring is empty, and only the leader takes from it */
    pp_store_relaxed(&l->tail, 0);
    pp_store_seq_cst(&l->state, PP_WORKER_EMPTY);
    pp_store_seq_cst(&l->park, PP_BUSY);
    pp_bit_clear(shared->asleep, worker);
    pp_arena_forget(h->segment, 1 + worker);
    if (pp_load_relaxed(&l->pid) != (uint32_t)getpid())   /* otherwise its values are alive, or released themselves */
        pp_arena_drop_kept(h->segment, 0, PP_KEPT + worker);
    for (unsigned i = 0; i < h->segment->n_workers; i++)   /* the dead worker may have set a sleeper to SEEKING without waking it */
        pp_futex_wake(&slot_of(h, i)->park, 1, UINT32_MAX);
    pp_parent_wake(h, (unsigned)pp_parent_n_waiting(h));   /* the dead worker may have been woken for a task that it never claimed */
    pp_store_seq_cst(&shared->room_at, PP_NOT_REFUSED);   /* it may have died before it notified of room: check again */
    pp_store_seq_cst(&shared->has_room, 1);
    return lost;
}

void pp_parent_stop(pp_parent_t *h, pp_stop_t stop) {
    pp_shared_t *shared = h->segment->shared;
    uint32_t now = pp_load_seq_cst(&shared->stop);
    while (now < stop && !pp_cas_seq_cst(&shared->stop, &now, stop)) {}   /* if two threads stop the pool, the stricter mode prevails */
    for (unsigned i = 0; i < h->segment->n_workers; i++) {
        pp_worker_slot_t *worker = slot_of(h, i);
        wake_worker(h->segment, i);
        if (pp_swap_seq_cst(&worker->full, 0))
            pp_futex_wake(&worker->full, 1, UINT32_MAX);
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

unsigned pp_parent_next_reply(pp_parent_t *h, unsigned from) {
    unsigned n_workers = h->segment->n_workers, next = first_of(h->segment->shared->replied, from, n_workers);
    return next < n_workers ? next : first_of(h->segment->shared->replied, 0, n_workers);
}

/* Called when a worker's ring was found empty. Whether it still is once the worker's bit is clear. */
static bool is_drained(pp_parent_t *h, unsigned worker) {
    _Atomic uint64_t *replied = h->segment->shared->replied;
    pp_worker_slot_t *l = slot_of(h, worker);
    if (has_few_workers(h->segment) || !pp_bit_is_set(replied, worker))
        return true;
    pp_bit_clear(replied, worker);
    if (pp_load_seq_cst(&l->tail) == pp_load_relaxed(&l->head))
        return true;
    pp_bit_set(replied, worker);   /* the caller may take some of these results only */
    return false;
}

const pp_frame_t *pp_parent_peek(pp_parent_t *h, unsigned worker) {
    pp_worker_slot_t *l = slot_of(h, worker);
    for (;;) {
        uint64_t head = pp_load_relaxed(&l->head);
        if (head == pp_load_seq_cst(&l->tail) && is_drained(h, worker))
            return NULL;
        const pp_frame_t *frame = (const pp_frame_t *)(l->ring + (head & (PP_RESULT_BYTES - 1)));
        if (frame->size != PAD)
            return frame;
        pp_parent_take(h, worker, frame);
    }
}

void pp_parent_take(pp_parent_t *h, unsigned worker, const pp_frame_t *frame) {
    pp_worker_slot_t *l = slot_of(h, worker);
    if (frame->size != PAD && frame->job)
        l->n_taken++;
    pp_store_seq_cst(&l->head, pp_load_relaxed(&l->head) + frame->frame_size);
    if (pp_load_seq_cst(&l->full) && pp_swap_seq_cst(&l->full, 0))
        pp_futex_wake(&l->full, 1, UINT32_MAX);
}

/* Any thread may put. A leader leaves it to the thread that is already putting. */
bool pp_parent_wants_feed(pp_parent_t *h) {
    uintptr_t feeder = pp_load_seq_cst(&h->feeder);
    return pp_load_seq_cst(&h->must_feed) && (feeder == 0 || feeder == pp_this_thread());
}

/* Whether a leader has pending events: results, room for refused tasks, or a thread that wants to lead. */
bool pp_parent_has_news(pp_parent_t *h) {
    pp_shared_t *shared = h->segment->shared;
    PP_EACH_BIT(i, shared->replied, h->segment->n_workers)
        if (pp_worker_slot_has_replied(slot_of(h, i)))
            return true;
    return pp_load_seq_cst(&shared->has_room) != 0 || pp_lead_is_claimed(h);
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
void pp_parent_lead(pp_parent_t *h) {
    pp_store_seq_cst(&h->leader, 1);
    pp_store_seq_cst(&h->segment->shared->waiting, 0);
}

void pp_parent_step_down(pp_parent_t *h) {
    pp_shared_t *shared = h->segment->shared;
    pp_store_seq_cst(&h->leader, 0);
    pp_or_seq_cst(&shared->waiting, PP_BACKGROUND);
    if (pp_parent_has_news(h))
        ring(shared, PP_BACKGROUND);
}

/* Spins, as leader, while a result may arrive soon. False: there is no pending event, and the caller should park. */
bool pp_parent_spin(pp_parent_t *h) {
    bool has_news;
    pp_spin_begin(&h->spin, PP_SPIN_NS, PP_SPIN_SHORT_NS);
    while (!(has_news = pp_parent_has_news(h)) && pp_spin_once(&h->spin)) {}
    pp_spin_end(&h->spin, has_news);
    return has_news;
}

/* Sleeps, as leader, until there is a pending event, or until the bell differs from its value when the caller last
 * checked its other conditions. patient: many tasks are in flight, so first sleep PATIENCE_NS without asking to be
 * woken. Workers then run undisturbed, and one wake-up serves some hundred results instead of one or two. */
int pp_parent_park(pp_parent_t *h, uint32_t bell, int64_t deadline_ns, bool patient) {
    pp_shared_t *shared = h->segment->shared;
    if (pp_parent_has_news(h))
        return 0;
    if (patient) {
        int error = pp_futex_wait(&shared->bell, bell, pp_now_ns() + PATIENCE_NS, PP_FOREGROUND);
        if (error == EINTR || pp_parent_has_news(h))
            return error == EINTR ? EINTR : 0;
    }
    pp_or_seq_cst(&shared->waiting, PP_FOREGROUND);
    return pp_parent_has_news(h) ? 0 : pp_futex_wait(&shared->bell, bell, deadline_ns, PP_FOREGROUND);
}

/* Wakes the background thread, or prevents its next sleep. */
void pp_parent_notify(pp_parent_t *h) {
    pp_store_seq_cst(&h->notified, 1);
    ring(h->segment->shared, PP_BACKGROUND);
}

void pp_parent_rouse_leader(pp_parent_t *h) { ring(h->segment->shared, PP_FOREGROUND); }

/* The background thread sleeps here until it is notified, something happens to a worker, or results arrive while nobody
 * leads. */
int pp_parent_wait_background(pp_parent_t *h, int64_t deadline_ns) {
    pp_shared_t *shared = h->segment->shared;
    uint32_t bell = pp_load_seq_cst(&shared->bell);
    if (pp_swap_seq_cst(&h->notified, 0) || pp_load_seq_cst(&shared->events))
        return 0;
    if (pp_load_seq_cst(&h->leader) == 0) {
        pp_or_seq_cst(&shared->waiting, PP_BACKGROUND);
        if (pp_parent_has_news(h))
            return 0;
    }
    return pp_futex_wait(&shared->bell, bell, deadline_ns, PP_BACKGROUND);
}

/* ---- a worker ---- */

int pp_worker_init(pp_worker_t *e, pp_segment_t *s, unsigned worker) {
    if (worker >= s->n_workers)
        return EINVAL;
    *e = (pp_worker_t){.segment = s, .shared = s->shared, .own = pp_segment_worker(s, worker), .n_worker = worker};
    pp_store_relaxed(&e->own->pid, (uint32_t)getpid());
    return 0;
}

static bool claim_slot(pp_worker_t *e, pp_slot_t **out) {
    pp_shared_t *shared = e->shared;
    for (;;) {
        uint64_t head = pp_load_seq_cst(&shared->head), next = head;
        pp_slot_t *slot = &shared->slots[head & MASK];
        uint64_t state = pp_load_seq_cst(&slot->state);
        if (sequence_in(state) != head || tag_in(state) == FREE) {
            if (pp_load_seq_cst(&shared->head) == head)
                return false;
            continue;
        }
        bool mine = tag_in(state) == READY && pp_cas_seq_cst(&slot->state, &state, state_of(head, e->n_worker, CLAIMED));
        if (mine || tag_in(state) != READY)
            pp_cas_seq_cst(&shared->head, &next, head + 1);
        if (mine) {
            *out = slot;
            return true;
        }
    }
}

/* Whether a claim may succeed: there is a task, or there was one just before. */
static bool is_ready(pp_worker_t *e) {
    uint64_t head = pp_load_seq_cst(&e->shared->head);
    uint64_t state = pp_load_seq_cst(&e->shared->slots[head & MASK].state);
    return sequence_in(state) == head ? tag_in(state) != FREE : pp_load_seq_cst(&e->shared->head) != head;
}

bool pp_worker_claim(pp_worker_t *e, pp_slot_t *copy, void *payload) {
    pp_slot_t *slot;
    if (!claim_slot(e, &slot))
        return false;
    bool sought = pp_load_relaxed(&e->own->park) != PP_BUSY;
    if (sought)
        pp_store_seq_cst(&e->own->park, PP_BUSY);
    memcpy(&copy->job, &slot->job, sizeof *copy - offsetof(pp_slot_t, job));
    pp_store_relaxed(&e->own->job, copy->job);
    pp_store_relaxed(&e->own->index, copy->index);
    pp_store_relaxed(&e->own->block, copy->where == PP_IN_BLOCK ? ((pp_blockref_t *)copy->data)->id + 1 : 0);
    pp_store_relaxed(&e->own->begun_ns, copy->mode & PP_IS_TIMED ? (uint64_t)pp_now_ns() : 0);
    pp_store_release(&e->own->holds, 1);
    if (copy->where == PP_IN_RING)
        memcpy(payload, e->shared->task_ring + (copy->at & (PP_TASK_BYTES - 1)), copy->size);
    uint64_t sequence = sequence_in(pp_load_relaxed(&slot->state));
    if (pp_is_traced(e->shared))
        e->trace.put_ns = pp_load_relaxed(&e->shared->put_ns[sequence & MASK]);
    pp_store_seq_cst(&slot->state, state_of(sequence, e->n_worker, TAKEN));
    /* The parent counted on this seeking worker for every task that it had put, so pass that on by waking another. It
     * is not enough to check whether the next slot is READY. A busy worker may have claimed it without having advanced
     * the head, and will not check whether another task follows. */
    if (sought && is_ready(e))
        wake_for(e->segment, 1);
    note_over(e->shared, sequence);
    return true;
}

bool pp_worker_must_stop(pp_worker_t *e) { return pp_load_seq_cst(&e->shared->stop) == PP_STOP; }

void pp_pulse(pp_shared_t *shared) {
    if (pp_load_relaxed(&shared->is_watched)) {
        pp_add_seq_cst(&shared->pulse, 1);
        if (pp_load_seq_cst(&shared->n_awaiting))
            pp_futex_wake(&shared->pulse, INT32_MAX, UINT32_MAX);
    }
}

static int sleep_until_ready(pp_worker_t *e) {
    _Atomic uint32_t *park = &e->own->park;
    while (pp_load_seq_cst(park) == PP_ASLEEP) {
        if (is_ready(e)) {   /* published before our ASLEEP was seen: perhaps nobody wakes us */
            pp_store_seq_cst(park, PP_SEEKING);
            return 0;
        }
        if (pp_load_seq_cst(&e->shared->stop) != PP_RUN)
            return ECANCELED;
        int error = pp_futex_wait(park, PP_ASLEEP, e->deadline_ns ? e->deadline_ns : -1, UINT32_MAX);
        if (error == EINTR || error == ETIMEDOUT) {
            pp_store_seq_cst(park, PP_BUSY);   /* the caller may do something else first, so this worker cannot take tasks */
            if (is_ready(e))
                wake_for(e->segment, 1);
            return error;
        }
    }
    return !is_ready(e) && pp_load_seq_cst(&e->shared->stop) != PP_RUN ? ECANCELED : 0;
}

/* One worker that spins is enough: it wakes the others. */
static bool seek(pp_worker_t *e) {
    bool is_needed = !is_anyone_seeking(e->segment), is_found;
    pp_spin_begin(&e->spin, PP_SPIN_NS, PP_SPIN_SHORT_NS);
    pp_store_seq_cst(&e->own->park, PP_SEEKING);
    if (is_needed)
        note_seeker(e->shared, e->n_worker);
    while (!(is_found = is_ready(e)) && is_needed && pp_spin_once(&e->spin)) {}
    if (is_needed)
        pp_spin_end(&e->spin, is_found);
    return is_found;
}

/* Enforcers see this worker as idle from the end of its spinning until it wakes. */
int pp_worker_wait(pp_worker_t *e) {
    if (seek(e))
        return 0;
    pp_bit_set(e->shared->asleep, e->n_worker);
    pp_store_seq_cst(&e->own->park, PP_ASLEEP);
    pp_budget_leave(&e->segment->budget);
    pp_pulse(e->shared);
    bool is_traced = pp_is_traced(e->shared);
    int64_t slept_ns = is_traced ? -pp_now_ns() : 0;
    if (is_traced)
        pp_trace_budget(e);
    int error = sleep_until_ready(e);
    pp_bit_clear(e->shared->asleep, e->n_worker);
    pp_budget_enter(&e->segment->budget);
    pp_pulse(e->shared);
    if (is_traced)
        e->trace.slept_ns += (uint64_t)(slept_ns + pp_now_ns());
    if (pp_is_traced(e->shared))
        pp_trace_budget(e);
    return error;
}

void pp_worker_copied(pp_worker_t *e, const pp_slot_t *slot, bool is_kept) {
    pp_store_relaxed(&e->own->block, 0);
    if (!is_kept)
        pp_block_release(e->segment, 0, ((const pp_blockref_t *)slot->data)->id);
}

static bool has_room(pp_worker_slot_t *l, uint64_t n_bytes) {
    return pp_load_relaxed(&l->tail) + n_bytes - pp_load_seq_cst(&l->head) <= PP_RESULT_BYTES;
}

int pp_worker_reply(pp_worker_t *e, const pp_frame_t *frame, const void *payload) {
    pp_worker_slot_t *l = e->own;
    uint64_t tail = pp_load_relaxed(&l->tail);
    uint32_t at = tail & (PP_RESULT_BYTES - 1), size = align8((uint32_t)sizeof *frame + frame->size);
    uint32_t pad = at + size > PP_RESULT_BYTES ? PP_RESULT_BYTES - at : 0;
    if (!has_room(l, (uint64_t)pad + size))
        return EAGAIN;
    if (pad) {
        memcpy(l->ring + at, &(uint32_t[2]){pad, PAD}, 8);
        at = 0;
    }
    memcpy(l->ring + at, frame, sizeof *frame);
    memcpy(l->ring + at, &size, sizeof size);
    memcpy(l->ring + at + sizeof *frame, payload, frame->size);
    pp_store_seq_cst(&l->tail, tail + pad + size);
    if (!has_few_workers(e->segment) && pp_load_seq_cst(&l->head) == tail)
        pp_bit_set(e->shared->replied, e->n_worker);   /* otherwise the leader still has to take an older result: README.md, 3 */
    pp_ring(e->shared, false);
    return 0;
}

/* Waits until half the ring is free: the largest frame with its padding needs this much, and an empty ring always has
 * it. */
int pp_worker_wait_room(pp_worker_t *e) {
    pp_worker_slot_t *l = e->own;
    pp_store_seq_cst(&l->full, 1);
    while (pp_load_seq_cst(&l->full) && !has_room(l, 2 * (PP_INLINE_MAX + sizeof(pp_frame_t)))) {
        if (pp_worker_must_stop(e))
            return ECANCELED;
        pp_ring(e->shared, false);
        pp_futex_wait(&l->full, 1, -1, UINT32_MAX);
    }
    pp_store_seq_cst(&l->full, 0);
    return 0;
}

void pp_worker_finish(pp_worker_t *e) {
    pp_store_release(&e->own->holds, 0);
    pp_store_release(&e->own->n_done, pp_load_relaxed(&e->own->n_done) + 1);   /* later: see is_result_taken */
}

void pp_worker_state(pp_worker_t *e, pp_worker_state_t state) {
    pp_store_seq_cst(&e->own->state, state);
    pp_notify_all(e->shared);
    pp_pulse(e->shared);   /* a worker that finds work at once never sleeps, but is active all the same */
}
