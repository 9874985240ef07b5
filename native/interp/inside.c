/* Whether a thread of this process is inside private copies that are about to be unloaded.
 *
 * A package may start threads that outlive its interpreter, be it asleep. Such a thread continues, or returns, to an address
 * in a copy, so the whole program would crash when it wakes. Nobody lists these threads: those of C++ and Boost are started by
 * libraries that are no copies. So the stack of every other thread is searched for addresses of the copies' code.
 *
 * - A thread that Python or this extension has started is not inside. It runs code of other interpreters.
 * - A thread that sleeps in the kernel: from its stack pointer on, thus all functions that it has to return to. A stale address
 *   between them keeps the copies for nothing, and that is all that it does.
 * - A thread that runs, whose stack pointer the kernel does not tell: its whole stack. It may have left the copies, and its
 *   calls of them are still there; so it is looked at again, a little later. If it never sleeps it counts as inside.
 * - Every thread: its descriptor, where the C library keeps the function that it began with, and that function's argument. A
 *   thread that C++ has just started has its own function in the argument.
 *
 * Another thread's memory is read by a system call, which fails if it is gone. The main thread is not looked at, since no copy is
 * called there, and the kernel does not tell where its stack ends.
 *
 * What this does not find: functions of a copy that are only in the heap, as in the queue of another library's idle thread,
 * and timers with SIGEV_THREAD.
 */
#include "python.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/param.h>
#include <time.h>
#include <unistd.h>

enum {
    DESCRIPTOR = 1280,           /* bytes of it that are searched; in glibc 2.36 the function and its argument are at 864 */
    OBJECT = 64,                 /* guess: bytes of the argument that are searched */
    STACK = 16 << 20,            /* guess: what most stacks do not exceed */
    ROUNDS = 20,                 /* guess: times to look for threads that were started meanwhile */
    FIRST_PAUSE_NS = 100000,
    LAST_PAUSE_NS = 1000000000,  /* guess: 1.6 s in all, for a thread that begins or ends on a machine with much to do */
};

typedef enum { OUTSIDE, UNSURE, INSIDE } answer_t;

typedef struct {
    const pp_place_t *places;
    size_t n_places;
    uintptr_t low, high;      /* all of their code is between */
    int *seen;                /* threads that this look has reached */
    size_t n_seen, capacity;
    int sleeper;              /* one that is inside, asleep */
    uintptr_t stack;          /* its stack pointer */
} look_t;

static bool is_code(const look_t *look, uintptr_t word) {
    word = pp_plain_address(word);
    bool found = false;
    for (size_t i = 0; word >= look->low && word < look->high && !found && i < look->n_places; i++)
        found = word - look->places[i].code < look->places[i].code_size;
    return found;
}

/* Code or data of a copy whose threads count. */
static bool is_in_copy(const look_t *look, uintptr_t word) {
    bool found = false;
    for (size_t i = 0; !found && i < look->n_places; i++)
        found = look->places[i].code_size && word >= look->places[i].start && word < look->places[i].end;
    return found;
}

/* ---- memory of other threads ---- */

/* Searches what lies from `from` up to `to`, as far as it can be read. UNSURE: not even the beginning can be. */
static answer_t search_up(const look_t *look, uintptr_t from, uintptr_t to) {
    uintptr_t words[PP_PIECE / sizeof(uintptr_t)], at = from;
    while (at < to) {
        size_t size = MIN(PP_PIECE - at % PP_PIECE, to - at);
        if (!pp_peek(at, size, words))
            return at == from ? UNSURE : OUTSIDE;
        for (size_t i = 0; i < size / sizeof *words; i++)
            if (is_code(look, words[i]))
                return INSIDE;
        at += size;
    }
    return OUTSIDE;
}

/* Searches a whole stack, from what lies on top of it down to its guard page. */
static answer_t search_down(const look_t *look, uintptr_t top) {
    enum { AT_ONCE = 16 };
    uintptr_t words[AT_ONCE * PP_PIECE / sizeof(uintptr_t)], first = top / PP_PIECE * PP_PIECE;
    size_t n = AT_ONCE;
    for (size_t depth = 0; n == AT_ONCE && depth < STACK; depth += AT_ONCE * PP_PIECE) {
        n = pp_peek_down(first - depth, AT_ONCE, words);
        for (size_t i = 0; i < n * PP_PIECE / sizeof *words; i++)
            if (is_code(look, words[i]))
                return INSIDE;
    }
    return OUTSIDE;
}

/* Searches what a thread's descriptor refers to. */
static answer_t search_objects(const look_t *look, uintptr_t descriptor) {
    uintptr_t words[DESCRIPTOR / sizeof(uintptr_t)], object[OBJECT / sizeof(uintptr_t)];
    if (!pp_peek(descriptor, sizeof words, words))
        return UNSURE;
    for (size_t i = 0; i < DESCRIPTOR / sizeof *words; i++)
        if (words[i] > PP_PIECE && words[i] % sizeof *words == 0 && pp_peek(words[i], sizeof object, object))
            for (size_t k = 0; k < OBJECT / sizeof *object; k++)
                if (is_in_copy(look, object[k]))
                    return INSIDE;
    return OUTSIDE;
}

/* ---- who has started a thread ---- */

static size_t begun_at;       /* where a descriptor has the function that the thread began with; 0: unknown */

/* The function of a thread that finds itself in its own descriptor. */
static void *find_itself(void *ignored) {
    uintptr_t descriptor, words[DESCRIPTOR / sizeof(uintptr_t)];
    if (pp_thread_descriptor((int)pp_thread_id(), &descriptor) == 0 && pp_peek(descriptor, sizeof words, words))
        for (size_t i = 0; i < DESCRIPTOR / sizeof *words; i++)
            if (words[i] == (uintptr_t)find_itself)
                begun_at = i * sizeof *words;
    return ignored;
}

static void find_begun_at(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, find_itself, NULL) == 0)
        pthread_join(thread, NULL);
}

static void *library_at(uintptr_t address) {
    Dl_info info;
    return dladdr((void *)address, &info) ? info.dli_fbase : NULL;
}

/* Copies do not start threads through Python: see imports.c. */
static bool is_of_python_or_ours(uintptr_t descriptor) {
    uintptr_t function;
    if (begun_at == 0 || descriptor == 0 || !pp_peek(descriptor + begun_at, sizeof function, &function))
        return false;
    void *library = library_at(function);
    return library && (library == library_at((uintptr_t)PyThread_start_new_thread) || library == library_at((uintptr_t)find_itself));
}

/* ---- one thread ---- */

static answer_t look_at_sleeper(look_t *look, int thread, uintptr_t stack, uintptr_t code, uintptr_t descriptor) {
    if (stack == 0)   /* it has ended, or is the kernel's */
        return OUTSIDE;
    bool is_usual = stack <= descriptor && descriptor - stack < STACK;   /* otherwise on a stack of its own making */
    answer_t answer = is_code(look, code) ? INSIDE : search_up(look, stack, is_usual ? descriptor + DESCRIPTOR : stack + STACK);
    if (answer == OUTSIDE && !is_usual && descriptor)
        answer = search_up(look, descriptor, descriptor + DESCRIPTOR);
    if (answer == INSIDE) {
        look->sleeper = thread;
        look->stack = stack;
    }
    return answer;
}

static answer_t look_at_runner(const look_t *look, uintptr_t descriptor) {
    bool is_outside = descriptor && search_up(look, descriptor, descriptor + DESCRIPTOR) == OUTSIDE &&
                      search_objects(look, descriptor) == OUTSIDE && search_down(look, descriptor) == OUTSIDE;
    return is_outside ? OUTSIDE : UNSURE;
}

static answer_t look_at_thread(look_t *look, int thread) {
    uintptr_t descriptor, stack, code;
    if (thread == (int)pp_thread_id() || thread == getpid())
        return OUTSIDE;
    int error = pp_thread_descriptor(thread, &descriptor);
    if (error)
        return error == ESRCH ? OUTSIDE : UNSURE;
    if (is_of_python_or_ours(descriptor))
        return OUTSIDE;
    if (pp_thread_sleeps(thread, &stack, &code))
        return look_at_sleeper(look, thread, stack, code, descriptor);
    return look_at_runner(look, descriptor);
}

/* ---- all threads ---- */

static bool was_seen(const look_t *look, int thread) {
    bool found = false;
    for (size_t i = 0; !found && i < look->n_seen; i++)
        found = look->seen[i] == thread;
    return found;
}

static bool see(look_t *look, int thread) {
    if (look->n_seen == look->capacity) {
        size_t more = look->capacity ? 2 * look->capacity : 64;
        int *grown = realloc(look->seen, more * sizeof *grown);
        if (grown == NULL)
            return false;
        look->seen = grown;
        look->capacity = more;
    }
    look->seen[look->n_seen++] = thread;
    return true;
}

/* Looks at the threads that this look has not reached yet. */
static answer_t look_at_new(look_t *look) {
    answer_t worst = OUTSIDE;
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    if (threads == NULL)
        return UNSURE;
    while (worst != INSIDE && (entry = readdir(threads)) != NULL) {
        int thread = atoi(entry->d_name);   /* 0: the folder itself */
        if (thread == 0 || was_seen(look, thread))
            continue;
        answer_t answer = see(look, thread) ? look_at_thread(look, thread) : UNSURE;
        if (answer > worst)
            worst = answer;
    }
    closedir(threads);
    return worst;
}

/* A thread inside may start another one and end before its turn. So the threads are listed again, until none is new. */
static answer_t look_at_threads(look_t *look) {
    answer_t worst = OUTSIDE;
    size_t before;
    int round = 0;
    look->n_seen = 0;
    do {
        before = look->n_seen;
        answer_t answer = look_at_new(look);
        if (answer > worst)
            worst = answer;
    } while (worst != INSIDE && look->n_seen > before && ++round < ROUNDS);
    return worst;
}

static bool handles_signals(const look_t *look) {
    bool found = false;
    for (int signal = 1; signal < NSIG && !found; signal++) {
        struct sigaction action;
        found = sigaction(signal, NULL, &action) == 0 && is_code(look, (uintptr_t)action.sa_handler);
    }
    return found;
}

/* Whoever is found twice, asleep at the same place, stays. Others may be about to end, or to leave. */
static bool look_for_a_while(look_t *look) {
    for (long pause_ns = FIRST_PAUSE_NS;; pause_ns *= 2) {
        int sleeper = look->sleeper;
        uintptr_t stack = look->stack;
        look->sleeper = 0;
        answer_t answer = look_at_threads(look);
        if (answer == OUTSIDE)
            return false;
        if ((answer == INSIDE && look->sleeper == sleeper && look->stack == stack) || pause_ns > LAST_PAUSE_NS)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
}

const char *pp_is_inside(const pp_place_t *places, size_t n) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_begun_at);
    look_t look = {.places = places, .n_places = n, .low = UINTPTR_MAX};
    for (size_t i = 0; i < n; i++) {
        if (places[i].code_size && places[i].code < look.low)
            look.low = places[i].code;
        if (places[i].code + places[i].code_size > look.high)
            look.high = places[i].code + places[i].code_size;
    }
    const char *cause = handles_signals(&look) ? "a signal handler" : look_for_a_while(&look) ? "a thread" : NULL;
    free(look.seen);
    return cause;
}
