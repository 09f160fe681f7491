"""Names of the kinds of numpy arrays that the core computes with; times are whole nanoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "Flags", "Floats", "Indices", "Int8s", "Int32s", "Ints"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]
