/* madvise without MADV_POPULATE_WRITE, as on Linux before 5.14: link with -Wl,--wrap=madvise. qemu-user needs this: it
 * reports success for advice that it does not know, so memory that should have become private would stay shared. */
#include <errno.h>
#include <stddef.h>

#define MADV_POPULATE_WRITE 23

int __real_madvise(void *memory, size_t size, int advice);
int __wrap_madvise(void *memory, size_t size, int advice);

int __wrap_madvise(void *memory, size_t size, int advice) {
    if (advice != MADV_POPULATE_WRITE)
        return __real_madvise(memory, size, advice);
    errno = EINVAL;
    return -1;
}
