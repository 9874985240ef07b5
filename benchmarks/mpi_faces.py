"""What does an array that is not contiguous cost on its way to another rank of MPI: packed by us, or by MPI?

    mpiexec -n 2 python benchmarks/mpi_faces.py [--quick] [--repeats N]

Rank 0 sends faces of a cube and transposed matrices of doubles, and rank 1 receives them into contiguous memory. The
ways: a derived datatype of MPI, which packs while it sends; a copy by NumPy; and the copy by pool_party, which idle
cores join, as arrays travel in pools with kind="mpi". Times are medians, from the first byte packed until rank 1 has
answered that it has all of them. Both ranks run on the same machine, so one core is left for each.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy
from mpi4py import MPI
from tables import table

from pool_party import _native

MEGABYTES = (1, 4, 16, 64)
SEND, DONE = 1, 2  # tags
WAYS = ("MPI datatype", "NumPy, then send", "pool_party, then send")


def arrays(megabytes: int) -> dict[str, Any]:
    """Return arrays that are not contiguous, of some megabytes each."""
    n = megabytes << 17  # doubles
    side = 1 << (n.bit_length() - 1) // 2
    cube = numpy.ones((n // side, side, 4))
    return {"face": cube[:, :, 1], "transposed": numpy.ones((side, n // side)).T}


def _datatype(array: Any) -> Any:
    """Return the type of MPI that has the elements of a matrix in C order."""
    (rows, columns), (row_bytes, column_bytes) = array.shape, array.strides
    row = MPI.DOUBLE.Create_hvector(columns, 1, column_bytes)
    return row.Create_hvector(rows, 1, row_bytes).Commit()


def sender(way: str, array: Any) -> Callable[[], None]:
    """Return a function that packs an array, and sends it."""
    comm = MPI.COMM_WORLD
    if way == WAYS[0]:
        kind = _datatype(array)
        whole = numpy.lib.stride_tricks.as_strided(array, (1,), (8,))
        return lambda: comm.Send([whole, 1, kind], 1, SEND)
    target = numpy.empty(array.shape)

    def pack_and_send() -> None:
        if way == WAYS[1]:
            target[...] = array
        else:
            _native.copy(target, array)
        comm.Send([target, MPI.DOUBLE], 1, SEND)

    return pack_and_send


def _time(send: Callable[[], None]) -> float:
    begin_s = perf_counter()
    send()
    MPI.COMM_WORLD.Recv(numpy.empty(0), 1, DONE)
    return perf_counter() - begin_s


def _receive(n_doubles: int, n: int) -> None:
    target = numpy.empty(n_doubles)
    for _ in range(n):
        MPI.COMM_WORLD.Recv([target, MPI.DOUBLE], 0, SEND)
        MPI.COMM_WORLD.Send(numpy.empty(0), 0, DONE)
    assert (target == 1).all()


def main() -> None:
    """Measure as the command line says; rank 0 prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 MB only, and few repeats")
    parser.add_argument("--repeats", type=int, default=15, metavar="N")
    options = parser.parse_args()
    if MPI.COMM_WORLD.size != 2:
        sys.exit("start it with two ranks: mpiexec -n 2 python benchmarks/mpi_faces.py")
    n_repeats = 3 if options.quick else options.repeats
    rows = []
    for megabytes in MEGABYTES[: 1 if options.quick else None]:
        for name, array in arrays(megabytes).items():
            taken_s = []
            for way in WAYS:
                if MPI.COMM_WORLD.rank == 1:
                    _receive(array.size, n_repeats)
                else:
                    send = sender(way, array)
                    taken_s.append(statistics.median(_time(send) for _ in range(n_repeats)))
            ratios = [f"{1000 * taken:.3g} ms ({taken_s[0] / taken:.2f} x)" for taken in taken_s]
            rows.append([f"{name}, {megabytes} MB", *ratios])
    if MPI.COMM_WORLD.rank == 0:
        print(table(["", *WAYS], rows))


if __name__ == "__main__":
    main()
