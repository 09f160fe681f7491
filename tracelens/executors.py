"""Where work is done, as `--executor` names it: processes, MPI ranks, Dask workers (docs/cluster.md)."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tracelens.containment import contain, is_contained
from tracelens.errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

EXECUTORS: Final = "threads, processes:N, mpi or dask://HOST:PORT"
DEFAULT_WORKERS: Final = 8  # of an executor that does not say how many it has
CONNECT_TIMEOUT_S: Final = 10
POLL_INTERVAL_S: Final = 1e-4  # for messages of MPI workers


@contextmanager
def open_executor(spec: str | None) -> Iterator[Executor | None]:
    """Yield the executor that a text names (`EXECUTORS`); None for threads of this process.

    Raises:
        InvalidArgument: there is no such executor, or nothing answers there.
        MissingExtra: the library that it needs is not installed.
    """
    if spec is None or spec == "threads":
        yield None
        return
    kind, _, address = spec.partition(":")
    if spec == "mpi":
        pool: Any = _connect_to_mpi()
    elif kind == "processes" and (count := re.fullmatch(r"[1-9]\d{0,3}", address)):
        pool = _start_processes(int(count[0]))
    elif kind == "dask" and address.startswith("//"):
        pool = _connect_to_dask(address.removeprefix("//"))
    else:
        raise InvalidArgument(f"--executor {spec}: expected one of {EXECUTORS}.")
    with pool as executor:
        yield executor


def _start_processes(count: int) -> Executor:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - only where it is asked for
    from multiprocessing import get_context  # noqa: PLC0415 - likewise

    # Forked children of a process with threads, as those of polars, can hang.
    return ProcessPoolExecutor(count, get_context("spawn"), _begin_worker, (is_contained(),))


def _begin_worker(contained: bool) -> None:  # noqa: FBT001 - sent as it is
    """Begin a worker: it ends when its parent does; what it reads may end it if that is so there."""
    from threading import Thread  # noqa: PLC0415 - in a worker

    Thread(target=_end_with_parent, daemon=True).start()
    if contained:
        contain()


def _end_with_parent() -> None:
    """Wait for the parent to end, and end: a worker would wait for work for ever."""
    import os  # noqa: PLC0415 - in a worker
    from multiprocessing import connection, parent_process  # noqa: PLC0415

    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _connect_to_mpi() -> Executor:
    """Return the ranks of this MPI job but this one as workers."""
    try:
        from mpi4py import MPI  # noqa: PLC0415 - an extra
        from mpi4py.futures import MPIPoolExecutor  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra.from_extra("An executor of MPI ranks", "mpi") from error
    if MPI.COMM_WORLD.Get_size() < 2:
        raise InvalidArgument(
            "--executor mpi: this is the only rank, and the others do the work; start it with 'mpiexec "
            "-n N python -m mpi4py.futures -m tracelens analyze ... --executor mpi', N at least 2."
        )
    # By default it looks for messages every millisecond; what is sent here takes several looks.
    pool: Executor = MPIPoolExecutor(backoff=POLL_INTERVAL_S)
    return pool


@contextmanager
def _connect_to_dask(address: str) -> Iterator[Executor]:
    """Yield an executor of the workers of the scheduler at HOST:PORT."""
    try:
        import distributed  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra.from_extra("An executor of Dask workers", "cluster") from error
    try:
        dask: Any = distributed  # has no types
        client = dask.Client(f"tcp://{address}", timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"--executor dask://{address}: no Dask scheduler answers there ({error})."
        ) from error
    with client:
        pool = client.get_executor(pure=False)
        thread_count = sum(client.nthreads().values())
        pool.num_workers = thread_count or DEFAULT_WORKERS  # those may come later
        yield pool
