"""What the handlers of a server compute."""

N_PRIMES = 2_000  # below it: some 0.5 ms


def short(n: int) -> int:
    """Return the sum of the numbers below n: a call that takes hardly any time."""
    return sum(range(n))


def primes_below(n: int) -> int:
    """Return how many primes there are below n, by trial division."""
    primes: list[int] = []
    for number in range(2, n):
        for prime in primes:
            if number % prime == 0:
                break
            if prime * prime > number:
                primes.append(number)
                break
        else:
            primes.append(number)
    return len(primes)


def answer() -> str:
    """Return what the server answers."""
    return str(primes_below(N_PRIMES))
