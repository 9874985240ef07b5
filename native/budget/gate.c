/* The gate: a counting semaphore that processes share, in a page with a robust mutex. A killed holder's tokens come
 * back.
 *
 * This file does not use Python. README.md, "The gate", has the states and the arguments. The rules are:
 * - The rows are the truth. Everything else under the mutex is derived from them, and `settle` derives it again.
 * - One store to its `state` hands a row over. Its other fields are written before that, by the thread that holds the
 *   mutex.
 * - A thread holds tokens of one gate at a time, and never waits while it holds some.
 * - Nothing read from the page is used as an index, or waited for without a limit, since the file may be damaged.
 */
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x3165746167707470ull
#define VERSION 2u                    /* part of the file's name, so that programs with other layouts use another gate */
#define ROWS 4096u                    /* threads that hold or wait at the same time */
#define LOOK_NS 200000000             /* a waiter checks for dead and stopped holders at least this often, */
#define SWEEP_NS 100000000            /* unless another one has checked within this time */
#define LOCK_S 1                      /* seconds to wait for the mutex, which is held for microseconds; guess: far above a time slice */

/* The states of a row, in the futex word on which its thread sleeps while it is WAITING. PASSING: it runs without
 * tokens. */
enum { FREE, WAITING, HOLDING, PASSING };

typedef struct {
    _Alignas(64) _Atomic uint32_t state;
    uint32_t wanted;                  /* tokens; those held once the state is HOLDING */
    uint32_t covers;                  /* other threads of its process, and descendant processes, pass meanwhile */
    pid_t pid, tid;
    uint64_t born;                    /* start time of that thread in the kernel's ticks; 0: unknown */
    uint64_t ticket;                  /* never reused */
} row_t;

typedef struct {
    uint64_t magic;
    uint32_t version;
    _Alignas(64) pthread_mutex_t mutex;
    _Atomic uint32_t n_tokens;        /* guarded by the mutex, like all up to n_rows; statistics read it without */
    _Atomic uint32_t n_free, n_waiting;
    _Atomic uint32_t n_rows;          /* rows from this number on are free */
    _Atomic uint32_t is_stuck;        /* a thread could not get the mutex in time, and may have changed its own row without it */
    uint64_t ticket;
    _Alignas(64) _Atomic uint64_t n_acquired, n_waits, waited_ns, n_recovered;
    _Atomic int64_t swept_ns;
    row_t rows[ROWS];
} page_t;

struct pp_gate {
    _Atomic long refs;
    int fd;
    page_t *page;
};

/* What this thread holds. If `pid` is not ours, it is a copy of the forking parent's. */
static _Thread_local struct {
    pid_t pid, tid;
    uint64_t born;
    pp_gate_t *gate;                  /* whose tokens it holds or waits for (one reference); or NULL */
    uint32_t row, depth;              /* depth 0: it is waiting */
    uint64_t ticket;
    int64_t since_ns, looked_ns;      /* when it began to wait; when it last checked whether it is covered, or 0 */
    pid_t line[PP_LINE_MAX];             /* its process and that one's ancestors, once it has had to wait */
    uint32_t n_line;
} self;

/* Ancestors that the kernel does not know: with a fork server, the process that opened the pool. Written before the
 * process has a gate. */
static pid_t adopters[PP_LINE_MAX];
static uint32_t n_adopters;

/* ---- threads, alive and dead ---- */

typedef struct {
    char state;
    pid_t parent;   /* of its process */
    uint64_t born;
} thread_stat_t;

/* Reads the third, the fourth and the 22nd field. ESRCH if there is no such thread. */
static int read_stat(pid_t pid, pid_t tid, thread_stat_t *out) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)tid);
    int fd = pp_open(path, O_RDONLY, 0);
    if (fd < 0)
        return errno == ENOENT ? ESRCH : errno;
    ssize_t size = read(fd, text, sizeof text - 1);
    int error = size < 0 ? errno : 0;
    close(fd);
    if (error)
        return error;
    text[size] = 0;
    char *field = strrchr(text, ')');   /* the name in parentheses may contain anything */
    if (field == NULL || field[1] == 0)
        return EIO;
    *out = (thread_stat_t){.state = field[2]};
    for (int i = 2; i < 22 && field; i++) {
        field = strchr(field + 1, ' ');
        if (i == 3 && field)
            out->parent = (pid_t)strtol(field, NULL, 10);
    }
    out->born = field ? strtoull(field, NULL, 10) : 0;
    return 0;
}

typedef enum { ALIVE, STOPPED, GONE } fate_t;

/* STOPPED: by SIGSTOP, Ctrl-Z or a debugger. */
static fate_t fate_of(pid_t pid, pid_t tid, uint64_t born) {
    thread_stat_t now = {0};
    int error = read_stat(pid, tid, &now);
    if (error && born == 0)             /* there was no /proc when it started, so only its id can tell */
        return syscall(SYS_tgkill, pid, tid, 0) != 0 && errno == ESRCH ? GONE : ALIVE;
    if (error)
        return error == ESRCH ? GONE : ALIVE;
    if ((born && now.born != born) || now.state == 'Z' || now.state == 'X' || now.state == 'x')
        return GONE;
    return now.state == 'T' || now.state == 't' ? STOPPED : ALIVE;
}

/* A page that makes getpid() take 2 ns instead of 300: the kernel clears it in every forked child. NULL: it cannot. */
static _Atomic pid_t *my_pid;

static void map_my_pid(void) {
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, size, MADV_WIPEONFORK) == 0)
        my_pid = page;
}

static pid_t current_pid(void) {
    if (my_pid == NULL)
        return getpid();
    pid_t pid = pp_load_relaxed(my_pid);
    if (pid == 0)
        pp_store_relaxed(my_pid, pid = getpid());
    return pid;
}

/* Sets up `self` for this thread. A child that was forked while its parent held tokens has a copy of `self`, but no
 * tokens. */
static void know_self(void) {
    pid_t pid = current_pid();
    if (self.pid == pid)
        return;
    thread_stat_t now = {0};
    self.pid = pid;
    self.tid = (pid_t)syscall(SYS_gettid);
    read_stat(self.pid, self.tid, &now);
    self.born = now.born;   /* 0 without /proc */
    if (self.gate)
        pp_gate_unref(self.gate);
    self.gate = NULL;
    self.n_line = 0;
}

/* ---- ancestors ---- */

/* 0 if the process has no parent or is gone. */
static pid_t parent_of(pid_t pid) {
    thread_stat_t now = {0};
    read_stat(pid, pid, &now);
    return now.parent;
}

unsigned pp_gate_line(int pids[PP_LINE_MAX]) {
    unsigned n = 0;
    for (pid_t pid = current_pid(); pid > 0 && n < PP_LINE_MAX; pid = parent_of(pid))
        pids[n++] = pid;
    for (uint32_t i = 0; i < n_adopters && n < PP_LINE_MAX; i++)
        pids[n++] = adopters[i];
    return n;
}

void pp_gate_adopt(const int *pids, unsigned n) {
    n_adopters = n < PP_LINE_MAX ? n : PP_LINE_MAX;
    memcpy(adopters, pids, n_adopters * sizeof *pids);
}

static bool is_in_line(pid_t pid) {
    for (uint32_t i = 0; i < self.n_line; i++)
        if (self.line[i] == pid)
            return true;
    return false;
}

/* ---- the table; the caller holds the mutex ---- */

static uint32_t rows_used(page_t *p) {
    uint32_t n = pp_load_relaxed(&p->n_rows);
    return n < ROWS ? n : ROWS;
}

/* Counts held tokens and waiting threads, and finds the thread that has waited longest. */
static row_t *count_tokens(page_t *p) {
    row_t *oldest = NULL;
    uint64_t n_held = 0;
    uint32_t n_waiting = 0, n_used = 0, n_tokens = pp_load_relaxed(&p->n_tokens);
    for (uint32_t i = 0, n = rows_used(p); i < n; i++) {
        row_t *row = &p->rows[i];
        uint32_t state = pp_load_relaxed(&row->state);
        n_held += state == HOLDING ? row->wanted : 0;
        n_waiting += state == WAITING;
        if (state == WAITING && (oldest == NULL || row->ticket < oldest->ticket))
            oldest = row;
        if (state != FREE)
            n_used = i + 1;
    }
    pp_store_relaxed(&p->n_free, n_held < n_tokens ? n_tokens - (uint32_t)n_held : 0);
    pp_store_relaxed(&p->n_waiting, n_waiting);
    pp_store_relaxed(&p->n_rows, n_used);
    return oldest;
}

/* Derives the sums from the rows, and grants free tokens strictly in the order of tickets. A large request at the head
 * is not overtaken, so it cannot starve. If the granting thread is killed before its futex call, the other one wakes by
 * itself after LOOK_NS. A request for more tokens than exist, as in a damaged row, is granted alone. */
static void settle(page_t *p) {
    for (row_t *row; (row = count_tokens(p)) != NULL; ) {
        uint32_t n_free = pp_load_relaxed(&p->n_free);
        if (row->wanted > n_free && n_free < pp_load_relaxed(&p->n_tokens))
            return;
        pp_store_seq_cst(&row->state, HOLDING);
        pp_futex_wake(&row->state, 1, ~0u);
    }
}

/* Repairs what a thread left unfinished that died, or that could not get the mutex. */
static void repair(page_t *p) {
    pp_add_seq_cst(&p->n_recovered, 1);
    settle(p);
}

static int lock_in_time(page_t *p) {
    int error = pthread_mutex_trylock(&p->mutex);
    if (error != EBUSY || pp_load_seq_cst(&p->is_stuck))
        return error;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);   /* a clock change makes this wait shorter or longer, once */
    until.tv_sec += LOCK_S;
    return pthread_mutex_timedlock(&p->mutex, &until);
}

/* ETIMEDOUT: a stopped process holds the mutex, or it is damaged. One thread waits LOCK_S to find that out; until it is
 * repaired no other thread waits. The next thread that gets the mutex repairs what others did to their own rows without
 * it. */
static int lock_page(page_t *p) {
    int error = lock_in_time(p);
    if (error == EOWNERDEAD) {
        repair(p);
        error = pthread_mutex_consistent(&p->mutex);
    } else if (error == EBUSY || error == ETIMEDOUT) {
        pp_store_seq_cst(&p->is_stuck, 1);
        return ETIMEDOUT;
    }
    if (error == 0 && pp_load_relaxed(&p->is_stuck) && pp_swap_seq_cst(&p->is_stuck, 0))
        settle(p);
    return error;
}

static void unlock_page(page_t *p) { pthread_mutex_unlock(&p->mutex); }

static void change_row(page_t *p, row_t *row, uint32_t state) {
    pp_store_seq_cst(&row->state, state);
    settle(p);
}

/* Whether this thread may pass because its own process's task, or that of an ancestor process, holds tokens. That task
 * may be waiting for this thread, and its tokens cover both. */
static bool is_covered(page_t *p) {
    for (uint32_t i = 0, n = rows_used(p); i < n; i++) {
        row_t *row = &p->rows[i];
        if (pp_load_relaxed(&row->state) == HOLDING && row->covers && is_in_line(row->pid))
            return true;
    }
    return false;
}

/* Finds a row for this thread, preferably the one that it had last time. */
static row_t *find_row(page_t *p) {
    uint32_t n = rows_used(p);
    if (self.row < n && pp_load_relaxed(&p->rows[self.row].state) == FREE)
        return &p->rows[self.row];
    for (uint32_t i = 0; i < n; i++)
        if (pp_load_relaxed(&p->rows[i].state) == FREE)
            return &p->rows[i];
    if (n == ROWS)
        return NULL;
    pp_store_seq_cst(&p->n_rows, n + 1);
    return &p->rows[n];
}

/* ---- the caller does not hold the mutex ---- */

/* Frees the rows of dead threads, and lets stopped threads neither hold nor want tokens. If `pid` is given, only that
 * process's. /proc is read without the mutex; the ticket tells whether the row is still the same. Returns how many rows
 * were freed. */
static unsigned sweep(page_t *p, pid_t pid) {
    unsigned n_recovered = 0;
    for (uint32_t i = 0; i < rows_used(p); i++) {
        row_t *row = &p->rows[i];
        if (pp_load_relaxed(&row->state) == FREE || lock_page(p) != 0)
            continue;
        row_t seen = {.pid = row->pid, .tid = row->tid, .born = row->born, .ticket = row->ticket};
        unlock_page(p);
        if (pid && seen.pid != pid)
            continue;
        fate_t fate = fate_of(seen.pid, seen.tid, seen.born);
        if (fate == ALIVE || lock_page(p) != 0)
            continue;
        if (pp_load_relaxed(&row->state) != FREE && row->ticket == seen.ticket) {
            change_row(p, row, fate == GONE ? FREE : PASSING);
            n_recovered += fate == GONE;
        }
        unlock_page(p);
    }
    pp_add_seq_cst(&p->n_recovered, n_recovered);
    return n_recovered;
}

/* Derives the sums again even if all threads are well, so that no thread waits for ever because of a wrong number. */
static void sweep_all(page_t *p) {
    sweep(p, 0);
    if (lock_page(p) == 0) {
        settle(p);
        unlock_page(p);
    }
}

static void sweep_if_due(page_t *p) {
    int64_t now = pp_now_ns(), last = pp_load_seq_cst(&p->swept_ns), passed = now - last;
    if ((passed < 0 || passed > SWEEP_NS) && pp_cas_seq_cst(&p->swept_ns, &last, now))
        sweep_all(p);
}

/* ---- taking and giving back ---- */

int pp_gate_begin(pp_gate_t *g, unsigned n, bool covers, unsigned *granted) {
    know_self();
    if (self.gate) {
        if (self.depth == 0)
            return EDEADLK;
        self.depth++;
        *granted = self.gate->page->rows[self.row].wanted;
        return 0;
    }
    page_t *p = g->page;
    int error = lock_page(p);
    if (error)
        return error;
    row_t *row = find_row(p);
    if (row == NULL) {
        unlock_page(p);
        return ENOSPC;
    }
    uint32_t n_tokens = pp_load_relaxed(&p->n_tokens), n_free = pp_load_relaxed(&p->n_free);
    row->wanted = n < 1 ? 1 : n > n_tokens ? n_tokens : n;
    row->pid = self.pid;
    row->tid = self.tid;
    row->born = self.born;
    row->covers = covers;
    row->ticket = self.ticket = ++p->ticket;
    *granted = row->wanted;
    bool now = pp_load_relaxed(&p->n_waiting) == 0 && row->wanted <= n_free;
    if (now) {
        pp_store_relaxed(&p->n_free, n_free - row->wanted);
        pp_store_release(&row->state, HOLDING);
    } else {
        pp_store_relaxed(&p->n_waiting, pp_load_relaxed(&p->n_waiting) + 1);
        pp_store_release(&row->state, WAITING);
    }
    pp_store_relaxed(&p->n_acquired, pp_load_relaxed(&p->n_acquired) + 1);
    unlock_page(p);
    self.gate = pp_gate_ref(g);
    self.row = (uint32_t)(row - p->rows);
    self.depth = now;
    if (!now) {
        self.since_ns = pp_now_ns();
        self.looked_ns = 0;
        pp_add_seq_cst(&p->n_waits, 1);
    }
    return now ? 0 : EAGAIN;
}

/* If the mutex is stuck nobody is granted tokens, so the thread runs without tokens rather than not at all. */
static void pass_if_covered(page_t *p, row_t *row) {
    if (self.n_line == 0)
        self.n_line = pp_gate_line(self.line);
    self.looked_ns = pp_now_ns();
    uint32_t state = WAITING;
    if (lock_page(p) != 0) {
        if (pp_cas_seq_cst(&row->state, &state, PASSING))
            pp_store_seq_cst(&p->is_stuck, 1);
        return;
    }
    if (pp_load_relaxed(&row->state) == WAITING && is_covered(p))
        change_row(p, row, PASSING);
    unlock_page(p);
}

int pp_gate_wait(void) {
    know_self();
    if (self.gate == NULL)   /* a signal handler has forked, and this is the child */
        return ECANCELED;
    page_t *p = self.gate->page;
    row_t *row = &p->rows[self.row];
    if (pp_now_ns() - self.looked_ns >= LOOK_NS)
        pass_if_covered(p, row);
    int error = pp_futex_wait(&row->state, WAITING, pp_now_ns() + LOOK_NS, ~0u);
    if (error == ETIMEDOUT)
        sweep_if_due(p);
    if (pp_load_seq_cst(&row->state) == WAITING)
        return error == EINTR ? EINTR : EAGAIN;
    self.depth = 1;
    pp_add_seq_cst(&p->waited_ns, (uint64_t)(pp_now_ns() - self.since_ns));
    return 0;
}

/* Gives back what this thread holds or waits for. If the page was damaged meanwhile, the row may be another thread's. */
static void give_back_row(void) {
    pp_gate_t *g = self.gate;
    page_t *p = g->page;
    row_t *row = &p->rows[self.row];
    bool has_mutex = lock_page(p) == 0;
    if (row->ticket == self.ticket && row->tid == self.tid)
        pp_store_seq_cst(&row->state, FREE);
    if (has_mutex) {
        settle(p);
        unlock_page(p);
    } else {
        pp_store_seq_cst(&p->is_stuck, 1);
    }
    self.gate = NULL;
    self.depth = 0;
    pp_gate_unref(g);
}

void pp_gate_cancel(void) {
    know_self();
    if (self.gate)
        give_back_row();
}

/* A hold inside another gate's hold counts there: see pp_gate_begin. */
int pp_gate_release(void) {
    know_self();
    if (self.gate == NULL || self.depth == 0)
        return EPERM;
    if (self.depth > 1)
        self.depth--;
    else
        give_back_row();
    return 0;
}

unsigned pp_gate_held(void) {
    know_self();
    row_t *row = self.gate ? &self.gate->page->rows[self.row] : NULL;
    return row && pp_load_relaxed(&row->state) == HOLDING ? row->wanted : 0;
}

unsigned pp_gate_forget(pp_gate_t *g, int pid) { return sweep(g->page, pid); }

void pp_gate_stats(pp_gate_t *g, pp_gate_stats_t *out) {
    page_t *p = g->page;
    *out = (pp_gate_stats_t){
        .n_tokens = pp_load_relaxed(&p->n_tokens),       .n_free = pp_load_relaxed(&p->n_free),
        .n_waiting = pp_load_relaxed(&p->n_waiting),     .n_acquired = pp_load_relaxed(&p->n_acquired),
        .n_waits = pp_load_relaxed(&p->n_waits),         .waited_ns = pp_load_relaxed(&p->waited_ns),
        .n_recovered = pp_load_relaxed(&p->n_recovered),
    };
}

int pp_gate_lock_for_test(pp_gate_t *g) { return lock_page(g->page); }

/* ---- creating and opening ---- */

static int new_gate(int fd, pp_gate_t **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, map_my_pid);
    pp_gate_t *g = calloc(1, sizeof *g);
    if (g == NULL)
        return ENOMEM;
    g->refs = 1;
    g->fd = fd;
    int error = pp_map(fd, 0, sizeof(page_t), (void **)&g->page);
    if (error)
        free(g);
    else
        *out = g;
    return error;
}

static int page_init(page_t *p, unsigned n_tokens) {
    int error = pp_robust_mutex_init(&p->mutex);
    pp_store_relaxed(&p->n_tokens, n_tokens);
    pp_store_relaxed(&p->n_free, n_tokens);
    p->version = VERSION;
    p->magic = MAGIC;
    return error;
}

/* Takes ownership of fd, even if it fails. */
static int init_new(int fd, unsigned n_tokens, pp_gate_t **out) {
    pp_gate_t *g;
    int error = new_gate(fd, &g);
    if (error) {
        close(fd);
        return error;
    }
    error = page_init(g->page, n_tokens);
    if (error)
        pp_gate_unref(g);
    else
        *out = g;
    return error;
}

static bool is_gate(int fd) {
    struct stat s;
    struct { uint64_t magic; uint32_t version; _Alignas(64) pthread_mutex_t mutex; } head;   /* as in page_t */
    return fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size == (off_t)sizeof(page_t) &&
           pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head && head.magic == MAGIC && head.version == VERSION &&
           pp_is_robust_mutex(&head.mutex);
}

int pp_gate_create(unsigned n_tokens, pp_gate_t **out) {
    int fd, error = pp_memfd("pool_party-gate", sizeof(page_t), &fd);
    return error ? error : init_new(fd, n_tokens, out);
}

int pp_gate_attach(int fd, pp_gate_t **out) { return is_gate(fd) ? new_gate(fd, out) : EINVAL; }

/* If nobody uses the gate, sets its number of tokens to the opener's, since the file outlives all programs. */
static int refit(page_t *p, unsigned n_tokens) {
    sweep(p, 0);
    int error = lock_page(p);
    if (error)
        return error;
    settle(p);
    if (pp_load_relaxed(&p->n_free) == pp_load_relaxed(&p->n_tokens) && pp_load_relaxed(&p->n_waiting) == 0)
        pp_store_relaxed(&p->n_tokens, n_tokens);
    settle(p);
    unlock_page(p);
    return 0;
}

/* Gives the file its size and its memory: where /dev/shm is full, a write to a page that it lacks would end the program. */
static int reserve_page(int fd) { return posix_fallocate(fd, 0, sizeof(page_t)); }

static int open_existing(const char *path, unsigned n_tokens, pp_gate_t **out) {
    int fd = pp_open(path, O_RDWR | O_NOFOLLOW, 0);
    if (fd < 0)
        return errno;
    struct stat s;
    bool ours = fstat(fd, &s) == 0 && s.st_uid == geteuid() && (s.st_mode & 077) == 0;
    int error = !ours ? EPERM : pp_gate_attach(fd, out);
    if (error) {
        close(fd);
        return error;
    }
    error = reserve_page(fd);
    if (error == 0)
        error = refit((*out)->page, n_tokens);
    if (error)
        pp_gate_unref(*out);
    return error;
}

/* Creates the gate's file. It gets its name when it is complete, so nobody ever opens half a gate. EEXIST: another
 * process was faster. */
static int create_named(const char *path, unsigned n_tokens, pp_gate_t **out) {
    int fd = pp_open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0)
        return errno;
    int error = fchmod(fd, 0600) != 0 ? errno : reserve_page(fd);
    if (error) {
        close(fd);
        return error;
    }
    error = init_new(fd, n_tokens, out);
    if (error)
        return error;
    if ((error = pp_name_file(fd, path)) == 0)
        return 0;
    pp_gate_unref(*out);
    return error;
}

/* The path includes the PID namespace, since process ids are valid in one namespace only. */
int pp_gate_machine_path(const char *name, char *path, size_t size) {
    char namespace[64] = "pid:[0]", digits[64] = "0";
    ssize_t n = readlink("/proc/self/ns/pid", namespace, sizeof namespace - 1);
    namespace[n > 0 ? n : 7] = 0;
    sscanf(namespace, "pid:[%63[0-9]", digits);
    if (strchr(name, '/'))
        return EINVAL;
    int written = snprintf(path, size, "/dev/shm/pool_party-gate%u-%u-%s%s%s", VERSION, (unsigned)geteuid(), digits,
                           *name ? "-" : "", name);
    return written < 0 || (size_t)written >= size ? ENAMETOOLONG : 0;
}

int pp_gate_open_machine(unsigned n_tokens, const char *name, pp_gate_t **out) {
    char path[256];
    int error = pp_gate_machine_path(name, path, sizeof path);
    for (int tries = 0; error == 0 && tries < 100; tries++) {   /* between the two calls other processes may create or unlink it */
        error = open_existing(path, n_tokens, out);
        if (error != ENOENT)
            return error;
        error = create_named(path, n_tokens, out);
        if (error != EEXIST)
            return error;
        error = 0;
    }
    return error ? error : EAGAIN;
}

pp_gate_t *pp_gate_ref(pp_gate_t *g) {
    pp_add_seq_cst(&g->refs, 1);
    return g;
}

void pp_gate_unref(pp_gate_t *g) {
    if (g == NULL || pp_add_seq_cst(&g->refs, -1) != 1)
        return;
    pp_unmap(g->page, sizeof(page_t));
    close(g->fd);
    free(g);
}

int pp_gate_fd(pp_gate_t *g) { return g->fd; }
