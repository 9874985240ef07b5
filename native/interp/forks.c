/* What a forked child has of the interpreters: nothing.
 *
 * In a child CPython clears all interpreters but the main one, and crashes if a thread of the parent was inside one of them,
 * be it only to end it (CPython issue 139759). So before CPython does that, the child's list of interpreters is cut to
 * the main one. The memory of the others stays as it was, and nobody refers to it.
 */
#include "python.h"

#include <link.h>

extern struct pyruntimestate _PyRuntime;

/* Where CPython keeps the newest interpreter and, after it, the main one. NULL: there was no other one yet, or they are elsewhere. */
static PyInterpreterState **newest_and_main;

/* Where the segment ends that CPython's state is in: musl does not say how large a symbol is. */
static int find_end(struct dl_phdr_info *info, size_t size, void *end) {
    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && (uintptr_t)&_PyRuntime - start < segment->p_memsz) {
            *(uintptr_t *)end = start + segment->p_memsz;
            return 1;
        }
    }
    return 0;
}

/* Called while there is another interpreter than the main one, so that the two words are not equal. */
void pp_forks_find_interpreters(void) {
    uintptr_t end = 0;
    PyInterpreterState *newest = PyInterpreterState_Head(), *main = PyInterpreterState_Main();
    if (newest_and_main || newest == main || !dl_iterate_phdr(find_end, &end))
        return;
    PyInterpreterState **words = (PyInterpreterState **)(void *)&_PyRuntime;
    for (; (uintptr_t)(words + 2) <= end && !newest_and_main; words++)
        if (words[0] == newest && words[1] == main)
            newest_and_main = words;
}

void pp_forks_forget_interpreters(void) {
    if (newest_and_main && newest_and_main[1] == PyInterpreterState_Main())
        newest_and_main[0] = newest_and_main[1];
}
