"""Names of the kinds of numpy arrays that the core computes with; times are whole nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Array",
    "Bytes",
    "Flags",
    "Floats",
    "Indices",
    "Int8s",
    "Int16s",
    "Int32s",
    "Ints",
    "UInt16s",
    "UInt32s",
    "UInt64s",
]

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
