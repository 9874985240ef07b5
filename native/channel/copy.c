/* Copies with the help of idle cores, and packing of arrays that are not contiguous.
 *
 * The work is cut into pieces, and each thread claims the next piece by adding to a counter. The caller claims as well,
 * so a helper that does not come costs nothing, and one that comes late finds nothing left. Helpers are threads of this
 * process that otherwise sleep. They are called only if the kernel reports idle cores at that moment, and for a worker
 * only within its budget. They check again now and then, and leave when their core is needed: if a helper lost its core
 * in the middle of a piece, everybody would wait for it.
 *
 * Only one copy at a time has helpers. Another one that comes meanwhile is done by its caller alone.
 */
#include "native.h"

#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define PIECE_BYTES (32u << 10)   /* as in the paper on MPI and tasks; 16 and 64 KiB made no difference here */
/* Checking for idle cores takes 2 to 8 us, and waking a helper 50 us. Below these sizes a useless check would cost more
 * than 1 % of a copy. Measured in cache: 8 MB copied in 0.2 ms, packed in 1.2; 16 MB copied in 0.7, and no faster with
 * a helper. */
#define COPY_MIN (24u << 20)
#define PACK_MIN (8u << 20)
#define RUN_MIN 512u              /* bytes; longer runs are copied rather than packed */
#define STREAM_MIN (24u << 20)    /* about three quarters of the last-level cache of the machine used for measuring */
#define HELPERS_MAX 15u
#define LOOK_EVERY 16u            /* pieces that a helper takes between two checks whether its core is needed */
#define TILE 16                   /* elements: a tile's rows and columns fit the first-level cache */

typedef struct {
    void (*run)(const void *what, size_t piece);
    const void *what;
    size_t n_pieces;
    _Atomic size_t next, n_done;
} work_t;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;   /* held by the owner of `work`; only tried, never waited for */
static work_t work;                       /* written by its owner before `call` */
static _Atomic uint32_t call;             /* futex word of helpers: changes with each work for them */
static _Atomic uint32_t n_wanted;         /* helpers that may still join */
static _Atomic uint32_t n_inside;         /* helpers that may access `work`; its owner waits for 0 */
static _Atomic uint32_t n_started;
static _Atomic uint64_t n_helped;         /* pieces done by helpers */

static bool do_next(work_t *w) {
    size_t piece = pp_add_seq_cst(&w->next, 1);
    if (piece >= w->n_pieces)
        return false;
    w->run(w->what, piece);
    pp_add_seq_cst(&w->n_done, 1);
    return true;
}

/* ---- helpers ---- */

static bool take_place(void) {
    uint32_t n = pp_load_seq_cst(&n_wanted);
    while (n > 0)
        if (pp_cas_seq_cst(&n_wanted, &n, n - 1))
            return true;
    return false;
}

/* A helper enters first, and then checks whether it is wanted. The owner first withdraws `n_wanted`, and then waits
 * until nobody is inside. So no helper touches finished work. */
static void help_copying(void) {
    pp_add_seq_cst(&n_inside, 1);
    if (take_place()) {
        uint64_t n = 0;
        while ((++n % LOOK_EVERY != 0 || pp_n_running() <= pp_n_cpus()) && do_next(&work)) {}
        pp_add_seq_cst(&n_helped, n - 1);
    }
    if (pp_add_seq_cst(&n_inside, -1) == 1)
        pp_futex_wake(&n_inside, 1, UINT32_MAX);
}

static void *run_helper(void *ignored) {
    (void)ignored;
    pp_name_thread("pp-copy");
    pp_run_on_all_cpus();
    for (;;) {
        uint32_t seen = pp_load_seq_cst(&call);
        help_copying();
        pp_futex_wait(&call, seen, -1, UINT32_MAX);
    }
    return NULL;
}

static unsigned start_helpers(unsigned n) {
    while (pp_load_relaxed(&n_started) < n && pp_start_detached(run_helper, NULL) == 0)
        pp_add_seq_cst(&n_started, 1);
    unsigned started = pp_load_relaxed(&n_started);
    return n < started ? n : started;
}

/* Threads are not inherited, and the mutex may have been held during the fork. */
void pp_copy_after_fork_in_child(void) {
    pthread_mutex_init(&turn, NULL);
    pp_store_seq_cst(&n_started, 0);
    pp_store_seq_cst(&n_wanted, 0);
    pp_store_seq_cst(&n_inside, 0);
}

uint64_t pp_copy_n_helped(void) { return pp_load_relaxed(&n_helped); }

/* ---- the caller ---- */

/* A worker may use its budget; a thread of the parent may use all idle cores. asked: a fixed number for measurements,
 * or -1. */
static unsigned helpers_for(size_t n_bytes, size_t min_bytes, int asked) {
    if (asked >= 0)
        return (unsigned)asked < HELPERS_MAX ? (unsigned)asked : HELPERS_MAX;
    unsigned grant = pp_own_grant(), n = (unsigned)pp_n_cpus() - 1;
    if (grant > 0 && grant - 1 < n)
        n = grant - 1;
    if (n_bytes < min_bytes || n == 0)
        return 0;
    int n_running = pp_n_running(), n_idle = n_running > 0 ? pp_n_cpus() - n_running : 0;
    n = n_idle < (int)n ? (unsigned)(n_idle > 0 ? n_idle : 0) : n;
    return n < HELPERS_MAX ? n : HELPERS_MAX;
}

static void call_helpers(unsigned n) {
    pp_store_seq_cst(&n_wanted, n);
    pp_add_seq_cst(&call, 1);
    pp_futex_wake(&call, (int)n, UINT32_MAX);
}

static void dismiss_helpers(void) {
    pp_store_seq_cst(&n_wanted, 0);
    pp_spin_t spin = {0};
    pp_spin_begin(&spin, PP_SPIN_NS, PP_SPIN_SHORT_NS);
    for (;;) {
        uint32_t inside = pp_load_seq_cst(&n_inside);
        if (inside == 0)
            return;
        if (!pp_spin_once(&spin))
            pp_futex_wait(&n_inside, inside, pp_now_ns() + 1000000, UINT32_MAX);
    }
}

static void do_all(void (*run)(const void *, size_t), const void *what, size_t n_pieces, unsigned n) {
    if (n > 0 && pthread_mutex_trylock(&turn) == 0) {
        n = start_helpers(n);
        work.run = run;
        work.what = what;
        work.n_pieces = n_pieces;
        pp_store_seq_cst(&work.next, 0);
        pp_store_seq_cst(&work.n_done, 0);
        call_helpers(n);
        while (do_next(&work)) {}
        dismiss_helpers();
        pthread_mutex_unlock(&turn);
        return;
    }
    for (size_t i = 0; i < n_pieces; i++)
        run(what, i);
}

/* ---- contiguous ---- */

/* Bypasses the caches, as memcpy does for sizes that exceed them; here memcpy sees only a piece. The thread must call
 * `drain` before others may read. */
static void stream(char *to, const char *from, size_t n) {
#if defined(__x86_64__)
    size_t head = -(uintptr_t)to & 15;
    if (n >= head + 64) {
        memcpy(to, from, head);
        to += head, from += head, n -= head;
        for (; n >= 64; to += 64, from += 64, n -= 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16)),
                    c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
            _mm_stream_si128((__m128i *)to, a);
            _mm_stream_si128((__m128i *)(to + 16), b);
            _mm_stream_si128((__m128i *)(to + 32), c);
            _mm_stream_si128((__m128i *)(to + 48), d);
        }
    }
#endif
    memcpy(to, from, n);
}

static void drain(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

typedef struct {
    char *to;
    const char *from;
    size_t n;
} span_t;

static void copy_piece(const void *what, size_t piece) {
    const span_t *s = what;
    size_t at = piece * PIECE_BYTES, n = s->n - at < PIECE_BYTES ? s->n - at : PIECE_BYTES;
    if (s->n >= STREAM_MIN) {
        stream(s->to + at, s->from + at, n);
        drain();
    } else {
        memcpy(s->to + at, s->from + at, n);
    }
}

void pp_copy(void *to, const void *from, size_t n, int n_helpers) {
    span_t s = {to, from, n};
    unsigned helpers = helpers_for(n, COPY_MIN, n_helpers);
    if (helpers == 0)
        memcpy(to, from, n);
    else
        do_all(copy_piece, &s, (n + PIECE_BYTES - 1) / PIECE_BYTES, helpers);
}

/* ---- strided ---- */

typedef struct {
    char *to;
    const char *from;
    size_t item, n_items;
    size_t rows_per_piece, n_rows;        /* a row: the last axis, or the last two if the other one is denser */
    size_t part_items, n_parts;           /* parts of a row that is too long for one piece */
    int n_dims, n_outer;                  /* n_outer: axes that enumerate the rows */
    size_t shape[PP_DIMS_MAX];
    ptrdiff_t strides[PP_DIMS_MAX];
    size_t row_items;
    bool is_large;
} pack_t;

/* Drops axes of length 1 and merges axes that are contiguous with each other, so that long runs become visible. */
static void simplify(pack_t *p, const pp_layout_t *layout) {
    int n = 0;
    for (int i = 0; i < layout->n_dims; i++) {
        if (layout->shape[i] == 1)
            continue;
        if (n > 0 && p->strides[n - 1] == (ptrdiff_t)layout->shape[i] * layout->strides[i]) {
            p->shape[n - 1] *= layout->shape[i];
            p->strides[n - 1] = layout->strides[i];
            continue;
        }
        p->shape[n] = layout->shape[i];
        p->strides[n++] = layout->strides[i];
    }
    if (n > 0 && p->strides[n - 1] == (ptrdiff_t)p->item) {   /* a run of items becomes one larger item */
        p->item *= p->shape[--n];
    }
    p->n_dims = n;
}

#define PACK_LINE(type) \
    _Pragma("GCC unroll 8") for (size_t i = 0; i < n; i++, from += stride) { \
        type value; \
        memcpy(&value, from, sizeof value); \
        memcpy(to + i * sizeof value, &value, sizeof value); \
    }

static void pack_line(char *to, const char *from, size_t item, size_t n, ptrdiff_t stride, bool is_large) {
    typedef struct { uint64_t a, b; } pair_t;
    switch (item) {
    case 1: PACK_LINE(uint8_t) break;
    case 2: PACK_LINE(uint16_t) break;
    case 4: PACK_LINE(uint32_t) break;
    case 8: PACK_LINE(uint64_t) break;
    case 16: PACK_LINE(pair_t) break;
    default:
        if (!is_large || item < RUN_MIN) {
            for (size_t i = 0; i < n; i++, from += stride)
                memcpy(to + i * item, from, item);
            return;
        }
        for (size_t i = 0; i < n; i++, from += stride)
            stream(to + i * item, from, item);
        drain();
    }
}

/* A tile whose width is known at compile time. */
#define PACK_TILE(type) \
    for (size_t k = 0; k < n_rows; k++, to += to_stride, from += strides[0]) \
        for (size_t i = 0; i < TILE; i++) { \
            type value; \
            memcpy(&value, from + (ptrdiff_t)i * strides[1], sizeof value); \
            memcpy(to + i * sizeof value, &value, sizeof value); \
        }

static void pack_tile(char *to, size_t to_stride, const char *from, size_t item, size_t n_rows, const ptrdiff_t *strides) {
    switch (item) {
    case 4: PACK_TILE(uint32_t) break;
    case 8: PACK_TILE(uint64_t) break;
    default:
        for (size_t k = 0; k < n_rows; k++, to += to_stride, from += strides[0])
            pack_line(to, from, item, TILE, strides[1], false);
    }
}

/* Packs a plane whose rows are far apart within a line but close to each other. It goes tile by tile, so that a cache
 * line is used fully before it is evicted. */
static void pack_plane(char *to, const char *from, size_t item, const size_t *shape, const ptrdiff_t *strides) {
    for (size_t i = 0; i < shape[0]; i += TILE)
        for (size_t j = 0; j < shape[1]; j += TILE) {
            size_t n_i = shape[0] - i < TILE ? shape[0] - i : TILE, n_j = shape[1] - j < TILE ? shape[1] - j : TILE;
            char *tile = to + (i * shape[1] + j) * item;
            const char *source = from + (ptrdiff_t)i * strides[0] + (ptrdiff_t)j * strides[1];
            if (n_j == TILE) {
                pack_tile(tile, shape[1] * item, source, item, n_i, strides);
                continue;
            }
            for (size_t k = 0; k < n_i; k++)
                pack_line(tile + k * shape[1] * item, source + (ptrdiff_t)k * strides[0], item, n_j, strides[1], false);
        }
}

static size_t magnitude(ptrdiff_t stride) { return (size_t)(stride < 0 ? -stride : stride); }

static const char *start_of_row(const pack_t *p, size_t row) {
    const char *from = p->from;
    for (int i = p->n_outer - 1; i >= 0; i--) {
        from += (ptrdiff_t)(row % p->shape[i]) * p->strides[i];
        row /= p->shape[i];
    }
    return from;
}

static void pack_part(const pack_t *p, size_t row, size_t part) {
    size_t first = part * p->part_items, n = p->row_items - first < p->part_items ? p->row_items - first : p->part_items;
    ptrdiff_t stride = p->strides[p->n_outer];
    pack_line(p->to + (row * p->row_items + first) * p->item, start_of_row(p, row) + (ptrdiff_t)first * stride, p->item, n, stride,
              p->is_large);
}

static void pack_piece(const void *what, size_t piece) {
    const pack_t *p = what;
    if (p->n_parts > 1) {
        pack_part(p, piece / p->n_parts, piece % p->n_parts);
        return;
    }
    size_t first = piece * p->rows_per_piece, end = first + p->rows_per_piece < p->n_rows ? first + p->rows_per_piece : p->n_rows;
    const size_t *shape = p->shape + p->n_outer;
    const ptrdiff_t *strides = p->strides + p->n_outer;
    if (p->n_dims - p->n_outer == 2) {     /* consecutive rows of the last outer axis form a plane */
        for (size_t row = first; row < end; row++)
            pack_plane(p->to + row * p->row_items * p->item, start_of_row(p, row), p->item, shape, strides);
        return;
    }
    for (size_t row = first; row < end; row++)
        pack_line(p->to + row * p->row_items * p->item, start_of_row(p, row), p->item, p->row_items, strides[0], p->is_large);
}

/* Splits the axis that planes consist of into strips, so that one large plane is shared by several threads. */
static void split_planes(pack_t *p) {
    int last = p->n_dims - 1, axis = last - 1;
    size_t line_bytes = p->shape[last] * p->item, strip = PIECE_BYTES / (line_bytes ? line_bytes : 1) / TILE * TILE;
    strip = strip < TILE ? TILE : strip;
    while (strip > 1 && p->shape[axis] % strip != 0)   /* all strips have the same size */
        strip--;
    if (p->n_dims == PP_DIMS_MAX || strip >= p->shape[axis] || strip < 4)
        return;
    memmove(p->shape + axis + 1, p->shape + axis, 2 * sizeof *p->shape);
    memmove(p->strides + axis + 1, p->strides + axis, 2 * sizeof *p->strides);
    p->shape[axis] = p->shape[axis + 1] / strip;
    p->shape[axis + 1] = strip;
    p->strides[axis] *= (ptrdiff_t)strip;
    p->n_dims++;
    p->n_outer++;
}

static void split_row(pack_t *p) {
    p->part_items = p->item < PIECE_BYTES ? PIECE_BYTES / p->item : 1;
    p->n_parts = (p->row_items + p->part_items - 1) / p->part_items;
}

void pp_copy_strided(void *to, const void *from, const pp_layout_t *layout, int n_helpers) {
    pack_t p = {.to = to, .from = from, .item = layout->item, .n_rows = 1, .row_items = 1};
    size_t n_bytes = layout->item;
    for (int i = 0; i < layout->n_dims; i++)
        n_bytes *= layout->shape[i];
    if (n_bytes == 0)
        return;
    p.is_large = n_bytes >= STREAM_MIN;
    simplify(&p, layout);
    if (p.n_dims == 0) {
        pp_copy(to, from, n_bytes, n_helpers);
        return;
    }
    int last = p.n_dims - 1;
    bool is_plane = last > 0 && magnitude(p.strides[last]) > magnitude(p.strides[last - 1]);
    p.n_outer = is_plane ? last - 1 : last;
    if (is_plane)
        split_planes(&p);
    for (int i = 0; i < p.n_outer; i++)
        p.n_rows *= p.shape[i];
    for (int i = p.n_outer; i < p.n_dims; i++)
        p.row_items *= p.shape[i];
    size_t row_bytes = p.row_items * p.item;
    p.rows_per_piece = row_bytes >= PIECE_BYTES ? 1 : PIECE_BYTES / row_bytes;
    if (!is_plane)
        split_row(&p);
    size_t n_pieces = p.n_parts > 1 ? p.n_rows * p.n_parts : (p.n_rows + p.rows_per_piece - 1) / p.rows_per_piece;
    do_all(pack_piece, &p, n_pieces, helpers_for(n_bytes, p.item < RUN_MIN ? PACK_MIN : COPY_MIN, n_helpers));
}
