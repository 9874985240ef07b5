/* Memory in which values may lie, reference-counted within a process.
 *
 * A *retained block* (`kept`) is a payload that its receiver uses in place and may write to. A block has one receiver,
 * and its owner does not access it until it is released, when the last value in it goes. A forked child must not share
 * it. Before each fork, retained blocks are therefore remapped copy-on-write at the same addresses, copied page by page
 * by the kernel, and released; from then on they are private memory. A thread that writes meanwhile writes either to
 * the file before the copy, or to the copy. This needs the descriptor, which stays open after the segment is closed,
 * until no block is retained. Releasing a block then gives its part of the file back. At most CLOSED_MAX segments stay
 * open like this; blocks of others are copied when they close.
 *
 * *Shared memory* is a memfd, made by `share`. It is named by a random number, which it contains; its descriptor reaches
 * other processes through links (links.c). Nothing has to be unlinked: the memory goes with its last descriptor and
 * mapping, however processes end.
 *
 * A *loan* is an object of this process on its way to another thread, which becomes its owner by taking it. If nobody
 * takes it, it is dropped once its block is released.
 *
 * *Moved memory* was made by an allocator of this process, which still has its addresses, but with other pages: those
 * that were there are here now. So it belongs to whoever has a reference, and to no interpreter.
 */
#include "native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEPT_MAX 16384u     /* mappings of retained blocks per process; a quarter of vm.max_map_count's default */
#define CLOSED_MAX 64u       /* guess: few, compared with the usual limit of 1,024 descriptors */
#define HEADER_BYTES 4096u   /* the random number, then unused: shared data is aligned for every use */

struct pp_memory {
    _Atomic long refs;
    char *start;           /* the start of what users see */
    size_t size;
    bool is_shared, is_readonly, is_released;
    bool is_passed;        /* shared, in a worker process: its parent has it as well; guarded by the worker's link */
    pp_segment_t *segment; /* a retained block: its segment */
    unsigned arena;
    uint32_t block;
    uint64_t at;
    pp_memory_t *base;     /* a common block: the retained block of the task that names it */
    int fd;                /* shared: our own descriptor, and the number of its file: a program may have closed it */
    uint64_t file_number;
    unsigned char id[PP_SHARE_ID];
    pp_memory_t *next, **link;
    _Atomic(void *) lent;  /* a loan: the object, until somebody takes it */
    void (*drop)(void *);  /* a loan: drops an object that nobody took */
};

/* Guards the list, `is_released`, and the segments' `is_closed`, `n_kept` and closing of `fd`. No other lock of ours is
 * taken under it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pp_memory_t *all;
static unsigned n_closed;   /* segments of which only the descriptor is open */
static _Atomic unsigned n_shared, n_kept;
static _Atomic bool cannot_move;   /* the kernel has refused to move pages once */

static void enlist_memory(pp_memory_t *m) {
    m->next = all;
    m->link = &all;
    if (all)
        all->link = &m->next;
    all = m;
}

static void delist(pp_memory_t *m) {
    *m->link = m->next;
    if (m->next)
        m->next->link = m->link;
}

/* ---- retained blocks ---- */

/* A retained block is lost to its owner meanwhile. In an arena that RLIMIT_FSIZE has made small it is too large a part. */
static bool may_keep(pp_segment_t *s, unsigned arena) {
    uint32_t n_max = PP_BLOCKS / 2 / (arena == 0 ? s->n_workers : 1);
    return s->arena_bytes == PP_ARENA_BYTES && pp_load_relaxed(&n_kept) < KEPT_MAX && pp_load_relaxed(&s->windows[arena].n_kept) < n_max;
}

/* An object for a mapping. On NULL (no memory) the mapping is undone. */
static pp_memory_t *new_kept(pp_segment_t *s, const pp_blockref_t *ref, void *start) {
    pp_memory_t *m = calloc(1, sizeof *m);
    if (m == NULL) {
        pp_unmap(start, ref->size);
        return NULL;
    }
    *m = (pp_memory_t){.refs = 1, .start = start, .size = ref->size, .segment = pp_segment_ref(s), .at = ref->at, .fd = -1};
    pp_add_seq_cst(&n_kept, 1);
    return m;
}

int pp_memory_keep(pp_segment_t *s, unsigned arena, const pp_blockref_t *ref, uint32_t keeper, pp_memory_t **out) {
    void *start;
    if (!may_keep(s, arena))
        return EMFILE;
    int error = pp_segment_map(s, ref->at, ref->size, &start);
    if (error)
        return error;
    pp_memory_t *m = new_kept(s, ref, start);
    if (m == NULL)
        return ENOMEM;
    m->arena = arena;
    m->block = ref->id;
    pp_add_seq_cst(&s->windows[arena].n_kept, 1);
    pp_store_seq_cst(&pp_segment_flags(s, arena)->in_use[ref->id], keeper);
    pthread_mutex_lock(&mutex);
    enlist_memory(m);
    s->n_kept++;
    pthread_mutex_unlock(&mutex);
    *out = m;
    return 0;
}

/* Several receivers may retain a block in common. Its owner releases it once all blocks that name it are released, so
 * each object for it retains one of those as well. */
int pp_memory_keep_common(pp_memory_t *kept, const pp_blockref_t *ref, pp_memory_t **out) {
    void *start;
    if (pp_load_relaxed(&n_kept) >= KEPT_MAX)
        return EMFILE;
    int error = !pp_segment_has_file(kept->segment) ? EBADF : pp_map_private(kept->segment->fd, ref->at, ref->size, &start);
    if (error)
        return error;
    pp_memory_t *m = new_kept(kept->segment, ref, start);
    if (m == NULL)
        return ENOMEM;
    m->base = pp_memory_ref(kept);
    pthread_mutex_lock(&mutex);
    enlist_memory(m);
    pthread_mutex_unlock(&mutex);
    *out = m;
    return 0;
}

static void close_file(pp_segment_t *s) {
    if (pp_segment_has_file(s))
        close(s->fd);
    s->fd = -1;
}

/* Called with the mutex, as the segment may be closed at any time. */
static void release_block(pp_memory_t *m) {
    pp_segment_t *s = m->segment;
    m->is_released = true;
    if (m->base)
        return;
    s->n_kept--;
    if (!s->is_closed) {
        pp_add_seq_cst(&s->windows[m->arena].n_kept, -1);
        pp_block_release(s, m->arena, m->block);
        return;
    }
    pp_segment_punch_hole(s, m->at, m->size);
    if (s->n_kept == 0) {
        n_closed--;
        close_file(s);
    }
}

/* s NULL: any segment. */
static bool is_kept_of(const pp_memory_t *m, const pp_segment_t *s) {
    return m->segment && !m->is_released && (s == NULL || m->segment == s);
}

/* A program may have closed descriptors that are not its own. Then nothing can be copied, the block stays in use, and a
 * forked child shares its memory. Common blocks are mapped copy-on-write from the start. */
static void copy_pages(pp_memory_t *m) {
    if (m->base || (pp_segment_has_file(m->segment) && pp_map_over(m->segment->fd, m->at, m->size, m->start) == 0))
        pp_make_private(m->start, m->size);
    else
        m->is_released = true;
}

/* Makes the retained blocks of one segment, or of all (NULL), private memory. Called with the mutex. */
static void make_kept_private(const pp_segment_t *s) {
    for (pp_memory_t *m = all; m; m = m->next)
        if (is_kept_of(m, s))
            copy_pages(m);
    for (pp_memory_t *m = all; m; m = m->next)
        if (is_kept_of(m, s))
            release_block(m);
}

static int by_address(const void *a, const void *b) {
    uint64_t x = ((const pp_blockref_t *)a)->at, y = ((const pp_blockref_t *)b)->at;
    return x < y ? -1 : x > y;
}

/* The file lives as long as any mapping of it, so the memory between retained blocks must be given back. Without
 * retained blocks the file goes by itself. */
static void keep_nothing_else(pp_segment_t *s) {
    size_t n = 0, i = 0;
    for (pp_memory_t *m = all; m; m = m->next)
        n += is_kept_of(m, s);
    pp_blockref_t *refs = n > 0 ? malloc(n * sizeof *refs) : NULL;
    if (refs == NULL)
        return;
    for (pp_memory_t *m = all; m; m = m->next)
        if (is_kept_of(m, s))
            refs[i++] = (pp_blockref_t){.at = m->at, .size = m->size};
    qsort(refs, n, sizeof *refs, by_address);
    uint64_t at = 0, end = pp_segment_arena_at(s, 1 + s->n_workers);
    for (i = 0; i < n; i++) {
        if (refs[i].at > at)
            pp_segment_punch_hole(s, at, refs[i].at - at);
        at = refs[i].at + pp_whole_pages(refs[i].size);
    }
    pp_segment_punch_hole(s, at, end - at);
    free(refs);
}

/* Holds the mutex throughout: a thread that releases a block finds the segment either untouched or closed. */
bool pp_memory_close(pp_segment_t *s) {
    pthread_mutex_lock(&mutex);
    bool is_first = !s->is_closed;
    if (is_first) {
        if (n_closed >= CLOSED_MAX)
            make_kept_private(s);
        keep_nothing_else(s);
        s->is_closed = true;
        if (s->n_kept > 0)
            n_closed++;
        else
            close_file(s);
    }
    pthread_mutex_unlock(&mutex);
    return is_first;
}

/* ---- shared memory ---- */

static int share_new(int fd, size_t size, bool readonly, pp_memory_t **out) {
    pp_memory_t *m = calloc(1, sizeof *m);
    void *start;
    int error = m ? readonly ? pp_map_readonly(fd, HEADER_BYTES + size, &start) : pp_map(fd, 0, HEADER_BYTES + size, &start) : ENOMEM;
    if (error) {
        free(m);
        return error;
    }
    *m = (pp_memory_t){.refs = 1, .start = (char *)start + HEADER_BYTES, .size = size, .is_shared = true,
                       .is_readonly = readonly, .fd = fd, .file_number = pp_file_number(fd)};
    memcpy(m->id, start, PP_SHARE_ID);
    *out = m;
    return 0;
}

static bool has_own_file(const pp_memory_t *m) { return pp_file_number(m->fd) == m->file_number; }

static void share_free(pp_memory_t *m) {
    pp_unmap(m->start - HEADER_BYTES, m->size + HEADER_BYTES);
    if (has_own_file(m))
        close(m->fd);
    free(m);
}

int pp_memory_share(size_t size, pp_memory_t **out) {
    int fd;
    unsigned char id[PP_SHARE_ID];
    int error = pp_random(id, sizeof id);
    if (!error)
        error = pp_memfd("pool_party_share", HEADER_BYTES + size, &fd);
    if (error)
        return error;
    if ((error = share_new(fd, size, false, out)) != 0) {
        close(fd);
        return error;
    }
    memcpy((*out)->start - HEADER_BYTES, id, sizeof id);
    memcpy((*out)->id, id, sizeof id);
    pthread_mutex_lock(&mutex);
    enlist_memory(*out);
    pthread_mutex_unlock(&mutex);
    pp_add_seq_cst(&n_shared, 1);
    return 0;
}

void pp_memory_protect(pp_memory_t *m) {
    m->is_readonly = true;
    pp_protect(m->start - HEADER_BYTES, m->size + HEADER_BYTES);
}

/* Called with the mutex: memory whose last reference is going is not found. */
static pp_memory_t *find_id(const unsigned char *id, bool readonly, bool any) {
    for (pp_memory_t *m = all; m; m = m->next)
        if (m->is_shared && (any || m->is_readonly == readonly) && memcmp(m->id, id, PP_SHARE_ID) == 0) {
            pp_add_seq_cst(&m->refs, 1);
            return m;
        }
    return NULL;
}

static pp_memory_t *find_attached(const unsigned char *id, bool readonly) {
    pthread_mutex_lock(&mutex);
    pp_memory_t *m = find_id(id, readonly, false);
    pthread_mutex_unlock(&mutex);
    return m;
}

pp_memory_t *pp_memory_known(const unsigned char *id) {
    pthread_mutex_lock(&mutex);
    pp_memory_t *m = find_id(id, false, true);
    pthread_mutex_unlock(&mutex);
    return m;
}

int pp_memory_fd(const pp_memory_t *m) { return has_own_file(m) ? m->fd : -1; }

int pp_memory_adopt(int fd, const unsigned char *id, bool readonly, pp_memory_t **out) {
    struct stat status;
    pp_memory_t *m = NULL;
    int error = fstat(fd, &status) != 0 || (uint64_t)status.st_size < HEADER_BYTES ? ESTALE : 0;
    if (!error)
        error = share_new(fd, (size_t)status.st_size - HEADER_BYTES, readonly, &m);
    if (error) {
        close(fd);
        return error;
    }
    if (memcmp(m->id, id, PP_SHARE_ID) != 0) {
        share_free(m);
        return ESTALE;
    }
    pthread_mutex_lock(&mutex);
    if ((*out = find_id(id, readonly, false)) == NULL) {
        enlist_memory(m);
        *out = m;
        m = NULL;
        pp_add_seq_cst(&n_shared, 1);
    }
    pthread_mutex_unlock(&mutex);
    if (m)                 /* another thread was faster, or it was here */
        share_free(m);
    return 0;
}

/* The memory is here, but writable for whom it is to be read-only, or the other way round. */
static int attach_otherwise(const pp_handle_t *handle, pp_memory_t **out) {
    pp_memory_t *other = pp_memory_known(handle->id);
    if (other == NULL)
        return ENOENT;
    int fd = has_own_file(other) ? pp_duplicate_fd(other->fd) : -1, error = fd >= 0 ? 0 : has_own_file(other) ? errno : EBADF;
    if (!error)
        error = pp_memory_adopt(fd, handle->id, handle->readonly, out);
    pp_memory_unref(other);
    return error;
}

/* Holds the worker's link throughout, so that two threads do not ask for the same memory. */
static int attach_from_parent(const pp_handle_t *handle, pp_memory_t **out) {
    if (!pp_upstream_lock())
        return ESTALE;
    int fd, error = 0;
    if ((*out = find_attached(handle->id, handle->readonly)) == NULL) {
        error = pp_upstream_want(handle->id, &fd);
        if (!error)
            error = pp_memory_adopt(fd, handle->id, handle->readonly, out);
        if (!error)
            (*out)->is_passed = true;
    }
    pp_upstream_unlock();
    return error;
}

pp_memory_t *pp_memory_here(const pp_handle_t *handle) { return find_attached(handle->id, handle->readonly); }

/* In a worker process the parent may have to answer, which takes the time of a wake-up of one of its threads. */
int pp_memory_attach(const pp_handle_t *handle, pp_memory_t **out) {
    pp_links_serve();      /* a worker has given it before it sent the payload that names it */
    if ((*out = find_attached(handle->id, handle->readonly)) != NULL)
        return 0;
    int error = attach_otherwise(handle, out);
    if (error == ENOENT)
        error = attach_from_parent(handle, out);
    if (!error && (*out)->size < handle->size) {
        pp_memory_unref(*out);
        error = ESTALE;
    }
    return error;
}

/* Called with the mutex. */
static pp_memory_t *find_passed(const unsigned char *id) {
    for (pp_memory_t *m = all; m; m = m->next)
        if (m->is_shared && m->is_passed && memcmp(m->id, id, PP_SHARE_ID) == 0)
            return m;
    return NULL;
}

int pp_memory_give(pp_memory_t *m) {
    int error = 0;
    if (m->is_passed || !pp_upstream_lock())
        return 0;
    pthread_mutex_lock(&mutex);
    bool is_there = find_passed(m->id) != NULL;
    pthread_mutex_unlock(&mutex);
    if (!is_there) {
        error = has_own_file(m) ? pp_upstream_give(m->id, m->is_readonly, m->fd) : EBADF;
        m->is_passed = error == 0;
    }
    pp_upstream_unlock();
    return error;
}

bool pp_memory_find(const void *start, size_t size, pp_handle_t *handle, pp_memory_t **out) {
    if (pp_load_relaxed(&n_shared) == 0)
        return false;
    const char *from = start;
    pp_memory_t *found = NULL;
    pthread_mutex_lock(&mutex);
    for (pp_memory_t *m = all; m && !found; m = m->next)
        if (m->is_shared && from >= m->start && from < m->start + m->size && size <= (size_t)(m->start + m->size - from))
            found = m;
    if (found)
        pp_add_seq_cst(&found->refs, 1);
    pthread_mutex_unlock(&mutex);
    if (found == NULL)
        return false;
    *handle = (pp_handle_t){.size = found->size, .at = (uint64_t)(from - found->start), .length = size, .readonly = found->is_readonly};
    memcpy(handle->id, found->id, PP_SHARE_ID);
    *out = found;
    return true;
}

/* ---- moved memory ---- */

int pp_memory_reserve(const void *like, size_t size, pp_memory_t **out) {
    void *start;
    if (pp_load_relaxed(&cannot_move) || pp_load_relaxed(&n_kept) >= KEPT_MAX)
        return ENOTSUP;
    pp_memory_t *m = calloc(1, sizeof *m);
    int error = m ? pp_reserve_like(like, size, &start) : ENOMEM;
    if (error) {
        free(m);
        return error;
    }
    *m = (pp_memory_t){.refs = 1, .start = start, .size = size, .fd = -1};
    pp_add_seq_cst(&n_kept, 1);
    pthread_mutex_lock(&mutex);
    enlist_memory(m);
    pthread_mutex_unlock(&mutex);
    *out = m;
    return 0;
}

/* If the kernel refuses, it may have unmapped the reserved pages before, and another thread may have got their
 * addresses. Then they are never unmapped, and no other memory is moved. */
int pp_memory_move(pp_memory_t *m, void *from) {
    int error = pp_move_pages(m->start, from, m->size);
    if (error) {
        m->size = 0;
        pp_store_relaxed(&cannot_move, true);
    }
    return error;
}

/* ---- loans ---- */

int pp_memory_lend(void *object, size_t size, void (*drop)(void *), pp_memory_t **out) {
    pp_memory_t *m = calloc(1, sizeof *m);
    if (m == NULL)
        return ENOMEM;
    m->refs = 1;
    m->fd = -1;
    m->size = size;
    m->drop = drop;
    pp_store_seq_cst(&m->lent, object);
    *out = m;
    return 0;
}

void *pp_memory_take(pp_memory_t *m) { return pp_swap_seq_cst(&m->lent, NULL); }

static void drop_loan(pp_memory_t *m) {
    void *object = m->drop ? pp_memory_take(m) : NULL;
    if (object)
        m->drop(object);
}

/* ---- all kinds ---- */

bool pp_memory_is_readonly(const pp_memory_t *m) { return m->is_readonly; }
bool pp_memory_has_one_user(const pp_memory_t *m) { return pp_load_seq_cst(&m->refs) == 1; }
char *pp_memory_start(const pp_memory_t *m) { return m->start; }
size_t pp_memory_size(const pp_memory_t *m) { return m->size; }

pp_memory_t *pp_memory_ref(pp_memory_t *m) {
    pp_add_seq_cst(&m->refs, 1);
    return m;
}

/* Drops the last reference under the mutex, so that nobody finds an object that is going. */
void pp_memory_unref(pp_memory_t *m) {
    if (m == NULL)
        return;
    PP_ASSERT(PP_PEEK(&m->refs) > 0);
    if (m->drop) {
        if (pp_add_seq_cst(&m->refs, -1) == 1) {
            drop_loan(m);
            free(m);
        }
        return;
    }
    bool may_tell = m->is_shared && pp_upstream_lock();   /* before anybody can ask for it again */
    pthread_mutex_lock(&mutex);
    bool is_last = pp_add_seq_cst(&m->refs, -1) == 1;
    if (is_last)
        delist(m);
    pp_memory_t *other = is_last && may_tell && m->is_passed ? find_id(m->id, false, true) : NULL;
    if (other) {           /* the parent's reference is for both */
        other->is_passed = true;
        pp_add_seq_cst(&other->refs, -1);
    }
    pthread_mutex_unlock(&mutex);
    if (may_tell) {
        if (is_last && m->is_passed && !other)
            pp_upstream_drop(m->id);
        pp_upstream_unlock();
    }
    if (!is_last)
        return;
    if (m->is_shared) {
        pp_add_seq_cst(&n_shared, -1);
        share_free(m);
        return;
    }
    pp_add_seq_cst(&n_kept, -1);
    if (m->segment == NULL) {
        pp_unreserve(m->start, m->size);
        free(m);
        return;
    }
    pp_unmap(m->start, m->size);   /* before the release, after which the owner may write to it at once */
    pthread_mutex_lock(&mutex);
    if (!m->is_released)
        release_block(m);
    pthread_mutex_unlock(&mutex);
    pp_segment_unref(m->segment);
    pp_memory_unref(m->base);
    free(m);
}

/* ---- the memory that a payload names ---- */

struct pp_pins {
    pp_pins_t *next;       /* list of those whose arena is gone */
    size_t n, capacity;
    pp_memory_t *all[];
};

int pp_pins_add(pp_pins_t **pins, pp_memory_t *m) {
    pp_pins_t *p = *pins;
    if (p == NULL || p->n == p->capacity) {
        size_t n = p ? p->n : 0, capacity = 2 * n + 1;
        p = realloc(p, sizeof *p + capacity * sizeof *p->all);
        if (p == NULL) {
            pp_memory_unref(m);
            return ENOMEM;
        }
        p->next = NULL;
        p->n = n;
        p->capacity = capacity;
        *pins = p;
    }
    p->all[p->n++] = m;
    return 0;
}

void pp_pins_free(pp_pins_t *pins) {
    for (size_t i = 0; pins && i < pins->n; i++)
        pp_memory_unref(pins->all[i]);
    free(pins);
}

size_t pp_pins_lent(const pp_pins_t *pins) {
    size_t n_bytes = 0;
    for (size_t i = 0; pins && i < pins->n; i++)
        n_bytes += pins->all[i]->drop ? pins->all[i]->size : 0;
    return n_bytes;
}

static void drop_orphans(pp_segment_t *s) {
    for (pp_pins_t *pins = pp_load_seq_cst(&s->orphans); pins; pins = pins->next)
        for (size_t i = 0; i < pins->n; i++)
            drop_loan(pins->all[i]);
}

/* Their owner has ended while payloads that name them are still on the way: they stay until the segment goes, but not
 * what is lent, if nobody will take it. A retained block on loan would keep the segment. */
void pp_pins_orphan(pp_segment_t *s, pp_pins_t *pins) {
    pins->next = pp_load_relaxed(&s->orphans);
    while (!pp_cas_seq_cst(&s->orphans, &pins->next, pins)) {}
    if (pp_load_seq_cst(&s->has_no_receiver))
        drop_orphans(s);
}

void pp_orphans_drop(pp_segment_t *s) {
    pp_store_seq_cst(&s->has_no_receiver, true);
    drop_orphans(s);
}

void pp_orphans_free(pp_segment_t *s) {
    for (pp_pins_t *pins = pp_load_seq_cst(&s->orphans), *next; pins; pins = next) {
        next = pins->next;
        for (size_t i = 0; i < pins->n; i++)
            pp_memory_take(pins->all[i]);   /* cannot be dropped here: there may be no interpreter */
        pp_pins_free(pins);
    }
}

/* ---- forks ---- */

void pp_memory_before_fork(void) {
    pthread_mutex_lock(&mutex);
    make_kept_private(NULL);
}

void pp_memory_after_fork(void) { pthread_mutex_unlock(&mutex); }
