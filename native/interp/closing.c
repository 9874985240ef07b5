/* Closes libraries together.
 *
 * dlclose runs a library's destructors and unmaps it. If libraries are closed one after the other, a destructor may call
 * what another one had registered, which is unmapped by now: those of Arrow do. At the end of a program all destructors
 * run before anything is gone. glibc does the same with all libraries that become unused within one dlclose. A dlclose
 * that a destructor calls only counts; what is unused then goes with the others afterwards. So a destructor closes the
 * libraries, and it is that of a copy of this extension, on which none of them depends.
 */
#include "python.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    void **handles;
    size_t n;
} closing_t;

/* In a copy: what it is to close. In the extension itself: nothing. */
__attribute__((visibility("default"))) closing_t pp_closing;

static void close_each(closing_t *c) {
    while (c->n)
        dlclose(c->handles[--c->n]);
}

__attribute__((destructor)) static void close_in_destructor(void) { close_each(&pp_closing); }

static bool copy_file(int from, int to) {
    struct stat status;
    if (fstat(from, &status) != 0)
        return false;
    off_t at = 0;
    while (at < status.st_size)
        if (sendfile(to, from, &at, (size_t)(status.st_size - at)) <= 0)
            return false;
    return true;
}

static void *open_own_copy(void) {
    Dl_info here;
    void *copy = NULL;
    int original = dladdr(&pp_closing, &here) ? open(here.dli_fname, O_RDONLY | O_CLOEXEC) : -1;
    int fd = original < 0 ? -1 : memfd_create("pool_party", MFD_CLOEXEC);
    if (fd >= 0 && copy_file(original, fd))
        copy = pp_open_memfd(fd, RTLD_LAZY);
    if (fd >= 0)
        close(fd);
    if (original >= 0)
        close(original);
    return copy;
}

/* If no copy can be had, for want of descriptors or memory, or since the file was replaced, they are closed one by one. */
void pp_close_together(void **handles, size_t n) {
    closing_t all = {handles, n}, *in_copy = NULL;
    void *copy = open_own_copy();
    if (copy && (in_copy = dlsym(copy, "pp_closing")) != NULL)
        *in_copy = all;
    if (copy)
        dlclose(copy);
    if (in_copy == NULL)
        close_each(&all);
}
