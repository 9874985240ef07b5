"""Assigns each sample of perf to a step of a task's path.

A sample is a stack. It belongs to the innermost function that has a step in the table, so time in CPython or in the
kernel counts for its caller. The functions are those of native/python/parent.c and worker.c, and of
native/channel/channel.c. A function that is renamed counts for its caller's step.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

PARENT, WORKER = "parent", "worker"
_LOOP = "worker_serve"  # a thread with this function in its stacks is a worker
PYTHON, DECODE, AROUND = "Python code", "decode function and argument", "around these"
_TAIL_CALLED = "PyMarshal_ReadObjectFromString"  # fetch_argument tail-calls it, and then is not in the stack

_STEPS = {
    "the GIL": "PyEval_RestoreThread PyEval_SaveThread PyEval_AcquireThread "
    "pp_worker_await_caller pp_parent_await_workers",
    "wake somebody": "pp_futex_wake wake_for pp_parent_wake",
    # the parent's side
    "encode the argument": "next_argument pp_encode_for",
    "put into a slot": "pp_parent_put put put_next put_task put_map",
    "look for room": "pp_parent_has_room reclaim_slots",
    "wait for a result": "wait_for_work",
    "find and take a result": "pp_parent_peek pp_parent_take take_result find_job take_all pp_channel_pump",
    "decode, store, deliver": "decode_and_deliver job_take_results job_init job_dealloc",
    "the background thread": "channel_wait_background",
    # the worker's side
    "wait for a task": "pp_worker_wait",
    "claim": "pp_worker_claim",
    DECODE: "fetch_function fetch_argument",
    "call the task": "call_by_mode",
    "encode and send the result": "send_value send_payload send pp_worker_reply",
    AROUND: "run_task serve_tasks worker_serve",
}
_STEP_OF = {function: step for step, functions in _STEPS.items() for function in functions.split()}

type Sample = tuple[int, int, list[str]]  # process, thread, and functions from the innermost on


def read_samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples of `perf script -F pid,tid,ip,sym`."""
    ids: tuple[int, int] | None = None
    functions: list[str] = []
    for line in (*lines, ""):
        words = line.split()
        if not words:
            if ids is not None:
                yield (*ids, functions)
            ids, functions = None, []
        elif ids is None:
            process, _, thread = words[0].partition("/")
            ids = int(process), int(thread)
        elif len(words) > 1:
            functions.append(words[1])


def step_of(functions: Sequence[str]) -> str:
    """Return the step of a stack."""
    step = next((_STEP_OF[function] for function in functions if function in _STEP_OF), PYTHON)
    return DECODE if step == AROUND and _TAIL_CALLED in functions else step


def count_steps(samples: Iterable[Sample], parent: int) -> Counter[tuple[str, str]]:
    """Return how many samples each (side, step) has."""
    counts: dict[tuple[int, int], Counter[str]] = {}
    workers = set()
    for process, thread, functions in samples:
        counts.setdefault((process, thread), Counter())[step_of(functions)] += 1
        if _LOOP in functions:
            workers.add((process, thread))
    sums: Counter[tuple[str, str]] = Counter()
    for ids, by_step in counts.items():
        side = WORKER if ids in workers or ids[0] != parent else PARENT
        sums.update({(side, step): n for step, n in by_step.items()})
    return sums
