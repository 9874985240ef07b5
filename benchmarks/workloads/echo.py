"""A task that returns its argument."""


def echo[T](value: T) -> T:
    """Return `value`."""
    return value
