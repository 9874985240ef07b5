/* Whether the static data of the process leads into private copies that are about to be unloaded.
 *
 * A copy may register a function with a library that all interpreters share: for its log, its errors, its files. The library
 * keeps the address in a static variable, and would call unloaded code later. So the writable segments of all libraries that are
 * no copies are searched for addresses in the copies. The C library and the linker are left out: what a copy has registered
 * there they forget when it is unloaded, or inside.c asks for it.
 *
 * What this does not find: an address that such a library has in the heap only, as in a list of handlers.
 *
 * What stays is counted here, whatever the cause.
 */
#include "python.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

typedef struct {
    const pp_place_t *places;
    size_t n;
    uintptr_t low, high;   /* all of them are between */
    uintptr_t libc;        /* its base */
    const char *where;     /* the library that was found */
} search_t;

static bool is_in_places(const search_t *s, uintptr_t word) {
    bool found = false;
    for (size_t i = 0; !found && i < s->n; i++)
        found = word >= s->places[i].start && word < s->places[i].end;
    return found;
}

/* Other threads write there meanwhile: what they have not stored yet is not what an earlier call has registered. */
#if defined __has_attribute
#if __has_attribute(no_sanitize)
__attribute__((no_sanitize("address", "thread")))
#endif
#endif
static bool leads_there(const search_t *s, uintptr_t start, uintptr_t end) {
    const volatile uintptr_t *word = (const volatile uintptr_t *)((start + sizeof *word - 1) & ~(sizeof *word - 1));
    uintptr_t range = s->high - s->low;
    bool found = false;
    for (; (uintptr_t)(word + 1) <= end && !found; word++) {
        uintptr_t value = *word;
        found = value - s->low < range && is_in_places(s, value);
    }
    return found;
}

static int search_library(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    search_t *s = arg;
    bool found = false;
    if (strncmp(info->dlpi_name, PP_COPIES, strlen(PP_COPIES)) == 0 || info->dlpi_addr == s->libc || info->dlpi_addr == getauxval(AT_BASE))
        return 0;
    for (unsigned i = 0; i < info->dlpi_phnum && !found; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_W))
            found = leads_there(s, start, start + segment->p_memsz);
    }
    if (found)
        s->where = *info->dlpi_name ? strdup(info->dlpi_name) : "the program";   /* it stays, as the copies do */
    return found;
}

/* The linker unloads nothing meanwhile. */
const char *pp_is_referred(const pp_place_t *places, size_t n) {
    Dl_info libc = {0};
    dladdr((void *)(uintptr_t)fork, &libc);
    search_t s = {.places = places, .n = n, .low = UINTPTR_MAX, .libc = (uintptr_t)libc.dli_fbase, .where = "a library"};
    for (size_t i = 0; i < n; i++) {
        if (places[i].start < s.low)
            s.low = places[i].start;
        if (places[i].end > s.high)
            s.high = places[i].end;
    }
    return n && dl_iterate_phdr(search_library, &s) ? s.where : NULL;
}

/* ---- what stays ---- */

enum { CAUSES_MAX = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards these; nothing is called while it is held */
static const char *causes[CAUSES_MAX];
static size_t n_causes;

static void lock_causes(void) { pthread_mutex_lock(&mutex); }
static void unlock_causes(void) { pthread_mutex_unlock(&mutex); }
static void guard_causes_at_fork(void) { pthread_atfork(lock_causes, unlock_causes, unlock_causes); }

void pp_staying_note(const char *cause) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, guard_causes_at_fork);
    pthread_mutex_lock(&mutex);
    if (n_causes < CAUSES_MAX)
        causes[n_causes++] = cause;
    pthread_mutex_unlock(&mutex);
}

const char pp_staying_doc[] = PyDoc_STR("staying() -> list\n\n"
                                        "Returns why the copies of interpreters that have ended stay loaded, for each of the first 64: the path of a\n"
                                        "library whose data leads to them, or a few words.");
PyObject *pp_staying(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    const char *found[CAUSES_MAX];
    pthread_mutex_lock(&mutex);
    size_t n = n_causes;
    memcpy(found, causes, n * sizeof *found);
    pthread_mutex_unlock(&mutex);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *text = PyUnicode_DecodeFSDefault(found[i]);
        if (text == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, text);
    }
    return list;
}
