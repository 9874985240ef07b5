"""A task that gives back what it gets."""


def echo[T](value: T) -> T:
    """Return `value`."""
    return value
