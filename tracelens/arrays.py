"""Names of the kinds of numpy arrays that the core computes with, and their sums beyond 64 bits.

Times are whole nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # of any kind
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]
UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]
UInt16s = npt.NDArray[np.uint16]


def sum_exactly(values: Ints) -> Any:
    """Sum along the first axis, with Python's integers where the sum may exceed 64 bits.

    The time of 16,000 ranks over 30 days is more nanoseconds than 64 bits hold.
    """
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    if largest * len(values) < 1 << 63:
        return values.sum(axis=0, dtype=np.int64)
    high_sums, low_sums = (
        half.sum(axis=0, dtype=np.int64).astype(object)
        for half in (values >> 32, values & 0xFFFFFFFF)
    )
    return (high_sums << 32) + low_sums
