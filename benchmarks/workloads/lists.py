"""Results that are large lists: nothing to compute, much to pass."""


def data_pass(task: tuple[float, int]) -> list[float]:
    """Return a list of `task`: (number, how many times)."""
    number, length = task
    return [number] * length
