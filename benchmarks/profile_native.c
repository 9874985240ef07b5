/* The minimum times for two threads to signal each other, for profile_task.py, which compiles this file.
 *
 * Prints, in ns: a compare-and-swap of a word that no other thread uses; passing a cache line to another core that
 * spins for it; waking a thread that sleeps on a futex, until it runs. The last two are half a round trip. Each is the
 * best of as many rounds as the argument says. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { N_SWAPS = 1000000, N_HAND_OVERS = 5000, N_WAKES = 2000 };

static _Alignas(128) _Atomic unsigned word;
static _Atomic int is_futex;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void wait_for(unsigned wanted) {
    for (;;) {
        unsigned seen = atomic_load(&word);
        if (seen == wanted)
            return;
        if (atomic_load(&is_futex))
            syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, NULL);
    }
}

static void set(unsigned value) {
    atomic_store(&word, value);
    if (atomic_load(&is_futex))
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
}

static void *answer(void *n) {
    for (unsigned i = 0; i < *(unsigned *)n; i++) {
        wait_for(2 * i + 1);
        set(2 * i + 2);
    }
    return NULL;
}

static double one_way_ns(unsigned n) {
    pthread_t other;
    atomic_store(&word, 0);
    if (pthread_create(&other, NULL, answer, &n) != 0)
        return 0;
    double began_ns = 0;
    for (unsigned i = 0; i < n; i++) {
        if (i == n / 10)      /* by now the other thread has started */
            began_ns = now_ns();
        set(2 * i + 1);
        wait_for(2 * i + 2);
    }
    double taken_ns = now_ns() - began_ns;
    pthread_join(other, NULL);
    return taken_ns / (n - n / 10) / 2;
}

static double swap_ns(void) {
    _Atomic unsigned own = 0;
    double began_ns = now_ns();
    for (unsigned i = 0; i < N_SWAPS; i++) {
        unsigned seen = i;
        atomic_compare_exchange_strong(&own, &seen, i + 1);
    }
    return (now_ns() - began_ns) / N_SWAPS;
}

int main(int n_arguments, char **arguments) {
    int n_rounds = n_arguments > 1 ? atoi(arguments[1]) : 1;
    double least[3] = {1e18, 1e18, 1e18};
    for (int i = 0; i < n_rounds; i++) {
        double found[3] = {swap_ns()};
        atomic_store(&is_futex, 0);
        found[1] = one_way_ns(N_HAND_OVERS);
        atomic_store(&is_futex, 1);
        found[2] = one_way_ns(N_WAKES);
        for (int k = 0; k < 3; k++)
            least[k] = found[k] < least[k] ? found[k] : least[k];
    }
    printf("%.2f %.1f %.1f\n", least[0], least[1], least[2]);
    return 0;
}
