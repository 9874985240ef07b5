/* The segment that both sides map: one memfd, so there is nothing to unlink and nothing to leak.
 *
 * A task may write to one of our descriptors by mistake. So the file's position is at its end, where a write fails
 * since the file may not grow. Its first page is unused, and both sides check now and then that the header is intact.
 * It may also close our descriptor, and another file may get its number. So the file's number is compared before each
 * use.
 *
 * The first part (the core: slots, rings, flags, events) is mapped as a whole. After it comes a sparse range for each
 * arena. Of these, only blocks in use are mapped, and only touched pages occupy memory. Ranges are as large as anybody
 * could want, or what RLIMIT_FSIZE leaves for each.
 */
#include "native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE PP_CORE_AT
#define ALIGN_GIB(n) (((n) + (1ull << 30) - 1) >> 30 << 30)
#define ARENA_MIN (1ull << 20)             /* guess: enough for pickled functions and small arrays */
#define WINDOW_BYTES (256ull << 20)        /* addresses, not memory; as much as may be idle */
#define WINDOW_WHOLE_MAX (1ull << 30)      /* smaller arenas are mapped as a whole */

/* Events start on a page of their own, so that touched pages can be given back. */
static size_t events_at(unsigned n_workers) {
    size_t size = sizeof(pp_shared_t) + (1 + n_workers) * sizeof(pp_arena_flags_t) + n_workers * sizeof(pp_worker_slot_t);
    return (size + PAGE - 1) / PAGE * PAGE;
}

static uint64_t core_end(size_t core) { return PP_CORE_AT + core; }

static size_t events_size(unsigned n_workers) { return (size_t)n_workers * PP_EVENTS * sizeof(pp_event_t); }

static size_t shelf_at(unsigned n_workers) { return events_at(n_workers) + (events_size(n_workers) + PAGE - 1) / PAGE * PAGE; }

static size_t core_size(unsigned n_workers) { return shelf_at(n_workers) + PP_SHELF_BYTES; }

/* 0, or EFBIG: RLIMIT_FSIZE leaves no room for the core and the arenas. Workers by reference do not use theirs. */
static int place_arenas(unsigned n_workers, bool by_reference, uint64_t *at, uint64_t *bytes) {
    uint64_t n = 1 + (uint64_t)n_workers, limit = pp_file_size_max(), core = core_end(core_size(n_workers));
    *at = ALIGN_GIB(core);
    *bytes = PP_ARENA_BYTES;
    if (*at + n * PP_ARENA_BYTES <= limit)
        return 0;
    *at = (core + PAGE - 1) / PAGE * PAGE;
    if (*at > limit)
        return EFBIG;
    *bytes = (limit - *at) / n / PAGE * PAGE;
    *bytes = *bytes < PP_ARENA_BYTES ? *bytes : PP_ARENA_BYTES;
    return by_reference || *bytes >= ARENA_MIN ? 0 : EFBIG;
}

static int segment_new(int fd, unsigned n_workers, bool by_reference, uint64_t arenas_at, uint64_t arena_bytes, pp_segment_t **out) {
    pp_segment_t *s = calloc(1, sizeof *s);
    if (s == NULL)
        return ENOMEM;
    s->refs = 1;
    s->fd = fd;
    s->file_number = pp_file_number(fd);
    s->n_workers = n_workers;
    s->by_reference = by_reference;
    s->core_size = core_size(n_workers);
    s->arenas_at = arenas_at;
    s->arena_bytes = arena_bytes;
    s->window_bytes = arena_bytes <= WINDOW_WHOLE_MAX ? arena_bytes : WINDOW_BYTES;
    s->windows = calloc(1 + n_workers, sizeof *s->windows);
    int error = s->windows ? pp_map(fd, PP_CORE_AT, s->core_size, (void **)&s->shared) : ENOMEM;
    if (error) {
        free(s->windows);
        free(s);
        return error;
    }
    pthread_mutex_init(&s->interrupts, NULL);
    *out = s;
    return 0;
}

int pp_segment_create(unsigned n_workers, bool by_reference, pp_segment_t **out) {
    if (n_workers == 0 || n_workers > PP_MAX_WORKERS)
        return EINVAL;
    int fd;
    uint64_t arenas_at, arena_bytes;
    int error = place_arenas(n_workers, by_reference, &arenas_at, &arena_bytes);
    if (!error)
        error = pp_memfd("pool_party", arenas_at + (1 + (uint64_t)n_workers) * arena_bytes, &fd);
    if (error)
        return error;
    pp_fix_size(fd);
    if ((error = segment_new(fd, n_workers, by_reference, arenas_at, arena_bytes, out)) != 0) {
        close(fd);
        return error;
    }
    pp_shared_t *shared = (*out)->shared;
    shared->n_workers = n_workers;
    shared->by_reference = by_reference;
    shared->arenas_at = arenas_at;
    shared->arena_bytes = arena_bytes;
    atomic_init(&shared->replied[0], n_workers <= PP_FEW ? pp_bit_of(n_workers) - 1 : 0);
    shared->magic = PP_MAGIC;
    return 0;
}

int pp_segment_attach(int fd, pp_segment_t **out) {
    pp_shared_t *shared;
    int error = pp_map(fd, PP_CORE_AT, sizeof *shared, (void **)&shared);
    if (error)
        return error;
    bool ours = shared->magic == PP_MAGIC;
    unsigned n_workers = shared->n_workers;
    bool by_reference = shared->by_reference;
    uint64_t arenas_at = shared->arenas_at, arena_bytes = shared->arena_bytes;
    pp_unmap(shared, sizeof *shared);
    error = ours ? segment_new(fd, n_workers, by_reference, arenas_at, arena_bytes, out) : EINVAL;
    if (!error)
        (*out)->is_attached = true;
    return error;
}

bool pp_segment_has_file(const pp_segment_t *s) { return pp_file_number(s->fd) == s->file_number; }

int pp_segment_map(pp_segment_t *s, uint64_t at, size_t size, void **memory) {
    return pp_segment_has_file(s) ? pp_map(s->fd, at, size, memory) : EBADF;
}

void pp_segment_punch_hole(pp_segment_t *s, uint64_t at, uint64_t size) {
    if (pp_segment_has_file(s))
        pp_punch_hole(s->fd, at, size);
}

bool pp_segment_is_sound(const pp_segment_t *s) {
    const pp_shared_t *shared = s->shared;
    return shared->magic == PP_MAGIC && shared->n_workers == s->n_workers && shared->arenas_at == s->arenas_at &&
           shared->arena_bytes == s->arena_bytes;
}

pp_segment_t *pp_segment_ref(pp_segment_t *s) {
    pp_add_seq_cst(&s->refs, 1);
    return s;
}

void pp_segment_unref(pp_segment_t *s) {
    PP_ASSERT(s == NULL || PP_PEEK(&s->refs) > 0);
    if (s == NULL || pp_add_seq_cst(&s->refs, -1) != 1)
        return;
    pp_budget_close(&s->budget);
    pp_orphans_free(s);
    pp_segment_close(s);
    pthread_mutex_destroy(&s->interrupts);
    free(s->windows);
    free(s);
}

/* Unmaps and closes everything at once, even if references remain. The caller knows that all workers have ended, that
 * this process's arenas are freed, and that nobody will use the channel. Only retained blocks remain, as their
 * receivers' mappings, and with them the descriptor; any thread may release them at any time, even now. A second call
 * does nothing. */
void pp_segment_close(pp_segment_t *s) {
    if (!pp_memory_close(s))
        return;
    pp_windows_close(s);
    pp_unmap(s->shared, s->core_size);
    s->shared = NULL;
}

uint64_t pp_segment_arena_at(pp_segment_t *s, unsigned arena) { return s->arenas_at + arena * s->arena_bytes; }

pp_event_t *pp_segment_events(pp_segment_t *s, unsigned worker) {
    return (pp_event_t *)((char *)s->shared + events_at(s->n_workers)) + (size_t)worker * PP_EVENTS;
}

void pp_segment_forget_events(pp_segment_t *s) {
    pp_segment_punch_hole(s, PP_CORE_AT + events_at(s->n_workers), events_size(s->n_workers));
}

bool pp_shelf_put(pp_segment_t *s, const void *from, uint32_t size, uint32_t *at) {
    uint64_t begin = size > PP_SHELF_BYTES ? PP_SHELF_BYTES : pp_add_seq_cst(&s->n_shelved, size);
    if (begin + size > PP_SHELF_BYTES)
        return false;
    *at = (uint32_t)begin;
    memcpy((char *)s->shared + shelf_at(s->n_workers) + begin, from, size);
    return true;
}

const void *pp_shelf_get(pp_segment_t *s, uint32_t at, uint32_t size) {
    bool is_there = s->shared != NULL && size <= PP_SHELF_BYTES && at <= PP_SHELF_BYTES - size;
    return is_there ? (char *)s->shared + shelf_at(s->n_workers) + at : NULL;
}
