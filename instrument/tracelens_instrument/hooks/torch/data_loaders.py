"""Fetching batches: a span around each, in the process that trains, and what its workers do for it.

A DataLoader with workers hands out batches in the order of their numbers. What the workers report of
them (`loader_worker`) becomes a span each on a track of the worker, in the training process's file;
the wait for the batch and its fetch bear the same request, and what lies between them is the time that
it lay ready.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final

import wrapt
from torch.utils import data

from tracelens.errors import InvalidArgument
from tracelens_instrument import recorder
from tracelens_instrument.core.state import STATE
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.torch.loader_worker import BATCH_REPORT, ReportingWorker
from tracelens_instrument.hooks.torch.modules import tensors_of
from tracelens_instrument.hooks.torch.steps import DETAIL, IMPLICIT_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_instrument.core.spans import Token

__all__ = ["Fetches", "around_reset", "around_workers", "fetches_of", "install", "record_batches"]

_FETCH: Final = recorder.span("fetch", kind="data")
_READ_BYTES: Final = 1024 * BATCH_REPORT.size
_FETCHES_ATTRIBUTE: Final = "_tracelens_fetches"
_requests: Final = itertools.count(1)
_DATA: Final = recorder.span("data", kind="data")
_START: Final = recorder.span("loader start", kind="data")
_MODULE: Final = "torch.utils.data.dataloader"
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code has made, not C
_MARK: Final = "_tracelens_recorded"


class Fetches:
    """What the workers of one iterator have reported."""

    def __init__(self) -> None:
        self._reader, self.writer = Pipe(duplex=False)
        os.set_blocking(self._reader.fileno(), False)
        # Worker, begin and end in ns, by number of the batch that is ready.
        self._fetch_by_batch_number: dict[int, tuple[int, int, int]] = {}
        self.request = 0

    def begin_wait(self, iterator: Any) -> dict[str, int]:
        """Called when the next batch is waited for; return its request and how many are ready."""
        self._read_reports()
        awaited_number = iterator._rcvd_idx  # noqa: SLF001 - nothing public has it
        self.request = next(_requests)
        ready_count = sum(1 for number in self._fetch_by_batch_number if number >= awaited_number)
        return {"request": self.request, "queue_depth": ready_count}

    def end_wait(self, iterator: Any) -> None:
        """Called when the batch has arrived: record when its worker fetched it."""
        self._read_reports()
        batch_number = iterator._rcvd_idx - 1  # noqa: SLF001 - as above
        worker_and_times = self._fetch_by_batch_number.pop(batch_number, None)
        if worker_and_times is not None:
            worker, begin_ns, end_ns = worker_and_times
            track = recorder.track(f"loader worker {worker}")
            _FETCH.complete(begin_ns, end_ns, track, key=batch_number, request=self.request)

    def forget(self) -> None:
        """Called when the workers restart with batch 0."""
        self._read_reports()
        self._fetch_by_batch_number.clear()

    def _read_reports(self) -> None:
        """Read what workers have reported since, without waiting for more."""
        while True:
            try:
                reports = os.read(self._reader.fileno(), _READ_BYTES)
            except BlockingIOError:
                return
            for worker, batch_number, begin_ns, end_ns in BATCH_REPORT.iter_unpack(reports):
                self._fetch_by_batch_number[batch_number] = (worker, begin_ns, end_ns)
            if len(reports) < _READ_BYTES:
                return


class _Loader(wrapt.ObjectProxy[Any]):
    """A DataLoader whose workers are initialized by us; it makes one iterator and is gone."""

    _self_begin: ReportingWorker

    @property
    def worker_init_fn(self) -> ReportingWorker:
        return self._self_begin


def fetches_of(iterator: Any) -> Fetches | None:
    """Return the reports of an iterator's workers, if it has any."""
    found: Fetches | None = getattr(iterator, _FETCHES_ATTRIBUTE, None)
    return found


def around_workers(
    init: Callable[..., Any], iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Call the iterator's `init`, which starts its workers, so that these report their fetches."""
    fetches = attempt(Fetches) if args and DETAIL.records_phases and recorder.active() else None
    if fetches is None:
        init(*args, **kwargs)
        return
    loader, *other_args = args
    proxy = _Loader(loader)
    proxy._self_begin = ReportingWorker(loader.worker_init_fn, fetches.writer)  # noqa: SLF001 - wrapt's way
    try:
        init(proxy, *other_args, **kwargs)
    finally:
        fetches.writer.close()  # each worker has its own
    if getattr(iterator, "_in_order", True):
        setattr(iterator, _FETCHES_ATTRIBUTE, fetches)


def around_reset(
    reset: Callable[..., Any], iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Note that persistent workers begin another epoch."""
    fetches = fetches_of(iterator)
    if fetches is not None:
        attempt(fetches.forget)
    return reset(*args, **kwargs)


_patched: Final[set[object]] = set()


def install() -> None:
    """Record the batches of every DataLoader in this process."""
    _patch(_MODULE, "DataLoader.__iter__", _around_start)
    _patch(_MODULE, "_BaseDataLoaderIter.__next__", _around_next)
    _patch(_MODULE, "_MultiProcessingDataLoaderIter.__init__", around_workers)
    _patch(_MODULE, "_MultiProcessingDataLoaderIter._reset", around_reset)


def record_batches(loader: Any) -> None:
    """Record the batches of a DataLoader, or of an object of any class that can be iterated over.

    Raises:
        InvalidArgument: it cannot be iterated over, or is of a built-in type, which cannot be told.
    """
    cls = type(loader)
    if isinstance(loader, data.DataLoader):
        install()
    elif hasattr(cls, "__iter__") and cls.__flags__ & _HEAP_TYPE and hasattr(loader, "__dict__"):
        setattr(loader, _MARK, True)
        _patch(cls, "__iter__", _around_iter)
    else:
        raise InvalidArgument(
            f"loader is a {cls.__qualname__!r}, expected a DataLoader or an object of a class with "
            "__iter__: else put a span of kind 'data' around what fetches the batches."
        )


class _Batches:
    """The iterator of a recorded loader; it forwards everything else to the original."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return _record_fetch(_DATA.begin, self._batches.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _around_iter(
    make: Callable[..., Any], loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    batches = make(*args, **kwargs)
    return _Batches(batches) if _MARK in vars(loader) else batches


def _around_start(
    make: Callable[..., Any], _loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Starting the workers takes time, too."""
    return _record_fetch(_START.begin, make, *args, **kwargs)


def _around_next(
    fetch: Callable[..., Any], iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the next batch of a DataLoader's iterator, whose `fetch` is recorded."""
    fetches = fetches_of(iterator)
    if fetches is None:
        batch = _record_fetch(_DATA.begin, fetch, *args, **kwargs)
    else:
        batch = _fetch_from_workers(fetches, fetch, iterator, *args, **kwargs)
    if STATE.infers_steps:
        attempt(_count_samples, iterator, batch)
    return batch


def _fetch_from_workers(
    fetches: Fetches, fetch: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wait for a batch that a worker has fetched, and record when it did; return the batch."""
    span_values = attempt(fetches.begin_wait, iterator) or {}  # request, and how many are ready
    batch = _record_fetch(partial(_DATA.begin, **span_values), fetch, *args, **kwargs)
    attempt(fetches.end_wait, iterator)
    return batch


def _count_samples(iterator: Any, batch: Any) -> None:
    """Count the samples of a batch, if its first dimension is the one that the sampler fills."""
    tensor = next(tensors_of(batch), None)
    samples = tensor.shape[0] if tensor is not None and tensor.ndim else None
    batch_size = getattr(iterator._index_sampler, "batch_size", None)  # noqa: SLF001 - nothing public has it
    is_counted = samples is not None and isinstance(batch_size, int) and samples <= batch_size
    IMPLICIT_STEPS.note_fetched_samples(samples if is_counted else None)


def _record_fetch(
    begin: Callable[[], Token], fetch: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call `fetch` in a span that `begin` begins, if phases are recorded; return the batch."""
    if data.get_worker_info() is not None:  # a worker process prepares batches, it does not train
        return fetch(*args, **kwargs)
    if STATE.infers_steps:
        attempt(IMPLICIT_STEPS.note_fetch_begin)
    if not DETAIL.records_phases:
        return fetch(*args, **kwargs)
    token = begin()
    failed = True
    try:
        batch = fetch(*args, **kwargs)
        failed = False
    except StopIteration:
        failed = False
        raise
    finally:
        token.end(failed)
    return batch


def _patch(owner: Any, name: str, around: Callable[..., Any]) -> None:
    if (owner, name) not in _patched:
        _patched.add((owner, name))
        wrapt.wrap_function_wrapper(owner, name, around)
