"""What open runs keep in this process's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from tracelens.arrays import Array
    from tracelens_dashboard.runs.store import Store

_SPAN_BYTES: Final = 150  # of a span with all its columns, in a trace that has no index


def held_bytes(store: Store) -> int:
    """Estimate what an open run keeps in memory, beside files that are mapped."""
    spans = 0 if store.on_disk else store.report.summary.spans * _SPAN_BYTES
    return spans + _held(store.run)


def _held(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return 0 if _mapped(value) else value.nbytes
    if isinstance(value, pl.DataFrame):
        return int(value.estimated_size())
    if isinstance(value, Mapping):
        return sum(_held(part) for part in value.values())
    if isinstance(value, tuple | list):
        return sum(_held(part) for part in value)
    if is_dataclass(value):
        return sum(_held(getattr(value, field.name)) for field in fields(value))
    return 0


def _mapped(array: Array) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)
