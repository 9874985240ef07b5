"""A pool in a program whose sockets a library has replaced by ones that do not block: `python green.py KIND`.

KIND: thread, interp, fork, forkserver or spawn. Worker processes that import this module replace their sockets, too.
"""

import socket
import sys


class Socket(socket.socket):
    """As the sockets of gevent: the descriptor does not block, whatever the socket itself does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.setblocking(False)


socket.socket = Socket


def square(n):
    return n * n


def main(kind):
    from pool_party import ComposablePool

    where = {"kind": kind} if kind in ("thread", "interp") else {"kind": "process", "context": kind}
    with ComposablePool(2, **where) as pool:
        print(pool.map(square, range(5)) == [0, 1, 4, 9, 16], socket.socket is Socket)


if __name__ == "__main__":
    main(sys.argv[1])
