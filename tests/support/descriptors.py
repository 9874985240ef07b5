"""Tasks that use connections, sockets and classes registered with ForkingPickler."""

import os
import socket
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler


class Registered:
    """A class that pickles only through a reducer registered with ForkingPickler."""

    def __init__(self, number):
        self.number = number

    def __reduce_ex__(self, protocol):
        raise TypeError("the registered reducer was not asked")


def _restore(number):
    return Registered(number + 1)


ForkingPickler.register(Registered, lambda self: (_restore, (self.number,)))


def number_of(registered):
    return registered.number


def send(conn, message):
    conn.send(message)
    conn.close()
    return os.getpid()


def send_bytes(sock, message):
    with sock:
        sock.sendall(message)


def pass_on(value):
    return value


def open_pair(message):
    mine, theirs = connection.Pipe()
    mine.send(message)
    mine.close()
    return theirs


def open_socket(message):
    mine, theirs = socket.socketpair()
    with mine:
        mine.sendall(message)
    return theirs
