"""Fetching batches: a span around each, in the process that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import wrapt
from torch.utils import data

from tracelens.errors import InvalidArgument
from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.torch_steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "record_batches"]

_DATA: Final = recorder.span("data", kind="data")
_installed: Final[list[bool]] = []


def install() -> None:
    """Record the batches of every DataLoader in this process."""
    if not _installed:
        _installed.append(True)
        wrapt.wrap_function_wrapper(
            "torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", _around_next
        )


def record_batches(loader: Any) -> None:
    """Record the batches of a DataLoader.

    Raises:
        InvalidArgument: something else, whose iterators nobody can look into.
    """
    if not isinstance(loader, data.DataLoader):
        raise InvalidArgument(
            f"loader is a {type(loader).__qualname__!r}, expected a torch.utils.data.DataLoader: put "
            "a span of kind 'data' around what fetches the batches."
        )
    install()


def _around_next(
    fetch: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if data.get_worker_info() is not None:  # a worker process prepares batches, it does not train
        return fetch(*args, **kwargs)
    guarded(STEPS.working)()
    with _DATA():
        return fetch(*args, **kwargs)
