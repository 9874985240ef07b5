/* A preload library with which memory cannot be moved to other addresses while its own stay, as on Linux before 5.7. */
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mremap(void *from, size_t old_size, size_t new_size, int flags, ...) {
    va_list more;
    va_start(more, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(more, void *) : NULL;
    va_end(more);
    if (flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, from, old_size, new_size, flags, to);
}
