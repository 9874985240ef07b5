"""The errors of pool_party; those that are also errors of `concurrent.futures` are in _broken.py.

Each class also derives from what the standard library raises in its place.
"""


class PoolPartyError(Exception):
    """The root of all errors that pool_party itself raises."""


class PoolClosed(PoolPartyError, ValueError, RuntimeError):
    """You closed the pool, and used it afterwards."""


class PoolTerminated(PoolClosed):
    """You terminated the pool while this result was pending."""


class RemoteError(PoolPartyError):
    """What a worker sent could not be rebuilt here; the message has its repr and the remote traceback."""
