/* The gate's tokens, as a program for the scheduler: threads of two or three processes take and give back tokens of the real gate.c,
 * and die at any step, while they hold some, wait for some or have the mutex. A dead thread is found by what a /proc of our own says.
 *
 * Each thread goes through a script: (1), (2) takes so many tokens; (c) takes one, and gives up if it has to wait; (r) gives back; (x) ends,
 * with what it holds. At the end the main thread takes all tokens there are: then all must be back.
 *
 * gate.c is included, not linked: what it keeps for each thread must change with the actor, and rows are looked at. */
#include "scheduler.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define USERS_MAX 4
#define FIRST_PROCESS 50
#define FIRST_THREAD 100
#define BACK_NS 400000000        /* README.md: so long after a death, at most, its tokens are back */

typedef struct {
    const char *name;
    unsigned n_tokens;
    struct { unsigned process; const char *script; } users[USERS_MAX];
    bool is_watched;                           /* a parent sees deaths and tells the gate */
} gate_t;

static const gate_t gates[] = {
    {"one", 1, {{0, "1r"}, {1, "1r"}}, false},
    {"again", 1, {{0, "1r1r"}, {1, "1r1r"}}, false},
    {"large", 2, {{0, "1r"}, {1, "2r"}, {2, "1r"}}, false},
    {"two", 2, {{0, "2r"}, {1, "1r"}, {2, "1r"}}, false},
    {"inside", 2, {{0, "12rr"}, {1, "2r"}}, false},
    {"cancel", 1, {{0, "1r"}, {1, "cr1r"}, {2, "1r"}}, false},
    {"ends", 2, {{0, "1x"}, {0, "2r"}, {1, "2r"}}, false},
    {"forgets", 1, {{0, "1r"}, {1, "1r"}, {1, "1r"}}, true},
    {"crowd", 2, {{0, "1r2r"}, {0, "1r"}, {1, "2r1r"}, {2, "1rcr"}}, true},
};

static const gate_t *config;
static pp_gate_t *gate;
static unsigned n_users;

enum { OUTSIDE, WAITS, HOLDS };
static struct {
    struct {
        int actor;
        unsigned where, held;                  /* held: tokens, as the thread itself knows */
        unsigned came, queued;                 /* the moments when it began to ask, and when it was told to wait */
        int64_t queued_ns;                     /* that one on the clock */
        bool is_done;                          /* it has ended, and owes nothing */
        bool is_dead;                          /* seen by the checks */
        bool is_reported;                      /* to the parent */
    } users[USERS_MAX];
    unsigned moment;
    int64_t died_ns;                           /* the newest death, or 0 */
} m;

/* ---- the system: numbers of threads and processes, /proc ---- */

static int user_of(int actor) {
    for (unsigned i = 0; i < n_users; i++)
        if (m.users[i].actor == actor)
            return (int)i;
    return -1;
}

static bool is_alive(unsigned user) { return !sch_has_ended(m.users[user].actor); }

static pid_t my_process(void) {
    int user = user_of(sch_current());
    return user < 0 ? 1 : FIRST_PROCESS + (pid_t)config->users[user].process;
}

/* The numbers of dead threads: (0) are free, (1) belong to zombies, (2) are used again. */
static int fate_of_number(int thread) { return thread % 3; }

static bool is_number_free(int thread) {
    return thread < 0 || thread > sch_last_actor() || (sch_has_ended(thread) && fate_of_number(thread) == 0);
}

static int open_stat(const char *path) {
    int pid, tid;
    sch_system_call();
    if (sscanf(path, "/proc/%d/task/%d/stat", &pid, &tid) != 2)
        tid = FIRST_THREAD;                    /* a process's parent: the main thread's */
    if (!sch_note(is_number_free(tid - FIRST_THREAD)))
        return tid;
    errno = ENOENT;
    return -1;
}

static ssize_t read_file(int tid, char *to, size_t size) {
    int thread = tid - FIRST_THREAD;
    bool is_gone = sch_note(sch_has_ended(thread));
    if (is_number_free(thread)) {
        errno = ESRCH;
        return -1;
    }
    int n = snprintf(to, size, "%d (a) name) %c 1 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 %d 23\n", tid,
                     is_gone && fate_of_number(thread) == 1 ? 'Z' : 'S', 1 + thread + (is_gone && fate_of_number(thread) == 2 ? 1000 : 0));
    return n;
}

/* gettid, or tgkill with signal 0. */
static long call_system(long number, ...) {
    if (number == SYS_gettid)
        return FIRST_THREAD + sch_current();
    va_list arguments;
    va_start(arguments, number);
    (void)va_arg(arguments, pid_t);
    pid_t tid = va_arg(arguments, pid_t);
    va_end(arguments);
    sch_system_call();
    errno = ESRCH;
    return sch_note(is_number_free(tid - FIRST_THREAD)) ? -1 : 0;
}

int pp_memfd(const char *file, uint64_t size, int *fd) {
    (void)file, (void)size;
    *fd = 3;
    return 0;
}

static _Alignas(4096) unsigned char memory[1 << 20];

int pp_map(int fd, uint64_t at, size_t size, void **mapped) {
    (void)fd, (void)at;
    *mapped = memory;
    return size <= sizeof memory ? 0 : ENOMEM;
}

void pp_unmap(void *at, size_t size) { (void)at, (void)size; }

#undef getpid
#define getpid my_process
#define open(path, ...) open_stat(path)
#define read read_file
#define close(fd) ((void)(fd))
#define syscall call_system
#define madvise(...) (-1)                      /* so each process asks for its number */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#ifdef GATE
#include GATE
#else
#include "budget/gate.c"
#endif
#pragma GCC diagnostic pop

static char selves[ACTORS_MAX][sizeof self];   /* what each thread keeps while another goes on */

static void change(int from, int to) {
    if (from >= 0)
        memcpy(selves[from], &self, sizeof self);
    if (to >= 0)
        memcpy(&self, selves[to], sizeof self);
}

/* ---- checks ---- */

/* Whether it has been given what it waits for, and perhaps does not know that yet. */
static bool is_granted(unsigned user) {
    __typeof__(self) *its = (void *)selves[m.users[user].actor];
    return *(uint32_t *)&((page_t *)memory)->rows[its->row].state != WAITING;
}

static void check_tokens(void) {
    unsigned n_held = 0;
    for (unsigned i = 0; i < n_users; i++)
        n_held += is_alive(i) ? m.users[i].held : 0;
    sch_check(n_held <= config->n_tokens, "%u tokens are held, and there are %u", n_held, config->n_tokens);
}

/* Who was told to wait before this one came is served before it. */
static void check_order(unsigned user) {
    for (unsigned i = 0; i < n_users; i++)
        sch_check(i == user || m.users[i].where != WAITS || !is_alive(i) || m.users[i].queued > m.users[user].came || is_granted(i),
                  "user %u has its tokens before user %u, which came before", user, i);
}

/* With nobody amid a change: whoever is first in the queue waits only while there are too few tokens for it. */
static void check_queue(void) {
    page_t *p = (page_t *)memory;
    uint32_t mutex, n_free;
    const row_t *first = NULL;
    memcpy(&mutex, &p->mutex, sizeof mutex);
    memcpy(&n_free, (void *)&p->n_free, sizeof n_free);
    for (unsigned i = 0; i <= USERS_MAX; i++)
        if (*(uint32_t *)&p->rows[i].state == WAITING && (first == NULL || p->rows[i].ticket < first->ticket))
            first = &p->rows[i];
    sch_check((mutex & 0xff) != 0 || first == NULL || first->wanted > n_free, "%u tokens are free, and who is first waits for %u", n_free,
              first->wanted);
}

/* The clock moves only while all sleep: what it has waited for since then, and since the newest death, came too late. */
static void check_time(unsigned user) {
    int64_t since = m.users[user].queued_ns > m.died_ns ? m.users[user].queued_ns : m.died_ns;
    sch_check(pp_now_ns() - since <= BACK_NS, "user %u has its tokens long after a dead one held them", user);
}

static void note_deaths(void) {
    for (unsigned i = 0; i < n_users; i++)
        if (!m.users[i].is_done && !m.users[i].is_dead && !is_alive(i)) {
            m.users[i].is_dead = true;
            m.died_ns = pp_now_ns();
        }
}

/* Everybody sleeps, so nobody alive holds anything: only the tokens of the dead, for a while, can be what they wait for. */
static void check_idle(void) {
    note_deaths();
    for (unsigned i = 0; i < n_users; i++)
        sch_check(!is_alive(i) || m.users[i].where != HOLDS, "user %u sleeps, and holds tokens", i);
    sch_check(m.died_ns > 0, "somebody waits for tokens, and all are free");
    sch_check(pp_now_ns() - m.died_ns <= BACK_NS, "somebody waits for tokens that a dead one held long ago");
}

static void check_end(void) {
    for (int i = 0; i <= sch_last_actor(); i++)
        sch_check(sch_has_ended(i), "%s sleeps for ever", sch_name_of(i));
}

/* ---- actors ---- */

static int ask(unsigned n, unsigned *granted) { return pp_gate_begin(gate, n, granted); }

static void await_tokens(void) {
    while (pp_gate_wait() != 0)
        sch_forget(300 + (uint64_t)user_of(sch_current()));
}

static void note_held(unsigned user, unsigned n) {
    m.users[user].where = HOLDS;
    check_order(user);
    m.users[user].held = n;
    check_tokens();
    check_queue();
}

/* `may_give_up`: at any look, or once it has the tokens, as a signal handler would have it. */
static void acquire(unsigned user, unsigned n, bool may_give_up) {
    unsigned granted, before = m.users[user].held;
    if (before == 0)
        m.users[user].came = ++m.moment;
    int error = ask(n, &granted);
    sch_check(error == 0 || (error == EAGAIN && before == 0), "user %u: error %d", user, error);
    if (error == EAGAIN) {
        m.users[user].where = WAITS;
        m.users[user].queued = ++m.moment;
        m.users[user].queued_ns = pp_now_ns();
        sch_say("      waits for %u", n);
        while (may_give_up && pp_gate_wait() != 0)
            if (sch_choose(2)) {
                m.users[user].where = OUTSIDE;
                sch_say("      gives up");
                pp_gate_cancel();
                return;
            }
        if (!may_give_up)
            await_tokens();
        check_time(user);
    }
    sch_say("      holds %u", granted);
    sch_check(granted == (before ? before : n), "user %u asked for %u tokens, has %u, and is given %u", user, n, before, granted);
    note_held(user, granted);
}

static void release(unsigned user, bool is_outermost) {
    if (m.users[user].where != HOLDS)          /* it gave up */
        return;
    sch_check(pp_gate_held() == m.users[user].held, "user %u holds %u tokens, and is told %u", user, m.users[user].held, pp_gate_held());
    if (is_outermost) {
        m.users[user].where = OUTSIDE;
        m.users[user].held = 0;
    }
    sch_say("      gives back");
    sch_check(pp_gate_release(gate) == 0, "user %u cannot give back", user);
    check_queue();
}

static void run_user(int number) {
    unsigned user = (unsigned)number, depth = 0;
    for (const char *s = config->users[user].script; *s; s++) {
        sch_forget(10 + (uint64_t)(s - config->users[user].script) * 10 + m.users[user].where);
        if (*s == 'x')
            return;
        if (*s == 'r') {
            release(user, --depth == 0);
        } else {
            depth++;
            acquire(user, *s == 'c' ? 1 : (unsigned)(*s - '0'), *s == 'c');
        }
    }
    m.users[user].is_done = true;
}

static int unreported(void) {
    for (unsigned i = 0; i < n_users; i++)
        if (sch_was_killed(m.users[i].actor) && !m.users[i].is_reported)
            return (int)i;
    return -1;
}

static bool have_all_ended(void) {
    for (unsigned i = 0; i < n_users; i++)
        if (is_alive(i))
            return false;
    return true;
}

static bool has_to_watch(void) { return unreported() >= 0 || have_all_ended(); }

static void run_parent(int number) {
    (void)number;
    for (;;) {
        sch_forget(20);
        sch_until(has_to_watch);
        int user = unreported();
        sch_note((uint64_t)user + 1);
        if (user < 0)
            return;
        m.users[user].is_reported = true;
        pp_gate_forget(gate, FIRST_PROCESS + (int)config->users[user].process);
    }
}

/* All tokens are back, and all rows free: also those of the dead, since somebody has wanted all tokens. */
static void check_all_back(void) {
    pp_gate_stats_t stats;
    pp_gate_stats(gate, &stats);
    sch_check(stats.n_free == config->n_tokens && stats.n_waiting == 0, "at the end %u of %u tokens are free, and %u wait", stats.n_free,
              config->n_tokens, stats.n_waiting);
}

static void run_main(int number) {
    (void)number;
    unsigned granted;
    if (pp_gate_create(config->n_tokens, &gate) != 0)
        abort();
    for (unsigned i = 0; i < n_users; i++)
        m.users[i].actor = sch_start("user", (int)i, true, run_user);
    if (config->is_watched)
        sch_start("parent", 0, false, run_parent);
    sch_decide_from_here();
    sch_until(have_all_ended);
    sch_forget(30);
    int error = ask(config->n_tokens, &granted);
    if (error == EAGAIN) {
        note_deaths();
        await_tokens();
    }
    sch_check(error == 0 || error == EAGAIN, "all tokens: error %d", error);
    sch_check(pp_gate_release(gate) == 0, "all tokens cannot be given back");
    check_all_back();
}

/* ---- a run ---- */

static size_t page_used(void) { return offsetof(page_t, rows) + (USERS_MAX + 1) * sizeof(row_t); }

static uint64_t hash_of(const void *from, size_t size) {
    uint64_t hash = 0, word;
    for (size_t i = 0; i + 8 <= size; i += 8) {
        memcpy(&word, (const char *)from + i, 8);
        hash = sch_mix(hash, word);
    }
    return hash;
}

static uint64_t guarded(void) { return hash_of(memory, page_used()); }

static uint64_t state(void) {
    uint64_t hash = sch_mix(guarded(), hash_of(&m, sizeof m));
    return sch_mix(hash, sch_mix(hash_of(gate, sizeof *gate), hash_of(selves, sizeof selves[0] * (2 + USERS_MAX + 1))));
}

static void begin(void) {
    memset(memory, 0, page_used());
    memset(&m, 0, sizeof m);
    memset(&self, 0, sizeof self);
    memset(selves, 0, sizeof selves);
    free(gate);
    gate = NULL;
    sch_start("main", 0, false, run_main);
}

static unsigned list_memory(sch_region_t *out) {
    const sch_region_t regions[] = {{memory, page_used()}, {&m, sizeof m}, {gate, sizeof *gate}, {selves, sizeof selves}};
    memcpy(out, regions, sizeof regions);
    return sizeof regions / sizeof *regions;
}

const char *program_name(unsigned i) { return i < sizeof gates / sizeof *gates ? gates[i].name : NULL; }

const sch_program_t *program_open(unsigned i) {
    static const sch_program_t program = {.begin = begin, .regions = list_memory, .idle = check_idle, .busy = check_end,
                                          .end = check_end, .guarded = guarded, .state = state, .change = change};
    config = &gates[i];
    for (n_users = 0; n_users < USERS_MAX && config->users[n_users].script; n_users++) {}
    page_t *p = (page_t *)memory;
    sch_forget_words();
#define NAME(field) sch_name(&p->field, sizeof p->field, #field, 0)
    NAME(n_tokens), NAME(n_free), NAME(n_waiting), NAME(n_rows), NAME(n_acquired), NAME(n_waits), NAME(waited_ns), NAME(n_recovered);
    NAME(swept_ns);
#undef NAME
    for (unsigned row = 0; row <= USERS_MAX; row++)
        sch_name(&p->rows[row].state, 4, "rows[%d].state", (int)row);
    return &program;
}
