/* The interpreters that are kept for the next pool (`reuse=True`): each waits in its thread until it gets a job.
 *
 * A job is the part of a worker that belongs to one pool (interp.c). Whoever takes an interpreter gives it the job of a
 * new pool. Whoever ends one gives it a job that has nothing to run. The entries lie on the stacks of the threads that
 * wait, so they are used under the mutex only, and no entry is used after it has its job.
 */
#include "python.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards what follows, and the entries */
static pp_kept_t *newest;           /* a list; the next older one is `next` */
static unsigned n_kept, n_most;     /* n_most: the workers of the largest pool that kept any */
static _Atomic uint32_t n_leaving;  /* futex word: interpreters that were told to end here and have not ended */

static bool is_of(const pp_kept_t *k, const pp_key_t *key) {
    return k->key->owner == key->owner && k->key->size == key->size && memcmp(k->key->bytes, key->bytes, key->size) == 0;
}

static void give(pp_kept_t **at, void *job) {
    pp_kept_t *k = *at;
    *at = k->next;
    n_kept--;
    k->job = job;
    pthread_cond_signal(&k->told);
}

static pp_kept_t **oldest(void) {
    pp_kept_t **at = &newest;
    while ((*at)->next)
        at = &(*at)->next;
    return at;
}

static void send_away(pp_kept_t **at, void *(*nothing)(void)) {
    void *job = nothing();
    if (job) {
        pp_add_seq_cst(&n_leaving, 1);
        give(at, job);
    }
}

void pp_kept_add(pp_kept_t *k, unsigned n_workers, void *(*nothing)(void)) {
    pthread_cond_init(&k->told, NULL);
    pthread_mutex_lock(&mutex);
    n_most = n_workers > n_most ? n_workers : n_most;
    if (n_kept >= n_most)
        send_away(oldest(), nothing);
    k->next = newest;
    newest = k;
    n_kept++;
    pthread_mutex_unlock(&mutex);
}

void *pp_kept_wait(pp_kept_t *k) {
    pthread_mutex_lock(&mutex);
    while (k->job == NULL)
        pthread_cond_wait(&k->told, &mutex);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&k->told);
    return k->job;
}

bool pp_kept_take(const pp_key_t *key, void *job) {
    pthread_mutex_lock(&mutex);
    pp_kept_t **at = &newest;
    while (*at && !is_of(*at, key))
        at = &(*at)->next;
    bool found = *at != NULL;
    if (found)
        give(at, job);
    pthread_mutex_unlock(&mutex);
    return found;
}

unsigned pp_kept_count(int64_t owner) {
    unsigned n = 0;
    pthread_mutex_lock(&mutex);
    for (const pp_kept_t *k = newest; k; k = k->next)
        n += k->key->owner == owner;
    pthread_mutex_unlock(&mutex);
    return n;
}

_Atomic uint32_t *pp_kept_end(int64_t owner, void *(*nothing)(void)) {
    pthread_mutex_lock(&mutex);
    for (pp_kept_t **at = &newest, *k = *at; k; k = *at) {
        if (k->key->owner == owner)
            send_away(at, nothing);
        if (*at == k)
            at = &k->next;
    }
    pthread_mutex_unlock(&mutex);
    return &n_leaving;
}

void pp_kept_has_left(void) {
    pp_add_seq_cst(&n_leaving, (uint32_t)-1);
    pp_futex_wake(&n_leaving, INT32_MAX, UINT32_MAX);
}

/* The interpreters, and the threads that wait in them, are the parent's. */
void pp_kept_after_fork_in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    newest = NULL;
    n_kept = 0;
    pp_store_seq_cst(&n_leaving, 0);
}
