"""Long collections of Python's garbage, as spans of kind `gc` on the thread that collects.

Python calls back before and after each collection, on the thread that triggered it. Young garbage is
collected many times a second, in microseconds: what is short leaves no record, and costs two readings
of the clock.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import contain
from tracelens_instrument.core.state import STATE

if TYPE_CHECKING:
    from tracelens_instrument.core.spans import Span

__all__ = ["LEAST_NS", "install"]

LEAST_NS: Final = 10**6


class _Collections:
    """What Python calls back; one collection at a time runs in a process."""

    def __init__(self) -> None:
        self._begin_ns = 0
        self._span: Span | None = None

    def __call__(self, phase: str, _info: dict[str, Any]) -> None:
        try:
            if phase == "start":
                self._begin_ns = now()
            elif STATE.segment is not None:
                end_ns = now()
                if end_ns - self._begin_ns >= LEAST_NS:
                    self._record(end_ns)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)

    def _record(self, end_ns: int) -> None:
        from tracelens_instrument import recorder  # noqa: PLC0415 - not loaded before it records

        if recorder.detail() == "step":
            return
        if self._span is None:
            self._span = recorder.span("garbage collection", kind="gc")
        self._span.complete(self._begin_ns, end_ns)


_COLLECTIONS: Final = _Collections()


def install() -> None:
    """Record collections from now on."""
    if _COLLECTIONS not in gc.callbacks:
        gc.callbacks.append(_COLLECTIONS)
