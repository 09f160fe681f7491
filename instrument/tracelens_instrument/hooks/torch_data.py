"""Fetching batches: a span around each, in the process that trains, and what its workers do for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import wrapt
from torch.utils import data

from tracelens.errors import InvalidArgument
from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.torch_modules import tensors
from tracelens_instrument.hooks.torch_steps import LOOK, STEPS
from tracelens_instrument.hooks.torch_workers import (
    Fetches,
    around_reset,
    around_workers,
    fetches_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_instrument.span import Token

__all__ = ["install", "record_batches"]

_DATA: Final = recorder.span("data", kind="data")
_START: Final = recorder.span("loader start", kind="data")
_MODULE: Final = "torch.utils.data.dataloader"
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code has made, not C
_MARK: Final = "_tracelens_recorded"
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
    """The iterator of a recorded loader; whatever else the iterator can do, it can."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return _recorded(_DATA.begin, self._batches.__next__)

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
    return _recorded(_START.begin, make, *args, **kwargs)


def _around_next(
    fetch: Callable[..., Any], batches: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    fetches = fetches_of(batches)
    if fetches is None:
        batch = _recorded(_DATA.begin, fetch, *args, **kwargs)
    else:
        batch = _from_workers(fetches, fetch, batches, *args, **kwargs)
    attempt(_count, batches, batch)
    return batch


def _from_workers(
    fetches: Fetches, fetch: Callable[..., Any], batches: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wait for a batch that a worker has fetched, and record when it did."""
    known = attempt(fetches.before, batches) or {}
    batch = _recorded(partial(_DATA.begin, **known), fetch, *args, **kwargs)
    attempt(fetches.after, batches)
    return batch


def _count(batches: Any, batch: Any) -> None:
    """Count the samples of a batch, if its first dimension is the one that the sampler fills."""
    first = next(tensors(batch), None)
    samples = first.shape[0] if first is not None and first.ndim else None
    most = getattr(batches._index_sampler, "batch_size", None)  # noqa: SLF001 - nothing public has it
    counted = samples is not None and isinstance(most, int) and samples <= most
    STEPS.fetched(samples if counted else None)


def _recorded(
    begin: Callable[[], Token], fetch: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if data.get_worker_info() is not None:  # a worker process prepares batches, it does not train
        return fetch(*args, **kwargs)
    attempt(STEPS.fetching)
    if not LOOK.phases:
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
