"""Batches that worker processes fetch: when, by which worker, and how many lay ready.

A DataLoader with workers hands out batches in the order of their numbers. What the workers tell of
them (`torch_fetching`) becomes a span each on a track of the worker, in the training process's file;
the wait for the batch and its fetch bear the same request, and what lies between them is the time that
it lay ready.
"""

from __future__ import annotations

import itertools
import os
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final

import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.torch_fetching import MESSAGE, TellingWorker
from tracelens_instrument.hooks.torch_steps import LOOK

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Fetches", "around_reset", "around_workers", "fetches_of"]

_FETCH: Final = recorder.span("fetch", kind="data")
_READ: Final = 1024 * MESSAGE.size
_ATTRIBUTE: Final = "_tracelens_fetches"
_numbers: Final = itertools.count(1)


class Fetches:
    """What the workers of one iterator have told."""

    def __init__(self) -> None:
        self._reader, self.writer = Pipe(duplex=False)
        os.set_blocking(self._reader.fileno(), False)
        self._ready: dict[int, tuple[int, int, int]] = {}
        self.request = 0

    def before(self, batches: Any) -> dict[str, int]:
        """Be told that the next batch is waited for; return what is known of that."""
        self._read()
        due = batches._rcvd_idx  # noqa: SLF001 - nothing public tells
        self.request = next(_numbers)
        return {
            "request": self.request,
            "queue_depth": sum(1 for number in self._ready if number >= due),
        }

    def after(self, batches: Any) -> None:
        """Be told that it has come: record when it was fetched."""
        self._read()
        number = batches._rcvd_idx - 1  # noqa: SLF001 - as above
        told = self._ready.pop(number, None)
        if told is not None:
            worker, begin_ns, end_ns = told
            track = recorder.track(f"loader worker {worker}")
            _FETCH.complete(begin_ns, end_ns, track, key=number, request=self.request)

    def forget(self) -> None:
        """Be told that the workers begin anew, with batch 0."""
        self._read()
        self._ready.clear()

    def _read(self) -> None:
        while True:
            try:
                told = os.read(self._reader.fileno(), _READ)
            except BlockingIOError:
                return
            for worker, number, begin_ns, end_ns in MESSAGE.iter_unpack(told):
                self._ready[number] = (worker, begin_ns, end_ns)
            if len(told) < _READ:
                return


class _Loader(wrapt.ObjectProxy[Any]):
    """A DataLoader whose workers are initialized by us; it makes one iterator and is gone."""

    _self_begin: TellingWorker

    @property
    def worker_init_fn(self) -> TellingWorker:
        return self._self_begin


def fetches_of(batches: Any) -> Fetches | None:
    """Return what the workers of an iterator tell, if it has any that do."""
    found: Fetches | None = getattr(batches, _ATTRIBUTE, None)
    return found


def around_workers(
    init: Callable[..., Any], batches: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Start the workers so that they tell when they fetch."""
    fetches = attempt(Fetches) if args and LOOK.phases and recorder.active() else None
    if fetches is None:
        init(*args, **kwargs)
        return
    loader, *rest = args
    proxy = _Loader(loader)
    proxy._self_begin = TellingWorker(loader.worker_init_fn, fetches.writer)  # noqa: SLF001 - wrapt's way
    try:
        init(proxy, *rest, **kwargs)
    finally:
        fetches.writer.close()  # each worker has its own
    if getattr(batches, "_in_order", True):
        setattr(batches, _ATTRIBUTE, fetches)


def around_reset(
    reset: Callable[..., Any], batches: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """See workers that stay begin another epoch."""
    fetches = fetches_of(batches)
    if fetches is not None:
        attempt(fetches.forget)
    return reset(*args, **kwargs)
