"""A file as bytes that are mapped, not read, whatever its name: Arrow itself opens only UTF-8 names."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["mapped"]


def mapped(path: Path) -> pa.Buffer:
    """Map a file, for as long as anything made of the buffer is there.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    with path.open("rb") as file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
