"""What a device must be able to do so that spans can be timed on it, and which device is in use.

The recorder never waits for a device: it records events on streams, and asks later whether they are
over. CUDA is what there is so far (`tracelens_instrument.hooks.torch_cuda`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeviceClock", "Event", "find"]

Event: TypeAlias = Any  # the device's own kind of object; only its clock looks inside

_CUDA: Final = "tracelens_instrument.hooks.torch_cuda"


class DeviceClock(Protocol):
    """One device of this process. No method waits for it."""

    @property
    def index(self) -> int:
        """Its number in this process."""
        ...

    @property
    def name(self) -> str:
        """What it is called, such as ``cuda:0``."""
        ...

    def record(self) -> tuple[Event, int] | None:
        """Record an event on the calling thread's stream; also say which stream that is.

        None where nothing may be recorded, because the stream's work is captured to be repeated.
        """
        ...

    def record_apart(self) -> Event:
        """Record an event on a stream on which nothing else runs, so that it is over soon."""
        ...

    def may_ask(self) -> bool:
        """Whether events may be asked about now."""
        ...

    def is_over(self, event: Event) -> bool:
        """Whether the device has come past an event."""
        ...

    def between_ns(self, first: Event, second: Event) -> int:
        """Return the device's time between two events that are over, nanoseconds."""
        ...

    def reuse(self, *events: Event) -> None:
        """Take events back that nobody needs any more."""
        ...


def find() -> DeviceClock | None:
    """Return the clock of the device that the calling thread uses; None without one.

    Never loads a framework, nor wakes up a device: only what the training already uses counts.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    current: Callable[[], DeviceClock] = import_module(_CUDA).current
    return current()
