"""Only one process at a time converts a recording: the others wait a while, or do without."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tracelens.errors import TraceNotFound
from tracelens.schema.ownership import NO_LINK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TRY_EVERY_S: Final = 0.02
_LOCKED_ERRORS: Final = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def hold_lock(file: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Lock an existing file for a block; waits for a process that holds the lock.

    A system, or a file system, without locks is used without.

    Raises:
        BlockingIOError: another process has it, and does not release it in time.
        TraceNotFound: the file is gone, because another process has finished with it.
        OSError: it cannot be opened.
    """
    descriptor = _open(file)
    try:
        _lock(descriptor, file, time.monotonic() + patience_s)
        if not _is_still(file, descriptor):
            raise _missing(file)
        yield
    finally:
        os.close(descriptor)


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDWR | NO_LINK)
    except FileNotFoundError as error:
        raise _missing(file) from error


def _missing(file: Path) -> TraceNotFound:
    return TraceNotFound(f"{file} is not there any more")


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, file: Path, deadline_s: float) -> None:
    try:
        import fcntl  # noqa: PLC0415 - there is none outside of Unix, where traces are only read
    except ImportError:
        return
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCKED_ERRORS:
                return
            if time.monotonic() >= deadline_s:
                raise BlockingIOError(error.errno, f"another process converts {file}") from error
        else:
            return
        time.sleep(_TRY_EVERY_S)
