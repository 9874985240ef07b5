/* madvise without MADV_POPULATE_WRITE, as Linux before 5.14 has it: link with -Wl,--wrap=madvise. qemu-user needs this: it says
 * of advice that it does not know that it was followed, and what should have become private memory stays shared. */
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
