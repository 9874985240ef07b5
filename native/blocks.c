/* Blocks: large payloads, each in a piece of its owner's arena.
 *
 * The owner alone opens blocks; the receiver alone releases them, by clearing one flag, so neither waits for the
 * other and a dead receiver's blocks can be released for it. Capacities are powers of two (only touched pages cost
 * memory). A released block keeps its pages and the owner's mapping for the next payload of its size: a copy into
 * warm pages is several times faster than into fresh ones. What lies idle beyond IDLE_MAX goes back to the system.
 */
#include "native.h"

#include <errno.h>
#include <stdlib.h>

#define MIN_CAPACITY 4096ull
#define IDLE_MAX (256ull << 20)   /* guess: four of the 64 MB arrays that people pass around */

typedef struct {
    uint64_t at, capacity;
    void *memory;          /* the owner's mapping, or NULL */
    bool open;             /* as of the owner's last look */
} block_t;

struct pp_arena {
    pp_segment_t *segment;
    pp_arena_flags_t *flags;
    uint64_t at, end, limit, idle_bytes, open_bytes;
    uint32_t n_blocks;
    block_t blocks[PP_BLOCKS];
};

pp_arena_t *pp_arena_new(pp_segment_t *s, unsigned arena) {
    pp_arena_t *a = calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->segment = s;
    a->flags = pp_segment_flags(s, arena);
    a->at = a->end = pp_segment_arena_at(s, arena);
    a->limit = a->at + PP_ARENA_BYTES;
    return a;
}

void pp_arena_free(pp_arena_t *a) {
    if (a == NULL)
        return;
    for (uint32_t i = 0; i < a->n_blocks; i++)
        if (a->blocks[i].memory)
            pp_unmap(a->blocks[i].memory, a->blocks[i].capacity);
    free(a);
}

static void give_back(pp_arena_t *a, block_t *b) {
    pp_unmap(b->memory, b->capacity);
    pp_punch_hole(a->segment->fd, b->at, b->capacity);
    a->idle_bytes -= b->capacity;
    b->memory = NULL;
}

/* Finds what receivers have released; returns an idle block of this capacity, warm if there is one. */
static block_t *look(pp_arena_t *a, uint64_t capacity) {
    block_t *found = NULL;
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        block_t *b = &a->blocks[i];
        if (b->open && pp_load_acquire(&a->flags->in_use[i]) == 0) {
            b->open = false;
            a->open_bytes -= b->capacity;
            a->idle_bytes += b->capacity;
        }
        if (!b->open && b->capacity == capacity && (found == NULL || found->memory == NULL))
            found = b;
    }
    for (uint32_t i = 0; i < a->n_blocks && a->idle_bytes > IDLE_MAX; i++)
        if (!a->blocks[i].open && a->blocks[i].memory && &a->blocks[i] != found)
            give_back(a, &a->blocks[i]);
    return found;
}

/* A new block; once all numbers are given out, in the place of an idle one of another capacity. Its address range is not
 * used again: ranges are plenty, and else a burst of PP_BLOCKS small payloads would leave no block for larger ones for ever. */
static block_t *extend(pp_arena_t *a, uint64_t capacity) {
    if (capacity > a->limit - a->end)
        return NULL;
    uint32_t i = a->n_blocks;
    if (i == PP_BLOCKS) {
        for (i = 0; i < PP_BLOCKS && a->blocks[i].open; i++) {}
        if (i == PP_BLOCKS)
            return NULL;
        if (a->blocks[i].memory)
            give_back(a, &a->blocks[i]);
    } else {
        a->n_blocks++;
    }
    block_t *b = &a->blocks[i];
    *b = (block_t){.at = a->end, .capacity = capacity};
    a->end += capacity;
    return b;
}

int pp_block_open(pp_arena_t *a, uint64_t size, pp_blockref_t *ref, void **memory) {
    uint64_t capacity = MIN_CAPACITY;
    while (capacity < size && capacity < PP_ARENA_BYTES)
        capacity <<= 1;
    if (capacity < size)
        return EFBIG;
    block_t *b = look(a, capacity);
    if (b == NULL && (b = extend(a, capacity)) == NULL)
        return EAGAIN;
    if (b->memory == NULL) {
        int error = pp_map(a->segment->fd, b->at, b->capacity, &b->memory);
        if (error)
            return error;
    } else {
        a->idle_bytes -= b->capacity;
    }
    b->open = true;
    a->open_bytes += b->capacity;
    uint32_t id = (uint32_t)(b - a->blocks);
    pp_store_relaxed(&a->flags->in_use[id], 1);
    *ref = (pp_blockref_t){.at = b->at, .size = size, .id = id};
    *memory = b->memory;
    return 0;
}

uint64_t pp_arena_open_bytes(pp_arena_t *a) {
    look(a, 0);
    return a->open_bytes;
}

void pp_block_release(pp_segment_t *s, unsigned arena, uint32_t id) {
    pp_store_release(&pp_segment_flags(s, arena)->in_use[id], 0);
}

int pp_block_map(pp_segment_t *s, const pp_blockref_t *ref, void **memory) {
    return pp_map(s->fd, ref->at, ref->size, memory);
}

void pp_block_unmap(const pp_blockref_t *ref, void *memory) { pp_unmap(memory, ref->size); }

void pp_arena_forget(pp_segment_t *s, unsigned arena) {
    pp_arena_flags_t *flags = pp_segment_flags(s, arena);
    for (uint32_t i = 0; i < PP_BLOCKS; i++)
        pp_store_relaxed(&flags->in_use[i], 0);
    pp_punch_hole(s->fd, pp_segment_arena_at(s, arena), PP_ARENA_BYTES);
}
