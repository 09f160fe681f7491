"""Works on several things at a time: in threads of this process, or wherever an executor does.

numpy, polars and pyarrow let threads run beside each other, but what Python does between their calls
runs one after the other: beyond a core or two, processes are faster, here or on other machines
(docs/cluster.md). Whatever does the work, results come in the order of the things, so that reports are
the same byte for byte.

Most of a thing and of a result are arrays. What a worker that sees the temporary files of this process
is given, and what it made, is left in one, from where it is read once; through pipes and messages, and
by a scheduler between them, it is copied several times.
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
_MOST_AT_ONCE: Final = 32
_FEW_BYTES: Final = 1 << 14  # sent as they are
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
            yield from _in_order(
                lambda thing: pool.submit(work, thing),
                lambda _, future: future.result(),
                things,
                _cores(),
            )
    else:
        with (
            watching(),
            TemporaryDirectory(prefix="tracelens-", ignore_cleanup_errors=True) as folder,
        ):
            workers = _Workers(work, executor, folder)
            yield from _in_order(workers.begun, workers.made, things, _workers(executor))


def at_once(count: int, executor: Executor | None) -> int:
    """Return how many of `count` brief things a worker of an executor is given in one message.

    Each message costs about as much as a small file.
    """
    if executor is None:
        return 1
    return max(min(count // (_TURNS * _workers(executor)), _MOST_AT_ONCE), 1)


class _Filed(NamedTuple):
    """What is handed over: pickled without its arrays, which are in a file, one after the other."""

    pickled: bytes
    sizes: tuple[int, ...]
    file: str

    def read(self) -> Any:
        """Return it, and remove the file.

        Raises:
            OSError, EOFError: the file is not seen from here, has been read before, or was cut off.
        """
        arrays = [np.empty(size, np.uint8) for size in self.sizes]
        with Path(self.file).open("rb") as file:
            read = [file.readinto(array.data) for array in arrays]
        if read != list(self.sizes):
            raise EOFError(self.file)
        Path(self.file).unlink()
        return pickle.loads(self.pickled, buffers=arrays)  # noqa: S301 - of a process of our own


def _left_in(folder: str, handed: Any) -> Any:
    """Return what is to be handed over: in a file, or as it is if it is small or the disk is full."""
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(handed, protocol=5, buffer_callback=arrays.append)
    sizes = tuple(array.raw().nbytes for array in arrays)
    if sum(sizes) < _FEW_BYTES:
        return handed
    try:
        with NamedTemporaryFile(dir=folder, delete=False) as file:
            file.writelines(array.raw() for array in arrays)
    except OSError:
        return handed
    return _Filed(pickled, sizes, file.name)


class _NotSeen:
    """What a worker makes of a file that it does not see."""


@dataclass(frozen=True)
class _Remote(Generic[_Thing, _Made]):
    """Work as it is done by a worker that may see a folder."""

    work: Callable[[_Thing], _Made]
    folder: str

    def __call__(self, given: _Thing | _Filed) -> _Made | _Filed | _NotSeen:
        keep_room()  # Dask starts its workers so that they give all memory back at once
        try:
            thing: _Thing = given.read() if isinstance(given, _Filed) else given
        except (OSError, EOFError):
            return _NotSeen()
        with watching():
            made = self.work(thing)
        if not Path(self.folder).is_dir():  # a worker on another machine
            return made
        left: _Made | _Filed = _left_in(self.folder, made)
        return left


class _Workers(Generic[_Thing, _Made]):
    """An executor's workers, as one that hands things to them and takes what they made sees them."""

    def __init__(self, work: Callable[[_Thing], _Made], pool: Executor, folder: str) -> None:
        self._work, self._pool = work, pool
        self._there, self._folder = _Remote(work, folder), folder
        self._see_files = True

    def begun(self, thing: _Thing) -> Future[Any]:
        """Hand a thing to a worker."""
        given = _left_in(self._folder, thing) if self._see_files else thing
        try:
            return self._pool.submit(self._there, given)
        except BrokenExecutor as error:  # a worker died: the rest is worked on here
            broken: Future[Any] = Future()
            broken.set_exception(error)
            return broken

    def made(self, thing: _Thing, future: Future[Any]) -> _Made:
        """Return what was made; what a worker that died was to make is made here."""
        try:
            found = future.result()
        except (BrokenExecutor, ConnectionError):
            return self._work(thing)
        except Exception as error:
            if type(error).__name__ not in _DIED:
                raise
            return self._work(thing)
        if isinstance(found, _NotSeen):
            self._see_files = False
            return self.made(thing, self.begun(thing))
        try:
            made: _Made = found.read() if isinstance(found, _Filed) else found
        except (OSError, EOFError):
            return self._work(thing)
        return made


def _in_order(
    begun: Callable[[_Thing], Future[Any]],
    made: Callable[[_Thing, Future[Any]], _Made],
    things: Iterable[_Thing],
    workers: int,
) -> Iterator[_Made]:
    waiting: deque[tuple[_Thing, Future[Any]]] = deque()
    ahead = min(_AHEAD * workers, _MOST_AHEAD)
    try:
        for thing in things:
            waiting.append((thing, begun(thing)))
            if len(waiting) >= ahead:
                yield made(*waiting.popleft())
        while waiting:
            yield made(*waiting.popleft())
    finally:
        for _, future in waiting:
            future.cancel()


def _workers(pool: Executor) -> int:
    return int(
        getattr(pool, "_max_workers", None) or getattr(pool, "num_workers", None) or USUAL_WORKERS
    )


def _cores() -> int:
    return pl.thread_pool_size()
