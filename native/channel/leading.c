/* Which thread takes results: the leader/followers pattern.
 *
 * One of the threads that wait for results is the *leader*: it takes results out of the channel for all. The others are
 * *followers*. Each sleeps on a word of its own until its result has come or it is made leader. When the leader has its
 * result it hands the lead to the first follower. If there is none it steps down, and the background thread takes
 * results (pp_parent_step_down). So a round trip needs only the caller's and the worker's threads.
 *
 * The mutex guards the list of followers and the owner of the lead. It is held for a few instructions. Its holder never
 * waits for anything, not even for the GIL, and no Python signal handler runs under it.
 */
#include "native.h"

#include <errno.h>

enum { WOKEN = 1, LEADS = 2, STATE = 0xff };   /* the other bits of a waiter's word count wake-ups by signals; see interrupts.c */

#ifndef PP_SCHEDULE   /* otherwise the scheduler says which of its actors runs */
uintptr_t pp_this_thread(void) {
    return (uintptr_t)pthread_self();
}
#endif

void pp_leading_init(pp_leading_t *leading) {
    *leading = (pp_leading_t){0};
    pthread_mutex_init(&leading->mutex, NULL);
}

static void append_waiter(pp_leading_t *leading, pp_waiter_t *w) {
    w->previous = leading->last;
    *(leading->last ? &leading->last->next : &leading->first) = w;
    leading->last = w;
}

static void prepend_waiter(pp_leading_t *leading, pp_waiter_t *w) {
    w->next = leading->first;
    *(leading->first ? &leading->first->previous : &leading->last) = w;
    leading->first = w;
}

static void unlink_waiter(pp_leading_t *leading, pp_waiter_t *w) {
    *(w->previous ? &w->previous->next : &leading->first) = w->next;
    *(w->next ? &w->next->previous : &leading->last) = w->previous;
    w->next = w->previous = NULL;
    w->is_listed = false;
}

static void tell_waiter(pp_waiter_t *w, uint32_t state) {
    pp_or_seq_cst(&w->word, state);
    pp_futex_wake(&w->word, 1, UINT32_MAX);
}

bool pp_lead_is_mine(pp_parent_t *parent) { return pp_load_seq_cst(&parent->leading.leader) == pp_this_thread(); }

/* Takes the lead. Called with the mutex, while nobody leads. After a pause workers still believe that there is a
 * leader. */
static void take(pp_parent_t *parent, uintptr_t thread) {
    pp_leading_t *leading = &parent->leading;
    PP_ASSERT(PP_PEEK(&leading->leader) == 0 && thread != 0);
    pp_store_seq_cst(&leading->leader, thread);
    if (!leading->is_paused)
        pp_parent_lead(parent);
    leading->is_paused = false;
}

/* Makes the follower that has waited longest the leader. Called with the mutex. False: there is none. */
static bool hand_lead_over(pp_leading_t *leading) {
    pp_waiter_t *next = leading->first;
    PP_ASSERT(PP_PEEK(&leading->leader) == pp_this_thread() || (PP_PEEK(&leading->leader) == 0 && !leading->is_paused));
    PP_ASSERT(next == NULL || (next->is_listed && next->thread != pp_this_thread()));
    pp_store_seq_cst(&leading->awaited, NULL);
    pp_store_seq_cst(&leading->leader, next ? next->thread : 0);
    if (next) {
        unlink_waiter(leading, next);
        tell_waiter(next, LEADS);
    }
    return next != NULL;
}

bool pp_lead_try(pp_parent_t *parent) {
    pp_leading_t *leading = &parent->leading;
    uintptr_t me = pp_this_thread();
    if (pp_load_seq_cst(&leading->leader) == me)
        return true;
    pthread_mutex_lock(&leading->mutex);
    bool is_free = pp_load_relaxed(&leading->leader) == 0;
    if (is_free)
        take(parent, me);
    pthread_mutex_unlock(&leading->mutex);
    return is_free;
}

/* Gives up the lead. A follower that is made leader may time out at the same moment: pp_follow_end tells it that it
 * leads. */
void pp_lead_release(pp_parent_t *parent) {
    pp_leading_t *leading = &parent->leading;
    pthread_mutex_lock(&leading->mutex);
    uintptr_t leader = pp_load_relaxed(&leading->leader);
    if (leader == pp_this_thread() || (leader == 0 && leading->is_paused)) {
        leading->is_paused = false;
        if (!hand_lead_over(leading))
            pp_parent_step_down(parent);   /* under the mutex: after it another thread may lead already */
    }
    pthread_mutex_unlock(&leading->mutex);
}

/* The leader is about to run code that may wait for a thread that itself waits for a result. Others may lead meanwhile.
 * If nobody does, the background thread is not told and no result wakes it, so the caller must soon lead again or call
 * pp_lead_release. */
void pp_lead_pause(pp_parent_t *parent) {
    pp_leading_t *leading = &parent->leading;
    if (!pp_lead_is_mine(parent))
        return;
    pthread_mutex_lock(&leading->mutex);
    leading->is_paused = !hand_lead_over(leading);
    pthread_mutex_unlock(&leading->mutex);
}

/* Stores what the leader itself waits for. It does so before it checks whether that has come; see pp_wake_waiters. */
void pp_lead_for(pp_parent_t *parent, const void *awaited) { pp_store_seq_cst(&parent->leading.awaited, awaited); }

bool pp_lead_is_claimed(const pp_parent_t *parent) { return pp_load_seq_cst(&parent->leading.n_claims) > 0; }

static void enlist_waiter(pp_leading_t *leading, pp_waiter_t *w, bool is_first) {
    w->thread = pp_this_thread();
    w->is_listed = true;
    (is_first ? prepend_waiter : append_waiter)(leading, w);
}

/* Waits until the caller leads: the present leader hands over before its next batch of results. Returns at once if the
 * caller leads already. */
void pp_lead_claim(pp_parent_t *parent) {
    pp_leading_t *leading = &parent->leading;
    if (pp_lead_try(parent))
        return;
    pp_waiter_t w = {0};
    pthread_mutex_lock(&leading->mutex);
    enlist_waiter(leading, &w, true);
    /* After listing: a leader that saw the claim, but not us in the list, would give up the lead and retake it, over and
     * over. */
    pp_add_seq_cst(&leading->n_claims, 1);
    pthread_mutex_unlock(&leading->mutex);
    pp_parent_wake_leader(parent);
    for (;;) {
        uint32_t word = pp_load_seq_cst(&w.word);
        if (word & LEADS)
            break;
        if (pp_lead_take_over(parent, &w))   /* the leader had gone before it saw the claim */
            break;
        pp_futex_wait(&w.word, word, -1, UINT32_MAX);
    }
    pp_add_seq_cst(&leading->n_claims, -1);
}

/* Makes a listed waiter the leader if there is none. */
bool pp_lead_take_over(pp_parent_t *parent, pp_waiter_t *w) {
    pp_leading_t *leading = &parent->leading;
    pthread_mutex_lock(&leading->mutex);
    bool is_free = pp_load_relaxed(&leading->leader) == 0;
    if (is_free) {
        unlink_waiter(leading, w);
        take(parent, w->thread);
    }
    pthread_mutex_unlock(&leading->mutex);
    return is_free;
}

/* Makes the caller a follower, unless nobody leads (false). The caller then checks once more for its result before it
 * sleeps. */
bool pp_follow_begin(pp_parent_t *parent, pp_waiter_t *w, const void *awaited) {
    pp_leading_t *leading = &parent->leading;
    w->awaited = awaited;
    pthread_mutex_lock(&leading->mutex);
    bool follows = pp_load_relaxed(&leading->leader) != 0;
    if (follows)
        enlist_waiter(leading, w, false);
    pthread_mutex_unlock(&leading->mutex);
    return follows;
}

/* 0: the result may have come, or the caller leads; ETIMEDOUT; EINTR: a signal came since the waiter was created. */
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

void pp_follow_end(pp_parent_t *parent, pp_waiter_t *w) {
    pp_leading_t *leading = &parent->leading;
    pthread_mutex_lock(&leading->mutex);
    if (w->is_listed)
        unlink_waiter(leading, w);
    pthread_mutex_unlock(&leading->mutex);
}

/* Wakes the threads that wait for something that has come, which the caller has stored before. A follower lists itself
 * before it checks, and a leader stores what it waits for before it checks. So either the waiter sees the result, or
 * this sees the waiter. */
void pp_wake_waiters(pp_parent_t *parent, const void *awaited) {
    pp_leading_t *leading = &parent->leading;
    pthread_mutex_lock(&leading->mutex);
    for (pp_waiter_t *w = leading->first; w; w = w->next)
        if (w->awaited == awaited)
            tell_waiter(w, WOKEN);
    uintptr_t leader = pp_load_relaxed(&leading->leader);
    bool is_for_leader = leader != 0 && leader != pp_this_thread() && pp_load_seq_cst(&leading->awaited) == awaited;
    pthread_mutex_unlock(&leading->mutex);
    if (is_for_leader)
        pp_parent_wake_leader(parent);
}
