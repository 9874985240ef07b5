"""Log records and output of workers reach this process: `log=True` and `output="relay"`."""

import logging
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from logging.handlers import QueueHandler, QueueListener

import gates
import pytest
import talking
import tasks

from pool_party import ComposablePool, InterpreterPool, ProcessPool, ThreadPool
from pool_party._observe import messages, relay
from pool_party._workers import relaying

TIMEOUT_S = 60


class Collector(logging.Handler):
    """Keeps records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture
def collector():
    logger, handler = logging.getLogger(talking.LOGGER), Collector()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def finish(pool):
    pool.close()
    pool.join(TIMEOUT_S)


def check_names(records, kind):
    for record in records:
        assert record.worker.startswith({"thread": "Thread", "process": "", "interp": "Interpreter"}[kind])
        assert "PoolWorker-" in record.worker
        assert record.task == "log" and record.call >= 1
        assert (record.process == os.getpid()) == (kind != "process")


def test_records_reach_our_handlers(make_pool, kind, collector):
    pool = make_pool(2, kind=kind, log=True)
    pids = pool.map(talking.log, ["0", "1", "2", "3"], 1)
    finish(pool)
    assert sorted(collector.messages) == ["0", "1", "2", "3"]
    check_names(collector.records, kind)
    by_message = {record.getMessage(): record for record in collector.records}
    assert [by_message[str(n)].task_number for n in range(4)] == [0, 1, 2, 3]
    assert [by_message[str(n)].process for n in range(4)] == pids
    assert pool.statistics().n_records_lost == 0


def test_processes_of_every_start_method(make_pool, context, collector):
    pool = make_pool(2, kind="process", context=context, log=True)
    pool.map(talking.log, ["0", "1", "2", "3"], 1)
    finish(pool)
    assert sorted(collector.messages) == ["0", "1", "2", "3"]
    check_names(collector.records, "process")


def test_leaving_the_block_waits_for_what_was_sent(kind, collector):
    with ComposablePool(1, kind=kind, log=True) as pool:
        pool.apply(talking.log_many, (300,))
    assert collector.messages == [str(n) for n in range(300)]


def test_executors(make_executor, kind, collector):
    with make_executor(1, kind=kind, log=True) as executor:
        executor.submit(talking.log, "from an executor")
    assert collector.messages == ["from an executor"]


@pytest.mark.parametrize("make", [ThreadPool, ProcessPool, InterpreterPool])
def test_pools_of_one_kind(make, collector):
    with make(1, log=True) as pool:
        pool.apply(talking.log, ("one",))
    assert collector.messages == ["one"]


def test_initializers_log_too(make_pool, kind, collector):
    pool = make_pool(2, talking.log, ("starts",), kind=kind, log=True)
    finish(pool)
    assert collector.messages == ["starts", "starts"]
    assert [record.task for record in collector.records] == [None, None]


def test_levels_are_ours(make_pool, kind, collector):
    quiet = logging.getLogger(f"{talking.LOGGER}.quiet")
    quiet.setLevel(logging.WARNING)
    pool = make_pool(1, kind=kind, log=True)
    pool.apply(talking.log_levels, ([talking.LOGGER, quiet.name],))
    gates.wait_until(lambda: len(collector.records) == 3, "they have been handled")
    logging.getLogger(talking.LOGGER).setLevel(logging.WARNING)
    pool.apply(talking.log_levels, ([talking.LOGGER],))
    finish(pool)
    found = [(record.name.removeprefix(talking.LOGGER), record.levelname) for record in collector.records]
    assert found == [("", "INFO"), ("", "WARNING"), (".quiet", "WARNING"), ("", "WARNING")]


def test_what_is_below_our_level_is_not_sent(make_pool, remote_kind, collector):
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.apply(talking.log, ("unseen", logging.DEBUG))
    finish(pool)
    assert collector.messages == []
    assert pool._engine._workers.relay._n_handled == 0


def test_errors_keep_their_traceback(make_pool, kind, collector):
    pool = make_pool(1, kind=kind, log=True)
    pool.apply(talking.log_error, ("nothing",))
    finish(pool)
    text = logging.Formatter("%(message)s").format(collector.records[0])
    assert text.startswith("caught nothing\nTraceback ") and "LookupError: nothing" in text
    assert text.count("Stack (most recent call last)") == 1


def test_extra_attributes(make_pool, remote_kind, collector):
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.apply(talking.log_extras)
    finish(pool)
    (record,) = collector.records
    assert record.a_set == {1, 2}
    assert record.unpicklable == "an unpicklable one"
    assert "could not be unpickled: ValueError" in record.unloadable


@pytest.mark.parametrize("size", [0, messages.PART_MAX - 300, messages.PART_MAX, 3_000_000])
def test_records_of_any_size_arrive_whole(make_pool, remote_kind, collector, size):
    pool = make_pool(2, kind=remote_kind, log=True)
    texts = [chr(97 + n) * size for n in range(4)]
    pool.map(talking.log, texts, 1)
    finish(pool)
    assert sorted(collector.messages) == texts


def test_the_order_of_each_worker_is_kept(make_pool, remote_kind, collector):
    pool = make_pool(3, kind=remote_kind, log=True)
    pool.map(talking.log_many, [200] * 3, 1)
    finish(pool)
    assert len(collector.records) == 600
    for worker in {record.worker for record in collector.records}:
        numbers = [int(record.getMessage()) for record in collector.records if record.worker == worker]
        assert numbers == [*range(200)] * (len(numbers) // 200)


def test_threads_of_a_task(make_pool, remote_kind, collector):
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.apply(talking.log_from_a_thread, ("from a thread",))
    finish(pool)
    (record,) = collector.records
    assert (record.getMessage(), record.task, record.task_number) == ("from a thread", None, 0)


@pytest.mark.parametrize("inner", ["thread", "process"])
def test_a_pool_inside_a_task(make_pool, collector, inner):
    pool = make_pool(1, kind="process", log=True)
    pool.apply(talking.log_in_inner_pool, (inner, "from inside"))
    finish(pool)
    (record,) = collector.records
    assert record.getMessage() == "from inside" and record.task == "log"
    assert record.worker.startswith("ThreadPoolWorker") == (inner == "thread")


def test_a_child_that_a_task_forks(make_pool, collector):
    pool = make_pool(1, kind="process", log=True)
    pool.apply(talking.log_in_forked_child, ("from a child",))
    finish(pool)
    assert collector.messages == ["from a child"]
    assert pool.statistics().n_records_lost == 0


def test_threads_are_named_only_while_the_pool_is_open(make_pool, collector):
    before = logging.getLogRecordFactory()
    pools = [make_pool(1, kind="thread", log=True) for _ in range(2)]
    assert logging.getLogRecordFactory() is not before
    talking.log("ours")
    assert not hasattr(collector.records[0], "worker")
    for pool in pools:
        finish(pool)
    assert logging.getLogRecordFactory() is before


def test_a_factory_of_the_program_stays(make_pool, collector):
    before = logging.getLogRecordFactory()
    pool = make_pool(1, kind="thread", log=True)
    ours = logging.getLogRecordFactory()

    def factory(*args, **kwargs):
        record = ours(*args, **kwargs)
        record.of_the_program = True
        return record

    logging.setLogRecordFactory(factory)
    try:
        finish(pool)
        again = make_pool(1, kind="thread", log=True)
        again.apply(talking.log, ("again",))
        finish(again)
        assert logging.getLogRecordFactory() is factory
    finally:
        logging.setLogRecordFactory(before)
    (record,) = collector.records
    assert record.worker == "ThreadPoolWorker-1" and record.of_the_program


# ---- output ----


def test_output_goes_through_our_streams(make_pool, kind, capsys):
    pool = make_pool(2, kind=kind, output="relay")
    pool.map(talking.write_out, ["one\n", "two\n"], 1)
    pool.apply(talking.write_err, ("error\n",))
    finish(pool)
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["one", "two"] and err == "error\n"


def test_output_of_every_start_method(make_pool, context, capsys):
    pool = make_pool(1, kind="process", context=context, output="relay")
    pool.map(talking.write_out, ["one\n", "two\n"], 1)
    finish(pool)
    assert capsys.readouterr().out == "one\ntwo\n"


def test_lines_are_whole(make_pool, remote_kind, capsys):
    pool = make_pool(3, kind=remote_kind, output="relay")
    parts = [[*[chr(97 + n)] * 50, "\n"] for n in range(30)]
    pool.starmap(talking.write_out, parts, 1)
    finish(pool)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted("".join(line[:-1]) for line in parts)


def test_the_rest_of_a_line_comes_at_the_end(make_pool, remote_kind, capsys):
    pool = make_pool(1, kind=remote_kind, output="relay")
    pool.apply(talking.write_out, ("no end",))
    finish(pool)
    assert capsys.readouterr().out == "no end"


def test_bytes_and_large_text(make_pool, remote_kind, capsys):
    pool = make_pool(1, kind=remote_kind, output="relay")
    pool.apply(talking.write_bytes, ("bytes: ä\n".encode(),))
    pool.apply(talking.write_out, ("x" * 1_000_000 + "\n",))
    finish(pool)
    assert capsys.readouterr().out == "bytes: ä\n" + "x" * 1_000_000 + "\n"
    assert pool.statistics().n_records_lost == 0


def test_what_libraries_ask_of_stdout(make_pool, remote_kind):
    pool = make_pool(1, kind=remote_kind, output="relay")
    assert pool.apply(talking.describe_stdout) == (1, False, "utf-8")


def test_a_program_without_streams(make_pool, remote_kind, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    pool = make_pool(1, kind=remote_kind, output="relay")
    pool.apply(talking.write_out, ("unseen\n",))
    finish(pool)


def test_both_keep_their_order(make_pool, remote_kind, collector, capsys):
    pool = make_pool(1, kind=remote_kind, log=True, output="relay")
    pool.apply(talking.write_out, ("one\n",))
    pool.apply(talking.log, ("two",))
    finish(pool)
    assert collector.messages == ["two"] and capsys.readouterr().out == "one\n"


# ---- handlers and the pool's end ----


@pytest.fixture
def handle_with():
    """Return a function that makes a function the handler of the tests' logger."""
    logger, made = logging.getLogger(talking.LOGGER), []

    def add(function):
        handler = logging.Handler()
        handler.emit = function
        logger.addHandler(handler)
        made.append(handler)

    yield add
    for handler in made:
        logger.removeHandler(handler)


def test_a_handler_that_raises(make_pool, remote_kind, collector, handle_with, caplog):
    def fail(record):
        if record.getMessage() == "bad":
            raise LookupError("of the handler")

    handle_with(fail)
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.map(talking.log, ["bad", "good"], 1)
    finish(pool)
    assert collector.messages == ["bad", "good"]
    assert any(record.name == "pool_party" and "LookupError" in record.exc_text for record in caplog.records)


def test_a_handler_that_uses_the_pool(make_pool, remote_kind, collector, handle_with):
    squares = []
    handle_with(lambda record: squares.append(pool.apply(tasks.square, (int(record.getMessage()),))))
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.map(talking.log, ["2", "3"], 1)
    gates.wait_until(lambda: squares == [4, 9], "the handler has used the pool")


@pytest.mark.parametrize("end", ["terminate", "join"])
def test_a_handler_that_ends_the_pool(make_pool, remote_kind, collector, handle_with, end):
    ended = threading.Event()

    def end_pool(record):
        if end == "join":
            pool.close()
            pool.join(TIMEOUT_S)
        else:
            pool.terminate()
        ended.set()

    handle_with(end_pool)
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.apply_async(talking.log, ("the end",))
    assert ended.wait(TIMEOUT_S)
    gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
    gates.call_in_thread(pool.join).result(TIMEOUT_S)


def test_a_handler_that_is_stuck_hangs_neither_workers_nor_the_end(
    make_pool, remote_kind, collector, handle_with, monkeypatch
):
    go_on, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(relay, "PATIENCE_S", 0.1)

    def wait(record):
        entered.set()
        go_on.wait(TIMEOUT_S)

    handle_with(wait)
    try:
        pool = make_pool(1, kind=remote_kind, log=True)
        result = pool.apply_async(talking.log_many, (1_000_000,))
        assert entered.wait(TIMEOUT_S)
        gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
        gates.call_in_thread(pool.join, TIMEOUT_S).result(TIMEOUT_S)
        assert result.ready()
    finally:
        go_on.set()
    thread = pool._engine._workers.relay._thread
    gates.wait_until(lambda: not thread.is_alive(), "the rest is handled once the handler returns")


def full_socket():
    """Return a relay that nobody reads, with a socket without room."""
    full = relay.Relay(True, False, 1)
    full.open()
    with pytest.raises(BlockingIOError):
        while True:
            os.write(full.sending.fd, bytes(1000))
    return full


class FakeWorker:
    must_stop = False
    task = None


def test_a_parent_that_reads_nothing_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(relaying, "PATIENCE_S", 0.05)
    full = full_socket()
    try:
        sender = relaying.Sender(FakeWorker(), full.sending.fd, full.counting.fd, 0)
        sender.send(messages.STDOUT, lambda: b"dropped")
        assert not sender._is_patient
        monkeypatch.setattr(relaying, "PATIENCE_S", 1e9)
        for _ in range(3):
            gates.call_in_thread(sender.send, messages.STDOUT, lambda: b"dropped at once").result(TIMEOUT_S)
        while True:
            os.read(full._receiving.fd, messages.PACKET_MAX)
            sender.send(messages.STDOUT, lambda: b"sent")
            if sender._is_patient:
                break
        assert int.from_bytes(os.pread(full.counting.fd, 8, 0), sys.byteorder) == sender._n_begun >= 5
    finally:
        full.end()


def test_a_pool_that_was_terminated_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(relaying, "PATIENCE_S", 1e9)
    full = full_socket()
    try:
        worker = FakeWorker()
        worker.must_stop = True
        sender = relaying.Sender(worker, full.sending.fd, full.counting.fd, 0)
        gates.call_in_thread(sender.send, messages.STDOUT, lambda: b"dropped").result(TIMEOUT_S)
    finally:
        full.end()


def test_pools_without_these_options_have_no_relay(make_pool, kind):
    pool = make_pool(1, kind=kind)
    assert pool._engine._workers.relay is None
    assert not any(thread.name == "pool_party-relay" for thread in threading.enumerate())


def test_a_thread_ends_with_its_pool(make_pool, remote_kind):
    pool = make_pool(1, kind=remote_kind, log=True)
    pool.apply(tasks.square, (2,))
    finish(pool)
    assert not pool._engine._workers.relay._thread.is_alive()


def test_wrong_options(kind):
    with pytest.raises(ValueError, match="output must be 'relay' or None, not 'print'"):
        ComposablePool(1, kind=kind, output="print")


# ---- the same with the standard library ----


def configure(queue):
    logging.getLogger().handlers[:] = [QueueHandler(queue)]
    logging.getLogger(talking.LOGGER).setLevel(logging.INFO)


PROGRAM = [(talking.log, f"message {n}") for n in range(20)] + [(talking.log_error, f"error {n}") for n in range(5)]


def what_it_says(collector):
    return sorted((r.name, r.levelname, r.funcName, r.lineno, r.getMessage().split("\n")[0]) for r in collector.records)


def test_the_standard_library_logs_the_same(make_pool, remote_kind, collector):
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    theirs = Collector()
    listener = QueueListener(queue, theirs)
    listener.start()
    with ProcessPoolExecutor(1, context, configure, (queue,)) as executor:
        for function, text in PROGRAM:
            executor.submit(function, text)
    listener.stop()
    pool = make_pool(2, kind=remote_kind, log=True)
    for function, text in PROGRAM:
        pool.apply_async(function, (text,))
    finish(pool)
    assert what_it_says(collector) == what_it_says(theirs) and len(theirs.records) == 25
