"""Works on several things at a time; numpy, polars and pyarrow let each other run meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["side_by_side"]

_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")


def side_by_side(work: Callable[[_Thing], _Made], things: Iterable[_Thing]) -> Iterator[_Made]:
    """Yield what `work` makes of each, in order; as many at a time as there are cores."""
    pool = ThreadPoolExecutor(pl.thread_pool_size())
    try:
        yield from pool.map(work, things)
    finally:
        pool.shutdown(cancel_futures=True)
