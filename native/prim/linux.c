/* All calls of the operating system: a port to another system would replace this file. */
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

int64_t pp_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- descriptors ---- */

/* Standard streams may be closed. What the program, a library or a child then writes to a number below 3 must not reach
 * a file of ours. */
int pp_above_standard(int fd) {
    if (fd < 0 || fd > 2)
        return fd;
    int above = pp_duplicate_fd(fd), error = errno;
    close(fd);
    errno = error;
    return above;
}

int pp_duplicate_fd(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }

int pp_open(const char *path, int flags, unsigned mode) { return pp_above_standard(open(path, flags | O_CLOEXEC, mode)); }

/* Without /proc it takes a right, or Linux 6.10. */
int pp_name_file(int fd, const char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int failed = linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
    if (failed && errno == ENOENT)
        failed = linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH);
    return failed ? errno : 0;
}

int pp_socket_pair(int *fds) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return errno;
    for (int i = 0; i < 2; i++)
        if ((fds[i] = pp_above_standard(fds[i])) < 0) {
            int error = errno;
            close(fds[!i]);
            return error;
        }
    return 0;
}

/* For good: taking it away again would race with threads that open files meanwhile. */
void pp_occupy_standard(void) {
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        int opened = open("/dev/null", O_RDWR);
        if (opened < 0)
            opened = memfd_create("pool_party_placeholder", 0);
        if (opened > 2)   /* another thread was faster */
            close(opened);
    }
}

/* The second number in schedstat. The descriptor is not kept open, because a task may close all descriptors that it
 * does not know. */
uint64_t pp_run_delay_ns(void) {
    char text[80];
    int fd = pp_open("/proc/thread-self/schedstat", O_RDONLY, 0);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *blank = strchr(text, ' ');
    return blank ? strtoull(blank, NULL, 10) : 0;
}

uint32_t pp_thread_id(void) { return (uint32_t)syscall(SYS_gettid); }

/* Never FUTEX_PRIVATE_FLAG: the words are in memory that several processes map. */
int pp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t deadline_ns, uint32_t bits) {
    struct timespec t = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline_ns < 0 ? NULL : &t, NULL, bits) == 0)
        return 0;
    return errno == EAGAIN ? 0 : errno;
}

void pp_futex_wake(_Atomic uint32_t *word, int n, uint32_t bits) {
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET, n, NULL, NULL, bits);
}

void pp_pause(void) {
    for (int i = 0; i < 8; i++)
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ __volatile__("isb" ::: "memory");   /* `yield` is too short to let a neighbouring thread run */
#endif
}

/* With one CPU, spinning only keeps the awaited thread from running. The calling thread's own mask does not matter,
 * since other threads may run elsewhere. */
void pp_spin_begin(pp_spin_t *s, int64_t long_ns, int64_t short_ns) {
    int64_t ns = s->n_vain < PP_VAIN_MAX ? long_ns : s->n_vain % PP_VAIN_PERIOD != 0 ? short_ns : 2 * long_ns;
    s->until_ns = pp_n_cpus() > 1 ? pp_now_ns() + ns : 0;
}

bool pp_spin_once(const pp_spin_t *s) {
    if (s->until_ns == 0)
        return false;
    pp_pause();
    return pp_now_ns() < s->until_ns;
}

void pp_spin_end(pp_spin_t *s, bool was_found) { s->n_vain = was_found ? 0 : s->n_vain + 1; }

int pp_robust_mutex_init(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attr;
    int error = pthread_mutexattr_init(&attr);
    if (error)
        return error;
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    error = pthread_mutex_init(mutex, &attr);
    pthread_mutexattr_destroy(&attr);
    return error;
}

/* glibc aborts on some kinds of mutexes that it has not initialized. */
bool pp_is_robust_mutex(const pthread_mutex_t *mutex) {
#ifdef __GLIBC__
    pthread_mutex_t fresh;
    return pp_robust_mutex_init(&fresh) == 0 && mutex->__data.__kind == fresh.__data.__kind;
#else
    (void)mutex;
    return true;
#endif
}

uint64_t pp_whole_pages(uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

uint64_t pp_file_number(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? (uint64_t)status.st_dev << 32 ^ status.st_ino : 0;
}

uint64_t pp_file_size_max(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

/* The limit is checked first: exceeding it raises SIGXFSZ, which ends a program that does not ignore it. */
int pp_memfd(const char *name, uint64_t size, int *out) {
    if (size > pp_file_size_max())
        return EFBIG;
    int fd = pp_above_standard(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return errno;
    if (ftruncate(fd, (off_t)size) != 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

/* The file position is at the end, where a write fails. A process that opens the file again, through /proc, still
 * starts at 0. */
void pp_fix_size(int fd) {
    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK);
    lseek(fd, 0, SEEK_END);
}

static int map_as(int fd, uint64_t at, size_t size, int protection, int flags, void **memory) {
    void *p = mmap(NULL, size, protection, flags, fd, (off_t)at);
    if (p == MAP_FAILED)
        return errno;
    *memory = p;
    return 0;
}

int pp_map(int fd, uint64_t at, size_t size, void **memory) {
    return map_as(fd, at, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory);
}

int pp_map_private(int fd, uint64_t at, size_t size, void **memory) {
    return map_as(fd, at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, memory);
}

int pp_map_readonly(int fd, size_t size, void **memory) {
    return map_as(fd, 0, size, PROT_READ, MAP_SHARED, memory);
}

/* A hint that takes effect if transparent huge pages are set to madvise. */
void pp_prefer_huge_pages(void *memory, size_t size) {
    enum { HUGE_PAGE = 2 << 20 };
    uintptr_t start = ((uintptr_t)memory + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)memory + size) & ~(uintptr_t)(HUGE_PAGE - 1);
    if (start < end)
        madvise((void *)start, end - start, MADV_HUGEPAGE);
}

void pp_protect(void *memory, size_t size) { mprotect(memory, size, PROT_READ); }

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The kernel replaces the mapping in one step. What other threads write meanwhile goes either to the file before it is
 * copied, or to a private page. */
int pp_map_over(int fd, uint64_t at, size_t size, void *memory) {
    int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
    return mmap(memory, size, PROT_READ | PROT_WRITE, flags, fd, (off_t)at) == MAP_FAILED ? errno : 0;
}

/* Other threads may be writing there. A byte is replaced by itself, and only if it has not changed. */
void pp_make_private(void *memory, size_t size) {
    if (madvise(memory, size, MADV_POPULATE_WRITE) == 0)
        return;
    size_t page = pp_whole_pages(1);
    for (size_t at = 0; at < size; at += page) {
        _Atomic unsigned char *byte = (_Atomic unsigned char *)memory + at;
        unsigned char seen = pp_load_relaxed(byte);
        while (!pp_cas_seq_cst(byte, &seen, seen)) {}
    }
}

void pp_unmap(void *memory, size_t size) { munmap(memory, size); }

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static uintptr_t page_up(uintptr_t address) { return pp_whole_pages(address); }
static uintptr_t page_down(uintptr_t address) { return address / pp_whole_pages(1) * pp_whole_pages(1); }

/* If both ranges lie alike between multiples of a huge page, the kernel moves whole tables of pages: 64 MB take 0.05 ms
 * instead of 0.7. */
int pp_reserve_like(const void *like, size_t size, void **out) {
    enum { HUGE_PAGE = 2 << 20 };
    uintptr_t first = page_down((uintptr_t)like);
    size_t length = page_up((uintptr_t)like + size) - first;
    char *room = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return errno;
    size_t lead = (first - (uintptr_t)room) % HUGE_PAGE;
    if (lead > 0)
        munmap(room, lead);
    munmap(room + lead + length, HUGE_PAGE - lead);
    *out = room + lead + ((uintptr_t)like - first);
    return 0;
}

void pp_unreserve(void *memory, size_t size) {
    uintptr_t first = page_down((uintptr_t)memory), end = page_up((uintptr_t)memory + size);
    if (first < end)
        munmap((void *)first, end - first);
}

/* The pages at the edges belong to others as well, so what is in them is copied. Pages of shared mappings, of which the
 * kernel makes another mapping if asked to move 0 bytes, stay where they are, since their owner would still see them. */
int pp_move_pages(void *to, void *from, size_t size) {
    char *first = (char *)page_up((uintptr_t)from), *end = (char *)page_down((uintptr_t)from + size);
    size_t head = (size_t)(first - (char *)from), whole = (size_t)(end - first), page = pp_whole_pages(1);
    void *shared = mremap(first, 0, page, MREMAP_MAYMOVE);
    if (shared != MAP_FAILED) {
        munmap(shared, page);
        return ENOTSUP;
    }
    if (mremap(first, whole, whole, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, (char *)to + head) == MAP_FAILED)
        return ENOTSUP;
    memcpy(to, from, head);
    memcpy((char *)to + head + whole, end, size - head - whole);
    return 0;
}

int pp_random(void *to, size_t size) {
    ssize_t n;
    while ((n = getrandom(to, size, 0)) < 0 && errno == EINTR) {}
    return n == (ssize_t)size ? 0 : n < 0 ? errno : EIO;
}

void pp_punch_hole(int fd, uint64_t at, uint64_t size) {
    (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)size);
}

/* The last two numbers of "0 0x3 ... 0x7ffe68a11628 0x7f5b9a9832ad"; or "running". */
bool pp_thread_sleeps(int thread, uintptr_t *stack, uintptr_t *code) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    int fd = pp_open(path, O_RDONLY, 0);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *last = strrchr(text, ' ');
    if (last == NULL)
        return false;
    *code = strtoull(last, NULL, 16);
    *last = 0;
    last = strrchr(text, ' ');
    *stack = last ? strtoull(last, NULL, 16) : 0;
    return last != NULL;
}

/* The kernel has the address of the thread's list of robust mutexes, which glibc keeps there. */
int pp_thread_descriptor(int thread, uintptr_t *descriptor) {
    void *head = NULL;
    size_t size;
    int error = syscall(SYS_get_robust_list, thread, &head, &size) == 0 ? 0 : errno;
    *descriptor = (uintptr_t)head;
    return error;
}

bool pp_peek(uintptr_t from, size_t size, void *to) {
    struct iovec here = {to, size}, there = {(void *)from, size};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
}

size_t pp_peek_down(uintptr_t piece, size_t n, void *to) {
    enum { MOST = 16 };
    struct iovec here = {to, n * PP_PIECE}, there[MOST];
    for (size_t i = 0; i < n && i < MOST; i++)
        there[i] = (struct iovec){(void *)(piece - i * PP_PIECE), PP_PIECE};
    ssize_t size = process_vm_readv(getpid(), &here, 1, there, n < MOST ? n : MOST, 0);
    return size > 0 ? (size_t)size / PP_PIECE : 0;
}

/* On arm64 the upper bits of a return address may be a signature of it. */
uintptr_t pp_plain_address(uintptr_t address) {
#ifdef __aarch64__
    return address & (((uintptr_t)1 << 48) - 1);
#else
    return address;
#endif
}

void pp_name_thread(const char *name) { pthread_setname_np(pthread_self(), name); }

/* musl's threads have a stack of 128 KiB, too small for deep recursion in Python. This is glibc's usual size. */
int pp_create_thread(pthread_t *thread, void *(*main)(void *), void *arg) {
#ifdef __GLIBC__
    return pthread_create(thread, NULL, main, arg);
#else
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    return pthread_create(thread, &attributes, main, arg);
#endif
}

int pp_start_detached(void *(*main)(void *), void *arg) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? error : pthread_detach(thread);
}

static _Atomic int n_cpus;   /* of the main thread; 0: not read yet */

int pp_n_cpus(void) {
    int n = pp_load_relaxed(&n_cpus);
    if (n == 0) {
        cpu_set_t set;
        n = sched_getaffinity(getpid(), sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
        pp_store_relaxed(&n_cpus, n);
    }
    return n;
}

void pp_forget_cpus(void) { pp_store_relaxed(&n_cpus, 0); }

void pp_run_on_all_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) == 0)
        (void)!sched_setaffinity(0, sizeof set, &set);
}

/* Reads the fourth field of /proc/loadavg, which is the present number and not an average. */
static int read_n_running(int fd) {
    char text[128];
    int n;
    ssize_t size = pread(fd, text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = 0;
    return sscanf(text, "%*f %*f %*f %d/%*d", &n) == 1 ? n : -1;
}

/* The descriptor stays open, since opening takes longer than reading. If a program closes it, another file may get its
 * number; reading that fails, and it is left alone. */
int pp_n_running(void) {
    static _Atomic int kept = -1;
    int fd = pp_load_relaxed(&kept), n = fd >= 0 ? read_n_running(fd) : -1;
    if (n >= 0)
        return n;
    int opened = pp_open("/proc/loadavg", O_RDONLY, 0);
    if (opened < 0)
        return -1;
    n = read_n_running(opened);
    if (!pp_cas_seq_cst(&kept, &fd, opened))   /* another thread was faster */
        close(opened);
    return n;
}

static void *kill_at_end_of_file(void *arg) {
    struct pollfd p = {.fd = (int)(intptr_t)arg, .events = POLLIN};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {}
    kill(getpid(), SIGKILL);
    return NULL;
}

/* The kernel itself sends the signal when the pipe's last writer is gone. So the worker needs no thread for this, and a
 * task may fork without a warning. If the kernel refuses, as for a pidfd, a thread waits instead. */
int pp_die_with(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETOWN, getpid()) != 0 || fcntl(fd, F_SETSIG, SIGKILL) != 0 || flags < 0 ||
        fcntl(fd, F_SETFL, flags | O_ASYNC) != 0 || !(fcntl(fd, F_GETFL) & O_ASYNC)) {
        pthread_t thread;
        int error = pthread_create(&thread, NULL, kill_at_end_of_file, (void *)(intptr_t)fd);
        return error ? error : pthread_detach(thread);
    }
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 0) > 0)   /* gone before the signal was requested */
        kill(getpid(), SIGKILL);
    return 0;
}

void pp_trim_heap(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
