"""Allreduce over MPI by message size: latency and bandwidth of several algorithms.

    tracelens record -- mpiexec -n 4 python -m mpi4py mpi_sweep.py

A step is one size of one algorithm. What is printed is what the ranks timed around the whole loop; the
trace holds every call, and every hop of the algorithms that are written out.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from allreduce import WRITTEN_OUT
from mpi4py import MPI
from reducer import Allreduce

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Iterator

ALGORITHMS: Final = ("library", *WRITTEN_OUT)
WARM_UP: Final = 2
ELEMENT: Final = 4  # bytes
FILL: Final = tl.span("fill")
CHECK: Final = tl.span("check")


def sizes(least: int, most: int) -> Iterator[int]:
    """From `least` to `most` bytes, each four times the one before."""
    while least <= most:
        yield least
        least *= 4


def measure(comm: Any, allreduce: Allreduce, nbytes: int, repeats: int) -> float:
    """Return the seconds that one call takes, on the slowest rank."""
    with FILL:
        values = np.ones(nbytes // ELEMENT, "f4")
    for _ in range(WARM_UP):
        allreduce(values)
        with FILL:
            values.fill(1)
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        allreduce(values)
    taken = (time.perf_counter() - begin) / repeats
    with CHECK:
        right = np.allclose(values, float(comm.size) ** repeats, rtol=1e-3)
    if not right:
        raise SystemExit("an allreduce gave a wrong sum")
    return float(comm.allreduce(taken, MPI.MAX))


def sweep(arguments: argparse.Namespace) -> None:
    """Measure all algorithms at all sizes; print the table on rank 0."""
    comm = tl.attach(MPI.COMM_WORLD)
    share = 2 * (comm.size - 1) / comm.size  # of the bytes that a rank must at least send
    lines = [
        f"{'algorithm':20}{'bytes':>12}{'latency us':>12}{'bandwidth MB/s':>16}{'bus MB/s':>10}"
    ]
    step = 0
    for algorithm in arguments.algorithms:
        allreduce = Allreduce(comm, algorithm)
        for nbytes in sizes(arguments.least, arguments.most):
            with tl.step(step):
                seconds = measure(comm, allreduce, nbytes, arguments.repeats)
            speed = nbytes / seconds / 1e6
            lines.append(
                f"{algorithm:20}{nbytes:12,}{seconds * 1e6:12.1f}{speed:16.1f}{share * speed:10.1f}"
            )
            step += 1
    if comm.rank == 0:
        print("\n".join(lines))


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--least", type=int, default=ELEMENT, metavar="BYTES")
    parser.add_argument("--most", type=int, default=1 << 22, metavar="BYTES")
    parser.add_argument("--repeats", type=int, default=10, help="of each size")
    arguments = parser.parse_args()
    if arguments.least < ELEMENT:
        parser.error(f"--least must be at least {ELEMENT} bytes: one number")
    sweep(arguments)


if __name__ == "__main__":
    main()
