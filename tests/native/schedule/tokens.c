/* The gate's tokens, as a program for the scheduler. Threads of two or three processes take and return tokens of the
 * real gate.c. They die at any step: while they hold tokens, wait for some, or hold the mutex. A simulated /proc shows
 * which threads are dead.
 *
 * Each thread follows a script: (1), (2) takes so many tokens; (t) takes one for a task, which covers the other threads
 * and the descendants of its process; (j) waits until everything that it covers has ended; (c) takes one, and gives up
 * if it has to wait; (w) takes one, and is stopped if it has to wait; (s) is stopped; (r) returns its tokens; (x) ends
 * without returning them. At the end the main thread takes all tokens, so all must have been returned. A stopped thread
 * continues at once, or once no other thread does anything.
 *
 * gate.c is included, not linked: its thread-local state must change with the actor, and its rows are inspected. */
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
#define BACK_NS 400000000        /* README.md: the most time until a dead thread's tokens are back */

typedef struct {
    const char *name;
    unsigned n_tokens;
    struct { unsigned process; const char *script; } users[USERS_MAX];
    bool is_watched;                           /* a parent sees deaths and reports them to the gate */
    bool is_line;                              /* each process is a child of the previous one; otherwise of the main thread's */
} gate_t;

static const gate_t gates[] = {
    {"one", 1, {{0, "1r"}, {1, "1r"}}, false, false},
    {"again", 1, {{0, "1r1r"}, {1, "1r1r"}}, false, false},
    {"large", 2, {{0, "1r"}, {1, "2r"}, {2, "1r"}}, false, false},
    {"two", 2, {{0, "2r"}, {1, "1r"}, {2, "1r"}}, false, false},
    {"inside", 2, {{0, "12rr"}, {1, "2r"}}, false, false},
    {"cancel", 1, {{0, "1r"}, {1, "cr1r"}, {2, "1r"}}, false, false},
    {"ends", 2, {{0, "1x"}, {0, "2r"}, {1, "2r"}}, false, false},
    {"forgets", 1, {{0, "1r"}, {1, "1r"}, {1, "1r"}}, true, false},
    {"crowd", 2, {{0, "1r2r"}, {0, "1r"}, {1, "2r1r"}, {2, "1rcr"}}, true, false},
    {"covers", 2, {{0, "tjr"}, {0, "2r"}, {1, "1r"}}, false, false},
    {"line", 1, {{0, "tjr"}, {1, "1r"}, {2, "11rr"}}, false, true},
    {"stops", 2, {{0, "1sr"}, {1, "wr"}, {2, "2r"}}, false, false},
};

static const gate_t *config;
static pp_gate_t *gate;
static unsigned n_users;

enum { OUTSIDE, WAITS, HOLDS, PASSES };       /* PASSES: it continues without tokens */
static struct {
    struct {
        int actor;
        unsigned where, asked, held;           /* asked, held: tokens, according to the thread itself */
        bool covers, joins, is_stopped, was_stopped;
        unsigned came, queued;                 /* the moments when it began to ask, and when it was told to wait */
        unsigned left;                         /* the moment when it last returned a token that covered others */
        int64_t queued_ns, held_ns;            /* queued_ns: clock time when it was queued; held_ns: when it got its tokens */
        bool is_done;                          /* it has ended, and holds no tokens */
        bool is_dead;                          /* seen by the checks */
        bool is_reported;                      /* to the parent */
    } users[USERS_MAX];
    unsigned moment;
    int64_t lost_ns;                           /* the newest death or stop, or 0 */
} m;

/* ---- the system: thread and process numbers, /proc ---- */

static int user_of(int actor) {
    for (unsigned i = 0; i < n_users; i++)
        if (m.users[i].actor == actor)
            return (int)i;
    return -1;
}

static pid_t process_of(unsigned user) { return FIRST_PROCESS + (pid_t)config->users[user].process; }

static bool is_alive(unsigned user) { return !sch_has_ended(m.users[user].actor); }

static pid_t my_process(void) {
    int user = user_of(sch_current());
    return user < 0 ? 1 : process_of((unsigned)user);
}

static pid_t parent_process(pid_t pid) { return pid == 1 ? 0 : config->is_line && pid > FIRST_PROCESS ? pid - 1 : 1; }

/* Whether a thread of this process passes while the task of that user holds its token. */
static bool covers(unsigned task, unsigned user) {
    pid_t pid = process_of(user);
    while (pid && pid != process_of(task))
        pid = parent_process(pid);
    return task != user && pid;
}

/* The numbers of dead threads: (0) are free, (1) belong to zombies, (2) are reused. */
static int fate_of_number(int thread) { return thread % 3; }

static bool is_number_free(int thread) {
    return thread < 0 || thread > sch_last_actor() || (sch_has_ended(thread) && fate_of_number(thread) == 0);
}

/* Files are named by the thread number, or by the process whose parent is looked up; that never changes. */
int pp_open(const char *path, int flags, unsigned mode) {
    int pid, tid;
    (void)flags, (void)mode;
    if (sscanf(path, "/proc/%d/task/%d/stat", &pid, &tid) != 2)
        abort();
    if (tid < FIRST_THREAD)
        return pid;
    sch_system_call();
    if (!sch_note(is_number_free(tid - FIRST_THREAD)))
        return tid;
    errno = ENOENT;
    return -1;
}

static char state_of(int thread) {
    int user = user_of(thread);
    bool is_gone = sch_note(sch_has_ended(thread)), is_stopped = sch_note(user >= 0 && m.users[user].is_stopped);
    return is_gone && fate_of_number(thread) == 1 ? 'Z' : is_stopped && !is_gone ? 'T' : 'S';
}

static ssize_t read_file(int number, char *to, size_t size) {
    int thread = number - FIRST_THREAD;
    if (thread < 0)
        return snprintf(to, size, "%d (a) name) S %d 5", number, parent_process(number));
    char state = state_of(thread);
    if (is_number_free(thread)) {
        errno = ESRCH;
        return -1;
    }
    return snprintf(to, size, "%d (a) name) %c 1 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 %d 23\n", number, state,
                    1 + thread + (sch_has_ended(thread) && fate_of_number(thread) == 2 ? 1000 : 0));
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

int pp_name_file(int fd, const char *path) {
    (void)fd, (void)path;
    return ENOTSUP;                            /* gates here have no names */
}

static _Alignas(4096) unsigned char memory[1 << 20];

int pp_map(int fd, uint64_t at, size_t size, void **mapped) {
    (void)fd, (void)at;
    *mapped = memory;
    return size <= sizeof memory ? 0 : ENOMEM;
}

void pp_unmap(void *at, size_t size) { (void)at, (void)size; }

int pp_robust_mutex_init(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    return pthread_mutex_init(mutex, &attributes);
}

bool pp_is_robust_mutex(const pthread_mutex_t *mutex) { return mutex != NULL; }

#undef getpid
#define getpid my_process
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

static char selves[ACTORS_MAX][sizeof self];   /* thread-local state of each thread while others run */

static void change(int from, int to) {
    if (from >= 0)
        memcpy(selves[from], &self, sizeof self);
    if (to >= 0)
        memcpy(&self, selves[to], sizeof self);
}

/* ---- checks ---- */

static const row_t *row_of(unsigned user) {
    const __typeof__(self) *its = m.users[user].actor == sch_current() ? &self : (void *)selves[m.users[user].actor];
    return &((page_t *)memory)->rows[its->row];
}

static uint32_t row_state(const row_t *row) { return *(const uint32_t *)&row->state; }

/* Whether it has been granted its request, or passes, perhaps without knowing that yet. */
static bool is_granted(unsigned user) { return row_state(row_of(user)) != WAITING; }

/* A stopped thread may have lost its tokens, and learns that when it returns them. */
static unsigned held_by(unsigned user) {
    bool has_lost = m.users[user].was_stopped && row_state(row_of(user)) == PASSING;
    return is_alive(user) && !has_lost ? m.users[user].held : 0;
}

static void check_tokens(void) {
    unsigned n_held = 0;
    for (unsigned i = 0; i < n_users; i++)
        n_held += held_by(i);
    sch_check(n_held <= config->n_tokens, "%u tokens are held, and there are %u", n_held, config->n_tokens);
}

/* Threads that were told to wait before this one came are served before it. */
static void check_order(unsigned user) {
    for (unsigned i = 0; i < n_users; i++)
        sch_check(i == user || m.users[i].where != WAITS || !is_alive(i) || m.users[i].queued > m.users[user].came || is_granted(i),
                  "user %u has its tokens before user %u, which came before", user, i);
}

/* While no thread makes a change: the first one in the queue waits only if too few tokens are free. */
static void check_queue(void) {
    page_t *p = (page_t *)memory;
    uint32_t mutex, n_held = 0;
    const row_t *first = NULL;
    memcpy(&mutex, &p->mutex, sizeof mutex);
    for (const row_t *row = p->rows; row <= &p->rows[USERS_MAX]; row++) {
        n_held += row_state(row) == HOLDING ? row->wanted : 0;
        if (row_state(row) == WAITING && (first == NULL || row->ticket < first->ticket))
            first = row;
    }
    uint32_t n_free = config->n_tokens - n_held;
    sch_check(n_held <= config->n_tokens, "%u tokens are given, and there are %u", n_held, config->n_tokens);
    sch_check((mutex & 0xff) != 0 || first == NULL || first->wanted > n_free, "%u tokens are free, and who is first waits for %u", n_free,
              first->wanted);
}

static bool is_covered_by(unsigned task, unsigned user) { return m.users[task].covers && is_alive(task) && covers(task, user); }

/* Only two kinds of thread continue without tokens: those that were stopped, and those that waited while a task that
 * covers them had its token. */
static void check_passing(unsigned user) {
    bool may = m.users[user].was_stopped;
    for (unsigned i = 0; i < n_users; i++)
        if (config->users[i].script[0] == 't' && covers(i, user))
            may = may || !is_alive(i) || m.users[i].where == HOLDS || row_state(row_of(i)) == HOLDING || m.users[i].left > m.users[user].came;
    sch_check(may, "user %u goes on without tokens, and no task covers it", user);
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* The clock moves only while all sleep. A thread must go on within BACK_NS after it was queued, after the newest death,
 * and after a task that covers others got its token. */
static void check_time(unsigned user) {
    int64_t since = later(m.users[user].queued_ns, m.lost_ns);
    for (unsigned i = 0; i < n_users; i++)     /* such a task may wait for a thread that has yet to see that it may pass */
        since = m.users[i].covers ? later(since, m.users[i].held_ns) : since;
    sch_check(pp_now_ns() - since <= BACK_NS, "user %u goes on long after it could have", user);
}

static void note_deaths(void) {
    for (unsigned i = 0; i < n_users; i++)
        if (!m.users[i].is_done && !m.users[i].is_dead && !is_alive(i)) {
            m.users[i].is_dead = true;
            m.lost_ns = pp_now_ns();
        }
}

/* All actors sleep. Tokens are held only by tasks that wait for threads they cover, and for a while by stopped and dead
 * threads. */
static void check_idle(void) {
    note_deaths();
    int64_t since = m.lost_ns;
    for (unsigned i = 0; i < n_users; i++) {
        bool may_hold = m.users[i].joins || m.users[i].is_stopped;
        sch_check(!is_alive(i) || m.users[i].where != HOLDS || may_hold, "user %u sleeps, and holds tokens", i);
        for (unsigned task = 0; task < n_users; task++)
            if (m.users[i].where == WAITS && is_covered_by(task, i))
                since = later(since, later(m.users[i].queued_ns, m.users[task].held_ns));
    }
    sch_check(since > 0, "somebody waits for tokens, and all are free");
    sch_check(pp_now_ns() - since <= BACK_NS, "somebody waits for tokens that were to come back long ago");
}

static void check_end(void) {
    for (int i = 0; i <= sch_last_actor(); i++)
        sch_check(sch_has_ended(i), "%s sleeps for ever", sch_name_of(i));
}

/* ---- actors ---- */

static int ask(unsigned n, bool covers_others, unsigned *granted) { return pp_gate_begin(gate, n, covers_others, granted); }

static void await_tokens(void) {
    while (pp_gate_wait() != 0)
        sch_forget(300 + (uint64_t)user_of(sch_current()));
}

static bool are_others_stopped(void) {
    for (unsigned i = 0; i < n_users; i++)
        if (is_alive(i) && !m.users[i].is_stopped)
            return false;
    return true;
}

/* Stops as by SIGSTOP: for a moment, or until no other thread runs. */
static void be_stopped(unsigned user) {
    m.users[user].is_stopped = m.users[user].was_stopped = true;
    m.lost_ns = pp_now_ns();
    sch_say("      is stopped");
    if (sch_choose(2))
        sch_until(are_others_stopped);
    else
        sch_system_call();
    m.users[user].is_stopped = false;
}

static bool is_joined(void) {
    for (unsigned task = 0; task < n_users; task++)
        for (unsigned i = 0; m.users[task].joins && i < n_users; i++)
            if (is_alive(i) && covers(task, i))
                return false;
    return true;
}

static void join(unsigned user) {
    m.users[user].joins = true;
    sch_until(is_joined);
    m.users[user].joins = false;
}

static void note_granted(unsigned user, bool covers_others) {
    bool is_passing = row_state(row_of(user)) == PASSING;
    sch_say(is_passing ? "      goes on without tokens" : "      holds %u", m.users[user].asked);
    m.users[user].where = is_passing ? PASSES : HOLDS;
    m.users[user].held = is_passing ? 0 : m.users[user].asked;
    m.users[user].held_ns = pp_now_ns();
    m.users[user].covers = covers_others && !is_passing;
    if (is_passing)
        check_passing(user);
    else
        check_order(user);
    check_tokens();
    check_queue();
}

/* False: it has given up. `how` as in the script: at any look, or once it has the tokens, as a signal handler would do. */
static bool await_turn(unsigned user, char how) {
    m.users[user].where = WAITS;
    m.users[user].queued = ++m.moment;
    m.users[user].queued_ns = pp_now_ns();
    sch_say("      waits for %u", m.users[user].asked);
    if (how == 'w')
        be_stopped(user);
    while (how == 'c' && pp_gate_wait() != 0)
        if (sch_choose(2)) {
            m.users[user].where = OUTSIDE;
            sch_say("      gives up");
            pp_gate_cancel();
            return false;
        }
    if (how != 'c')
        await_tokens();
    check_time(user);
    return true;
}

static void acquire(unsigned user, char how) {
    unsigned granted, n = how == '2' ? 2 : 1;
    if (m.users[user].where != OUTSIDE) {      /* within nested use it keeps its tokens */
        sch_check(ask(n, false, &granted) == 0 && granted == m.users[user].asked, "user %u asks inside, and has to wait", user);
        return;
    }
    m.users[user].came = ++m.moment;
    m.users[user].asked = n;
    int error = ask(n, how == 't', &granted);
    sch_check(error == 0 || error == EAGAIN, "user %u: error %d", user, error);
    sch_check(granted == n, "user %u asked for %u tokens, and is given %u", user, n, granted);
    if (error == 0 || await_turn(user, how))
        note_granted(user, how == 't');
}

static void release(unsigned user, bool is_outermost) {
    if (m.users[user].where == OUTSIDE)        /* it gave up */
        return;
    unsigned held = pp_gate_held();
    sch_check(held == m.users[user].held || (m.users[user].was_stopped && held == 0), "user %u holds %u tokens, and is told %u", user,
              m.users[user].held, held);
    if (is_outermost) {
        m.users[user].where = OUTSIDE;
        m.users[user].held = 0;
        m.users[user].left = ++m.moment;
        m.users[user].covers = false;
    }
    sch_say("      gives back");
    sch_check(pp_gate_release() == 0, "user %u cannot give back", user);
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
        } else if (*s == 's') {
            be_stopped(user);
        } else if (*s == 'j') {
            join(user);
        } else {
            depth++;
            acquire(user, *s);
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
        pp_gate_forget(gate, process_of((unsigned)user));
    }
}

/* All tokens are back, and all rows are free. That includes the rows of dead threads, since all tokens were requested. */
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
    int error = ask(config->n_tokens, false, &granted);
    if (error == EAGAIN) {
        note_deaths();
        await_tokens();
    }
    sch_check(error == 0 || error == EAGAIN, "all tokens: error %d", error);
    sch_check(pp_gate_release() == 0, "all tokens cannot be given back");
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
