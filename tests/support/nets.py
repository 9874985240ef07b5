"""A cluster for tests of the broker: nodes without processes, whose every step a random choice decides."""

import itertools
import random
import threading
import uuid
from collections import Counter, deque
from queue import Empty, SimpleQueue

from pool_party import _native
from pool_party._cluster.node import tasks

begun = Counter()  # how often each value was begun, by `note`


def note(x):
    begun[x] += 1
    return -x


class Node:
    """Does what `_cluster/node/session.py` does, one step after the other."""

    def __init__(self, name, n_workers):
        self.name = name
        self.id = uuid.uuid4().hex
        self.n_workers = n_workers
        self.sent = SimpleQueue()  # messages on their way here
        self.answers = deque()  # messages on their way back
        self.functions = {}
        self.parts = {}
        self.waiting = {}
        self.running = {}

    def handle(self, message):
        what, *args = message
        getattr(self, what)(*args)

    def forget(self, numbers):
        for number in numbers:
            self.functions.pop(number, None)
            self.parts.pop(number, None)

    def run(self, functions, parts, batch):
        self.functions |= functions
        self.parts |= {number: bytes(part.buffer) for number, part in parts.items()}
        for number, function, mode, _, frames in batch:
            frames = [self.parts[frame] if isinstance(frame, int) else frame for frame in frames]
            self.waiting[number] = (self.id, function), function and self.functions[function], mode, frames
        self.begin()

    def begin(self):
        while self.waiting and len(self.running) < self.n_workers:
            number = next(iter(self.waiting))
            self.running[number] = tasks.run(*self.waiting.pop(number))

    def finish(self, number):
        status, value = self.running.pop(number)
        self.answers.append(("outcome", number, status, value, len(self.waiting) + len(self.running) - self.n_workers))
        self.begin()

    def give_back(self, n):
        numbers = list(self.waiting)[::-1][:n]
        for number in numbers:
            del self.waiting[number]
        self.answers.append(("given_back", numbers))

    def withdraw(self, numbers, is_asked):
        withdrawn = [number for number in numbers if self.waiting.pop(number, None)]
        self.answers.append(("withdrawn", withdrawn, [n for n in numbers if n not in withdrawn], is_asked))

    def stop(self, number):
        if self.waiting.pop(number, None):
            self.answers.append(("outcome", number, _native.STATUS_CANCELLED, None, 0))


class Net:
    """A transport to nodes. One thread takes all steps, so a seed and the broker's timing decide what happens.

    losses: the number of nodes that are lost, each of which another one replaces.
    """

    def __init__(self, seed, n_nodes=3, losses=0):
        self._random = random.Random(seed)
        self._names = map("node {}".format, itertools.count(1))
        self._n_nodes = n_nodes
        self._losses = losses
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="net", daemon=True)
        self._is_woken = threading.Semaphore(0)

    def open(self, inbox):
        self._inbox = inbox
        self.nodes = []
        for _ in range(self._n_nodes):
            self.join()
        self._thread.start()

    def join(self):
        node = Node(next(self._names), self._random.randint(1, 4))
        self.nodes.append(node)

        def send(message):
            node.sent.put(message)
            self._is_woken.release()

        self._inbox.put(("joined", node.name, node.n_workers, send))

    def close(self, drains):
        self._is_closing.set()
        self._is_woken.release()
        self._thread.join()

    def _run(self):
        while not self._is_closing.is_set():
            steps = [step for node in self.nodes for step in self._steps_of(node)]
            if not steps:
                self._is_woken.acquire()
                continue
            if self._losses and self._random.random() < 0.02:
                self._lose(self._random.choice(self.nodes))
                continue
            self._random.choice(steps)()

    def _steps_of(self, node):
        if not node.sent.empty():
            yield lambda: self._deliver(node)
        for number in node.running:
            yield lambda number=number: node.finish(number)
        if node.answers:
            yield lambda: self._answer(node)

    def _deliver(self, node):
        try:
            node.handle(node.sent.get_nowait())
        except Empty:
            pass

    def _answer(self, node):
        n = self._random.randint(1, len(node.answers))
        self._inbox.put(("messages", node.name, [node.answers.popleft() for _ in range(n)]))

    def _lose(self, node):
        self._losses -= 1
        self.nodes.remove(node)
        self._inbox.put(("lost", node.name, "as the test wants it"))
        self.join()
