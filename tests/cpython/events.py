"""An event for tests whose workers are interpreters. Workers import this file, so it imports little."""

import os
import select


class PipeEvent:
    """The part of threading.Event that the tests use, between interpreters, which share the process's descriptors."""

    def __init__(self):
        self._readable, self._writable = os.pipe()

    def set(self):
        os.write(self._writable, b"!")

    def wait(self):
        select.select([self._readable], [], [])
        return True

    def close(self):
        os.close(self._readable)
        os.close(self._writable)
