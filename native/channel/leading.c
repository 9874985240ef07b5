/* Who takes results: the leader/followers pattern.
 *
 * Of all threads that wait for a result one is the *leader*: it takes results out of the channel, for all. The others are
 * *followers* and sleep, each on a word of its own, until their result is there or the lead is handed to them. When the
 * leader has what it wants it hands the lead to the first follower of the list; without one it steps down, and the background
 * thread takes results (pp_parent_step_down). So a round trip needs no thread but the caller's and the worker's.
 *
 * The mutex guards the list of followers and the owner of the lead. It is held for some instructions and never while its
 * holder waits for anything, Python's locks included; Python's signal handlers never run under it.
 */
#include "native.h"

#include <errno.h>

enum { WOKEN = 1, LEADS = 2, STATE = 0xff };   /* the rest of a waiter's word counts what has roused it, see interrupts.c */

#ifndef PP_SCHEDULE   /* there the scheduler knows which of its actors runs */
uintptr_t pp_this_thread(void) {
    return (uintptr_t)pthread_self();
}
#endif

void pp_leading_init(pp_leading_t *l) {
    *l = (pp_leading_t){0};
    pthread_mutex_init(&l->mutex, NULL);
}

static void append(pp_leading_t *l, pp_waiter_t *w) {
    w->previous = l->last;
    *(l->last ? &l->last->next : &l->first) = w;
    l->last = w;
}

static void prepend(pp_leading_t *l, pp_waiter_t *w) {
    w->next = l->first;
    *(l->first ? &l->first->previous : &l->last) = w;
    l->first = w;
}

static void unlink_waiter(pp_leading_t *l, pp_waiter_t *w) {
    *(w->previous ? &w->previous->next : &l->first) = w->next;
    *(w->next ? &w->next->previous : &l->last) = w->previous;
    w->next = w->previous = NULL;
    w->is_listed = false;
}

static void tell(pp_waiter_t *w, uint32_t state) {
    pp_or_seq_cst(&w->word, state);
    pp_futex_wake(&w->word, 1, UINT32_MAX);
}

bool pp_lead_is_mine(pp_parent_t *h) { return pp_load_seq_cst(&h->leading.leader) == pp_this_thread(); }

/* With the mutex, while nobody leads. After a pause the workers still believe that somebody does. */
static void take(pp_parent_t *h, uintptr_t thread) {
    pp_leading_t *l = &h->leading;
    pp_store_seq_cst(&l->leader, thread);
    if (!l->is_paused)
        pp_parent_lead(h);
    l->is_paused = false;
}

/* With the mutex: the follower that has waited longest leads now; false if there is none. */
static bool hand_over(pp_leading_t *l) {
    pp_waiter_t *next = l->first;
    pp_store_seq_cst(&l->awaited, NULL);
    pp_store_seq_cst(&l->leader, next ? next->thread : 0);
    if (next) {
        unlink_waiter(l, next);
        tell(next, LEADS);
    }
    return next != NULL;
}

bool pp_lead_try(pp_parent_t *h) {
    pp_leading_t *l = &h->leading;
    uintptr_t me = pp_this_thread();
    if (pp_load_seq_cst(&l->leader) == me)
        return true;
    pthread_mutex_lock(&l->mutex);
    bool is_free = pp_load_relaxed(&l->leader) == 0;
    if (is_free)
        take(h, me);
    pthread_mutex_unlock(&l->mutex);
    return is_free;
}

/* A follower that is told to lead may time out at the same moment: it finds in pp_follow_end that the lead is its own. */
void pp_lead_release(pp_parent_t *h) {
    pp_leading_t *l = &h->leading;
    pthread_mutex_lock(&l->mutex);
    uintptr_t leader = pp_load_relaxed(&l->leader);
    if (leader == pp_this_thread() || (leader == 0 && l->is_paused)) {
        l->is_paused = false;
        if (!hand_over(l))
            pp_parent_step_down(h);   /* under the mutex: after it, somebody else may lead already */
    }
    pthread_mutex_unlock(&l->mutex);
}

/* The leader runs code that may wait for a thread which itself waits for a result: others may lead meanwhile. If nobody does, the
 * background thread is not told, and no result wakes it: the caller leads again in a moment, or calls pp_lead_release. */
void pp_lead_pause(pp_parent_t *h) {
    pp_leading_t *l = &h->leading;
    if (!pp_lead_is_mine(h))
        return;
    pthread_mutex_lock(&l->mutex);
    l->is_paused = !hand_over(l);
    pthread_mutex_unlock(&l->mutex);
}

/* Says what the leader itself waits for. It does so before it looks whether that has come, see pp_wake_waiters. */
void pp_lead_for(pp_parent_t *h, const void *awaited) { pp_store_seq_cst(&h->leading.awaited, awaited); }

bool pp_lead_is_claimed(const pp_parent_t *h) { return pp_load_seq_cst(&h->leading.n_claims) > 0; }

static void enlist(pp_leading_t *l, pp_waiter_t *w, bool is_first) {
    w->thread = pp_this_thread();
    w->is_listed = true;
    (is_first ? prepend : append)(l, w);
}

/* Waits until the caller leads: the present leader hands over before its next batch of results. If the caller leads already it
 * returns at once. */
void pp_lead_claim(pp_parent_t *h) {
    pp_leading_t *l = &h->leading;
    if (pp_lead_try(h))
        return;
    pp_waiter_t w = {0};
    pthread_mutex_lock(&l->mutex);
    enlist(l, &w, true);
    pp_add_seq_cst(&l->n_claims, 1);   /* whoever sees this finds us listed: else it would give up the lead and take it, again and again */
    pthread_mutex_unlock(&l->mutex);
    pp_parent_rouse_leader(h);
    for (;;) {
        uint32_t word = pp_load_seq_cst(&w.word);
        if (word & LEADS)
            break;
        if (pp_lead_take_over(h, &w))   /* the leader was gone before it saw the claim */
            break;
        pp_futex_wait(&w.word, word, -1, UINT32_MAX);
    }
    pp_add_seq_cst(&l->n_claims, -1);
}

/* For a listed waiter: leads if nobody does. */
bool pp_lead_take_over(pp_parent_t *h, pp_waiter_t *w) {
    pp_leading_t *l = &h->leading;
    pthread_mutex_lock(&l->mutex);
    bool is_free = pp_load_relaxed(&l->leader) == 0;
    if (is_free) {
        unlink_waiter(l, w);
        take(h, w->thread);
    }
    pthread_mutex_unlock(&l->mutex);
    return is_free;
}

/* The caller becomes a follower, unless it could lead (false). It looks once more for what it waits for before it sleeps. */
bool pp_follow_begin(pp_parent_t *h, pp_waiter_t *w, const void *awaited) {
    pp_leading_t *l = &h->leading;
    w->awaited = awaited;
    pthread_mutex_lock(&l->mutex);
    bool follows = pp_load_relaxed(&l->leader) != 0;
    if (follows)
        enlist(l, w, false);
    pthread_mutex_unlock(&l->mutex);
    return follows;
}

/* 0: the result may be there, or the caller leads; ETIMEDOUT; EINTR: a signal came since the waiter was made. */
int pp_follow_wait(pp_waiter_t *w, int64_t deadline_ns) {
    for (;;) {
        uint32_t word = pp_load_seq_cst(&w->word);
        if (word & STATE)
            return 0;
        if (word != 0)
            return EINTR;
        int error = pp_futex_wait(&w->word, 0, deadline_ns, UINT32_MAX);
        if (error)
            return error;
    }
}

void pp_follow_end(pp_parent_t *h, pp_waiter_t *w) {
    pp_leading_t *l = &h->leading;
    pthread_mutex_lock(&l->mutex);
    if (w->is_listed)
        unlink_waiter(l, w);
    pthread_mutex_unlock(&l->mutex);
}

/* Wakes the threads that wait for something that has come. The caller has stored that before; a follower lists itself, and a leader says
 * what it waits for, before it looks: so one of the two sees the other's. */
void pp_wake_waiters(pp_parent_t *h, const void *awaited) {
    pp_leading_t *l = &h->leading;
    pthread_mutex_lock(&l->mutex);
    for (pp_waiter_t *w = l->first; w; w = w->next)
        if (w->awaited == awaited)
            tell(w, WOKEN);
    uintptr_t leader = pp_load_relaxed(&l->leader);
    bool is_for_leader = leader != 0 && leader != pp_this_thread() && pp_load_seq_cst(&l->awaited) == awaited;
    pthread_mutex_unlock(&l->mutex);
    if (is_for_leader)
        pp_parent_rouse_leader(h);
}
