"""File descriptors that stay the recorder's own, also in a program that closes what it does not know.

Who daemonizes closes all descriptors, and the next files that the program opens get the same numbers.
What is written, truncated or closed by number alone then hits the program's files. So each descriptor
is looked at before it is used.
"""

from __future__ import annotations

import mmap
import os
import sys

from tracelens_instrument.core.failures import reraise_if_handlers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Final
else:
    import _signal as signal  # of which `signal` makes enumerations, which takes a while


__all__ = ["Descriptor", "LimitsAsErrors", "mapped"]

_KEPT: Final = "_tracelens_kept"


class Descriptor:
    """A descriptor, as long as it is what was opened."""

    def __init__(self, number: int) -> None:
        self._descriptor_number: int | None = number
        self._identity = _identity(number)

    @property
    def descriptor_number(self) -> int | None:
        """Its number; None if it was closed, by us or by the program."""
        if (
            self._descriptor_number is not None
            and _identity(self._descriptor_number) != self._identity
        ):
            self._descriptor_number = None
        return self._descriptor_number

    def is_same_file(self, other: Descriptor) -> bool:
        """Return True if another was opened on the same file."""
        return self._identity == other._identity

    def close(self) -> None:
        """Close the descriptor, if that was not done already."""
        number, self._descriptor_number = self.descriptor_number, None
        if number is not None:
            os.close(number)


class _Mapped(mmap.mmap):
    """A file in memory, which until Python 3.13 closes a descriptor of its own when it is freed.

    Where that has become another file, the memory is kept until the program's files are closed.
    """

    def __del__(self) -> None:
        """Do not close a descriptor that is not ours any more."""
        if not self._is_whole():
            vars(sys).setdefault(_KEPT, []).append(self)

    def _is_whole(self) -> bool:
        try:
            return self.size() == len(self)
        except OSError:
            return False
        except ValueError:  # it could not be made, or was closed
            return True


def mapped(descriptor: int, length: int) -> mmap.mmap:
    """Map a file of `length` bytes.

    Raises:
        OSError: the process may not map any more.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, length, trackfd=False)
    return _Mapped(descriptor, length)


class LimitsAsErrors:
    """Turns the limit of a file's size into an OSError, also where SIGXFSZ would end the program."""

    def __init__(self) -> None:
        self._before: set[int | signal.Signals] | None = None

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGXFSZ) != signal.SIG_IGN:  # as Python leaves it
            self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.sigtimedwait({signal.SIGXFSZ}, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError as error:
        reraise_if_handlers(error)
        return None
    return status.st_dev, status.st_ino
