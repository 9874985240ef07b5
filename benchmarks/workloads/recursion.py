"""Recursive Fibonacci numbers: only calls, without and with an object that every call changes."""


def fib(n: int) -> int:
    """Return the n-th Fibonacci number, counted from 1, 1."""
    return 1 if n < 2 else fib(n - 1) + fib(n - 2)


class Counting:
    """Computes Fibonacci numbers and counts its calls in an attribute; each task has an object of its own."""

    def __init__(self) -> None:
        self.n_calls = 0

    def fib(self, n: int) -> int:
        """Return the n-th Fibonacci number, counted from 1, 1."""
        self.n_calls += 1
        return 1 if n < 2 else self.fib(n - 1) + self.fib(n - 2)


def fib2(n: int) -> tuple[int, int]:
    """Return the n-th Fibonacci number and the number of calls."""
    counting = Counting()
    return counting.fib(n), counting.n_calls
