"""Paths that cost little to import, for what the recorder needs at its start.

Those of the standard library, which type checkers see here, take 7 ms to import with what they need.
What is seldom asked of a path is asked of them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["LightPath", "Path"]


class LightPath:
    """The name of a file; takes the place of a `pathlib.Path` wherever only its methods are used."""

    __slots__ = ("_text",)

    def __init__(self, name: str | os.PathLike[str]) -> None:
        text = os.fspath(name)
        if not isinstance(text, str):
            raise TypeError(f"a path is {type(text).__name__}, expected a text")
        self._text = str.__str__(text) or "."

    def __fspath__(self) -> str:
        return self._text

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"Path({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, os.PathLike) and os.path.normpath(self) == os.path.normpath(other)

    def __hash__(self) -> int:
        return hash(os.path.normpath(self))

    def __truediv__(self, name: str | os.PathLike[str]) -> LightPath:
        return LightPath(os.path.join(self._text, name))

    def __getattr__(self, name: str) -> Any:
        import pathlib  # noqa: PLC0415 - what this module is there to put off

        return getattr(pathlib.Path(self._text), name)

    @property
    def parent(self) -> LightPath:
        """The folder that it is in."""
        return LightPath(os.path.dirname(self._text))

    def absolute(self) -> LightPath:
        """Return it from the root on.

        Raises:
            OSError: the working folder is gone.
        """
        return (
            self if os.path.isabs(self._text) else LightPath(os.path.join(os.getcwd(), self._text))
        )

    def exists(self) -> bool:
        """Tell whether there is such a file."""
        return os.path.exists(self._text)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib has it
        """Make a folder.

        Raises:
            OSError: it cannot be made.
        """
        if parents:
            os.makedirs(self._text, mode, exist_ok)
        else:
            os.mkdir(self._text, mode)

    def rmdir(self) -> None:
        """Remove an empty folder.

        Raises:
            OSError: it cannot be removed.
        """
        os.rmdir(self._text)

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib has it
        """Remove a file.

        Raises:
            OSError: it cannot be removed.
        """
        try:
            os.unlink(self._text)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def stat(self) -> os.stat_result:
        """Return what the file system knows of it.

        Raises:
            OSError: it cannot be asked.
        """
        return os.stat(self._text)

    def read_bytes(self) -> bytes:
        """Return what is in the file.

        Raises:
            OSError: it cannot be read.
        """
        with open(self._text, "rb") as file:
            return file.read()

    def read_text(self, errors: str = "strict") -> str:
        """Return what is in the file, a text.

        Raises:
            OSError: it cannot be read.
        """
        with open(self._text, encoding="utf-8", errors=errors) as file:
            return file.read()


if not TYPE_CHECKING:
    Path = LightPath
