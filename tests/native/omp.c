/* A library that uses OpenMP. Its thread counts are those of the calling thread. Built by tests/conftest.py. */
#include <omp.h>

int n_threads_max(void) { return omp_get_max_threads(); }

int n_threads_of_a_region(void) {
    int n = 0;
#pragma omp parallel
#pragma omp single
    n = omp_get_num_threads();
    return n;
}
