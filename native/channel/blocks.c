/* Blocks: large payloads, each in a piece of its owner's arena.
 *
 * Only the owner opens blocks, and only the receiver releases them, by clearing one flag. So neither waits for the
 * other, and a dead receiver's blocks can be released for it. Capacities are powers of two, since only touched pages
 * cost memory. A released block keeps its pages and the owner's mapping for the next payload of its size: a copy into
 * warm pages is several times faster than into fresh ones. Idle memory of an arena beyond IDLE_MAX goes back to the
 * system. When no block was opened for a while, the background thread gives back all but PP_IDLE_MAX of the pool's
 * (`pp_blocks_trim`). A thread takes a free block by compare-and-swap, whether to open it or to give its pages back.
 *
 * The first part of each arena, for smaller blocks, is a window: each side maps all of it once, so that reused blocks
 * cost no page faults. Larger blocks are mapped one by one. A small arena (see segment.c) consists of its window only.
 *
 * A receiver may retain a block instead of copying it out (memory.c). The flag then says which process does, in case
 * that process dies. A worker that replaces a dead one learns from the flags which blocks of its arena are still
 * retained.
 */
#include "native.h"

#include <errno.h>
#include <stdlib.h>

#define IDLE_MAX (256ull << 20)      /* guess: four typical arrays of 64 MB */
#define WINDOW_CAPACITY_MAX (4ull << 20)
#define NO_WINDOW ((void *)1)        /* mapping the window failed (ulimit -v): blocks are mapped one by one */

typedef struct {
    uint64_t at, capacity;
    void *memory;          /* the owner's mapping, if the block has or may have pages; else NULL */
    bool open;             /* when the owner last looked */
    bool is_held;          /* in use for a whole call */
    pp_pins_t *pinned;     /* retained references of its payload while the block is in use, or NULL */
} block_t;

struct pp_arena {
    pp_segment_t *segment;
    pp_arena_flags_t *flags;
    uint64_t at, window_end, end, limit, idle_bytes;
    uint32_t n_blocks;
    _Atomic uint32_t n_pinned;   /* read by other threads */
    block_t blocks[PP_BLOCKS];
};

/* ---- mapping ---- */

/* The address of a range in an arena's window, or NULL if the range is not in it. */
static char *in_window(pp_segment_t *s, uint64_t at, uint64_t size) {
    uint64_t first = pp_segment_arena_at(s, 0), arena = (at - first) / s->arena_bytes;
    uint64_t start = first + arena * s->arena_bytes;
    if (at + size > start + s->window_bytes)
        return NULL;
    void *memory = atomic_load_explicit(&s->windows[arena].memory, memory_order_acquire);
    if (memory == NULL) {
        void *mapped, *expected = NULL;
        if (pp_segment_map(s, start, s->window_bytes, &mapped) != 0)
            mapped = NO_WINDOW;
        if (pp_cas_seq_cst(&s->windows[arena].memory, &expected, mapped)) {
            memory = mapped;
        } else {                   /* another thread was faster */
            memory = expected;
            if (mapped != NO_WINDOW)
                pp_unmap(mapped, s->window_bytes);
        }
    }
    return memory == NO_WINDOW ? NULL : (char *)memory + (at - start);
}

void pp_windows_close(pp_segment_t *s) {
    for (unsigned i = 0; i <= s->n_workers; i++) {
        void *memory = pp_load_relaxed(&s->windows[i].memory);
        if (memory && memory != NO_WINDOW)
            pp_unmap(memory, s->window_bytes);
    }
}

static int map_range(pp_segment_t *s, uint64_t at, uint64_t size, void **memory) {
    if ((*memory = in_window(s, at, size)) != NULL)
        return 0;
    return pp_segment_map(s, at, size, memory);
}

static void unmap_range(pp_segment_t *s, uint64_t at, uint64_t size, void *memory) {
    if (memory != in_window(s, at, size))
        pp_unmap(memory, size);
}

int pp_block_map(pp_segment_t *s, const pp_blockref_t *ref, void **memory) { return map_range(s, ref->at, ref->size, memory); }

void pp_block_unmap(pp_segment_t *s, const pp_blockref_t *ref, void *memory) { unmap_range(s, ref->at, ref->size, memory); }

/* ---- an arena ---- */

static void forget_touched(pp_arena_flags_t *flags, uint32_t id) {
    pp_add_seq_cst(&flags->n_touched, -pp_swap_seq_cst(&flags->touched[id], 0));
}

static void note_touched(pp_arena_flags_t *flags, uint32_t id, uint64_t size) {
    uint64_t before = pp_load_relaxed(&flags->touched[id]);
    if (size <= before)
        return;
    pp_store_relaxed(&flags->touched[id], size);
    pp_add_seq_cst(&flags->n_touched, size - before);
}

static bool is_in_window(const pp_arena_t *a, uint64_t at) { return at < a->at + a->segment->window_bytes; }

/* Takes over a dead owner's arena. Blocks that receivers still retain are left alone. */
static void inherit(pp_arena_t *a) {
    for (uint32_t i = 0; i < PP_BLOCKS; i++) {
        uint64_t at = a->flags->place[i].at, capacity = a->flags->place[i].capacity;
        if (pp_load_acquire(&a->flags->in_use[i]) == 0) {
            if (capacity > 0) {   /* released after its owner died */
                pp_segment_punch_hole(a->segment, at, capacity);
                forget_touched(a->flags, i);
                a->flags->place[i].capacity = 0;
            }
            continue;
        }
        a->blocks[i] = (block_t){.at = at, .capacity = capacity, .open = true};
        a->n_blocks = i + 1;
        uint64_t *end = is_in_window(a, at) ? &a->window_end : &a->end;
        *end = at + capacity > *end ? at + capacity : *end;
    }
}

pp_arena_t *pp_arena_new(pp_segment_t *s, unsigned arena) {
    pp_arena_t *a = calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->segment = s;
    a->flags = pp_segment_flags(s, arena);
    a->at = a->window_end = pp_segment_arena_at(s, arena);
    a->end = a->at + s->window_bytes;
    a->limit = a->at + s->arena_bytes;
    if (arena > 0)         /* the parent's arena never had another owner */
        inherit(a);
    return a;
}

static void unpin_block(pp_arena_t *a, block_t *b) {
    if (b->pinned == NULL)
        return;
    pp_pins_free(b->pinned);
    b->pinned = NULL;
    pp_store_relaxed(&a->n_pinned, pp_load_relaxed(&a->n_pinned) - 1);
}

void pp_arena_free(pp_arena_t *a) {
    if (a == NULL)
        return;
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        block_t *b = &a->blocks[i];
        if (b->pinned && pp_load_acquire(&a->flags->in_use[i])) {
            pp_pins_orphan(a->segment, b->pinned);
            b->pinned = NULL;
        }
        unpin_block(a, b);
        if (b->memory)
            unmap_range(a->segment, b->at, b->capacity, b->memory);
    }
    free(a);
}

/* False: the parent is giving the block's pages back at this moment. */
static bool claim(pp_arena_t *a, const block_t *b) {
    uint32_t nobody = 0;
    return pp_cas_seq_cst(&a->flags->in_use[b - a->blocks], &nobody, 1);
}

static void unclaim(pp_arena_t *a, const block_t *b) { pp_store_release(&a->flags->in_use[b - a->blocks], 0); }

/* Gives back the pages of a claimed block. */
static void give_back(pp_arena_t *a, block_t *b) {
    unmap_range(a->segment, b->at, b->capacity, b->memory);
    pp_segment_punch_hole(a->segment, b->at, b->capacity);
    forget_touched(a->flags, (uint32_t)(b - a->blocks));
    a->idle_bytes -= b->capacity;
    b->memory = NULL;
}

/* Notes which blocks receivers have released. Returns an idle block of this capacity, with pages if possible. A
 * capacity of 0 finds none. */
static block_t *look_at_blocks(pp_arena_t *a, uint64_t capacity) {
    block_t *found = NULL;
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        block_t *b = &a->blocks[i];
        if (b->open && pp_load_acquire(&a->flags->in_use[i]) == 0) {
            b->open = false;
            unpin_block(a, b);
            if (b->memory)
                a->idle_bytes += b->capacity;
            else if (claim(a, b)) {   /* inherited from a dead owner */
                pp_segment_punch_hole(a->segment, b->at, b->capacity);
                forget_touched(a->flags, i);
                unclaim(a, b);
            }
        }
        if (!b->open && b->capacity == capacity && (found == NULL || found->memory == NULL))
            found = b;
    }
    for (uint32_t i = 0; i < a->n_blocks && a->idle_bytes > IDLE_MAX; i++) {
        block_t *b = &a->blocks[i];
        if (!b->open && b->memory && b != found && claim(a, b)) {
            give_back(a, b);
            unclaim(a, b);
        }
    }
    return found;
}

/* Addresses for a new block, in the window if it fits there. 0: none are left. */
static uint64_t take_addresses(pp_arena_t *a, uint64_t capacity) {
    bool may = capacity <= WINDOW_CAPACITY_MAX || a->segment->window_bytes == a->segment->arena_bytes;
    bool fits = may && capacity <= a->at + a->segment->window_bytes - a->window_end;
    uint64_t *end = fits ? &a->window_end : &a->end, at = *end;
    if (!fits && capacity > a->limit - a->end)
        return 0;
    *end += capacity;
    return at;
}

/* A new block, claimed. Once all block numbers are in use, it replaces an idle block of another capacity. The old
 * addresses are reused only when all addresses are given out. Otherwise a burst of PP_BLOCKS small payloads would leave
 * no block for larger ones for ever. */
static block_t *extend(pp_arena_t *a, uint64_t capacity) {
    uint32_t i = a->n_blocks;
    if (i == PP_BLOCKS) {
        for (i = 0; i < PP_BLOCKS && (a->blocks[i].open || !claim(a, &a->blocks[i])); i++) {}
        if (i == PP_BLOCKS)
            return NULL;
        if (a->blocks[i].memory)
            give_back(a, &a->blocks[i]);
    }
    uint64_t at = take_addresses(a, capacity);
    if (at == 0) {
        if (i < a->n_blocks)
            unclaim(a, &a->blocks[i]);
        return NULL;
    }
    a->n_blocks += i == a->n_blocks;
    a->blocks[i] = (block_t){.at = at, .capacity = capacity};
    a->flags->place[i].at = at;
    a->flags->place[i].capacity = capacity;
    pp_store_release(&a->flags->in_use[i], 1);
    if (a->n_blocks > pp_load_relaxed(&a->flags->n_numbers))
        pp_store_release(&a->flags->n_numbers, a->n_blocks);
    return &a->blocks[i];
}

/* Takes back the addresses of idle blocks behind all open ones. Their places are cleared first: a later owner of the
 * arena would otherwise release the memory that lies there by then. */
static void reclaim_addresses(pp_arena_t *a) {
    a->window_end = a->at;
    a->end = a->at + a->segment->window_bytes;
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        block_t *b = &a->blocks[i];
        if (b->open || !claim(a, b)) {
            uint64_t *end = is_in_window(a, b->at) ? &a->window_end : &a->end;
            *end = b->at + b->capacity > *end ? b->at + b->capacity : *end;
            continue;
        }
        a->flags->place[i].capacity = 0;
        if (b->memory)
            give_back(a, b);
        b->capacity = 0;
        unclaim(a, b);
    }
}

static block_t *find_larger(pp_arena_t *a, uint64_t capacity) {
    block_t *found = NULL;
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        block_t *b = &a->blocks[i];
        if (!b->open && b->capacity >= capacity && (found == NULL || b->capacity < found->capacity))
            found = b;
    }
    return found && claim(a, found) ? found : NULL;
}

static block_t *find_block(pp_arena_t *a, uint64_t capacity) {
    block_t *b = look_at_blocks(a, capacity);
    if (b && claim(a, b))
        return b;
    if ((b = extend(a, capacity)) == NULL && (b = find_larger(a, capacity)) == NULL) {
        reclaim_addresses(a);
        b = extend(a, capacity);
    }
    return b;
}

/* Whether room will become free without any action of the owner, so that it may wait for it. */
static bool is_room_coming(const pp_arena_t *a) {
    for (uint32_t i = 0; i < a->n_blocks; i++)
        if (a->blocks[i].open ? !a->blocks[i].is_held : pp_load_relaxed(&a->flags->in_use[i]) != 0)   /* its pages are being given back */
            return true;
    return false;
}

/* A power of two, unless only the exact size fits into the arena. Always whole pages, which can be mapped and given
 * back. */
static uint64_t capacity_for(const pp_arena_t *a, uint64_t size) {
    uint64_t capacity = pp_whole_pages(1);
    while (capacity < size && capacity <= a->segment->arena_bytes / 2)
        capacity <<= 1;
    return capacity >= size ? capacity : pp_whole_pages(size);
}

int pp_block_open(pp_arena_t *a, uint64_t size, pp_blockref_t *ref, void **memory) {
    if (size > a->segment->arena_bytes)
        return EFBIG;
    block_t *b = find_block(a, capacity_for(a, size));
    if (b == NULL)
        return is_room_coming(a) ? EAGAIN : EFBIG;
    if (b->memory == NULL) {
        int error = map_range(a->segment, b->at, b->capacity, &b->memory);
        if (error) {
            b->memory = NULL;
            unclaim(a, b);
            return error;
        }
    } else {
        a->idle_bytes -= b->capacity;
    }
    b->open = true;
    b->is_held = false;
    uint32_t id = (uint32_t)(b - a->blocks);
    note_touched(a->flags, id, pp_whole_pages(size));
    pp_store_relaxed(&a->flags->n_opened, pp_load_relaxed(&a->flags->n_opened) + 1);
    *ref = (pp_blockref_t){.at = b->at, .size = size, .id = id};
    *memory = b->memory;
    return 0;
}

void pp_block_pin(pp_arena_t *a, const pp_blockref_t *ref, pp_pins_t *pins) {
    a->blocks[ref->id].pinned = pins;
    pp_store_relaxed(&a->n_pinned, pp_load_relaxed(&a->n_pinned) + 1);
}

void pp_block_hold(pp_arena_t *a, const pp_blockref_t *ref) { a->blocks[ref->id].is_held = true; }

void pp_block_drop(pp_arena_t *a, const pp_blockref_t *ref) { unclaim(a, &a->blocks[ref->id]); }

bool pp_arena_has_pins(const pp_arena_t *a) { return pp_load_relaxed(&a->n_pinned) > 0; }

bool pp_arena_is_attached(const pp_arena_t *a) { return a->segment->is_attached; }

void pp_arena_unpin(pp_arena_t *a) {
    if (pp_arena_has_pins(a))
        look_at_blocks(a, 0);
}

uint64_t pp_arena_open_bytes(pp_arena_t *a) {
    uint64_t n_bytes = 0;
    look_at_blocks(a, 0);
    for (uint32_t i = 0; i < a->n_blocks; i++)
        if (a->blocks[i].open && pp_load_relaxed(&a->flags->in_use[i]) == 1)
            n_bytes += a->blocks[i].capacity + pp_pins_lent(a->blocks[i].pinned);
    return n_bytes;
}

/* ---- giving back ---- */

/* If no arena exceeds its part of PP_IDLE_MAX, the pool does not exceed the whole. */
void pp_block_release(pp_segment_t *s, unsigned arena, uint32_t id) {
    pp_arena_flags_t *flags = pp_segment_flags(s, arena);
    PP_ASSERT(arena <= s->n_workers && id < PP_BLOCKS);
    pp_store_release(&flags->in_use[id], 0);
    if (pp_load_relaxed(&flags->n_touched) > PP_IDLE_MAX / (1 + s->n_workers))
        pp_want_trim(s->shared);
}

static uint64_t idle_bytes(const pp_arena_flags_t *flags, uint32_t id) {
    return pp_load_acquire(&flags->in_use[id]) == 0 ? pp_load_relaxed(&flags->touched[id]) : 0;
}

uint64_t pp_blocks_idle(pp_segment_t *s) {
    uint64_t n_bytes = 0;
    for (unsigned arena = 0; arena <= s->n_workers; arena++) {
        const pp_arena_flags_t *flags = pp_segment_flags(s, arena);
        for (uint32_t i = 0; i < pp_load_acquire(&flags->n_numbers); i++)
            n_bytes += idle_bytes(flags, i);
    }
    return n_bytes;
}

static uint64_t trim_block(pp_segment_t *s, pp_arena_flags_t *flags, uint32_t id) {
    uint32_t nobody = 0;
    uint64_t n_bytes = idle_bytes(flags, id);
    if (n_bytes == 0 || !pp_cas_seq_cst(&flags->in_use[id], &nobody, PP_TRIMMED))
        return 0;
    pp_segment_punch_hole(s, flags->place[id].at, flags->place[id].capacity);
    forget_touched(flags, id);
    pp_store_release(&flags->in_use[id], 0);
    return n_bytes;
}

/* Trims only arenas whose owner has opened no block since the last call, since a busy one soon needs its warm pages. A
 * release after the first store asks for another call. */
void pp_blocks_trim(pp_segment_t *s) {
    pp_swap_seq_cst(&s->shared->wants_trim, 0);   /* a store would not see what those released who asked: see pp_want_trim */
    uint64_t n_idle = pp_blocks_idle(s);
    for (unsigned arena = 0; arena <= s->n_workers; arena++) {
        pp_arena_flags_t *flags = pp_segment_flags(s, arena);
        uint32_t n_opened = pp_load_relaxed(&flags->n_opened);
        bool is_quiet = n_opened == s->windows[arena].n_opened;
        s->windows[arena].n_opened = n_opened;
        for (uint32_t i = 0; is_quiet && n_idle > PP_IDLE_MAX && i < pp_load_acquire(&flags->n_numbers); i++)
            n_idle -= trim_block(s, flags, i);
    }
    if (pp_blocks_idle(s) > PP_IDLE_MAX)   /* counted again: blocks released meanwhile may have replaced those counted */
        pp_store_seq_cst(&s->shared->wants_trim, 1);
}

/* Clears the places as well, since the next owner assigns these addresses anew. A place that was half written when its
 * owner was killed is harmless: its range is either the old one, or starts where nothing has been allocated. */
void pp_arena_forget(pp_segment_t *s, unsigned arena) {
    pp_arena_flags_t *flags = pp_segment_flags(s, arena);
    bool is_kept = false;
    for (uint32_t i = 0; i < PP_BLOCKS; i++) {
        uint32_t sent = 1;
        if (pp_load_relaxed(&flags->in_use[i]) && !pp_cas_seq_cst(&flags->in_use[i], &sent, 0) && sent != 0)
            is_kept = true;
    }
    if (!is_kept)
        pp_segment_punch_hole(s, pp_segment_arena_at(s, arena), s->arena_bytes);
    for (uint32_t i = 0; i < PP_BLOCKS; i++) {
        if (pp_load_acquire(&flags->in_use[i]) != 0 || flags->place[i].capacity == 0)
            continue;
        if (is_kept)
            pp_segment_punch_hole(s, flags->place[i].at, flags->place[i].capacity);
        forget_touched(flags, i);
        flags->place[i].capacity = 0;
    }
}

void pp_arena_drop_kept(pp_segment_t *s, unsigned arena, uint32_t keeper) {
    pp_arena_flags_t *flags = pp_segment_flags(s, arena);
    for (uint32_t i = 0; i < PP_BLOCKS; i++) {
        uint32_t expected = keeper;
        if (pp_load_relaxed(&flags->in_use[i]) == keeper)
            pp_cas_seq_cst(&flags->in_use[i], &expected, 0);
    }
}
