"""Ties py-spy's clock to the monotonic one: functions of known begin and end that its samples show.

A sample is stamped after it was taken, so every stamp is late, never early: the monotonic time is at
least a marker's begin where it is first seen, and at least its end where it is last seen. The largest
of these lower bounds is the offset.
"""

from __future__ import annotations

import time
from types import FunctionType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tracelens_instrument.stacks.chrome import Run

__all__ = ["MARKER", "mark", "offset_ns"]

MARKER: Final = "tracelens_marker_"
_LASTS_S: Final = 0.025
_FEWEST: Final = 3


def mark(number: int) -> dict[str, tuple[int, int]]:
    """Be in a function that bears this number for a moment; return its name, begin and end (ns)."""
    name = f"{MARKER}{number}"
    # py-spy shows a function's qualified name where there is one (from Python 3.11).
    renamed = _sleep.__code__.replace(co_name=name)
    if hasattr(renamed, "co_qualname"):
        renamed = renamed.replace(co_qualname=name)
    marker: Callable[[], tuple[int, int]] = FunctionType(renamed, globals())
    return {name: marker()}


def offset_ns(runs: Iterable[Run], marked: Mapping[str, tuple[int, int]]) -> int | None:
    """Return monotonic time minus py-spy's, ns; None if too few markers were seen to tell."""
    seen: dict[str, tuple[int, int]] = {}
    for run in runs:
        for frame in run.frames:
            name = frame.partition(" ")[0]
            if name in marked:
                first, last = seen.get(name, (run.start_ns, run.end_ns))
                seen[name] = min(first, run.start_ns), max(last, run.end_ns)
    if len(seen) < _FEWEST:
        return None
    return max(
        bound
        for name, (first, last) in seen.items()
        for bound in (marked[name][0] - first, marked[name][1] - last)
    )


def _sleep() -> tuple[int, int]:
    begin = time.monotonic_ns()
    time.sleep(_LASTS_S)
    return begin, time.monotonic_ns()
