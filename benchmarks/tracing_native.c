/* What a trace costs a task in the channel alone, in one thread and without Python. tracing.py compiles this file
 * against the checkouts that it compares. HAS_TRACE: the checkout's channel has traces; an argument: a trace runs.
 *
 * Prints the time per task to put it, and to claim it and send its result, in ns. Each is the least of many rounds, so
 * that other load does not count. */
#include "native.h"

#include <stdio.h>

enum { N_ROUNDS = 4000, N_TASKS = 500 };

static pp_parent_t parent;
static pp_worker_t worker;
static unsigned char payload[PP_INLINE_MAX];

static void put_all(void) {
    uint64_t sequence;
    for (unsigned i = 0; i < N_TASKS; i++) {
        pp_slot_content_t content = {.job = 1, .index = i, .mode = PP_MODE_ITEM, .size = 8, .data = payload};
        pp_parent_put(&parent, &content, &sequence);
    }
}

static void serve_all(void) {
    for (unsigned i = 0; i < N_TASKS; i++) {
        pp_slot_t task;
        pp_worker_claim(&worker, &task, payload);
#ifdef HAS_TRACE
        pp_trace_begin(&worker);
#endif
        pp_frame_t frame = {.job = task.job, .index = task.index, .size = 8};
#ifdef HAS_TRACE
        if (pp_is_traced(worker.shared))
            pp_trace_end(&worker, PP_STATUS_OK);
#endif
        pp_worker_reply(&worker, &frame, payload);
        pp_worker_finish(&worker);
    }
}

static double least(double before, int64_t started_ns) {
    double now = (double)(pp_now_ns() - started_ns) / N_TASKS;
    return now < before ? now : before;
}

int main(int argc, char **argv) {
    (void)argv;
    pp_segment_t *segment;
    if (pp_segment_create(1, false, &segment) != 0)
        return 1;
    pp_parent_init(&parent, segment);
    pp_parent_open_slot(&parent, 0);
    pp_worker_init(&worker, segment, 0);
    if (argc > 1) {
#ifdef HAS_TRACE
        pp_store_seq_cst(&segment->shared->is_traced, 1);
#endif
    }
    double put_ns = 1e9, serve_ns = 1e9;
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        int64_t started_ns = pp_now_ns();
        put_all();
        put_ns = least(put_ns, started_ns);
        started_ns = pp_now_ns();
        serve_all();
        serve_ns = least(serve_ns, started_ns);
        for (const pp_frame_t *frame; (frame = pp_parent_peek(&parent, 0)) != NULL;)
            pp_parent_take(&parent, 0, frame);
    }
    printf("%.2f %.2f\n", put_ns, serve_ns);
    return 0;
}
