/* The memory of a private copy: two mappings, whatever the linker made of the file's segments.
 *
 * A process may have 65,530 mappings (vm.max_map_count), and an interpreter loads some 200 copies. The linker makes about six
 * mappings of each: headers, code, constants, data that was relocated, data, and zeros. Once it is done with a copy,
 *
 * - headers, code and constants become one mapping of the original file, as far as the bytes are the same, so they are in memory
 *   once, however many interpreters there are;
 * - all data becomes one private mapping without a file. No page of the copy's file is then in use, and its memory is free.
 *
 * Two protections are given up for this, as in files that were linked before 2018: constants may be executed, and what the
 * linker relocated may be written (RELRO). The latter is needed in any case, since imports.c changes addresses there.
 */
#include "python.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEGMENTS = 64 };

typedef struct {
    ElfW(Addr) base;
    int fd, original_fd;   /* the second one is -1 if the original cannot be read */
    off_t original_size;
    size_t page;
    size_t n;
    ElfW(Phdr) segments[SEGMENTS];   /* those that are loaded, by address; neighbours whose pages adjoin form a run */
    bool too_many;
} copy_t;

static uintptr_t page_of(const copy_t *c, uintptr_t at) { return at & ~(c->page - 1); }
static uintptr_t next_page(const copy_t *c, uintptr_t at) { return page_of(c, at + c->page - 1); }
static char *memory_at(const copy_t *c, uintptr_t at) { return (char *)(c->base + at); }

/* Puts what is at `from` in place of the pages from `start` to `end`, at once: another thread may be reading them. */
static int put_in_place(const copy_t *c, char *from, uintptr_t start, uintptr_t end) {
    size_t length = end - start;
    if (mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, memory_at(c, start)) != MAP_FAILED)
        return 0;
    int error = errno;
    munmap(from, length);
    return error;
}

/* ---- what is only read ---- */

typedef struct {
    uintptr_t from, to;    /* its bytes */
    uintptr_t shift;       /* from an offset in the file to an address */
} run_t;

/* Gives back the memory of whole pages of the copy's file; those at the edges belong to other runs as well. */
static void free_file(const copy_t *c, const run_t *run, uintptr_t start, uintptr_t end) {
    uintptr_t from = MAX(start, next_page(c, run->from)), to = MIN(end, page_of(c, run->to));
    if (from < to)
        (void)!fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(from - run->shift), (off_t)(to - from));
}

static void share_pages(const copy_t *c, const run_t *run, char *same, uintptr_t start, uintptr_t end) {
    if (start < end && put_in_place(c, same, start, end) == 0)
        free_file(c, run, start, end);
}

/* Pages in which a name was changed, or that differ because the file was replaced, stay as they are. Bytes of a page that are
 * outside the run do not count. Only saves memory and mappings: if it fails, the run stays as it is. */
static void share_run(const copy_t *c, const run_t *run, int protection) {
    uintptr_t start = page_of(c, run->from), end = next_page(c, run->to), done = start;
    if (c->original_fd < 0 || (off_t)(run->to - run->shift) > c->original_size)
        return;
    char *same = mmap(NULL, end - start, protection, MAP_PRIVATE, c->original_fd, (off_t)(start - run->shift));
    if (same == MAP_FAILED)
        return;
    for (uintptr_t at = start; at < end; at += c->page) {
        uintptr_t from = MAX(at, run->from), to = MIN(at + c->page, run->to);
        if (memcmp(same + (from - start), memory_at(c, from), to - from) == 0)
            continue;
        share_pages(c, run, same + (done - start), done, at);
        munmap(same + (at - start), c->page);
        done = at + c->page;
    }
    share_pages(c, run, same + (done - start), done, end);
}

/* ---- what is written ---- */

static bool is_zero(const char *at, size_t size) { return *at == 0 && memcmp(at, at + 1, size - 1) == 0; }

/* No code of the copy runs yet, but functions that the linker calls to choose others may have left something in any page. */
static int make_run_private(const copy_t *c, const run_t *run, int protection) {
    uintptr_t start = page_of(c, run->from), end = next_page(c, run->to);
    char *ours = mmap(NULL, end - start, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ours == MAP_FAILED)
        return errno;
    for (uintptr_t at = start; at < end; at += c->page)
        if (!is_zero(memory_at(c, at), c->page))
            memcpy(ours + (at - start), memory_at(c, at), c->page);
    return put_in_place(c, ours, start, end);
}

/* ---- a copy ---- */

static int protection_of(const ElfW(Phdr) *s) {
    return (s->p_flags & PF_R ? PROT_READ : 0) | (s->p_flags & PF_W ? PROT_WRITE : 0) | (s->p_flags & PF_X ? PROT_EXEC : 0);
}

static bool continues(const copy_t *c, const ElfW(Phdr) *before, const ElfW(Phdr) *after) {
    bool is_written = before->p_flags & PF_W, has_same_shift = after->p_vaddr - after->p_offset == before->p_vaddr - before->p_offset;
    return is_written == !!(after->p_flags & PF_W) && (is_written || has_same_shift) &&
           next_page(c, before->p_vaddr + before->p_memsz) == page_of(c, after->p_vaddr);
}

static int lay_out_run(const copy_t *c, size_t first, size_t last) {
    const ElfW(Phdr) *a = &c->segments[first], *z = &c->segments[last];
    int protection = 0;
    for (size_t i = first; i <= last; i++)
        protection |= protection_of(&c->segments[i]);
    run_t run = {.from = a->p_vaddr, .to = z->p_vaddr + z->p_memsz, .shift = a->p_vaddr - a->p_offset};
    if (protection & PROT_WRITE)
        return make_run_private(c, &run, protection);
    if (protection & PROT_READ)
        share_run(c, &run, protection);
    return 0;
}

static int lay_out(const copy_t *c) {
    int error = 0;
    for (size_t first = 0, last; first < c->n && !error; first = last + 1) {
        for (last = first; last + 1 < c->n && continues(c, &c->segments[last], &c->segments[last + 1]);)
            last++;
        error = lay_out_run(c, first, last);
    }
    return error;
}

static int read_segments(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    copy_t *c = arg;
    if (info->dlpi_addr != c->base)
        return 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_memsz) {
            if ((c->too_many = c->n == SEGMENTS))
                return 1;
            c->segments[c->n++] = info->dlpi_phdr[i];
        }
    return 1;
}

int pp_copy_lay_out(void *library, int fd, const char *original) {
    struct link_map *map;
    struct stat status;
    copy_t c = {.fd = fd, .page = (size_t)sysconf(_SC_PAGESIZE)};
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return ENOEXEC;
    c.base = map->l_addr;
    dl_iterate_phdr(read_segments, &c);
    if (c.too_many)
        return ENOEXEC;
    c.original_fd = pp_open(original, O_RDONLY, 0);
    if (c.original_fd >= 0 && fstat(c.original_fd, &status) == 0)
        c.original_size = status.st_size;
    int error = lay_out(&c);
    if (c.original_fd >= 0)
        close(c.original_fd);
    return error;
}

/* ---- how many mappings the process may still make ---- */

/* Only the kernel's list tells, and reading it takes some 50 ms where there are 60,000. So between two counts each copy counts
 * as more than it takes, and the list is read again when half of what was left may be gone. What else the program maps is seen at
 * the next count. */
enum { LOADING = 16, UNKNOWN = -1 };   /* the former: what the linker makes of a file with many segments, before it is laid out */
static _Atomic long left = UNKNOWN, counts_below;

static long count_lines(const char *path) {
    char buffer[32 << 10];
    long n = 0;
    ssize_t size = UNKNOWN;
    int fd = pp_open(path, O_RDONLY, 0);
    while (fd >= 0 && (size = read(fd, buffer, sizeof buffer)) > 0)
        for (const char *at = buffer; (at = memchr(at, '\n', (size_t)(buffer + size - at))); at++)
            n++;
    if (fd >= 0)
        close(fd);
    return size < 0 ? UNKNOWN : n;
}

static long read_number_file(const char *path) {
    char text[32];
    int fd = pp_open(path, O_RDONLY, 0);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (size <= 0)
        return UNKNOWN;
    text[size] = '\0';
    return strtol(text, NULL, 10);
}

static void count_mappings(long *n, long *most) {
    *n = count_lines("/proc/self/maps");
    *most = read_number_file("/proc/sys/vm/max_map_count");
}

static bool has_mappings_left(bool counts) {
    long now = pp_load_seq_cst(&left), n, most;
    if (counts || (now != UNKNOWN && now <= pp_load_seq_cst(&counts_below))) {
        count_mappings(&n, &most);
        now = n < 0 || most < 0 ? LONG_MAX : most - n;
        pp_store_seq_cst(&left, now);
        pp_store_seq_cst(&counts_below, MAX(now / 2, (long)PP_MAPPINGS_KEPT));
    }
    return now == UNKNOWN || now >= PP_MAPPINGS_KEPT;
}

void pp_note_copy(void) {
    if (pp_load_seq_cst(&left) != UNKNOWN)
        pp_add_seq_cst(&left, -LOADING);
}

const char pp_has_room_doc[] =
    "has_room(counts) -> bool\n\nWhether this process may make more than MAPPINGS_KEPT mappings, as far as is known. counts: looks.";
PyObject *pp_has_room(PyObject *module, PyObject *counts) {
    (void)module;
    int is_exact = PyObject_IsTrue(counts);
    return is_exact < 0 ? NULL : PyBool_FromLong(has_mappings_left(is_exact));
}

const char pp_count_mappings_doc[] = "count_mappings() -> (int, int)\n\nThe mappings of this process, and how many it may have; -1: unknown.";
PyObject *pp_count_mappings(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    long n, most;
    count_mappings(&n, &most);
    return Py_BuildValue("(ll)", n, most);
}
