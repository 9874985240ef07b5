/* Deletes the TSS keys that private copies create.
 *
 * A process has 1,024 of them. Modules made with pybind11 create some with PyThread_tss_create and never delete them.
 * For a module that is loaded once that does not matter, but some hundred interpreters would use them up. So the copies
 * call functions of ours instead, which record the keys. Those that are left are deleted once the interpreter has
 * ended.
 *
 * When a copy is loaded, it is bound to its imports through a table of its own. The addresses are replaced there.
 */
#include "python.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the table of keys ---- */

typedef struct {
    Py_tss_t *owner;       /* where the copy stores the key */
    pthread_key_t key;
    int64_t interpreter;   /* its id, which is never reused */
} note_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   /* guards the table; nothing is called while it is held */
static note_t *notes;
static size_t n_notes, capacity;

static int64_t current_interpreter(void) {
    return PyInterpreterState_GetID(PyThreadState_GetInterpreter(PyThreadState_Get()));
}

/* Records a key. If the table cannot grow, the key is never deleted. */
static void note(Py_tss_t *owner) {
    int64_t interpreter = current_interpreter();
    pthread_mutex_lock(&mutex);
    if (n_notes == capacity) {
        size_t more = capacity ? 2 * capacity : 16;
        note_t *grown = realloc(notes, more * sizeof *notes);
        if (grown) {
            notes = grown;
            capacity = more;
        }
    }
    if (n_notes < capacity)
        notes[n_notes++] = (note_t){owner, owner->_key, interpreter};
    pthread_mutex_unlock(&mutex);
}

static void forget(const Py_tss_t *owner) {
    pthread_mutex_lock(&mutex);
    for (size_t i = n_notes; i-- > 0;)
        if (notes[i].owner == owner)
            notes[i] = notes[--n_notes];
    pthread_mutex_unlock(&mutex);
}

void pp_keys_free(int64_t interpreter) {
    pthread_mutex_lock(&mutex);
    for (size_t i = n_notes; i-- > 0;)
        if (notes[i].interpreter == interpreter) {
            pthread_key_delete(notes[i].key);
            notes[i] = notes[--n_notes];
        }
    pthread_mutex_unlock(&mutex);
}

/* ---- what copies call instead ---- */

static int create_key(Py_tss_t *key) {
    if (PyThread_tss_is_created(key))
        return 0;
    int failed = PyThread_tss_create(key);
    if (!failed)
        note(key);
    return failed;
}

static void delete_key(Py_tss_t *key) {
    forget(key);   /* first: after the deletion another key may get its number */
    PyThread_tss_delete(key);
}

static void free_key(Py_tss_t *key) {
    forget(key);
    PyThread_tss_free(key);
}

typedef void (*function_t)(void);
static const struct { function_t theirs, ours; } replaced[] = {
    {(function_t)PyThread_tss_create, (function_t)create_key},
    {(function_t)PyThread_tss_delete, (function_t)delete_key},
    {(function_t)PyThread_tss_free, (function_t)free_key},
};

/* ---- the import tables of a copy ---- */

/* By now the linker has made most such tables read-only. The page of a replaced entry stays writable. */
static void replace_entry(function_t *entry, function_t ours) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (mprotect((void *)((uintptr_t)entry & ~(page - 1)), page, PROT_READ | PROT_WRITE) == 0)
        *entry = ours;
}

typedef struct {
    ElfW(Addr) base;
    const ElfW(Rela) *start;
    size_t size;           /* bytes */
} relocations_t;

static void replace_entries(const relocations_t *r) {
    for (size_t i = 0; r->start && i < r->size / sizeof *r->start; i++) {
        function_t *entry = (function_t *)(r->base + r->start[i].r_offset);
        for (size_t k = 0; k < sizeof replaced / sizeof *replaced; k++)
            if (*entry == replaced[k].theirs)
                replace_entry(entry, replaced[k].ours);
    }
}

static const ElfW(Rela) *table_at(const relocations_t *r, ElfW(Addr) address) {
    return (const ElfW(Rela) *)(address < r->base ? r->base + address : address);   /* glibc has usually added the base already */
}

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
static void survive_fork(void) { pthread_atfork(lock, unlock, unlock); }

void pp_keys_watch(void *library) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct link_map *map;
    pthread_once(&once, survive_fork);
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return;
    relocations_t functions = {.base = map->l_addr}, others = {.base = map->l_addr};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_JMPREL: functions.start = table_at(&functions, entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: functions.size = entry->d_un.d_val; break;
        case DT_RELA: others.start = table_at(&others, entry->d_un.d_ptr); break;
        case DT_RELASZ: others.size = entry->d_un.d_val; break;
        case DT_PLTREL:
            if (entry->d_un.d_val != DT_RELA)
                return;
        }
    replace_entries(&functions);
    replace_entries(&others);
}
