"""Works on several items at a time: in threads of this process, or wherever an executor does.

numpy, polars and pyarrow let threads run in parallel, but Python's own code between their calls
runs one after the other: beyond a core or two, processes are faster, here or on other machines
(docs/cluster.md). Whatever does the work, results come in the order of the items, so that reports are
the same byte for byte.

Items and results are mostly arrays. A worker that sees the temporary files of this process is given
them in such a file, and leaves what it made in one, and each is read once; through pipes and messages,
and by a scheduler between them, they are copied several times.
"""

from __future__ import annotations

import pickle
from collections import deque
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import polars as pl

from tracelens.containment import limit_cpu_meanwhile
from tracelens.executors import DEFAULT_WORKERS
from tracelens.memory import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["choose_batch_size", "map_in_order", "split_into_batches"]

ITEMS_AHEAD_PER_WORKER: Final = 2  # handed out for each that is worked on
MAX_ITEMS_AHEAD: Final = 64
MAX_BATCH_SIZE: Final = 32
MIN_BYTES_OF_FILE: Final = 1 << 14  # less is sent as it is
BATCHES_PER_WORKER: Final = 8  # so that all end at about the same time
_DASK_FAILURES: Final = ("KilledWorker", "FutureCancelledError", "CancelledError")  # a worker died
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_order(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    executor: Executor | None = None,
    *,
    brief: bool = False,
) -> Iterator[_Result]:
    """Yield what `work` makes of each item, in order.

    Few items are handed out ahead, so that neither they nor results pile up. What failed because its
    worker died is tried once more.

    Args:
        work: A function that can be sent to other processes, unless they are threads.
        items: What can be sent there, too; made one after the other as they are handed out.
        executor: Where to work; None = in as many threads as there are cores.
        brief: Each item takes a millisecond or so, most of it in Python. Threads would only wait for
            each other, so the calling thread does all work if `executor` is None.

    Raises:
        Exception: what `work` raises.
    """
    if executor is None and brief:
        with limit_cpu_meanwhile():
            yield from map(work, items)
    elif executor is None:
        worker_count = pl.thread_pool_size()
        with limit_cpu_meanwhile(worker_count), ThreadPoolExecutor(worker_count) as pool:
            yield from _map_ahead(
                lambda item: pool.submit(work, item),
                lambda _, future: future.result(),
                items,
                worker_count,
            )
    else:
        with (
            limit_cpu_meanwhile(),
            TemporaryDirectory(prefix="tracelens-", ignore_cleanup_errors=True) as folder,
        ):
            workers = _Workers(work, executor, folder)
            worker_count = _count_workers(executor)
            yield from _map_ahead(workers.submit, workers.take_result, items, worker_count)


def split_into_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield items in order, `size` at a time."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def choose_batch_size(count: int, executor: Executor | None) -> int:
    """Count how many of `count` brief items a worker of an executor is given in one message.

    Each message costs about as much as a small file.
    """
    if executor is None:
        return 1
    return max(min(count // (BATCHES_PER_WORKER * _count_workers(executor)), MAX_BATCH_SIZE), 1)


class _Filed(NamedTuple):
    """A pickled value without its arrays, which are in a file, one after the other."""

    pickled: bytes
    sizes_bytes: tuple[int, ...]
    path: str

    def read(self) -> Any:
        """Return the object, with the arrays in its file, and remove the file.

        Raises:
            OSError, EOFError: the file is not seen from here, has been read before, or was cut off.
        """
        arrays = [np.empty(size, np.uint8) for size in self.sizes_bytes]
        with Path(self.path).open("rb") as file:
            read_bytes = [file.readinto(array.data) for array in arrays]
        if read_bytes != list(self.sizes_bytes):
            raise EOFError(self.path)
        Path(self.path).unlink()
        return pickle.loads(self.pickled, buffers=arrays)  # noqa: S301 - of a process of our own


def _put_into_file(folder: str, value: Any) -> Any:
    """Put a value's arrays into a file in `folder`; return the value if small, or without room."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    sizes_bytes = tuple(buffer.raw().nbytes for buffer in buffers)
    if sum(sizes_bytes) < MIN_BYTES_OF_FILE:
        return value
    try:
        with NamedTemporaryFile(dir=folder, delete=False) as file:
            file.writelines(buffer.raw() for buffer in buffers)
    except OSError:
        return value
    return _Filed(pickled, sizes_bytes, file.name)


class _FileNotSeen:
    """The result of a worker that does not see the file of its item."""


@dataclass(frozen=True)
class _RemoteWork(Generic[_Item, _Result]):
    """Work as it is done by a worker that may see a folder."""

    work: Callable[[_Item], _Result]
    folder: str

    def __call__(self, sent: _Item | _Filed) -> _Result | _Filed | _FileNotSeen:
        """Return the result for an item, in a file if this worker sees the folder."""
        keep_freed_memory()  # Dask starts its workers so that they give all memory back at once
        try:
            item: _Item = sent.read() if isinstance(sent, _Filed) else sent
        except (OSError, EOFError):
            return _FileNotSeen()
        with limit_cpu_meanwhile():
            result = self.work(item)
        if not Path(self.folder).is_dir():  # a worker on another machine
            return result
        filed: _Result | _Filed = _put_into_file(self.folder, result)
        return filed


class _Workers(Generic[_Item, _Result]):
    """An executor's workers, as this process sees them, which hands them items and takes results."""

    def __init__(self, work: Callable[[_Item], _Result], pool: Executor, folder: str) -> None:
        self._work, self._pool = work, pool
        self._remote_work, self._folder = _RemoteWork(work, folder), folder
        self._can_see_files = True

    def submit(self, item: _Item) -> Future[Any]:
        """Hand an item to a worker; if a worker died, the future holds that error."""
        sent = _put_into_file(self._folder, item) if self._can_see_files else item
        try:
            return self._pool.submit(self._remote_work, sent)
        except BrokenExecutor as error:  # a worker died: the rest is worked on here
            failed_future: Future[Any] = Future()
            failed_future.set_exception(error)
            return failed_future

    def take_result(self, item: _Item, future: Future[Any]) -> _Result:
        """Return the result; that of a worker that died is made here."""
        try:
            sent = future.result()
        except (BrokenExecutor, ConnectionError):
            return self._work(item)
        except Exception as error:
            if type(error).__name__ not in _DASK_FAILURES:
                raise
            return self._work(item)
        if isinstance(sent, _FileNotSeen):
            self._can_see_files = False
            return self.take_result(item, self.submit(item))
        try:
            result: _Result = sent.read() if isinstance(sent, _Filed) else sent
        except (OSError, EOFError):
            return self._work(item)
        return result


def _map_ahead(
    submit: Callable[[_Item], Future[Any]],
    take_result: Callable[[_Item, Future[Any]], _Result],
    items: Iterable[_Item],
    worker_count: int,
) -> Iterator[_Result]:
    """Yield results in the order of the items; only some items are submitted ahead.

    `take_result` waits for the future of an item, and returns what is yielded.
    """
    pending: deque[tuple[_Item, Future[Any]]] = deque()
    max_pending = min(ITEMS_AHEAD_PER_WORKER * worker_count, MAX_ITEMS_AHEAD)
    try:
        for item in items:
            pending.append((item, submit(item)))
            if len(pending) >= max_pending:
                yield take_result(*pending.popleft())
        while pending:
            yield take_result(*pending.popleft())
    finally:
        for _, future in pending:
            future.cancel()


def _count_workers(pool: Executor) -> int:
    count = getattr(pool, "_max_workers", None) or getattr(pool, "num_workers", None)
    return int(count or DEFAULT_WORKERS)
