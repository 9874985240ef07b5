/* Which libraries are loaded: whether the list has grown, and how many in it have threads of their own.
 *
 * The dynamic loader counts what it loads, but reading the count takes a lock (dl_iterate_phdr). That is not acceptable
 * before every task: a thread that holds the lock may be waiting for the GIL (callbacks of threadpoolctl and ctypes).
 * And a child that is forked while any thread holds it hangs at its next import, since glibc does not reset it
 * (measured: 96 of 200 forks while another thread reads in a loop).
 *
 * Instead, the last library in the loader's list is kept from being unloaded, and its link to the next one tells
 * whether anything has been loaded since. That is one read, without a lock, of memory that stays. Such a library stays
 * loaded for good, because another thread may be reading it. There is one for each look at the list, nearly always an
 * extension module, which Python never unloads.
 *
 * Interpreters' private copies of extension modules are unloaded, so they cannot be kept; the last library before them
 * is. What is loaded after them goes unnoticed until they are gone. Code that loads a copy, or libraries for it,
 * therefore reports that itself.
 */
#include "native.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;                      /* held while examining the list */
    _Atomic(struct link_map *) last;           /* the last of the list when it was examined; kept loaded. NULL: never examined */
    _Atomic(struct link_map *) after;          /* what follows it: NULL, unless a private copy does */
    _Atomic uint64_t n_looks;
    _Atomic uint64_t n_thread_libraries;       /* the last answer, in COUNT_BITS bits; above it, the pp_n_loads() that it is for */
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct link_map *next_of(struct link_map *map) { return __atomic_load_n(&map->l_next, __ATOMIC_ACQUIRE); }

/* Odd: something was loaded that has not been examined. Never blocks. `n_looks` is read last and written first. So a
 * thread that misses a load, because another thread is examining it, sees a different number. */
uint64_t pp_n_loads(void) {
    struct link_map *last = pp_load_acquire(&loaded.last);
    bool has_work = last == NULL || next_of(last) != pp_load_acquire(&loaded.after);
    return 2 * pp_load_acquire(&loaded.n_looks) + has_work;
}

/* Notes a change of the list that we caused. */
void pp_note_load(void) { pp_add_seq_cst(&loaded.n_looks, 1); }

static bool is_copy(const struct link_map *map) { return strncmp(map->l_name, "/proc/self/fd", 13) == 0; }

/* Called by the loader, which holds its lock so that the list does not change meanwhile. */
static int copy_last_name(struct dl_phdr_info *info, size_t size, void *name) {
    (void)info, (void)size;
    struct link_map *last = pp_load_relaxed(&loaded.last), *map = last;
    while ((map = map->l_next) != NULL)
        if (!is_copy(map))
            last = map;
    if (last != pp_load_relaxed(&loaded.last))
        *(char **)name = strdup(last->l_name);
    return 1;
}

static struct link_map *keep_loaded(const char *name) {
    void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    struct link_map *map = NULL;
    if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
        return NULL;
    return map;
}

static void look_for_loads(void) {
    pp_add_seq_cst(&loaded.n_looks, 1);
    struct link_map *last = pp_load_relaxed(&loaded.last);
    for (int tries = 0; tries < 4 && (last == NULL || next_of(last)); tries++) {
        char *name = NULL;
        if (last)
            dl_iterate_phdr(copy_last_name, &name);
        struct link_map *map = last == NULL || name ? keep_loaded(name) : NULL;   /* the first one is the program itself */
        free(name);
        if (map == NULL)
            break;
        pp_store_release(&loaded.last, last = map);
    }
    pp_store_release(&loaded.after, last ? next_of(last) : NULL);
}

uint64_t pp_look_at_loads(void) {
    pthread_mutex_lock(&loaded.lock);
    if (pp_n_loads() & 1)
        look_for_loads();
    uint64_t n = 2 * pp_load_relaxed(&loaded.n_looks);
    pthread_mutex_unlock(&loaded.lock);
    return n;
}

/* In a forked child: the thread that held the lock does not exist there. What it had written is complete. */
void pp_loads_after_fork(void) { pthread_mutex_init(&loaded.lock, NULL); }

enum { COUNT_BITS = 16, COUNT_MAX = (1 << COUNT_BITS) - 1 };

static bool is_thread_library(const char *path) {
    static const char *const names[] = {"blas", "blis", "mkl_", "gomp", "libomp", "iomp", "libtbb"};
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(base, names[i]))
            return true;
    return strstr(path, "/numba/np/ufunc/") != NULL;
}

static int count_thread_library(struct dl_phdr_info *info, size_t size, void *n) {
    (void)size;
    *(uint64_t *)n += is_thread_library(info->dlpi_name);
    return 0;
}

/* If nothing was loaded since the last call, this takes no lock. A forked child may then call it even if its parent
 * held the lock. */
unsigned pp_n_thread_libraries(void) {
    uint64_t n_loads = pp_look_at_loads();   /* first: anything loaded after this changes pp_n_loads */
    uint64_t answer = pp_load_acquire(&loaded.n_thread_libraries);
    if (answer >> COUNT_BITS != n_loads) {
        uint64_t n = 0;
        dl_iterate_phdr(count_thread_library, &n);
        answer = n_loads << COUNT_BITS | (n < COUNT_MAX ? n : COUNT_MAX);
        pp_store_release(&loaded.n_thread_libraries, answer);
    }
    return answer & COUNT_MAX;
}
