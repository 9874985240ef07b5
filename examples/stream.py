"""Count what is in an endless log without holding more than a few blocks of it in memory.

    python examples/stream.py [--kind KIND] [--context METHOD] [--quick]

`imap` reads its input as its results are consumed, `buffersize` items ahead at most. So the input may be larger than
memory, and a producer that is faster than the consumer is held back. `multiprocessing.Pool.imap` goes on reading.

It prints how many blocks were on their way at most, in both pools, while the consumer paused for a moment, and whether
the counts are those of the lines that were produced.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from pool_party import ComposablePool

LINES_PER_BLOCK, AHEAD, PAUSE_S = 500, 16, 0.2


def count_statuses(block: str) -> Counter[str]:
    """Return how often each status occurs in a block of lines."""
    return Counter(line.rsplit(" ", 2)[1] for line in block.splitlines())


class Log:
    """A log that is made while it is read; it knows how many blocks are on their way."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks, self.n_read, self.n_consumed, self.peak = n_blocks, 0, 0, 0
        self.written: Counter[str] = Counter()

    def blocks(self) -> Iterator[str]:
        """Yield blocks of lines such as "GET /page/17 404 1217"."""
        for first in range(0, self.n_blocks * LINES_PER_BLOCK, LINES_PER_BLOCK):
            numbers = range(first, first + LINES_PER_BLOCK)
            statuses = ["404" if n % 13 == 0 else "500" if n % 101 == 0 else "200" for n in numbers]
            self.written.update(statuses)
            self.n_read += 1
            self.peak = max(self.peak, self.n_read - self.n_consumed)
            yield "\n".join(f"GET /page/{n} {status} {n % 997}" for n, status in zip(numbers, statuses, strict=True))

    def count(self, results: Iterator[Counter[str]]) -> Counter[str]:
        """Consume the results and return their sum."""
        total: Counter[str] = Counter()
        for counts in results:
            self.n_consumed += 1
            total.update(counts)
            if self.n_consumed == self.n_blocks // 2:
                time.sleep(PAUSE_S)
        return total


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="process")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="a short log")
    args = parser.parse_args()
    log, other = (Log(100 if args.quick else 4_000) for _ in range(2))
    with multiprocessing.get_context(args.context).Pool() as pool:
        other_total = other.count(pool.imap(count_statuses, other.blocks()))
    with ComposablePool(kind=args.kind, context=args.context) as pool:
        total = log.count(pool.imap(count_statuses, log.blocks(), buffersize=AHEAD))
    is_right, is_bounded = total == other_total == log.written, log.peak <= AHEAD + 1
    print(f"{total.total()} lines in {log.n_blocks} blocks: {dict(sorted(total.items()))}")
    print(f"most blocks in flight: {log.peak} here, {other.peak} in multiprocessing.Pool")
    print(f"bounded by buffersize={AHEAD}: {'yes' if is_bounded else 'NO'}")
    print(f"counts as written: {'yes' if is_right else 'NO'}")
    return is_right and is_bounded


if __name__ == "__main__":
    sys.exit(not main())
