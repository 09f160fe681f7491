"""Each reader turns one kind of recording into a `Trace`; the first that recognises a path reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.readers.native.reader import NativeReader
from tracelens.readers.table import TableReader

if TYPE_CHECKING:
    from tracelens.readers.base import Reader

READERS: Final[tuple[Reader, ...]] = (TableReader(), NativeReader())
