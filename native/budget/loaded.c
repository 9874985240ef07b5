/* Which libraries are loaded: has the list grown, and is one in it that has threads of its own?
 *
 * The loader counts what it loads, but to ask it one takes a lock (dl_iterate_phdr), and not before every task: a thread
 * that has it may be waiting for the GIL (threadpoolctl's and ctypes' callbacks), and a child forked while any thread has it
 * hangs at its next import (glibc does not reset it; measured: 96 forks of 200 while another thread asks in a loop).
 *
 * So a library that is the last of the loader's list is kept from being unloaded, and its link to the next one tells
 * whether anything has been loaded since: one read, without a lock, of memory that stays. A library kept so is kept for
 * good, since another thread may be reading; there is one for each look at the list, nearly always an extension module,
 * which Python never unloads anyway.
 *
 * Interpreters' private copies of extension modules are unloaded, so none is kept: the last library before them is, and
 * what is loaded behind them goes unnoticed until they are gone. Who loads a copy, or libraries for it, says so instead.
 */
#include "native.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;                      /* of those who look */
    _Atomic(struct link_map *) last;           /* of the list when it was looked at; kept loaded. NULL: never looked */
    _Atomic(struct link_map *) after;          /* NULL, unless the last of the list would not be kept */
    _Atomic uint64_t n_looks;
    _Atomic uint64_t has_thread_library;       /* the last answer, in bit 0, to what the even number above it was looked at */
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct link_map *next_of(struct link_map *map) { return __atomic_load_n(&map->l_next, __ATOMIC_ACQUIRE); }

/* Odd: something was loaded that nobody has looked at. Never blocks. `n_looks` is read last and written first: who misses
 * what has been loaded, because another thread is looking at it, sees another number. */
uint64_t pp_n_loads(void) {
    struct link_map *last = pp_load_acquire(&loaded.last);
    bool has_news = last == NULL || next_of(last) != pp_load_acquire(&loaded.after);
    return 2 * pp_load_acquire(&loaded.n_looks) + has_news;
}

/* What happened to the list by our own doing. */
void pp_note_load(void) { pp_add_seq_cst(&loaded.n_looks, 1); }

static bool is_copy(const struct link_map *map) { return strncmp(map->l_name, "/proc/self/fd", 13) == 0; }

/* Called by the loader with its lock held, so that the list stays as it is meanwhile. */
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

static struct link_map *keep(const char *name) {
    void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    struct link_map *map = NULL;
    if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
        return NULL;
    return map;
}

static void look(void) {
    pp_add_seq_cst(&loaded.n_looks, 1);
    struct link_map *last = pp_load_relaxed(&loaded.last);
    for (int tries = 0; tries < 4 && (last == NULL || next_of(last)); tries++) {
        char *name = NULL;
        if (last)
            dl_iterate_phdr(copy_last_name, &name);
        struct link_map *map = last == NULL || name ? keep(name) : NULL;   /* the first is the program itself */
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
        look();
    uint64_t n = 2 * pp_load_relaxed(&loaded.n_looks);
    pthread_mutex_unlock(&loaded.lock);
    return n;
}

/* A forked child: whoever held the lock is not there. What it had written is whole. */
void pp_loads_after_fork(void) { pthread_mutex_init(&loaded.lock, NULL); }

static int is_thread_library(struct dl_phdr_info *info, size_t size, void *ignored) {
    (void)size, (void)ignored;
    static const char *const names[] = {"blas", "blis", "mkl_", "gomp", "libomp", "iomp", "libtbb"};
    const char *slash = strrchr(info->dlpi_name, '/'), *base = slash ? slash + 1 : info->dlpi_name;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(base, names[i]))
            return 1;
    return strstr(info->dlpi_name, "/numba/np/ufunc/") != NULL;
}

/* Asked again with nothing loaded since, it takes no lock: a forked child can ask whose parent has. */
bool pp_has_thread_library(void) {
    uint64_t n = pp_look_at_loads();   /* first: what is loaded from here on changes pp_n_loads */
    uint64_t answer = pp_load_acquire(&loaded.has_thread_library);
    if ((answer & ~1ull) != n) {
        answer = n | (dl_iterate_phdr(is_thread_library, NULL) != 0);
        pp_store_release(&loaded.has_thread_library, answer);
    }
    return answer & 1;
}
