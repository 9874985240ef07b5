/* Explores the linked programs (pool.c or tokens.c) under the scheduler. If one breaks a promise, exits with status 1
 * and prints the trace of the run.
 *
 *   explore exhaust PROGRAM SECONDS PREEMPTIONS KILLS DELAYS VAIN-WAKES    every run with at most so many of each
 *   explore random PROGRAM SECONDS SEED                                    runs SEED, SEED + 1, ...
 *   explore hunt SECONDS SEED                                              random runs of all programs in turn, without a trace
 *   explore replay PROGRAM SEED                                            one random run, with its trace
 *   explore list                                                           the programs
 *
 * Exhaustive: a depth-first search over the decisions, which skips known states. States are compared by a hash of the
 * shared words, the pending stores, and everything that each actor has read. Random: half of the runs use priorities
 * that change at a few random steps (PCT: Burckhardt and others, 2010); half choose the actor at random. */
#include "scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH_MAX 20000
#ifndef STATES_MAX
#define STATES_MAX (1u << 23)   /* known states; further states are explored without being recorded */
#endif
#define CHANGES_MAX 6
#define LENGTH_GUESS 300        /* approximate number of decisions in a run */

/* Of this process's own computing: how much is explored must not depend on what else runs on the machine. */
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- states ---- */

static const char *name;               /* of the explored program */
static const sch_program_t *explored;
static uint64_t *states;
static unsigned n_states;

static void open_program(unsigned i) {
    name = program_name(i);
    explored = program_open(i);
}

/* Returns whether this state is known; records it. */
static bool note_state(void) {
    uint64_t state = sch_mix(sch_state(), explored->state()) | 1;
    unsigned i = (unsigned)(state >> 20) % STATES_MAX;
    while (states[i] && states[i] != state)
        i = (i + 1) % STATES_MAX;
    if (states[i])
        return true;
    if (n_states < STATES_MAX / 4 * 3) {
        states[i] = state;
        n_states++;
    }
    return false;
}

static void forget_states(void) {
    free(states);
    if ((states = calloc(STATES_MAX, sizeof *states)) == NULL)   /* pages take memory only once they are written */
        exit(2);
    n_states = 0;
}

/* ---- exhaustive ---- */

static struct { unsigned n, chosen; sch_saved_t *saved; } path[DEPTH_MAX];
static unsigned depth, length;

static unsigned decide_next(const sch_option_t *options, unsigned n) {
    (void)options;
    if (length == DEPTH_MAX)
        abort();
    if (note_state())
        sch_stop_run();
    path[length].n = n;
    path[length].chosen = 0;
    if (!sch_save(&path[length].saved))
        length++;
    return path[length - 1].chosen;
}

static unsigned decide_again(const sch_option_t *options, unsigned n) {
    (void)options, (void)n;
    return depth < length ? path[depth++].chosen : 0;
}

static bool advance(void) {
    while (length > 0 && path[length - 1].chosen + 1 == path[length - 1].n)
        length--;
    if (length == 0)
        return false;
    path[length - 1].chosen++;
    return true;
}

static int exhaust(double limit_s, sch_budget_t budget) {
    double start = seconds();
    unsigned long n_runs = 0;
    bool is_complete = false;
    length = 0;
    forget_states();
    do {
        sch_result_t result = n_runs++ == 0 ? sch_run(explored, decide_next, budget, false) : sch_resume(path[length - 1].saved, decide_next, NULL, false);
        if (result == SCH_FAILED) {
            depth = 0;
            sch_run(explored, decide_again, budget, true);
            printf("FOUND %s: %s; run %lu, %.1f s\n", name, sch_failure(), n_runs, seconds() - start);
            return 1;
        }
        is_complete = !advance();
    } while (!is_complete && (n_runs % 64 || seconds() - start < limit_s));
    printf("exhaust %-8s %u pre-emptions, %u kills, %u delays, %u vain wakes: %s, %lu interleavings, %u states, %.1f s\n", name,
           budget.preemptions, budget.kills, budget.delays, budget.vain_wakes, is_complete ? "complete" : "time is over", n_runs,
           n_states, seconds() - start);
    fflush(stdout);
    return 0;
}

/* ---- random ---- */

static uint64_t random_state;
static unsigned n_decisions, n_changes, changes[CHANGES_MAX];
static int priority[ACTORS_MAX], lowest;
static bool by_priority;
static unsigned oddity;         /* one in so many possible unusual events happens */

static unsigned draw(unsigned below) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (unsigned)(random_state >> 11) % below;
}

static void begin_random(uint64_t seed, sch_budget_t *budget) {
    random_state = sch_mix(seed, 77) | 1;
    n_decisions = 0;
    by_priority = draw(2);
    n_changes = draw(CHANGES_MAX);
    oddity = (unsigned[]){3, 10, 40}[draw(3)];
    for (unsigned i = 0; i < n_changes; i++)
        changes[i] = draw(LENGTH_GUESS);
    for (int i = 0; i < ACTORS_MAX; i++)
        priority[i] = (int)draw(1000);
    lowest = 0;
    *budget = (sch_budget_t){1u << 30, draw(2) * draw(4), draw(3) ? 0 : 1u << 20, draw(2) * draw(4)};
}

static bool is_going(const sch_option_t *o) { return o->deed == SCH_GO || o->deed == SCH_TIMEOUT; }

static unsigned pick_first(const sch_option_t *options, unsigned n) {
    for (unsigned i = 0; i < n_changes; i++)
        if (changes[i] == n_decisions)
            priority[options[0].actor] = --lowest;
    unsigned best = 0;
    for (unsigned i = 1; i < n; i++)
        if (is_going(&options[i]) && priority[options[i].actor] > priority[options[best].actor])
            best = i;
    return best;
}

static unsigned decide_random(const sch_option_t *options, unsigned n) {
    n_decisions++;
    if (states && n_decisions % 32 == 0)
        note_state();
    if (options[0].deed == SCH_ANSWER)
        return draw(n);
    unsigned odd = draw(n);
    const sch_option_t *o = &options[odd];
    if (o->deed == SCH_DRAIN ? draw(4) == 0 : !is_going(o) && draw(oddity) == 0)
        return odd;
    if (by_priority)
        return pick_first(options, n);
    return is_going(o) && draw(5) == 0 ? odd : 0;
}

static sch_saved_t *beginning;

static unsigned decide_first(const sch_option_t *options, unsigned n) {
    if (!sch_save(&beginning))
        sch_stop_run();
    return decide_random(options, n);
}

/* Runs up to the first decision, where random runs begin. */
static void prepare(void) {
    sch_run(explored, decide_first, (sch_budget_t){.preemptions = 1u << 30}, false);
}

static sch_result_t run_random(uint64_t seed, bool traced) {
    sch_budget_t budget;
    begin_random(seed, &budget);
    return sch_resume(beginning, decide_random, &budget, traced);
}

static int explore_random(double limit_s, uint64_t seed) {
    prepare();
    double start = seconds();
    unsigned long n_runs = 0, n_steps = 0;
    forget_states();
    do {
        sch_result_t result = run_random(seed + n_runs++, false);
        n_steps += sch_steps();
        if (result == SCH_FAILED) {
            run_random(seed + n_runs - 1, true);
            printf("FOUND %s: %s; seed %llu, run %lu, %.1f s\n", name, sch_failure(), (unsigned long long)(seed + n_runs - 1), n_runs,
                   seconds() - start);
            return 1;
        }
    } while (n_runs % 64 || seconds() - start < limit_s);
    printf("random  %-8s seeds %llu to %llu: %lu interleavings, %u states, %lu steps a run, %.1f s\n", name, (unsigned long long)seed,
           (unsigned long long)(seed + n_runs - 1), n_runs, n_states, n_steps / n_runs, seconds() - start);
    fflush(stdout);
    return 0;
}

/* Explores all programs in turn until it finds an error or the time is over; without a trace. */
static int hunt(double limit_s, uint64_t seed) {
    double start = seconds();
    unsigned long n_runs = 0;
    for (;; seed += 100)
        for (unsigned i = 0; program_name(i); i++) {
            open_program(i);
            prepare();
            for (unsigned n = 0; n < 100; n++, n_runs++)
                if (run_random(seed + n, false) == SCH_FAILED) {
                    printf("%s: %s; seed %llu, run %lu, %.1f s\n", name, sch_failure(), (unsigned long long)(seed + n), n_runs + 1,
                           seconds() - start);
                    return 1;
                }
            if (seconds() - start > limit_s) {
                printf("nothing: %lu interleavings, %.1f s\n", n_runs, seconds() - start);
                return 0;
            }
        }
}

static void find_program(const char *wanted) {
    for (unsigned i = 0; program_name(i); i++)
        if (strcmp(program_name(i), wanted) == 0) {
            open_program(i);
            return;
        }
    fprintf(stderr, "explore: no program %s\n", wanted);
    exit(2);
}

static int usage(void) {
    fputs("usage: explore list | exhaust PROGRAM SECONDS PREEMPTIONS KILLS DELAYS VAIN-WAKES | random PROGRAM SECONDS SEED |"
          " hunt SECONDS SEED | replay PROGRAM SEED\n", stderr);
    return 2;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "list") == 0) {
        for (unsigned i = 0; program_name(i); i++)
            puts(program_name(i));
        return 0;
    }
    if (strcmp(what, "hunt") == 0 && argc == 4)
        return hunt(atof(argv[2]), strtoull(argv[3], NULL, 10));
    if (argc < 4)
        return usage();
    find_program(argv[2]);
    if (strcmp(what, "exhaust") == 0 && argc == 8)
        return exhaust(atof(argv[3]), (sch_budget_t){(unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]), (unsigned)atoi(argv[6]), (unsigned)atoi(argv[7])});
    if (strcmp(what, "random") == 0 && argc == 5)
        return explore_random(atof(argv[3]), strtoull(argv[4], NULL, 10));
    if (strcmp(what, "replay") == 0 && argc == 4)
        return prepare(), run_random(strtoull(argv[3], NULL, 10), true) == SCH_FAILED;
    return usage();
}
