/* A preload library that makes a program believe that pages have POOL_PARTY_PAGE bytes. It aborts a program whose file
 * requests do not cover whole pages: on such a system they would fail, or free no memory. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static long page(void) { return atol(getenv("POOL_PARTY_PAGE")); }

static void check(const char *what, off_t at) {
    if (at % page() == 0)
        return;
    fprintf(stderr, "%s at %ld\n", what, (long)at);
    abort();
}

long sysconf(int name) {
    static long (*original)(int);
    if (original == NULL)
        original = dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? page() : original(name);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t at) {
    static void *(*original)(void *, size_t, int, int, int, off_t);
    if (original == NULL)
        original = dlsym(RTLD_NEXT, "mmap");
    if (!(flags & MAP_ANONYMOUS))
        check("mmap", at);
    return original(address, size, protection, flags, fd, at);
}

int fallocate(int fd, int mode, off_t at, off_t size) {
    static int (*original)(int, int, off_t, off_t);
    if (original == NULL)
        original = dlsym(RTLD_NEXT, "fallocate");
    check("fallocate", at);
    return original(fd, mode, at, size);
}
