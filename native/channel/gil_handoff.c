/* One GIL: how a task's caller and its worker, threads of one interpreter, hand it to each other without the kernel's help.
 *
 * A thread that asks for the GIL while another has it sleeps, and is woken when that one lets go: for a small task these two
 * wake-ups, out and back, are most of a round trip. Both sides look without the GIL, so each sees its news while the other is
 * still on its way out of Python. For a moment each waits for that before it asks.
 */
#include "native.h"

/* From the put to the leader's wait, and from a reply to the worker's next look, is Python of ours: 1 to 4 us. Who has not let go
 * by then does something else, and the GIL is to be had by asking only. */
#define MOMENT_NS 8000

void pp_parent_let_go(pp_parent_t *h, bool has_let_go) { pp_store_seq_cst(&h->segment->shared->has_let_go, has_let_go); }

void pp_worker_await_caller(pp_worker_t *e) {
    bool has_let_go;
    pp_spin_begin(&e->moment, MOMENT_NS, 0);
    while (!(has_let_go = pp_load_seq_cst(&e->shared->has_let_go)) && pp_spin_once(&e->moment)) {}
    pp_spin_end(&e->moment, has_let_go);
}

static bool is_anyone_busy(pp_parent_t *h) {
    for (unsigned i = 0; i < h->segment->n_workers; i++) {
        pp_worker_slot_t *worker = pp_segment_worker(h->segment, i);
        bool has_replied = pp_load_seq_cst(&worker->tail) != pp_load_seq_cst(&worker->head);
        if (has_replied && pp_load_seq_cst(&worker->park) == PP_BUSY)
            return true;
    }
    return false;
}

void pp_parent_await_workers(pp_parent_t *h) {
    bool is_busy;
    pp_spin_begin(&h->moment, MOMENT_NS, 0);
    while ((is_busy = is_anyone_busy(h)) && pp_spin_once(&h->moment)) {}
    pp_spin_end(&h->moment, !is_busy);
}
