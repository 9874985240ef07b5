/* The prototypes that several files of the native module share, each under the file that defines it.
 *
 * segment.c, channel.c, blocks.c and prim/ do not use Python; the C stress test links them. Memory is shared between
 * threads, interpreters and processes. Every word that two sides access is atomic, and each operation names its memory
 * order. README.md describes the protocol and why it cannot lose a wake-up.
 */
#ifndef PP_NATIVE_H
#define PP_NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef PP_SCHEDULE   /* tests/native/schedule: a scheduler runs each access as a step, with a tiny segment */
#include "schedule_ops.h"
#else
#define pp_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define pp_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define pp_load_seq_cst(p) atomic_load_explicit((p), memory_order_seq_cst)
#define pp_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define pp_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define pp_store_seq_cst(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)
#define pp_add_seq_cst(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define pp_or_seq_cst(p, v) atomic_fetch_or_explicit((p), (v), memory_order_seq_cst)
#define pp_and_seq_cst(p, v) atomic_fetch_and_explicit((p), (v), memory_order_seq_cst)
#define pp_swap_seq_cst(p, v) atomic_exchange_explicit((p), (v), memory_order_seq_cst)
#define pp_cas_seq_cst(p, expected, v) \
    atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_seq_cst, memory_order_seq_cst)
#endif

/* What holds whenever control is here. `make sanitize` and `make explore` check it; elsewhere it is not even evaluated.
 * PP_PEEK reads an atomic without being a step for the scheduler of `make explore`. */
#if defined(PP_SCHEDULE)
_Noreturn void sch_fail(const char *format, ...);
#define PP_ASSERT(condition) ((condition) ? (void)0 : sch_fail("not true: %s", #condition))
#elif defined(PP_CHECK)
#include <stdio.h>
#include <stdlib.h>
#define PP_ASSERT(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition), abort()))
#else
#define PP_ASSERT(condition) ((void)0)
#endif
#define PP_PEEK(p) atomic_load_explicit((p), memory_order_seq_cst)

/* Part of the segment's layout: the parent and all processes that map a segment must agree on these values. */
#ifndef PP_SCHEDULE
#define PP_SLOTS 1024u               /* tasks in the task ring; a power of two */
#define PP_SLOT_INLINE 72u           /* payload bytes inside a slot, which is two cache lines */
#define PP_TASK_BYTES (1u << 20)     /* ring for payloads that do not fit a slot; a power of two */
#define PP_RESULT_BYTES (1u << 18)   /* bytes of one worker's ring of results; a power of two */
#define PP_INLINE_MAX (1u << 15)     /* larger payloads travel in blocks; guess: far below both rings */
#define PP_BATCH 256u                /* most results between two checks for signals and for claims of the lead */
#define PP_PATIENT_MIN 4u            /* waiting tasks per worker above which the leader lets results gather */
#define PP_BLOCKS 4096u              /* most blocks of one arena that are in use at once */
#define PP_SHELF_BYTES (1u << 20)    /* guess: room for the definitions of a long session; only touched pages take memory */
#define PP_ARENA_BYTES (1ull << 38)  /* address range, not memory, of one arena; smaller under RLIMIT_FSIZE */
#define PP_IDLE_MAX (64ull << 20)    /* bytes of idle blocks that a pool keeps for the next values: a typical array of 64 MB */
#define PP_EVENTS (1u << 16)         /* events of one worker that are kept for a trace; a power of two */
#define PP_MAX_WORKERS 4000u         /* worker slot numbers fit into 12 bits of a slot's state */
/* In pools of up to so many workers the leader looks into every ring, and the bits of `replied` never change: a bit is one more cache
 * line that each result moves to another core and back. Measured round trips in the channel alone, without Python, on 2 cores: with
 * 2 to 32 workers 0.93 to 0.95 us by rings and 1.11 by bits; with 63 the same by both; with 128 1.31 us by rings, 1.12 by bits. */
#define PP_FEW 32u
#endif
#define PP_WORKER_WORDS ((PP_MAX_WORKERS + 63) / 64)   /* words with a bit for each worker slot */
/* Buffers from this size on are used in their block, not copied out. Best round-trip times of an array whose pages are
 * read, on a busy 2-core VM: 1 MB copied 0.16 ms, kept 0.21; 2 MB copied 0.34, kept 0.39 (first quartiles 0.80 and
 * 0.62); 4 MB copied 7.7, kept 1.0, since malloc takes fresh pages from the system for such sizes. */
#define PP_KEEP_MIN (2u << 20)

/* How long to spin before sleeping. This must exceed a caller's work between two calls, some 4 us of Python, even after
 * it was woken, which takes some 50 us. Otherwise two threads that have slept once keep waking each other. Measured
 * round trips of a process pool on 2 cores: 49 us with 3 us of spinning, 40 with 6, 10 with 12, 6.8 with 25 or more.
 * Round trips of small arrays, which take longer to pickle: 30 or 130 us with 25, 35 or 200 with 50, 24 to 39 with 75. */
#define PP_SPIN_NS 75000
/* Adaptive spinning. If the other side has no CPU, spinning keeps the CPU from it. After PP_VAIN_MAX misses in a row
 * spin windows are therefore short, except that one in PP_VAIN_PERIOD is twice as long as usual. */
#define PP_SPIN_SHORT_NS 4000
#define PP_VAIN_MAX 3
#define PP_VAIN_PERIOD 32

typedef struct {           /* adaptive spinning of one thread, which looks for something before it sleeps */
    int64_t until_ns;
    uint32_t n_vain;       /* misses in a row */
} pp_spin_t;

typedef enum { PP_STATUS_OK, PP_STATUS_FAILED, PP_STATUS_UNENCODABLE, PP_STATUS_BROKEN_INIT } pp_status_t;
typedef enum { PP_IN_PLACE, PP_IN_RING, PP_IN_BLOCK } pp_where_t;
typedef enum { PP_MODE_CALL, PP_MODE_ITEM, PP_MODE_STAR, PP_MODE_CHUNK, PP_MODE_STARCHUNK } pp_mode_t;
enum { PP_IS_TIMED = 1 << 8 };   /* in a slot's `mode`, beside a pp_mode_t: the worker records when it claims the task */
typedef enum { PP_RUN, PP_DRAIN, PP_STOP } pp_stop_t;                  /* the command to all workers */
typedef enum { PP_WORKER_EMPTY, PP_WORKER_STARTING, PP_WORKER_READY, PP_WORKER_EXITED } pp_worker_state_t;
typedef enum { PP_BUSY, PP_SEEKING, PP_ASLEEP } pp_park_t;             /* a worker's state, in its futex word */
#define PP_NOT_REFUSED UINT64_MAX
enum { PP_FOREGROUND = 1, PP_BACKGROUND = 2 };                         /* who must be notified of results: bits */

typedef struct {           /* a block of an arena, by its position in the segment's file */
    uint64_t at, size;
    uint32_t id;
} pp_blockref_t;

typedef struct {           /* a task ring's slot, with one task for the worker that claims it */
    _Alignas(128) _Atomic uint64_t state;   /* sequence << 16 | worker slot << 4 | tag; see channel.c */
    uint64_t job, function_at;
    uint64_t at;           /* PP_IN_RING: position in the task ring */
    uint32_t function_id, function_size;    /* id 0: none */
    uint32_t index, size;
    uint16_t mode, where;
    _Alignas(8) unsigned char data[PP_SLOT_INLINE];   /* PP_IN_BLOCK: a pp_blockref_t */
} pp_slot_t;

typedef struct {           /* the header of one result; frames are 8-byte aligned and contiguous */
    uint32_t frame_size, size;              /* bytes with header and padding; bytes of the payload */
    uint64_t job;
    uint32_t index;
    uint16_t status, where;
} pp_frame_t;

typedef struct {           /* one worker slot: the part of the segment that belongs to one worker at a time */
    _Alignas(64) _Atomic uint32_t park;     /* pp_park_t; its worker stores any; others: ASLEEP -> SEEKING */
    _Alignas(64) _Atomic uint32_t state;    /* pp_worker_state_t; parent stores EMPTY, STARTING; worker: READY, EXITED */
    _Atomic uint32_t full;                  /* the worker sets 1 and waits for room in its ring; the parent clears it */
    _Atomic uint32_t initializes;           /* 1 while a thread or interpreter runs its initializer */
    _Atomic uint32_t has_replied;           /* 1 while nobody may interrupt the worker: from a reply to the end of its task,
                                             * and once a thread's loop is over */
    _Atomic uint32_t is_interrupted;        /* 1 from an interrupt to the end of what it is to end */
    _Atomic uint32_t pid;                   /* the worker's process id */
    _Atomic uint32_t grant;                 /* threads that its libraries may use; 0: unlimited; written by the parent */
    _Alignas(64) _Atomic uint32_t holds;    /* 1 while the worker has the task below; only the worker writes these */
    _Atomic uint32_t index, block;          /* block: id + 1 of an argument that is not yet copied out, or 0 */
    _Atomic uint64_t job, n_done;
    _Atomic uint64_t n_events, since_ns;    /* recorded by all workers of this slot; see trace.c */
    _Atomic uint32_t tid;                   /* of the thread that runs tasks; 0: none yet; written by the worker */
    _Atomic uint64_t begun_ns;              /* when it claimed the task that it holds, if that is timed; otherwise 0 */
    _Alignas(64) _Atomic uint64_t tail;     /* results: how far the worker has written */
    _Alignas(64) _Atomic uint64_t head;     /* results: how far the parent has taken them */
    uint64_t n_taken;                       /* results of this worker's tasks that were taken; only the parent uses it */
    _Alignas(64) unsigned char ring[PP_RESULT_BYTES];
} pp_worker_slot_t;

typedef enum { PP_EVENT_TASK, PP_EVENT_WAIT, PP_EVENT_BUDGET } pp_event_kind_t;
enum { PP_EVENT_WORDS = 6, PP_TAGS_THREADS_AT = 32, PP_TAGS_STATUS_AT = 56, PP_TAGS_KIND_AT = 60 };   /* bits of `tags` */

typedef struct {           /* a trace event of a worker; times are CLOCK_MONOTONIC's in ns; 0: unknown */
    _Atomic uint64_t words[PP_EVENT_WORDS];   /* begin, end, put (of a wait: ns asleep), job, tags, run delay; see trace.c */
} pp_event_t;

typedef struct pp_budget { /* a pool's part in the thread limits of this process; see limits.c */
    struct pp_budget *next;
    _Atomic uint32_t n_awake;               /* active workers; written under the lock, as `n_threads` */
    unsigned n_threads;                     /* the process's count while any of them is active */
    _Atomic uint32_t n_cpus;                /* threads that may run on the pool's CPUs; 0: the parent process decides */
    _Atomic bool lends;                     /* those of idle workers are lent to active ones */
    _Atomic bool is_open;
    bool is_kept, is_lent;
    _Atomic uint64_t n_lends, n_reclaims;
} pp_budget_t;

#define PP_KEPT 2u          /* in_use of a block that its receiver retains: this, or in a worker this plus its slot number */
#define PP_TRIMMED UINT32_MAX   /* in_use of a block while the parent gives its pages back */
typedef struct {           /* an arena's blocks: in_use is not 0 while one is in use; the owner sets it, the receiver clears it */
    _Alignas(64) _Atomic uint32_t in_use[PP_BLOCKS];
    struct { uint64_t at, capacity; } place[PP_BLOCKS];   /* written by the owner before the block is first in use */
    _Atomic uint64_t touched[PP_BLOCKS];    /* bytes of each that may occupy memory; written by the thread that has set in_use */
    _Atomic uint64_t n_touched;             /* the sum of `touched` */
    _Atomic uint32_t n_numbers, n_opened;   /* block numbers given out so far; how often the owner has opened a block */
} pp_arena_flags_t;

#define PP_MAGIC 0x314c4f4f50797470ull   /* "ptyPOOL1" */
#define PP_CORE_AT 65536u                /* where pp_shared_t begins in the file: the largest page size in use */

typedef struct {
    uint64_t magic;                         /* the first field */
    uint32_t n_workers, by_reference;
    uint64_t arenas_at, arena_bytes;        /* offset of the first arena in the file; bytes of each arena; both are constant */
    _Alignas(64) _Atomic uint32_t stop;     /* pp_stop_t */
    _Atomic uint32_t events;                /* something happened to a worker: the parent checks all of them */
    _Atomic uint32_t is_traced;             /* the parent wants trace events */
    _Atomic uint32_t has_room;              /* a put that was refused may succeed now: the parent retries */
    _Atomic uint64_t room_at;               /* the worker that takes this task or a later one notifies of room; or PP_NOT_REFUSED */
    _Alignas(64) _Atomic uint64_t head;     /* next slot to claim; workers advance it, and the parent may */
    _Alignas(64) _Atomic uint32_t bell;     /* futex word on which the parent's threads wait */
    _Atomic uint32_t waiting;               /* who must be notified of a result: PP_FOREGROUND | PP_BACKGROUND */
    _Atomic uint32_t has_let_go;            /* the leader waits without the GIL */
    _Atomic uint32_t is_watched;            /* the parent wants to know when workers become active or idle: */
    _Atomic uint32_t pulse;                 /* changes whenever one does; futex word of the parent's balancer */
    _Atomic uint32_t n_awaiting;            /* threads that sleep on it */
    _Atomic uint32_t wants_trim;            /* blocks were released: the background thread checks for idle memory */
    _Alignas(64) _Atomic uint32_t seeker;   /* a hint: the worker that began to seek last. Its `park` says whether it still does */
    _Atomic uint64_t asleep[PP_WORKER_WORDS];   /* bits of the workers whose `park` may be ASLEEP; each worker changes its own */
    _Alignas(64) _Atomic uint64_t replied[PP_WORKER_WORDS];   /* bits of rings with results; workers set them, the leader clears them. All are
                                             * set in a pool of PP_FEW workers or fewer */
    _Alignas(128) pp_slot_t slots[PP_SLOTS];
    _Alignas(64) unsigned char task_ring[PP_TASK_BYTES];
    _Atomic uint64_t put_ns[PP_SLOTS];      /* when the task in a slot was put, if that was traced */
    /* followed by pp_arena_flags_t[1 + n_workers], pp_worker_slot_t[n_workers]; from the next page on
     * pp_event_t[n_workers][PP_EVENTS]; from the next page on the shelf */
} pp_shared_t;

typedef struct pp_memory pp_memory_t;
typedef struct pp_pins pp_pins_t;

typedef struct pp_segment {   /* one mapping of a segment, reference-counted within its process */
    _Atomic long refs;
    int fd;                /* -1 once the segment is closed and no block of it is retained */
    uint64_t file_number;  /* identifies the file: whether `fd` still refers to it */
    size_t core_size;
    unsigned n_workers;
    bool by_reference;
    bool is_attached;      /* another process made it: this one is a worker */
    uint64_t arenas_at, arena_bytes, window_bytes;   /* as in `shared`; the part of an arena that is mapped as one window */
    pp_shared_t *shared;   /* NULL once the segment is closed */
    bool is_closed;        /* guarded by the mutex in memory.c, as is n_kept, the number of its retained blocks */
    uint32_t n_kept;
    pthread_mutex_t interrupts;             /* orders interrupts of threads and the end of their loops */
    bool is_local;         /* both sides are interpreters of this process */
    _Atomic(pp_pins_t *) orphans;
    _Atomic bool has_no_receiver;           /* the parent's side has ended: nobody takes loans any more */
    pp_budget_t budget;    /* of this pool, in this process; open if its workers are limited here */
    struct pp_segment *next_lender;         /* list of the pools that lend; how many CPUs this one lends; see others.c */
    unsigned n_lent_cpus;
    _Atomic uint64_t n_shelved;             /* bytes of the shelf that are taken, or were refused; only the parent uses it */
    struct pp_window { _Atomic(void *) memory; _Atomic uint32_t n_kept; uint32_t n_opened; } *windows;   /* one per arena; see blocks.c */
} pp_segment_t;

static inline pp_arena_flags_t *pp_segment_flags(pp_segment_t *s, unsigned arena) {
    return (pp_arena_flags_t *)(s->shared + 1) + arena;
}

/* Whether the worker runs Python code of a task or initializer, which the end of the pool interrupts. */
static inline bool pp_worker_slot_is_interruptible(pp_worker_slot_t *worker_slot) {
    bool has_begun = pp_load_acquire(&worker_slot->holds) || pp_load_seq_cst(&worker_slot->initializes);
    return has_begun && !pp_load_relaxed(&worker_slot->has_replied);
}

/* The same for one timed task, by when it began; begun_ns 0: whatever it runs. */
static inline bool pp_worker_slot_runs(pp_worker_slot_t *worker_slot, uint64_t begun_ns) {
    return pp_worker_slot_is_interruptible(worker_slot) && (!begun_ns || pp_load_relaxed(&worker_slot->begun_ns) == begun_ns);
}

static inline bool pp_worker_slot_has_replied(pp_worker_slot_t *worker_slot) {   /* and the results are not taken yet */
    return pp_load_seq_cst(&worker_slot->tail) != pp_load_seq_cst(&worker_slot->head);
}

static inline pp_worker_slot_t *pp_segment_worker(pp_segment_t *s, unsigned worker) {
    return (pp_worker_slot_t *)pp_segment_flags(s, 1 + s->n_workers) + worker;
}

/* Bits of worker slots: `asleep` and `replied` of the segment. */
static inline uint64_t pp_bit_of(unsigned worker) { return 1ull << worker % 64; }
static inline void pp_bit_set(_Atomic uint64_t *bits, unsigned worker) { pp_or_seq_cst(&bits[worker / 64], pp_bit_of(worker)); }
static inline void pp_bit_clear(_Atomic uint64_t *bits, unsigned worker) { pp_and_seq_cst(&bits[worker / 64], ~pp_bit_of(worker)); }
static inline bool pp_bit_is_set(_Atomic uint64_t *bits, unsigned worker) {
    return pp_load_seq_cst(&bits[worker / 64]) & pp_bit_of(worker);
}
/* A loop over the workers whose bits are set. */
#define PP_EACH_BIT(worker, bits, n_workers) \
    for (unsigned pp_word = 0, worker = 0; pp_word * 64 < (n_workers); pp_word++) \
        for (uint64_t pp_left = pp_load_seq_cst(&(bits)[pp_word]); \
             pp_left && (worker = pp_word * 64 + (unsigned)__builtin_ctzll(pp_left), true); pp_left &= pp_left - 1)

/* segment.c: the shared-memory segment that both sides map */
int pp_segment_create(unsigned n_workers, bool by_reference, pp_segment_t **out);
int pp_segment_attach(int fd, pp_segment_t **out);   /* takes ownership of fd */
bool pp_segment_has_file(const pp_segment_t *s);     /* false: somebody has closed its descriptor */
int pp_segment_map(pp_segment_t *s, uint64_t at, size_t size, void **memory);   /* EBADF: the same */
void pp_segment_punch_hole(pp_segment_t *s, uint64_t at, uint64_t size);
bool pp_segment_is_sound(const pp_segment_t *s);     /* false: somebody has overwritten its header */
pp_segment_t *pp_segment_ref(pp_segment_t *s);
void pp_segment_unref(pp_segment_t *s);
void pp_segment_close(pp_segment_t *s);              /* releases all but retained blocks; see segment.c */
uint64_t pp_segment_arena_at(pp_segment_t *s, unsigned arena);
pp_event_t *pp_segment_events(pp_segment_t *s, unsigned worker);
void pp_segment_forget_events(pp_segment_t *s);      /* releases the memory of all events */
/* The shelf: what the parent puts there stays in place as long as the segment exists. Tasks name it by its position. */
bool pp_shelf_put(pp_segment_t *s, const void *from, uint32_t size, uint32_t *at);   /* any thread; false: no room */
const void *pp_shelf_get(pp_segment_t *s, uint32_t at, uint32_t size);               /* NULL: there is no such place */

/* blocks.c: large payloads. Arena 0 belongs to the parent, arena 1 + n to worker slot n. Only its owner's side opens
 * blocks in it, in one thread at a time. */
typedef struct pp_arena pp_arena_t;
pp_arena_t *pp_arena_new(pp_segment_t *s, unsigned arena);
void pp_arena_free(pp_arena_t *a);
int pp_block_open(pp_arena_t *a, uint64_t size, pp_blockref_t *ref, void **memory);   /* EAGAIN: all in use now; EFBIG: never fits */
void pp_block_hold(pp_arena_t *a, const pp_blockref_t *ref);   /* marks it as open for a whole call: nothing may wait for its room */
void pp_block_pin(pp_arena_t *a, const pp_blockref_t *ref, pp_pins_t *pins);   /* retained references, until the block is released */
void pp_block_drop(pp_arena_t *a, const pp_blockref_t *ref);   /* closes a block that was never sent */
void pp_arena_unpin(pp_arena_t *a);                       /* drops the retained references of released blocks */
bool pp_arena_has_pins(const pp_arena_t *a);              /* any thread may call it */
bool pp_arena_is_attached(const pp_arena_t *a);           /* whether its payloads go to another process, which started this one */
uint64_t pp_arena_open_bytes(pp_arena_t *a);              /* bytes of blocks that no receiver has taken */
void pp_block_release(pp_segment_t *s, unsigned arena, uint32_t id);
int pp_block_map(pp_segment_t *s, const pp_blockref_t *ref, void **memory);
void pp_block_unmap(pp_segment_t *s, const pp_blockref_t *ref, void *memory);
void pp_arena_forget(pp_segment_t *s, unsigned arena);   /* after its owner's death: releases the blocks that no receiver retains */
void pp_windows_close(pp_segment_t *s);
void pp_blocks_trim(pp_segment_t *s);                    /* gives back memory idle since the last call; one thread of the parent at a time */
uint64_t pp_blocks_idle(pp_segment_t *s);                /* bytes of memory in blocks that are not in use */
void pp_arena_drop_kept(pp_segment_t *s, unsigned arena, uint32_t keeper);   /* a process is dead: releases what it retained */

#define PP_SHARE_ID 16u
/* links.c: shared memory on its way between a process and its worker processes */
typedef struct pp_link pp_link_t;
int pp_link_new(pp_link_t **out, int *worker_fd);        /* the caller owns the worker's end */
int pp_link_fd(const pp_link_t *link);                   /* readable when `pp_link_serve` has something to do */
int pp_link_serve(pp_link_t *link);                      /* never waits; EBADF: somebody has closed its descriptor */
void pp_links_serve(void);                               /* the same for all links of this process */
void pp_link_free(pp_link_t *link);
void pp_link_enter(int fd);                              /* this process is a worker, and fd its end */
bool pp_upstream_lock(void);                             /* false: this process is no worker process; the next three need the lock */
void pp_upstream_unlock(void);
int pp_upstream_want(const unsigned char *id, int *fd);  /* asks the parent, and waits for its answer */
int pp_upstream_give(const unsigned char *id, bool readonly, int fd);
void pp_upstream_drop(const unsigned char *id);
void pp_links_before_fork(void);
void pp_links_after_fork(void);
void pp_links_after_fork_in_child(void);

/* memory.c: memory in which values may lie: blocks that their receiver retains, and what `share` made */
typedef struct {           /* the name under which shared memory travels */
    unsigned char id[PP_SHARE_ID];
    uint64_t size, at, length;   /* bytes of the whole; offset and bytes of the part that is meant */
    uint64_t readonly;
} pp_handle_t;
int pp_memory_keep(pp_segment_t *s, unsigned arena, const pp_blockref_t *ref, uint32_t keeper, pp_memory_t **out);
int pp_memory_keep_common(pp_memory_t *kept, const pp_blockref_t *ref, pp_memory_t **out);   /* a block that stays while `kept` does */
int pp_memory_share(size_t size, pp_memory_t **out);
int pp_memory_attach(const pp_handle_t *handle, pp_memory_t **out);   /* may wait for the parent; ESTALE: it has it no longer */
pp_memory_t *pp_memory_known(const unsigned char *id);    /* a new reference, or NULL */
int pp_memory_fd(const pp_memory_t *m);                   /* its descriptor; -1: somebody has closed it */
int pp_memory_adopt(int fd, const unsigned char *id, bool readonly, pp_memory_t **out);   /* takes ownership of fd */
int pp_memory_give(pp_memory_t *m);                       /* in a worker process: lets the parent have it */
pp_memory_t *pp_memory_here(const pp_handle_t *handle);   /* a new reference if this process has it, or NULL; never waits */
bool pp_memory_find(const void *start, size_t size, pp_handle_t *handle, pp_memory_t **out);   /* shared memory around a range */
void pp_memory_protect(pp_memory_t *m);                   /* makes it read-only, also for processes that attach it later */
bool pp_memory_is_readonly(const pp_memory_t *m);
bool pp_memory_has_one_user(const pp_memory_t *m);        /* whether the caller's reference is the only one */
int pp_memory_reserve(const void *like, size_t size, pp_memory_t **out);   /* for memory that is to be moved; ENOTSUP: it cannot be */
int pp_memory_move(pp_memory_t *m, void *from);           /* moves the content; if it is refused, `from` is as before */
char *pp_memory_start(const pp_memory_t *m);
size_t pp_memory_size(const pp_memory_t *m);
pp_memory_t *pp_memory_ref(pp_memory_t *m);
void pp_memory_unref(pp_memory_t *m);
int pp_memory_lend(void *object, size_t size, void (*drop)(void *), pp_memory_t **out);
void *pp_memory_take(pp_memory_t *m);                     /* returns the object that was lent, or NULL if another thread has taken it */
int pp_pins_add(pp_pins_t **pins, pp_memory_t *m);        /* consumes the reference */
void pp_pins_free(pp_pins_t *pins);
size_t pp_pins_lent(const pp_pins_t *pins);               /* bytes of the loans in it */
bool pp_memory_close(pp_segment_t *s);                    /* see pp_segment_close; false: it was closed before */
void pp_pins_orphan(pp_segment_t *s, pp_pins_t *pins);
void pp_orphans_drop(pp_segment_t *s);                    /* drops loans that no receiver has taken */
void pp_orphans_free(pp_segment_t *s);
void pp_memory_before_fork(void);
void pp_memory_after_fork(void);                         /* in parent and child */

/* leading.c: which thread takes results (the leader/followers pattern) */
typedef struct pp_waiter { /* one thread that waits; lies on its stack */
    struct pp_waiter *next, *previous;
    _Atomic uint32_t word;                  /* futex word: woken or leads; the higher bits change on a signal */
    uintptr_t thread;
    const void *awaited;
    bool is_listed;
} pp_waiter_t;
typedef struct {
    pthread_mutex_t mutex;                  /* guards the list and writes of `leader` */
    pp_waiter_t *first, *last;              /* followers, the one that has waited longest first */
    _Atomic uintptr_t leader;               /* the leading thread, or 0 */
    bool is_paused;                         /* nobody leads, but the background thread was not told; guarded by the mutex */
    _Atomic(const void *) awaited;          /* what the leader waits for */
    _Atomic uint32_t n_claims;              /* threads that ask for the lead now */
} pp_leading_t;
typedef struct pp_parent pp_parent_t;
uintptr_t pp_this_thread(void);
void pp_leading_init(pp_leading_t *leading);
bool pp_lead_try(pp_parent_t *parent);                              /* whether the caller leads now */
bool pp_lead_is_mine(pp_parent_t *parent);
bool pp_lead_is_claimed(const pp_parent_t *parent);                 /* whether the leader must hand over */
void pp_lead_for(pp_parent_t *parent, const void *awaited);
void pp_lead_release(pp_parent_t *parent);                          /* called by the leader; otherwise it does nothing */
void pp_lead_pause(pp_parent_t *parent);                            /* the caller will lead again soon, unless others do meanwhile */
void pp_lead_claim(pp_parent_t *parent);                            /* waits until the caller leads */
bool pp_lead_take_over(pp_parent_t *parent, pp_waiter_t *w);
bool pp_follow_begin(pp_parent_t *parent, pp_waiter_t *w, const void *awaited);   /* w must be zeroed. False: nobody leads */
int pp_follow_wait(pp_waiter_t *w, int64_t deadline_ns);         /* 0, ETIMEDOUT or EINTR */
void pp_follow_end(pp_parent_t *parent, pp_waiter_t *w);
void pp_wake_waiters(pp_parent_t *parent, const void *awaited);

/* channel.c: tasks to workers, results back */
struct pp_parent {            /* the parent's private half; one thread at a time puts, and one at a time takes */
    pp_segment_t *segment;
    _Atomic uint64_t tail;                  /* slots published; written by the thread that puts, read by the leader */
    _Atomic uint64_t reclaimed;             /* slots that may be used again; as `tail` */
    uint64_t bytes_tail, bytes_head;        /* task ring */
    uint64_t slot_bytes[PP_SLOTS];          /* per slot: bytes_head once it is reclaimed */
    _Atomic uint32_t leader;                /* a foreground thread takes results */
    pp_spin_t spin, moment;                 /* the leader's: for pending events; for workers to release the GIL */
    _Atomic uint32_t notified;               /* the background thread must wake up, whoever leads */
    pp_leading_t leading;
    _Atomic uint32_t must_feed;             /* tasks wait in the backlog, */
    _Atomic uintptr_t feeder;               /* which this thread moves into the channel; 0: none; see waiting.c */
    _Atomic uint32_t must_pickle;           /* a thread that waits with a timeout has left them to the background thread */
    _Atomic uint32_t next_worker;           /* the worker slot whose results the leader takes next */
    bool shares_gil;                        /* with its workers */
    const struct pp_hooks *hooks;           /* for waiting.c */
};

typedef struct {           /* what a slot is filled with; `data` is copied */
    uint64_t job, function_at;
    uint32_t function_id, function_size, index, size;
    uint16_t mode, where;
    const void *data;
} pp_slot_content_t;

void pp_parent_init(pp_parent_t *parent, pp_segment_t *s);
bool pp_parent_has_room(pp_parent_t *parent);
uint64_t pp_parent_n_waiting(pp_parent_t *parent);
void pp_parent_note_full(pp_parent_t *parent);
bool pp_parent_waits_for_room(pp_parent_t *parent);
bool pp_parent_take_room(pp_parent_t *parent);
int pp_parent_put(pp_parent_t *parent, const pp_slot_content_t *content, uint64_t *sequence);   /* EAGAIN: full */
void pp_parent_wake(pp_parent_t *parent, unsigned n_tasks);
bool pp_parent_revoke(pp_parent_t *parent, uint64_t sequence, pp_slot_t *copy);
bool pp_parent_revoke_next_of(pp_parent_t *parent, uint64_t job, uint64_t *from, pp_slot_t *copy);
bool pp_parent_is_held(pp_parent_t *parent, unsigned worker, uint64_t job);
bool pp_parent_pop_waiting(pp_parent_t *parent, pp_slot_t *copy);
bool pp_parent_reap(pp_parent_t *parent, unsigned worker, uint64_t *job, uint32_t *index);
void pp_parent_open_slot(pp_parent_t *parent, unsigned worker);
void pp_parent_stop(pp_parent_t *parent, pp_stop_t stop);
unsigned pp_parent_next_reply(pp_parent_t *parent, unsigned from);   /* the next worker, in turn, that may have results; n_workers: none */
const pp_frame_t *pp_parent_peek(pp_parent_t *parent, unsigned worker);
void pp_parent_take(pp_parent_t *parent, unsigned worker, const pp_frame_t *frame);
bool pp_parent_has_work(pp_parent_t *parent);
void pp_parent_lead(pp_parent_t *parent);
void pp_parent_step_down(pp_parent_t *parent);
bool pp_parent_spin(pp_parent_t *parent);
int pp_parent_park(pp_parent_t *parent, uint32_t bell, int64_t deadline_ns, bool patient);   /* 0, ETIMEDOUT or EINTR */
int pp_parent_wait_background(pp_parent_t *parent, int64_t deadline_ns);       /* 0, ETIMEDOUT or EINTR */
void pp_parent_notify(pp_parent_t *parent);
void pp_parent_wake_leader(pp_parent_t *parent);                              /* makes it check again what it waits for */
bool pp_parent_wants_feed(pp_parent_t *parent);                                /* tasks are in the backlog, and no other thread puts */
void pp_ring(pp_shared_t *shared, bool everybody);
void pp_notify_all(pp_shared_t *shared);
void pp_want_trim(pp_shared_t *shared);

typedef struct {           /* what a worker knows of its present task or wait; 0: it began while no trace was running */
    uint64_t begun_ns, put_ns, waits_ns, slept_ns;
    bool has_waited, is_stale;              /* is_stale: part of this must be reset at the next task */
} pp_trace_t;

typedef struct {           /* a worker's private half */
    pp_segment_t *segment;
    pp_shared_t *shared;
    pp_worker_slot_t *own;                         /* its worker slot */
    unsigned n_worker;
    pp_spin_t spin, moment;                 /* for tasks; for the caller to release the GIL */
    int64_t deadline_ns;                    /* when `pp_worker_wait` returns without a task; 0: never */
    pp_trace_t trace;
} pp_worker_t;

int pp_worker_init(pp_worker_t *worker, pp_segment_t *s, unsigned number);
bool pp_worker_claim(pp_worker_t *worker, pp_slot_t *copy, void *payload);   /* payload: PP_INLINE_MAX bytes */
int pp_worker_wait(pp_worker_t *worker);   /* 0: claim; EINTR: handle signals first; ETIMEDOUT; ECANCELED: stop */
bool pp_worker_must_stop(pp_worker_t *worker);
void pp_worker_copied(pp_worker_t *worker, const pp_slot_t *slot, bool is_kept);   /* the argument was read; releases its block
                                                                        * unless is_kept */
int pp_worker_reply(pp_worker_t *worker, const pp_frame_t *frame, const void *payload);   /* EAGAIN: no room */
int pp_worker_wait_room(pp_worker_t *worker);                           /* 0 or ECANCELED */
void pp_worker_finish(pp_worker_t *worker);                             /* the worker no longer holds a task */
void pp_worker_state(pp_worker_t *worker, pp_worker_state_t state);

/* waiting.c: what a thread of the parent does while it waits */
typedef struct {           /* results that a leader takes between two checks for signals and for claims of the lead */
    unsigned n;
    int64_t deadline_ns;                    /* -1: none */
    const void *alone_for;                  /* with a deadline, what the leader waits for: others' slow results are left to the background thread */
    bool was_slow;                          /* whether the newest result was, if there is a deadline */
    void *cached;                           /* what `take` wants to have for the next result */
} pp_batch_t;
typedef struct pp_hooks {  /* what the layer above does for a thread that waits; an error is an exception of that layer */
    int (*put)(pp_parent_t *parent, bool is_nested, int64_t until_ns);   /* moves the backlog into the channel. 1: as far as there is room; 0: there is
                                                                          * no time for the rest; -1: an error */
    int (*take)(pp_parent_t *parent, unsigned worker, const pp_frame_t *frame, pp_batch_t *batch);   /* takes and delivers a result: 0 or -1 */
    void (*end_batch)(pp_batch_t *batch);
    bool (*is_met)(const void *awaited);
    bool (*is_closed)(pp_parent_t *parent);
    int (*run_handlers)(pp_parent_t *parent, _Atomic uint32_t *word);    /* of signals; one that comes later changes the word, on which the thread
                                                                          * will sleep. NULL: runs none, and it will not sleep. 0 or -1 */
    int64_t (*prepare_sleep)(int64_t deadline_ns);   /* returns when to wake at the latest */
    void *(*let_go)(pp_parent_t *parent);            /* before the thread may sleep or spin, */
    void (*take_back)(pp_parent_t *parent, void *state);   /* and after that */
} pp_hooks_t;
typedef enum { PP_WAIT_FAILED, PP_WAIT_TIMED_OUT, PP_WAIT_MET, PP_WAIT_CLOSED, PP_WAIT_GOES_ON } pp_waited_t;
int pp_feed(pp_parent_t *parent, int64_t until_ns);                     /* 0 or -1 */
int pp_take_results(pp_parent_t *parent);                               /* those that are there, unless another thread takes them: 0 or -1 */
int pp_take_last(pp_parent_t *parent, unsigned worker);                 /* the results of one that has ended: 0 or -1. The caller then leads */
pp_waited_t pp_wait_for(pp_parent_t *parent, const void *awaited, int64_t deadline_ns);   /* -1: none */

/* gil_handoff.c: handing the GIL over between threads of one interpreter */
void pp_parent_let_go(pp_parent_t *parent, bool has_let_go);
void pp_parent_await_workers(pp_parent_t *parent);                     /* until workers that have replied look for work, or for some us */
void pp_worker_await_caller(pp_worker_t *worker);                      /* until the leader waits without the GIL, or for some us */

/* trace.c: the events that workers record for a timeline */
static inline bool pp_is_traced(const pp_shared_t *shared) { return pp_load_relaxed(&shared->is_traced); }
void pp_trace_put(pp_shared_t *shared, uint64_t sequence);        /* called by the parent; the others by a worker */
void pp_trace_wait(pp_worker_t *worker);                             /* it looks for work from now on */
void pp_trace_begin_task(pp_worker_t *worker);
static inline void pp_trace_begin(pp_worker_t *worker) {             /* it has claimed a task */
    if (pp_is_traced(worker->shared) || worker->trace.is_stale)
        pp_trace_begin_task(worker);
}
void pp_trace_end(pp_worker_t *worker, unsigned status);             /* the task has ended, and its outcome is not sent yet */
typedef enum { PP_PRESENT_TASK, PP_PRESENT_LOOKS, PP_PRESENT_SLEEPS } pp_present_t;
#define PP_TASK_RECORDED UINT64_MAX                               /* since_ns of a task whose end has been recorded */
pp_present_t pp_trace_present(const pp_worker_slot_t *worker_slot);        /* what a worker is doing now */
void pp_trace_close(pp_worker_t *worker);                            /* it no longer looks for work */
void pp_trace_budget(pp_worker_t *worker);                           /* the CPUs lent to the worker have changed */
uint64_t pp_trace_read(pp_segment_t *s, unsigned worker, uint64_t from, uint64_t (*out)[PP_EVENT_WORDS], unsigned n_max,
                       uint64_t *n_lost, unsigned *n);

/* limits.c: thread counts of native libraries */
#define PP_LIBRARIES_MAX 64
typedef struct {
    void (*set)(int);
    int (*get)(void);
    unsigned most;         /* the user's limit from the environment; 0: none */
    bool per_thread;       /* the setter acts on the calling thread only */
    _Atomic uint32_t *count, *has_threads;   /* OpenBLAS's own variables, if they are known, or NULL */
} pp_library_t;
typedef struct {           /* the count of one library, in its process or in one thread; limits.c explains the fields */
    _Atomic uint32_t now;
    unsigned users, block, found, found_most, n_made;
} pp_count_t;
typedef struct {           /* the most threads that a worker's task wants of a library, and that its tasks begin with; 0: any number */
    unsigned now, base;
} pp_wish_t;
typedef struct pp_limited {   /* a worker that is a thread of this process */
    struct pp_limited *next;
    const pp_budget_t *budget;
    const _Atomic uint32_t *grant;
    unsigned number;                        /* of the worker in its pool */
    _Atomic uint64_t task;                  /* the number of its task, once that has set a count; 0: it has not */
    pp_wish_t wishes[PP_LIBRARIES_MAX];
    pp_count_t counts[PP_LIBRARIES_MAX];    /* of libraries with a count per thread; only the worker's own thread uses them */
} pp_limited_t;
typedef struct pp_own_library {   /* a library that only one worker uses: an interpreter's private copy */
    struct pp_own_library *next;
    const pp_budget_t *budget;
    const _Atomic uint32_t *grant;
    unsigned number;                        /* of the worker in its pool */
    pp_library_t library;
    pp_count_t count;
    pp_wish_t wish;
} pp_own_library_t;
void pp_limits_add(const pp_library_t *library);                       /* unless it was added before; then its variables may be new */
unsigned pp_limits_now(void);                                          /* the process's count; 0: no limit */
void pp_limits_enter(pp_limited_t *worker);                            /* the calling thread is this worker's from now on; NULL: no worker's
                                                                        * */
void pp_limits_here(void);                                             /* called before a task, in its thread */
void pp_limits_settle(pp_limited_t *worker);                           /* called after the initializer: tasks begin with the counts that it has set */
void pp_limits_end_task(pp_limited_t *worker);                         /* called after a task, in its thread: ends what the task has set */
void pp_limits_own(pp_own_library_t *library);                         /* limits a private copy; `next` and `count` are filled in here */
void pp_limits_disown(pp_own_library_t *library);                      /* called before the copy is unloaded */
void pp_limits_changed(void);                                          /* the budget of a worker of this process has changed */
void pp_limits_told(unsigned n);                                       /* the count in this worker process's environment */
void pp_limits_cpus(const cpu_set_t *cpus);                            /* the CPUs for libraries' threads, whichever thread starts them */
#define PP_NO_TASK UINT64_MAX
uint64_t pp_task_of(pp_limited_t *worker);                             /* the number of the worker's task; this thread's worker's if NULL. 0: no worker's thread */
bool pp_task_sets(uint64_t task, uintptr_t set, unsigned n);           /* n 0: as many as the budget allows. false: the task has ended, or the library is unknown */
bool pp_user_sets(uintptr_t set, unsigned n);                          /* false: no known library has this setter */
bool pp_user_blocks(uintptr_t set, unsigned n, bool applies);          /* returns as above; n 0: no block is open any more */
bool pp_user_count(uintptr_t set, unsigned *n);                        /* returns as above; *n: the user's limit */
unsigned pp_user_most(void);                                           /* over the libraries of this process; UINT_MAX: no limit */
void pp_limits_foreign(unsigned n);                                    /* number of active workers in other processes */
void pp_limits_before_fork(void);
void pp_limits_after_fork_in_parent(void);
void pp_limits_after_fork_in_child(void);
void pp_budget_open(pp_budget_t *b, unsigned n_cpus, unsigned n_threads, bool lends);   /* opens it, or changes an open one */
void pp_budget_keep(pp_budget_t *b, unsigned n_threads);                    /* as above */
void pp_budget_close(pp_budget_t *b);
void pp_budget_enter(pp_budget_t *b);                                  /* a worker has become active */
void pp_budget_leave(pp_budget_t *b);
unsigned pp_budget_count(const pp_budget_t *b, unsigned own, unsigned number);   /* threads of an active worker: by its own budget and its number */
unsigned pp_budget_lent(const pp_budget_t *b);                         /* least threads of an active worker; 0: the pool does not lend */
unsigned pp_own_grant(void);                                           /* own budget of the calling worker thread; 0: no worker's thread */
unsigned pp_own_threads(void);                                         /* as above, with what is lent, less what other pools need */

/* divide.c: the rule that divides threads among active workers */
unsigned pp_divide(unsigned own, unsigned rank, unsigned n_awake, unsigned n_threads, unsigned n_left);

/* copy.c: copying, and packing of strided arrays, with the help of idle cores. n_helpers: -1, or a fixed number for
 * measurements */
#define PP_DIMS_MAX 32
typedef struct {
    size_t item;
    int n_dims;
    size_t shape[PP_DIMS_MAX];
    ptrdiff_t strides[PP_DIMS_MAX];
} pp_layout_t;
void pp_copy(void *to, const void *from, size_t n, int n_helpers);
void pp_copy_strided(void *to, const void *from, const pp_layout_t *layout, int n_helpers);   /* to C order */
uint64_t pp_copy_n_helped(void);                          /* pieces copied by helpers so far */
void pp_copy_after_fork_in_child(void);

/* others.c: CPUs that other programs leave idle, for pools that lend */
typedef struct {           /* an estimate of other programs' running threads; zeroed at first, except for: */
    uint32_t n_others;     /* UINT32_MAX: unknown */
    int n_readings, n_lent, least[3], most[3];   /* the newest first */
    int64_t lent_until_ns, lowered_ns, hold_ns, held_until_ns;
} pp_others_t;
uint32_t pp_others_read(pp_others_t *o, int n_running, int n_awake, int n_lent, int64_t now_ns);
void pp_others_open(pp_segment_t *s, unsigned n_cpus);                 /* a pool lends this many CPUs from now on */
void pp_others_close(pp_segment_t *s);                                 /* before the segment closes, even if the pool does not lend */
unsigned pp_others_leave(unsigned n_cpus);                             /* how many of these CPUs are idle or used by us */
void pp_others_note(unsigned n_awake);                                 /* active workers of all pools of this process */
unsigned pp_others_awake(void);                                        /* the number noted last */
void pp_others_pretend(uint32_t n_running_and_one);                    /* for tests: replaces pp_n_running(); 0: stop */
void pp_others_after_fork_in_child(void);

/* loaded.c: the libraries loaded in this process. Only the first may be called with the GIL: the others take the
 * loader's lock */
uint64_t pp_n_loads(void);                                             /* changes when libraries are loaded; never 0 */
uint64_t pp_look_at_loads(void);                                       /* as above, but even: the libraries were examined */
void pp_note_load(void);                                               /* after loading something that pp_look_at_loads cannot see */
unsigned pp_n_thread_libraries(void);                                  /* how many are loaded, by their names; may be too many */
void pp_loads_after_fork(void);

/* gate.c: counting semaphores that processes share. A dead holder's tokens come back. A thread holds tokens of one gate
 * at a time */
typedef struct pp_gate pp_gate_t;
typedef struct {
    uint32_t n_tokens, n_free, n_waiting;
    uint64_t n_acquired, n_waits, waited_ns, n_recovered;
} pp_gate_stats_t;
int pp_gate_create(unsigned n_tokens, pp_gate_t **out);
int pp_gate_attach(int fd, pp_gate_t **out);              /* takes ownership of fd, unless it fails */
int pp_gate_open_machine(unsigned n_tokens, const char *name, pp_gate_t **out);
int pp_gate_machine_path(const char *name, char *path, size_t size);
pp_gate_t *pp_gate_ref(pp_gate_t *g);
void pp_gate_unref(pp_gate_t *g);
int pp_gate_fd(pp_gate_t *g);
/* 0: granted; EAGAIN: call pp_gate_wait until it returns 0; ETIMEDOUT: a stopped process holds the table's lock.
 * covers: while this thread holds its tokens, other threads of its process pass freely, and so do descendant processes */
int pp_gate_begin(pp_gate_t *g, unsigned n, bool covers, unsigned *granted);
int pp_gate_wait(void);                                           /* 0: granted; EAGAIN, EINTR: wait again, or cancel */
void pp_gate_cancel(void);
int pp_gate_release(void);                                        /* EPERM: this thread holds no tokens */
unsigned pp_gate_held(void);                                      /* tokens that the calling thread holds */
unsigned pp_gate_forget(pp_gate_t *g, int pid);                   /* frees the rows of that process's dead threads; returns how many */
void pp_gate_stats(pp_gate_t *g, pp_gate_stats_t *out);
#define PP_LINE_MAX 24             /* most ancestors that a process knows */
unsigned pp_gate_line(int pids[PP_LINE_MAX]);                     /* writes this process and its ancestors; returns how many */
void pp_gate_adopt(const int *pids, unsigned n);                  /* adds ancestors of this process */
int pp_gate_lock_for_test(pp_gate_t *g);                          /* and never unlocks, for a test that kills the caller */

/* region.c: runs OpenBLAS's parallel regions on our threads and through a gate */
#define PP_REGION_SPIN_NS 50000
#define PP_REGION_NUMBERS 64   /* MAX_CPU_NUMBER of PyPI's wheels; _budget/gate.py gates no library with fewer */
typedef struct {
    uint64_t n_regions, n_waits;
    uint32_t n_helpers;
} pp_region_stats_t;
int pp_regions_install(uintptr_t setter, pp_gate_t *gate, bool exclusive);
int pp_regions_uninstall(uintptr_t setter);
void pp_regions_stats(pp_region_stats_t *out);

/* prim/linux.c: the operating system. Errors are errno values */
int64_t pp_now_ns(void);
uint64_t pp_run_delay_ns(void);                                   /* ns that this thread was runnable without a CPU; 0: unknown */
uint32_t pp_thread_id(void);
int pp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t deadline_ns, uint32_t bits);   /* deadline < 0: none */
void pp_futex_wake(_Atomic uint32_t *word, int n, uint32_t bits);

/* Wakes whoever sleeps until a worker becomes active or idle. */
static inline void pp_pulse(pp_shared_t *shared) {
    if (pp_load_relaxed(&shared->is_watched)) {
        pp_add_seq_cst(&shared->pulse, 1);
        if (pp_load_seq_cst(&shared->n_awaiting))
            pp_futex_wake(&shared->pulse, INT32_MAX, UINT32_MAX);
    }
}
void pp_spin_begin(pp_spin_t *s, int64_t long_ns, int64_t short_ns);
bool pp_spin_once(const pp_spin_t *s);                            /* pauses; false once the spin window is over */
void pp_spin_end(pp_spin_t *s, bool was_found);
void pp_prefer_huge_pages(void *memory, size_t size);
void pp_pause(void);                                              /* some 100 ns on the CPU, for spin loops */
int pp_robust_mutex_init(pthread_mutex_t *mutex);                 /* shared between processes */
bool pp_is_robust_mutex(const pthread_mutex_t *mutex);            /* made by pp_robust_mutex_init; true if the C library does not tell */
uint64_t pp_whole_pages(uint64_t size);                           /* rounds up to whole pages of 4, 16 or 64 KB */
uint64_t pp_file_number(int fd);                                  /* identifies a file; 0: unknown */
uint64_t pp_file_size_max(void);                                  /* RLIMIT_FSIZE; UINT64_MAX: no limit */
int pp_memfd(const char *name, uint64_t size, int *fd);           /* EFBIG: more than pp_file_size_max() */
void pp_fix_size(int fd);                                         /* makes writes through descriptors fail; mappings stay writable */
int pp_map(int fd, uint64_t at, size_t size, void **memory);
int pp_map_private(int fd, uint64_t at, size_t size, void **memory);   /* copy-on-write */
int pp_map_readonly(int fd, size_t size, void **memory);
void pp_protect(void *memory, size_t size);                       /* makes it read-only */
int pp_map_over(int fd, uint64_t at, size_t size, void *memory);  /* copy-on-write, replacing a mapping */
void pp_make_private(void *memory, size_t size);                  /* copies the pages that are still mapped copy-on-write */
void pp_unmap(void *memory, size_t size);
int pp_reserve_like(const void *like, size_t size, void **out);    /* addresses that lie in their pages as those at `like` do */
void pp_unreserve(void *memory, size_t size);
int pp_move_pages(void *to, void *from, size_t size);              /* from private memory to reserved addresses; `from` then has other pages */
int pp_random(void *to, size_t size);
int pp_duplicate_fd(int fd);                                         /* -1 with errno */
int pp_above_standard(int fd);                                    /* the same, or another descriptor in its place, not below 3; -1 with errno */
int pp_open(const char *path, int flags, unsigned mode);          /* as open(), but never a descriptor below 3, and none that programs inherit */
int pp_name_file(int fd, const char *path);                      /* gives a file without a name one; EEXIST */
int pp_socket_pair(int *fds);                                     /* of packets */
void pp_occupy_standard(void);                                    /* opens /dev/null in place of each closed standard stream */
void pp_punch_hole(int fd, uint64_t at, uint64_t size);
void pp_name_thread(const char *name);
bool pp_thread_sleeps(int thread, uintptr_t *stack, uintptr_t *code);   /* in the kernel: its stack pointer, and where it goes on; false: it runs, or is unknown */
int pp_thread_descriptor(int thread, uintptr_t *descriptor);      /* an address in what the C library keeps of it, on top of its stack; 0: not yet, no longer. ESRCH: it has ended */
#define PP_PIECE 4096u                                            /* divides the size of a page */
bool pp_peek(uintptr_t from, size_t size, void *to);              /* reads this process's memory; false: not all can be read */
size_t pp_peek_down(uintptr_t piece, size_t n, void *to);         /* this piece and those below it; how many can be read */
uintptr_t pp_plain_address(uintptr_t address);                    /* of code, without a signature */
void pp_trim_heap(void);                                          /* gives free()d pages back to the system; takes milliseconds */
int pp_create_thread(pthread_t *thread, void *(*main)(void *), void *arg);   /* for Python code: has a large stack */
int pp_start_detached(void *(*main)(void *), void *arg);          /* a thread without signals */
int pp_n_cpus(void);                                              /* CPUs of this process's main thread, when first asked */
void pp_forget_cpus(void);                                        /* in a forked child, which has another main thread */
void pp_run_on_all_cpus(void);                                    /* lets the calling thread run on those CPUs */
int pp_n_running(void);                                           /* running or runnable threads on the machine; -1: unknown */
int pp_die_with(int fd);                                          /* SIGKILL for this process once fd reads end of file */

#endif
