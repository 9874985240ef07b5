"""The parent's side of `log=True` and `output="relay"`: a thread that handles what workers log, and prints what they
print.

All workers of a pool send to one socket, so there is one order of all messages. The parent itself sends marks into it:
when a mark arrives, everything that was sent before it has been handled. That is how the end of the pool waits for what
workers have sent, and how a worker's losses are counted after its end.
"""

import contextlib
import logging
import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator
from threading import get_ident

from pool_party import _native
from pool_party._ground.descriptors import Owned
from pool_party._ground.log import log_exception
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._observe import messages

PATIENCE_S = 3.0  # the pool's end stops waiting for a handler that takes longer than this for one record
BUFFER_BYTES = 1 << 20  # what may be on its way; the system may allow less


class Relay:
    """What the workers of a pool send, and the thread that handles it.

    The background thread calls all methods, except those under a heading of their own. No signal handler runs in it or
    in the relay's thread, so the two share a lock.
    """

    def __init__(self, logs: bool, prints: bool, n_workers: int) -> None:
        self.logs = logs
        self.prints = prints
        self.lives = [0] * n_workers  # of each slot: the number of its worker, counted from the pool's begin
        self.sending = self.counting = self._receiving = Owned(-1)
        self.n_lost = 0  # messages that workers which have ended had begun to send and that did not arrive
        self._is_ended = False
        self._n_lives = 0
        self._ended: deque[int] = deque()  # lives whose losses have not been counted yet
        self._n_ended = self._n_settled = 0  # lives that were ever added to it, and taken from it
        self._owes_mark = False  # one could not be sent, since there was no room
        self._n_received: dict[int, int] = {}  # by life
        self._parts: dict[tuple[int, int, int], bytearray] = {}  # incomplete messages, by life, pid and number
        self._changed = threading.Condition(_native.Guard())  # guards what follows, and writes to `sending`
        self._n_marks = self._n_seen = 0  # marks that a thread waits for, and those of them that have arrived
        self._n_handled = 0  # messages; tells whether a handler is stuck
        self._n_away = 0  # handlers that wait for the pool's end, which therefore does not wait for them
        self._thread: threading.Thread | None = None
        self._handler: int | None = None  # the ident of the thread while a handler of the program runs in it

    def open(self) -> None:
        """Make the socket, before the first worker starts."""
        _native.occupy_standard()
        receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        counting = os.memfd_create("pool_party-relay", os.MFD_CLOEXEC)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        sender.setblocking(False)
        self._receiving, self.sending, self.counting = map(Owned, (receiver.detach(), sender.detach(), counting))

    def start(self, channel: _native.Channel) -> None:
        """Start the thread, after the first workers were forked."""
        self._thread = PoolThread(self._run, "pool_party-relay", channel, _native.DUTY_TASKS)
        start_thread(self._thread)

    def note_start(self, n: int) -> None:
        """Note that a worker is about to start in slot n."""
        self.lives[n] = self._n_lives
        self._n_lives += 1

    def note_end(self, n: int) -> None:
        """Note that the worker in slot n has ended."""
        self._ended.append(self.lives[n])
        self._n_ended += 1
        self._send_mark(0)

    # ---- marks ----

    def _send_mark(self, number: int) -> bool:
        """Send a mark without waiting. If there is no room, the thread sends one that counts losses a little later."""
        packet = messages.HEADER.pack(messages.MARK, 0, self._n_ended, 0, number)
        with self._changed:
            if (fd := self.sending.fd) < 0:
                return False
            try:
                os.write(fd, packet)
            except BlockingIOError:
                self._owes_mark = True
                return False
        return True

    def flush(self) -> None:
        """Wait until everything that was sent so far has been handled, unless a handler takes too long."""
        thread = self._thread
        if thread is None or not thread.is_alive() or thread.ident == get_ident():
            return
        with self._changed:
            self._n_marks += 1
            number, n_handled = self._n_marks, -1
        is_sent = False
        while n_handled != self._n_handled:
            n_handled = self._n_handled
            if not is_sent:
                self._await_room()
                is_sent = self._send_mark(number)
            with self._changed:
                if self._changed.wait_for(lambda: self._n_seen >= number or self._n_away > 0, PATIENCE_S):
                    return

    def _await_room(self) -> None:
        if (fd := self.sending.fd) >= 0:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(PATIENCE_S * 1000)

    def end(self) -> None:
        """Handle what is left after the end of the last worker, and release everything.

        If a handler takes too long, the thread goes on without being waited for.
        """
        if self._is_ended:
            return
        self._is_ended = True
        self.flush()
        thread = self._thread
        if thread is not None and (fd := self._receiving.fd) >= 0:
            os.set_blocking(fd, False)  # the thread ends once it finds nothing more,
            self._send_mark(0)  # and this wakes it if it sleeps, when there is room
        with self._changed:
            self.sending.close()
        if thread is None:
            self._release()
        elif self._n_away == 0 and self._n_seen == self._n_marks:
            thread.join()

    def _release(self) -> None:
        self._receiving.close()
        self.counting.close()

    # ---- any thread ----

    def is_handling(self) -> bool:
        """Whether the calling thread runs a handler of the program's for this."""
        return self._handler == get_ident()

    @contextlib.contextmanager
    def waiting_for_end(self) -> Iterator[None]:
        """While the calling thread waits for the pool's end: if it runs a handler, that end does not wait for it."""
        if not self.is_handling():
            yield
            return
        with self._changed:
            self._n_away += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._n_away -= 1

    # ---- the thread ----

    def _run(self) -> None:
        while (packet := self._read()) is not None:
            try:
                self._take(packet)
                if self._owes_mark:
                    self._owes_mark = False
                    self._send_mark(0)
            except BaseException:
                _report("the relay of a pool's log records and output has failed; it goes on")
        self._settle(self._n_ended, 0)  # all workers have ended, perhaps without room for a mark
        self._release()

    def _read(self) -> bytes | None:
        """Return the next packet, or None after the last one."""
        fd = self._receiving.fd  # somebody may have closed it
        try:
            return (os.read(fd, messages.PACKET_MAX) if fd >= 0 else None) or None
        except BlockingIOError:
            return None

    def _take(self, packet: bytes) -> None:
        what, flags, life, pid, number = messages.HEADER.unpack_from(packet)
        if what == messages.MARK:
            self._settle(life, number)
            return
        parts = self._parts.setdefault((life, pid, number), bytearray())
        parts += packet[messages.HEADER.size :]
        if flags & messages.MORE:
            return
        del self._parts[life, pid, number]
        if not flags & messages.UNCOUNTED:
            self._n_received[life] = self._n_received.get(life, 0) + 1
        self._handle(what, bytes(parts))
        self._n_handled += 1

    def _settle(self, n_ended: int, number: int) -> None:
        """Count the losses of workers that had ended when this mark was sent: all that they had sent has arrived."""
        while self._n_settled < n_ended:
            self._n_settled += 1
            life = self._ended.popleft()
            n_received = self._n_received.pop(life, 0)
            if (fd := self.counting.fd) >= 0:
                self.n_lost += int.from_bytes(os.pread(fd, 8, 8 * life), sys.byteorder) - n_received
            self._parts = {key: parts for key, parts in self._parts.items() if key[0] != life}
        with self._changed:
            self._n_seen = max(self._n_seen, number)
            self._changed.notify_all()

    def _handle(self, what: int, data: bytes) -> None:
        """Handle one message. What a handler of the program raises is logged, and the next message follows."""
        self._handler = get_ident()
        try:
            if what == messages.RECORD:
                _handle_record(logging.makeLogRecord(messages.decode_record(data)))
            else:
                _print(sys.stdout if what == messages.STDOUT else sys.stderr, data)
        except BaseException:
            _report("a log record or a line of output of a worker could not be handled")
        finally:
            self._handler = None


def _report(message: str) -> None:
    """Log the exception that is being handled, unless that fails as well."""
    with contextlib.suppress(BaseException):
        log_exception(message)


def _handle_record(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _print(stream: "object", data: bytes) -> None:
    if stream is not None and not getattr(stream, "closed", False):  # a program without a console has none
        stream.write(data.decode("utf-8", "backslashreplace"))  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
