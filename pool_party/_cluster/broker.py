"""The broker: it takes the tasks of a pool, sends them to nodes, and answers them with the outcomes that come back.

It has two threads. The dispatcher takes tasks from the channel by free slots, and encodes them. The receiver handles
everything that a transport tells: nodes that join and are lost, and the messages of their sessions. It decodes outcomes
and is the only one that answers tasks.

A node has more tasks than workers, so that none of its workers waits for the network. How many more is found out: a
worker that had nothing to do while tasks waited here doubles the number, and one in which half the tasks always waited
lowers it. When workers are idle and no task waits here, tasks that have not begun are called back from nodes with more.

A transport (`Transport`) carries the messages, which `node/session.py` describes. What it tells are tuples in `inbox`:

    ("joined", name, n_workers, send)    a node has opened its session; `send` sends it a message and does not block
    ("messages", name, list)             messages of its session
    ("lost", name, reason)               the node is lost, and all that it had
    ("failed", error)                    the cluster is lost; this ends the pool
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

from pool_party import _native
from pool_party._cluster import distant
from pool_party._cluster.functions import Functions
from pool_party._cluster.nodes import AHEAD, Node, Nodes
from pool_party._cluster.parts import Parts
from pool_party._cluster.slots import Limited, Packed, Slot, Task
from pool_party._ground.errors import worker_lost
from pool_party._ground.log import log_exception
from pool_party._ground.threads import PoolThread, start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol
else:
    Protocol = object

BATCH_MAX = 256  # tasks that are encoded before the first of them is sent
ANSWER_S = 2.0  # how long cancelling a call waits for the node that has it
LOOK_S = 0.5  # between looks at what nodes keep of memory that the program may have freed


class Transport(Protocol):
    """Finds nodes, and carries messages to and from their sessions."""

    def open(self, inbox: SimpleQueue[tuple[Any, ...] | None]) -> None:
        """Connect to the nodes that are there, and begin to tell what happens. Blocks. Raises whatever prevents it."""

    def close(self, drains: bool) -> None:
        """End all sessions, wait until they have ended, and release what `open` has made. Blocks for some seconds.

        drains: workers that are still starting do that first, as those of any pool that is closed.
        """


class Broker:
    """Runs the tasks of a channel, whose values pass by reference, on nodes.

    Any thread may call the methods, unless they say otherwise.
    """

    def __init__(
        self,
        transport: Transport,
        channel: _native.Channel,
        n_slots: int,
        receivers: distant.Machines,
        is_lasting: Callable[[Any], bool],
    ) -> None:
        """is_lasting: whether nodes find a function by its name."""
        self.n_started = self.n_lost = 0  # workers of nodes that have ever joined, and of those that were lost
        self.is_over = False
        self._is_lasting = is_lasting
        self._transport = transport
        self._channel = channel
        self.n_slots = n_slots
        self._slots: list[Slot] = []
        self._free: deque[Slot] = deque()  # the dispatcher takes slots, and the receiver returns them
        self._numbers = itertools.count(1)
        self._receivers = receivers
        numbers = itertools.count(1)
        self._functions = Functions(self._receivers, numbers)
        self._parts = Parts(numbers)
        self._look_at = 0.0  # the receiver looks then at what nodes keep
        self._inbox: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._changed = threading.Condition(_native.Guard())  # guards the next four
        self._nodes = Nodes()
        self._waiting: deque[Task] = deque()  # encoded, and with no node
        # For each thread in `withdraw`, whether the tasks were withdrawn that it waits for. None: that is not decided.
        self._verdicts: list[dict[int, bool | None]] = []
        self._is_ending = False
        self._dispatcher = PoolThread(self._dispatch, "pool_party-dispatcher", channel)
        self._receiver = PoolThread(self._receive, "pool_party-receiver", channel)

    # ---- its life; the pool's background thread ----

    def open(self) -> None:
        """Connect to the cluster. Blocks. Raises whatever prevents it."""
        self._transport.open(self._inbox)
        later = []
        while not self._inbox.empty():
            told = self._inbox.get() or ()
            if told[0] == "joined":  # so that the number of workers is known
                self._take(told)
            elif told[0] == "failed":
                raise told[1]
            else:  # such as an initializer that has failed: for the receiver
                later.append(told)
        for told in later:
            self._inbox.put(told)

    def start(self) -> None:
        """Begin to run tasks."""
        for n in range(self.n_slots):
            self._channel.open_slot(n)
            self._slots.append(Slot(self._channel.worker(n)))
            self._slots[n].worker.ready()
        self._free.extend(self._slots)
        start_thread(self._receiver)
        start_thread(self._dispatcher)

    def end(self) -> None:
        """Begin to end, once the channel was stopped. Does not block.

        Tasks that nodes have are waited for if the channel was not stopped at once.
        """
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        if self._dispatcher.ident is None:  # `start` was not reached
            self._transport.close(drains=False)
            self.is_over = True

    def join(self, timeout: float | None) -> bool:
        """Wait for the end of the sessions, and return whether they have ended."""
        if self._dispatcher.ident is not None:
            self._dispatcher.join(timeout)
        return self.is_over

    @property
    def n_workers(self) -> int:
        """The number of workers on all nodes."""
        with self._changed:
            return sum(node.n_workers for node in self._nodes)

    def give_up(self, n: int) -> None:
        """Have a node end the task of a slot, if it can: nobody wants the outcome any more."""
        slot = self._slots[n]
        with self._changed:
            if (node := slot.node_with(number := slot.number)) is not None:
                node.send(("stop", number))

    def withdraw(self, call: int, is_settled: bool) -> bool:
        """Withdraw tasks of a call that slots have and no worker has begun. Return whether it was all that slots had.

        is_settled: the call has its outcome. Waits for the answers of nodes, at most ANSWER_S.
        """
        deadline = monotonic() + ANSWER_S
        with self._changed:
            slots = {slot.number: slot for slot in self._slots if slot.call == call}
            verdicts: dict[int, bool | None] = dict.fromkeys(slots)
            self._verdicts.append(verdicts)
            asked: set[int] = set()
            try:
                while open_ones := {number for number in verdicts if verdicts[number] is None}:
                    for task in [task for task in self._waiting if task.number in open_ones]:
                        self._waiting.remove(task)
                        self._decide(task.number, True)
                        self._inbox.put(("withdrawn", task.slot))
                    fresh: dict[Node, list[int]] = {}
                    for number in open_ones - asked:
                        if (node := slots[number].node_with(number)) is not None:
                            fresh.setdefault(node, []).append(number)
                    for node, numbers in fresh.items():
                        asked.update(numbers)
                        node.send(("withdraw", numbers, not is_settled))
                    if (left := deadline - monotonic()) <= 0:
                        break
                    self._changed.wait(left)
                return bool(verdicts) and all(verdicts.values())
            finally:
                self._verdicts = [others for others in self._verdicts if others is not verdicts]

    def pack(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Packed]:
        """Return the function and the argument of a single call as the channel is to pass them, with copies of values.

        function: what nodes find by its name is sent to each once, and anything else with its call. Raises: whatever
        pickling raises.
        """
        timeout_s = None
        if isinstance(function, Limited):
            timeout_s, function = function.timeout_s, function.function
        if self._is_lasting(function):
            return function, Packed(distant.copied(self._encode((args, kwargs))), timeout_s)
        return None, Packed(distant.copied(self._encode((function, args, kwargs))), timeout_s)

    def _encode(self, value: Any, call: int | None = None) -> distant.Frames:
        return distant.encode(value, self._receivers, partial(self._parts.part_of, call=call))

    # ---- the dispatcher ----

    def _dispatch(self) -> None:
        try:
            while (room := self._wait_for_room()) and (claimed := self._claim(room)):
                self._encode_all(claimed)
                del claimed
            self._wait_for_outcomes()
        except BaseException as error:
            log_exception("a pool on other machines cannot go on")
            self._inbox.put(("failed", error))
        finally:
            self._close_transport()
            self._inbox.put(None)
            self._receiver.join()
            self.is_over = True
            self._channel.notify_all()

    def _close_transport(self) -> None:
        try:
            self._transport.close(drains=not self._must_stop())
        except BaseException:
            log_exception("the sessions of a pool could not be ended")

    def _wait_for_room(self) -> int:
        """Return how many tasks the nodes would take, once they take any. 0: the pool ends."""
        with self._changed:
            while True:
                room = self._nodes.n_room - len(self._waiting)
                if self._is_ending:
                    return 0
                if room > 0 and self._free:
                    return min(room, len(self._free), BATCH_MAX)
                self._changed.wait()

    def _claim(self, n: int) -> list[tuple[Any, ...]]:
        """Take up to n tasks, of which the first is waited for. None: the pool ends."""
        claimed: list[tuple[Any, ...]] = []
        while len(claimed) < n:
            slot = self._free.popleft()
            task = slot.worker.claim(not claimed)
            if task is None:
                self._free.appendleft(slot)
                break
            *_, slot.call = task
            slot.number = next(self._numbers)
            claimed.append((slot, *task))
            del task
        return claimed

    def _encode_all(self, claimed: list[tuple[Any, ...]]) -> None:
        for slot, function, argument, mode, call in claimed:
            timeout_s = None
            if isinstance(function, Limited):
                timeout_s, function = function.timeout_s, function.function
            encoded = None
            try:
                if function is not None:
                    encoded = self._functions.encode(function, call)
                if isinstance(argument, Packed):
                    timeout_s, frames = argument.timeout_s, argument.frames
                else:
                    frames = self._encode(argument, call)
            except BaseException as error:
                self._inbox.put(("unsent", slot, error))
                continue
            with self._changed:
                self._waiting.append(Task(slot, slot.number, encoded, mode, timeout_s, frames))
        with self._changed:
            self._place()
            if self._verdicts:  # a thread waits for such a task to be somewhere
                self._changed.notify_all()

    def _wait_for_outcomes(self) -> None:
        """Wait until the pool ends the broker. If the channel was not stopped at once, wait for nodes' tasks, too.

        The pool first gives its calls the outcomes that its end has. Those of nodes that end come too late then.
        """
        with self._changed:
            while not self._is_ending:
                self._changed.wait()
            while not self._must_stop() and (self._waiting or any(node.tasks for node in self._nodes)):
                self._changed.wait()

    def _must_stop(self) -> bool:
        return not self._slots or self._slots[0].worker.must_stop

    # ---- which node gets what; under the lock ----

    def _place(self) -> None:
        self._nodes.share_out(self._waiting)

    def _balance(self) -> None:
        """If workers are idle and no task waits, call tasks back from nodes that have more than workers."""
        if self._nodes.n_idle and not self._waiting and not self._channel.n_waiting:
            self._nodes.ask_back()

    # ---- the receiver ----

    def _receive(self) -> None:
        while (told := self._next_told()) is not None:
            try:
                self._take(told)
            except BaseException as error:  # some task may get no outcome any more, so all do now
                log_exception("what a cluster told could not be handled")
                self._break(error)
            del told  # before the wait: it may be large

    def _next_told(self) -> tuple[Any, ...] | None:
        try:
            return self._inbox.get(timeout=LOOK_S if self._parts else None)
        except Empty:
            return ("nothing",)

    def _take(self, told: tuple[Any, ...]) -> None:
        what, *args = told
        verbs: dict[str, Callable[..., None]] = {
            "joined": self._join,
            "messages": self._take_messages,
            "lost": self._lose,
            "failed": self._break,
            "unsent": self._refuse,
            "withdrawn": self._cancel,
            "nothing": lambda: None,
        }
        verbs[what](*args)
        self._look_at_what_is_kept()
        with self._changed:
            self._place()
            self._balance()
            self._changed.notify_all()

    def _look_at_what_is_kept(self) -> None:
        """Have nodes forget what is no longer used, now and then."""
        if (now := monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_S
        functions, parts = self._functions.living(), self._parts.living()
        with self._changed:
            for node in self._nodes:
                node.keep_only(functions, parts)

    def _join(self, name: str, n_workers: int, send: Callable[[tuple[Any, ...]], None]) -> None:
        with self._changed:
            self._nodes.add(Node(name, n_workers, send))
            self.n_started += n_workers

    def _take_messages(self, name: str, messages: list[tuple[Any, ...]]) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        lowest = None
        for message in messages:
            if message[0] == "outcome":
                _, number, status, value, n_more = message
                lowest = n_more if lowest is None else min(lowest, n_more)
                self._finish(node, number, status, value)
            elif message[0] == "given_back":
                self._take_back(node, message[1])
            elif message[0] == "withdrawn":
                self._take_withdrawn(node, *message[1:])
            elif message[0] == "unusable":
                node.send(("end", False))
                self._lose(name, message[1])
                return
            else:
                self._break(message[1])
        if lowest is not None:
            self._adapt(node, lowest)

    def _finish(self, node: Node, number: int, status: int, value: Any) -> None:
        with self._changed:
            task = node.tasks.pop(number, None)
        if task is not None:
            self._answer(task.slot, *_decode(status, value))

    def _answer(self, slot: Slot, status: int, value: Any) -> None:
        if status != _native.STATUS_CANCELLED:
            self._decide(slot.number, False)
        slot.worker.reply(status, value)
        slot.call = 0
        self._free.append(slot)

    def _take_back(self, node: Node, numbers: list[int]) -> None:
        with self._changed:
            given = [node.tasks.pop(number) for number in numbers if number in node.tasks]
            self._waiting.extendleft(given)  # the newest was given back first
            node.is_asked = not given
            self._nodes.note(node)

    def _take_withdrawn(self, node: Node, numbers: list[int], refused: list[int], is_asked: bool) -> None:
        """Take an answer to `withdraw`. is_asked: the call has no outcome, so tasks go on if nobody waits for this."""
        for number in refused:
            self._decide(number, False)
        for number in numbers:
            with self._changed:
                task = node.tasks.pop(number, None)
                self._nodes.note(node)
            if task is None:
                continue
            if self._decide(number, True) or not is_asked:
                self._cancel(task.slot)
            else:  # whoever waited was told that the task goes on
                with self._changed:
                    self._waiting.append(task)

    def _cancel(self, slot: Slot) -> None:
        self._answer(slot, _native.STATUS_CANCELLED, None)

    def _decide(self, number: int, is_withdrawn: bool) -> bool:
        """Tell the threads in `withdraw` that wait for this. Return whether there are any."""
        with self._changed:
            waiting = [verdicts for verdicts in self._verdicts if number in verdicts]
            for verdicts in waiting:
                if verdicts[number] is None:
                    verdicts[number] = is_withdrawn
            return bool(waiting)

    def _adapt(self, node: Node, lowest: int) -> None:
        """Change how many tasks a node may have, after outcomes of some.

        lowest: how many more than workers it had, when it had fewest.
        """
        with self._changed:
            node.is_asked = False
            if lowest < 0 and (self._waiting or self._channel.n_waiting):
                node.limit = min(2 * node.limit, self.n_slots)
            elif lowest > node.limit // 2:
                node.limit = max(AHEAD * node.n_workers, node.limit - lowest // 2)
            self._nodes.note(node)

    def _lose(self, name: str, reason: str) -> None:
        with self._changed:
            node = self._nodes.remove(name)
        if node is None:
            return
        self.n_lost += node.n_workers
        tasks, node.tasks = node.tasks, {}
        for task in tasks.values():
            what = f"the node {name} was lost ({reason}) while it had this task, which it may have run or not"
            self._answer(task.slot, _native.STATUS_RAISED, worker_lost(what, None, None))

    def _break(self, report: Any) -> None:
        """Break the pool. report: an exception, or what `loop.describe` made of one."""
        self._slots[0].worker.report_broken(report)

    def _refuse(self, slot: Slot, error: BaseException) -> None:
        self._answer(slot, _native.STATUS_RAISED, error)


def _decode(status: int, value: Any) -> tuple[int, Any]:
    """Return the status and the value that a task is answered with."""
    try:
        if status == _native.STATUS_OK:
            return status, distant.decode(value)
        return status, distant.decode([value]) if status == _native.STATUS_RAISED else value
    except BaseException as error:
        return _native.STATUS_UNDECODABLE, error
