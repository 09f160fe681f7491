"""Works on several things at a time: in threads of this process, or wherever an executor does.

numpy, polars and pyarrow let threads run beside each other, but what Python does between their calls
runs one after the other: beyond a core or two, processes are faster, here or on other machines
(docs/cluster.md). Whatever does the work, results come in the order of the things, so that reports are
the same byte for byte.

Most of a result are arrays. A worker that sees the temporary files of this process leaves them in one,
from where each is read once; through pipes and messages they are copied several times.
"""

from __future__ import annotations

import pickle
from collections import deque
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import polars as pl

from tracelens.containment import watching
from tracelens.executors import USUAL_WORKERS
from tracelens.memory import keep_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["at_once", "mapped"]

_AHEAD: Final = 2  # things handed out for each that is worked on
_MOST_AHEAD: Final = 64
_MOST_AT_ONCE: Final = 8
_TURNS: Final = 8  # of each worker, so that all end at about the same time
_DIED: Final = ("KilledWorker", "FutureCancelledError", "CancelledError")  # Dask's words for it
_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")


def mapped(
    work: Callable[[_Thing], _Made],
    things: Iterable[_Thing],
    executor: Executor | None = None,
    *,
    brief: bool = False,
) -> Iterator[_Made]:
    """Yield what `work` makes of each thing, in order.

    Few things are handed out ahead, so that neither they nor what is made of them pile up. What failed
    because its worker died is tried once more.

    Args:
        work: A function that can be sent to other processes, unless they are threads.
        things: What can be sent there, too; made one after the other as they are handed out.
        executor: Where to work; None = in as many threads as there are cores.
        brief: Each thing takes a millisecond or so, most of it in Python: threads would only wait for
            each other, so without an executor there is one.

    Raises:
        Exception: what `work` raises.
    """
    if executor is None and brief:
        with watching():
            yield from map(work, things)
    elif executor is None:
        with watching(_cores()), ThreadPoolExecutor(_cores()) as pool:
            yield from _in_order(work, work, things, pool, _cores())
    else:
        with (
            watching(),
            TemporaryDirectory(prefix="tracelens-", ignore_cleanup_errors=True) as folder,
        ):
            there = _Remote(work, folder)
            yield from _in_order(work, there, things, executor, _workers(executor))


def at_once(count: int, executor: Executor | None) -> int:
    """Return how many of `count` brief things a worker of an executor is given in one message.

    Each message costs about as much as a small file.
    """
    if executor is None:
        return 1
    return max(min(count // (_TURNS * _workers(executor)), _MOST_AT_ONCE), 1)


class _Filed(NamedTuple):
    """What a worker made: pickled without its arrays, which are in a file, one after the other."""

    pickled: bytes
    sizes: tuple[int, ...]
    file: str

    def read(self) -> Any:
        arrays = [np.empty(size, np.uint8) for size in self.sizes]
        with Path(self.file).open("rb") as file:
            read = [file.readinto(array.data) for array in arrays]
        if read != list(self.sizes):
            raise EOFError(self.file)
        Path(self.file).unlink()
        return pickle.loads(self.pickled, buffers=arrays)  # noqa: S301 - of a worker of our own


@dataclass(frozen=True)
class _Remote(Generic[_Thing, _Made]):
    """Work as it is done by a worker that may see a folder."""

    work: Callable[[_Thing], _Made]
    folder: str

    def __call__(self, thing: _Thing) -> _Made | _Filed:
        keep_room()  # Dask starts its workers so that they give all memory back at once
        with watching():
            made = self.work(thing)
        if not Path(self.folder).is_dir():  # a worker on another machine
            return made
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(made, protocol=5, buffer_callback=arrays.append)
        try:
            with NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.writelines(array.raw() for array in arrays)
        except OSError:  # the disk is full
            return made
        return _Filed(pickled, tuple(array.raw().nbytes for array in arrays), file.name)


def _in_order(
    work: Callable[[_Thing], _Made],
    there: Callable[[_Thing], _Made | _Filed],
    things: Iterable[_Thing],
    pool: Executor,
    workers: int,
) -> Iterator[_Made]:
    waiting: deque[tuple[_Thing, Future[_Made | _Filed]]] = deque()
    ahead = min(_AHEAD * workers, _MOST_AHEAD)
    try:
        for thing in things:
            waiting.append((thing, _submitted(pool, there, thing)))
            if len(waiting) >= ahead:
                yield _result(work, *waiting.popleft())
        while waiting:
            yield _result(work, *waiting.popleft())
    finally:
        for _, future in waiting:
            future.cancel()


def _submitted(pool: Executor, work: Callable[[_Thing], _Made], thing: _Thing) -> Future[_Made]:
    try:
        return pool.submit(work, thing)
    except BrokenExecutor as error:  # a worker died: the rest is worked on here
        broken: Future[_Made] = Future()
        broken.set_exception(error)
        return broken


def _result(
    work: Callable[[_Thing], _Made], thing: _Thing, future: Future[_Made | _Filed]
) -> _Made:
    """Return what was made; what a worker that died was to make is made here."""
    try:
        found = future.result()
    except (BrokenExecutor, ConnectionError):
        return work(thing)
    except Exception as error:
        if type(error).__name__ not in _DIED:
            raise
        return work(thing)
    if not isinstance(found, _Filed):
        return found
    try:
        made: _Made = found.read()
    except (OSError, EOFError):
        return work(thing)
    return made


def _workers(pool: Executor) -> int:
    return int(
        getattr(pool, "_max_workers", None) or getattr(pool, "num_workers", None) or USUAL_WORKERS
    )


def _cores() -> int:
    return pl.thread_pool_size()
