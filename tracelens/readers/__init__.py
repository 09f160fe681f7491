"""Each reader turns one kind of recording into a `Trace`; the first that recognises a path reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.readers.base import SIMPLY, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace
    from tracelens.readers.base import Reader


@dataclass(frozen=True)
class Format:
    """A reader whose module is imported when a path may be of its format."""

    may_be: Callable[[Path], bool]
    reader: Callable[[], Reader]

    @property
    def name(self) -> str:
        """Name the format in a few words."""
        return self.reader().name

    def sniff(self, path: Path) -> bool:
        """Return whether `path` looks like this format, without reading much of it."""
        return self.may_be(path) and self.reader().sniff(path)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read it, as `Reader.read` says."""
        return self.reader().read(path, how)


def _table() -> Reader:
    from tracelens.readers.table import TableReader

    return TableReader()


def _native() -> Reader:
    from tracelens.readers.native.reader import NativeReader

    return NativeReader()


READERS: Final[tuple[Reader, ...]] = (Format(Path.is_file, _table), Format(Path.exists, _native))
