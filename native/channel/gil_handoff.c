/* Hand-off of the GIL between a task's caller and its worker, when both are threads of one interpreter.
 *
 * A thread that requests the GIL while another holds it sleeps, and is woken when it is released. For a small task
 * these two wake-ups, there and back, are most of a round trip. Both sides spin without the GIL, so each sees its event
 * while the other is still leaving Python. Each therefore waits a few us for the other to release the GIL before it
 * requests it.
 */
#include "native.h"

/* From the put to the leader's wait, and from a reply to the worker's next look for tasks, our Python code runs 1 to 4
 * us. A thread that has not released the GIL by then does something else, and the GIL must be requested. */
#define MOMENT_NS 8000

void pp_parent_let_go(pp_parent_t *parent, bool has_let_go) { pp_store_seq_cst(&parent->segment->shared->has_let_go, has_let_go); }

void pp_worker_await_caller(pp_worker_t *worker) {
    bool has_let_go;
    pp_spin_begin(&worker->moment, MOMENT_NS, 0);
    while (!(has_let_go = pp_load_seq_cst(&worker->shared->has_let_go)) && pp_spin_once(&worker->moment)) {}
    pp_spin_end(&worker->moment, has_let_go);
}

static bool is_anyone_busy(pp_parent_t *parent) {
    pp_segment_t *s = parent->segment;
    PP_EACH_BIT(i, s->shared->replied, s->n_workers) {
        pp_worker_slot_t *worker_slot = pp_segment_worker(s, i);
        if (pp_worker_slot_has_replied(worker_slot) && pp_load_seq_cst(&worker_slot->park) == PP_BUSY)
            return true;
    }
    return false;
}

void pp_parent_await_workers(pp_parent_t *parent) {
    bool is_busy;
    pp_spin_begin(&parent->moment, MOMENT_NS, 0);
    while ((is_busy = is_anyone_busy(parent)) && pp_spin_once(&parent->moment)) {}
    pp_spin_end(&parent->moment, !is_busy);
}
